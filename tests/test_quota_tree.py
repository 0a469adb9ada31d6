"""The quota tree: borrowing, lending, budgets, two persons' word (Q1, Q2, Q3)."""

from __future__ import annotations

from typing import Any

import pytest

from ledger.core.digest import digest, load_fold, save_fold
from ledger.core.quotas.quota import available
from ledger.testing import CoreDriver, device

HOUR_S = 3_600


def tree(gpus: int = 12, **org: Any) -> CoreDriver:
    """An organisation of 10 devices; tenants a and b have 4 each, a's project p has 2."""
    cell = CoreDriver(check=True)
    cell.pool()
    cell.queue()
    cell.node("n1", [device(f"GPU-{at:02d}") for at in range(gpus)])
    quota(cell, "org", 10, **org)
    quota(cell, "a", 4, parent="org")
    quota(cell, "b", 4, parent="org")
    return cell


def quota(cell: CoreDriver, tenant: str, gpus: int, **more: Any) -> str:
    """Set a quota of so many whole devices; return the code."""
    plain = {"tenant": tenant, "nominal_gpu_milli": gpus * 1000, "author": "op", "reason": "x"}
    return cell.feed("quota.apply", plain | more, source="/operator").code


def submit(cell: CoreDriver, tenant: str, count: int = 1, **more: Any) -> str:
    """Ask for whole devices; return the code."""
    return cell.submit(None, {"mode": "whole", "count": count}, tenant=tenant, **more).code


def used(cell: CoreDriver, name: str, resource: str = "gpu") -> int:
    """Return what a quota has in use."""
    return cell.state.quotas[name].used.get(resource, 0)


def test_siblings_borrow_what_is_not_used() -> None:
    """One tenant may have all of the organisation's 10, and then nobody has anything."""
    cell = tree()
    assert "granted" == submit(cell, "a", 10)
    assert 0 == available(cell.state, "b", "gpu")
    assert "queued" == submit(cell, "b", 1)
    assert 10_000 == used(cell, "org")


def test_a_borrowing_limit_holds() -> None:
    """Four of its own and one borrowed are five; the sixth waits."""
    cell = tree()
    quota(cell, "a", 4, parent="org", borrowing_gpu_milli=1000)
    assert "granted" == submit(cell, "a", 5)
    assert "queued" == submit(cell, "a", 1)


def test_a_lending_limit_keeps_something_back() -> None:
    """B lends one of its four: a may have its own 4, the organisation's spare 2, and that one."""
    cell = tree()
    quota(cell, "b", 4, parent="org", lending_gpu_milli=1000)
    assert 7_000 == available(cell.state, "a", "gpu")
    assert "granted" == submit(cell, "a", 7)
    assert "queued" == submit(cell, "a", 1)
    assert 3_000 == available(cell.state, "b", "gpu")
    assert "granted" == submit(cell, "b", 3)


def test_what_is_kept_back_does_not_count_above() -> None:
    """Usage that a quota covers by what it keeps back leaves the siblings' share alone."""
    cell = tree()
    quota(cell, "b", 4, parent="org", lending_gpu_milli=0)
    submit(cell, "b", 3)
    assert 0 == used(cell, "org")
    assert 6_000 == available(cell.state, "a", "gpu")


def test_a_project_counts_against_its_tenant() -> None:
    """The project's two are the tenant's; with a limit on borrowing it has no more."""
    cell = tree()
    assert "applied" == quota(cell, "a", 2, project="p", borrowing_gpu_milli=0)
    assert "granted" == submit(cell, "a", 2, project="p")
    assert "queued" == submit(cell, "a", 1, project="p")
    assert (2_000, 2_000) == (used(cell, "a/p"), used(cell, "a"))
    assert "granted" == submit(cell, "a", 1, project="other")
    assert 3_000 == used(cell, "a")


def test_parts_are_never_more_than_the_whole() -> None:
    """Q3: neither by raising a child nor by lowering the parent."""
    cell = tree()
    assert "exceeds_parent" == quota(cell, "b", 7, parent="org")
    assert "applied" == quota(cell, "b", 6, parent="org")
    assert "exceeds_parent" == quota(cell, "org", 9)
    assert "exceeds_parent" == quota(cell, "a", 5, project="p")
    assert "quota_cycle" == quota(cell, "org", 10, parent="a")
    assert "unknown_parent" == quota(cell, "c", 1, parent="nobody")


def test_two_in_flight_never_pass_together() -> None:
    """Q2: each would fit alone; at every moment the sum is within the whole."""
    cell = tree()
    assert ["granted", "queued"] == [submit(cell, "a", 6), submit(cell, "b", 5)]
    assert 6_000 == used(cell, "org")


def test_a_lowered_quota_grants_nothing_and_takes_nothing() -> None:
    """Q1: what is held stays until it ends; then less is granted."""
    cell = tree()
    submit(cell, "a", 4)
    assert "applied" == quota(cell, "a", 2, parent="org", borrowing_gpu_milli=0)
    assert 4_000 == used(cell, "a")
    assert "queued" == submit(cell, "a", 1)


def test_a_lowered_quota_may_evict_by_policy() -> None:
    """The leases granted last stop, no more than needed, with that reason."""
    cell = tree()
    for name in "xy":
        assert "granted" == cell.submit(name, tenant="a").code
    first, second = (cell.lease(name).id for name in "xy")
    quota(cell, "a", 1, parent="org", borrowing_gpu_milli=0, evict=True)
    stopping = {one.id: one.reason for one in cell.state.leases.values() if one.reason}
    assert {second: "quota-lowered"} == stopping
    cell.answer_all_orders()
    assert [first] == list(cell.state.leases)


@pytest.mark.parametrize(
    ("resource", "nominal", "fits", "waits"),
    [
        ("model:H100", 1000, {"models": ["A10"]}, {"models": ["H100"]}),
        ("memory_mib", 100_000, {"mode": "share", "gpu_milli": 1, "memory_mib": 18_000}, {}),
    ],
)
def test_other_resources(
    resource: str, nominal: int, fits: dict[str, object], waits: dict[str, object]
) -> None:
    """A limit on a model or on memory holds beside the one on devices."""
    cell = CoreDriver(check=True)
    cell.pool()
    cell.queue()
    cards = [device(f"GPU-h{at}") for at in range(2)]
    cell.node("n1", [*cards, *(device(f"GPU-a{at}", model="A10") for at in range(2))])
    limits = [{"resource": resource, "nominal": nominal}]
    quota(cell, "t", 10, limits=limits)
    whole = {"mode": "whole", "models": ["H100"]}
    assert "granted" == cell.submit("one", whole).code
    assert "granted" == cell.submit("two", {"mode": "whole", **fits}).code
    answer = cell.submit("three", whole | waits)
    assert ("queued", "quota_in_use") == (answer.code, answer.numbers["reason"])
    assert resource == answer.numbers["resource"]


def test_a_slice_profile_has_a_limit_of_its_own() -> None:
    """Slices are counted one by one."""
    cell = CoreDriver(check=True)
    cell.pool()
    cell.queue()
    slices = [
        {
            "mig_uuid": f"MIG-{at}", "profile": "1g.10gb", "gi": at, "ci": 0, "start": at,
            "size": 1, "compute_slices": 1, "memory_mib": 9_856,
        }
        for at in range(3)
    ]  # fmt: skip
    cell.node("n1", [device("GPU-m", mig_enabled=True, compute_slices=7, slices=slices)])
    quota(cell, "t", 10, limits=[{"resource": "profile:1g.10gb", "nominal": 2}])
    ask = {"mode": "mig", "profile": "1g.10gb"}
    assert ["granted", "granted", "queued"] == [cell.submit(None, ask).code for _ in range(3)]


def test_gpu_hours_of_a_period() -> None:
    """A lease counts with its longest time, and after its end with what it really had."""
    cell = tree()
    quota(cell, "a", 4, parent="org", budget={"gpu_hours": 2, "period_s": 86_400})
    assert "needs_max_run" == submit(cell, "a", 1)
    cell.submit("x", tenant="a", max_run_s=HOUR_S)
    cell.submit("y", tenant="a", max_run_s=HOUR_S)
    answer = cell.submit("z", tenant="a", max_run_s=HOUR_S)
    assert ("queued", "budget_spent") == (answer.code, answer.numbers["reason"])
    cell.release(cell.lease("x").id, at_us=cell.now_us + 60_000_000)
    # x gave 59 of its 60 minutes back, which is not an hour.
    assert "queued" == cell.state.requests[cell.key("z")].state
    assert "granted" == submit(cell, "a", 1, max_run_s=58 * 60)
    day_us = 86_400_000_000
    cell.tick(at_us=(cell.now_us // day_us + 1) * day_us)
    assert "granted" == cell.state.requests[cell.key("z")].state


@pytest.mark.parametrize("how", ["ended", "extended"])
def test_v1_who_has_no_time_left_any_more_blocks_nobody(how: str) -> None:
    """The first of a strict queue waits for a place; then its budget is spent by another lease."""
    cell = tree(2)
    cell.queue(ordering="strict")
    quota(cell, "v", 10)
    hours = 1 if how == "ended" else 2
    runs: dict[str, Any] = {} if how == "ended" else {"max_run_s": HOUR_S}
    cell.submit("old", tenant="a", **runs)
    quota(cell, "a", 4, parent="org", budget={"gpu_hours": hours, "period_s": 86_400})
    first = cell.submit("first", {"mode": "whole", "count": 2}, tenant="a", max_run_s=HOUR_S // 2)
    assert "no_capacity" == first.numbers["reason"]
    assert "behind_in_queue" == cell.submit("next", tenant="v").numbers["reason"]
    old = cell.lease("old").id
    if how == "ended":
        cell.release(old, at_us=cell.now_us + 60_000_000)
    else:
        assert "applied" == cell.feed("lease.extend", {"lease": old, "more_s": 60}).code
    assert "granted" == cell.state.requests[cell.key("next")].state


def test_more_is_asked_for_and_approved_by_another() -> None:
    """Who asks may not approve; what is refused changes nothing; all of it is on record."""
    cell = tree()
    about = {"tenant": "a", "nominal_gpu_milli": 6_000, "author": "lead", "reason": "growth"}
    ask = cell.feed("quota.ask", about, source="/team", id="more").numbers["ask"]
    said = {"ask": ask, "approve": True, "reason": "fine"}
    assert "same_person" == cell.feed("quota.answer", said | {"author": "lead"}).code
    assert 4_000 == cell.state.quotas["a"].limits["gpu"].nominal
    assert "applied" == cell.feed("quota.answer", said | {"author": "boss"}).code
    assert 6_000 == cell.state.quotas["a"].limits["gpu"].nominal
    assert "unknown_ask" == cell.feed("quota.answer", said | {"author": "boss"}).code
    again = cell.feed("quota.ask", about | {"nominal_gpu_milli": 9_000}, source="/team", id="m2")
    said = {"ask": again.numbers["ask"], "approve": True, "author": "boss", "reason": "no"}
    assert "exceeds_parent" == cell.feed("quota.answer", said).code
    assert "applied" == cell.feed("quota.answer", said | {"approve": False}).code
    assert 6_000 == cell.state.quotas["a"].limits["gpu"].nominal


def test_who_had_least_goes_first() -> None:
    """Fair share by weight: b has had less than a, so b's later request is served first."""
    cell = tree(gpus=1)
    cell.queue(fair_share=True)
    cell.submit("x", tenant="a")
    cell.submit("a2", tenant="a")
    cell.submit("b1", tenant="b")
    cell.release(cell.lease("x").id, at_us=cell.now_us + HOUR_S * 1_000_000)
    cell.answer_all_orders()
    assert "granted" == cell.state.requests[cell.key("b1")].state
    cell.release(cell.lease("b1").id)
    cell.answer_all_orders()
    assert "granted" == cell.state.requests[cell.key("a2")].state


def test_past_use_counts_half_after_each_half_life() -> None:
    """What a used long ago weighs less than what b used lately."""
    cell = tree(gpus=1)
    cell.queue(fair_share=True)
    for tenant in "ab":
        quota(cell, tenant, 4, parent="org", half_life_s=HOUR_S)
    cell.submit("x", tenant="a")
    cell.release(cell.lease("x").id, at_us=cell.now_us + 10_000 * 1_000_000)
    cell.answer_all_orders()
    cell.tick(at_us=cell.now_us + 20 * HOUR_S * 1_000_000)
    cell.submit("y", tenant="b")
    cell.submit("b2", tenant="b")
    cell.submit("a2", tenant="a")
    cell.release(cell.lease("y").id, at_us=cell.now_us + 1_000 * 1_000_000)
    cell.answer_all_orders()
    assert "granted" == cell.state.requests[cell.key("a2")].state
    assert "queued" == cell.state.requests[cell.key("b2")].state


def test_a_queue_takes_whom_it_names() -> None:
    """Others are refused, with the queue's name."""
    cell = tree()
    cell.queue("only-b", tenants=["b"])
    assert "not_admitted" == submit(cell, "a", queue="only-b")
    assert "granted" == submit(cell, "b", queue="only-b")


def test_a_queue_has_a_longest_run() -> None:
    """Who states none has the queue's; who states more is refused."""
    cell = tree()
    cell.queue(max_run_s=100)
    assert "exceeds_max_run" == submit(cell, "a", max_run_s=101)
    cell.submit("x", tenant="a")
    assert cell.lease("x").due_us == cell.lease("x").granted_us + 100_000_000


def test_s1_more_time_than_64_bits_hold_is_the_most_that_is_remembered() -> None:
    """Many devices held for years and given back at once: the state has a digest all the same."""
    cell = tree()
    assert "granted" == submit(cell, "a", 10)
    (lease,) = cell.state.leases
    cell.release(lease, at_us=cell.now_us + 2 * 10**15)
    assert (1 << 63) - 1 == cell.state.quotas["org"].used_milli_us
    assert cell.digest() == digest(load_fold(save_fold(cell.fold)).cells)
