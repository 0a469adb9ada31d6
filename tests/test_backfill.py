"""Back-fill: what is let in never puts off the planned start of an earlier one (C17)."""

from __future__ import annotations

from typing import Any

from ledger.testing import CoreDriver, device

MINUTE_US = 60_000_000


def site(nodes: int = 1, gpus: int = 2, **queue: Any) -> CoreDriver:
    """A back-filled queue and so many devices."""
    cell = CoreDriver(check=True)
    cell.pool()
    rules: dict[str, Any] = {"ordering": "backfill"} | queue
    cell.queue(**rules)
    cell.quota()
    for at in range(1, nodes + 1):
        cell.node(f"n{at}", [device(f"GPU-{at}{which}") for which in "abcdefgh"[:gpus]])
    return cell


def ask(cell: CoreDriver, name: str, count: int = 1, nodes: int = 1, **more: Any) -> str:
    """Ask for whole devices; return the code."""
    return cell.submit(name, {"mode": "whole", "count": count, "nodes": nodes}, **more).code


def state_of(cell: CoreDriver, name: str) -> str:
    """Return where a request stands."""
    return cell.state.requests[cell.key(name)].state


def test_c17_others_fill_the_gap_that_ends_in_time() -> None:
    """R1 needs both, one is taken for ten minutes: nine fit beside, eleven do not."""
    cell = site()
    ask(cell, "J1", max_run_s=600)
    assert "queued" == ask(cell, "R1", 2)
    plan = cell.state.requests[cell.key("R1")].plan
    assert plan is not None
    assert (["n1"], cell.lease("J1").due_us) == (plan.nodes, plan.start_us)
    assert "queued" == ask(cell, "long", max_run_s=660)
    assert "queued" == ask(cell, "endless")
    assert "granted" == ask(cell, "short", max_run_s=540)


def test_c17_the_planned_start_holds() -> None:
    """R1 starts when J1 ends, although many short ones came after it."""
    cell = site()
    ask(cell, "J1", max_run_s=600)
    ask(cell, "R1", 2)
    start_us = cell.lease("J1").due_us
    for at in range(20):
        ask(cell, f"s{at}", max_run_s=90)
        cell.tick(at_us=cell.now_us + MINUTE_US // 2)
        cell.answer_all_orders()
    assert start_us is not None
    cell.tick(at_us=start_us)
    cell.answer_all_orders()
    assert "granted" == state_of(cell, "R1")
    assert cell.lease("R1").granted_us - start_us < MINUTE_US


def test_what_is_not_planned_is_free_for_all() -> None:
    """R1 is planned on one node; the other takes whoever comes."""
    cell = site(2)
    ask(cell, "J1", max_run_s=600)
    ask(cell, "J2", max_run_s=300)
    ask(cell, "J3", max_run_s=900)
    assert "queued" == ask(cell, "R1", 2)
    plan = cell.state.requests[cell.key("R1")].plan
    assert plan is not None
    other = ({"n1", "n2"} - set(plan.nodes)).pop()
    assert "granted" == ask(cell, "endless")
    assert [other] == list(cell.lease("endless").parts)


def test_without_a_known_end_the_place_is_kept_as_it_becomes_free() -> None:
    """The large request that never starts does start."""
    cell = site()
    ask(cell, "J1")
    ask(cell, "J2")
    ask(cell, "R1", 2)
    ask(cell, "small", max_run_s=1)
    cell.release(cell.lease("J1").id)
    cell.answer_all_orders()
    assert ("queued", "queued") == (state_of(cell, "R1"), state_of(cell, "small"))
    cell.release(cell.lease("J2").id)
    cell.answer_all_orders()
    assert "granted" == state_of(cell, "R1")


def test_an_earlier_one_in_line_is_not_held_back() -> None:
    """A higher priority may use what is planned; the plan is then made anew."""
    cell = site(2)
    ask(cell, "J1", max_run_s=600)
    ask(cell, "J2", 2, max_run_s=900)
    ask(cell, "R1", 2)
    assert "granted" == ask(cell, "urgent", priority=9)
    plan = cell.state.requests[cell.key("R1")].plan
    assert plan is not None


def test_a_cancelled_plan_frees_its_nodes() -> None:
    """Those who waited because of it start."""
    cell = site()
    ask(cell, "J1", max_run_s=600)
    ask(cell, "R1", 2)
    ask(cell, "endless")
    cell.cancel("R1")
    assert "granted" == state_of(cell, "endless")
    assert {} == cell.state.index.plans


def test_a_lost_node_is_planned_around() -> None:
    """The plan's node goes out of service: another is planned."""
    cell = site(2)
    ask(cell, "J1", max_run_s=600)
    ask(cell, "J2", max_run_s=700)
    ask(cell, "X", max_run_s=800)
    ask(cell, "R1", 2)
    first = cell.state.requests[cell.key("R1")].plan
    assert first is not None
    cell.node_set(first.nodes[0], "draining")
    second = cell.state.requests[cell.key("R1")].plan
    assert second is None or second.nodes != first.nodes


def test_a_lease_is_not_extended_into_a_plan() -> None:
    """R1 was promised the place at J1's end."""
    cell = site()
    ask(cell, "J1", max_run_s=600)
    ask(cell, "R1", 2)
    lease = cell.lease("J1").id
    answer = cell.feed("lease.extend", {"lease": lease, "more_s": 60}, source="/team/a")
    assert "planned_for_another" == answer.code


def test_an_extension() -> None:
    """The due time moves, within the queue's longest run."""
    cell = site(max_run_s=660)
    ask(cell, "J1", max_run_s=600)
    lease = cell.lease("J1")
    due_us = lease.due_us
    assert due_us is not None
    said = {"lease": lease.id, "more_s": 60}
    assert "not_owner" == cell.feed("lease.extend", said, source="/stranger").code
    assert "applied" == cell.feed("lease.extend", said, source="/team/a").code
    assert due_us + MINUTE_US == cell.lease("J1").due_us
    assert "exceeds_max_run" == cell.feed("lease.extend", said, source="/team/a").code
    cell.tick(at_us=due_us)
    assert "granted" == cell.lease("J1").state
    cell.tick(at_us=due_us + MINUTE_US)
    assert ("stopping", "max-run") == (cell.lease("J1").state, cell.lease("J1").reason)


def test_a_plan_for_a_gang() -> None:
    """Two nodes are planned, those that are free soonest."""
    cell = site(3)
    for at, minutes in ((1, 30), (2, 10), (3, 20)):
        ask(cell, f"J{at}", 2, max_run_s=minutes * 60)
    ask(cell, "R1", 2, 2)
    plan = cell.state.requests[cell.key("R1")].plan
    assert plan is not None
    assert ["n2", "n3"] == plan.nodes
    assert cell.lease("J3").due_us == plan.start_us


def test_idle_is_reminded_then_reclaimed() -> None:
    """Edges only: told idle after 300 s of it, reminded at 600 s, reclaimed at 1,200 s."""
    cell = site(idle_remind_s=600, idle_reclaim_s=1200)
    ask(cell, "J1")
    lease = cell.lease("J1").id
    cell.task_started(lease, "n1")
    cell.now_us += 400_000_000
    cell.says("task.use", "n1", lease=lease, idle=True, idle_s=300)
    since_us = cell.state.leases[lease].idle_since_us
    assert since_us == cell.state.now_us - 300_000_000
    answer = cell.tick(at_us=since_us + 600_000_000)
    assert ["lease.reminded"] == [event["type"] for event in answer.events]
    cell.says("task.use", "n1", lease=lease, idle=False)
    cell.tick(at_us=since_us + 1_300_000_000)
    assert "running" == cell.state.leases[lease].state
    cell.says("task.use", "n1", lease=lease, idle=True)
    cell.tick(at_us=cell.now_us + 1_200_000_000)
    assert "idle" == cell.state.leases[lease].reason


def test_the_time_to_proved_clean_is_on_record() -> None:
    """From the end of the lease to the proof."""
    cell = site()
    ask(cell, "J1")
    cell.release(cell.lease("J1").id)
    began_us = cell.state.now_us
    cell.now_us += 3_000_000
    order = next(iter(cell.state.orders))
    answer = cell.order_done(order)
    done = next(event for event in answer.events if event["type"] == "order.done")
    assert answer.time_us - began_us == done["clean_us"]
