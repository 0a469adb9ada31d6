"""The agent of a node with GPUs against a ledger: cases from the field, through the real agent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from collectors.agent.agent import NodeOptions
from collectors.agent.lease_work import Patience
from collectors.agent.ledger_clock import learn_time
from collectors.fake_nvml.faults import Fault
from collectors.fake_nvml.gpu import Process as OnGpu
from collectors.fake_nvml.node import make_node
from collectors.nvml.codes import Code
from ledger.core.invariants import check
from ledger.core.state import device_state, slice_state
from ledger.testing import TEAM
from schemas.messages import Order
from tests.node_support import SECOND, Rig, held_by_nobody_seen
from tests.nvml_support import put_slice

if TYPE_CHECKING:
    from collections.abc import Callable

    from collectors.fake_nvml.gpu import FakeGpu

MIG = {"mode": "mig", "profile": "3g.40gb"}


def states(rig: Rig) -> list[str]:
    """Return the state of each device in the ledger, in the order of the node's GPUs."""
    known = rig.cell.state.devices
    return [device_state(known[gpu.uuid]) for gpu in rig.node.gpus]


def lease(rig: Rig, name: str) -> str:
    """Return the lease that a request has now."""
    return rig.cell.lease(f"{TEAM}#{name}").id


async def end(rig: Rig, name: str) -> None:
    """Give a request's lease back, and let all that follows happen."""
    assert "released" == rig.ask("lease.release", {"lease": lease(rig, name)}, source=TEAM)
    await rig.settle()


def busy(gpu: FakeGpu, pid: int = 77, mib: int = 900, **more: Any) -> None:
    """Put a process on a GPU."""
    gpu.processes.append(OnGpu(pid, mib, **more))


# -- start, and differences -------------------------------------------------------------


async def test_a_start_tells_everything_and_then_only_what_differs() -> None:
    """Whole at each start, under the next epoch; health alone; whole when anything else is new."""
    rig = Rig(("H100-80GB", "L40S"), mig=False)
    await rig.start()
    await rig.settle(120)
    assert ["node.inventory"] == rig.types()

    gpu = rig.node.gpus[1]
    gpu.recovery_action = 1
    await rig.settle(20)
    assert ["node.inventory", "device.health"] == rig.types()
    assert (gpu.uuid, "unhealthy") == tuple(
        rig.last("device.health")[name] for name in ("device", "health")
    )
    assert "the driver asks to reset the GPU" == rig.last("device.health")["reason"]
    assert ["available", "unhealthy"] == states(rig)
    gpu.recovery_action = 0
    await rig.settle(20)
    assert "healthy again" == rig.last("device.health")["reason"]

    await rig.restart()
    assert "node.inventory" == rig.types()[-1]
    assert 2 == rig.last("node.inventory")["epoch"]
    assert ["available", "available"] == states(rig)


async def test_the_inventory_is_told_again_every_so_often() -> None:
    """The ledger may have given the node up meanwhile; the same again changes nothing there."""
    rig = Rig(mig=False)
    await rig.start()
    records = len(rig.cell.records)
    await rig.settle(1300)
    assert 3 == rig.types().count("node.inventory")
    assert records == len(rig.cell.records)


async def test_c01_the_index_shifts_after_one_card_disappears() -> None:
    """A lease is on a card, not on its number; the one on the card that is gone has failed."""
    rig = Rig(("L40S",) * 4)
    await rig.start()
    for name in ("f1", "j1", "f2", "j2"):
        rig.submit(name)
    await rig.settle(1)
    held = {
        rig.cell.lease(f"{TEAM}#{name}").parts["n1"].units[0]: name
        for name in ("f1", "j1", "f2", "j2")
    }
    second, fourth = (held[rig.node.gpus[at].uuid] for at in (1, 3))
    for at in (0, 2):
        await end(rig, held[rig.node.gpus[at].uuid])
    rig.node.gpus[1].listed = False
    await rig.restart()
    await rig.settle()

    assert ["available", "missing", "available", "leased"] == states(rig)
    assert 2 == rig.cell.state.devices[rig.node.gpus[3].uuid].index
    assert fourth in [one.rpartition("#")[2].partition("/")[0] for one in rig.cell.state.leases]
    assert f"{TEAM}#{second}" not in rig.cell.state.requests
    assert "device-gone" in [one.get("numbers", {}).get("how") for one in rig.replies]


async def test_c01_an_entry_that_fails_costs_the_others_nothing() -> None:
    """Entry 1 of the listing returns an error: three cards are there."""
    rig = Rig(("L40S",) * 4)
    rig.node.faults = [Fault("nvmlDeviceGetHandleByIndex_v2", Code.UNKNOWN, skip=1, times=1)]
    await rig.start()
    assert 3 == len(rig.last("node.inventory")["devices"])


async def test_a_device_that_hangs_after_a_restart_is_unknown_and_keeps_its_lease() -> None:
    """What was told before is in the journal: a card that cannot be read is not gone."""
    rig = Rig(("L40S", "L40S"))
    await rig.start()
    rig.submit("r1")
    rig.submit("r2")
    await rig.settle(1)
    gpu = rig.node.gpus[0]
    rig.node.faults = [Fault("nvmlDeviceGetName", "hang", gpu=gpu.uuid)]
    await rig.restart()

    assert "unknown" == rig.cell.state.devices[gpu.uuid].health
    assert 2 == len(rig.cell.state.leases)
    rig.node.faults.clear()
    await rig.settle(700)
    assert "healthy" == rig.cell.state.devices[gpu.uuid].health


async def test_a_driver_that_does_not_answer_makes_devices_unknown_and_not_gone() -> None:
    """No inventory is made of nothing; when it works again, so it is told."""
    rig = Rig(("L40S",))
    await rig.start()
    rig.submit("r1")
    await rig.settle(1)
    rig.node.faults = [Fault("nvmlDeviceGetCount_v2", Code.DRIVER_NOT_LOADED)]
    await rig.settle(20)
    assert {"unknown"} == {one.health for one in rig.cell.state.devices.values()}
    assert 1 == len(rig.cell.state.leases)
    rig.node.faults.clear()
    await rig.settle(20)
    assert {"healthy"} == {one.health for one in rig.cell.state.devices.values()}


async def test_c05_two_agents_claim_one_card() -> None:
    """One alarm; what the first has told stands, its lease runs on, and nothing alternates."""
    owner = Rig(("L40S",))
    await owner.start()
    owner.submit("j1")
    await owner.settle(1)
    other = Rig(name="n2", cell=owner.cell, node=owner.node)
    await other.start()
    for _ in range(3):
        for rig in (other, owner):
            rig.agent.retell()
            await rig.settle(1)

    state = owner.cell.state
    assert {"duplicate_device"} == {one.partition(" ")[0] for one in state.alarms}
    alarms = [one for one in owner.cell.records if b"alarm.raised" in one]
    assert 1 == len(alarms)
    assert "n1" == state.devices[owner.node.gpus[0].uuid].node
    assert [] == list(state.nodes["n2"].devices)
    assert ["leased"] == states(owner)
    assert [] == check(state)


async def test_c05_two_agents_of_one_node() -> None:
    """A second agent under the node's own name, from another source, is refused with one alarm."""
    rig = Rig(("L40S",))
    await rig.start()
    plain = {**rig.last("node.inventory"), "devices": [], "epoch": 9}
    for _ in range(2):
        assert "wrong_agent" == rig.ask("node.inventory", plain, source="/nodes/n1/stock-agent")
    assert ["available"] == states(rig)
    assert 1 == len(rig.cell.state.alarms)


# -- partitions ---------------------------------------------------------------------------


async def test_a_slice_is_made_leased_and_given_back() -> None:
    """Asked for and not there: planned, ordered, created, granted, and proved clean."""
    rig = Rig()
    await rig.start()
    assert "reserved" == rig.submit("r1", MIG)
    await rig.settle(1)
    assert rig.real() == rig.believed()
    (unit,) = rig.cell.lease(f"{TEAM}#r1").parts["n1"].units
    granted = next(one for one in rig.replies if one["answer"] == "granted")
    name = rig.cell.state.slices[unit].mig_uuid
    assert name == granted["parts"][0]["environment"]["CUDA_VISIBLE_DEVICES"]
    await end(rig, "r1")

    said = rig.last("order.done")
    assert (0, 26, 26) == tuple(
        said["evidence"][name] for name in ("processes", "memory_mib", "baseline_mib")
    )
    assert {} == rig.cell.state.leases
    assert "granted" == rig.submit("r2", MIG)


async def test_c07_the_two_ones_share_a_half() -> None:
    """A30: 1g, 1g, 2g in this order all run; the ones stand side by side."""
    rig = Rig(("A30-24GB",))
    await rig.start()
    for at, profile in enumerate(("1g.6gb", "1g.6gb", "2g.12gb")):
        rig.submit(f"r{at}", {"mode": "mig", "profile": profile})
        await rig.settle(1)
    assert 3 == len(rig.cell.state.leases)
    assert rig.real() == rig.believed()
    ones = sorted(start for _, name, _, start in rig.real() if name == "1g.6gb")
    assert ones in ([0, 1], [2, 3])


async def test_c07_a_layout_is_created_where_it_was_planned() -> None:
    """One 1g, one 2g and one 4g on an empty card, whatever the order they are named in."""
    rig = Rig()
    await rig.start()
    assert "applied" == rig.layout(0, "1g.10gb", "2g.20gb", "4g.40gb")
    await rig.settle(1)
    assert {"4g.40gb": 0, "2g.20gb": 4, "1g.10gb": 6} == {
        name: start for _, name, _, start in rig.real()
    }


async def test_c09_a_layout_is_refused_while_somebody_is_on_a_slice() -> None:
    """The ledger refuses what it has leased; the node refuses what it sees in use."""
    rig = Rig()
    put_slice(rig.node.gpus[0], "3g.40gb", 0)
    put_slice(rig.node.gpus[0], "3g.40gb", 4)
    await rig.start()
    rig.submit("j1", MIG)
    await rig.settle(1)
    before = rig.real()
    assert "instance_busy" == rig.layout(0, *["1g.10gb"] * 7)
    await end(rig, "j1")

    # Somebody is there whom the ledger does not know.
    made = next(iter(rig.node.gpus[0].instances.values()))
    busy(rig.node.gpus[0], gi=made.id, ci=0)
    assert "applied" == rig.layout(0, *["1g.10gb"] * 7)
    await rig.settle(1)
    assert ("in-use", 77) == (
        rig.last("order.failed")["reason"],
        rig.last("order.failed")["evidence"]["pid"],
    )
    assert before == rig.real() == rig.believed()
    assert not rig.cell.state.orders


async def test_c09_a_mode_that_is_pending_is_no_capacity() -> None:
    """Wanted and observed are two facts: off now, on after a reboot, and R1 waits for that."""
    rig = Rig(("A100-80GB",), mig=False)
    rig.node.gpus[0].clients = 1
    await rig.start()
    uuid = rig.node.gpus[0].uuid
    name = rig.agent.change_mode(uuid, enabled=True)
    await rig.settle()

    assert "mig-pending" == rig.journal.fact(f"end {name}")
    assert (False, True) == (
        rig.cell.state.devices[uuid].mig_enabled,
        rig.cell.state.devices[uuid].mig_pending,
    )
    assert "partition_pending" == rig.layout(0, "1g.10gb")
    assert "queued" == rig.submit("r1", {"mode": "mig", "profile": "1g.10gb"})
    queued = next(one for one in rig.replies if one["answer"] == "queued")
    assert "partition_pending" == queued["code"]

    rig.node.gpus[0].clients = 0
    rig.node.reboot()
    rig.boot = "machine-boot-2"
    await rig.restart()
    await rig.settle(1)
    assert 1 == len(rig.cell.state.leases)
    assert rig.real() == rig.believed()


async def test_c03_gaps_and_missing_readings_are_no_zeros() -> None:
    """Slots 0, 2 and 5 hold slices, and the others answer that there is nothing."""
    rig = Rig()
    gpu = rig.node.gpus[0]
    made = [put_slice(gpu, "1g.10gb", start) for start in range(6)]
    for at in (1, 3, 4):
        instance, compute = made[at]
        assert compute is not None
        gpu.destroy_ci(instance, compute)
        gpu.destroy_gi(instance)
    gpu.temperature_c = None
    await rig.start()
    assert {0, 2, 5} == {start for _, _, _, start in rig.believed()}
    assert rig.real() == rig.believed()


async def test_in_use_with_nobody_in_sight_is_tried_then_shut_away_then_freed() -> None:
    """Retries with back-off; then the device is out of use, with evidence, until it is gone."""
    rig = Rig()
    made, _ = put_slice(rig.node.gpus[0], "3g.40gb", 4)
    made.stuck = 1000
    await rig.start()
    began_us = rig.time.steady_us
    assert "applied" == rig.layout(0)
    await rig.settle(70)

    failed, ill = rig.last("order.failed"), rig.last("device.health")
    assert "in-use" == failed["reason"] == ill["reason"]
    assert "unhealthy" == ill["health"]
    expected = {"code": "in-use", "start": 4, "processes": 0, "calls": 9, "steps": 1}
    assert expected.items() <= failed["evidence"].items()
    assert 61 <= (rig.time.steady_us - began_us) // SECOND
    # What is half done is told of when it is over: the ledger plans on what was told.
    assert ["node.inventory", "device.health", "order.failed"] == rig.types()[:3]
    assert ["unhealthy"] == states(rig)
    assert [made.id] == rig.bare()
    # Nothing is placed there, also after a restart.
    await rig.restart()
    assert "queued" == rig.submit("r1", MIG)
    await rig.settle(60)

    made.stuck = 0
    await rig.settle(60)
    assert [] == rig.bare()
    assert [] == rig.journal.holds()
    assert 1 == len(rig.cell.state.leases)
    assert rig.real() == rig.believed()


async def test_a_slice_with_a_hidden_holder_is_not_leased_meanwhile() -> None:
    """The compute instance cannot be destroyed: whole it stands there, and is nobody's."""
    rig = await held_by_nobody_seen()
    assert "in-use" == rig.last("order.failed")["reason"]
    assert rig.real() == rig.believed() != set()
    (old,) = rig.cell.state.slices
    assert "queued" == rig.submit("r1", MIG)
    await rig.settle(120)
    assert {} == rig.cell.state.leases
    assert 1 == len(rig.orders), "a device in doubt is not asked again"

    rig.node.faults.clear()
    await rig.settle(60)
    assert "healthy" == rig.cell.state.devices[rig.node.gpus[0].uuid].health
    # What was left is destroyed, which is the proof: nobody has to give a word for it.
    assert 1 == len(rig.cell.state.leases)
    assert rig.real() == rig.believed() != set()
    assert old not in rig.cell.state.slices


async def test_what_nobody_ordered_is_seen() -> None:
    """Made and destroyed out of band: the inventory tells, and the ledger counts it once."""
    rig = Rig()
    await rig.start()
    made, compute = put_slice(rig.node.gpus[0], "3g.40gb", 4)
    await rig.settle(20)
    assert rig.real() == rig.believed() != set()

    assert compute is not None
    rig.node.gpus[0].destroy_ci(made, compute)
    await rig.settle(20)
    assert set() == rig.believed()
    # What is left takes its place, and nothing is planned on it.
    profiles = {one["profile"]: one for one in rig.last("node.inventory")["devices"][0]["profiles"]}
    assert [0] == profiles["3g.40gb"]["starts"]
    assert [0, 1, 2, 3] == profiles["1g.10gb"]["starts"]


async def test_orders_of_the_past_and_of_others_are_refused_with_a_code() -> None:
    """Another cell, node, boot; an order that is older than one that was carried out; too late."""
    rig = Rig()
    await rig.start()
    rig.layout(0, "3g.40gb")
    await rig.settle(1)
    (order,) = rig.orders
    calls = {one.id for one in rig.journal.open_orders()}
    due_us = rig.time.wall_us + 100 * SECOND
    cases: dict[str, dict[str, Any]] = {
        "other-cell": {"cell": "x"},
        "other-node": {"node": "n9"},
        "other-incarnation": {"incarnation": "boot-0"},
        "older-order": {"order": "c-o0"},
        "past-due": {"order": "c-o7", "due_us": rig.time.wall_us - 1},
    }
    before = rig.real()
    for at, (code, more) in enumerate(cases.items()):
        said = {"order": f"c-o{100 + at}", "due_us": due_us, **more}
        rig.agent.hear(Order.model_validate({**order.model_dump(), **said}))
        await rig.settle(0)
        assert code == rig.last("order.failed")["reason"]
    assert before == rig.real() == rig.believed()
    assert set() == calls


async def test_what_a_refused_order_was_to_destroy_is_told_of_at_once() -> None:
    """It is nobody's until its node has told of it again, which must not take ten minutes."""
    rig = Rig()
    await rig.start()
    rig.layout(0, "3g.40gb")
    await rig.settle(1)
    assert "applied" == rig.layout(0)
    (*_, order) = rig.orders
    assert order.due_us is not None
    learn_time(rig.journal, [order.due_us + 1])
    await rig.settle(5)
    assert "past-due" == rig.last("order.failed")["reason"]
    assert ["present"] == [slice_state(one) for one in rig.cell.state.slices.values()]


async def test_an_order_that_comes_again_is_answered_again_and_done_once() -> None:
    """The same id: the same answer under the same id, no second slice."""
    rig = Rig()
    await rig.start()
    rig.layout(0, "3g.40gb")
    await rig.settle(1)
    before, answer = rig.real(), rig.last("order.done")
    rig.agent.hear(rig.orders[0])
    (_, again, _) = rig.journal.unsent(1)[0]
    assert answer == again.data
    await rig.settle(1)
    assert before == rig.real() == rig.believed()


# -- restarts and reboots --------------------------------------------------------------------


async def test_after_a_reboot_slices_are_lost_by_restart_and_never_released() -> None:
    """The new boot's word ends the leases; the same UUIDs made again are other slices."""
    rig = Rig()
    await rig.start()
    rig.submit("r1", MIG)
    await rig.settle(1)
    old, _, _, start = next(iter(rig.real()))
    name, held = lease(rig, "r1"), rig.cell.lease(f"{TEAM}#r1").parts["n1"].units[0]
    rig.node.reboot()
    rig.node.gpus[0].mig = rig.node.gpus[0].mig_pending = 1
    put_slice(rig.node.gpus[0], "3g.40gb", start)
    rig.boot = "machine-boot-2"
    await rig.restart()
    await rig.settle()

    assert old == next(iter(rig.real()))[0]
    assert {} == rig.cell.state.leases
    assert held not in rig.cell.state.slices
    assert rig.real() == rig.believed()
    ended = [one for one in rig.cell.records if b'"lease.ended"' in one]
    assert [True] == [b"node-restarted" in one for one in ended]
    # A late order of the old lease, renamed to this boot, does not reach the new slice.
    busy(rig.node.gpus[0], gi=next(iter(rig.node.gpus[0].instances)), ci=0)
    late = {"order": "c-o99", "kind": "stop", "node": "n1", "incarnation": rig.boot, "cell": "c"}
    rig.agent.hear(Order.model_validate({**late, "lease": name, "units": (old,)}))
    await rig.settle(0)
    assert [77] == [one.pid for one in rig.node.gpus[0].processes]


async def test_a_card_that_was_leased_over_a_reboot_is_proved_clean() -> None:
    """Baselines are the new boot's; what was leased is cleaned before it is given to another."""
    rig = Rig(("L40S",))
    await rig.start()
    rig.submit("r1")
    await rig.settle(1)
    rig.node.reboot()
    rig.node.gpus[0].base_mib = 300
    rig.boot = "machine-boot-2"
    await rig.restart()
    await rig.settle(1)
    assert 300 == rig.last("order.done")["evidence"]["baseline_mib"]
    assert {} == rig.cell.state.leases
    assert "granted" == rig.submit("r2")
    assert [] == rig.journal.bound(lease=f"{TEAM}#r1/1")


async def test_a_restart_of_the_agent_loses_no_lease_and_no_order() -> None:
    """Ended between hearing and doing: it is done after the restart, once."""
    rig = Rig()
    await rig.start()
    rig.submit("r1", MIG)
    rig.hear()
    assert ["c-o1"] == [one.id for one in rig.journal.open_orders()]
    await rig.restart()
    await rig.settle(1)
    assert 1 == len(rig.cell.state.leases) == len(rig.real())
    await rig.restart()
    assert "running" == rig.cell.lease(f"{TEAM}#r1").state


async def test_c27_a_late_order_does_not_reach_another_lease() -> None:
    """A stop and a clean of the lease before find the slice in other hands, and touch nothing."""
    rig = Rig()
    put_slice(rig.node.gpus[0], "3g.40gb", 4)
    await rig.start()
    rig.submit("j1", MIG)
    await rig.settle(1)
    first = lease(rig, "j1")
    await end(rig, "j1")
    rig.submit("j2", MIG)
    await rig.settle(1)
    (_, _, gi, _) = next(iter(rig.real()))
    busy(rig.node.gpus[0], gi=gi, ci=0)
    for at, kind in enumerate(("stop", "clean")):
        plain: dict[str, Any] = {"order": f"c-o{90 + at}", "kind": kind, "node": "n1", "cell": "c"}
        plain |= {"incarnation": rig.boot, "lease": first, "units": (next(iter(rig.real()))[0],)}
        rig.agent.hear(Order.model_validate(plain))
    await rig.settle(70)

    assert [77] == [one.pid for one in rig.node.gpus[0].processes]
    assert [] == rig.processes.ended
    assert "other-lease" == rig.last("order.failed")["reason"]
    assert "running" == rig.cell.lease(f"{TEAM}#j2").state


async def test_c29_cancelled_while_it_is_being_created() -> None:
    """The slice is made, found to be nobody's, and removed; capacity is as before."""
    rig = Rig()
    await rig.start()
    rig.submit("r1", MIG)
    assert "cancelled" == rig.ask("request.cancel", {"request": f"{TEAM}#r1"}, source=TEAM)
    await rig.settle(1)
    assert set() == rig.real() == rig.believed()
    assert not rig.cell.state.orders
    assert [] == rig.bare()


# -- stop and clean --------------------------------------------------------------------------


async def test_a_stop_asks_then_makes_processes_end() -> None:
    """Gently first, hard after the grace; then the lease is over and its card proved clean."""
    rig = Rig(("L40S",))
    await rig.start()
    rig.submit("r1")
    await rig.settle(1)
    busy(rig.node.gpus[0])
    rig.processes.deaf = {77}
    rig.cell.reclaim(lease(rig, "r1"))
    decision = rig.cell.tick()
    rig.carry(decision)
    for one in rig.cell.state.orders.values():
        rig.unheard.append(_order_of(rig, one.id))
    await rig.settle()

    assert [(77, False), (77, True)] == [rig.processes.ended[0], rig.processes.ended[-1]]
    assert "stopped" == rig.last("task.ended")["how"]
    assert 10 * SECOND <= rig.last("task.ended")["took_us"]
    assert ["available"] == states(rig)


def _order_of(rig: Rig, name: str) -> Order:
    """Return an open order of the ledger as its node gets it."""
    from ledger.core.outbox import open_orders  # noqa: PLC0415 - close to its use

    plain = next(one[3] for one in open_orders(rig.cell.state) if one[3]["order"] == name)
    return Order.model_validate(plain, strict=False)


def _stays(rig: Rig) -> None:
    busy(rig.node.gpus[0])
    rig.processes.stuck.add(77)


def _zombie(rig: Rig) -> None:
    busy(rig.node.gpus[0])
    rig.processes.states[77] = "zombie"


def _mps(rig: Rig) -> None:
    busy(rig.node.gpus[0], kind="mps", mib=0)


def _leak(rig: Rig) -> None:
    rig.node.gpus[0].leaked_mib = 500


def _unlisted(rig: Rig) -> None:
    function = "nvmlDeviceGetMPSComputeRunningProcesses_v3"
    rig.node.faults.append(Fault(function, Code.NO_PERMISSION))


def _hang(rig: Rig) -> None:
    rig.node.faults.append(Fault("nvmlDeviceGetName", "hang"))


FOULS: dict[str, tuple[str, Callable[[Rig], None]]] = {
    "a process that cannot be ended": ("a process is left", _stays),
    "a zombie": ("a zombie holds the device", _zombie),
    "an MPS server": ("an MPS server or client is left", _mps),
    "leaked memory": ("memory is left", _leak),
    "processes that may not be seen": ("processes cannot be listed", _unlisted),
    "a device that hangs": ("the device cannot be read", _hang),
}


@pytest.mark.parametrize("name", FOULS)
async def test_what_is_not_proved_clean_is_shut_away_with_its_evidence(name: str) -> None:
    """Not in time, not clean: the ledger quarantines it, before its own patience is over."""
    reason, foul = FOULS[name]
    rig = Rig(("L40S",))
    await rig.start()
    rig.submit("r1")
    await rig.settle(1)
    foul(rig)
    await end(rig, "r1")

    failed = rig.last("order.failed")
    assert reason == failed["reason"]
    assert 60 * SECOND <= failed["evidence"]["waited_us"]
    device = rig.cell.state.devices[rig.node.gpus[0].uuid]
    assert reason == device.quarantine
    assert "queued" == rig.submit("r2")


async def test_leaked_memory_that_goes_away_in_time_is_clean() -> None:
    """The time from the end to clean is measured, by the node and by the ledger."""
    rig = Rig(("L40S",))
    await rig.start()
    rig.submit("r1")
    await rig.settle(1)
    rig.node.gpus[0].leaked_mib = 500
    rig.ask("lease.release", {"lease": lease(rig, "r1")}, source=TEAM)
    await rig.settle(7)
    assert ["cleaning"] == states(rig)
    rig.node.gpus[0].leaked_mib = 0
    await rig.settle()

    assert ["available"] == states(rig)
    assert 7 * SECOND <= rig.last("order.done")["took_us"] <= 60 * SECOND
    (done,) = [one for one in rig.cell.records if b'"clean_us"' in one]
    assert b'"memory_mib"' in done


async def test_without_a_baseline_nothing_is_proved() -> None:
    """The agent has never seen the card idle: what it uses now proves nothing."""
    rig = Rig(("L40S",))
    busy(rig.node.gpus[0])
    await rig.start()
    rig.submit("r1")
    await rig.settle(1)
    rig.node.gpus[0].processes.clear()
    await end(rig, "r1")
    assert "no baseline of its memory is known" == rig.last("order.failed")["reason"]


async def test_destroying_is_the_proof_of_a_slice() -> None:
    """The slice of a lease is gone when its clean order comes: nobody can have been in it."""
    rig = Rig()
    made, compute = put_slice(rig.node.gpus[0], "3g.40gb", 4)
    await rig.start()
    rig.submit("r1", MIG)
    await rig.settle(1)
    rig.ask("lease.release", {"lease": lease(rig, "r1")}, source=TEAM)
    assert compute is not None
    rig.node.gpus[0].destroy_ci(made, compute)
    rig.node.gpus[0].destroy_gi(made)
    await rig.settle(1)
    assert 1 == rig.last("order.done")["evidence"]["destroyed"]


async def test_a_lease_of_an_older_lifetime_is_refused() -> None:
    """The slice went and came back under its UUID while the lease was on: it is another."""
    rig = Rig()
    made, compute = put_slice(rig.node.gpus[0], "3g.40gb", 4)
    await rig.start()
    rig.submit("r1", MIG)
    await rig.settle(1)
    name, unit = lease(rig, "r1"), next(iter(rig.real()))[0]
    assert compute is not None
    rig.node.gpus[0].destroy_ci(made, compute)
    await rig.settle(20)
    rig.node.gpus[0].create_ci(made, 2, 0)
    await rig.settle(20)
    assert unit == next(iter(rig.real()))[0]
    assert {} == rig.cell.state.leases
    plain = {"order": "c-o99", "kind": "clean", "node": "n1", "cell": "c", "lease": name}
    rig.agent.hear(Order.model_validate(plain | {"incarnation": rig.boot, "units": (unit,)}))
    await rig.settle(0)
    assert "old-generation" == rig.last("order.failed")["reason"]
    assert (1, 2) == tuple(rig.last("order.failed")["evidence"][one] for one in ("was", "now"))


async def test_who_shares_a_card_is_told_apart_by_its_environment() -> None:
    """One share ends while another runs: clean when all who are there say that they are others."""
    rig = Rig(("L40S",))
    await rig.start()
    share = {"mode": "share", "gpu_milli": 400, "memory_mib": 8_000}
    for name in ("a", "b"):
        assert "granted" == rig.submit(name, share)
    await rig.settle(1)
    first, second = lease(rig, "a"), lease(rig, "b")
    busy(rig.node.gpus[0], 71)
    busy(rig.node.gpus[0], 72)
    rig.processes.leases = {71: first, 72: second}
    await end(rig, "a")

    assert {71} == {pid for pid, _ in rig.processes.ended}
    assert [72] == [one.pid for one in rig.node.gpus[0].processes]
    assert 1 == rig.last("order.done")["evidence"]["others"]
    assert "running" == rig.cell.lease(f"{TEAM}#b").state


async def test_processes_are_left_alone_where_that_is_wanted() -> None:
    """Whoever started them has to end them; the proof waits for it."""
    options = NodeOptions(patience=Patience(ends_processes=False))
    rig = Rig(("L40S",), options=options)
    await rig.start()
    rig.submit("r1")
    await rig.settle(1)
    busy(rig.node.gpus[0])
    await end(rig, "r1")
    assert [] == rig.processes.ended
    assert "a process is left" == rig.last("order.failed")["reason"]


async def test_c43_the_clock_is_set_back_meanwhile() -> None:
    """Durations are the steady clock's, and the step is said beside them."""
    rig = Rig(("L40S",))
    await rig.start()
    rig.submit("r1")
    await rig.settle(1)
    rig.node.gpus[0].leaked_mib = 500
    rig.ask("lease.release", {"lease": lease(rig, "r1")}, source=TEAM)
    await rig.settle(40)
    rig.time.wall_us -= 60 * SECOND
    rig.node.gpus[0].leaked_mib = 0
    await rig.settle(5)
    said = rig.last("order.done")
    assert 40 * SECOND <= said["took_us"] <= 46 * SECOND
    assert -60 * SECOND == said["evidence"]["clock_step_us"]


async def test_a_lease_on_a_unit_that_is_not_there_never_starts() -> None:
    """The node says so, and holds nothing for it."""
    rig = Rig(("L40S",))
    await rig.start()
    plain: dict[str, Any] = {"order": "x/prepare/n1", "kind": "prepare", "node": "n1", "cell": "c"}
    plain |= {"incarnation": rig.boot, "lease": "x", "units": ("GPU-other",)}
    rig.agent.hear(Order.model_validate(plain))
    await rig.settle(0)
    assert "never-started" == rig.last("task.ended")["how"]
    assert [] == rig.journal.bound(lease="x")


async def test_the_mode_is_not_changed_under_a_lease() -> None:
    """Nor under a process, nor while slices stand; free, it is, and the inventory tells."""
    rig = Rig(mig=False)
    await rig.start()
    uuid = rig.node.gpus[0].uuid
    rig.submit("r1")
    await rig.settle(1)
    name = rig.agent.change_mode(uuid, enabled=True)
    await rig.settle(1)
    assert "leased" == rig.journal.fact(f"end {name}")
    await end(rig, "r1")
    name = rig.agent.change_mode(uuid, enabled=True)
    await rig.settle(1)
    assert "done" == rig.journal.fact(f"end {name}")
    assert rig.cell.state.devices[uuid].mig_enabled
    assert "reserved" == rig.submit("r2", MIG)


def test_a_node_is_made_of_its_own_name() -> None:
    """Two boots of one machine show the same cards."""
    assert [one.uuid for one in make_node("n1", ["T4"]).gpus] == [
        one.uuid for one in make_node("n1", ["T4"]).gpus
    ]
