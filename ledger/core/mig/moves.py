"""Defragmentation: the fewest moves that free a placement for a profile that has none.

A plan is the same thing to an operator, who reads it and gives the orders, and to an
allocator that may move on its own. Each move creates the new instance first and destroys
the old one after the work has gone over, so nothing overlaps at any time.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import mul
from typing import TYPE_CHECKING

from ledger.core.mig.fleet import cheapest, prices
from ledger.core.mig.layouts import CREATE_MS, DESTROY_MS, Instance

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ledger.core.mig.fleet import Fleet
    from ledger.core.mig.layouts import Profile
    from ledger.core.mig.states import States

__all__ = ["MOST_MOVES", "Move", "MovePlan", "plan_moves"]

#: More moves than this for one placement disturb more than they help.
MOST_MOVES = 4


@dataclass(frozen=True, slots=True)
class Move:
    """Create ``to`` on ``to_device``, let the work go over, destroy ``instance`` on ``device``."""

    device: str
    instance: Instance
    to_device: str
    to: Instance


@dataclass(frozen=True, slots=True)
class MovePlan:
    """The moves in order; after the last of them ``place`` on ``device`` is free."""

    moves: tuple[Move, ...]
    device: str
    place: Instance

    @property
    def cost_ms(self) -> int:
        """Return what the moves take, one after the other, without the work's own time."""
        return len(self.moves) * (CREATE_MS + DESTROY_MS)


def plan_moves(
    fleet: Fleet,
    profile: str,
    weights: Mapping[str, int],
    movable: Callable[[str, Instance], bool],
    most: int = MOST_MOVES,
) -> MovePlan | None:
    """Plan the fewest moves that make room for the profile, or None within ``most``.

    ``movable`` says of each instance whether it may be moved: a busy one only where its
    holder allows it (C09). Of plans with equally many moves the one that leaves the most
    at the present prices is taken, then the least device name and start.
    """
    states = fleet.states
    wanted = states.names.get(profile)
    if wanted is None:
        return None
    at = prices(fleet, weights)
    now = cheapest(fleet, wanted, at)
    kind = states.geometry.profiles[wanted]
    if now is not None:
        return MovePlan((), now.device, Instance(now.start, kind.size, kind.name))
    by_count: dict[int, list[tuple[str, Instance, tuple[Instance, ...]]]] = {}
    for device, place, blockers in _candidates(fleet, kind, movable, most):
        by_count.setdefault(len(blockers), []).append((device, place, blockers))
    scratch = fleet.copy()
    for count in sorted(by_count):
        best: tuple[int, MovePlan] | None = None
        for device, place, blockers in sorted(by_count[count]):
            found = _relocate(scratch, at, device, place, blockers)
            if found is not None and (best is None or found[0] > best[0]):
                best = found
        if best is not None:
            return best[1]
    return None


def _candidates(
    fleet: Fleet, kind: Profile, movable: Callable[[str, Instance], bool], most: int
) -> Iterator[tuple[str, Instance, tuple[Instance, ...]]]:
    """Yield a device of each state, a place on it, and what would have to go.

    Devices in one state are alike, so the first of them that may be touched stands for all.
    """
    for state, devices in fleet.groups.items():
        for start in kind.starts:
            place = Instance(start, kind.size, kind.name)
            blockers = _blockers(fleet.states, state, place)
            if blockers is None or len(blockers) > most:
                continue
            for device in devices:
                if all(movable(device, one) for one in blockers):
                    yield device, place, blockers
                    break


def _blockers(states: States, state: int, place: Instance) -> tuple[Instance, ...] | None:
    """Return what has to leave the state so that the place is legal, largest first."""
    profile = states.names[place.profile]
    present = states.decode(state)
    end = place.start + place.size
    gone = [one for one in present if one.start < end and place.start < one.start + one.size]
    rest = [one for one in present if one not in gone]
    rest.sort(key=lambda one: (-_compute(states, one), one))
    left = state & ~_bits(states, gone)
    # Where slices of memory are free but those of compute are not, more has to go.
    while place.start not in states.fits(left)[profile]:
        if not rest:
            return None
        gone.append(rest.pop(0))
        left = state & ~_bits(states, gone)
    # The one with the fewest places elsewhere chooses first.
    return tuple(sorted(gone, key=lambda one: (-one.size, -_compute(states, one), one)))


def _compute(states: States, one: Instance) -> int:
    return states.geometry.profiles[states.names[one.profile]].compute_slices


def _bits(states: States, instances: list[Instance]) -> int:
    return sum(states.bit(one) for one in instances)


def _relocate(
    scratch: Fleet,
    at: tuple[int, ...],
    device: str,
    place: Instance,
    blockers: tuple[Instance, ...],
) -> tuple[int, MovePlan] | None:
    """Find each blocker its best place; return the plan and what it leaves, or None.

    The scratch fleet is as it was afterwards.
    """
    states = scratch.states
    before = scratch.where[device]
    #: As it is between two moves, and as it will be with the wanted instance on it.
    current, final = before, before
    for one in blockers:
        final &= ~states.bit(one)
    final |= states.bit(place)
    score = sum(map(mul, at, states.worth(final))) - sum(map(mul, at, states.worth(before)))
    moves: list[Move] = []
    undo = [(device, before)]
    scratch.set(device, None)
    for one in blockers:
        profile = states.names[one.profile]
        away = cheapest(scratch, profile, at)
        here = [
            (sum(map(mul, at, change)), start, after)
            for start, change, after in states.options(final, profile)
            # The old instance is still there when the new one comes.
            if start in states.fits(current)[profile]
        ]
        home = max(here, key=lambda each: (each[0], -each[1]), default=None)
        if away is None and home is None:
            break
        if away is None or (home is not None and (-home[0], device) < (-away.score, away.device)):
            assert home is not None
            gained, start, final = home
            to = Instance(start, one.size, one.profile)
            current |= states.bit(to)
            moves.append(Move(device, one, device, to))
        else:
            gained = away.score
            to = Instance(away.start, one.size, one.profile)
            undo.append((away.device, scratch.where[away.device]))
            scratch.set(away.device, away.after)
            moves.append(Move(device, one, away.device, to))
        current &= ~states.bit(one)
        score += gained
    for name, state in reversed(undo):
        scratch.set(name, state)
    if len(moves) < len(blockers):
        return None
    return score, MovePlan(tuple(moves), device, place)
