"""What falls due: events like any others, at the right input, once."""

from __future__ import annotations

from typing import Any

import pytest

from ledger.core.state import device_state
from ledger.testing import AGENT, CoreDriver, device

SECOND = 1_000_000


@pytest.fixture
def cell() -> CoreDriver:
    """A cell of two nodes with one device each; 60 s of silence, 300 s for an order."""
    cell = CoreDriver(check=True)
    cell.pool(silent_grace_s=60, order_timeout_s=300)
    cell.queue()
    cell.quota()
    cell.node("n1", [device("GPU-a")])
    cell.node("n2", [device("GPU-b")])
    return cell


def kinds(cell: CoreDriver, at_us: int) -> list[str]:
    """Return the events of a tick at this time."""
    return [event["type"] for event in cell.tick(at_us).events]


def test_a_longest_wait_passes_at_its_time(cell: CoreDriver) -> None:
    """Not a microsecond before; a tick without consequence leaves no record."""
    cell.submit("big", {"mode": "whole", "count": 8}, max_wait_s=10)
    due = cell.now_us + 10 * SECOND
    before = len(cell.records)
    assert [] == kinds(cell, due - 1)
    assert before == len(cell.records)
    assert ["request.ended"] == kinds(cell, due)
    assert "expired" == cell.state.seen[cell.key("big")][3]
    assert [] == kinds(cell, due + 1)


def test_the_shorter_wait_holds(cell: CoreDriver) -> None:
    """Of the request's and the queue's longest wait the shorter one is due."""
    cell.queue(max_wait_s=5)
    cell.submit("big", {"mode": "whole", "count": 8}, max_wait_s=10)
    assert ["request.ended"] == kinds(cell, cell.now_us + 5 * SECOND)


@pytest.mark.parametrize("where", ["request", "queue"])
def test_no_wait_at_all_is_answered_at_once(cell: CoreDriver, where: str) -> None:
    """With 0 s to wait the answer is final, by the request's word or the queue's."""
    if where == "queue":
        cell.queue(max_wait_s=0)
    more: dict[str, Any] = {"max_wait_s": 0} if where == "request" else {}
    assert "no_capacity" == cell.submit("big", {"mode": "whole", "count": 8}, **more).code
    assert not cell.state.requests


def test_the_longest_wait_is_over_once_granted(cell: CoreDriver) -> None:
    """A request that was granted in time, and is queued again, waits without a limit."""
    cell.submit("r1", max_wait_s=10, retries=1)
    cell.submit("r2")
    cell.silent("n1")
    cell.tick(cell.now_us + 60 * SECOND)
    assert "queued" == cell.state.requests[cell.key("r1")].state
    assert [] == kinds(cell, cell.now_us + 1_000 * SECOND)
    assert "queued" == cell.state.requests[cell.key("r1")].state


def test_what_runs_too_long_is_stopped(cell: CoreDriver) -> None:
    """The stop is ordered with the time it was due beside the time it came (C31)."""
    cell.submit("r1", max_run_s=30)
    due = cell.lease("r1").due_us
    assert due is not None
    stop = cell.tick(due + 7).events[0]
    assert ("lease.stopping", "max-run", due) == (stop["type"], stop["reason"], stop["due_us"])
    cell.answer_all_orders()
    assert "max-run" == cell.state.seen[cell.key("r1")][3]


def test_a_silent_node_is_lost_after_its_grace(cell: CoreDriver) -> None:
    """Its leases end there and then; heard again in time, nothing happens."""
    cell.submit("r1")
    cell.silent("n1")
    cell.back("n1")
    assert [] == kinds(cell, cell.now_us + 100 * SECOND)
    cell.silent("n1")
    since = cell.now_us
    assert [] == kinds(cell, since + 60 * SECOND - 1)
    assert ["node.changed", "part.ended", "lease.stopping", "lease.ended", "request.ended"] == (
        kinds(cell, since + 60 * SECOND)
    )
    assert "lost" == cell.state.nodes["n1"].state
    assert "node-lost" == cell.state.seen[cell.key("r1")][3]
    assert not cell.state.orders, "nobody is there to clean"
    assert "cleaning" == device_state(cell.state.devices["GPU-a"])


def test_a_pool_that_loses_patience(cell: CoreDriver) -> None:
    """A lower grace counts for a node that is silent already, and a higher one too."""
    cell.silent("n1")
    since = cell.now_us
    cell.pool(silent_grace_s=1_000)
    assert [] == kinds(cell, since + 100 * SECOND)
    cell.pool(silent_grace_s=120)
    assert ["node.changed"] == kinds(cell, since + 120 * SECOND)


def test_a_node_silent_before_its_pool_was_known() -> None:
    """When its pool is made its grace counts, on a live state and on a loaded one."""
    cell = CoreDriver(check=True)
    cell.node("n1", [device("GPU-a")])
    cell.silent("n1")
    cell.pool(silent_grace_s=60)
    assert ["node.changed"] == kinds(cell, cell.now_us + 60 * SECOND)
    assert "lost" == cell.state.nodes["n1"].state


@pytest.mark.parametrize("kind", ["stop", "clean"])
def test_no_answer_is_no_proof(cell: CoreDriver, kind: str) -> None:
    """An order that is not answered in time puts its device away; the lease ends."""
    cell.submit("r1", {"mode": "whole", "models": ["H100"]})
    lease = cell.lease("r1").id
    if kind == "stop":
        cell.reclaim(lease)
    else:
        cell.release(lease)
    cell.tick(cell.now_us + 300 * SECOND)
    assert lease not in cell.state.leases
    card = cell.state.devices["GPU-a"]
    assert card.quarantine is not None
    assert kind in card.quarantine
    if kind == "stop":
        assert 1 == cell.answer_all_orders(), "the cleaning is still asked for"
    assert not card.holds
    assert "queued" == cell.submit("r2", {"mode": "whole", "nodes": 2}).code
    assert "applied" == cell.clear("GPU-a").code
    assert 2 == len(cell.lease("r2").parts)


def test_a_gang_ends_whole(cell: CoreDriver) -> None:
    """One node lost, the other does not answer: each part ends once, the gang as a whole (A10)."""
    cell.submit("gang", {"mode": "whole", "nodes": 2}, retries=1)
    cell.silent("n1")
    cell.tick(cell.now_us + 60 * SECOND)
    lease = cell.lease("gang")
    assert ("stopping", "node-lost") == (lease.state, lease.reason)
    assert ["ended", "granted"] == [part.state for part in lease.parts.values()]
    late = cell.tick(cell.now_us + 300 * SECOND)
    ended = [event["node"] for event in late.events if event["type"] == "part.ended"]
    assert ["n2"] == ended
    assert "queued" == cell.state.requests[cell.key("gang")].state
    cleans = [one.node for one in cell.state.orders.values()]
    assert ["n2"] == cleans, "the lost node is asked when it is back"
    cell.node("n1", [device("GPU-a")])
    cell.answer_all_orders()
    assert "available" == device_state(cell.state.devices["GPU-a"])


def test_a_lost_node_that_was_only_cut_off(cell: CoreDriver) -> None:
    """The same incarnation comes back and answers old orders: nothing is freed by them."""
    cell.submit("r1")
    lease = cell.lease("r1").id
    cell.reclaim(lease)
    (stop,) = cell.state.orders
    cell.silent("n1")
    cell.tick(cell.now_us + 60 * SECOND)
    assert not cell.state.leases
    assert "already_answered" == cell.says("order.done", "n1", order=stop).code
    assert "already_released" == cell.task_ended(lease, "n1").code
    assert "unchanged" == cell.back("n1").code
    cell.node("n1", [device("GPU-a")])
    assert "cleaning" == device_state(cell.state.devices["GPU-a"])
    assert 1 == cell.answer_all_orders()
    assert "available" == device_state(cell.state.devices["GPU-a"])


def test_time_does_not_go_back(cell: CoreDriver) -> None:
    """An input with an earlier stamp is decided at the cell's time, and fires nothing."""
    cell.submit("r1", max_run_s=30)
    now = cell.state.now_us
    earlier = cell.submit("r2", at_us=5)
    assert now == earlier.time_us == cell.state.now_us
    assert "granted" == cell.lease("r1").state


def test_deadlines_fire_in_order_of_their_time(cell: CoreDriver) -> None:
    """One tick past everything: the earliest first, ties by kind and name."""
    for name, wait in (("w3", 30), ("w1", 10), ("w2", 10)):
        cell.submit(name, {"mode": "whole", "count": 8}, max_wait_s=wait, at_us=cell.now_us)
    ended = [event["request"] for event in cell.tick(cell.now_us + 100 * SECOND).events]
    assert [cell.key(name) for name in ("w1", "w2", "w3")] == ended


def test_an_id_is_forgotten_after_the_window(cell: CoreDriver) -> None:
    """A request's id is known for 32 days after its end, and a running one's for ever."""
    day = 86_400 * SECOND
    cell.submit("short")
    cell.submit("long")
    cell.release(cell.lease("short").id)
    cell.answer_all_orders()
    for at in range(1, 32):
        cell.tick(cell.now_us + day)
        cell.quota("tick", nominal_gpu_milli=at)
    assert "duplicate" == cell.submit("short").code
    cell.tick(cell.now_us + 3 * day)
    cell.quota("tick", nominal_gpu_milli=0)
    assert cell.key("short") not in cell.state.seen
    assert "unknown_request" == cell.cancel("short").code
    assert "duplicate" == cell.submit("long").code
    assert "granted" == cell.submit("short").code


def test_a_snapshot_keeps_its_deadlines(cell: CoreDriver) -> None:
    """A state that was loaded knows what is due next as the live one does."""
    cell.submit("r1", max_run_s=30)
    cell.submit("big", {"mode": "whole", "count": 8}, max_wait_s=10)
    cell.silent("n2")
    live, again = cell.state, cell.replayed().cell("c")
    assert live.index.deadlines.standing(live) == again.index.deadlines.standing(again)
    assert (
        live.index.deadlines.next_due_us(live) == cell.state.requests[cell.key("big")].wait_due_us
    )
    assert AGENT + "n2" == live.nodes["n2"].agent
