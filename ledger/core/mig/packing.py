"""The fewest devices that hold a list of profiles, each with its complete layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ledger.core.mig.layouts import complete_layout

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ledger.core.mig.layouts import Geometry, Instance

__all__ = ["MOST_PACKED", "MOST_TRIED", "Packing", "lower_bound", "pack"]

#: A longer list of profiles is refused: the search goes as deep as there are devices.
MOST_PACKED = 512

#: After so many partial packings the search gives up and says so.
MOST_TRIED = 200_000

#: How many of each profile of the geometry.
_Counts = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Packing:
    """The layout of each device. ``exact``: it is proved that fewer cannot do."""

    devices: tuple[tuple[Instance, ...], ...]
    exact: bool


def lower_bound(geometry: Geometry, profiles: Sequence[str]) -> int:
    """Return how many devices their compute slices and memory slices need at the least.

    Raises ValueError for a profile that the device does not report.
    """
    return _bound(geometry, _counts(geometry, profiles))


def pack(geometry: Geometry, profiles: Sequence[str], most_tried: int = MOST_TRIED) -> Packing:
    """Pack the profiles into the fewest devices of the geometry.

    It tries one device more at a time from the lower bound on, and fills each device
    with the largest profile left and as much beside it as fits: a packing that could
    still take something is never better than the one that takes it. Raises ValueError
    for a profile that the device does not report or cannot hold even one of, and for
    more than `MOST_PACKED` profiles.
    """
    counts = _counts(geometry, profiles)
    if len(profiles) > MOST_PACKED:
        raise ValueError(f"{len(profiles)} profiles, and {MOST_PACKED} is the most at once")
    for name in sorted(set(profiles)):
        if complete_layout(geometry, [name]) is None:
            raise ValueError(f"{name} has no placement")
    search = _Search(geometry, most_tried)
    least = devices = _bound(geometry, counts)
    while True:
        found = search.into(counts, devices)
        if found is not None:
            layouts = tuple(_layout(geometry, one) for one in found)
            return Packing(layouts, exact=devices == least or search.tried <= most_tried)
        devices += 1


def _counts(geometry: Geometry, profiles: Sequence[str]) -> _Counts:
    for name in profiles:
        if geometry.profile(name) is None:
            raise ValueError(f"the device does not report the profile {name}")
    return tuple(profiles.count(one.name) for one in geometry.profiles)


def _bound(geometry: Geometry, counts: _Counts) -> int:
    """Round up, slice for slice; and by how many of a profile fit on one device alone."""
    kinds = list(zip(geometry.profiles, counts, strict=True))
    compute = sum(kind.compute_slices * count for kind, count in kinds)
    memory = sum(kind.size * count for kind, count in kinds)
    bounds = [-(-memory // geometry.memory_slices), -(-compute // geometry.compute_slices)]
    bounds += [-(-count // kind.most) for kind, count in kinds if kind.most]
    return max(bounds)


def _layout(geometry: Geometry, counts: _Counts) -> tuple[Instance, ...]:
    kinds = zip(geometry.profiles, counts, strict=True)
    found = complete_layout(geometry, [kind.name for kind, n in kinds for _ in range(n)])
    assert found is not None
    return tuple(sorted(found))


class _Search:
    """Depth first over what the devices hold, the fullest first, failures remembered."""

    def __init__(self, geometry: Geometry, most_tried: int) -> None:
        self.geometry = geometry
        self.most_tried = most_tried
        self.tried = 0
        self.failed: dict[_Counts, int] = {}
        self.holds: dict[_Counts, bool] = {}
        kinds = geometry.profiles
        #: Profiles, largest first.
        self.order = sorted(
            range(len(kinds)), key=lambda at: (-kinds[at].size, -kinds[at].compute_slices, at)
        )

    def into(self, left: _Counts, devices: int) -> list[_Counts] | None:
        """Return what each of so many devices holds, or None if it was not found."""
        if not any(left):
            return []
        if devices < _bound(self.geometry, left) or self.failed.get(left, 0) >= devices:
            return None
        self.tried += 1
        for load in self._full_loads(left):
            rest = tuple(all_ - some for all_, some in zip(left, load, strict=True))
            found = self.into(rest, devices - 1)
            if found is not None:
                return [load, *found]
            if self.tried > self.most_tried:
                # Over the limit only the first, greedy choice is followed down.
                break
        self.failed[left] = devices
        return None

    def _full_loads(self, left: _Counts) -> list[_Counts]:
        """Return the loads with the largest profile left that nothing left can be added to."""
        first = next(at for at in self.order if left[at])
        start = tuple(int(at == first) for at in range(len(left)))
        loads = [one for one in self._grow(start, left, self.order) if self._is_full(one, left)]
        return sorted(loads, key=self._weight, reverse=True)

    def _grow(self, load: _Counts, left: _Counts, order: list[int]) -> Iterator[_Counts]:
        """Yield every load that has at least this one and fits on one device, each once."""
        if not self._fits(load):
            return
        yield load
        for depth, at in enumerate(order):
            if load[at] < left[at]:
                yield from self._grow(_plus(load, at), left, order[depth:])

    def _is_full(self, load: _Counts, left: _Counts) -> bool:
        return not any(
            load[at] < left[at] and self._fits(_plus(load, at)) for at in range(len(load))
        )

    def _fits(self, load: _Counts) -> bool:
        found = self.holds.get(load)
        if found is None:
            kinds = zip(self.geometry.profiles, load, strict=True)
            names = [kind.name for kind, n in kinds for _ in range(n)]
            found = self.holds[load] = complete_layout(self.geometry, names) is not None
        return found

    def _weight(self, load: _Counts) -> tuple[int, int, _Counts]:
        kinds = list(zip(self.geometry.profiles, load, strict=True))
        compute = sum(kind.compute_slices * count for kind, count in kinds)
        return compute, sum(kind.size * count for kind, count in kinds), load


def _plus(load: _Counts, at: int) -> _Counts:
    return (*load[:at], load[at] + 1, *load[at + 1 :])
