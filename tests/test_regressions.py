"""Histories that the machine or the simulation found, each as small as it gets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ledger.core.decide import decide
from ledger.core.digest import load_fold, save_fold
from ledger.core.evicting import preemption
from ledger.core.invariants import check
from ledger.core.limits import MAX_QUOTA_DEPTH
from ledger.core.quotas.quota import GPU, MOST_MILLI_US, available, budget_left
from ledger.testing import CoreDriver, device, mig_slice
from tests.small_cells import cell_of, set_quota, state_of

if TYPE_CHECKING:
    import pytest

_S = 1_000_000


def _stopping(cell: CoreDriver) -> list[str]:
    leases = cell.state.leases.values()
    return sorted(one.request.partition("#")[2] for one in leases if one.state == "stopping")


# -- whom an eviction takes ----------------------------------------------------------


def test_c25_replicas_are_counted_by_the_task_whichever_of_them_says_how_many() -> None:
    """A replica that asks for none itself still counts for one that needs two."""
    cell = cell_of(preemption="any-tenant")
    cell.node("n1", [device("GPU-a"), device("GPU-b")])
    web: dict[str, Any] = {"task": {"id": "web", "type": "online-inference"}, "preemptible": True}
    cell.submit("one", **web, replicas_min=2)
    cell.submit("two", **web, replicas_min=0)

    assert "queued" == cell.submit("high", priority=9).code


def test_q6_nobody_goes_for_the_place_if_who_goes_for_the_quota_leaves_one() -> None:
    """The victims of place and quota are one set, and none of it is needless."""
    cell = cell_of(quota=1_000, preemption="any-tenant")
    cell.quota("other")
    cell.node("n1", [device("GPU-a")])
    cell.node("n2", [device("GPU-b")])
    cell.submit("other", tenant="other", preemptible=True, priority=-9)
    cell.submit("own", preemptible=True)

    assert "reserved" == cell.submit("high", priority=9).code
    assert "granted" == state_of(cell, "other")
    assert "stopping" == cell.lease("own").state
    assert "granted" == cell.lease("other").state


def test_q6_nobody_goes_for_a_place_where_the_quota_alone_needs_somebody_to_go() -> None:
    """What is cleared in one class is weighed against a free place in another (seed 265)."""
    cell = cell_of(preemption="any-tenant")
    cell.quota("else")
    set_quota(cell, "org", 2_000)
    set_quota(cell, "s", 1_000, parent="org")
    set_quota(cell, "u", 0, parent="org")
    cell.node("n1", [device("GPU-a"), device("GPU-b")])
    cell.node("n2", [device("GPU-x", model="A10")])
    cell.submit("owed", {"mode": "whole", "models": ["H100"]}, tenant="s", preemptible=True)
    half = {"mode": "share", "gpu_milli": 500, "models": ["A10"]}
    cell.submit("own", half, tenant="u", preemptible=True, priority=1)
    cell.submit("other", half, tenant="else", preemptible=True, priority=1)

    assert "reserved" == cell.submit("high", tenant="u", priority=9).code
    assert ["own"] == _stopping(cell)


def test_q6_a_device_of_vgpus_is_cleared_where_all_of_them_may_go() -> None:
    """A share is not given beside a vGPU, and may have it evicted all the same (seed 205)."""
    cell = cell_of(preemption="any-tenant")
    halves = [{"type": "halves", "memory_mib": 40_000, "most": 2}]
    cell.node("n1", [device("GPU-a", vgpu_types=halves)])
    half = {"mode": "vgpu", "type": "halves"}
    cell.submit("one", half, preemptible=True)
    cell.submit("two", half)
    share = {"mode": "share", "gpu_milli": 100}
    assert "queued" == cell.submit("none", share, priority=9).code
    cell.cancel("none")
    cell.release(cell.lease("two").id)

    assert "reserved" == cell.submit("high", share, priority=9).code
    assert ["one"] == _stopping(cell)
    cell.answer_all_orders()
    assert "granted" == state_of(cell, "high")


def test_q6_nobody_goes_where_it_is_enough_to_wait_for_what_ends() -> None:
    """A place of another class is not cleared while one of the first is being cleaned."""
    cell = cell_of(preemption="any-tenant")
    cell.node("n1", [device("GPU-a", model="A10", memory_mib=24_000), device("GPU-b")])
    cell.submit("big", {"mode": "whole", "models": ["H100"]}, preemptible=True)
    cell.submit("small", {"mode": "whole", "models": ["A10"]}, preemptible=True)
    cell.release(cell.lease("small").id)

    assert "queued" == cell.submit("high", priority=9).code
    assert "granted" == cell.lease("big").state
    cell.answer_all_orders()
    assert "granted" == state_of(cell, "high")


def test_who_waits_for_the_cleaning_looks_elsewhere_when_it_fails() -> None:
    """V1: what is shut away frees nothing, and is a reason to evict all the same."""
    cell = cell_of(preemption="any-tenant")
    cell.node("n1", [device("GPU-a"), device("GPU-b")])
    cell.submit("low", preemptible=True)
    cell.submit("over")
    cell.release(cell.lease("over").id)
    cell.submit("high", priority=9)
    (order,) = cell.state.orders

    cell.order_failed(order)

    assert "reserved" == state_of(cell, "high")


def test_what_ends_takes_no_cpu_from_who_may_evict() -> None:
    """The CPU of a lease that stops is there once it has ended, and is waited for."""
    cell = cell_of(preemption="any-tenant")
    cell.node("n1", [device("GPU-a"), device("GPU-b")], cpu_milli=10_000)
    cell.submit("ends", {"mode": "whole", "count": 0}, beside={"cpu_milli": 6_000})
    for name in ("low", "lower"):
        cell.submit(name, preemptible=True)
    cell.cancel("ends")

    assert "reserved" == cell.submit("high", priority=9, beside={"cpu_milli": 6_000}).code
    for order in sorted(cell.state.orders, reverse=True):
        cell.order_done(order)
    cell.answer_all_orders()
    assert "granted" == state_of(cell, "high")


def test_slices_of_another_charge_are_not_kept_under_the_first() -> None:
    """A slice counts as its own part of its card, also where it was cleared for somebody."""
    cell = cell_of(preemption="any-tenant")
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
    cell = cell_of(preemption="any-tenant")
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
    cell = cell_of(preemption="any-tenant")
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
    cell = cell_of(reclaim=reclaim, preemption=preemption)
    set_quota(cell, "org", 4_000)
    return cell


def test_no_more_is_reclaimed_than_is_borrowed() -> None:
    """A quota that borrows one device loses one, not a second that is its own."""
    cell = _lenders(preemption="never")
    set_quota(cell, "a", 2_000, parent="org")
    set_quota(cell, "b", 2_000, parent="org")
    cell.node("n1", [device("GPU-a"), device("GPU-b"), device("GPU-c")])
    for name in ("b1", "b2", "b3"):
        cell.submit(name, tenant="b")

    assert "queued" == cell.submit("two", {"mode": "whole", "count": 2}, tenant="a").code
    assert "reserved" == cell.submit("one", tenant="a").code


def test_a_lease_that_counts_for_nothing_borrowed_is_not_reclaimed() -> None:
    """Whoever is evicted gives something back of what its quota has of others."""
    cell = _lenders(preemption="never")
    h100 = {"resource": "model:H100", "nominal": 0}
    set_quota(cell, "org", 4_000, limits=[h100 | {"nominal": 1_000}])
    set_quota(cell, "a", 2_000, parent="org", limits=[h100 | {"nominal": 1_000}])
    set_quota(cell, "b", 2_000, parent="org", limits=[h100])
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
    set_quota(cell, "a", 1_000, parent="org")
    set_quota(cell, "b", 0, parent="org")
    cell.node("n1", [device("GPU-a")])
    cell.submit("borrower", tenant="b", priority=9, preemptible=True)
    cell.submit("lender", tenant="a", preemptible=True)
    cell.answer_all_orders()

    assert "granted" == state_of(cell, "lender")
    assert "granted" == cell.lease("lender").state
    assert "queued" == state_of(cell, "borrower")


def test_a_quota_reclaims_from_one_below_it_only_what_is_its_own() -> None:
    """Who is above the borrower is not for that reason within what is its own."""
    cell = _lenders(preemption="never")
    set_quota(cell, "a", 1_000, parent="org")
    set_quota(cell, "a", 0, project="p")
    set_quota(cell, "org", 4_000)
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
        set_quota(cell, tenant, 0, parent="org")
    cell.node("n1", [device("GPU-a")])
    cell.submit("low", tenant="b", preemptible=True)

    assert "reserved" == cell.submit("high", tenant="a", priority=9).code


# -- a place that is kept ----------------------------------------------------------------


def test_a_kept_place_counts_against_a_quota_of_its_model() -> None:
    """Q2: what is kept counts like what is leased, in every measure."""
    cell = cell_of(preemption="any-tenant")
    set_quota(cell, "h", 9_000, limits=[{"resource": "model:H100", "nominal": 1_000}])
    cell.node("n1", [device("GPU-a"), device("GPU-b")])
    cell.submit("low", preemptible=True)
    cell.submit("lower", preemptible=True)
    cell.submit("high", tenant="h", priority=9)

    assert "queued" == cell.submit("more", tenant="h", priority=9).code
    assert 0 == available(cell.state, "h", "model:H100")


def test_c23_a_kept_place_is_held_until_the_quota_has_ended_too() -> None:
    """Who was evicted for the quota may end after the place is free: that is no lowered quota."""
    cell = cell_of(quota=1_000, preemption="any-tenant")
    cell.node("n1", [device("GPU-a")])
    cell.node("n2", [device("GPU-b")])
    cell.submit("own", preemptible=True)

    cell.submit("high", priority=9)
    assert "reserved" == state_of(cell, "high")
    cell.answer_all_orders()
    assert "granted" == state_of(cell, "high")


def test_c23_the_cpu_beside_a_kept_place_is_kept_too() -> None:
    """A later request does not take what the preemptor needs when its devices are clean."""
    cell = cell_of(preemption="any-tenant")
    cell.node("n1", [device("GPU-a")], cpu_milli=10_000)
    cell.submit("low", preemptible=True, beside={"cpu_milli": 6_000})
    cell.submit("high", priority=9, beside={"cpu_milli": 6_000})

    cell.release(cell.lease("low").id)
    late = cell.submit("late", {"mode": "whole", "count": 0}, beside={"cpu_milli": 6_000})
    cell.answer_all_orders()

    assert "queued" == late.code
    assert "granted" == state_of(cell, "high")


def test_a_kept_device_that_is_another_by_now_is_not_given() -> None:
    """What was kept is granted only if it is still what was asked for."""
    cell = cell_of(preemption="any-tenant")
    cell.node("n1", [device("GPU-a")])
    cell.submit("low", preemptible=True)
    cell.submit("high", {"mode": "whole", "memory_mib": 80_000}, priority=9)

    cell.node("n1", [device("GPU-a", memory_mib=40_000)])

    assert "queued" == state_of(cell, "high")
    cell.answer_all_orders()
    assert "queued" == state_of(cell, "high")


def test_a_kept_place_whose_pool_has_other_labels_is_let_go_at_once() -> None:
    """S2: what a worker sees when it loads, one that went all the way has seen as well."""
    cell = cell_of(preemption="any-tenant")
    cell.pool(labels={"zone": "1"})
    cell.node("n1", [device("GPU-a")])
    cell.submit("low", preemptible=True)
    cell.submit("high", {"mode": "whole", "labels": {"zone": "1"}}, priority=9)
    assert "reserved" == state_of(cell, "high")

    cell.pool(labels={"zone": "2"})

    assert "queued" == state_of(cell, "high")


def test_who_loses_a_kept_place_after_the_longest_wait_is_told_at_once() -> None:
    """V1: no deadline stands in the past."""
    cell = cell_of(preemption="any-tenant")
    cell.pool(order_timeout_s=1_000)
    cell.node("n1", [device("GPU-a")])
    cell.submit("low", preemptible=True)
    cell.submit("high", priority=9, max_wait_s=60)
    cell.tick(cell.now_us + 100 * _S)
    assert "reserved" == state_of(cell, "high")

    cell.health("GPU-a", "unhealthy")

    assert cell.key("high") not in cell.state.requests


# -- plans ----------------------------------------------------------------------------


def _planned() -> CoreDriver:
    cell = cell_of(ordering="backfill", preemption="any-tenant")
    cell.node("n1", [device("GPU-a")])
    cell.node("n2", [device("GPU-b")])
    cell.submit("runs", max_run_s=600, priority=1, preemptible=True)
    cell.submit("big", {"mode": "whole", "nodes": 2}, priority=1)
    return cell


def test_nobody_later_in_line_evicts_on_a_planned_node() -> None:
    """A planned start is not put off by an eviction for somebody else."""
    cell = _planned()
    cell.queue("fast", reclaim="any")
    set_quota(cell, "org", 10_000)
    set_quota(cell, "a", 5_000, parent="org")
    set_quota(cell, "t", 0, parent="org")

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
    cell = cell_of()
    cell.node("n1", [device("GPU-a")])
    cell.submit("r1", max_run_s=3_000)
    set_quota(cell, "t", 9_000, budget={"gpu_hours": 1, "period_s": 1_000_000})
    cell.release(cell.lease("r1").id)

    left = budget_left(cell.state.quotas["t"], cell.now_us)
    assert left is not None
    assert 3_600 * _S * 1_000 >= left


def test_a_lease_moved_below_another_budget_is_counted_there() -> None:
    """A quota that gets another parent takes what runs along."""
    cell = cell_of()
    budget = {"gpu_hours": 1, "period_s": 1_000_000}
    set_quota(cell, "org", 9_000, budget=budget)
    cell.node("n1", [device("GPU-a")])
    cell.submit("r1", max_run_s=3_000)
    set_quota(cell, "t", 9_000, parent="org")

    assert 600 * _S * 1_000 == budget_left(cell.state.quotas["org"], cell.now_us)
    cell.release(cell.lease("r1").id)
    left = budget_left(cell.state.quotas["org"], cell.now_us)
    assert left is not None
    assert 3_600 * _S * 1_000 > left


def test_an_extension_counts_against_the_budget_at_once() -> None:
    """Two extensions do not pass together where only one fits."""
    cell = cell_of()
    set_quota(cell, "t", 9_000, budget={"gpu_hours": 1, "period_s": 1_000_000})
    cell.node("n1", [device("GPU-a")])
    cell.submit("r1", max_run_s=1_200)
    said = {"lease": cell.lease("r1").id, "more_s": 1_800}

    assert "applied" == cell.feed("lease.extend", said).code
    assert "budget_spent" == cell.feed("lease.extend", said).code


#: The longest run that a request may state: with a few devices more than 64 bits hold.
LONGEST_S = 1_000_000_000


def test_a_request_of_more_time_than_64_bits_hold_waits() -> None:
    """It ended the worker that decided it: its number went into no record."""
    cell = cell_of()
    set_quota(cell, "t", 99_000, budget={"gpu_hours": 1_000_000, "period_s": LONGEST_S})
    for name in ("n1", "n2"):
        cell.node(name, [device(f"GPU-{name}-{at}") for at in range(16)])
    gang = {"mode": "whole", "count": 16, "nodes": 2}
    asked = cell.submit("r1", gang, max_run_s=LONGEST_S)
    assert ("queued", "budget_spent") == (asked.code, cell.state.requests[cell.key("r1")].code)
    assert MOST_MILLI_US == asked.numbers["asked"]
    cell.submit("r2", gang, max_run_s=60)
    more = cell.feed("lease.extend", {"lease": cell.lease("r2").id, "more_s": LONGEST_S})
    assert ("budget_spent", MOST_MILLI_US) == (more.code, more.numbers["asked"])


def test_a_budget_set_later_counts_no_more_than_64_bits_hold() -> None:
    """There is a digest of the state; what cannot be counted any more is not given back."""
    cell = cell_of()
    set_quota(cell, "t", 99_000)
    cell.node("n1", [device(f"GPU-{at}") for at in range(24)])
    for at in range(3):
        cell.submit(f"r{at}", {"mode": "whole", "count": 8}, max_run_s=LONGEST_S)
    set_quota(cell, "t", 99_000, budget={"gpu_hours": 1, "period_s": LONGEST_S})
    assert MOST_MILLI_US == cell.state.quotas["t"].spent_milli_us
    for at in range(3):
        cell.release(cell.lease(f"r{at}").id)
    assert MOST_MILLI_US == cell.state.quotas["t"].spent_milli_us
    # A period of another length is another one.
    set_quota(cell, "t", 99_000, budget={"gpu_hours": 1, "period_s": 60})
    assert cell.replayed().cells["c"].quotas["t"].spent_milli_us <= 0


def test_what_a_quota_keeps_back_is_there_when_its_parent_was_lowered() -> None:
    """Nobody's usage beyond a lowered total takes from what another keeps back."""
    cell = cell_of()
    set_quota(cell, "org", 6_000)
    set_quota(cell, "a", 2_000, parent="org", lending_gpu_milli=0)
    set_quota(cell, "b", 0, parent="org")
    cell.node("n1", [device(f"GPU-{at}") for at in range(6)])
    for at in range(4):
        cell.submit(f"b{at}", tenant="b")
    set_quota(cell, "org", 2_000)

    assert 2_000 == available(cell.state, "a", GPU)
    assert ["granted", "granted"] == [cell.submit(f"a{at}", tenant="a").code for at in range(2)]


def test_q3_a_limit_below_counts_for_one_further_above() -> None:
    """What is between says nothing of the resource; the sum still holds."""
    cell = cell_of()
    h100 = {"resource": "model:H100", "nominal": 1_000}
    set_quota(cell, "org", 9_000, limits=[h100])
    set_quota(cell, "a", 2_000, parent="org")

    assert "exceeds_parent" == set_quota(
        cell, "a", 1_000, project="p", limits=[h100 | {"nominal": 2_000}]
    )
    assert [] == check(cell.state)


def test_q3_a_quota_that_moves_takes_its_projects_along() -> None:
    """A quota is not put below one that has less of what its projects have."""
    cell = cell_of()
    h100 = {"resource": "model:H100", "nominal": 1_000}
    set_quota(cell, "org", 9_000, limits=[h100])
    set_quota(cell, "a", 2_000)
    set_quota(cell, "a", 1_000, project="p", limits=[h100 | {"nominal": 2_000}])

    assert "exceeds_parent" == set_quota(cell, "a", 2_000, parent="org")


def test_q3_a_limit_that_is_put_between_is_not_counted_twice() -> None:
    """A tenant may state what its projects have stated."""
    cell = cell_of()
    h100 = {"resource": "model:H100", "nominal": 2_000}
    set_quota(cell, "org", 9_000, limits=[h100])
    set_quota(cell, "a", 2_000, parent="org")
    set_quota(cell, "a", 1_000, project="p", limits=[h100])

    assert "applied" == set_quota(cell, "a", 2_000, parent="org", limits=[h100])


def test_to_lower_a_quota_twice_stops_no_more_than_once() -> None:
    """What stops already counts, and nobody else has to go for it."""
    cell = cell_of()
    cell.node("n1", [device("GPU-a"), device("GPU-b")])
    cell.submit("r1")
    cell.submit("r2")

    for _ in range(2):
        assert "applied" == set_quota(cell, "t", 1_000, evict=True)

    assert "granted" == cell.lease("r1").state
    assert "stopping" == cell.lease("r2").state


def test_a_class_that_one_quota_has_no_room_for_is_there_for_another() -> None:
    """Who finds no place because of the quota does not speak for all who need the same."""
    cell = cell_of()
    set_quota(cell, "a", 5_000, limits=[{"resource": "memory_mib", "nominal": 1_000}])
    for tenant in ("a", "t"):
        cell.submit(f"of-{tenant}", tenant=tenant)
    cell.node("n1", [device("GPU-a")])

    assert "queued" == state_of(cell, "of-a")
    assert "granted" == state_of(cell, "of-t")


def test_a_quota_tree_has_a_limited_depth() -> None:
    """What is asked of a tree level by level never ends the process; moved subtrees count too."""
    cell = cell_of()
    for at in range(MAX_QUOTA_DEPTH):
        assert "applied" == set_quota(cell, f"a{at}", 0, parent=f"a{at - 1}" if at else None)
    set_quota(cell, "b0", 0)
    set_quota(cell, "b1", 0, parent="b0")

    assert "quota_too_deep" == set_quota(cell, "more", 0, parent=f"a{MAX_QUOTA_DEPTH - 1}")
    assert "quota_too_deep" == set_quota(cell, "b0", 0, parent=f"a{MAX_QUOTA_DEPTH - 2}")
    assert "applied" == set_quota(cell, "b1", 0, parent=f"a{MAX_QUOTA_DEPTH - 2}")


def test_a_half_life_that_is_not_said_is_a_week_again() -> None:
    """A quota is set as a whole: nothing of what it was before is left."""
    cell = cell_of()
    set_quota(cell, "t", 9_000, half_life_s=60)
    set_quota(cell, "t", 9_000, half_life_s=604_800)

    assert 604_800 * _S == cell.state.quotas["t"].half_life_us


# -- limits -------------------------------------------------------------------------------


def test_an_eviction_that_no_record_could_hold_is_not_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a decision does always fits into the log; who would need more waits."""
    codes = []
    for most in (1_000, 400):
        monkeypatch.setattr(preemption, "MAX_EVICTED_BYTES", most)
        cell = cell_of(preemption="any-tenant")
        cell.node("n1", [device("GPU-a"), device("GPU-b")])
        cell.submit("low", preemptible=True)
        cell.submit("lower", preemptible=True)
        codes.append(cell.submit("high", {"mode": "whole", "count": 2}, priority=9).code)

    assert ["reserved", "queued"] == codes
