"""Where to create an instance among many devices: the scarcity rule.

Creating an instance takes placements away from every profile. A profile with many open
devices does not feel it, one with few does; so each profile has a price that falls with
the number of devices where it still fits, and the choice is the one that takes the least
at these prices. Integers throughout, ties to the least device name and the lowest start:
a replay on any machine makes the same choice (C07, C19).

Devices are kept by state, so that a choice costs as much as there are distinct states.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from operator import mul
from typing import TYPE_CHECKING, NamedTuple

from ledger.core.mig.states import states_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from ledger.core.mig.layouts import Geometry, Instance

__all__ = ["Choice", "Fleet", "Found", "best_start", "cheapest", "choose", "prices"]

#: What a profile's price is times, for each device more on which it fits: seven tenths.
_FALLS = (7, 10)
_FULL_PRICE = 1 << 64
_PRICES = tuple(_FULL_PRICE * _FALLS[0] ** at // _FALLS[1] ** at for at in range(125))


class Choice(NamedTuple):
    """A device and the start of the new instance on it."""

    device: str
    start: int


class Found(NamedTuple):
    """A choice with its score (higher is better) and the device's state after it."""

    score: int
    device: str
    start: int
    after: int


class Fleet:
    """Devices of one geometry, by what is on them.

    What counts as on a device is what must stay there: an idle instance may be left out,
    since `layouts.layout_with` makes room for the new one or finds it there already.
    """

    __slots__ = ("groups", "open", "states", "where")

    def __init__(self, geometry: Geometry) -> None:
        """Start without devices."""
        self.states = states_of(geometry)
        #: device -> its state.
        self.where: dict[str, int] = {}
        #: state -> the devices in it, sorted; never empty.
        self.groups: dict[int, list[str]] = {}
        #: profile (by its place in the geometry) -> how many devices could take one now.
        self.open = [0] * len(geometry.profiles)

    def copy(self) -> Fleet:
        """Return a fleet of its own with the same devices."""
        twin = Fleet(self.states.geometry)
        twin.where = dict(self.where)
        twin.groups = {state: list(devices) for state, devices in self.groups.items()}
        twin.open = list(self.open)
        return twin

    def put(self, device: str, occupied: Collection[Instance]) -> bool:
        """Set what is on a device, known or not.

        A device with an instance that it has no placement for cannot be planned: it is
        taken out, and the answer is False.
        """
        state = self.states.encode(occupied)
        self.set(device, state)
        return state is not None

    def set(self, device: str, state: int | None) -> None:
        """Set the state of a device, known or not; None takes it out."""
        old = self.where.get(device)
        if old == state:
            return
        if old is not None:
            group = self.groups[old]
            if len(group) == 1:
                del self.groups[old]
            else:
                del group[bisect_left(group, device)]
            self._count(old, -1)
        if state is None:
            del self.where[device]
            return
        self.where[device] = state
        group = self.groups.setdefault(state, [])
        insort(group, device)
        self._count(state, 1)

    def _count(self, state: int, change: int) -> None:
        for at, starts in enumerate(self.states.fits(state)):
            if starts:
                self.open[at] += change

    def create(self, device: str, instance: Instance) -> None:
        """Add an instance that is not there yet."""
        self.set(device, self.where[device] | self.states.bit(instance))

    def destroy(self, device: str, instance: Instance) -> None:
        """Take an instance away that is there."""
        self.set(device, self.where[device] & ~self.states.bit(instance))


def prices(fleet: Fleet, weights: Mapping[str, int]) -> tuple[int, ...]:
    """Return what a placement of each profile is worth now, in the geometry's order.

    ``weights`` say how often each profile is asked for, in any unit. Only the proportions
    count, so the scarcest profile has the full price and a large fleet stays in range.
    """
    asked = [weights.get(name, 0) for name in fleet.states.names]
    scarcest = min((n for n, weight in zip(fleet.open, asked, strict=True) if weight), default=0)
    last = len(_PRICES) - 1
    return tuple(
        weight * _PRICES[min(n - scarcest, last)] if weight else 0
        for n, weight in zip(fleet.open, asked, strict=True)
    )


def cheapest(
    fleet: Fleet, profile: int, at: tuple[int, ...], usable: Callable[[str], bool] | None = None
) -> Found | None:
    """Return the place that takes the least at these prices, or None if none is legal."""
    best: Found | None = None
    options = fleet.states.options
    for state, devices in fleet.groups.items():
        for start, change, after in options(state, profile):
            score = sum(map(mul, at, change))
            if best is not None and score < best.score:
                continue
            device = devices[0] if usable is None else next(filter(usable, devices), None)
            if device is None:
                break
            if best is None or score > best.score or (device, start) < (best.device, best.start):
                best = Found(score, device, start, after)
    return best


def choose(
    fleet: Fleet,
    profile: str,
    weights: Mapping[str, int],
    usable: Callable[[str], bool] | None = None,
) -> Choice | None:
    """Choose a device and a start for one instance, or None if no usable device has one."""
    at = fleet.states.names.get(profile)
    if at is None:
        return None
    found = cheapest(fleet, at, prices(fleet, weights), usable)
    return None if found is None else Choice(found.device, found.start)


def best_start(
    geometry: Geometry, occupied: Collection[Instance], profile: str, weights: Mapping[str, int]
) -> int | None:
    """Choose the start on one device, or None if none is legal."""
    fleet = Fleet(geometry)
    fleet.put("", occupied)
    choice = choose(fleet, profile, weights)
    return None if choice is None else choice.start
