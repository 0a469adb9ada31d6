"""The agent in real time, over a memory log with a ledger on the other side."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from collectors.fleet.description import DeviceSpec, NodeSpec, device_uuid
from collectors.fleet.fault_plan import DeviceFault, Down, FaultPlan
from collectors.light import agent as agent_module
from collectors.light.agent import Agent, AgentOptions
from collectors.light.node import Timing
from ledger.core.invariants import check
from ledger.core.state import device_state
from ledger.log.memory import MemoryLog
from ledger.log.port import (
    Entry,
    Log,
    LogDamaged,
    LogUnavailable,
    Record,
    TopicState,
    UnknownTopic,
)
from ledger.log.topics import apply
from processors.embedded import EmbeddedLoop
from tests.processor_support import Site, policy, settings, submit

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from ledger.core.state import State

CELL = "dc1"
MS = 1_000
TIMING = Timing(
    start_us=5 * MS,
    stop_us=5 * MS,
    clean_us=5 * MS,
    inventory_every_us=10_000_000,
    default_run_us=40 * MS,
)
OPTIONS = AgentOptions(heartbeat_s=0.05, timing=TIMING)


class CutLog(Log):
    """A log whose cable can be pulled: every call raises while it is; nothing gets through."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.cut = False
        self.unknown = 0

    def _check(self) -> None:
        if self.cut:
            raise LogUnavailable("the cable is pulled")

    async def partitions(self, topic: str) -> int:
        """See `Log.partitions`."""
        self._check()
        return await self._log.partitions(topic)

    async def begin(self, topic: str, partition: int) -> int:
        """See `Log.begin`."""
        self._check()
        return await self._log.begin(topic, partition)

    async def end(self, topic: str, partition: int) -> int:
        """See `Log.end`."""
        self._check()
        return await self._log.end(topic, partition)

    async def append(
        self, topic: str, partition: int | None, entries: Sequence[Entry]
    ) -> list[int]:
        """See `Log.append`. ``unknown`` appends of observations take place unacknowledged."""
        self._check()
        offsets = await self._log.append(topic, partition, entries)
        if self.unknown and topic.endswith(".observations"):
            self.unknown -= 1
            raise LogUnavailable("no acknowledgement")
        return offsets

    async def read(
        self, topic: str, partition: int, start: int, limit: int = 1000, wait_s: float = 0.0
    ) -> list[Record]:
        """See `Log.read`; the wait is short, so that a pulled cable is noticed soon."""
        self._check()
        return await self._log.read(topic, partition, start, limit, min(wait_s, 0.02))

    async def create_topics(self, topics: Mapping[str, TopicState]) -> list[str]:
        """See `Log.create_topics`."""
        self._check()
        return await self._log.create_topics(topics)

    async def describe_topics(self, names: Sequence[str]) -> dict[str, TopicState]:
        """See `Log.describe_topics`."""
        self._check()
        return await self._log.describe_topics(names)

    async def close(self) -> None:
        """See `Log.close`."""
        await self._log.close()


def spec(name: str, devices: int = 2) -> NodeSpec:
    """Return a node of the test's pool."""
    cards = tuple(DeviceSpec(device_uuid(name, at), "H100", 81_559, at) for at in range(devices))
    return NodeSpec(name, "h100", cards)


class Rig:
    """A ledger, an agent on a log that can be cut, and whoever asks."""

    def __init__(self, log: MemoryLog, agent: Agent, cut: CutLog, loop: EmbeddedLoop) -> None:
        self.log = log
        self.agent = agent
        self.cut = cut
        self.loop = loop
        # Only its client's half is wanted: nodes answer for themselves here.
        self.site = Site(log, releases=False, cleans=False)

    @property
    def state(self) -> State:
        """The cell as the ledger sees it."""
        shard = self.loop.engine.shard(0)
        assert shard is not None
        return shard.fold.cells[CELL]

    def over(self, name: str) -> bool:
        """Say whether a request has ended and what it held is clean."""
        key = f"/team/a#{name}"
        state = self.state
        return key in state.seen and key not in state.requests and not state.orders

    async def until(self, condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
        """Let the ledger work until ``condition`` holds."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, "it did not come about in time"
            await self.loop.step()
            await asyncio.sleep(0.005)

    async def observations(self, kind: str) -> list[dict[str, Any]]:
        """Return the data of every observation of a type, in the order of the log."""
        records = await self.log.read("gpuledger.observations", 0, 0, 10_000)
        wire = f"io.gpuledger.{kind}.v1".encode()
        return [
            orjson.loads(one.value or b"{}") for one in records if ("ce_type", wire) in one.headers
        ]


@asynccontextmanager
async def rig(
    *specs: NodeSpec, plan: FaultPlan | None = None, options: AgentOptions = OPTIONS
) -> AsyncIterator[Rig]:
    """Start a ledger with a pool, and an agent of ``specs``; end both afterwards."""
    log = MemoryLog()
    await apply(log, "gpuledger", 1)
    loop = EmbeddedLoop(log, settings(heartbeat_limit_s=1000))
    await loop.start()
    await log.append("gpuledger.requests", None, policy(CELL))
    await loop.step()
    cut = CutLog(log.another())
    agent = Agent(cut, CELL, specs, plan=plan, options=options)
    found = Rig(log, agent, cut, loop)
    stop = asyncio.Event()
    running = asyncio.create_task(agent.run(stop))
    try:
        await found.until(lambda: len(found.state.nodes) == len(specs))
        yield found
        assert not running.done(), running
    finally:
        stop.set()
        await running
        await loop.close()


async def test_from_grant_to_clean() -> None:
    """Granted, started, ended by itself, cleaned; nothing is left."""
    async with rig(spec("n1"), spec("n2")) as found:
        await found.site.ask([submit(CELL, "r1", ask={"mode": "whole", "count": 2, "nodes": 2})])
        await found.until(lambda: any(one.busy for one in found.agent.nodes.values()))
        await found.until(lambda: found.over("r1"))
        assert check(found.state) == []
        assert {device_state(one) for one in found.state.devices.values()} == {"available"}
        started = await found.observations("task.started")
        ended = await found.observations("task.ended")
        assert {one["node"] for one in started} == {one["node"] for one in ended} == {"n1", "n2"}
        assert {one["how"] for one in ended} == {"completed"}
        proofs = await found.observations("order.done")
        assert [one["evidence"]["processes"] for one in proofs] == [0] * len(proofs)
        await found.site.work()
        assert found.site.answers("r1") == ["granted", "ended"]


async def test_cut_off_and_back() -> None:
    """What happened meanwhile is kept and told in order; the next order is heard."""
    async with rig(spec("n1", 4)) as found:
        names = [f"r{at}" for at in range(4)]
        await found.site.ask([submit(CELL, name) for name in names])
        await found.until(lambda: len(found.agent.nodes["n1"].running) == len(names))
        await found.until(lambda: all(one.started_us for one in found.state.leases.values()))
        found.cut.cut = True
        deadline = time.monotonic() + 20
        while found.agent.unsent < len(names):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        assert not await found.observations("task.ended")
        found.cut.cut = False
        await found.until(lambda: not found.state.requests and not found.state.orders)
        ended = await found.observations("task.ended")
        assert [one["node_time_us"] for one in ended] == sorted(
            one["node_time_us"] for one in ended
        )
        assert len(ended) == len(names)
        assert found.agent.unsent == 0
        assert check(found.state) == []


async def test_an_append_that_was_not_acknowledged_is_repeated() -> None:
    """The copy has the same ids, and changes nothing."""
    async with rig(spec("n1")) as found:
        found.cut.unknown = 2
        await found.site.ask([submit(CELL, "r1")])
        await found.until(lambda: found.over("r1"))
        records = await found.log.read("gpuledger.observations", 0, 0, 10_000)
        ids = [dict(one.headers)["ce_id"] for one in records]
        assert found.cut.unknown == 0
        assert len(ids) >= len(set(ids)) + 2
        assert check(found.state) == []


async def test_a_log_that_is_not_there_yet_is_waited_for() -> None:
    """An agent may start before its broker does."""
    log = MemoryLog()
    await apply(log, "gpuledger", 1)
    cut = CutLog(log.another())
    cut.cut = True
    agent = Agent(cut, CELL, [spec("n1")], options=OPTIONS)
    stop = asyncio.Event()
    running = asyncio.create_task(agent.run(stop))
    await asyncio.sleep(0.15)
    assert await log.end("gpuledger.observations", 0) == 0
    cut.cut = False
    records = await log.read("gpuledger.observations", 0, 0, wait_s=10)
    assert [one.key for one in records] == [CELL.encode()]
    stop.set()
    await running


async def test_a_fault_plan_counts_from_the_start() -> None:
    """A device that goes, and an agent that stops beating."""
    plan = FaultPlan(
        fault=(
            DeviceFault(kind="device", node="n1", at_s=0, device=1, health="gone"),
            Down(kind="down", node="n2", at_s=0),
        )
    )
    async with rig(spec("n1"), plan=plan) as found:
        uuid = device_uuid("n1", 1)
        await found.until(lambda: found.state.devices[uuid].health == "gone")
    async with rig(
        spec("n1"), plan=FaultPlan(fault=(Down(kind="down", node="n1", at_s=1),))
    ) as found:
        await found.until(lambda: not found.agent.nodes["n1"].connected)
        # What was under way when it went is out by then.
        await asyncio.sleep(0.05)
        before = sum([await found.log.end("gpuledger.heartbeats", at) for at in range(4)])
        assert before
        await asyncio.sleep(0.2)
        after = sum([await found.log.end("gpuledger.heartbeats", at) for at in range(4)])
        assert after == before


async def test_faster_tasks() -> None:
    """An hour in a few milliseconds."""
    options = AgentOptions(heartbeat_s=0.05, speed=100_000, timing=TIMING)
    async with rig(spec("n1"), options=options) as found:
        await found.site.ask([submit(CELL, "r1", expected_run_s=3600)])
        await found.until(lambda: found.over("r1"))
        (ended,) = await found.observations("task.ended")
        assert 36 * MS <= ended["took_us"] < 10_000 * MS


async def test_orders_of_others_and_garbage_do_no_harm() -> None:
    """Records that are no orders, and orders for nodes of other agents, are passed over."""
    async with rig(spec("n1")) as found:
        topic = "gpuledger.orders"
        await found.log.append(topic, None, [Entry(b"n1", b"{"), Entry(b"n9", b"{}")])
        await found.log.append(topic, None, [Entry(b"n1", None), Entry(b"\xff", b"{}")])
        await found.site.ask([submit(CELL, "r1")])
        await found.until(lambda: found.over("r1"))


async def test_at_the_limit_nothing_more_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The nodes keep what they have to say, and all of it is told when the log is back."""
    monkeypatch.setattr(agent_module, "MAX_UNSENT", 1)
    async with rig(spec("n1"), spec("n2")) as found:
        nodes = found.agent.nodes.values()
        await found.site.ask([submit(CELL, f"r{at}") for at in range(4)])
        await found.until(lambda: [len(one.running) for one in nodes] == [2, 2])
        found.cut.cut = True
        await found.until(lambda: not any(one.running for one in nodes))
        # What one node had to say at one time was taken; the other keeps its own.
        assert 1 <= found.agent.unsent <= 2
        found.cut.cut = False
        await found.until(lambda: all(found.over(f"r{at}") for at in range(4)))


async def test_without_topics_it_ends() -> None:
    """A mistake of the setup is not waited for."""
    agent = Agent(MemoryLog(), CELL, [spec("n1")])
    with pytest.raises(UnknownTopic):
        await agent.run(asyncio.Event())


async def test_a_damaged_log_ends_it() -> None:
    """Waiting would not mend it."""

    class Damaged(CutLog):
        async def end(self, topic: str, partition: int) -> int:
            raise LogDamaged("no log")

    log = MemoryLog()
    await apply(log, "gpuledger", 1)
    with pytest.raises(LogDamaged):
        await Agent(Damaged(log), CELL, [spec("n1")]).run(asyncio.Event())
