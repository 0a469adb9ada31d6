"""Whether the index that was kept is the one that the state alone would give (S2).

Like `ledger.core.invariants`, which runs this with its own.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

from ledger.core.derived.index import rebuild
from ledger.core.policies.choice import faults

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ledger.core.derived.index import Index
    from ledger.core.state import State

__all__ = ["derived_faults"]


def derived_faults(state: State) -> Iterator[tuple[str, str]]:
    """Yield which part of the index differs from one that is made anew, and how."""
    twin = copy(state)
    fresh = _plain(rebuild(twin), twin)
    for name, kept in _plain(state.index, state).items():
        if kept != fresh[name]:
            yield f"index.{name}", f"kept {kept!r}, rebuilt {fresh[name]!r}"
    for fault in faults(state, twin):
        yield "index.scores", fault


def _plain(index: Index, state: State) -> dict[str, object]:
    waiting = index.waiting
    return {
        "cards": {
            key: (
                cards.free,
                {count: nodes for count, nodes in enumerate(cards.buckets) if nodes},
                cards.partial,
                cards.room,
            )
            for key, cards in index.cards.items()
        },
        "slices": {
            key: (one.free, one.where, one.members, dict(one.sizes))
            for key, one in index.slices.items()
        },
        "makers": {
            kind: [fleet.where for fleet in fleets] for kind, fleets in index.makers.fleets.items()
        },
        "offers": (index.makers.offers, index.makers.pending, index.makers.homes),
        "waiting": {key: (shape.line, shape.classes) for key, shape in waiting.shapes.items()},
        "filed": waiting.filed(),
        "plans": index.plans,
        "repairs": {node: set(names) for node, names in index.repairs.items()},
        "booked": {node: set(names) for node, names in index.booked.items()},
        "deadlines": index.deadlines.standing(state),
    }
