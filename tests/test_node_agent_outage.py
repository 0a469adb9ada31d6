"""The agent and a log that comes and goes: nothing is lost, nothing is told twice."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from collectors.agent.agent import NodeAgent
from collectors.agent.journal import Clock, Journal
from collectors.agent.shell import NodeShell, ShellOptions
from collectors.fake_nvml.gpu import Process as OnGpu
from collectors.fake_nvml.node import make_node
from collectors.fake_nvml.reader import FakeAsker, fake_library
from collectors.nvml.host_facts import HostFacts
from collectors.nvml.report import Standing
from ledger.core.invariants import check
from ledger.core.state import device_state
from ledger.log.memory import MemoryLog
from ledger.log.port import Entry, LogDamaged, LogUnavailable, UnknownTopic
from ledger.log.topics import apply
from ledger.log.wakeup import wall_clock_us
from ledger.wire import input_entry
from processors.embedded import EmbeddedLoop
from tests.faulty_log import FaultyLog
from tests.node_support import SECOND, FakeProcesses, Time
from tests.nvml_support import put_slice
from tests.processor_support import policy, release, settings, submit

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ledger.core.state import State
    from ledger.log.port import Log

CELL = "dc1"
OBSERVATIONS = "gpuledger.observations"


class Cable(FaultyLog):
    """A log whose cable can be pulled: every call fails then, and has no effect."""

    pulled = False

    async def _call(self, name: str, work: Awaitable[Any], close: Callable[[], None]) -> Any:
        if self.pulled:
            close()
            raise LogUnavailable("the cable is pulled")
        return await super()._call(name, work, close)


class LogRig:
    """A ledger on a memory log, and an agent that reaches it over a cable, step by step."""

    def __init__(self, at: int | None = None, *, after: bool = False) -> None:
        self.time = Time()
        self.node = make_node("n1", ["H100-80GB", "L40S"], mig=True)
        self.log = MemoryLog(clock=lambda: self.time.wall_us)
        self.cable = Cable(self.log.another(), at, after=after)
        self.journal = Journal(":memory:", self.time.clock)
        self.loop = EmbeddedLoop(
            self.log, settings(heartbeat_limit_s=86_400), lambda: self.time.wall_us
        )
        self.shell = self.make()

    def make(self) -> NodeShell:
        """Make the next start of the agent, over the same journal."""
        self.agent = NodeAgent(
            FakeAsker(self.node),
            self.journal,
            Standing("n1", "h100"),
            CELL,
            facts=HostFacts("machine-boot-1", None, None),
            processes=FakeProcesses(self.node),
        )
        self.shell = NodeShell(self.cable, self.agent)
        self.begun = False
        return self.shell

    async def open(self) -> None:
        """Set the ledger up and start the agent."""
        await apply(self.log, "gpuledger", 1)
        await self.loop.start()
        pool = {"pool": "h100", "partition": "relayout", "author": "op", "reason": "test"}
        entries = [*policy(CELL), input_entry(CELL, "pool.apply", "/ops", "making", pool)]
        await self.log.append("gpuledger.requests", None, entries)
        await self.loop.step()
        await self.restart()

    async def restart(self) -> None:
        """End the agent and start it again, whether or not the log is there."""
        self.make()
        self.agent.start()
        await self.live(1)

    async def live(self, seconds: int) -> None:
        """Let time pass, a second at a time; what fails is tried again a second later."""
        with fake_library():
            for _ in range(seconds):
                try:
                    if not self.begun:
                        await self.shell.begin()
                        self.begun = True
                    await self.shell.hear()
                    await self.agent.work()
                    await self.shell.send()
                    await self.shell.beat()
                except LogUnavailable:
                    await self.agent.work()
                await self.loop.step()
                self.time.passes(SECOND)

    async def ask(self, *entries: Entry) -> None:
        """Put requests on the log, and let the ledger decide them."""
        await self.log.append("gpuledger.requests", None, list(entries))
        await self.loop.step()

    @property
    def state(self) -> State:
        """The cell as the ledger sees it."""
        shard = self.loop.engine.shard(0)
        assert shard is not None
        return shard.fold.cells[CELL]

    async def told(self) -> list[tuple[str, str]]:
        """Return the id and type of every observation on the log, in order."""
        records = await self.log.read(OBSERVATIONS, 0, 0, 10_000)
        headers = [dict(one.headers) for one in records]
        return [
            (one["ce_id"].decode(), one["ce_type"].decode().split(".", 2)[2].removesuffix(".v1"))
            for one in headers
        ]

    async def codes(self) -> list[str]:
        """Return the outcome of every observation that the ledger has decided with a record."""
        records = await self.log.read("gpuledger.events", 0, 0, 10_000)
        plain = [orjson.loads(one.value or b"{}") for one in records]
        return [
            one["outcome"]["code"]
            for one in plain
            if one["kind"] == "decision" and one["source"][0] == "observations"
        ]


class Listening:
    """Keeps the id of everything that is ever said, in order."""

    def __init__(self, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ids: list[str] = []
        say = journal.say

        def heard(kind: str, data: dict[str, Any]) -> Any:
            said = say(kind, data)
            self.ids.append(said.id)
            return said

        monkeypatch.setattr(journal, "say", heard)


async def test_ten_minutes_without_a_log_and_two_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that was seen is told, in order and once; what was ordered before is done."""
    rig = LogRig()
    said = Listening(rig.journal, monkeypatch)
    await rig.open()
    await rig.ask(submit(CELL, "r1", ask={"mode": "mig", "profile": "3g.40gb"}), submit(CELL, "r2"))
    await rig.live(3)
    assert 2 == len(rig.state.leases)
    before = len(await rig.told())

    rig.cable.pulled = True
    gpu = rig.node.gpus[1]
    await rig.live(60)
    gpu.recovery_action = 4
    await rig.live(120)
    await rig.restart()
    cut = rig.node.gpus[0]
    put_slice(cut, "1g.10gb", cut.free_places(cut.board.shape("1g.10gb"))[0])
    await rig.live(200)
    gpu.recovery_action = 0
    await rig.live(60)
    await rig.restart()
    await rig.live(160)
    assert before == len(await rig.told())
    assert 5 <= rig.journal.waiting()

    rig.cable.pulled = False
    await rig.live(15)
    ids = [name for name, _ in await rig.told()]
    assert said.ids == ids
    assert len(set(ids)) == len(ids)
    assert 0 == rig.journal.waiting()
    assert 2 == len(rig.state.leases)
    assert {one.uuid for _, one in rig.node.gpus[0].compute()} == {
        one.mig_uuid for one in rig.state.slices.values()
    }
    assert set(await rig.codes()) == {"observed"}
    assert "healthy" == rig.state.devices[gpu.uuid].health
    assert [] == check(rig.state)


async def _scenario(rig: LogRig) -> None:
    """A slice made, leased, given back and cleaned; a restart in between."""
    await rig.open()
    await rig.ask(submit(CELL, "r1", ask={"mode": "mig", "profile": "3g.40gb"}))
    await rig.live(3)
    await rig.restart()
    await rig.live(2)
    (lease,) = rig.state.leases
    await rig.ask(release(CELL, lease))
    await rig.live(6)
    await rig.ask(submit(CELL, "r2"))
    await rig.live(4)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_the_log_breaks_at_every_call(after: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call fails once, before or after its effect: all is told once and in order."""
    whole = LogRig()
    await _scenario(whole)
    assert 20 < whole.cable.calls
    for at in range(whole.cable.calls):
        rig = LogRig(at, after=after)
        said = Listening(rig.journal, monkeypatch)
        await _scenario(rig)
        ids = [name for name, _ in await rig.told()]
        assert said.ids == ids, f"call {at}: {whole.cable.names[at]}"
        assert {"observed"} == set(await rig.codes())
        assert 0 == rig.journal.waiting()
        assert ["r2"] == [one.request.rpartition("#")[2] for one in rig.state.leases.values()]
        assert [] == check(rig.state)


async def test_a_copy_of_an_order_does_not_make_a_second_slice() -> None:
    """Read again from the topic, as after a position that was not kept."""
    rig = LogRig()
    await rig.open()
    await rig.ask(submit(CELL, "r1", ask={"mode": "mig", "profile": "3g.40gb"}))
    await rig.live(3)
    for record in await rig.log.read("gpuledger.orders", 0, 0):
        await rig.log.append(
            "gpuledger.orders", None, [Entry(record.key, record.value, record.headers)]
        )
    await rig.live(3)
    assert 1 == len(list(rig.node.gpus[0].compute()))
    assert 1 == len(rig.state.leases)


async def test_without_a_journal_old_orders_are_not_done_again() -> None:
    """A new journal begins at the end of the topic: what was ordered before is over."""
    rig = LogRig()
    await rig.open()
    await rig.ask(submit(CELL, "r1", ask={"mode": "mig", "profile": "3g.40gb"}))
    rig.journal = Journal(":memory:", rig.time.clock)
    await rig.restart()
    await rig.live(3)
    assert [] == list(rig.node.gpus[0].compute())


async def test_a_journal_of_another_log_neither_answers_for_it_nor_makes_deaf() -> None:
    """Where a log was begun anew its ids come again: what was proved then proves nothing now."""
    rig = LogRig()
    await rig.open()
    for number in range(3):
        await rig.ask(submit(CELL, f"r{number}"))
        await rig.live(3)
        await rig.ask(release(CELL, f"/team/a#r{number}/1"))
        await rig.live(3)
    row = next(rig.journal.order(f"{CELL}-o{at}") for at in range(9) if _is_clean(rig, at))
    assert row is not None
    sick = rig.node.gpus[[one.uuid for one in rig.node.gpus].index(row.plain["units"][0])]
    sick.processes.append(OnGpu(4711, 900))
    plain = {**row.plain, "due_us": row.plain["due_us"] + 60 * SECOND}
    other = LogRig()
    other.node, other.journal, other.time = rig.node, rig.journal, rig.time
    await other.open()
    await other.log.append("gpuledger.orders", None, [Entry(b"n1", orjson.dumps(plain))])
    await other.live(3)
    assert [] == sick.processes, "it was looked for what is there now, and that was ended"


def _is_clean(rig: LogRig, number: int) -> bool:
    row = rig.journal.order(f"{CELL}-o{number}")
    return row is not None and row.kind == "clean"


async def test_records_of_others_and_garbage_do_no_harm() -> None:
    """What is no order, or another node's, is passed over; the position goes on."""
    rig = LogRig()
    await rig.open()
    count = await rig.log.partitions("gpuledger.orders")
    for entry in (
        Entry(b"n1", b"{"),
        Entry(b"n1", None),
        Entry(b"\xff", b"{}"),
        Entry(b"n9", b"{}"),
    ):
        for partition in range(count):
            await rig.log.append("gpuledger.orders", partition, [entry])
    await rig.ask(submit(CELL, "r1"))
    await rig.live(3)
    assert "running" == next(iter(rig.state.leases.values())).state


async def test_an_order_that_lacks_something_is_refused_and_the_next_is_heard() -> None:
    """It would be read again at each start: an agent must not end by it."""
    rig = LogRig()
    await rig.open()
    plain = {"node": "n1", "incarnation": "machine-boot-1", "cell": CELL}
    uuid = rig.node.gpus[0].uuid
    lacking: list[dict[str, Any]] = [
        {"kind": "partition", "units": []},
        {"kind": "mode", "units": [], "enabled": True},
        {"kind": "mode", "units": [uuid]},
        {"kind": "prepare", "units": [uuid]},
        {"kind": "clean", "units": [], "lease": "x"},
        {"kind": "stop", "units": [uuid]},
    ]
    for number, more in enumerate(lacking):
        order = orjson.dumps({**plain, **more, "order": f"{CELL}-o{900 + number}"})
        await rig.log.append("gpuledger.orders", None, [Entry(b"n1", order)])
    await rig.ask(submit(CELL, "r1"))
    await rig.live(3)
    assert "running" == next(iter(rig.state.leases.values())).state
    records = await rig.log.read(OBSERVATIONS, 0, 0, 10_000)
    plains = [orjson.loads(one.value or b"{}") for one in records]
    assert ["malformed"] * 6 == [one["reason"] for one in plains if "reason" in one]


# -- in real time -------------------------------------------------------------------------


def _agent(node: Any, journal: Journal) -> NodeAgent:
    return NodeAgent(
        FakeAsker(node),
        journal,
        Standing("n1", "h100"),
        CELL,
        facts=HostFacts("machine-boot-1", None, None),
        processes=FakeProcesses(node),
    )


def _steady() -> Clock:
    import time  # noqa: PLC0415 - the only test that needs the machine's clock

    return Clock(wall_clock_us, lambda: time.monotonic_ns() // 1000)


async def _run(log: Log, work: Callable[[EmbeddedLoop], Awaitable[None]]) -> None:
    """Run an agent on the log beside a ledger, until the work is done."""
    loop = EmbeddedLoop(log, settings(heartbeat_limit_s=1000))
    await loop.start()
    await log.append("gpuledger.requests", None, policy(CELL))
    node = make_node("n1", ["L40S"])
    stop = asyncio.Event()
    shell = NodeShell(
        log, _agent(node, Journal(":memory:", _steady())), ShellOptions(heartbeat_s=0.05)
    )
    with fake_library():
        running = asyncio.create_task(shell.run(stop))
        try:
            await asyncio.wait_for(work(loop), 30)
        finally:
            stop.set()
            await running
            await loop.close()


async def test_it_runs_by_itself() -> None:
    """From the grant to clean, with heartbeats, without anybody who calls its steps."""
    log = MemoryLog()
    await apply(log, "gpuledger", 1)

    async def work(loop: EmbeddedLoop) -> None:
        def cell() -> State:
            shard = loop.engine.shard(0)
            assert shard is not None
            return shard.fold.cell(CELL)

        async def until(condition: Callable[[], bool]) -> None:
            while not condition():
                await loop.step()
                await asyncio.sleep(0.01)

        await log.append("gpuledger.requests", None, [submit(CELL, "r1")])
        await until(lambda: any(one.state == "running" for one in cell().leases.values()))
        await log.append("gpuledger.requests", None, [release(CELL, next(iter(cell().leases)))])
        await until(lambda: not cell().leases and not cell().orders)
        assert ["available"] == [device_state(one) for one in cell().devices.values()]
        count = await log.partitions("gpuledger.heartbeats")
        await asyncio.sleep(0.1)
        assert sum([await log.end("gpuledger.heartbeats", at) for at in range(count)])

    await _run(log, work)


async def test_a_mistake_of_the_setup_ends_it() -> None:
    """Missing topics and a damaged log are not waited for."""

    class Damaged(FaultyLog):
        async def partitions(self, topic: str) -> int:
            raise LogDamaged("no log")

    node = make_node("n1", ["L40S"])
    for log, error in ((MemoryLog(), UnknownTopic), (Damaged(MemoryLog()), LogDamaged)):
        with pytest.raises(error):
            await NodeShell(log, _agent(node, Journal(":memory:", _steady()))).run(asyncio.Event())
