"""What nodes answer: tasks started and ended, orders done and failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ledger.core.decisions.partition import partition_done, partition_failed
from ledger.core.decisions.requests import lease_past

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.core.decisions.turn import Answer, Input, Turn
    from ledger.core.state import Lease, Order, State
    from schemas.observations import OrderDone, OrderFailed, TaskEnded, TaskStarted, TaskUse

__all__ = ["ORDERS", "fenced"]

#: How a task ended -> why its lease does, when nothing was ordered before (C25).
_REASONS = {
    "completed": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
    "stopped": "cancelled",
    "never-started": "failed",
}


def fenced(state: State, given: Input) -> Answer | None:
    """Refuse what is said of an unknown node, or of an earlier incarnation."""
    fact = given.data
    node = state.nodes.get(fact.node)
    if node is None:
        return "unknown_node", {"node": fact.node}
    if fact.incarnation != node.incarnation:
        return "stale_incarnation", {"said": fact.incarnation, "now": node.incarnation}
    return None


def _by_agent(state: State, given: Input) -> Answer | None:
    """Refuse what only the node's own agent may say, from anybody else (A11)."""
    refusal = fenced(state, given)
    if refusal is not None:
        return refusal
    agent = state.nodes[given.data.node].agent
    return None if given.source == agent else ("wrong_agent", {"agent": agent})


def _lease_here(turn: Turn, given: Input) -> Lease | Answer:
    refusal = _by_agent(turn.state, given)
    if refusal is not None:
        return refusal
    fact: TaskStarted | TaskEnded = given.data
    lease = turn.state.leases.get(fact.lease)
    if lease is None:
        past = lease_past(turn.state, fact.lease)
        if past is None:
            return "unknown_lease", {"lease": fact.lease}
        return "already_released", past
    if fact.node not in lease.parts:
        return "wrong_node", {"node": fact.node, "nodes": len(lease.parts)}
    return lease


def _started(turn: Turn, given: Input) -> Answer:
    lease = _lease_here(turn, given)
    if isinstance(lease, tuple):
        return lease
    fact: TaskStarted = given.data
    if lease.parts[fact.node].state != "granted":
        return "unchanged", {}
    turn.emit({"type": "lease.started", "lease": lease.id, "node": fact.node})
    return "observed", {}


def _ended(turn: Turn, given: Input) -> Answer:
    lease = _lease_here(turn, given)
    if isinstance(lease, tuple):
        return lease
    fact: TaskEnded = given.data
    if lease.parts[fact.node].state == "ended":
        return "unchanged", {}
    turn.end_part(lease, fact.node, fact.how, exit_code=fact.exit_code, took_us=fact.took_us)
    reason = _REASONS[fact.how]
    if reason == "completed" or all(part.state == "ended" for part in lease.parts.values()):
        turn.end_if_over(lease, reason)
    else:
        turn.stop(lease, reason)
    return "observed", {}


def _use(turn: Turn, given: Input) -> Answer:
    """Idle begins and ends on what a node says, never on a missing reading (DESIGN 1.10)."""
    lease = _lease_here(turn, given)
    if isinstance(lease, tuple):
        return lease
    fact: TaskUse = given.data
    if fact.idle == (lease.idle_since_us is not None):
        return "unchanged", {}
    event: dict[str, Any] = {"type": "lease.idle", "lease": lease.id}
    if fact.idle:
        since_us = max(lease.granted_us, turn.now_us - fact.idle_s * 1_000_000)
        event["since_us"] = since_us
    turn.emit(event)
    return "observed", {}


def _order_here(turn: Turn, given: Input) -> Order | Answer:
    refusal = _by_agent(turn.state, given)
    if refusal is not None:
        return refusal
    fact: OrderDone | OrderFailed = given.data
    order = turn.state.orders.get(fact.order)
    if order is None:
        return _closed(turn.state, fact.order), {"order": fact.order}
    if order.node != fact.node:
        return "wrong_node", {"node": fact.node, "ordered": order.node}
    return order


def _closed(state: State, name: str) -> str:
    """An id below the counter was given once; the counter itself is not used yet."""
    prefix, _, number = name.rpartition("-o")
    known = prefix == state.cell and number.isascii() and number.isdigit()
    return "already_answered" if known and int(number) < state.next_id else "unknown_order"


def _done(turn: Turn, given: Input) -> Answer:
    order = _order_here(turn, given)
    if isinstance(order, tuple):
        return order
    fact: OrderDone = given.data
    if order.kind == "stop":
        lease = turn.state.leases[order.lease]
        turn.end_part(lease, order.node, "stopped", took_us=fact.took_us)
        turn.end_if_over(lease, "cancelled")
        return "observed", {}
    if order.kind == "partition":
        partition_done(turn, order, fact)
        return "observed", {}
    event: dict[str, Any] = {"type": "order.done", "order": order.id}
    if order.kind == "clean":
        # It was ordered when the lease ended: this is how long the reclaim took.
        event["clean_us"] = turn.now_us - order.issued_us
    if fact.took_us is not None:
        event["took_us"] = fact.took_us
    if fact.evidence:
        event["evidence"] = dict(fact.evidence)
    turn.emit(event)
    return "observed", {}


def _failed(turn: Turn, given: Input) -> Answer:
    """What could not be stopped or proved clean is shut away with its evidence."""
    order = _order_here(turn, given)
    if isinstance(order, tuple):
        return order
    fact: OrderFailed = given.data
    evidence = dict(fact.evidence)
    closing = {
        "type": "order.failed",
        "order": order.id,
        "reason": fact.reason,
        "evidence": evidence,
    }
    if order.kind == "partition":
        partition_failed(turn, order, closing, fact.reason)
        return "observed", {}
    if order.kind == "mode":
        # In which mode the device is, or is to be, its node reports.
        turn.emit(closing)
        return "observed", {}
    turn.shut_away(order, fact.reason, evidence)
    turn.emit(closing)
    if order.kind == "stop":
        lease = turn.state.leases[order.lease]
        turn.end_part(lease, order.node, "stop-failed")
        turn.end_if_over(lease, "stop-timed-out")
    return "observed", {}


ORDERS: dict[str, Callable[[Turn, Input], Answer]] = {
    "task.started": _started,
    "task.ended": _ended,
    "task.use": _use,
    "order.done": _done,
    "order.failed": _failed,
}
