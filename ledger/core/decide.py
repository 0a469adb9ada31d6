"""`decide`: one input in, one decision out. No clock, no chance, no I/O.

The steps are always the same: deadlines that the input's time has passed fire;
the input's own rule speaks; what has been loosened goes to those who wait. The
state given is advanced by exactly the events returned; it is the caller's to
throw away when the decision does not get into the log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ledger.core.decisions.compatibility import COMPATIBILITIES
from ledger.core.decisions.due import fire
from ledger.core.decisions.links import LINKS
from ledger.core.decisions.mig_mode import MODES
from ledger.core.decisions.orders import ORDERS
from ledger.core.decisions.partition import PARTITIONS
from ledger.core.decisions.policy import POLICY
from ledger.core.decisions.prices import PRICES
from ledger.core.decisions.quota import QUOTAS
from ledger.core.decisions.requests import REQUESTS
from ledger.core.decisions.reservations import RESERVATIONS, mend_reservations
from ledger.core.decisions.supply import OBSERVATIONS
from ledger.core.decisions.templates import TEMPLATES
from ledger.core.decisions.turn import SKEW_FLAG_US, Input, Turn
from ledger.core.evolve import settle
from ledger.core.line.schedule import run_pass

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.core.decisions.turn import Answer, Numbers
    from ledger.core.state import State

__all__ = ["CREATES_CELL", "Decision", "decide", "to_record"]

#: What may speak of a cell that does not exist yet: policy, and nodes that report
#: before there is any (they are *registering* until their pool is applied, C35).
CREATES_CELL = frozenset(
    {"pool.apply", "quota.apply", "queue.apply", "template.apply", "node.inventory"}
)

#: Codes that, without an event, leave no record: deciding again changes nothing.
_SILENT = frozenset({"unchanged", "observed", "duplicate"})

_RULES: dict[str, Callable[[Turn, Input], Answer]] = (
    COMPATIBILITIES
    | LINKS
    | REQUESTS
    | RESERVATIONS
    | POLICY
    | QUOTAS
    | TEMPLATES
    | PRICES
    | PARTITIONS
    | MODES
    | OBSERVATIONS
    | ORDERS
)


@dataclass(slots=True)
class Decision:
    """What was decided. ``recorded`` False: nothing to append, answer again if asked.

    Not frozen for the reason `ledger.core.state.Need` is not.
    """

    input: Input
    time_us: int
    code: str
    numbers: Numbers
    events: list[dict[str, Any]]
    recorded: bool


def decide(state: State, given: Input) -> Decision:
    """Decide one input. Raises only for a broken invariant, never for a bad input."""
    turn = Turn(state, max(state.now_us, given.time_us))
    key = given.key
    code, numbers = _known(state, given, key) or ("", {})
    if code == "duplicate":
        return Decision(given, turn.now_us, code, numbers, [], recorded=False)
    fire(turn)
    if turn.events or state.pass_cut:
        # What became free before this input belongs to those who waited before it (C19).
        run_pass(turn)
    if not code:
        code, numbers = _RULES[given.type](turn, given)
    if state.reservations:
        mend_reservations(turn)
    if not state.pass_cut:
        run_pass(turn)
    recorded = bool(turn.events) or code not in _SILENT
    if recorded:
        settle(state, turn.now_us, given.topic, key, given.fingerprint, code)
    return Decision(given, turn.now_us, code, numbers, turn.events, recorded)


def _known(state: State, given: Input, key: str) -> Answer | None:
    """Same id, same content: the same answer; other content: a conflict (L1)."""
    if given.topic != "requests":
        return None
    request = state.requests.get(key)
    entry = state.seen.get(key)
    if request is None and entry is None:
        return None
    fingerprint = request.fp if request is not None else entry[0]  # type: ignore[index]
    if fingerprint == given.fingerprint:
        return "duplicate", {}
    return "id_conflict", {"first": fingerprint, "now": given.fingerprint}


def to_record(
    decision: Decision, *, cell: str, token: str, seq: int, offset: int
) -> dict[str, Any]:
    """Return the decision as the record that goes into the log."""
    given = decision.input
    about: dict[str, Any] = {
        "type": given.type,
        "version": given.version,
        "source": given.source,
        "id": given.id,
        "fp": given.fingerprint,
        "data": given.plain,
    }
    if given.claimed_us is not None and abs(given.claimed_us - given.time_us) > SKEW_FLAG_US:
        about["skew_us"] = given.claimed_us - given.time_us
    outcome: dict[str, Any] = {"code": decision.code}
    if decision.numbers:
        outcome["numbers"] = decision.numbers
    return {
        "v": 1,
        "kind": "decision",
        "token": token,
        "seq": seq,
        "cell": cell,
        "source": [given.topic, offset],
        "time_us": decision.time_us,
        "input": about,
        "outcome": outcome,
        "events": decision.events,
    }
