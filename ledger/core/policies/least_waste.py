"""``least-waste``: what is free is worth what the workload can make of it.

What is free on a node is worth, in devices:

- the *hole price* of each device by its free thousandths: how much of a device
  the workload's own sizes make of such a hole at best. It is the dual of the
  bin-packing linear program over those sizes (`ledger.placement_weights`), so a
  size goes where its complement is asked for, and a hole that nothing fits in is
  worth nothing;
- less its fragmentation (`ledger.core.policies.fragmentation`), memory included;
- plus the logarithm of how many copies of each typical shape still fit;
- less the free devices that lack the CPU or memory the workload needs beside them;
- plus a little for many free devices together, so that used nodes fill up first.

The place is taken whose worth falls least. Devices of a model that requests name
(``models``) cost more, so that others leave them alone.
"""

from __future__ import annotations

from operator import getitem
from typing import TYPE_CHECKING, Any, TypeVar

from ledger.core.policies.fragmentation import Fragmentation, typical_of
from ledger.core.policies.logarithm import log_ratio
from ledger.core.state import WHOLE_MILLI

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ledger.core.policies.fragmentation import Typical
    from ledger.core.policies.spot import Ask, Spot
    from ledger.core.policies.workload import Workload

__all__ = ["LeastWaste"]

# Worth is counted in 10^-12 of a device. docs/placement.md has the formula; tuned on openb.
#: A hole price of one thousandth: 3 for a whole device.
_HOLE = 3 * 10**9
#: A thousandth of a device that a millionth of the workload cannot use: 0.25.
_FRAGMENT = 250
#: The logarithm of the copies, by a shape's worth in millionths, of 10^-15: 0.4, and 0.6
#: where more CPU is asked for than there is, so that places for the usual shapes run out.
_COPIES, _COPIES_SHORT, _COPIES_BELOW = 4, 6, 10**4
#: A free thousandth of a device without CPU beside it: 0.75; without memory: 0.10.
_NO_CPU, _NO_MEMORY = 750 * 10**6, 100 * 10**6
#: The square of the free thousandths of a node: 0.045 / 8.
_TOGETHER = 5625
#: A thousandth of a device, by the thousandths of its model's load: 0.5.
_TOLL = 500_000

#: Part of what the workload's average asks beside a device that a free device must have.
_CPU_PERCENT, _MEMORY_PERCENT = 88, 75

_Any = TypeVar("_Any")

#: More copies than these are as good as these.
_MOST_COPIES = 255
#: Halves the first copies' weight: ln(1 + copies / 2.5).
_COPIES_HALF = (2, 5)
#: How many numbers are remembered before all are forgotten.
_MEMORY = 50_000


class LeastWaste:
    """``least-waste`` for the devices of one model; without a workload, fullest node first."""

    def __init__(self, workload: Workload | None, model: str) -> None:
        shapes = typical_of(workload, model)
        holes = _hole_prices(workload.holes if workload is not None else ())
        self._fragmentation = Fragmentation(shapes, _FRAGMENT, [_HOLE * one for one in holes])
        cpu = workload.cpu_milli_per_gpu if workload is not None else 0
        memory = workload.memory_mib_per_gpu if workload is not None else 0
        #: What must be free beside a device, times 100; 0 is nothing.
        self._cpu, self._memory = cpu * _CPU_PERCENT, memory * _MEMORY_PERCENT
        load = workload.loads_milli.get(model, 0) if workload is not None else 0
        self._toll = _TOLL * load
        short = workload is not None and workload.cpu_load_milli > WHOLE_MILLI
        self._copies = _Copies(shapes, _COPIES_SHORT if short else _COPIES)

    def worth(self, spot: Spot) -> int:
        """Return what the workload can make of the spot."""
        cpu, memory, full, rooms = spot
        free = full * WHOLE_MILLI + sum(rooms)
        worth = self._fragmentation.of(spot) + self._copies.worth(spot) + _TOGETHER * free * free
        if self._cpu:
            lack = free - cpu * (100 * WHOLE_MILLI) // self._cpu
            if lack > 0:
                worth -= _NO_CPU * lack
        if self._memory:
            lack = free - memory * (100 * WHOLE_MILLI) // self._memory
            if lack > 0:
                worth -= _NO_MEMORY * lack
        return worth

    def toll(self, ask: Ask) -> int:
        """Return what a place costs because requests name this model."""
        return self._toll * ask.total_milli

    def grade(self, score: int) -> int:
        """Return the score."""
        return score


def _hole_prices(steps: Sequence[Sequence[int]]) -> list[int]:
    """Return the price of each hole from 0 to 1000; without steps it is the hole's size."""
    if not steps:
        return list(range(WHOLE_MILLI + 1))
    prices = []
    price, at = 0, 0
    for milli in range(WHOLE_MILLI + 1):
        while at < len(steps) and steps[at][0] <= milli:
            price = steps[at][1]
            at += 1
        prices.append(price)
    return prices


class _Copies:
    """How many copies of each typical shape still fit by devices and CPU, as their worth.

    Shapes that ask the same of devices are a group: how many devices allow is the
    same for all of it. What a group is worth by that number is remembered by the
    CPU's limits for its shapes, and these by the CPU.
    """

    __slots__ = ("_by_cpu", "_by_devices", "_groups", "_tables", "_weight")

    def __init__(self, shapes: Sequence[Typical], weight: int) -> None:
        self._weight = weight
        groups: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for one in shapes:
            if one.worth_ppm:
                group = groups.setdefault((one.devices, one.milli), [])
                group.append((one.cpu_milli, one.worth_ppm))
        self._groups = list(groups.items())
        self._tables: list[dict[tuple[int, ...], _ByCopies]] = [{} for _ in groups]
        self._by_cpu: dict[int, list[_ByCopies]] = {}
        self._by_devices: dict[tuple[int, tuple[int, ...]], list[int]] = {}

    def worth(self, spot: Spot) -> int:
        """Return the worth of all copies that fit."""
        cpu, _, full, rooms = spot
        tables = self._by_cpu.get(cpu)
        if tables is None:
            tables = _keep(self._by_cpu, cpu, self._limit(cpu))
        copies = self._by_devices.get((full, rooms))
        if copies is None:
            copies = _keep(self._by_devices, (full, rooms), self._count(full, rooms))
        return sum(map(getitem, tables, copies))

    def _limit(self, cpu: int) -> list[_ByCopies]:
        """Return for each group what it is worth by the copies that devices allow."""
        found = []
        for (_, group), tables in zip(self._groups, self._tables, strict=True):
            limits = tuple(
                [min(_MOST_COPIES, cpu // each) if each else _MOST_COPIES for each, _ in group]
            )
            table = tables.get(limits)
            if table is None:
                worths = [worth for _, worth in group]
                table = tables[limits] = _ByCopies(worths, limits, self._weight)
            found.append(table)
        return found

    def _count(self, full: int, rooms: Sequence[int]) -> list[int]:
        """Return for each group how many copies devices allow."""
        found = []
        for (devices, milli), _ in self._groups:
            if milli == WHOLE_MILLI:
                copies = full // devices
            else:
                copies = full * (WHOLE_MILLI // milli) + sum([room // milli for room in rooms])
            found.append(min(_MOST_COPIES, copies))
        return found


def _keep(memory: dict[Any, _Any], key: object, found: _Any) -> _Any:
    """Remember what was worked out; what is remembered never changes an answer."""
    if len(memory) >= _MEMORY:
        memory.clear()
    memory[key] = found
    return found


class _ByCopies(dict[int, int]):
    """What a group of shapes is worth by the copies that devices allow."""

    def __init__(self, worths: Sequence[int], limits: Sequence[int], weight: int) -> None:
        super().__init__()
        self._worths, self._limits, self._weight = worths, limits, weight

    def __missing__(self, copies: int) -> int:
        scale, half = _COPIES_HALF
        total = 0
        for worth, limit in zip(self._worths, self._limits, strict=True):
            total += worth * log_ratio(half + scale * min(copies, limit), half)
        self[copies] = found = total * self._weight // _COPIES_BELOW
        return found
