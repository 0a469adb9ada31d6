"""One question for all that a round asks: cheap if it goes well, and nobody else's loss if not."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from collectors.agent.agent import NodeOptions
from collectors.agent.shell import NodeShell, ShellOptions
from collectors.fake_nvml.faults import Fault
from collectors.fake_nvml.node import Event, on
from collectors.fake_nvml.reader import FakeAsker, fake_library
from collectors.health.hearing import WatchOptions
from collectors.nvml.events import XID
from collectors.nvml.ops import OPS
from collectors.nvml.reader import NvmlReader, Wanted
from collectors.nvml.session import Session
from collectors.use.watch import UseOptions
from ledger.log.memory import MemoryLog
from ledger.log.partition import partition_of
from ledger.log.topics import apply
from tests.node_support import SECOND, Rig, library
from tests.nvml_support import make_node

if TYPE_CHECKING:
    from collections.abc import Callable

    from collectors.fake_nvml.node import FakeNode
    from collectors.nvml.watchdog import Asker
    from collectors.said import Said

#: As the agent of a host has them.
OPTIONS = NodeOptions(look_us=SECOND, pass_us=30 * SECOND, watch=WatchOptions())


class Listed:
    """Asks, and notes what."""

    def __init__(self, inner: Asker) -> None:
        self.inner = inner
        self.ops: list[str] = []

    async def ask(self, op: str, *, timeout_s: float | None = None, **arguments: Any) -> Any:
        """See `collectors.nvml.watchdog.Asker`."""
        self.ops.append(op)
        return await self.inner.ask(op, timeout_s=timeout_s, **arguments)

    async def close(self) -> None:
        """See `collectors.nvml.watchdog.Asker`."""
        await self.inner.close()


class Sampled:
    """An agent that also samples use, on clocks that the test turns."""

    def __init__(self, *boards: str, window_s: int = 10, options: NodeOptions = OPTIONS) -> None:
        self.rig = Rig(boards, mig=False, options=options)
        self.asked = Listed(FakeAsker(self.rig.node))
        self.rig.asker = lambda _: self.asked
        self.rig.make()
        self.records: list[Said] = []
        self.watch = self.rig.agent.use_watch(UseOptions(window_us=window_s * SECOND))

    async def start(self) -> Sampled:
        """Start it, and let its first rounds be over."""
        await self.rig.start()
        self.rig.agent.on_use = self.records.append
        self.rig.agent.sample_for(self.watch)
        await self.seconds(3)
        self.asked.ops.clear()
        self.records.clear()
        return self

    async def seconds(self, count: int) -> None:
        """Let so many seconds pass, working when something is due."""
        end_us = self.rig.time.steady_us + count * SECOND
        with library():
            while (due_us := await self.rig.agent.work()) <= end_us:
                self.rig.time.passes(max(0, due_us - self.rig.time.steady_us))
        self.rig.time.passes(end_us - self.rig.time.steady_us)

    def device(self, gpu: int) -> dict[str, Any]:
        """Return the last record of a device."""
        uuid = self.rig.node.gpus[gpu].uuid
        (found,) = [one for one in self.records[-1].data["devices"] if one["uuid"] == uuid]
        return dict(found)


async def test_an_agent_at_rest_asks_one_question_a_second() -> None:
    """Use, what is due, signs and events; and each second of the window is sampled."""
    sampled = await Sampled("H100-80GB", "H100-80GB").start()
    await sampled.seconds(30)
    assert ["several"] * 30 == sampled.asked.ops
    assert [10 * SECOND] * 3 == [one.data["window_us"] for one in sampled.records]
    assert [10] * 2 == [one["samples"] for one in sampled.records[1].data["devices"]]


async def test_where_looks_and_samples_began_apart_they_come_together() -> None:
    """What became due in between is done with a sample, and no more rarely than it was."""
    sampled = await Sampled("H100-80GB").start()
    sampled.rig.time.passes(SECOND * 7 // 10)
    sampled.rig.agent.retell()
    await sampled.seconds(3)
    sampled.asked.ops.clear()
    await sampled.seconds(20)
    assert ["several"] * 20 == sampled.asked.ops


async def test_on_the_second_all_that_is_periodic_comes_at_whole_seconds() -> None:
    """Also after something else has come between: the log is looked at then, at one wake-up."""
    sampled = Sampled("H100-80GB", options=replace(OPTIONS, on_the_second=True))
    sampled.rig.time.passes(SECOND * 3 // 10)
    await sampled.start()
    agent, time = sampled.rig.agent, sampled.rig.time
    for past in (0, SECOND * 7 // 10, SECOND * 21 // 10):
        time.passes(past)
        with library():
            due = [await agent.work(), await agent.work()]
        assert [0, 0] == [one % SECOND for one in due]
        assert time.steady_us < due[0] <= time.steady_us + SECOND
        time.passes(due[0] - time.steady_us)
    assert [7, 0] == [agent.since_us(10 * SECOND + 7, SECOND), Rig().agent.since_us(7, SECOND)]


async def test_a_call_that_hangs_costs_its_device_alone_a_reading() -> None:
    """It rests; in the same round the other is sampled, looked at and listened to."""
    sampled = await Sampled("L40S", "L40S").start()
    sick, well = sampled.rig.node.gpus
    well.utilization = (50, 0)
    sampled.rig.node.faults = [Fault("nvmlDeviceGetUtilizationRates", "hang", gpu=sick.uuid)]
    await sampled.seconds(20)
    found, lost = sampled.device(1), sampled.device(0)
    assert (10, 500) == (found["samples"], found["busy_permille"])
    assert 10 * SECOND == found["measured_us"]
    assert "busy_permille" not in lost
    assert lost["missing"]["device"].startswith("hung: nvmlDeviceGetUtilizationRates")
    health = {one["device"]: one["health"] for kind, one in sampled.rig.said if "health" in one}
    assert well.uuid not in health


async def test_a_call_that_hangs_ends_nothing_on_the_others() -> None:
    """They are read in the same round; the one is unknown until its rest is over, and not gone."""
    sampled = await Sampled("L40S", "L40S", "L40S").start()
    rig = sampled.rig
    for name in ("r1", "r2"):
        rig.submit(name)
    await rig.settle(3)
    sick = rig.node.gpus[0]
    rig.said.clear()
    fault = Fault("nvmlDeviceGetUtilizationRates", "hang", gpu=sick.uuid, times=1)
    rig.node.faults = [fault]
    sampled.asked.ops.clear()
    await sampled.seconds(1)
    rig.tell_ledger()
    assert 0 == fault.times
    # Another process has no listing yet, so it reads all there is but the one.
    assert ["several", "uses", "pulse", "host", "device", "device"] == [
        one for one in sampled.asked.ops if one not in ("signs", "events")
    ]
    await sampled.seconds(40)
    rig.tell_ledger()
    told = [(one["device"], one["health"]) for kind, one in rig.said if kind == "device.health"]
    assert [(sick.uuid, "unknown"), (sick.uuid, "healthy")] == told
    inventories = [one for kind, one in rig.said if kind == "node.inventory"]
    assert all(3 == len(one["devices"]) for one in inventories)
    assert 2 == len(rig.cell.state.leases)


async def test_what_happens_in_a_round_in_which_another_device_hangs_is_heard() -> None:
    """After the restart the others are listened to again."""
    sampled = await Sampled("L40S", "L40S").start()
    sick, well = sampled.rig.node.gpus
    sampled.rig.node.faults = [Fault("nvmlDeviceGetUtilizationRates", "hang", gpu=sick.uuid)]
    await sampled.seconds(2)
    sampled.rig.node.happen(Event(well, XID, 79))
    await sampled.seconds(2)
    sampled.rig.tell_ledger()
    (told,) = [one for kind, one in sampled.rig.said if "fault" in one]
    assert (well.uuid, 79) == (told["device"], told["fault"]["xid"])


async def test_a_call_that_hangs_for_no_device_costs_its_own_question_alone() -> None:
    """Which it was is not known: each is asked apart, and use is sampled all the same."""
    sampled = await Sampled("L40S").start()
    sampled.rig.node.gpus[0].utilization = (50, 0)
    sampled.rig.node.faults = [Fault("nvmlEventSetWait_v2", "hang")]
    await sampled.seconds(20)
    assert (10, 500) == (sampled.device(0)["samples"], sampled.device(0)["busy_permille"])


async def test_what_is_asked_at_once_is_what_is_asked_apart() -> None:
    """The same answers, and what a device lacks is missing in both."""
    node = make_node("n1", ("T4", "H100-80GB"))
    uuids = [gpu.uuid for gpu in node.gpus]
    with fake_library():
        apart, reader = NvmlReader(FakeAsker(node)), NvmlReader(asked := Listed(FakeAsker(node)))
        for one in (apart, reader):
            await one.inventory()
        asked.ops.clear()
        uses: dict[str, Any] = {"uuids": uuids, "wide": True, "counted": True}
        async with reader.at_once(Wanted(uses, (uuids, uuids[:1]), uuids, uuids)):
            got = [
                await reader.uses(**uses),
                await reader.pulse(uuids, uuids[:1]),
                [await reader.signs(uuid) for uuid in uuids],
                await reader.events(uuids),
            ]
        assert ["several"] == asked.ops
        wanted = [
            await apart.uses(**uses),
            await apart.pulse(uuids, uuids[:1]),
            [await apart.signs(uuid) for uuid in uuids],
            await apart.events(uuids),
        ]
        await reader.events(uuids)
    assert wanted == got
    assert ["several", "events"] == asked.ops, "an answer is good once"


async def test_an_order_is_answered_after_what_had_happened_before_it() -> None:
    """With an order open what has happened is asked for then, and nothing is taken from before."""
    sampled = await Sampled("L40S").start()
    sampled.rig.submit("r1")
    sampled.rig.hear()
    with library():
        await sampled.rig.agent.work()
    assert "events" == sampled.asked.ops[0]


def once(node: FakeNode, session: Session, questions: int) -> int:
    """Return how many calls a device's signs take at one question, after the first ones."""
    uuid = node.gpus[0].uuid
    before = node.calls
    OPS["several"](session, questions=[("signs", {"uuid": uuid})] * questions)
    return node.calls - before


def test_a_handle_is_looked_at_once_in_a_question() -> None:
    """And again in the next: a handle does not outlive a reset."""
    node = make_node("n1", ("L40S",))
    with fake_library(), on(node):
        session = Session()
        once(node, session, 1)
        one, two = once(node, session, 1), once(node, session, 2)
        assert 2 * one - 1 == two
        node.gpus[0].reset()
        node.forget_handles()
        OPS["several"](session, questions=[("signs", {"uuid": node.gpus[0].uuid})])
        (signs,) = OPS["several"](session, questions=[("signs", {"uuid": node.gpus[0].uuid})])
    assert ("", 0) == (signs.why, signs.recovery_action)


class Slow(FakeAsker):
    """Reads a device no sooner than it is told to: a change takes as long, step by step."""

    def __init__(self, node: FakeNode) -> None:
        super().__init__(node)
        self.go = asyncio.Event()

    async def ask(self, op: str, *, timeout_s: float | None = None, **arguments: Any) -> Any:
        """See `collectors.nvml.watchdog.Asker`."""
        if op == "device":
            await self.go.wait()
        return await super().ask(op, timeout_s=timeout_s, **arguments)


async def test_samples_are_taken_while_the_agent_is_long_at_work() -> None:
    """A change of partitions takes seconds, and its steps are asked one by one."""
    rig = Rig(("L40S",), mig=False)
    slow = Slow(rig.node)
    rig.asker = lambda _: slow
    rig.make()
    log = MemoryLog()
    await apply(log, "gpuledger", 1)
    place = partition_of(b"n1", await log.partitions("gpuledger.usage"))
    use = UseOptions(sample_us=20_000, window_us=60_000)
    shell, stop = NodeShell(log, rig.agent, ShellOptions(use=use)), asyncio.Event()
    with library():
        task = asyncio.create_task(shell.run(stop))
        for _ in range(3000):
            rig.time.passes(10_000)
            await asyncio.sleep(0.002)
            if await log.end("gpuledger.usage", place):
                break
        assert await log.end("gpuledger.usage", place), "no window while a device is read"
        assert not await log.end("gpuledger.observations", 0), "the first look is not over"
        slow.go.set()
        stop.set()
        await task


class Meanwhile:
    """Answers a round's questions, and just before the events lets something happen, once."""

    def __init__(self, inner: Asker, happens: Callable[[], None]) -> None:
        self.inner = inner
        self.happens: Callable[[], None] | None = happens

    async def ask(self, op: str, *, timeout_s: float | None = None, **arguments: Any) -> Any:
        """See `collectors.nvml.watchdog.Asker`."""
        questions = arguments.get("questions", ())
        if self.happens is None or not {"signs", "events"} <= {name for name, _ in questions}:
            return await self.inner.ask(op, timeout_s=timeout_s, **arguments)
        answers = []
        for name, more in questions:
            if name == "events":
                self.happens()
            answers.append(await self.inner.ask(name, **more))
        self.happens = None
        return answers

    async def close(self) -> None:
        """See `collectors.nvml.watchdog.Asker`."""
        await self.inner.close()


async def test_an_xid_is_judged_by_signs_that_were_read_after_it() -> None:
    """It struck while a round asked: what the device said before that is no verdict on it."""
    sampled = await Sampled("L40S").start()
    rig = sampled.rig
    (gpu,) = rig.node.gpus

    def strikes() -> None:
        gpu.recovery_action = 1
        rig.node.happen(Event(gpu, XID, 119))

    sampled.asked.inner = asker = Meanwhile(sampled.asked.inner, strikes)
    while asker.happens is not None:
        await sampled.seconds(1)
    rig.tell_ledger()
    (told,) = [one for _, one in rig.said if "fault" in one]
    assert ("xid-119", "device") == (told["fault"]["code"], told["fault"]["ends"])
    assert ("unhealthy", 1) == (told["health"], told["evidence"]["recovery_action"])


async def test_an_answer_to_another_question_is_none() -> None:
    """A sample that was planned anew meanwhile, as a wide one, is asked for as that."""
    node = make_node("n1", ("L40S",))
    (uuid,) = [gpu.uuid for gpu in node.gpus]
    with fake_library():
        reader = NvmlReader(FakeAsker(node))
        uses: dict[str, Any] = {"uuids": [uuid], "wide": False, "counted": False}
        async with reader.at_once(Wanted(uses, None, [uuid], [uuid])):
            (found,) = await reader.uses(**uses | {"wide": True})
    assert found.memory is not None
