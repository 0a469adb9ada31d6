"""The ledger plans and orders MIG changes: complete plans, promised places, belief in reports."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from ledger.core.digest import digest, load_fold, save_fold
from ledger.core.outbox import messages, open_orders
from ledger.explain import why
from ledger.testing import CoreDriver, device, mig_slice

#: An H100 and an A30, as their drivers report them: name -> size, compute, MiB, starts, most.
H100 = {
    "1g.10gb": (1, 1, 9_856, (0, 1, 2, 3, 4, 5, 6), 7),
    "1g.20gb": (2, 1, 20_096, (0, 2, 4, 6), 4),
    "2g.20gb": (2, 2, 20_096, (0, 2, 4), 3),
    "3g.40gb": (4, 3, 40_448, (0, 4), 2),
    "4g.40gb": (4, 4, 40_448, (0,), 1),
    "7g.80gb": (8, 7, 81_152, (0,), 1),
}
A30 = {
    "1g.6gb": (1, 1, 5_952, (0, 1, 2, 3), 4),
    "2g.12gb": (2, 2, 11_968, (0, 2), 2),
    "4g.24gb": (4, 4, 24_000, (0,), 1),
}


def profiles(kind: dict[str, tuple[int, int, int, tuple[int, ...], int]]) -> list[dict[str, Any]]:
    """Return profiles as an inventory reports them."""
    return [
        {
            "profile": name,
            "size": size,
            "compute_slices": compute,
            "memory_mib": mib,
            "starts": list(starts),
            "most": most,
        }
        for name, (size, compute, mib, starts, most) in kind.items()
    ]


def h100(uuid: str, *slices: dict[str, Any], **more: object) -> dict[str, Any]:
    """Return an H100 in MIG mode with these slices on it."""
    return (
        device(
            uuid, mig_enabled=True, compute_slices=7, profiles=profiles(H100), slices=list(slices)
        )
        | more
    )


def a30(uuid: str, *slices: dict[str, Any]) -> dict[str, Any]:
    """Return an A30 in MIG mode with these slices on it."""
    said = {"model": "A30", "memory_mib": 24_576, "profiles": profiles(A30), "compute_slices": 4}
    return device(uuid, mig_enabled=True, slices=list(slices), **said)


def piece(
    profile: str,
    start: int,
    gi: int | None = None,
    kind: dict[str, tuple[int, int, int, tuple[int, ...], int]] = H100,
) -> dict[str, Any]:
    """Return a slice as its node reports it."""
    size, compute, mib, _, _ = kind[profile]
    number = start + 1 if gi is None else gi
    facts = {"profile": profile, "size": size, "compute_slices": compute, "memory_mib": mib}
    return mig_slice(f"MIG-{number}-{start}", number, start, **facts)


def cell_with(*devices: dict[str, Any], policy: str = "create", **pool: Any) -> CoreDriver:
    """Return a cell with one node that has these devices."""
    cell = CoreDriver(check=True)
    cell.pool(partition=policy, **pool)
    cell.queue()
    cell.quota()
    cell.node("n1", devices)
    return cell


def ask(cell: CoreDriver, name: str, profile: str, count: int = 1, **more: Any) -> str:
    """Ask for slices; return the code."""
    wanted = {"mode": "mig", "profile": profile, "count": count}
    return cell.submit(name, wanted, **more).code


def steps(cell: CoreDriver) -> list[tuple[str, str, int]]:
    """Return what the open partition orders tell the nodes to do, as (do, profile, start)."""
    return [
        (one["do"], one["profile"], one["start"])
        for order in cell.state.orders.values()
        for one in order.steps
    ]


def carry_out(
    cell: CoreDriver, kind: dict[str, tuple[int, int, int, tuple[int, ...], int]] = H100
) -> list[str]:
    """Let the node carry out every open partition order; return the codes of the events."""
    said: list[str] = []
    for order in list(cell.state.orders.values()):
        if order.kind != "partition":
            continue
        made = [
            piece(one["profile"], one["start"], gi=20 + len(said) + one["start"], kind=kind)
            for one in order.steps
            if one["do"] == "create"
        ]
        done = cell.says("order.done", order.node, order=order.id, slices=made)
        said += [event["type"] for event in done.events]
    return said


def starts(cell: CoreDriver) -> dict[str, list[int]]:
    """Return by profile where slices are."""
    found: dict[str, list[int]] = {}
    for item in cell.state.slices.values():
        found.setdefault(item.profile, []).append(item.start)
    return {name: sorted(where) for name, where in found.items()}


# -- cases from the field -----------------------------------------------------------------


def test_c07_a_requests_one_after_the_other_leave_room_for_the_larger_one() -> None:
    """On four slices, 1g, 1g, 2g: the two small ones share a half, and all three run."""
    cell = cell_with(a30("GPU-a"))
    for name, profile in (("r1", "1g.6gb"), ("r2", "1g.6gb"), ("r3", "2g.12gb")):
        assert "reserved" == ask(cell, name, profile)
        carry_out(cell, A30)
        assert "granted" == cell.state.requests[cell.key(name)].state
    assert {"1g.6gb": [0, 1], "2g.12gb": [2]} == starts(cell)


def test_c07_a_holds_also_when_all_three_come_before_the_first_is_created() -> None:
    """Places are promised from the order on, so later plans build on earlier ones."""
    cell = cell_with(a30("GPU-a"))
    for name, profile in (("r1", "1g.6gb"), ("r2", "1g.6gb"), ("r3", "2g.12gb")):
        assert "reserved" == ask(cell, name, profile)
    assert [0, 1, 2] == sorted(start for _, _, start in steps(cell))
    assert "queued" == ask(cell, "r4", "1g.6gb")
    carry_out(cell, A30)
    assert 3 == len(cell.state.leases)


def test_c07_b_a_whole_layout_is_planned_before_anything_is_created() -> None:
    """1g, 2g and 4g on an empty device of seven: 4g at 0, 2g at 4, 1g at 6, largest first."""
    cell = cell_with(h100("GPU-a"))
    assert "applied" == split(cell, "GPU-a", ["1g.10gb", "2g.20gb", "4g.40gb"])
    assert [
        ("create", "4g.40gb", 0),
        ("create", "2g.20gb", 4),
        ("create", "1g.10gb", 6),
    ] == steps(cell)
    carry_out(cell)
    assert {"4g.40gb": [0], "2g.20gb": [4], "1g.10gb": [6]} == starts(cell)
    for name, profile in (("r1", "1g.10gb"), ("r2", "2g.20gb"), ("r3", "4g.40gb")):
        assert "granted" == ask(cell, name, profile)


def split(cell: CoreDriver, uuid: str, layout: list[str]) -> str:
    """Order a layout as an operator; return the code."""
    plain = {"device": uuid, "layout": layout, "author": "olga", "reason": "smaller jobs"}
    return cell.feed("device.partition", plain, source="/operator").code


def test_c09_a_layout_without_a_busy_slice_is_refused_and_destroys_nothing() -> None:
    """The refusal names the lease; the order, its operator and the reason are on record."""
    cell = cell_with(h100("GPU-a", piece("3g.40gb", 0), piece("3g.40gb", 4)))
    ask(cell, "j1", "3g.40gb")
    lease = cell.lease("j1")
    plain = {"device": "GPU-a", "layout": ["1g.10gb"] * 7, "author": "olga", "reason": "split"}
    refused = cell.feed("device.partition", plain, source="/operator")
    assert "instance_busy" == refused.code
    assert lease.id == refused.numbers["lease"]
    assert refused.recorded
    assert [] == refused.events
    for text in (b"olga", b"split", lease.id.encode()):
        assert text in cell.records[-1]
    assert {"3g.40gb": [0, 4]} == starts(cell)
    assert lease is cell.lease("j1")
    # What the busy slice leaves is the operator's to order.
    assert "applied" == split(cell, "GPU-a", ["3g.40gb", "1g.10gb", "1g.10gb", "1g.10gb"])
    assert 1 == sum(do == "destroy" for do, _, _ in steps(cell))


def test_c09_variant_nothing_is_there_until_the_reboot_and_the_request_knows_why() -> None:
    """Applied is not observed: 0 slices, so nothing is leased, with the reason in a code."""
    cell = cell_with(h100("GPU-a", mig_enabled=False, mig_pending=True))
    waiting = cell.submit("r1", {"mode": "mig", "profile": "1g.10gb"})
    assert ("queued", "partition_pending") == (waiting.code, waiting.numbers["reason"])
    told = why(cell.state, (), cell.key("r1"))
    assert told is not None
    assert "partition change pending reboot on 1 devices" == told.reason
    assert "partition_pending" == split(cell, "GPU-a", ["1g.10gb"])
    assert {} == cell.state.slices
    cell.node("n1", [h100("GPU-a", piece("1g.10gb", 0))], incarnation="b2")
    assert "granted" == cell.state.requests[cell.key("r1")].state


def test_c29_cancelled_while_its_slice_is_created_it_is_removed_and_costs_nothing() -> None:
    """The request ends at once and for ever; its slice goes as soon as it is confirmed."""
    cell = cell_with(h100("GPU-a"))
    assert "reserved" == ask(cell, "r1", "2g.20gb")
    assert 286 == cell.state.quotas["t"].used["gpu"]
    assert "cancelled" == cell.cancel("r1").code
    assert 0 == cell.state.quotas["t"].used.get("gpu", 0)
    assert [0, 1, 0] == [len(cell.state.leases), len(cell.state.orders), len(cell.state.requests)]
    carry_out(cell)
    assert [("destroy", "2g.20gb")] == [(do, profile) for do, profile, _ in steps(cell)]
    assert "queued" == ask(cell, "big", "7g.80gb")
    carry_out(cell)
    assert [("create", "7g.80gb", 0)] == steps(cell)
    assert ["ended", "cancelled"] == [
        "ended",
        cell.state.seen[cell.key("r1")][3],
    ]
    assert 0 == cell.state.seen[cell.key("r1")][4]


def test_c29_also_when_an_inventory_shows_the_slice_first() -> None:
    """Whoever confirms it: it is removed, and not twice."""
    cell = cell_with(h100("GPU-a"))
    ask(cell, "r1", "2g.20gb")
    cell.cancel("r1")
    ((_, _, start),) = steps(cell)
    cell.node("n1", [h100("GPU-a", piece("2g.20gb", start))])
    assert ["create", "destroy"] == [do for do, _, _ in steps(cell)]
    carry_out(cell)
    assert {} == cell.state.slices
    assert {} == cell.state.orders


# -- what a request gets ----------------------------------------------------------------


def test_by_default_nothing_is_made() -> None:
    """A pool that says nothing is as it was."""
    cell = cell_with(h100("GPU-a"), policy="never")
    assert "queued" == ask(cell, "r1", "1g.10gb")
    assert {} == cell.state.orders


def test_a_free_slice_comes_before_a_new_one() -> None:
    """What is there costs nothing."""
    cell = cell_with(h100("GPU-a", piece("1g.10gb", 6)), h100("GPU-b"))
    assert "granted" == ask(cell, "r1", "1g.10gb")
    assert "reserved" == ask(cell, "r2", "1g.10gb")


def test_v1_free_slices_of_a_class_without_quota_keep_none_from_being_made() -> None:
    """The quota has no room for the model of the free slice, and room for another's."""
    cell = cell_with(h100("GPU-a", piece("1g.10gb", 0)), a30("GPU-b"))
    none_of = {"limits": [{"resource": "model:H100", "nominal": 0}], "nominal_gpu_milli": 9_000}
    who = {"tenant": "t", "author": "op", "reason": "x"}
    assert "applied" == cell.feed("quota.apply", none_of | who, source="/operator").code

    assert "reserved" == cell.submit("r1", {"mode": "mig", "memory_mib": 5_000, "count": 1}).code
    assert [("create", "1g.6gb")] == [one[:2] for one in steps(cell)]


def test_of_free_slices_the_one_that_others_miss_least_is_taken() -> None:
    """At 6 nothing large could start; at 0 a whole device would be spoilt."""
    cell = cell_with(
        h100("GPU-a", piece("1g.10gb", 0)), h100("GPU-b", piece("1g.10gb", 6)), policy="relayout"
    )
    ask(cell, "r1", "1g.10gb")
    (unit,) = cell.lease("r1").parts["n1"].units
    assert "GPU-b" == cell.state.slices[unit].device


def test_idle_slices_are_destroyed_only_where_the_pool_allows_a_new_layout() -> None:
    """`create` leaves what is there alone; `relayout` makes room, what is busy stays."""
    for policy, code in (("create", "queued"), ("relayout", "reserved")):
        cell = cell_with(h100("GPU-a", *(piece("1g.10gb", at) for at in range(7))), policy=policy)
        ask(cell, "busy", "1g.10gb")
        (unit,) = cell.lease("busy").parts["n1"].units
        mine = cell.state.slices[unit].start
        assert code == ask(cell, "r1", "3g.40gb")
        if code == "reserved":
            gone = [start for do, _, start in steps(cell) if do == "destroy"]
            assert mine not in gone
            carry_out(cell)
            assert "granted" == cell.state.requests[cell.key("r1")].state
            assert unit in cell.state.slices


def test_the_cheapest_new_layout_is_taken() -> None:
    """One idle slice in the way costs less than two, whatever the names."""
    cell = cell_with(
        h100("GPU-a", piece("2g.20gb", 0), piece("1g.10gb", 2), piece("3g.40gb", 4)),
        h100("GPU-b", piece("3g.40gb", 0), piece("3g.40gb", 4)),
        policy="relayout",
    )
    assert "reserved" == ask(cell, "r1", "4g.40gb")
    (order,) = cell.state.orders.values()
    assert ["GPU-b"] == order.units
    assert [("destroy", "3g.40gb", 0), ("create", "4g.40gb", 0)] == steps(cell)


def test_least_memory_and_compute_get_the_smallest_profile_that_does() -> None:
    """Asked, reserved and delivered are three numbers (M8)."""
    cell = cell_with(h100("GPU-a"))
    wanted = {"mode": "mig", "memory_mib": 12_000, "compute_slices": 1}
    asked = cell.submit("r1", wanted)
    assert "reserved" == asked.code
    received = next(one for one in asked.events if one["type"] == "request.received")
    assert 12_000 == received["need"]["memory_mib"]
    reserved = next(one for one in asked.events if one["type"] == "request.reserved")
    assert 20_096 == reserved["memory_mib"]
    carry_out(cell)
    (unit,) = cell.lease("r1").parts["n1"].units
    assert "1g.20gb" == cell.state.slices[unit].profile
    assert "queued" == cell.submit("r2", {"mode": "mig", "memory_mib": 90_000}).code
    assert "reserved" == cell.submit("r3", {"mode": "mig", "compute_slices": 2}).code
    carry_out(cell)
    assert {"1g.20gb", "2g.20gb"} == set(starts(cell))


def test_several_slices_are_one_plan_over_devices() -> None:
    """All or none, free ones first, one order a device."""
    cell = cell_with(h100("GPU-a", piece("3g.40gb", 4)), h100("GPU-b"))
    assert "reserved" == ask(cell, "r1", "3g.40gb", 4)
    assert 4 == sum(len(units) for units in cell.state.requests[cell.key("r1")].kept.values())
    assert 2 == len(cell.state.orders)
    assert "queued" == ask(cell, "r2", "3g.40gb")
    first, second = list(cell.state.orders.values())
    for order in (first, second):
        assert {} == cell.state.leases
        made = [piece(one["profile"], one["start"]) for one in order.steps]
        cell.says("order.done", "n1", order=order.id, slices=made)
    assert 4 == len(cell.lease("r1").parts["n1"].units)


def test_a_plan_that_cannot_give_all_gives_nothing() -> None:
    """Five of a profile of which four fit: nothing is ordered, and the fleets are as before."""
    cell = cell_with(h100("GPU-a"), h100("GPU-b"))
    assert "queued" == ask(cell, "r1", "3g.40gb", 5)
    assert {} == cell.state.orders
    assert "reserved" == ask(cell, "r2", "3g.40gb", 4)


def test_a_quota_bounds_what_is_made() -> None:
    """What is promised counts from the promise on (Q2)."""
    cell = cell_with(h100("GPU-a"))
    cell.quota(nominal_gpu_milli=500)
    assert "reserved" == ask(cell, "r1", "3g.40gb")
    waiting = cell.submit("r2", {"mode": "mig", "profile": "1g.10gb"})
    assert "quota_in_use" == waiting.numbers["reason"]
    assert "rejected" == cell.submit("r3", {"mode": "mig", "profile": "4g.40gb"}).events[0][
        "type"
    ].removeprefix("request.")


def test_a_quota_for_one_model_leaves_the_other() -> None:
    """The smaller card comes first, and is not made into anything that its quota forbids."""
    cell = cell_with(a30("GPU-a"), h100("GPU-b"))
    limits = [{"resource": "model:A30", "nominal": 0}]
    plain = {"tenant": "t", "nominal_gpu_milli": 9_000, "limits": limits}
    cell.feed("quota.apply", plain | {"author": "op", "reason": "x"}, source="/operator")
    assert "reserved" == cell.submit("r1", {"mode": "mig", "compute_slices": 1}).code
    (order,) = cell.state.orders.values()
    assert ["GPU-b"] == order.units


def test_cpu_beside_decides_where_a_slice_is_made() -> None:
    """A node without room beside its devices makes none."""
    cell = cell_with()
    cell.node("n1", [h100("GPU-a")], cpu_milli=1_000)
    cell.node("n2", [h100("GPU-b")], cpu_milli=9_000)
    assert "reserved" == ask(cell, "r1", "1g.10gb", beside={"cpu_milli": 4_000})
    (order,) = cell.state.orders.values()
    assert ["GPU-b"] == order.units


# -- what can go wrong --------------------------------------------------------------------


def fail(cell: CoreDriver) -> None:
    """Let the node say that it could not."""
    (order,) = cell.state.orders.values()
    cell.says("order.failed", "n1", order=order.id, reason="insufficient resources")


def time_out(cell: CoreDriver) -> None:
    """Let the time pass in which the node should have answered."""
    cell.tick(at_us=cell.now_us + 301_000_000)


def do_nothing(cell: CoreDriver) -> None:
    """Let the node report success and no slice."""
    (order,) = cell.state.orders.values()
    cell.says("order.done", "n1", order=order.id)


def lose(cell: CoreDriver) -> None:
    """Lose the node."""
    cell.silent("n1")
    cell.tick(at_us=cell.now_us + 61_000_000)


def restart(cell: CoreDriver) -> None:
    """Restart the node, which comes back with another device."""
    cell.node("n1", [device("GPU-z")], incarnation="b2")


def pull(cell: CoreDriver) -> None:
    """Pull the card."""
    cell.health("GPU-a", "gone")


def squat(cell: CoreDriver) -> None:
    """Let somebody create another slice in the place by hand."""
    cell.node("n1", [h100("GPU-a", piece("7g.80gb", 0))])


@pytest.mark.parametrize("what", [fail, time_out, do_nothing, lose, restart, pull, squat])
def test_a_plan_that_comes_to_nothing_leaks_nothing(what: Any) -> None:
    """The request waits again with the reason on record, and nothing is ordered anew."""
    cell = cell_with(h100("GPU-a"))
    ask(cell, "r1", "3g.40gb")
    what(cell)
    assert "queued" == cell.state.requests[cell.key("r1")].state
    assert 0 == cell.state.quotas["t"].used.get("gpu", 0)
    assert {} == cell.state.orders
    assert all(one.mig_uuid for one in cell.state.slices.values())
    assert b'"request.unreserved"' in b"".join(cell.records)


def reopened(cell: CoreDriver) -> list[dict[str, Any]]:
    """Return the events that let devices be partitioned again."""
    events = [one for value in cell.records for one in orjson.loads(value).get("events", ())]
    return [one for one in events if one["type"] == "device.reopened"]


@pytest.mark.parametrize("what", [fail, time_out, do_nothing])
def test_a_device_that_failed_is_asked_again_when_its_node_finds_it_well(what: Any) -> None:
    """A failure that passes needs no person; the event has the reading, and what is there."""
    cell = cell_with(h100("GPU-a"))
    ask(cell, "r1", "3g.40gb")
    what(cell)
    failed_us = cell.now_us
    assert {} == cell.state.orders
    assert "partition_failed GPU-a" in cell.state.alarms
    cell.node("n1", [h100("GPU-a")])
    assert [
        {
            "type": "device.reopened",
            "device": "GPU-a",
            "failures": 1,
            "failed_us": failed_us,
            "evidence": {"reading": "node.inventory", "slices": 0, "layout": ""},
        }
    ] == reopened(cell)
    assert [("create", "3g.40gb")] == [(do, profile) for do, profile, _ in steps(cell)]
    carry_out(cell)
    assert "granted" == cell.state.requests[cell.key("r1")].state
    assert {} == cell.state.partition_failures


def test_a_device_that_always_fails_is_not_asked_as_fast_as_it_answers() -> None:
    """After the second failure in a row it is left alone for a minute, then for twice as long."""
    cell = cell_with(h100("GPU-a"))
    ask(cell, "r1", "3g.40gb")
    waits_s = []
    for _ in range(9):
        fail(cell)
        begun_us = cell.now_us
        while not cell.state.orders:
            cell.tick(at_us=cell.now_us + 5_000_000)
            cell.node("n1", [h100("GPU-a")])
        waits_s.append((cell.now_us - begun_us) // 5_000_000 * 5)
    assert [5, 60, 120, 240, 480, 960, 1920, 3600, 3600] == waits_s
    fail(cell)
    assert "applied" == cell.clear("GPU-a").code
    assert cell.state.orders, "an operator's word counts at once"
    assert {} == cell.state.partition_failures


@pytest.mark.parametrize("health", ["unhealthy", "unknown"])
def test_a_device_in_doubt_stays_shut_until_its_node_finds_it_well(health: str) -> None:
    """What could not be taken back keeps it unhealthy, and a device that hangs is unknown."""
    cell = cell_with(h100("GPU-a"))
    ask(cell, "r1", "3g.40gb")
    cell.health("GPU-a", health)
    fail(cell)
    cell.node("n1", [h100("GPU-a") | {"health": health}])
    assert [] == reopened(cell)
    assert "partition_failed GPU-a" in cell.state.alarms
    cell.health("GPU-a", "healthy")
    assert ["device.health"] == [one["evidence"]["reading"] for one in reopened(cell)]
    assert cell.state.orders


def test_another_boot_has_no_failures_behind_it() -> None:
    """What was half made is gone with the boot, and the next failure is a first one."""
    cell = cell_with(h100("GPU-a"))
    ask(cell, "r1", "3g.40gb")
    fail(cell)
    cell.node("n1", [h100("GPU-a")], incarnation="b2")
    assert {} == cell.state.partition_failures
    assert cell.state.orders


def test_another_device_is_tried_at_once() -> None:
    """A failure is the device's, not the request's."""
    cell = cell_with(h100("GPU-a"), h100("GPU-b"))
    ask(cell, "r1", "3g.40gb")
    (first,) = [order.units for order in cell.state.orders.values()]
    fail(cell)
    (second,) = [order.units for order in cell.state.orders.values()]
    assert first != second


def test_what_a_late_node_has_made_is_believed_when_it_reports_it() -> None:
    """The order is given up, the slice is there all the same: it is free, and is used."""
    cell = cell_with(h100("GPU-a"))
    ask(cell, "r1", "3g.40gb")
    ((_, _, start),) = steps(cell)
    time_out(cell)
    cell.node("n1", [h100("GPU-a", piece("3g.40gb", start))])
    assert "granted" == cell.state.requests[cell.key("r1")].state


def test_what_was_to_be_destroyed_is_nobodys_until_its_node_has_reported_it() -> None:
    """After a time-out it may go at any moment: it is leased only once it is seen again."""
    cell = cell_with(h100("GPU-a", piece("3g.40gb", 0)), policy="relayout")
    ask(cell, "r1", "7g.80gb")
    time_out(cell)
    assert "queued" == ask(cell, "r2", "3g.40gb")
    cell.cancel("r1")
    assert "queued" == cell.state.requests[cell.key("r2")].state
    cell.node("n1", [h100("GPU-a", piece("3g.40gb", 0))])
    assert "granted" == cell.state.requests[cell.key("r2")].state


def test_an_inventory_from_before_the_change_changes_nothing() -> None:
    """It shows what is to go and not what is to come; the order is still open."""
    before = h100("GPU-a", piece("3g.40gb", 0))
    cell = cell_with(before, policy="relayout")
    ask(cell, "r1", "7g.80gb")
    orders = list(cell.state.orders)
    cell.node("n1", [before])
    assert orders == list(cell.state.orders)
    assert "reserved" == cell.state.requests[cell.key("r1")].state
    carry_out(cell)
    assert "granted" == cell.state.requests[cell.key("r1")].state


def test_an_inventory_that_shows_the_new_slice_is_as_good_as_the_answer() -> None:
    """Whichever comes first; the other changes nothing."""
    cell = cell_with(h100("GPU-a"))
    ask(cell, "r1", "3g.40gb")
    ((_, _, start),) = steps(cell)
    cell.node("n1", [h100("GPU-a", piece("3g.40gb", start))])
    lease = cell.lease("r1")
    carry_out(cell)
    assert lease is cell.lease("r1")
    assert {} == cell.state.orders


def test_a_slice_of_another_size_than_was_promised_is_not_forced_on_the_request() -> None:
    """What the node reports is believed, and what it counts for is worked out again."""
    cell = cell_with(h100("GPU-a"))
    ask(cell, "r1", "3g.40gb")
    (order,) = cell.state.orders.values()
    made = piece("3g.40gb", order.steps[0]["start"]) | {"memory_mib": 39_000}
    cell.says("order.done", "n1", order=order.id, slices=[made])
    granted = cell.state.requests[cell.key("r1")]
    assert granted.charge is not None
    assert ("granted", 39_000) == (granted.state, granted.charge.memory_mib)


# -- orders, alarms, records --------------------------------------------------------------


def test_an_order_is_said_again_after_a_load_with_all_its_steps() -> None:
    """It is made of the state alone."""
    cell = cell_with(h100("GPU-a", piece("3g.40gb", 0)), policy="relayout")
    asked = cell.submit("r1", {"mode": "mig", "profile": "7g.80gb"})
    said = [one for one in messages(cell.state, asked, "events/0@1") if one[0] == "orders"]
    assert said == open_orders(cell.state)
    ((_, node, _, plain),) = said
    assert ("n1", "partition", ["GPU-a"]) == (node, plain["kind"], plain["units"])
    assert [
        {"do": "destroy", "profile": "3g.40gb", "start": 0, "mig_uuid": "MIG-1-0"},
        {"do": "create", "profile": "7g.80gb", "start": 0},
    ] == plain["steps"]
    loaded = load_fold(save_fold(cell.fold)).ready()
    assert digest(loaded.cells) == cell.digest()
    assert said == open_orders(loaded.cell("c"))


def test_many_slices_on_a_device_raise_an_alarm_once_while_they_are_there() -> None:
    """More than four is warned of; a pool may say otherwise."""
    five = [piece("1g.10gb", at) for at in range(5)]
    cell = cell_with(h100("GPU-a", *five))
    assert "many_slices GPU-a" in cell.state.alarms
    records = len(cell.records)
    cell.node("n1", [h100("GPU-a", *five)])
    assert records == len(cell.records)
    cell.node("n1", [h100("GPU-a", *five[:4])])
    assert "many_slices GPU-a" not in cell.state.alarms
    ask(cell, "r1", "1g.10gb", 5)
    assert "many_slices GPU-a" in cell.state.alarms
    assert {} == cell_with(h100("GPU-a", *five), slices_warning=0).state.alarms


def test_a_layout_is_refused_for_what_it_is() -> None:
    """Unknown devices, devices that are not in MIG mode, layouts that cannot be."""
    cell = cell_with(h100("GPU-a", piece("1g.10gb", 0)), device("GPU-b"))
    assert "unknown_device" == split(cell, "GPU-x", [])
    assert "not_partitionable" == split(cell, "GPU-b", [])
    assert "not_a_layout" == split(cell, "GPU-a", ["7g.80gb", "1g.10gb"])
    assert "not_a_layout" == split(cell, "GPU-a", ["9g.90gb"])
    assert "unchanged" == split(cell, "GPU-a", ["1g.10gb"])
    assert "applied" == split(cell, "GPU-a", ["3g.40gb"])
    assert "instance_busy" == split(cell, "GPU-a", ["7g.80gb"])


def test_what_is_idle_is_kept_where_the_layout_has_a_place_for_it() -> None:
    """A change does as little as it can."""
    cell = cell_with(h100("GPU-a", piece("3g.40gb", 4)))
    split(cell, "GPU-a", ["3g.40gb", "1g.10gb"])
    assert [("create", "1g.10gb", 0)] == steps(cell)


def test_two_plans_never_have_one_place() -> None:
    """A device that has been promised to its last slice takes no more (A2, A3)."""
    cell = cell_with(h100("GPU-a"), policy="relayout")
    for number in range(3):
        assert "reserved" == ask(cell, f"r{number}", "2g.20gb")
    assert "reserved" == ask(cell, "r3", "1g.10gb")
    assert "queued" == ask(cell, "r4", "1g.10gb")
    assert "queued" == ask(cell, "r5", "7g.80gb")
    carry_out(cell)
    assert 4 == len(cell.state.leases)


def test_a_device_on_which_something_is_destroyed_takes_no_other_plan_until_that_is_over() -> None:
    """What is there is known again when its node has answered; then who waits is served."""
    small = [piece("1g.10gb", at) for at in (0, 2, 4)]
    cell = cell_with(h100("GPU-a", *small), policy="relayout")
    assert "reserved" == ask(cell, "r1", "2g.20gb")
    assert "queued" == ask(cell, "r2", "1g.20gb")
    carry_out(cell)
    assert [("create", "1g.20gb", 6)] == steps(cell)


def test_an_idle_slice_that_is_kept_for_somebody_is_not_in_anybodys_way() -> None:
    """One of two slices is free and waits with its request for the other, whose lease ends."""
    cell = cell_with(h100("GPU-a", piece("3g.40gb", 0), piece("3g.40gb", 4)), policy="relayout")
    cell.queue(preemption="any-tenant")
    assert "granted" == ask(cell, "low", "3g.40gb", preemptible=True)
    assert "reserved" == ask(cell, "high", "3g.40gb", 2, priority=5)
    assert "queued" == ask(cell, "r3", "2g.20gb")
    cell.answer_all_orders()
    assert 2 == len(cell.lease("high").parts["n1"].units)


def test_a_slice_that_was_not_proved_clean_is_not_destroyed() -> None:
    """What is in quarantine is an operator's to judge (A11)."""
    cell = cell_with(h100("GPU-a", piece("3g.40gb", 0)), policy="relayout")
    ask(cell, "r1", "3g.40gb")
    cell.release(cell.lease("r1").id)
    cell.order_failed(next(iter(cell.state.orders)))
    assert "queued" == ask(cell, "r2", "7g.80gb")
    assert "instance_busy" == split(cell, "GPU-a", ["7g.80gb"])
    cell.clear("GPU-a")
    assert ["destroy", "create"] == [do for do, _, _ in steps(cell)]


def test_a_slice_that_becomes_idle_makes_room_for_who_waits() -> None:
    """Proved clean, it may be destroyed: in that decision, not at the next tick."""
    cell = cell_with(h100("GPU-a", piece("3g.40gb", 0)), policy="relayout")
    ask(cell, "r1", "3g.40gb")
    assert "queued" == ask(cell, "r2", "7g.80gb")
    cell.release(cell.lease("r1").id)
    assert "queued" == cell.state.requests[cell.key("r2")].state
    clean = next(iter(cell.state.orders))
    cell.order_done(clean)
    assert [("destroy", "3g.40gb", 0), ("create", "7g.80gb", 0)] == steps(cell)


def test_a_policy_that_changes_is_in_force_at_once() -> None:
    """Who waits is served in the decision that allows it."""
    cell = cell_with(h100("GPU-a"), policy="never")
    ask(cell, "r1", "3g.40gb")
    cell.pool(partition="create")
    assert "reserved" == cell.state.requests[cell.key("r1")].state


def test_why_names_the_policy_that_would_make_the_slices() -> None:
    """The pool makes none, its devices have room: that is the operator's remedy, and it works."""
    broken = h100("GPU-broken") | {"health": "unhealthy"}
    cell = cell_with(h100("GPU-a", piece("1g.10gb", 0)), broken, policy="never")
    assert "queued" == ask(cell, "two", "1g.10gb", 2)
    assert "queued" == ask(cell, "all", "7g.80gb")
    told = {}
    for name in ("two", "all"):
        found = why(cell.state, (), cell.key(name))
        assert found is not None
        told[name] = [one for one in found.changes if one.kind == "partition"]
        # Nothing of what is asked stands on the broken one, or could.
        assert () == found.out_of_use
    (one,) = told["two"]
    assert ("operator", 6, "create") == (one.who, one.numbers["room"], one.numbers["partition"])
    assert "gpuledger pool apply main --partition create" in one.text
    (other,) = told["all"]
    assert "relayout" == other.numbers["partition"], "the idle slice has to go"
    cell.pool(partition="relayout")
    assert cell.key("two") in {order.request for order in cell.state.orders.values()}
