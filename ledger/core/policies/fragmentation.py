"""How much of what is free the workload cannot use: FGD's measure, and its policy.

A typical shape of the workload leaves unused, on a node where it does not fit,
all that is free there; where it fits, what is free on devices too small for it.
Their average by the shapes' shares is the node's *fragmentation* (Weng et al.,
"Beware of Fragmentation", USENIX ATC'23, section 3).
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

from ledger.core.policies.logarithm import log_ratio
from ledger.core.state import WHOLE_MILLI

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ledger.core.policies.spot import Ask, Spot
    from ledger.core.policies.workload import Workload

__all__ = ["PPM", "Fragmentation", "FragmentationDescent", "Typical", "typical_of"]

#: Shares of the workload are in millionths.
PPM = 1_000_000


class Typical(NamedTuple):
    """A typical shape that needs ``devices`` of this model, ``milli`` thousandths of each."""

    devices: int
    milli: int
    cpu_milli: int
    memory_mib: int
    share_ppm: int
    worth_ppm: int


def typical_of(workload: Workload | None, model: str) -> list[Typical]:
    """Return the typical shapes that devices of the model can serve, equal ones as one."""
    merged: dict[tuple[int, int, int, int], tuple[int, int]] = {}
    for shape in workload.shapes if workload is not None else ():
        if shape["count"] and (not shape["models"] or model in shape["models"]):
            key = (
                shape["count"],
                shape["gpu_milli"],
                shape["cpu_milli"],
                shape["host_memory_mib"],
            )
            share, worth = merged.get(key, (0, 0))
            merged[key] = (share + shape["share_ppm"], worth + shape["worth_ppm"])
    return [Typical(*key, *merged[key]) for key in sorted(merged)]


class Fragmentation:
    """What is free, less its fragmentation, both as they are weighed.

    Free devices and rooms are worth ``worth[milli]`` each; a thousandth that a
    millionth of the workload cannot use costs ``weight``.
    """

    __slots__ = ("_cpus", "_memories", "_never", "_shapes", "_tables", "_weight", "_worth")

    def __init__(self, shapes: Sequence[Typical], weight: int, worth: Sequence[int]) -> None:
        self._shapes = shapes
        self._weight = weight
        self._worth = worth
        self._never = PPM - sum(one.share_ppm for one in shapes) if shapes else 0
        self._cpus = sorted({one.cpu_milli for one in shapes})
        self._memories = sorted({one.memory_mib for one in shapes})
        self._tables: dict[tuple[int, int], tuple[_Rooms, _Fulls]] = {}

    def of(self, spot: Spot) -> int:
        """Return the number for what is free."""
        cpu, memory, full, rooms = spot
        key = (bisect_right(self._cpus, cpu), bisect_right(self._memories, memory))
        tables = self._tables.get(key)
        if tables is None:
            tables = self._tables[key] = self._make(*key)
        by_room, by_full = tables
        total = by_full[full]
        for room in rooms:
            total += by_room[room]
        return total

    def _make(self, cpus: int, memories: int) -> tuple[_Rooms, _Fulls]:
        """Make the tables of a node where CPU and memory are enough for the first so many."""
        cpu = set(self._cpus[:cpus])
        memory = set(self._memories[:memories])
        never, able = self._never, []
        for one in self._shapes:
            if one.cpu_milli in cpu and one.memory_mib in memory:
                able.append(one)
            else:
                never += one.share_ppm
        rooms = _Rooms(able, never, self._weight, self._worth)
        return rooms, _Fulls(able, rooms[WHOLE_MILLI], self._weight)


class _Rooms(dict[int, int]):
    """The number for a device by its free thousandths."""

    def __init__(
        self, able: Sequence[Typical], never: int, weight: int, worth: Sequence[int]
    ) -> None:
        super().__init__()
        self.able, self.never, self.weight, self.worth = able, never, weight, worth

    def __missing__(self, room: int) -> int:
        small = self.never + sum(one.share_ppm for one in self.able if one.milli > room)
        self[room] = found = self.worth[room] - self.weight * small * room
        return found


class _Fulls(dict[int, int]):
    """The number for so many wholly free devices of one node."""

    def __init__(self, able: Sequence[Typical], one: int, weight: int) -> None:
        super().__init__()
        self.able, self.one, self.weight = able, one, weight

    def __missing__(self, full: int) -> int:
        few = sum(shape.share_ppm for shape in self.able if shape.devices > full)
        self[full] = found = full * self.one - self.weight * few * full * WHOLE_MILLI
        return found


#: Scores at which a hundred times the logistic function of the score, in devices, reaches
#: 1, 2, … 99. FGD rounds its scores so; the tie rule among equal ones is part of what it does.
_GRADES = [log_ratio(percent, 100 - percent) for percent in range(1, 100)]


class FragmentationDescent:
    """``fgd``: where the fragmentation grows least, by whole hundredths as published.

    It does not look at host memory when it asks what would fit. Without a workload
    nothing is fragmented and it is ``first-fit``.
    """

    def __init__(self, workload: Workload | None, model: str) -> None:
        shapes = [one._replace(memory_mib=0) for one in typical_of(workload, model)]
        self.worth = Fragmentation(shapes, 1, [0] * (WHOLE_MILLI + 1)).of

    def toll(self, _ask: Ask) -> int:
        """Return zero."""
        return 0

    def grade(self, score: int) -> int:
        """Return 100 times the logistic function of the score, rounded down."""
        return bisect_right(_GRADES, score)
