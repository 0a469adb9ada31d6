"""What services and operators ask, and the one answer that each of them gets."""

from __future__ import annotations

from typing import Any

import pytest

from ledger.testing import TEAM, CoreDriver, device


@pytest.fixture
def cell() -> CoreDriver:
    """A cell with two devices on one node, a quota of two, and a queue for up to two."""
    cell = CoreDriver(check=True)
    cell.pool()
    cell.queue(max_gpus=3)
    cell.quota(nominal_gpu_milli=2_000)
    cell.node("n1", [device("GPU-a"), device("GPU-b")])
    return cell


@pytest.mark.parametrize(
    ("more", "ask", "code"),
    [
        ({"tenant": "nobody", "queue": "none"}, {}, "unknown_tenant"),
        ({"queue": "none"}, {"pool": "none"}, "unknown_queue"),
        ({}, {"pool": "none", "count": 9}, "unknown_pool"),
        ({}, {"count": 2, "nodes": 2}, "exceeds_queue_limit"),
        ({}, {"count": 3}, "exceeds_quota"),
    ],
)
def test_a_refusal_is_the_first_in_order(
    cell: CoreDriver, more: dict[str, Any], ask: dict[str, object], code: str
) -> None:
    """Several rules would refuse: the code that stands first is given, and it is final."""
    answer = cell.submit("r1", {"mode": "whole", **ask}, **more)
    assert code == answer.code
    assert ["request.rejected"] == [event["type"] for event in answer.events]
    assert answer.numbers == answer.events[0]["numbers"]
    assert "duplicate" == cell.submit("r1", {"mode": "whole", **ask}, **more).code
    assert "already_ended" == cell.cancel("r1").code


def test_a_full_quota_waits_with_its_numbers(cell: CoreDriver) -> None:
    """In use is not too large: the request waits, and is told asked, held and nominal."""
    cell.submit("r1", {"mode": "whole", "count": 2})
    answer = cell.submit("r2")
    assert {
        "reason": "quota_in_use",
        "asked_milli": 1_000,
        "held_milli": 2_000,
        "nominal_milli": 2_000,
    } == answer.numbers


def test_a_lowered_quota_takes_nothing_away(cell: CoreDriver) -> None:
    """Leases go on, nothing new is granted, and a release does not let in too much (Q1)."""
    cell.submit("r1")
    cell.submit("r2")
    assert {"held_milli": 2_000, "nominal_milli": 1_000} == cell.quota(
        nominal_gpu_milli=1_000
    ).numbers
    assert 2 == len(cell.state.leases)
    cell.submit("r3")
    cell.release(cell.lease("r1").id)
    cell.answer_all_orders()
    assert "queued" == cell.state.requests[cell.key("r3")].state
    cell.release(cell.lease("r2").id)
    assert "granted" == cell.state.requests[cell.key("r3")].state


def test_nobody_elses_request(cell: CoreDriver) -> None:
    """Cancel and release belong to the source that asked, before and after the end."""
    cell.submit("r1")
    lease = cell.lease("r1").id
    other = "/team/b"
    assert "not_owner" == cell.cancel("r1", source=other).code
    assert "not_owner" == cell.release(lease, source=other).code
    cell.release(lease)
    assert "not_owner" == cell.cancel("r1", source=other).code
    assert "not_owner" == cell.release(lease, source=other).code
    assert "granted" == cell.submit("r1", source=other).code, "ids are the source's own"


@pytest.mark.parametrize(
    "lease",
    [
        *("x", "/", "x/1", f"{TEAM}#r1", f"{TEAM}#r1/0", f"{TEAM}#r1/2", f"{TEAM}#r1/-1"),
        *(f"{TEAM}#r1/1x", f"{TEAM}#p/1"),
    ],
)
def test_a_lease_that_never_was(cell: CoreDriver, lease: str) -> None:
    """What was never a lease is unknown, however much it looks like one."""
    cell.submit("r1")
    cell.feed("pool.apply", {"pool": "p", "author": "a", "reason": ""}, id="p")
    assert "unknown_lease" == cell.release(lease).code
    assert "unknown_lease" == cell.reclaim(lease).code
    cell.release(f"{TEAM}#r1/1")
    assert "unknown_lease" == cell.release(lease).code


@pytest.mark.parametrize("request_id", ["x", f"{TEAM}#none", f"{TEAM}#pool"])
def test_a_request_that_never_was(cell: CoreDriver, request_id: str) -> None:
    """A cancel of nothing, or of an input that was no request, is told so."""
    cell.feed("pool.apply", {"pool": "p", "author": "a", "reason": ""}, id="pool")
    answer = cell.feed("request.cancel", {"request": request_id})
    assert "unknown_request" == answer.code


def test_cancel_and_release_of_a_stopping_lease(cell: CoreDriver) -> None:
    """The first reason stands; a release while stopping ends the lease under that reason."""
    cell.submit("r1")
    lease = cell.lease("r1").id
    assert "stopping" == cell.reclaim(lease).code
    assert {"reason": "reclaimed"} == cell.cancel("r1").numbers
    assert {"reason": "reclaimed"} == cell.reclaim(lease).numbers
    assert "released" == cell.release(lease).code
    assert "reclaimed" == cell.state.seen[cell.key("r1")][3]
    kinds = [order.kind for order in cell.state.orders.values()]
    assert ["clean"] == kinds, "the stop order is superseded"


def test_the_order_given_wins_over_the_exit_code(cell: CoreDriver) -> None:
    """A task that was told to stop and exits cleanly was reclaimed, not completed (C25)."""
    cell.submit("r1")
    lease = cell.lease("r1").id
    cell.reclaim(lease)
    cell.task_ended(lease, "n1", "completed")
    assert "reclaimed" == cell.state.seen[cell.key("r1")][3]


def test_an_interrupted_request_keeps_its_place(cell: CoreDriver) -> None:
    """Back in line with its old age: before who came later, behind a higher priority."""
    cell.quota(nominal_gpu_milli=9_000)
    cell.node("n2", [device("GPU-c")])
    cell.submit("old", retries=1)
    cell.submit("new", {"mode": "whole", "count": 2})
    cell.submit("high", priority=5)
    assert ["n2"] == list(cell.lease("old").parts)
    cell.submit("later")
    cell.silent("n2")
    cell.tick(cell.now_us + 60_000_000)
    line = sorted(cell.state.requests.values(), key=lambda one: one.rank)
    waiting = [one.id for one in line if one.state == "queued"]
    assert [cell.key(name) for name in ("high", "old", "later")] == waiting


def test_retries_are_counted(cell: CoreDriver) -> None:
    """One retry: the second interruption is the end."""
    cell.submit("r1", retries=1)
    for at, wanted in ((2, "granted"), (3, None)):
        cell.node("n1", [device("GPU-a"), device("GPU-b")], incarnation=f"b{at}")
        cell.answer_all_orders()
        request = cell.state.requests.get(cell.key("r1"))
        assert wanted == (request.state if request is not None else None)
    assert "node-restarted" == cell.state.seen[cell.key("r1")][3]
    assert 2 == cell.state.seen[cell.key("r1")][4]
    assert "already_released" == cell.release(f"{cell.key('r1')}/1").code


def test_one_id_for_two_kinds_of_input(cell: CoreDriver) -> None:
    """A cancel under the id of a submission is a conflict, not a cancel (L1)."""
    cell.submit("r1")
    said = {"request": cell.key("r1")}
    assert "id_conflict" == cell.feed("request.cancel", said, id="r1").code
    assert "granted" == cell.state.requests[cell.key("r1")].state


def test_a_conflict_is_on_record(cell: CoreDriver) -> None:
    """The second content is kept in the log with both fingerprints; a copy leaves no record."""
    cell.submit("r1")
    before = len(cell.records)
    assert "duplicate" == cell.submit("r1").code
    assert before == len(cell.records)
    answer = cell.submit("r1", priority=1)
    assert "id_conflict" == answer.code
    assert {"first", "now"} == set(answer.numbers)
    assert before + 1 == len(cell.records)


def test_labels_changed_while_requests_wait(cell: CoreDriver) -> None:
    """A request that waits for a label starts when an operator gives it to a pool."""
    cell.submit("r1", {"mode": "whole", "labels": {"zone": "1"}})
    assert "no_such_hardware" == cell.state.requests[cell.key("r1")].code
    cell.pool(labels={"zone": "1"})
    assert "granted" == cell.state.requests[cell.key("r1")].state
    cell.pool(labels={"zone": "2"})
    assert "granted" == cell.state.requests[cell.key("r1")].state
    assert "queued" == cell.submit("r2", {"mode": "whole", "labels": {"zone": "1"}}).code


def test_a_queue_that_becomes_best_effort_lets_go(cell: CoreDriver) -> None:
    """What was only behind in a strict queue starts with the change of the rule."""
    cell.queue(ordering="strict")
    cell.quota("u")
    cell.submit("big", {"mode": "whole", "count": 2, "nodes": 2}, tenant="u")
    assert "behind_in_queue" == cell.submit("small").numbers["reason"]
    cell.queue(ordering="best-effort")
    assert "granted" == cell.state.requests[cell.key("small")].state


def test_a_cancel_lets_those_behind_go(cell: CoreDriver) -> None:
    """Under strict order the end of the head's wait is what those behind it waited for."""
    cell.queue(ordering="strict")
    cell.quota("u")
    cell.submit("big", {"mode": "whole", "count": 2, "nodes": 2}, tenant="u")
    cell.submit("small")
    assert "cancelled" == cell.cancel("big").code
    assert "granted" == cell.state.requests[cell.key("small")].state
