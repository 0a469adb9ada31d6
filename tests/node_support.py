"""A real node agent on a fake node, with clocks that the test turns, and a ledger beside it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import orjson

from collectors.agent.agent import NodeAgent, NodeOptions
from collectors.agent.device_files import Holders
from collectors.agent.journal import Clock, Journal
from collectors.agent.ledger_clock import learn_time
from collectors.fake_nvml.faults import Fault
from collectors.fake_nvml.node import make_node
from collectors.fake_nvml.reader import FakeAsker, fake_library
from collectors.health.hearing import WatchOptions
from collectors.nvml.codes import Code
from collectors.nvml.host_facts import HostFacts
from collectors.nvml.report import Standing
from collectors.said import agent_source
from ledger.core.outbox import messages
from ledger.testing import CoreDriver
from schemas.catalogue import adapter
from tests.nvml_support import put_slice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from collectors.agent.processes import State
    from collectors.fake_nvml.node import FakeNode
    from collectors.nvml.watchdog import Asker
    from ledger.core.decide import Decision
    from schemas.messages import Order

__all__ = ["FakeProcesses", "Rig", "Time", "held_by_nobody_seen"]

SECOND = 1_000_000


class Time:
    """Two clocks: turn one hand, or set only the wall's."""

    def __init__(self, now_us: int = 1_700_000_000 * SECOND) -> None:
        self.wall_us = now_us
        self.steady_us = 5_000 * SECOND
        self.clock = Clock(lambda: self.wall_us, lambda: self.steady_us)

    def passes(self, us: int) -> None:
        """Let time go by."""
        self.wall_us += us
        self.steady_us += us


class FakeProcesses:
    """Processes of a fake machine: those on its GPUs are there unless told otherwise."""

    def __init__(self, node: FakeNode) -> None:
        self.node = node
        self.states: dict[int, State] = {}
        self.leases: dict[int, str] = {}
        #: Pids that do not end when asked, and those that cannot even be made to.
        self.deaf: set[int] = set()
        self.stuck: set[int] = set()
        self.ended: list[tuple[int, bool]] = []
        #: Who holds the files of devices open, as (minor, gi, ci) -> holders; None: not told.
        self.files: dict[tuple[int, int | None, int | None], Holders | None] = {}

    def state(self, pid: int) -> State:
        """See `collectors.agent.processes.Processes`."""
        return self.states.get(pid, "alive")

    def lease(self, pid: int) -> str | None:
        """See `collectors.agent.processes.Processes`."""
        return self.leases.get(pid)

    async def holders(self, minor: int, gi: int | None, ci: int | None) -> Holders | None:
        """See `collectors.agent.processes.Processes`."""
        return self.files.get((minor, gi, ci), Holders(()))

    def end(self, pid: int, *, hard: bool) -> str:
        """See `collectors.agent.processes.Processes`."""
        self.ended.append((pid, hard))
        if pid not in self.stuck and (hard or pid not in self.deaf):
            for gpu in self.node.gpus:
                gpu.processes = [one for one in gpu.processes if one.pid != pid]
        return ""


class TickingJournal(Journal):
    """A journal that says when something is on the disk."""

    tick: Callable[[], None] = staticmethod(lambda: None)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """See `collectors.agent.journal_file.JournalFile.transaction`."""
        outer, before = not self._db.in_transaction, self._db.total_changes
        with super().transaction():
            yield
        if outer and self._db.total_changes > before:
            self.tick()


class Rig:
    """One cell, one node and its agent, who hear each other when `settle` is called.

    The agent can be ended anywhere and started anew: node, journal and ledger stay.
    """

    def __init__(
        self,
        boards: tuple[str, ...] = ("H100-80GB",),
        *,
        mig: bool = True,
        name: str = "n1",
        journal: Path | str = ":memory:",
        cell: CoreDriver | None = None,
        node: FakeNode | None = None,
        check: bool = True,
        options: NodeOptions | None = None,
    ) -> None:
        self.name = name
        self.node = node or make_node(name, boards, mig=mig)
        self.time = Time()
        # Most tests have nothing to hear of: what does not happen need not be asked every second.
        self.options = options or NodeOptions(watch=WatchOptions(listen_us=10 * SECOND))
        self.boot = "machine-boot-1"
        self.processes = FakeProcesses(self.node)
        self.journal = TickingJournal(journal, self.time.clock)
        self.asker: Callable[[Asker], Asker] = lambda one: one
        self.said: list[tuple[str, dict[str, Any]]] = []
        self.orders: list[Order] = []
        self.replies: list[dict[str, Any]] = []
        self.unheard: list[Order] = []
        self._fed: set[str] = set()
        self.cell = cell or CoreDriver(check=check, now_us=self.time.wall_us)
        if cell is None:
            self.cell.pool(partition="relayout", order_timeout_s=3600)
            self.cell.queue()
            self.cell.quota()
        self.agent = self.make()

    def make(self) -> NodeAgent:
        """Make the next start of the agent."""
        self.agent = NodeAgent(
            self.asker(FakeAsker(self.node)),
            self.journal,
            Standing(self.name, "main"),
            self.cell.name,
            facts=HostFacts(self.boot, None, None),
            processes=self.processes,
            options=self.options,
        )
        return self.agent

    # -- messages -------------------------------------------------------------------

    def tell_ledger(self) -> int:
        """Carry what the agent has to say to the ledger; return how much it was."""
        count = 0
        while batch := self.journal.unsent(1):
            (number, said, _) = batch[0]
            # What the log has is not sent again: the shell looks before it does.
            if said.id not in self._fed:
                self._fed.add(said.id)
                self.said.append((said.type, said.data))
                decision = self.cell.feed(
                    said.type, said.data, source=agent_source(self.name), at_us=self._now_us()
                )
                self.carry(decision)
            self.journal.sent([number], 0)
            count += 1
        return count

    def _now_us(self) -> int:
        return max(self.time.wall_us, self.cell.now_us + 1)

    def carry(self, decision: Decision) -> None:
        """Put what a decision has to say where it is read."""
        for topic, _, kind, plain in messages(self.cell.state, decision, "events/0@1"):
            if topic == "orders":
                order = adapter(kind, 1).validate_json(orjson.dumps(plain))
                self.orders.append(order)
                self.unheard.append(order)
            else:
                self.replies.append(plain)

    def ask(self, kind: str, plain: dict[str, Any], *, source: str = "/ops", **more: Any) -> str:
        """Feed a request to the ledger; return the code of its answer."""
        decision = self.cell.feed(kind, plain, source=source, at_us=self._now_us(), **more)
        self.carry(decision)
        return decision.code

    def layout(self, gpu: int, *profiles: str) -> str:
        """Have an operator order a layout."""
        uuid = self.node.gpus[gpu].uuid
        asked = {"device": uuid, "layout": list(profiles), "author": "op", "reason": "test"}
        return self.ask("device.partition", asked)

    def submit(self, name: str, ask: dict[str, Any] | None = None, **more: Any) -> str:
        """Submit a request of tenant t."""
        plain = {"tenant": "t", "queue": "q", "task": {"id": name}, "ask": ask or {"mode": "whole"}}
        return self.ask("request.submit", plain | more, source="/team/a", id=name)

    # -- time ------------------------------------------------------------------------

    def hear(self) -> None:
        """Hand the agent the orders it has not heard."""
        if self.unheard:
            # As the shell does, by the stamps of the records that it reads.
            learn_time(self.journal, [self.cell.now_us])
        while self.unheard:
            self.agent.hear(self.unheard[0])
            self.unheard.pop(0)

    async def settle(self, seconds: int = 300) -> None:
        """Let both sides work until nothing more is due within so many seconds."""
        end_us = self.time.steady_us + seconds * SECOND
        with fake_library():
            while True:
                self.hear()
                due_us = await self.agent.work()
                if self.tell_ledger() or self.unheard:
                    continue
                if due_us > end_us:
                    return
                self.time.passes(max(1, due_us - self.time.steady_us))

    async def start(self) -> None:
        """Start the agent, and let the ledger hear of the node."""
        self.agent.start()
        await self.settle(0)

    async def restart(self) -> None:
        """End the agent where it is and start it again."""
        self.make()
        await self.start()

    # -- both sides compared ------------------------------------------------------------

    def real(self, gpu: int = 0) -> set[tuple[str, str, int, int]]:
        """Return the slices that are really on a GPU: UUID, profile, GPU instance, start."""
        return {
            (one.uuid, made.shape.name, made.id, made.start)
            for made, one in self.node.gpus[gpu].compute()
        }

    def believed(self, gpu: int = 0) -> set[tuple[str, str, int, int]]:
        """Return the slices that the ledger believes to be there."""
        device = self.cell.state.devices[self.node.gpus[gpu].uuid]
        items = [self.cell.state.slices[name] for name in device.slices]
        return {(one.mig_uuid, one.profile, one.gi, one.start) for one in items}

    def bare(self, gpu: int = 0) -> list[int]:
        """Return the GPU instances without a compute instance."""
        return [one.id for one in self.node.gpus[gpu].instances.values() if not one.compute]

    def types(self) -> list[str]:
        """Return the types of what was said, in order."""
        return [kind for kind, _ in self.said]

    def last(self, kind: str) -> dict[str, Any]:
        """Return what was said last of a type."""
        found = [plain for name, plain in self.said if name == kind]
        assert found, f"no {kind} was said"
        return found[-1]


async def held_by_nobody_seen() -> Rig:
    """Return a rig whose only slice was to go, and has not: something unseen holds it."""
    rig = Rig()
    put_slice(rig.node.gpus[0], "3g.40gb", 4)
    await rig.start()
    rig.node.faults = [Fault("nvmlComputeInstanceDestroy", Code.IN_USE)]
    rig.layout(0)
    await rig.settle(70)
    return rig


@contextmanager
def library() -> Iterator[None]:
    """Let this process's calls go to fake nodes."""
    with fake_library():
        yield
