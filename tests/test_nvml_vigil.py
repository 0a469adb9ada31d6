"""Rounds of NVML's process alone: as if the agent had made them, and over when it matters."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from collectors.agent.agent import NodeAgent, NodeOptions
from collectors.agent.journal import Clock, Journal
from collectors.agent.processes import HostProcesses
from collectors.agent.shell import NodeShell
from collectors.fake_nvml.faults import Fault
from collectors.fake_nvml.node import Event, make_node, on
from collectors.fake_nvml.reader import FakeAsker, fake_library
from collectors.health.hearing import WatchOptions
from collectors.nvml.child import Questions
from collectors.nvml.codes import Code
from collectors.nvml.events import XID
from collectors.nvml.host_facts import HostFacts
from collectors.nvml.ops import OPS
from collectors.nvml.reader import NvmlReader, Routine
from collectors.nvml.report import Standing
from collectors.nvml.session import Session
from collectors.nvml.use import read_uses
from collectors.nvml.watchdog import ChildFailed, NvmlChild
from collectors.use.watch import UseOptions
from ledger.log.memory import MemoryLog
from ledger.log.partition import partition_of
from ledger.log.port import Entry
from ledger.log.topics import apply
from tests.node_support import SECOND, Rig, library

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from collectors.fake_nvml.node import FakeNode
    from collectors.said import Said

#: As the agent of a host has them.
OPTIONS = NodeOptions(look_us=SECOND, pass_us=30 * SECOND, on_the_second=True, watch=WatchOptions())


class Rested:
    """An agent on clocks that the test turns, at rest when it can be, or always awake.

    ``at`` is what happens at which second.
    """

    def __init__(self, *boards: str, rests: bool = True, options: NodeOptions = OPTIONS) -> None:
        self.rig = Rig(boards, mig=False, options=options)
        self.rests = rests
        self.at: dict[int, Callable[[], None]] = {}
        self.wake = asyncio.Event()
        #: What was asked by one question each, and how many rounds came of a vigil.
        self.asked: list[str] = []
        self.rounds: list[int] = []
        self.records: list[Said] = []
        #: At which seconds something was told.
        self.told_s: list[int] = []
        self.asker = FakeAsker(self.rig.node, self.session)
        self.rig.asker = lambda _: self
        self.rig.make()
        self.watch = self.rig.agent.use_watch(UseOptions())

    def session(self) -> Session:
        """Make a session for which time passes."""
        return Session(pause=self.pause, steady_us=self.rig.time.clock.steady_us)

    def pause(self, wait_s: float) -> bool:
        """Let time pass, and what happens then; say whether the agent wants something."""
        self.passes(round(wait_s * SECOND))
        return self.wake.is_set()

    def passes(self, wait_us: int) -> None:
        """Let time pass, and what happens at its end."""
        self.rig.time.passes(wait_us)
        second = self.rig.time.steady_us // SECOND
        for due in [due for due in self.at if due <= second]:
            self.at.pop(due)()

    async def ask(self, op: str, *, timeout_s: float | None = None, **arguments: Any) -> Any:
        """See `collectors.nvml.watchdog.Asker`."""
        self.asked.append(op)
        found = await self.asker.ask(op, timeout_s=timeout_s, **arguments)
        if op == "vigil":
            self.rounds.append(len(found["samples"]))
        return found

    async def close(self) -> None:
        """See `collectors.nvml.watchdog.Asker`."""
        await self.asker.close()

    async def start(self) -> Rested:
        """Start it at a whole second, and let it come to rest in the middle of a window."""
        await self.rig.start()
        self.rig.agent.on_use = self.records.append
        self.rig.agent.sample_for(self.watch)
        with library():
            while self.rig.time.steady_us < self.watch.more_us:
                self.passes(await self.rig.agent.work() - self.rig.time.steady_us)
        await self.seconds(0)
        self.asked.clear()
        self.rounds.clear()
        self.records.clear()
        self.rig.said.clear()
        self.told_s.clear()
        return self

    async def seconds(self, count: int) -> None:
        """Let so many seconds pass at least, working when something is due, and rest at the end.

        It ends where a rest or a second would begin.
        """
        end_us = self.rig.time.steady_us + count * SECOND
        with library():
            while True:
                self.wake.clear()
                self.rig.hear()
                due_us = await self.rig.agent.work()
                if self.rig.tell_ledger() or self.rig.unheard:
                    self.told_s.append(self.second)
                    continue
                if due_us > end_us:
                    return
                if self.rests:
                    due_us = await self.rig.agent.rest(due_us, self.wake)
                if not self.wake.is_set():
                    self.passes(max(0, due_us - self.rig.time.steady_us))

    @property
    def second(self) -> int:
        """The second that it is, by the steady clock."""
        return self.rig.time.steady_us // SECOND


def told(rested: Rested) -> list[tuple[str, Any]]:
    """Return what was said of devices, without when."""
    return [(kind, one.get("health", "")) for kind, one in rested.rig.said]


async def test_a_node_at_rest_is_asked_two_questions_in_ten_seconds() -> None:
    """Nine rounds at one, and the tenth with counters, signs and the window's end."""
    rested = await Rested("H100-80GB", "H100-80GB").start()
    await rested.seconds(30)
    assert ["vigil", "several"] * 3 == rested.asked[:6]
    assert {9} == set(rested.rounds)


@pytest.mark.parametrize("board", ["H100-80GB", "T4"])
async def test_the_records_are_those_of_an_agent_that_is_awake(board: str) -> None:
    """Every second is sampled, at the same times, and so each mean and time is the same."""
    found = []
    for rests in (True, False):
        rested = await Rested(board, rests=rests).start()
        (gpu,) = rested.rig.node.gpus

        def uses(percent: int, gpu: Any = gpu) -> Callable[[], None]:
            return lambda: setattr(gpu, "utilization", (percent, 0))

        rested.at = {rested.second + at: uses(7 * at) for at in range(1, 14)}
        await rested.seconds(45)
        assert rests == ("vigil" in rested.asked)
        found.append([one.data for one in rested.records[:3]])
    assert found[0] == found[1]
    assert [11, 10, 10] == [one["devices"][0]["samples"] for one in found[0]]
    assert len({one["devices"][0]["busy_permille"] for one in found[0]}) > 1


def happening(mode: str, node: FakeNode) -> Callable[[], None]:
    """Return what happens to the first GPU of a node."""
    gpu = node.gpus[0]
    hangs = Fault("nvmlDeviceGetMigMode", "hang", gpu=gpu.uuid, times=1)
    happenings: dict[str, Callable[[], None]] = {
        "mig": lambda: setattr(gpu, "mig", 1),
        "xid": lambda: node.happen(Event(gpu, XID, 79)),
        "lost": lambda: setattr(gpu, "lost", True),
        "hang": lambda: node.faults.append(hangs),
    }
    return happenings[mode]


@pytest.mark.parametrize("mode", ["mig", "xid", "lost", "hang"])
async def test_what_happens_ends_the_rest_in_the_same_second(mode: str) -> None:
    """It is told as an agent that is awake tells it, and no later."""
    heard = []
    for rests in (True, False):
        rested = await Rested("H100-80GB", "H100-80GB", rests=rests).start()
        rested.at[rested.second + 5] = happening(mode, rested.rig.node)
        began = rested.rig.time.steady_us
        await rested.seconds(20)
        assert rests == ("vigil" in rested.asked)
        heard.append((rested.told_s[0] - began // SECOND, told(rested)))
    assert heard[0] == heard[1]
    assert 5 == heard[0][0]


async def test_an_order_ends_the_rest_before_the_next_round() -> None:
    """The one question that waits is answered at once, and the order is carried out."""
    rested = await Rested("H100-80GB").start()

    def order() -> None:
        rested.rig.submit("r1")
        rested.wake.set()

    rested.at[rested.second + 4] = order
    began = rested.rig.time.steady_us
    await rested.seconds(4)
    assert [3] == [one for one in rested.rounds if one < 9]
    assert rested.rig.time.steady_us < began + 6 * SECOND
    (lease,) = rested.rig.cell.state.leases.values()
    assert "running" == lease.state


async def test_nobody_rests_while_something_is_awaited() -> None:
    """A lease that is idle may be used again at any sample; and something may be sick."""
    rested = await Rested("H100-80GB").start()
    rested.rig.submit("r1")
    await rested.seconds(80)
    assert [True] == [one["idle"] for kind, one in rested.rig.said if kind == "task.use"]
    rested.asked.clear()
    await rested.seconds(5)
    assert {"several"} == set(rested.asked)
    rested.at[rested.second + 2] = lambda: setattr(rested.rig.node.gpus[0], "utilization", (50, 0))
    await rested.seconds(4)
    assert [True, False] == [one["idle"] for kind, one in rested.rig.said if kind == "task.use"]
    rested.asked.clear()
    await rested.seconds(20)
    assert "vigil" in rested.asked


async def test_a_lease_is_idle_from_the_same_moment_on() -> None:
    """It is told some seconds later than it was seen, and says that much more."""
    since = []
    for rests in (True, False):
        rested = await Rested("H100-80GB", rests=rests).start()
        rested.rig.submit("r1")
        await rested.seconds(80)
        (lease,) = rested.rig.cell.state.leases.values()
        assert lease.idle_since_us is not None
        since.append(lease.idle_since_us // SECOND)
    assert since[0] == since[1]


async def test_who_is_not_on_the_second_or_has_other_periods_does_not_rest() -> None:
    """Many agents in one process do all at once already; and rounds are of one period."""
    for options in (
        replace(OPTIONS, on_the_second=False),
        replace(OPTIONS, watch=WatchOptions(listen_us=2 * SECOND)),
    ):
        rested = await Rested("H100-80GB", options=options).start()
        await rested.seconds(20)
        assert "vigil" not in rested.asked


async def test_where_nothing_can_be_heard_a_node_rests_all_the_same() -> None:
    """Some drivers have no events: that is so each second, and no news."""
    rested = await Rested("H100-80GB").start()
    for function in ("nvmlEventSetWait_v2", "nvmlEventSetCreate"):
        rested.rig.node.faults.append(Fault(function, Code.NOT_SUPPORTED))
    await rested.seconds(10)
    rested.asked.clear()
    rested.rounds.clear()
    await rested.seconds(30)
    assert ["vigil", "several"] * 3 == rested.asked[:6]
    assert {9} == set(rested.rounds)
    assert [] == rested.rig.said


async def test_a_rest_that_fails_is_not_tried_again_at_once() -> None:
    """The process may be of another version, in which that is no question: then all is asked."""
    rested = await Rested("H100-80GB").start()
    ask, tries = rested.asker.ask, []

    async def fail(op: str, **more: Any) -> Any:
        if op != "vigil":
            return await ask(op, **more)
        tries.append(rested.second)
        assert len(tries) < 9
        raise ChildFailed("no question is called 'vigil'")

    rested.asker.ask = fail  # type: ignore[method-assign]
    began = rested.second
    await rested.seconds(100)
    assert [0, 30, 90] == [second - began for second in tries]
    assert [10 * SECOND] == sorted({one.data["window_us"] for one in rested.records[1:]})


async def test_a_node_that_is_slow_is_not_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows are as long as ever, and one slow call is not seen in each of many rounds."""
    rested = await Rested("H100-80GB").start()

    def slow(*given: Any, **more: Any) -> Any:
        rested.passes(3 * SECOND // 2)
        return read_uses(*given, **more)

    monkeypatch.setattr("collectors.nvml.vigil.read_uses", slow)
    await rested.seconds(60)
    assert {1} == set(rested.rounds)
    assert [10 * SECOND] == sorted({one.data["window_us"] for one in rested.records[1:]})


async def test_nobody_rests_when_work_is_due_by_now() -> None:
    """A round took longer than a second; what came due meanwhile is not put off."""
    rested = await Rested("H100-80GB").start()
    with library():
        due_us = await rested.rig.agent.work()
        rested.passes(due_us - rested.rig.time.steady_us)
        assert due_us == await rested.rig.agent.rest(due_us, rested.wake)
    assert "vigil" not in rested.asked


async def test_a_line_of_the_kernels_log_ends_the_rest(tmp_path: Path) -> None:
    """A ring can say that there is something to read; a file cannot, and is read each second."""
    ring, file = tmp_path / "ring", tmp_path / "file"
    os.mkfifo(ring)
    file.write_text("")
    for path, rests in ((ring, True), (file, False)):
        watch = WatchOptions(kernel_log=path)
        rested = await Rested("H100-80GB", options=replace(OPTIONS, watch=watch)).start()
        await rested.seconds(20)
        assert rests == ("vigil" in rested.asked)
        rested.rig.agent.close()


async def test_a_readable_ring_wakes(tmp_path: Path) -> None:
    """The event is set once while the block runs, and nobody listens after it."""
    ring = tmp_path / "ring"
    os.mkfifo(ring)
    options = replace(OPTIONS, watch=WatchOptions(kernel_log=ring))
    rested = Rested("H100-80GB", options=options)
    await rested.rig.start()
    hearing, wake = rested.rig.agent._health.hearing, asyncio.Event()
    assert hearing.at_ease
    pen = os.open(ring, os.O_WRONLY)
    with hearing.waking(wake):
        os.write(pen, b"6,1,1,-;NVRM: nothing\n")
        await asyncio.wait_for(wake.wait(), 60)
        # The line is still there, and the block may last as long as a call that hangs.
        wake.clear()
        await asyncio.sleep(0.05)
        assert not wake.is_set()
    unread, again = not hearing.at_ease, asyncio.Event()
    assert unread
    with hearing.waking(again):
        pass
    await asyncio.sleep(0)
    assert not again.is_set()
    rested.rig.agent.close()
    os.close(pen)


# -- the process ---------------------------------------------------------------------


def test_questions_are_lines_and_an_empty_one_is_none() -> None:
    """Whole or in parts, many at once or the last one cut off by the end."""
    read, write = os.pipe()
    questions = Questions(read)
    assert not questions.another_within(0)
    os.write(write, b"\n\n{1}\n{2}\n\n{3")
    assert questions.another_within(0)
    lines = iter(questions)
    assert [b"{1}", b"{2}"] == [next(lines), next(lines)]
    assert questions.another_within(0), "what was read ahead is there"
    os.write(write, b"}\n")
    assert b"{3}" == next(lines)
    assert not questions.another_within(0)
    os.close(write)
    assert questions.another_within(0), "the end is no reason to wait"
    assert [] == list(lines)
    os.close(read)


def test_in_the_process_that_asks_nothing_is_waited_for() -> None:
    """It could not ask anything meanwhile."""
    node = make_node("n1", ("T4",))
    with fake_library(), on(node):
        found = OPS["vigil"](
            Session(), uses=None, uuids=[], events=[], rounds=5, every_us=3600 * SECOND
        )
    assert {"news": False, "samples": [], "events": None} == found


@pytest.fixture
def described(tmp_path: Path) -> Path:
    """A node of two boards, of which the second hangs in one call."""
    path = tmp_path / "node.toml"
    path.write_text(
        '[[gpu]]\nboard = "H100-80GB"\ncount = 2\n\n'
        '[[fault]]\nfunction = "nvmlDeviceGetUtilizationRates"\ndoes = "hang"\ngpu = 1\n'
    )
    return path


async def test_the_process_makes_rounds_until_it_is_hurried(described: Path) -> None:
    """At multiples of the period by the clock that both have; then other questions go on."""
    child, hurry = NvmlChild(fake=described), asyncio.Event()
    try:
        reader = NvmlReader(child)
        (one, _) = (await reader.inventory()).devices
        wanted = Routine([one.uuid], [one.uuid], [one.uuid])
        found = await reader.vigil(wanted, 3, 50_000, hurry)
        assert (3, False) == (len(found.samples), found.news)
        stamps = [at_us // 50_000 for at_us, _ in found.samples]
        assert stamps == sorted(set(stamps))
        asyncio.get_running_loop().call_later(0.1, hurry.set)
        found = await asyncio.wait_for(reader.vigil(wanted, 1, 3600 * SECOND, hurry), 60)
        assert (0, False) == (len(found.samples), found.news)
        again = await reader.device(one.uuid)
        assert (one.uuid, "", 1) == (again.uuid, again.why, child.starts)
    finally:
        await child.close()


async def test_a_call_that_hangs_in_a_vigil_costs_its_device_a_rest(described: Path) -> None:
    """Pauses, which in sum are longer than a call may take, are not taken for one that hangs."""
    child = NvmlChild(fake=described, answer_s=2)
    try:
        reader = NvmlReader(child)
        devices = (await reader.inventory()).devices
        well, sick = [one.uuid for one in devices]
        wanted = Routine([well], [well], [])
        found = await reader.vigil(wanted, 30, 90_000, asyncio.Event())
        assert (30, False, 1, True) == (
            len(found.samples),
            found.news,
            child.starts,
            reader.is_well,
        )
        wanted = Routine([well, sick], [well, sick], [])
        found = await reader.vigil(wanted, 3, 50_000, asyncio.Event())
        assert (0, True) == (len(found.samples), found.news)
        assert not reader.is_well
        assert ["", "hung"] == [one.why[:4] for one in await reader.uses([well, sick])]
    finally:
        await child.close()


async def test_orders_of_other_nodes_wake_nobody() -> None:
    """They are in the same partition: of a thousand nodes each would be waked for all."""
    rested, log = await Rested("H100-80GB").start(), MemoryLog()
    await apply(log, "gpuledger", 1)
    shell = NodeShell(log, rested.rig.agent)
    await shell.begin()
    order = {"kind": "clean", "incarnation": "boot-0", "cell": "main", "lease": "l1",
             "units": ["GPU-1"]}  # fmt: skip
    woken = []
    for node in ("elsewhere", rested.rig.agent.standing.node):
        plain = order | {"order": f"o-{node}", "node": node}
        entry = Entry(node.encode(), orjson.dumps(plain))
        await log.append("gpuledger.orders", shell._partition, [entry])
        assert 1 == await shell.hear()
        woken.append(shell._wake.is_set())
    assert [False, True] == woken


class Noting(NvmlChild):
    """Says when it is left alone for the first time."""

    def __init__(self, *, fake: Path) -> None:
        super().__init__(fake=fake)
        self.rests = asyncio.Event()

    async def ask(self, op: str, **more: Any) -> Any:
        """See `collectors.nvml.watchdog.Asker`."""
        if op == "vigil":
            self.rests.set()
        return await super().ask(op, **more)


async def test_an_order_in_the_log_hurries_a_resting_agent(described: Path) -> None:
    """Shell, agent and NVML's process on real clocks: the next round would be in an hour."""
    hour = 3600 * SECOND
    clock = Clock(lambda: time.time_ns() // 1000, lambda: time.monotonic_ns() // 1000)
    watch = WatchOptions(listen_us=hour, signs_us=100 * hour)
    options = NodeOptions(look_us=hour, retell_us=100 * hour, on_the_second=True, watch=watch)
    described.write_text(described.read_text().partition("[[fault]]")[0])  # noqa: ASYNC240 - a test
    child, log, stop = Noting(fake=described), MemoryLog(), asyncio.Event()
    agent = NodeAgent(
        child,
        Journal(described.with_name("agent.db"), clock),
        Standing("n1", "main"),
        "main",
        facts=HostFacts("boot-1", None, None),
        processes=HostProcesses(),
        options=options,
    )
    order = {"order": "o1", "kind": "clean", "node": "n1", "incarnation": "boot-0",
             "cell": "main", "lease": "l1", "units": ["GPU-1"]}  # fmt: skip
    await apply(log, "gpuledger", 1)
    task = asyncio.create_task(NodeShell(log, agent).run(stop))
    try:
        async with asyncio.timeout(60):
            await child.rests.wait()
            await log.append("gpuledger.orders", None, [Entry(b"n1", orjson.dumps(order))])
            await answered(log)
        assert 1 == child.starts
    finally:
        stop.set()
        await task
        agent.journal.close()
        await child.close()


async def answered(log: MemoryLog) -> None:
    """Wait until the order is refused, as one of another boot is."""
    topic, at = "gpuledger.observations", 0
    partition = partition_of(b"main", await log.partitions(topic))
    while not (found := await log.read(topic, partition, at, wait_s=60)) or not any(
        b'"o1"' in (one.value or b"") for one in found
    ):
        at += len(found)
