"""Histories that the machine or the simulation found, each as small as it gets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ledger.core import preemption
from ledger.core.decide import decide
from ledger.core.digest import digest, load_fold, save_fold
from ledger.core.fold import Fold
from ledger.core.invariants import check
from ledger.core.limits import MAX_QUOTA_DEPTH
from ledger.core.quota import GPU, available, budget_left
from ledger.testing import CoreDriver, device, mig_slice

if TYPE_CHECKING:
    import pytest

_S = 1_000_000


def _cell(*, quota: int = 1_000_000, **queue: Any) -> CoreDriver:
    cell = CoreDriver(check=True)
    cell.pool()
    cell.queue(**queue)
    cell.quota(nominal_gpu_milli=quota)
    return cell


def _quota(cell: CoreDriver, tenant: str, nominal: int, **more: Any) -> str:
    plain = {"tenant": tenant, "nominal_gpu_milli": nominal, "author": "op", "reason": "x", **more}
    return cell.feed("quota.apply", plain, source="/operator").code


def _state_of(cell: CoreDriver, request: str) -> str:
    return cell.state.requests[cell.key(request)].state


# -- whom an eviction takes ----------------------------------------------------------


def test_c25_replicas_are_counted_by_the_task_whichever_of_them_says_how_many() -> None:
    """A replica that asks for none itself still counts for one that needs two."""
    cell = _cell(preemption="any-tenant")
    cell.node("n1", [device("GPU-a"), device("GPU-b")])
    web: dict[str, Any] = {"task": {"id": "web", "type": "online-inference"}, "preemptible": True}
    cell.submit("one", **web, replicas_min=2)
    cell.submit("two", **web, replicas_min=0)

    assert "queued" == cell.submit("high", priority=9).code


def test_q6_nobody_goes_for_the_place_if_who_goes_for_the_quota_leaves_one() -> None:
    """The victims of place and quota are one set, and none of it is needless."""
    cell = _cell(quota=1_000, preemption="any-tenant")
    cell.quota("other")
    cell.node("n1", [device("GPU-a")])
    cell.node("n2", [device("GPU-b")])
    cell.submit("other", tenant="other", preemptible=True, priority=-9)
    cell.submit("own", preemptible=True)

    assert "reserved" == cell.submit("high", priority=9).code
    assert "granted" == _state_of(cell, "other")
    assert "stopping" == cell.lease("own").state
    assert "granted" == cell.lease("other").state


def test_q6_nobody_goes_where_it_is_enough_to_wait_for_what_ends() -> None:
    """A place of another class is not cleared while one of the first is being cleaned."""
    cell = _cell(preemption="any-tenant")
    cell.node("n1", [device("GPU-a", model="A10", memory_mib=24_000), device("GPU-b")])
    cell.submit("big", {"mode": "whole", "models": ["H100"]}, preemptible=True)
    cell.submit("small", {"mode": "whole", "models": ["A10"]}, preemptible=True)
    cell.release(cell.lease("small").id)

    assert "queued" == cell.submit("high", priority=9).code
    assert "granted" == cell.lease("big").state
    cell.answer_all_orders()
    assert "granted" == _state_of(cell, "high")


def test_who_waits_for_the_cleaning_looks_elsewhere_when_it_fails() -> None:
    """V1: what is shut away frees nothing, and is a reason to evict all the same."""
    cell = _cell(preemption="any-tenant")
    cell.node("n1", [device("GPU-a"), device("GPU-b")])
    cell.submit("low", preemptible=True)
    cell.submit("over")
    cell.release(cell.lease("over").id)
    cell.submit("high", priority=9)
    (order,) = cell.state.orders

    cell.order_failed(order)

    assert "reserved" == _state_of(cell, "high")


def test_what_ends_takes_no_cpu_from_who_may_evict() -> None:
    """The CPU of a lease that stops is there once it has ended, and is waited for."""
    cell = _cell(preemption="any-tenant")
    cell.node("n1", [device("GPU-a"), device("GPU-b")], cpu_milli=10_000)
    cell.submit("ends", {"mode": "whole", "count": 0}, beside={"cpu_milli": 6_000})
    for name in ("low", "lower"):
        cell.submit(name, preemptible=True)
    cell.cancel("ends")

    assert "reserved" == cell.submit("high", priority=9, beside={"cpu_milli": 6_000}).code
    for order in sorted(cell.state.orders, reverse=True):
        cell.order_done(order)
    cell.answer_all_orders()
    assert "granted" == _state_of(cell, "high")


def test_slices_of_another_charge_are_not_kept_under_the_first() -> None:
    """A slice counts as its own part of its card, also where it was cleared for somebody."""
    cell = _cell(preemption="any-tenant")
    whole = device("GPU-a", mig_enabled=True, compute_slices=1, slices=[mig_slice("M1", 1, 0)])
    seventh = device("GPU-b", mig_enabled=True, compute_slices=7, slices=[mig_slice("M2", 1, 0)])
    cell.node("n1", [whole, seventh])
    ask = {"mode": "mig", "profile": "1g.10gb"}
    cell.submit("one", ask, preemptible=True)
    cell.submit("two", ask, preemptible=True)

    cell.submit("high", ask, priority=9)
    cell.answer_all_orders()

    lease = cell.lease("high")
    (unit,) = lease.parts["n1"].units
    assert {"GPU-a": 1_000, "GPU-b": 143}[cell.state.slices[unit].device] == lease.charge_milli


def test_q6_slices_of_several_nodes_are_cleared_where_fewer_have_to_go() -> None:
    """What is free on another node is counted, as it is when nobody has to go."""
    cell = _cell(preemption="any-tenant")
    for node, first, count in (("n1", 1, 3), ("n2", 5, 1)):
        slices = [mig_slice(f"M{first + at}", first + at, at) for at in range(count)]
        uuid = f"GPU-{node}"
        cell.node(node, [device(uuid, mig_enabled=True, compute_slices=7, slices=slices)])
    ask = {"mode": "mig", "profile": "1g.10gb"}
    for name in ("one", "two"):
        cell.submit(name, ask, preemptible=True)

    cell.submit("high", ask | {"count": 3}, priority=9)

    states = [cell.lease(name).state for name in ("one", "two")]
    assert ["granted", "stopping"] == sorted(states)


def test_s2_slices_are_cleared_in_the_same_order_after_a_load() -> None:
    """A choice depends on what there is, never on when it came."""
    cell = _cell(preemption="any-tenant")
    slices = [mig_slice(f"M{at}", at, at - 1) for at in range(1, 8)]
    for node in ("n1", "n2"):
        uuid = f"GPU-{node}"
        cell.node(node, [device(uuid, mig_enabled=True, compute_slices=7, slices=slices)])
    ask = {"mode": "mig", "profile": "1g.10gb"}
    cell.submit("low", ask | {"count": 14}, preemptible=True)
    loaded = load_fold(save_fold(cell.fold)).ready()

    decision = cell.submit("high", ask | {"count": 2}, priority=9)

    assert decision.events == decide(loaded.cell(cell.name), decision.input).events


# -- who may take from whom -----------------------------------------------------------


def _lenders(reclaim: str = "any", preemption: str = "any-tenant") -> CoreDriver:
    cell = _cell(reclaim=reclaim, preemption=preemption)
    _quota(cell, "org", 4_000)
    return cell


def test_no_more_is_reclaimed_than_is_borrowed() -> None:
    """A quota that borrows one device loses one, not a second that is its own."""
    cell = _lenders(preemption="never")
    _quota(cell, "a", 2_000, parent="org")
    _quota(cell, "b", 2_000, parent="org")
    cell.node("n1", [device("GPU-a"), device("GPU-b"), device("GPU-c")])
    for name in ("b1", "b2", "b3"):
        cell.submit(name, tenant="b")

    assert "queued" == cell.submit("two", {"mode": "whole", "count": 2}, tenant="a").code
    assert "reserved" == cell.submit("one", tenant="a").code


def test_a_lease_that_counts_for_nothing_borrowed_is_not_reclaimed() -> None:
    """Whoever is evicted gives something back of what its quota has of others."""
    cell = _lenders(preemption="never")
    h100 = {"resource": "model:H100", "nominal": 0}
    _quota(cell, "org", 4_000, limits=[h100 | {"nominal": 1_000}])
    _quota(cell, "a", 2_000, parent="org", limits=[h100 | {"nominal": 1_000}])
    _quota(cell, "b", 2_000, parent="org", limits=[h100])
    cell.node("n1", [device("GPU-a"), device("GPU-x", model="A10", memory_mib=24_000)])
    cell.submit("borrows", {"mode": "whole", "models": ["H100"]}, tenant="b")
    cell.submit("owns", {"mode": "whole", "models": ["A10"]}, tenant="b")

    ask = {"mode": "whole", "models": ["A10"]}
    assert "queued" == cell.submit("small", ask, tenant="a").code
    assert "reserved" == cell.submit("large", tenant="a").code
    assert "stopping" == cell.lease("borrows").state


def test_q5_who_borrows_takes_nothing_from_a_lender_by_priority() -> None:
    """What is nominally another's would be reclaimed at once, and so for ever."""
    cell = _lenders()
    _quota(cell, "a", 1_000, parent="org")
    _quota(cell, "b", 0, parent="org")
    cell.node("n1", [device("GPU-a")])
    cell.submit("borrower", tenant="b", priority=9, preemptible=True)
    cell.submit("lender", tenant="a", preemptible=True)
    cell.answer_all_orders()

    assert "granted" == _state_of(cell, "lender")
    assert "granted" == cell.lease("lender").state
    assert "queued" == _state_of(cell, "borrower")


def test_a_quota_reclaims_from_one_below_it_only_what_is_its_own() -> None:
    """Who is above the borrower is not for that reason within what is its own."""
    cell = _lenders(preemption="never")
    _quota(cell, "a", 1_000, parent="org")
    _quota(cell, "a", 0, project="p")
    _quota(cell, "org", 4_000)
    cell.node("n1", [device("GPU-a"), device("GPU-b")])
    cell.submit("p1", tenant="a", project="p")
    cell.submit("p2", tenant="a", project="p")

    assert "reserved" == cell.submit("first", tenant="a").code
    cell.answer_all_orders()
    assert "queued" == cell.submit("second", tenant="a").code


def test_whom_one_may_not_reclaim_may_be_of_a_lower_priority() -> None:
    """An asker that borrows, too, still has the rule of priority."""
    cell = _lenders()
    for tenant in ("a", "b"):
        _quota(cell, tenant, 0, parent="org")
    cell.node("n1", [device("GPU-a")])
    cell.submit("low", tenant="b", preemptible=True)

    assert "reserved" == cell.submit("high", tenant="a", priority=9).code


# -- a place that is kept ----------------------------------------------------------------


def test_a_kept_place_counts_against_a_quota_of_its_model() -> None:
    """Q2: what is kept counts like what is leased, in every measure."""
    cell = _cell(preemption="any-tenant")
    _quota(cell, "h", 9_000, limits=[{"resource": "model:H100", "nominal": 1_000}])
    cell.node("n1", [device("GPU-a"), device("GPU-b")])
    cell.submit("low", preemptible=True)
    cell.submit("lower", preemptible=True)
    cell.submit("high", tenant="h", priority=9)

    assert "queued" == cell.submit("more", tenant="h", priority=9).code
    assert 0 == available(cell.state, "h", "model:H100")


def test_c23_a_kept_place_is_held_until_the_quota_has_ended_too() -> None:
    """Who was evicted for the quota may end after the place is free: that is no lowered quota."""
    cell = _cell(quota=1_000, preemption="any-tenant")
    cell.node("n1", [device("GPU-a")])
    cell.node("n2", [device("GPU-b")])
    cell.submit("own", preemptible=True)

    cell.submit("high", priority=9)
    assert "reserved" == _state_of(cell, "high")
    cell.answer_all_orders()
    assert "granted" == _state_of(cell, "high")


def test_c23_the_cpu_beside_a_kept_place_is_kept_too() -> None:
    """A later request does not take what the preemptor needs when its devices are clean."""
    cell = _cell(preemption="any-tenant")
    cell.node("n1", [device("GPU-a")], cpu_milli=10_000)
    cell.submit("low", preemptible=True, beside={"cpu_milli": 6_000})
    cell.submit("high", priority=9, beside={"cpu_milli": 6_000})

    cell.release(cell.lease("low").id)
    late = cell.submit("late", {"mode": "whole", "count": 0}, beside={"cpu_milli": 6_000})
    cell.answer_all_orders()

    assert "queued" == late.code
    assert "granted" == _state_of(cell, "high")


def test_a_kept_device_that_is_another_by_now_is_not_given() -> None:
    """What was kept is granted only if it is still what was asked for."""
    cell = _cell(preemption="any-tenant")
    cell.node("n1", [device("GPU-a")])
    cell.submit("low", preemptible=True)
    cell.submit("high", {"mode": "whole", "memory_mib": 80_000}, priority=9)

    cell.node("n1", [device("GPU-a", memory_mib=40_000)])

    assert "queued" == _state_of(cell, "high")
    cell.answer_all_orders()
    assert "queued" == _state_of(cell, "high")


def test_a_kept_place_whose_pool_has_other_labels_is_let_go_at_once() -> None:
    """S2: what a worker sees when it loads, one that went all the way has seen as well."""
    cell = _cell(preemption="any-tenant")
    cell.pool(labels={"zone": "1"})
    cell.node("n1", [device("GPU-a")])
    cell.submit("low", preemptible=True)
    cell.submit("high", {"mode": "whole", "labels": {"zone": "1"}}, priority=9)
    assert "reserved" == _state_of(cell, "high")

    cell.pool(labels={"zone": "2"})

    assert "queued" == _state_of(cell, "high")


def test_who_loses_a_kept_place_after_the_longest_wait_is_told_at_once() -> None:
    """V1: no deadline stands in the past."""
    cell = _cell(preemption="any-tenant")
    cell.pool(order_timeout_s=1_000)
    cell.node("n1", [device("GPU-a")])
    cell.submit("low", preemptible=True)
    cell.submit("high", priority=9, max_wait_s=60)
    cell.tick(cell.now_us + 100 * _S)
    assert "reserved" == _state_of(cell, "high")

    cell.health("GPU-a", "unhealthy")

    assert cell.key("high") not in cell.state.requests


# -- plans ----------------------------------------------------------------------------


def _planned() -> CoreDriver:
    cell = _cell(ordering="backfill", preemption="any-tenant")
    cell.node("n1", [device("GPU-a")])
    cell.node("n2", [device("GPU-b")])
    cell.submit("runs", max_run_s=600, priority=1, preemptible=True)
    cell.submit("big", {"mode": "whole", "nodes": 2}, priority=1)
    return cell


def test_nobody_later_in_line_evicts_on_a_planned_node() -> None:
    """A planned start is not put off by an eviction for somebody else."""
    cell = _planned()
    cell.queue("fast", reclaim="any")
    _quota(cell, "org", 10_000)
    _quota(cell, "a", 5_000, parent="org")
    _quota(cell, "t", 0, parent="org")

    assert "queued" == cell.submit("late", tenant="a", queue="fast").code


def test_a_plan_ends_when_a_node_of_it_cannot_serve_any_more() -> None:
    """V1: a device that is shut away frees the other nodes of the plan."""
    cell = _planned()
    cell.health("GPU-a", "unhealthy")

    assert cell.state.requests[cell.key("big")].plan is None
    assert "granted" == cell.submit("other").code


def test_a_plan_ends_when_its_queue_has_another_order() -> None:
    """Nodes are promised under back-fill only."""
    cell = _planned()
    cell.queue(ordering="best-effort")

    assert cell.state.requests[cell.key("big")].plan is None


def test_a_plan_ends_when_the_quota_is_in_use() -> None:
    """Nothing is kept from others for a request that its quota does not let run."""
    cell = _planned()
    cell.quota(nominal_gpu_milli=1_000)

    assert cell.state.requests[cell.key("big")].plan is None


# -- quotas -----------------------------------------------------------------------------


def test_a_budget_set_later_counts_what_runs() -> None:
    """A lease that ends early gives back what was counted, and no more."""
    cell = _cell()
    cell.node("n1", [device("GPU-a")])
    cell.submit("r1", max_run_s=3_000)
    _quota(cell, "t", 9_000, budget={"gpu_hours": 1, "period_s": 1_000_000})
    cell.release(cell.lease("r1").id)

    left = budget_left(cell.state.quotas["t"], cell.now_us)
    assert left is not None
    assert 3_600 * _S * 1_000 >= left


def test_a_lease_moved_below_another_budget_is_counted_there() -> None:
    """A quota that gets another parent takes what runs along."""
    cell = _cell()
    budget = {"gpu_hours": 1, "period_s": 1_000_000}
    _quota(cell, "org", 9_000, budget=budget)
    cell.node("n1", [device("GPU-a")])
    cell.submit("r1", max_run_s=3_000)
    _quota(cell, "t", 9_000, parent="org")

    assert 600 * _S * 1_000 == budget_left(cell.state.quotas["org"], cell.now_us)
    cell.release(cell.lease("r1").id)
    left = budget_left(cell.state.quotas["org"], cell.now_us)
    assert left is not None
    assert 3_600 * _S * 1_000 > left


def test_an_extension_counts_against_the_budget_at_once() -> None:
    """Two extensions do not pass together where only one fits."""
    cell = _cell()
    _quota(cell, "t", 9_000, budget={"gpu_hours": 1, "period_s": 1_000_000})
    cell.node("n1", [device("GPU-a")])
    cell.submit("r1", max_run_s=1_200)
    said = {"lease": cell.lease("r1").id, "more_s": 1_800}

    assert "applied" == cell.feed("lease.extend", said).code
    assert "budget_spent" == cell.feed("lease.extend", said).code


def test_what_a_quota_keeps_back_is_there_when_its_parent_was_lowered() -> None:
    """Nobody's usage beyond a lowered total takes from what another keeps back."""
    cell = _cell()
    _quota(cell, "org", 6_000)
    _quota(cell, "a", 2_000, parent="org", lending_gpu_milli=0)
    _quota(cell, "b", 0, parent="org")
    cell.node("n1", [device(f"GPU-{at}") for at in range(6)])
    for at in range(4):
        cell.submit(f"b{at}", tenant="b")
    _quota(cell, "org", 2_000)

    assert 2_000 == available(cell.state, "a", GPU)
    assert ["granted", "granted"] == [cell.submit(f"a{at}", tenant="a").code for at in range(2)]


def test_q3_a_limit_below_counts_for_one_further_above() -> None:
    """What is between says nothing of the resource; the sum still holds."""
    cell = _cell()
    h100 = {"resource": "model:H100", "nominal": 1_000}
    _quota(cell, "org", 9_000, limits=[h100])
    _quota(cell, "a", 2_000, parent="org")

    assert "exceeds_parent" == _quota(
        cell, "a", 1_000, project="p", limits=[h100 | {"nominal": 2_000}]
    )
    assert [] == check(cell.state)


def test_q3_a_quota_that_moves_takes_its_projects_along() -> None:
    """A quota is not put below one that has less of what its projects have."""
    cell = _cell()
    h100 = {"resource": "model:H100", "nominal": 1_000}
    _quota(cell, "org", 9_000, limits=[h100])
    _quota(cell, "a", 2_000)
    _quota(cell, "a", 1_000, project="p", limits=[h100 | {"nominal": 2_000}])

    assert "exceeds_parent" == _quota(cell, "a", 2_000, parent="org")


def test_q3_a_limit_that_is_put_between_is_not_counted_twice() -> None:
    """A tenant may state what its projects have stated."""
    cell = _cell()
    h100 = {"resource": "model:H100", "nominal": 2_000}
    _quota(cell, "org", 9_000, limits=[h100])
    _quota(cell, "a", 2_000, parent="org")
    _quota(cell, "a", 1_000, project="p", limits=[h100])

    assert "applied" == _quota(cell, "a", 2_000, parent="org", limits=[h100])


def test_to_lower_a_quota_twice_stops_no_more_than_once() -> None:
    """What stops already counts, and nobody else has to go for it."""
    cell = _cell()
    cell.node("n1", [device("GPU-a"), device("GPU-b")])
    cell.submit("r1")
    cell.submit("r2")

    for _ in range(2):
        assert "applied" == _quota(cell, "t", 1_000, evict=True)

    assert "granted" == cell.lease("r1").state
    assert "stopping" == cell.lease("r2").state


def test_a_class_that_one_quota_has_no_room_for_is_there_for_another() -> None:
    """Who finds no place because of the quota does not speak for all who need the same."""
    cell = _cell()
    _quota(cell, "a", 5_000, limits=[{"resource": "memory_mib", "nominal": 1_000}])
    for tenant in ("a", "t"):
        cell.submit(f"of-{tenant}", tenant=tenant)
    cell.node("n1", [device("GPU-a")])

    assert "queued" == _state_of(cell, "of-a")
    assert "granted" == _state_of(cell, "of-t")


def test_a_quota_tree_has_a_limited_depth() -> None:
    """What is asked of a tree level by level never ends the process; moved subtrees count too."""
    cell = _cell()
    for at in range(MAX_QUOTA_DEPTH):
        assert "applied" == _quota(cell, f"a{at}", 0, parent=f"a{at - 1}" if at else None)
    _quota(cell, "b0", 0)
    _quota(cell, "b1", 0, parent="b0")

    assert "quota_too_deep" == _quota(cell, "more", 0, parent=f"a{MAX_QUOTA_DEPTH - 1}")
    assert "quota_too_deep" == _quota(cell, "b0", 0, parent=f"a{MAX_QUOTA_DEPTH - 2}")
    assert "applied" == _quota(cell, "b1", 0, parent=f"a{MAX_QUOTA_DEPTH - 2}")


def test_a_half_life_that_is_not_said_is_a_week_again() -> None:
    """A quota is set as a whole: nothing of what it was before is left."""
    cell = _cell()
    _quota(cell, "t", 9_000, half_life_s=60)
    _quota(cell, "t", 9_000, half_life_s=604_800)

    assert 604_800 * _S == cell.state.quotas["t"].half_life_us


# -- limits -------------------------------------------------------------------------------


def test_an_eviction_that_no_record_could_hold_is_not_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a decision does always fits into the log; who would need more waits."""
    codes = []
    for most in (1_000, 400):
        monkeypatch.setattr(preemption, "MAX_EVICTED_BYTES", most)
        cell = _cell(preemption="any-tenant")
        cell.node("n1", [device("GPU-a"), device("GPU-b")])
        cell.submit("low", preemptible=True)
        cell.submit("lower", preemptible=True)
        codes.append(cell.submit("high", {"mode": "whole", "count": 2}, priority=9).code)

    assert ["reserved", "queued"] == codes


# -- reservations, and what stands beside them ----------------------------------------------


def _reserve(cell: CoreDriver, name: str, start_us: int, end_us: int, **more: Any) -> str:
    plain = {"reservation": name, "tenant": "t", "author": "op", "reason": "x", **more}
    plain |= {"start_us": start_us, "end_us": end_us}
    return cell.feed("reservation.apply", plain, source="/operator").code


def test_a15_a_pool_for_some_tenants_is_reserved_for_these() -> None:
    """The nodes are chosen as for a request of the tenant."""
    cell = _cell()
    cell.pool(allowed_tenants=["t"])
    cell.node("n1", [device("GPU-a")])

    assert "applied" == _reserve(cell, "R", 10**9, 2 * 10**9)
    _quota(cell, "other", 1_000)
    assert "no_capacity" == _reserve(cell, "S", 3 * 10**9, 4 * 10**9, tenant="other")


def test_a15_a_pool_that_no_longer_serves_the_tenant_is_told() -> None:
    """A reservation that cannot be kept raises its alarm at once."""
    for rule in ({"allowed_tenants": ["u"]}, {"allowed_modes": ["mig"]}):
        cell = _cell()
        cell.node("n1", [device("GPU-a")])
        _reserve(cell, "R", 10**9, 2 * 10**9)
        cell.pool(**rule)  # type: ignore[arg-type]
        assert "reservation_short R" in cell.state.alarms
        cell.pool()
        assert "reservation_short R" not in cell.state.alarms


def test_a15_what_a_lease_within_holds_now_is_still_reserved_later() -> None:
    """One device is not reserved twice because a short run within has it now."""
    cell = _cell()
    cell.node("n1", [device("GPU-a")])
    now_us = cell.now_us
    _reserve(cell, "R", now_us, now_us + 1_000 * _S)
    assert "granted" == cell.submit("short", reservation="R", max_run_s=60).code

    assert "no_capacity" == _reserve(cell, "S", now_us + 100 * _S, now_us + 200 * _S)
    said = {"lease": cell.lease("short").id, "more_s": 600}
    assert "applied" == cell.feed("lease.extend", said).code


def test_a15_a_lease_that_stops_on_a_draining_node_leaves_the_reservation_short() -> None:
    """What was in use within is not to be had again there."""
    cell = _cell()
    cell.node("n1", [device("GPU-a")])
    _reserve(cell, "R", cell.now_us, cell.now_us + 1_000 * _S)
    cell.submit("short", reservation="R", max_run_s=60)
    cell.node_set("n1", "draining")
    cell.tick(cell.now_us + 61 * _S)

    assert "reservation_short R" in cell.state.alarms


def test_a15_reservations_that_overlap_are_counted_together_when_the_second_opens() -> None:
    """The first one is looked at again then: time alone has changed what is needed."""
    cell = _cell()
    cell.node("n1", [device("GPU-a"), device("GPU-b")])
    now_us = cell.now_us
    _reserve(cell, "R", now_us, now_us + 1_000 * _S)
    _reserve(cell, "S", now_us + 100 * _S, now_us + 900 * _S)
    cell.submit("long", reservation="R")
    cell.health("GPU-b", "unhealthy")
    cell.tick(now_us + 101 * _S)

    assert "reservation_short S" in cell.state.alarms


def test_s2_a_plan_that_time_moves_into_a_reservation_is_let_go() -> None:
    """A worker that has just loaded decides as one that went all the way."""
    cell = _cell(ordering="backfill")
    cell.node("n1", [device("GPU-a")])
    now_us = cell.now_us
    cell.submit("runs", max_run_s=100)
    cell.submit("next", max_run_s=200)
    assert cell.state.requests[cell.key("next")].plan is not None
    assert "applied" == _reserve(cell, "R", now_us + 350 * _S, now_us + 900 * _S)
    cell.tick(now_us + 200 * _S)
    cell.queue("other")
    cell.queue("another")

    assert cell.state.requests[cell.key("next")].plan is None


def test_s2_a_replica_that_asks_nothing_undoes_a_place_kept_apart_from_it() -> None:
    """Who keeps a place apart from its task's replicas hears of one that does not ask so."""
    cell = _cell(preemption="any-tenant")
    cell.node("n1", [device("GPU-a"), device("GPU-b")])
    cell.submit("low", preemptible=True, task={"id": "x"})
    cell.submit("lower", preemptible=True, task={"id": "y"})
    spread = {"mode": "whole", "spread": "node"}
    assert "reserved" == cell.submit("high", spread, priority=9, task={"id": "web"}).code
    cell.node("n1", [device("GPU-a"), device("GPU-b"), device("GPU-c")])
    assert "granted" == cell.submit("plain", task={"id": "web"}).code

    assert "queued" == _state_of(cell, "high")


def test_s2_a_device_that_waits_no_longer_for_a_reboot_is_counted_no_longer() -> None:
    """Also where it reports no profiles any more."""
    cell = _cell()
    cell.node("n1", [device("GPU-a", mig_pending=True)])
    cell.node("n1", [device("GPU-a")])

    assert not cell.state.index.makers.pending


def test_a15_a_reservation_is_not_replaced_by_another_tenants() -> None:
    """Those who wait within it would run in what is reserved for the other."""
    cell = _cell()
    cell.quota("u")
    cell.node("n1", [device("GPU-a")])
    opens_us = cell.now_us + 100 * _S
    _reserve(cell, "R", opens_us, opens_us + 900 * _S)
    cell.submit("mine", reservation="R")
    plain = {"reservation": "R", "tenant": "u", "start_us": opens_us, "end_us": opens_us + _S}
    answer = cell.feed(
        "reservation.apply", {**plain, "author": "op", "reason": "x"}, source="/operator"
    )

    assert ("not_reserved_for", "t") == (answer.code, cell.state.reservations["R"].tenant)


def test_q6_what_a_vgpu_that_is_being_cleaned_leaves_is_waited_for() -> None:
    """Its device will be free for a share: nobody is evicted from another one."""
    cell = _cell(preemption="any-tenant")
    types = [{"type": "thirds", "most": 3, "memory_mib": 20_000}]
    cell.node("n1", [device("GPU-a", vgpu_types=types), device("GPU-b")])
    cell.submit("virtual", {"mode": "vgpu", "type": "thirds"})
    cell.submit("low", preemptible=True, task={"id": "x"})
    cell.release(cell.lease("virtual").id)
    share = {"mode": "share", "gpu_milli": 500}

    assert "queued" == cell.submit("share", share, priority=9).code
    cell.answer_all_orders()
    assert ["GPU-a"] == cell.lease("share").parts["n1"].units


def test_s2_who_was_evicted_rests_on_after_a_kept_place_was_lost() -> None:
    """Its rest falls due also when it was kept a place in between, as after a load."""
    cell = _cell(preemption="any-tenant")
    cell.pool(partition="create")
    profile = {"profile": "1g.10gb", "size": 1, "compute_slices": 1, "memory_mib": 9_856}
    card = device(
        "GPU-a",
        mig_enabled=True,
        compute_slices=1,
        profiles=[{**profile, "starts": [0], "most": 1}],
        slices=[mig_slice("MIG-1", 1, 0)],
    )
    cell.node("n1", [card])
    ask = {"mode": "mig", "profile": "1g.10gb"}
    cell.submit("low", ask, preemptible=True, task={"id": "x"})
    cell.submit("high", ask, priority=9)
    cell.answer_all_orders()
    assert "granted" == _state_of(cell, "high")
    cell.node("n1", [card | {"slices": []}])
    assert "reserved" == _state_of(cell, "low")
    cell.tick(cell.now_us + 301 * _S)

    assert "queued" == _state_of(cell, "low")


def test_v1_a_slice_is_made_for_one_of_a_shorter_run_behind_one_who_may_not() -> None:
    """Where a plan forbids a slice to the first, the next ends before the planned start."""
    cell = _cell(ordering="backfill")
    cell.pool(partition="create")
    profile = {"profile": "1g.10gb", "size": 1, "compute_slices": 1, "memory_mib": 9_856}
    made = device(
        "GPU-m",
        mig_enabled=True,
        compute_slices=1,
        profiles=[{**profile, "starts": [0], "most": 1}],
        slices=[],
    )
    cell.node("n1", [device("GPU-a"), made])
    cell.submit("runs", max_run_s=100)
    cell.submit("planned", max_run_s=100, priority=5)
    assert cell.state.requests[cell.key("planned")].plan is not None
    cell.health("GPU-m", "unhealthy")
    ask = {"mode": "mig", "profile": "1g.10gb"}
    cell.submit("long", ask, max_run_s=1_000, priority=2)
    cell.submit("short", ask, max_run_s=10, priority=1)
    cell.health("GPU-m", "healthy")

    assert ("queued", "reserved") == (_state_of(cell, "long"), _state_of(cell, "short"))


# -- reading a log -------------------------------------------------------------------


def test_s2_a_reader_follows_replicas_that_are_to_be_apart() -> None:
    """Who reads a log keeps no index; who is apart from whom is judged there all the same."""
    cell = _cell()
    for number in range(3):
        cell.node(f"n{number}", [device(f"GPU-{number}")])
    ask = {"mode": "whole", "spread": "node"}
    cell.submit("a", task={"id": "web"})
    cell.submit("b", ask, task={"id": "web"})
    cell.release(cell.lease("a").id)
    cell.answer_all_orders()
    cell.submit("c", ask, task={"id": "web"})

    reader = Fold().reading()
    for offset, value in enumerate(cell.records):
        reader.apply(offset, value)
    assert digest(reader.cells) == cell.digest()
