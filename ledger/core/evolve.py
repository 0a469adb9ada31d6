"""`evolve` applies one event; `settle` what every decision does beside its events.

Both are pure functions of the state and their arguments; the worker that
decides, replay, archive and audit all go through these two (DESIGN 2.1), so
that there is one meaning of a record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ledger.core.derived.index import Index
from ledger.core.derived.unindexed import Unindexed
from ledger.core.events.leases import LEASE_EVENTS
from ledger.core.events.promises import PROMISES
from ledger.core.events.requests import REQUEST_EVENTS, RuleBroken
from ledger.core.events.rules import RULES
from ledger.core.events.slices import SLICE_EVENTS
from ledger.core.events.supply import SUPPLY
from ledger.core.state import State

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["HANDLERS", "REMEMBER_US", "RuleBroken", "empty", "evolve", "settle"]

#: How long an ended request or another input's id is remembered: the window in
#: which the same id gets the same answer. It must exceed the retention of the
#: requests topic (7 days), after which a broker delivers nothing again.
REMEMBER_US = 32 * 86_400 * 1_000_000
_SWEEP_US = 86_400 * 1_000_000

#: Event type -> what it does to the state.
HANDLERS: dict[str, Callable[[State, dict[str, Any], int], None]] = (
    RULES | SUPPLY | SLICE_EVENTS | REQUEST_EVENTS | LEASE_EVENTS | PROMISES
)


def empty(cell: str, *, indexed: bool = True) -> State:
    """Return the state of a cell that nothing has happened in.

    ``indexed`` False is for reading a log: nothing can be decided on it before
    `ledger.core.derived.index.rebuild`.
    """
    return State(cell, Index() if indexed else Unindexed())


def evolve(state: State, event: dict[str, Any], now_us: int) -> None:
    """Apply one event of a decision made at ``now_us``.

    Raise `RuleBroken` or `IllegalTransition` when the event cannot be; the
    state must then be thrown away.
    """
    HANDLERS[event["type"]](state, event, now_us)


def settle(state: State, time_us: int, topic: str, key: str, fingerprint: str, code: str) -> None:
    """Close a decision: its time is the cell's clock, its id is remembered.

    ``key`` is ``source#id`` of the input, remembered when it came from the
    requests topic (L1). The clock never goes back (DESIGN 2.2).
    """
    if time_us < state.now_us:
        raise RuleBroken("L5", f"the clock goes back from {state.now_us} to {time_us}")
    state.now_us = time_us
    if topic == "requests":
        entry = state.seen.get(key)
        if entry is None:
            state.seen[key] = [fingerprint, code, time_us]
        elif not entry[0]:
            entry[0] = fingerprint
        request = state.requests.get(key)
        if request is not None and not request.fp:
            request.fp = fingerprint
    if time_us - state.swept_us >= _SWEEP_US:
        _sweep(state, time_us)
    state.index.settle()


def _sweep(state: State, time_us: int) -> None:
    """Forget what is older than the window. Once a day: a sweep reads what it keeps."""
    state.swept_us = time_us
    cutoff = time_us - REMEMBER_US
    if cutoff > 0:
        state.seen = {
            key: entry
            for key, entry in state.seen.items()
            if entry[2] >= cutoff or key in state.requests
        }
