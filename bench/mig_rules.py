"""Rules to choose a device and a start by: the ledger's own, and those it is measured against.

The others are as in the literature, told the true mix where they use one. All give ties
to the least device name and the lowest start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.core.mig.fleet import Found, cheapest, prices
from ledger.core.mig.layouts import Instance

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ledger.core.mig.fleet import Fleet
    from ledger.core.mig.states import States

__all__ = ["RULES", "rule_of"]


def _first_fit(_states: States, _weights: Mapping[str, int], _state: int, _after: int) -> int:
    return 0


def _best_fit(states: States, _weights: Mapping[str, int], state: int, after: int) -> int:
    """Fewest free slices, then the start that keeps most placements legal."""
    return -100 * _free(states, state) + sum(len(starts) for starts in states.fits(after))


def _fragmentation(states: States, weights: Mapping[str, int], state: int, after: int) -> int:
    """FGD's measure: the least growth of the free slices that a drawn request cannot use."""

    def lost(one: int) -> int:
        unfit = (
            weight
            for weight, starts in zip(weights.values(), states.fits(one), strict=True)
            if not starts
        )
        return _free(states, one) * sum(unfit)

    return lost(state) - lost(after)


def _keep_options(states: States, weights: Mapping[str, int], state: int, after: int) -> int:
    """The least loss of legal placements, each weighed by how often it is asked for."""
    pairs = zip(states.fits(after), states.fits(state), weights.values(), strict=True)
    return sum(weight * (len(new) - len(old)) for new, old, weight in pairs)


def _free(states: States, state: int) -> int:
    kinds = states.geometry.profiles
    used = sum(kinds[states.names[one.profile]].compute_slices for one in states.decode(state))
    return states.geometry.compute_slices - used


#: How good it is to go from a state to the one after; higher is better.
_SCORES = {
    "first-fit": _first_fit,
    "best-fit": _best_fit,
    "fgd": _fragmentation,
    "keep-options": _keep_options,
}

#: Names of the rules; ``scarcity`` is the ledger's.
RULES = ("scarcity", *_SCORES)


def rule_of(name: str, weights: Mapping[str, int]) -> Callable[[Fleet, int], Found | None]:
    """Return the rule of that name: from a fleet and a profile (by its place) to a device.

    ``weights`` are the mix, in the geometry's order.
    """
    if name == "scarcity":
        return lambda fleet, profile: cheapest(fleet, profile, prices(fleet, weights))
    score = _SCORES[name]
    known: dict[tuple[int, int], tuple[int, int, int] | None] = {}

    def best_of(states: States, state: int, profile: int) -> tuple[int, int, int] | None:
        """Return (score, start, state after) of the best start on a device in the state."""
        kind = states.geometry.profiles[profile]
        found: tuple[int, int, int] | None = None
        for start in states.fits(state)[profile]:
            after = state | states.bit(Instance(start, kind.size, kind.name))
            value = score(states, weights, state, after)
            if found is None or value > found[0]:
                found = (value, start, after)
        return found

    def choose(fleet: Fleet, profile: int) -> Found | None:
        best: Found | None = None
        for state, devices in fleet.groups.items():
            at = (state, profile)
            if at not in known:
                known[at] = best_of(fleet.states, state, profile)
            found = known[at]
            if found is None:
                continue
            value, start, after = found
            if best is None or (-value, devices[0]) < (-best.score, best.device):
                best = Found(value, devices[0], start, after)
        return best

    return choose
