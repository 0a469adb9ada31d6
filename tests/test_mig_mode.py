"""A device's MIG mode, ordered through the ledger: drained first, and carried out by the agent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pytest

from collectors.fake_nvml.faults import Fault
from collectors.fake_nvml.gpu import Process as OnGpu
from collectors.nvml.codes import Code
from collectors.said import agent_source
from ledger.cli.requests import _text
from ledger.core.outbox import open_orders
from ledger.testing import CoreDriver, device, mig_slice
from schemas.messages import Reply
from tests.node_support import Rig, library
from tests.test_cli import Cli

if TYPE_CHECKING:
    from pathlib import Path

OP = {"author": "op", "reason": "test"}
SLICE = {"mode": "mig", "profile": "3g.40gb"}


def ask(rig: Rig, *, enabled: bool = True, gpu: int = 0) -> str:
    """Order the mode of a GPU; return the code."""
    uuid = rig.node.gpus[gpu].uuid
    return rig.ask("device.mode", {"device": uuid, "enabled": enabled, **OP})


def put(rig: Rig, mode: str) -> str:
    """Put the node in or out of service."""
    return rig.ask("node.set", {"node": "n1", "mode": mode, **OP})


async def test_the_mode_is_turned_on_and_slices_are_made_and_off_again() -> None:
    """From drained to a slice leased; back it takes an empty layout first."""
    rig = Rig(mig=False)
    await rig.start()
    uuid = rig.node.gpus[0].uuid
    assert "not_drained" == ask(rig)
    assert "applied" == put(rig, "draining")
    assert "applied" == ask(rig)
    (order,) = rig.orders
    assert ("mode", True, (uuid,)) == (order.kind, order.enabled, order.units)
    assert "mode_changing" == put(rig, "online"), "it may be reset at any moment"
    assert "device_busy" == ask(rig), "by its order"
    await rig.settle(1)
    assert {} == rig.cell.state.orders
    assert rig.cell.state.devices[uuid].mig_enabled
    assert rig.last("order.done")["order"] == order.order
    assert "unchanged" == ask(rig)
    assert "applied" == put(rig, "online")
    assert "reserved" == rig.submit("r1", SLICE)
    await rig.settle(2)
    (lease,) = rig.cell.state.leases
    assert "applied" == put(rig, "maintenance")
    assert "device_busy" == ask(rig, enabled=False)
    assert "released" == rig.ask("lease.release", {"lease": lease}, source="/team/a")
    assert "device_busy" == ask(rig, enabled=False), "it is not proved clean yet"
    await rig.settle(2)
    assert "slices_left" == ask(rig, enabled=False)
    assert "applied" == rig.layout(0)
    await rig.settle(2)
    assert "applied" == ask(rig, enabled=False)
    await rig.settle(2)
    assert not rig.cell.state.devices[uuid].mig_enabled
    assert 0 == rig.node.gpus[0].mig


async def test_c09_a_mode_that_waits_for_a_reboot_is_answered_and_pending() -> None:
    """The order ends as failed with the reason; the inventory says that a reset is waited for."""
    rig = Rig(("A100-80GB",), mig=False)
    rig.node.gpus[0].clients = 1
    await rig.start()
    put(rig, "maintenance")
    assert "applied" == ask(rig)
    await rig.settle(300)
    assert "mig-pending" == rig.last("order.failed")["reason"]
    assert rig.cell.state.devices[rig.node.gpus[0].uuid].mig_pending
    assert "partition_pending" == ask(rig)
    rig.node.gpus[0].clients = 0
    rig.node.reboot()
    rig.boot = "machine-boot-2"
    await rig.restart()
    await rig.settle(1)
    assert rig.cell.state.devices[rig.node.gpus[0].uuid].mig_enabled
    assert "unchanged" == ask(rig)


async def test_a_board_without_mig_says_so() -> None:
    """The order ends with a reason of its own, and not as a device that cannot be read."""
    rig = Rig(("T4",), mig=False)
    await rig.start()
    put(rig, "draining")
    assert "applied" == ask(rig)
    await rig.settle(1)
    failed = rig.last("order.failed")
    assert ("no-mig", "Tesla T4") == (failed["reason"], failed["evidence"]["model"])


@pytest.mark.parametrize("how", ["crash before", "crash after", "refused by the driver"])
async def test_whatever_befalls_the_change_both_sides_agree(how: str) -> None:
    """The agent goes on with it after a restart; an error leaves the mode as it was, on record."""
    rig = Rig(mig=False)
    await rig.start()
    put(rig, "maintenance")
    if how == "refused by the driver":
        rig.node.faults = [Fault("nvmlDeviceSetMigMode", Code.NO_PERMISSION)]
    assert "applied" == ask(rig)
    rig.hear()
    if how == "crash before":
        await rig.restart()
    elif how == "crash after":
        rig.node.gpus[0].mig = rig.node.gpus[0].mig_pending = 1
        await rig.restart()
    await rig.settle(60)
    assert {} == rig.cell.state.orders
    refused = how == "refused by the driver"
    assert refused != rig.cell.state.devices[rig.node.gpus[0].uuid].mig_enabled
    assert bool(rig.node.gpus[0].mig) == rig.cell.state.devices[rig.node.gpus[0].uuid].mig_enabled
    if refused:
        assert "no-permission" == rig.last("order.failed")["reason"]
    assert "applied" == put(rig, "online")


async def test_a_process_on_the_device_is_a_no_of_the_node() -> None:
    """The ledger knows nothing of it; the node looks before it changes anything."""
    rig = Rig(mig=False)
    await rig.start()
    put(rig, "maintenance")
    rig.node.gpus[0].processes.append(OnGpu(4711, 100))
    assert "applied" == ask(rig)
    await rig.settle(2)
    failed = rig.last("order.failed")
    assert ("in-use", 4711) == (failed["reason"], failed["evidence"]["pid"])
    assert not rig.cell.state.devices[rig.node.gpus[0].uuid].mig_enabled


async def test_nothing_is_leased_between_the_answer_and_the_mode_that_it_is_about() -> None:
    """Whoever waits for the order puts the node online at once: by then the mode is known."""
    rig = Rig(mig=False)
    await rig.start()
    put(rig, "maintenance")
    assert "applied" == ask(rig)
    rig.submit("r1")
    rig.hear()
    with library():
        await rig.agent.work()
    while rig.cell.state.orders:
        ((number, said, _),) = rig.journal.unsent(1)
        rig.carry(rig.cell.feed(said.type, said.data, source=agent_source("n1")))
        rig.journal.sent([number], 0)
    assert "applied" == put(rig, "online")
    assert 1 == rig.node.gpus[0].mig
    assert {} == rig.cell.state.leases, "a device in MIG mode is not leased whole"


async def test_a_change_that_is_tried_again_is_given_up_under_a_lease() -> None:
    """A host's own change: what was leased while it waited is not reset."""
    rig = Rig(mig=False)
    rig.node.gpus[0].clients = 1
    await rig.start()
    name = rig.agent.change_mode(rig.node.gpus[0].uuid, enabled=True)
    await rig.settle(1)
    assert rig.journal.fact(f"end {name}") is None, "somebody has the device open: it waits"
    rig.submit("r1")
    await rig.settle(0)
    assert ["running"] == [one.state for one in rig.cell.state.leases.values()]
    rig.node.gpus[0].clients = 0
    await rig.settle(120)
    assert 0 == rig.node.gpus[0].mig
    assert "leased" == rig.journal.fact(f"end {name}")
    assert ["running"] == [one.state for one in rig.cell.state.leases.values()]


def test_orders_are_said_again_in_the_order_in_which_they_were_given() -> None:
    """A node refuses one that is older than the last: the tenth must not come before the ninth."""
    cell = cell_with(device("GPU-a"), device("GPU-b"))
    while cell.state.next_id < 9:
        mode(cell)
        cell.tick(at_us=cell.now_us + 301_000_000)
    assert ["applied", "applied"] == [mode(cell), mode(cell, "GPU-b")]
    # A state that was loaded has its orders by their ids.
    cell.state.orders = dict(sorted(cell.state.orders.items()))
    assert ["c-o10", "c-o9"] == list(cell.state.orders)
    assert ["c-o9", "c-o10"] == [one[3]["order"] for one in open_orders(cell.state)]


def cell_with(*devices: dict[str, Any]) -> CoreDriver:
    """Return a cell of one drained node."""
    cell = CoreDriver(check=True)
    cell.pool()
    cell.queue()
    cell.quota()
    cell.node("n1", list(devices))
    cell.node_set("n1", "maintenance")
    return cell


def mode(cell: CoreDriver, uuid: str = "GPU-a", *, enabled: bool = True) -> str:
    """Order a mode; return the code."""
    said = {"device": uuid, "enabled": enabled, **OP}
    return cell.feed("device.mode", said, source="/operator").code


@pytest.mark.parametrize("end", ["time", "silence", "gone", "restart"])
def test_an_order_that_nobody_answers_is_over(end: str) -> None:
    """By its time, with its node, with its device: then the node may be online again."""
    cell = cell_with(device("GPU-a"))
    assert "applied" == mode(cell)
    if end == "time":
        cell.tick(at_us=cell.now_us + 301_000_000)
    elif end == "silence":
        cell.silent("n1")
        cell.tick(at_us=cell.now_us + 61_000_000)
    elif end == "gone":
        cell.health("GPU-a", "gone")
    else:
        cell.node("n1", [device("GPU-a")], incarnation="b2")
    assert {} == cell.state.orders
    assert "applied" == cell.node_set("n1", "online").code


def test_what_is_not_so_is_refused() -> None:
    """An unknown device, one in that mode, one with slices, a node that is away."""
    sliced = device("GPU-a") | {"mig_enabled": True, "slices": [mig_slice("MIG-1", gi=1, start=0)]}
    cell = cell_with(sliced, device("GPU-b"))
    assert "unknown_device" == mode(cell, "GPU-z")
    assert "unchanged" == mode(cell, "GPU-b", enabled=False)
    assert "slices_left" == mode(cell, enabled=False)
    cell.silent("n1")
    assert "not_partitionable" == mode(cell, "GPU-b")


def test_from_the_command_line(tmp_path: Path) -> None:
    """An operator's order: its code and exit status, and what is no mode is wrong usage."""
    cli = Cli(f"sqlite:{tmp_path / 'log.sqlite'}", tmp_path)
    why = ("--reason", "test", "--author", "op")
    with cli.running("up", "--json"):
        devices = cli.json("state")["devices"].items()
        uuid, one = next((uuid, one) for uuid, one in devices if not one["mig_enabled"])
        now, other = "off", "on"
        told = cli.json("node", "mig-mode", uuid, other, *why, status=1)
        assert "not_drained" == told["code"]
        node = one["node"]
        refused = cli("node", "mig-mode", uuid, other, *why)
        assert f"gpuledger node set {node} draining" in refused.stderr
        assert "unchanged" == cli.json("node", "mig-mode", uuid, now, *why)["code"]
        assert 0 == cli("node", "set", node, "draining", *why).returncode
        ended = cli("node", "mig-mode", uuid, other, "--json", *why)
        answer, order = map(orjson.loads, ended.stdout.splitlines())
        # A node that is only described cannot: the command says so, and not just that it asked.
        assert (1, "applied", "failed") == (ended.returncode, answer["answer"], order["ended"])
        assert answer["numbers"]["order"] == order["order"]
        assert "the node could not do it: the MIG mode" in ended.stderr
    assert 2 == cli("node", "mig-mode", uuid, "maybe", *why).returncode


def test_what_is_ordered_is_named_and_not_compared() -> None:
    """The answer that an order was made names it for itself: no number was compared."""
    reply = Reply(
        request="/x#a", input="/x#b", answer="applied", final=True, code="applied",
        numbers={"order": "main-o18"},
    )  # fmt: skip
    told = _text(reply)
    assert "order    main-o18" in told
    assert "compared" not in told
