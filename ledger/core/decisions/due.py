"""What happens when something falls due (DESIGN 2.2): events like any others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.core.decisions.losing import lose_node, settle_node
from ledger.core.decisions.partition import partition_failed
from ledger.core.decisions.reservations import close_reservation, open_reservation
from ledger.core.derived.deadlines import due_time
from ledger.core.limits import MAX_DUE

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.core.decisions.turn import Turn

__all__ = ["fire"]


def fire(turn: Turn) -> None:
    """Let what is due at the turn's time happen, oldest first, until `MAX_DUE` events."""
    deadlines = turn.state.index.deadlines
    while len(turn.events) < MAX_DUE:
        entry = deadlines.pop_due(turn.state, turn.now_us)
        if entry is None:
            return
        due_us, kind, name = entry
        _RULES[kind](turn, name, due_us)


def _wait(turn: Turn, name: str, _due_us: int) -> None:
    turn.emit({"type": "request.ended", "request": name, "how": "expired"})


def _run(turn: Turn, name: str, due_us: int) -> None:
    """The due time stands beside the time it was acted on (C31)."""
    turn.stop(turn.state.leases[name], "max-run", due_us=due_us)


def _order(turn: Turn, name: str, _due_us: int) -> None:
    """No answer is no proof: the units go into quarantine (A11)."""
    order = turn.state.orders[name]
    if order.kind == "partition":
        closing = {"type": "order.timed-out", "order": name}
        partition_failed(turn, order, closing, "its node did not answer in time")
        return
    if order.kind == "mode":
        turn.emit({"type": "order.timed-out", "order": name})
        return
    turn.shut_away(order, f"{order.kind} order {name} was not answered", {})
    turn.emit({"type": "order.timed-out", "order": name})
    if order.kind == "stop":
        lease = turn.state.leases[order.lease]
        turn.end_part(lease, order.node, "stop-timed-out")
        turn.end_if_over(lease, "stop-timed-out")


def _node(turn: Turn, name: str, _due_us: int) -> None:
    turn.emit({"type": "node.changed", "node": name, "state": "lost", "reason": "silent too long"})
    lose_node(turn, name, "node-lost")


def _remind(turn: Turn, name: str, due_us: int) -> None:
    lease = turn.state.leases[name]
    assert lease.idle_since_us is not None
    event = {"type": "lease.reminded", "lease": name, "idle_us": due_us - lease.idle_since_us}
    reclaim_us = due_time(turn.state, "idle", name)
    turn.emit(event if reclaim_us is None else event | {"reclaim_us": reclaim_us})


def _idle(turn: Turn, name: str, due_us: int) -> None:
    turn.stop(turn.state.leases[name], "idle", due_us=due_us)


def _rest(turn: Turn, name: str, _due_us: int) -> None:
    turn.emit({"type": "request.rested", "request": name})


def _budget(turn: Turn, name: str, _due_us: int) -> None:
    turn.emit({"type": "quota.renewed", "quota": name})


def _repair(turn: Turn, name: str, _due_us: int) -> None:
    turn.emit({"type": "request.repair-over", "request": name})


def _opens(turn: Turn, name: str, _due_us: int) -> None:
    open_reservation(turn, name)


def _closes(turn: Turn, name: str, _due_us: int) -> None:
    close_reservation(turn, name)


def _settle(turn: Turn, name: str, _due_us: int) -> None:
    settle_node(turn, name)


_RULES: dict[str, Callable[[Turn, str, int], None]] = {
    "wait": _wait,
    "run": _run,
    "order": _order,
    "node": _node,
    "remind": _remind,
    "idle": _idle,
    "budget": _budget,
    "rest": _rest,
    "settle": _settle,
    "repair": _repair,
    "opens": _opens,
    "closes": _closes,
}
