"""The states of one MIG geometry as numbers, and what each is worth to each profile.

A state is the set of instances on a device, one bit for each possible placement. An
8-slice board with six profiles has 723 of them, so all that placement asks of a state is
worked out once and kept: a choice is then a few table look-ups.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING

from ledger.core.mig.layouts import Instance, legal_starts

if TYPE_CHECKING:
    from collections.abc import Collection

    from ledger.core.mig.layouts import Geometry

__all__ = ["Option", "States", "states_of"]

#: A start, what creating there takes from each profile's worth (never above zero), the state
#: after it.
Option = tuple[int, tuple[int, ...], int]

#: How soon the worth of a device looks ahead: to a time that is 1/8 of a mean holding time
#: on average. Room that opens after that is of little use to the requests now coming.
_SOON = 8

#: Worth is kept in millionths, so that devices of every geometry are measured alike.
_MILLIONTHS = 1_000_000

#: A placement that is open now counts for 3, one that is or will soon be open for 7 of 10.
_NOW, _SOON_SHARE = 3, 7


class States:
    """Tables over the states of a geometry, filled as states are met."""

    __slots__ = ("_bits", "_departed", "_fits", "_options", "_worth", "geometry", "names", "places")

    def __init__(self, geometry: Geometry) -> None:
        """Number the placements: bit i of a state is ``places[i]``."""
        self.geometry = geometry
        self.names = {one.name: at for at, one in enumerate(geometry.profiles)}
        self.places = tuple(
            Instance(start, one.size, one.name) for one in geometry.profiles for start in one.starts
        )
        self._bits = {place: 1 << at for at, place in enumerate(self.places)}
        self._fits: dict[int, tuple[tuple[int, ...], ...]] = {}
        self._departed: dict[int, tuple[Fraction, ...]] = {}
        self._worth: dict[int, tuple[int, ...]] = {}
        self._options: tuple[dict[int, tuple[Option, ...]], ...] = tuple(
            {} for _ in geometry.profiles
        )

    def encode(self, occupied: Collection[Instance]) -> int | None:
        """Return the state with these instances; None if one is at no reported placement."""
        state = 0
        for one in occupied:
            bit = self._bits.get(one)
            if bit is None:
                return None
            state |= bit
        return state

    def decode(self, state: int) -> tuple[Instance, ...]:
        """Return the instances of a state, in order of their places."""
        return tuple(sorted(place for place, bit in self._bits.items() if state & bit))

    def bit(self, instance: Instance) -> int:
        """Return the bit of an instance at a reported placement."""
        return self._bits[instance]

    def fits(self, state: int) -> tuple[tuple[int, ...], ...]:
        """Return the legal starts of each profile now."""
        found = self._fits.get(state)
        if found is None:
            occupied = self.decode(state)
            found = self._fits[state] = tuple(
                legal_starts(self.geometry, occupied, name) for name in self.names
            )
        return found

    def worth(self, state: int) -> tuple[int, ...]:
        """Return what the state is worth to each profile: 0 to 10 million.

        Three tenths are whether the profile fits now; the rest is how likely it fits a
        little later if instances only go, each at the same rate: see `_soon`.
        """
        found = self._worth.get(state)
        if found is None:
            found = self._worth[state] = tuple(
                _NOW * _MILLIONTHS * bool(now) + _SOON_SHARE * int(soon * _MILLIONTHS)
                for now, soon in zip(self.fits(state), self._soon(state), strict=True)
            )
        return found

    def _soon(self, state: int) -> tuple[Fraction, ...]:
        """Return the chance of each profile to fit at a random time soon.

        The time is exponential with rate `_SOON`, each instance goes with rate 1 and none
        comes. So of n + `_SOON` either the time is up, or one of the n is gone first: a
        recursion over ever smaller states in exact fractions, the same on every machine.
        """
        found = self._departed.get(state)
        if found is None:
            bits = [bit for bit in self._bits.values() if state & bit]
            after = [self._soon(state ^ bit) for bit in bits]
            found = self._departed[state] = tuple(
                Fraction(_SOON * bool(now) + sum(one[at] for one in after), _SOON + len(bits))
                for at, now in enumerate(self.fits(state))
            )
        return found

    def options(self, state: int, profile: int) -> tuple[Option, ...]:
        """Return the legal starts of a profile with what each takes, ascending.

        Of starts that take the same the lowest stands for all.
        """
        found = self._options[profile].get(state)
        if found is None:
            before = self.worth(state)
            kind = self.geometry.profiles[profile]
            kept: dict[tuple[int, ...], Option] = {}
            for start in self.fits(state)[profile]:
                after = state | self._bits[Instance(start, kind.size, kind.name)]
                change = tuple(
                    new - old for new, old in zip(self.worth(after), before, strict=True)
                )
                kept.setdefault(change, (start, change, after))
            found = self._options[profile][state] = tuple(kept.values())
        return found


@lru_cache(maxsize=64)
def states_of(geometry: Geometry) -> States:
    """Return the tables of a geometry. Equal geometries share them."""
    return States(geometry)
