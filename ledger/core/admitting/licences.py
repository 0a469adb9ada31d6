"""Licences: how many are in use, by requests with a place kept or leased (as quota, Q2)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ledger.core.state import Need, State

__all__ = ["Licence", "count_licences", "licence_faults", "licences_short", "never_licensed"]

Numbers = dict[str, int | str | None]


@dataclass(slots=True)
class Licence:
    """A licence (`schemas.compatibility.LicenceApply`), and how many are in use."""

    name: str
    count: int
    used: int = 0


def never_licensed(state: State, need: Need) -> tuple[str, Numbers] | None:
    """Return the licence that there is not, or not as often as is asked; None: all are there."""
    for name, asked in need.terms.licences if need.terms is not None else ():
        licence = state.licences.get(name)
        if licence is None:
            return "unknown_licence", {"licence": name}
        if asked > licence.count:
            return "exceeds_licences", {"licence": name, "asked": asked, "count": licence.count}
    return None


def licences_short(state: State, need: Need, *, own: bool = False) -> Numbers | None:
    """Return the numbers of the first licence that is lacking now; None when none is.

    ``own``: the need is among those that use them already.
    """
    for name, asked in need.terms.licences if need.terms is not None else ():
        licence = state.licences[name]
        if licence.used + (0 if own else asked) > licence.count:
            used = {"used": licence.used, "count": licence.count}
            return {"licence": name, "asked": asked, **used}
    return None


def count_licences(state: State, need: Need, sign: int) -> None:
    """Take the need's licences into use (+1), or give them back (-1)."""
    for name, asked in need.terms.licences if need.terms is not None else ():
        state.licences[name].used += sign * asked
        if sign < 0:
            state.index.loosen(f"licence {name}")


def licence_faults(state: State) -> Iterator[tuple[str, str, str]]:
    """Yield where what is kept as used is not what is used (Q2)."""
    used: Counter[str] = Counter()
    for request in state.requests.values():
        if request.charge is not None and request.need.terms is not None:
            used.update(dict(request.need.terms.licences))
    for name, licence in state.licences.items():
        if licence.used != used[name]:
            yield "Q2", name, f"{licence.used} are kept as used, {used[name]} are"
