"""Histories that the machine or the simulation found, of reservations and kept places.

Like `tests.test_regressions`, each as small as it gets.
"""

from __future__ import annotations

from typing import Any

from ledger.core.digest import digest
from ledger.core.fold import Fold
from ledger.testing import CoreDriver, device, mig_slice
from tests.small_cells import cell_of, set_quota, state_of

_S = 1_000_000


# -- reservations, and what stands beside them ----------------------------------------------


def _reserve(cell: CoreDriver, name: str, start_us: int, end_us: int, **more: Any) -> str:
    plain = {"reservation": name, "tenant": "t", "author": "op", "reason": "x", **more}
    plain |= {"start_us": start_us, "end_us": end_us}
    return cell.feed("reservation.apply", plain, source="/operator").code


def test_a15_a_pool_for_some_tenants_is_reserved_for_these() -> None:
    """The nodes are chosen as for a request of the tenant."""
    cell = cell_of()
    cell.pool(allowed_tenants=["t"])
    cell.node("n1", [device("GPU-a")])

    assert "applied" == _reserve(cell, "R", 10**9, 2 * 10**9)
    set_quota(cell, "other", 1_000)
    assert "no_capacity" == _reserve(cell, "S", 3 * 10**9, 4 * 10**9, tenant="other")


def test_a15_a_pool_that_no_longer_serves_the_tenant_is_told() -> None:
    """A reservation that cannot be kept raises its alarm at once."""
    for rule in ({"allowed_tenants": ["u"]}, {"allowed_modes": ["mig"]}):
        cell = cell_of()
        cell.node("n1", [device("GPU-a")])
        _reserve(cell, "R", 10**9, 2 * 10**9)
        cell.pool(**rule)  # type: ignore[arg-type]
        assert "reservation_short R" in cell.state.alarms
        cell.pool()
        assert "reservation_short R" not in cell.state.alarms


def test_a15_what_a_lease_within_holds_now_is_still_reserved_later() -> None:
    """One device is not reserved twice because a short run within has it now."""
    cell = cell_of()
    cell.node("n1", [device("GPU-a")])
    now_us = cell.now_us
    _reserve(cell, "R", now_us, now_us + 1_000 * _S)
    assert "granted" == cell.submit("short", reservation="R", max_run_s=60).code

    assert "no_capacity" == _reserve(cell, "S", now_us + 100 * _S, now_us + 200 * _S)
    said = {"lease": cell.lease("short").id, "more_s": 600}
    assert "applied" == cell.feed("lease.extend", said).code


def test_a15_a_lease_that_stops_on_a_draining_node_leaves_the_reservation_short() -> None:
    """What was in use within is not to be had again there."""
    cell = cell_of()
    cell.node("n1", [device("GPU-a")])
    _reserve(cell, "R", cell.now_us, cell.now_us + 1_000 * _S)
    cell.submit("short", reservation="R", max_run_s=60)
    cell.node_set("n1", "draining")
    cell.tick(cell.now_us + 61 * _S)

    assert "reservation_short R" in cell.state.alarms


def test_a15_reservations_that_overlap_are_counted_together_when_the_second_opens() -> None:
    """The first one is looked at again then: time alone has changed what is needed."""
    cell = cell_of()
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
    cell = cell_of(ordering="backfill")
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
    cell = cell_of(preemption="any-tenant")
    cell.node("n1", [device("GPU-a"), device("GPU-b")])
    cell.submit("low", preemptible=True, task={"id": "x"})
    cell.submit("lower", preemptible=True, task={"id": "y"})
    spread = {"mode": "whole", "spread": "node"}
    assert "reserved" == cell.submit("high", spread, priority=9, task={"id": "web"}).code
    cell.node("n1", [device("GPU-a"), device("GPU-b"), device("GPU-c")])
    assert "granted" == cell.submit("plain", task={"id": "web"}).code

    assert "queued" == state_of(cell, "high")


def test_s2_a_device_that_waits_no_longer_for_a_reboot_is_counted_no_longer() -> None:
    """Also where it reports no profiles any more."""
    cell = cell_of()
    cell.node("n1", [device("GPU-a", mig_pending=True)])
    cell.node("n1", [device("GPU-a")])

    assert not cell.state.index.makers.pending


def test_a15_a_reservation_is_not_replaced_by_another_tenants() -> None:
    """Those who wait within it would run in what is reserved for the other."""
    cell = cell_of()
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
    cell = cell_of(preemption="any-tenant")
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
    cell = cell_of(preemption="any-tenant")
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
    assert "granted" == state_of(cell, "high")
    cell.node("n1", [card | {"slices": []}])
    assert "reserved" == state_of(cell, "low")
    cell.tick(cell.now_us + 301 * _S)

    assert "queued" == state_of(cell, "low")


def test_v1_a_slice_is_made_for_one_of_a_shorter_run_behind_one_who_may_not() -> None:
    """Where a plan forbids a slice to the first, the next ends before the planned start."""
    cell = cell_of(ordering="backfill")
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

    assert ("queued", "reserved") == (state_of(cell, "long"), state_of(cell, "short"))


def test_q6_nobody_goes_where_what_ends_leaves_enough_for_a_gang_in_repair() -> None:
    """One device is kept for the gang, and two become free: the second is waited for (344)."""
    cell = cell_of(preemption="any-tenant")
    cell.node("n1", [device("GPU-a"), device("GPU-b")])
    cell.submit("full")
    cell.node("n2", [device("GPU-c")])
    gang = {"mode": "whole", "nodes": 2, "models": ["H100"]}
    cell.submit("gang", gang, priority=9, retries=1)
    cell.node("n3", [device("GPU-d", model="A10")])
    cell.submit("low", preemptible=True)
    cell.health("GPU-c", "gone")
    cell.answer_all_orders()
    cell.release(cell.lease("full").id)

    assert "queued" == cell.submit("late", priority=5).code
    assert "granted" == cell.lease("low").state
    cell.answer_all_orders()
    assert ("queued", "granted") == (state_of(cell, "gang"), state_of(cell, "late"))


# -- reading a log -------------------------------------------------------------------


def test_s2_a_reader_follows_replicas_that_are_to_be_apart() -> None:
    """Who reads a log keeps no index; who is apart from whom is judged there all the same."""
    cell = cell_of()
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
