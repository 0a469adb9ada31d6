"""What nodes say, at its worst: cards that vanish, move, shrink and lie."""

from __future__ import annotations

import pytest

from ledger.core.state import device_state, slice_state
from ledger.testing import CoreDriver, device, mig_slice

SHARE = {"mode": "share", "gpu_milli": 300, "memory_mib": 20_000}
MIG = {"mode": "mig", "profile": "1g.10gb"}


@pytest.fixture
def cell() -> CoreDriver:
    """A cell of n1 with two whole devices, n2 with one, and n3 with a sliced one."""
    cell = CoreDriver(check=True)
    cell.pool()
    cell.queue()
    cell.quota()
    cell.node("n1", [device("GPU-a"), device("GPU-b")])
    cell.node("n2", [device("GPU-c")])
    cell.node("n3", [sliced("GPU-m", "MIG-1", "MIG-2")])
    return cell


def sliced(uuid: str, *names: str) -> dict[str, object]:
    """Return a device with one-seventh slices side by side."""
    slices = [mig_slice(name, at + 1, at) for at, name in enumerate(names)]
    return device(uuid, mig_enabled=True, compute_slices=7, slices=slices)


def test_a_card_that_vanishes_while_it_is_cleaned(cell: CoreDriver) -> None:
    """It is missing, not free; back again it is cleaned before it is leased (A11)."""
    cell.submit("r1")
    (unit,) = next(iter(cell.lease("r1").parts.values())).units
    cell.release(cell.lease("r1").id)
    assert "GPU-c" == unit
    cell.node("n2", [])
    assert "missing" == device_state(cell.state.devices[unit])
    assert 1 == cell.answer_all_orders(), "the order that was out is answered still"
    cell.node("n2", [device("GPU-c")])
    assert "available" == device_state(cell.state.devices[unit])


def test_a_card_that_is_back_after_its_lease_ended(cell: CoreDriver) -> None:
    """Gone while it was leased: the lease ends, and the card is asked for proof when it is back."""
    cell.submit("r1")
    cell.node("n2", [])
    cell.answer_all_orders()
    assert not cell.state.orders, "there is nothing to clean while it is away"
    cell.node("n2", [device("GPU-c")])
    assert "cleaning" == device_state(cell.state.devices["GPU-c"])
    assert "granted" == cell.submit("r2", {"mode": "whole", "count": 2}).code
    assert "queued" == cell.submit("r3").code
    cell.answer_all_orders()
    assert ["GPU-c"] == cell.lease("r3").parts["n2"].units


def test_a_card_moves_while_its_clean_order_is_out(cell: CoreDriver) -> None:
    """Only the node that has it now can prove it clean; the old node's word frees nothing."""
    cell.submit("r1")
    cell.release(cell.lease("r1").id)
    (old,) = cell.state.orders
    cell.node("n2", [])
    cell.node("n1", [device("GPU-a"), device("GPU-b"), device("GPU-c")])
    assert {"n1", "n2"} == {order.node for order in cell.state.orders.values()}
    cell.order_done(old)
    assert "cleaning" == device_state(cell.state.devices["GPU-c"])
    assert 1 == cell.answer_all_orders()
    assert "available" == device_state(cell.state.devices["GPU-c"])


def test_a_card_moves_while_its_task_is_stopped(cell: CoreDriver) -> None:
    """The old node ends the task, the new one cleans; a failed clean of the old shuts nothing."""
    cell.submit("r1")
    cell.node("n2", [])
    cell.node("n1", [device("GPU-a"), device("GPU-b"), device("GPU-c")])
    (stop,) = cell.state.orders.values()
    assert ("stop", "n2") == (stop.kind, stop.node)
    cell.order_failed(stop.id)
    assert cell.state.devices["GPU-c"].quarantine is None
    (clean,) = cell.state.orders.values()
    assert ("clean", "n1") == (clean.kind, clean.node)
    cell.order_done(clean.id)
    assert "available" == device_state(cell.state.devices["GPU-c"])


def test_a_sliced_card_moves(cell: CoreDriver) -> None:
    """Its slices end, their leases with them, on the node that had them."""
    cell.submit("r1", MIG)
    lease = cell.lease("r1").id
    cell.node("n3", [])
    cell.node("n2", [device("GPU-c"), sliced("GPU-m", "MIG-1", "MIG-2")])
    cell.answer_all_orders()
    assert lease not in cell.state.leases
    assert {"n2"} == {cell.state.devices[one.device].node for one in cell.state.slices.values()}
    assert ["present", "present"] == [slice_state(one) for one in cell.state.slices.values()]


def test_the_same_mig_uuid_is_another_slice(cell: CoreDriver) -> None:
    """A slice that comes back with the same MIG UUID is a lifetime of its own."""
    cell.submit("r1", MIG)
    lease = cell.lease("r1").id
    before = set(cell.state.slices)
    cell.node("n3", [sliced("GPU-m")])
    assert lease not in cell.state.leases
    assert "slice-gone" == cell.state.seen[cell.key("r1")][3]
    cell.node("n3", [sliced("GPU-m", "MIG-1", "MIG-2")])
    assert before.isdisjoint(cell.state.slices)
    cell.submit("r2", MIG)
    assert "already_released" == cell.release(lease).code
    assert 1 == len(cell.state.leases)


def test_two_slices_of_one_lease_vanish(cell: CoreDriver) -> None:
    """The lease ends once, its part ends once."""
    cell.submit("r1", MIG | {"count": 2})
    gone = cell.node("n3", [sliced("GPU-m")])
    kinds = [event["type"] for event in gone.events]
    assert (1, 1) == (kinds.count("part.ended"), kinds.count("lease.ended"))
    assert 2 == kinds.count("slice.gone")


def test_two_slices_vanish_of_a_lease_on_two_nodes(cell: CoreDriver) -> None:
    """The part on this node ends once; the other node is told to stop."""
    cell.node("n4", [sliced("GPU-n", "MIG-1")])
    cell.submit("r1", MIG | {"count": 3})
    gone = cell.node("n3", [sliced("GPU-m")])
    assert ["n3"] == [one["node"] for one in gone.events if one["type"] == "part.ended"]
    assert ("stopping", "slice-gone") == (cell.lease("r1").state, cell.lease("r1").reason)
    assert 2 == cell.answer_all_orders(), "n4 stops, then cleans"
    assert not cell.state.leases


def test_slices_that_cannot_be_are_not_leased(cell: CoreDriver) -> None:
    """Overlapping slices shut the card away until they are right and an operator says so (A2)."""
    wrong = sliced("GPU-m") | {"slices": [mig_slice("MIG-1", 1, 0), mig_slice("MIG-2", 2, 0)]}
    cell.node("n3", [wrong])
    assert "overlap" in str(cell.state.devices["GPU-m"].quarantine)
    assert "queued" == cell.submit("r1", MIG).code
    refused = cell.clear("GPU-m")
    assert "illegal_transition" == refused.code
    assert "overlap" in str(refused.numbers["fault"])
    cell.node("n3", [sliced("GPU-m", "MIG-1", "MIG-2")])
    assert "queued" == cell.state.requests[cell.key("r1")].state
    cell.clear("GPU-m")
    assert "granted" == cell.state.requests[cell.key("r1")].state


@pytest.mark.parametrize(
    ("start", "more"),
    [(1, {"compute_slices": 7}), (1, {"memory_mib": 81_000}), (0, {"size": 7})],
)
def test_slices_beyond_the_card_are_not_leased(
    cell: CoreDriver, start: int, more: dict[str, int]
) -> None:
    """More compute slices, memory or places than the card has is impossible too."""
    slices = [mig_slice("MIG-8", 8, 3), mig_slice("MIG-9", 9, start, **more)]
    cell.node("n4", [sliced("GPU-n") | {"slices": slices}])
    assert "quarantined" == device_state(cell.state.devices["GPU-n"])
    assert "queued" == cell.submit("r1", MIG | {"count": 3}).code


def test_compute_instances_share_their_instance(cell: CoreDriver) -> None:
    """Two compute instances of one GPU instance share its place and memory: that can be."""
    shape = {"profile": "1c.2g.20gb", "size": 2, "memory_mib": 19_968}
    slices = [mig_slice(f"MIG-{ci}", 5, 0, ci=ci, **shape) for ci in (0, 1)]
    cell.node("n3", [sliced("GPU-m") | {"slices": slices}])
    assert cell.state.devices["GPU-m"].quarantine is None


def test_two_shares_on_a_card_that_is_put_away(cell: CoreDriver) -> None:
    """One share's clean fails: the other goes on, nothing new comes, then the word is given."""
    cell.submit("s1", SHARE)
    cell.submit("s2", SHARE)
    (node,) = cell.lease("s1").parts
    (unit,) = cell.lease("s1").parts[node].units
    cell.release(cell.lease("s1").id)
    (order,) = cell.state.orders
    cell.order_failed(order, "a process is left")
    assert "quarantined" == device_state(cell.state.devices[unit])
    assert "granted" == cell.lease("s2").state
    cell.submit("s3", SHARE)
    assert [unit] != next(iter(cell.lease("s3").parts.values())).units
    cell.clear(unit)
    assert "partly-leased" == device_state(cell.state.devices[unit])
    cell.submit("s4", SHARE | {"gpu_milli": 700})
    assert "not_quarantined" == cell.clear(unit).code


def test_a_card_that_shrinks_under_its_shares(cell: CoreDriver) -> None:
    """Reported with less memory than is leased: shut away, its leases go on, none comes (A9)."""
    cell.submit("s1", SHARE | {"memory_mib": 50_000})
    (node,) = cell.lease("s1").parts
    assert "n2" == node
    cell.node("n2", [device("GPU-c", memory_mib=40_000)])
    assert "quarantined" == device_state(cell.state.devices["GPU-c"])
    assert "illegal_transition" == cell.clear("GPU-c").code
    cell.release(cell.lease("s1").id)
    cell.answer_all_orders()
    assert "applied" == cell.clear("GPU-c").code
    assert "available" == device_state(cell.state.devices["GPU-c"])


def test_another_model_while_it_is_leased(cell: CoreDriver) -> None:
    """The lease keeps the card; afterwards it is counted as what it is now."""
    cell.submit("r1")
    cell.node("n2", [device("GPU-c", model="H200", memory_mib=143_771)])
    assert ["GPU-c"] == cell.lease("r1").parts["n2"].units
    cell.release(cell.lease("r1").id)
    cell.answer_all_orders()
    assert "granted" == cell.submit("r2", {"mode": "whole", "models": ["H200"]}).code


def test_a_restart_ends_what_ran_and_cleans(cell: CoreDriver) -> None:
    """A new incarnation: leases end, old orders are void, the old boot is not heard again."""
    cell.submit("r1")
    lease = cell.lease("r1").id
    cell.reclaim(lease)
    (stop,) = cell.state.orders
    cell.node("n2", [device("GPU-c")], incarnation="b2")
    assert lease not in cell.state.leases
    assert "stale_incarnation" == cell.says("order.done", "n2", incarnation="b1", order=stop).code
    assert "already_answered" == cell.says("order.done", "n2", order=stop).code
    assert "stale_incarnation" == cell.node("n2", [], incarnation="b1", epoch=9).code
    assert 1 == cell.answer_all_orders()
    assert "available" == device_state(cell.state.devices["GPU-c"])


def test_an_earlier_start_of_the_agent_is_not_heard(cell: CoreDriver) -> None:
    """Within an incarnation the agent's starts are counted, and an old one is refused."""
    cell.node("n2", [device("GPU-c")], epoch=3)
    assert "stale_incarnation" == cell.node("n2", [], epoch=2).code
    assert "available" == device_state(cell.state.devices["GPU-c"])


def test_an_operator_drains_a_silent_node(cell: CoreDriver) -> None:
    """The word outlives the silence: back again the node is draining, and gets no lease."""
    cell.silent("n2")
    assert "applied" == cell.node_set("n2", "draining").code
    assert "silent" == cell.state.nodes["n2"].state
    assert "unchanged" == cell.node_set("n2", "draining").code
    cell.back("n2")
    assert "draining" == cell.state.nodes["n2"].state
    cell.submit("r1", {"mode": "whole", "nodes": 2})
    assert "queued" == cell.state.requests[cell.key("r1")].state
    cell.node_set("n2", "online")
    assert "granted" == cell.state.requests[cell.key("r1")].state


def test_draining_lets_what_runs_run(cell: CoreDriver) -> None:
    """Draining takes nothing away and gives nothing new."""
    cell.submit("r1")
    cell.node_set("n2", "draining")
    assert "granted" == cell.lease("r1").state
    cell.release(cell.lease("r1").id)
    cell.answer_all_orders()
    assert "queued" == cell.submit("r2", {"mode": "whole", "nodes": 2}).code


def test_a_node_that_changes_its_pool(cell: CoreDriver) -> None:
    """Its devices, shares and slices are of the new pool only, and it waits for an unknown one."""
    cell.submit("s1", SHARE)
    cell.pool("side")
    cell.node("n2", [device("GPU-c")], pool="side")
    cell.node("n3", [sliced("GPU-m", "MIG-1", "MIG-2")], pool="side")
    assert "queued" == cell.submit("m1", MIG | {"pool": "main"}).code
    assert "granted" == cell.submit("m2", MIG | {"pool": "side"}).code
    cell.node("n2", [device("GPU-c")], pool="nobody")
    assert "registering" == cell.state.nodes["n2"].state
    assert 1 == sum(one.parts.get("n2") is not None for one in cell.state.leases.values())


def test_health_from_the_wrong_mouth(cell: CoreDriver) -> None:
    """Another node's card, an unknown card, and one that is gone are refused by name."""
    assert "wrong_node" == cell.says("device.health", "n1", device="GPU-c", health="gone").code
    said = {"device": "GPU-z", "health": "healthy"}
    assert "unknown_device" == cell.says("device.health", "n1", **said).code
    assert "unknown_node" == cell.says("device.health", "n9", **said).code
    assert "unchanged" == cell.health("GPU-c", "healthy").code
    assert "observed" == cell.health("GPU-c", "gone").code
    assert "illegal_transition" == cell.health("GPU-c", "healthy").code


def test_an_unhealthy_card_keeps_its_lease_and_gets_none(cell: CoreDriver) -> None:
    """Sick is not gone: its lease goes on; no other is granted before it is healthy (A6)."""
    cell.submit("s1", SHARE)
    cell.health("GPU-c", "unhealthy")
    cell.submit("s2", SHARE)
    assert "n2" not in cell.lease("s2").parts
    assert "granted" == cell.lease("s1").state
    cell.health("GPU-c", "healthy")
    cell.submit("s3", SHARE | {"gpu_milli": 700})
    assert ["n1"] == list(cell.lease("s3").parts) or ["n2"] == list(cell.lease("s3").parts)


def test_orders_are_answered_by_their_node(cell: CoreDriver) -> None:
    """Another node's answer, an unknown order and a copy change nothing."""
    cell.submit("r1")
    cell.release(cell.lease("r1").id)
    (order,) = cell.state.orders
    assert "wrong_node" == cell.says("order.done", "n1", order=order).code
    assert "unknown_order" == cell.says("order.done", "n2", order="c-o999").code
    assert "unknown_order" == cell.says("order.done", "n2", order="d-o1").code
    assert "observed" == cell.order_done(order).code
    assert "already_answered" == cell.says("order.done", "n2", order=order).code


def test_tasks_are_told_by_their_node(cell: CoreDriver) -> None:
    """A node without a part of the lease is refused; started twice is nothing new."""
    cell.submit("r1")
    lease = cell.lease("r1").id
    assert "wrong_node" == cell.task_started(lease, "n1").code
    assert "unknown_lease" == cell.task_started("none/1", "n1").code
    assert "observed" == cell.task_started(lease, "n2").code
    assert "unchanged" == cell.task_started(lease, "n2").code
    assert "running" == cell.lease("r1").state


def test_a_gang_ends_when_its_last_task_has(cell: CoreDriver) -> None:
    """Completed on one node waits for the other; failed on one stops the other."""
    gang = {"mode": "whole", "nodes": 2}
    cell.submit("g1", gang)
    lease = cell.lease("g1").id
    cell.task_ended(lease, "n1")
    assert "unchanged" == cell.task_ended(lease, "n1").code
    assert lease in cell.state.leases
    cell.task_ended(lease, "n2")
    assert "completed" == cell.state.seen[cell.key("g1")][3]
    cell.answer_all_orders()
    cell.submit("g2", gang)
    lease = cell.lease("g2").id
    cell.task_ended(lease, "n1", "failed")
    assert ("stopping", "failed") == (cell.lease("g2").state, cell.lease("g2").reason)
    cell.answer_all_orders()
    assert "failed" == cell.state.seen[cell.key("g2")][3]


def test_c35_a_node_may_report_before_there_is_any_policy() -> None:
    """C35: a node that is there before its cell is parked, and serves once its pool exists."""
    driver = CoreDriver(check=True)
    driver.node("n1", [device("GPU-1")])

    early = driver.state.nodes["n1"].state
    driver.pool()

    assert ("registering", "online") == (early, driver.state.nodes["n1"].state)
