"""Many machines, each the real agent: every board, a machine that is lost, and their one log."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from collectors.fake_nvml.boards import BOARDS
from collectors.fleet.fleet import SimulatedFleet
from collectors.fleet.host import HostOptions, board_named
from collectors.fleet.log import FleetLog
from ledger.core.state import device_state
from ledger.log.memory import MemoryLog
from ledger.log.partition import partition_of
from ledger.log.port import Entry, LogUnavailable, UnknownTopic
from ledger.log.topics import apply
from schemas.topics import full_name
from tests.faulty_log import FaultyLog
from tests.fleet_rig import CELL, HEARTBEAT_LIMIT_S, FleetRig, host
from tests.node_support import Rig, Time

if TYPE_CHECKING:
    from collections.abc import Callable

    from collectors.nvml.watchdog import Asker

ORDERS, OBSERVATIONS = "gpuledger.orders", "gpuledger.observations"


async def test_every_board_offers_what_it_has() -> None:
    """A slice is made on each board that can be partitioned; the others are whole."""
    names = {board: board.lower() for board in BOARDS}
    rig = FleetRig(*(host(name, board) for board, name in names.items()))
    await rig.open()
    for board, name in names.items():
        kind = BOARDS[board]
        if kind.shapes:
            smallest = {"mode": "mig", "profile": kind.shapes[0].name, "models": [kind.model]}
            await rig.ask(name, smallest)
        else:
            await rig.ask(name, {"mode": "whole", "models": [kind.model]})
    held = {lease.parts[name].node for lease in rig.state.leases.values() for name in lease.parts}
    assert set(names.values()) == held
    whole = [rig.state.devices[rig.host(name).gpu(0).uuid] for name in ("t4", "l40s")]
    assert ["leased"] * 2 == [device_state(one) for one in whole]
    rig.check()


class Meanwhile:
    """Lets something else happen during the first change of one device, as in real time."""

    def __init__(self, asker: Asker, uuid: str, act: Callable[[], None]) -> None:
        self._asker = asker
        self._uuid = uuid
        self._act = act

    async def ask(self, op: str, *, timeout_s: float | None = None, **arguments: Any) -> Any:
        """See `collectors.nvml.watchdog.Asker`."""
        if op == "create_gi" and arguments["uuid"] == self._uuid:
            self._uuid = ""
            self._act()
        return await self._asker.ask(op, timeout_s=timeout_s, **arguments)

    async def close(self) -> None:
        """See `collectors.nvml.watchdog.Asker`."""
        await self._asker.close()


async def test_a_slice_stays_while_the_next_one_is_made() -> None:
    """It is in the inventory that is told while its device is being changed again.

    Seen with 20 machines and 20 changes a second: the device was told as it had been before
    the first change, so the ledger ended the lease and planned the place again.
    """
    rig = Rig(("H100-80GB", "H100-80GB"))
    await rig.start()
    small = {"mode": "mig", "profile": "1g.10gb"}
    rig.submit("r0", small)
    first = rig.orders[-1].units[0]
    second = 1 if rig.node.gpus[0].uuid == first else 0

    def meanwhile() -> None:
        rig.tell_ledger()
        rig.submit("r1", small)
        assert first == rig.orders[-1].units[0]
        rig.hear()

    rig.asker = lambda one: Meanwhile(one, rig.node.gpus[second].uuid, meanwhile)
    rig.make()
    rig.agent.start()
    rig.layout(second, "7g.80gb")
    await rig.settle()
    assert {"/team/a#r0/1", "/team/a#r1/1"} == set(rig.cell.state.leases)
    assert rig.real(0) == rig.believed(0)
    assert rig.real(1) == rig.believed(1)


async def test_a_task_ends_when_it_is_expected_to() -> None:
    """Its process is on its slice until then, and the lease ends as completed and clean."""
    rig = FleetRig(host("n1", "H100-80GB"))
    await rig.open()
    ask = {"mode": "mig", "profile": "1g.10gb"}
    await rig.ask("short", ask, expected_run_s=30)
    gpu = rig.host().gpu(0)
    assert [rig.host().processes.lease(one.pid) for one in gpu.processes] == ["/team/a#short/1"]
    await rig.live(60)
    assert {"short/1": "completed"} == await rig.ended()
    assert [] == gpu.processes
    rig.check()


async def test_a_task_runs_on_while_its_agent_starts_anew() -> None:
    """It is the machine's, not the agent's: there is one process, before and after."""
    rig = FleetRig(host("n1", "T4"))
    await rig.open()
    await rig.ask("long", {"mode": "whole"})
    gpu = rig.host().gpu(0)
    before = list(gpu.processes)
    rig.host().stop_agents()
    rig.host().start_agent()
    await rig.live(5)
    assert 1 == len(before)
    assert before == gpu.processes
    assert {} == await rig.ended()


async def test_a_killed_machine() -> None:
    """Its leases end for that reason within the limit and a second; retries run elsewhere."""
    rig = FleetRig(host("n1", "T4"), host("n2", "T4"))
    await rig.open()
    await rig.ask("r1", {"mode": "whole"}, retries=1)
    lost = next(iter(rig.state.leases["/team/a#r1/1"].parts))
    rig.host(lost).turn_off()
    await rig.live(HEARTBEAT_LIMIT_S + 1)
    assert {"r1/1": "node-lost"} == await rig.ended()
    await rig.live(2)
    assert ["n1" if lost == "n2" else "n2"] == list(rig.state.leases["/team/a#r1/2"].parts)
    rig.host(lost).turn_on()
    await rig.live(30)
    assert {"online"} == {one.state for one in rig.state.nodes.values()}
    rig.check()


def test_boards_have_short_names() -> None:
    """The name of the model stands for its largest board; what is none is None."""
    models = ("A100", "A30", "H100", "H200", "B200", "RTX-PRO-6000", "T4", "L40S")
    assert set(BOARDS) - {board_named(one) for one in models} == {"A100-40GB"}
    assert board_named("A100-40GB") == "A100-40GB"
    assert board_named("H1") is None


# -- the way to the log ---------------------------------------------------------------


async def memory_log() -> MemoryLog:
    """Return a log with the ledger's topics."""
    log = MemoryLog()
    await apply(log, "gpuledger", 2)
    return log


async def test_appends_of_many_nodes_go_together() -> None:
    """Each node gets the offsets of its own records; what comes meanwhile is one append more."""
    inner = await memory_log()
    log = FaultyLog(inner.another())
    fleet = FleetLog(log)
    nodes = [fleet.of(f"n{number}") for number in range(50)]
    entries = [[Entry(CELL.encode(), f"{at}-{each}".encode()) for each in "ab"] for at in range(50)]
    offsets = await asyncio.gather(
        *(node.append(OBSERVATIONS, None, mine) for node, mine in zip(nodes, entries, strict=True))
    )
    partition = 0 if await inner.end(OBSERVATIONS, 0) else 1
    records = await inner.read(OBSERVATIONS, partition, 0)
    for mine, where in zip(entries, offsets, strict=True):
        assert [one.value for one in mine] == [records[at].value for at in where]
    assert log.calls < 10


async def test_an_append_that_fails_fails_for_all_in_it() -> None:
    """No node takes its records for written; the next append is another one."""
    log = FaultyLog(await memory_log(), 0)
    fleet = FleetLog(log)
    nodes = [fleet.of(f"n{number}") for number in range(3)]
    entry = Entry(CELL.encode(), b"{}")
    ends = await asyncio.gather(
        *(node.append(OBSERVATIONS, None, [entry]) for node in nodes), return_exceptions=True
    )
    assert [LogUnavailable] * 3 == [type(end) for end in ends]
    assert [0] == await nodes[0].append(OBSERVATIONS, None, [entry])


async def test_a_node_that_goes_away_takes_nothing_with_it() -> None:
    """Its append is written with the others', whether or not anybody waits for it."""
    inner = await memory_log()
    fleet = FleetLog(inner.another())
    entry = Entry(CELL.encode(), b"{}")
    first = asyncio.create_task(fleet.of("n1").append(OBSERVATIONS, None, [entry]))
    second = asyncio.create_task(fleet.of("n2").append(OBSERVATIONS, None, [entry]))
    await asyncio.sleep(0)
    first.cancel()
    assert [1] == await second


async def test_orders_are_for_the_nodes_that_they_name() -> None:
    """Each reads its own from where it stands, and again until it has gone on."""
    inner = await memory_log()
    fleet = FleetLog(inner.another())
    await fleet.open()
    mine, again, other = fleet.of("n1"), fleet.of("n1"), fleet.of("n2")
    partition = partition_of(b"n1", await inner.partitions(ORDERS))
    await inner.append(ORDERS, None, [Entry(b"n1", b"1")])
    await inner.append(ORDERS, partition, [Entry(b"n2", b"2"), Entry(b"n1", b"3")])
    assert 3 == await fleet.hear_all()
    for log in (mine, mine, again):
        assert [b"1", b"3"] == [one.value for one in await log.read(ORDERS, partition, 0)]
    assert [b"3"] == [one.value for one in await mine.read(ORDERS, partition, 1)]
    assert [] == await mine.read(ORDERS, partition, 3, wait_s=0.01)
    assert [b"2"] == [one.value for one in await other.read(ORDERS, partition, 0)]
    fleet.forget("n1", again)
    waiting = asyncio.create_task(mine.read(ORDERS, partition, 3, wait_s=30))
    await inner.append(ORDERS, partition, [Entry(b"n1", b"4")])
    await asyncio.sleep(0)
    await fleet.hear_all()
    assert [b"4"] == [one.value for one in await waiting]
    mine.cut = True
    with pytest.raises(LogUnavailable):
        await mine.read(ORDERS, partition, 0)


async def test_a_fleet_without_topics_says_so() -> None:
    """There is nothing to wait for: the topics are made by somebody else."""
    fleet = SimulatedFleet(MemoryLog(), CELL, [host("n1", "T4")], clock=Time().clock)
    with pytest.raises(UnknownTopic):
        await fleet.run(asyncio.Event())


async def test_in_real_time() -> None:
    """Machines run beside each other until they are told to stop, and faults befall them."""
    inner = await memory_log()
    options = HostOptions(heartbeat_s=0.02)
    fleet = SimulatedFleet(
        inner.another(), CELL, [host("n1", "T4"), host("n2", "T4")], options=options
    )
    stop = asyncio.Event()
    running = asyncio.create_task(fleet.run(stop))
    beats = full_name("gpuledger", "heartbeats")
    count = await inner.partitions(beats)
    async with asyncio.timeout(30):
        for name in (b"n1", b"n2"):
            await inner.read(beats, partition_of(name, count), 2, wait_s=30)
    stop.set()
    await running
    told = [await inner.read(OBSERVATIONS, at, 0) for at in (0, 1)]
    assert [b"node.inventory"] * 2 == [
        dict(one.headers)["ce_type"].split(b".", 2)[2].removesuffix(b".v1")
        for records in told
        for one in records
    ]
