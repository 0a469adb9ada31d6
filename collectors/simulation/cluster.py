"""A cluster in virtual time: users, operators and nodes around a real ledger.

The ledger is the one that production runs: its inputs go through the topics
``requests`` and ``observations`` of a log, its orders and replies are read back from
theirs. Only time is made up. The clock jumps from one thing to the next: a
submission, an end of a task, a fault, a deadline of the ledger. All inputs of one
instant are appended together, so they cost one transaction of the log.

Heartbeats are sent only before the ledger's liveness looks at them, and the last one
of a node when it goes away: in a month of 24 nodes five million others would say
that nothing has changed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol

from collectors.fleet.fault_plan import Down, FaultPlan, Silent, Turn, turns
from collectors.light.node import SimulatedNode, Timing
from collectors.simulation.client import Client
from ledger.wire import input_entry
from schemas.catalogue import adapter
from schemas.topics import full_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from collectors.fleet.description import NodeSpec
    from collectors.light.node import Ending
    from collectors.simulation.clock import VirtualClock
    from collectors.simulation.traces import Job
    from ledger.log.port import Entry, Log
    from schemas.messages import Order

__all__ = ["Act", "Cluster", "Loop", "Scenario", "Standing", "job_source"]

_US = 1_000_000
_READ = 5000

#: Instants between two looks at the replies, and two reports of progress.
_LOOK_EVERY = 200

OPERATOR = "/operators/demo"


class Loop(Protocol):
    """What feeds the ledger: `processors.embedded.EmbeddedLoop`, handed in from outside."""

    async def start(self) -> None:
        """Claim the partitions and read what they hold."""

    async def step(self) -> int:
        """Decide every input there is; return how many there were."""

    async def tick(self, now_us: int) -> int:
        """Write what time brings onto the observations: ticks, and nodes that are silent."""

    def next_due_us(self) -> int | None:
        """Return when the ledger has something due, or None."""


@dataclass(frozen=True, slots=True)
class Act:
    """What an operator puts on the requests topic, ``at_us`` after the start."""

    at_us: int
    id: str
    type: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything that will happen. Times of jobs, acts and faults count from ``start_us``.

    ``heartbeat_limit_s`` must be the one that the loop works with.
    """

    cell: str
    start_us: int
    nodes: Sequence[NodeSpec]
    jobs: Sequence[Job]
    acts: Sequence[Act] = ()
    faults: FaultPlan = field(default_factory=FaultPlan)
    timing: Timing = field(default_factory=Timing)
    heartbeat_limit_s: int = 30


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a run is. ``jobs`` is how many there are in all."""

    time_us: int
    jobs: int
    submitted: int
    ended: int


def job_source(user: str) -> str:
    """Return the CloudEvents source of a trace's user."""
    return f"/users/{user}"


class Cluster:
    """One run of a scenario on a log whose clock is ``clock``."""

    def __init__(
        self,
        log: Log,
        loop: Loop,
        clock: VirtualClock,
        scenario: Scenario,
        *,
        prefix: str = "gpuledger",
        progress: Callable[[Standing], None] | None = None,
    ) -> None:
        """Make the nodes; nothing runs yet.

        The log's topics must exist, the inputs and heartbeats with one partition each.
        """
        self.log = log
        self.loop = loop
        self.clock = clock
        self.scenario = scenario
        self.client = Client(log, prefix)
        self._prefix = prefix
        self._progress = progress
        self._endings = {job.id: job.ending for job in scenario.jobs}
        self.nodes = {spec.name: self._node(spec) for spec in scenario.nodes}
        self._order = count()
        self._agenda = self._plan()
        self._wakes: list[tuple[int, str]] = []
        self._positions: list[int] = []
        self._requests: list[Entry] = []
        self._observations: list[Entry] = []
        self._heartbeats: list[Entry] = []
        self._submitted = 0

    def _node(self, spec: NodeSpec) -> SimulatedNode:
        return SimulatedNode(
            spec, self.scenario.cell, timing=self.scenario.timing, ending=self._ending
        )

    def _ending(self, order: Order) -> Ending:
        """Return how the trace says that the order's task ended."""
        return self._endings.get(order.task or "") or self.scenario.timing.ending(order)

    def _plan(self) -> list[tuple[int, int, Job | Act | Turn | None]]:
        """Return what will happen whatever the ledger does, as a heap by time.

        At one instant acts of operators come first, then faults, then jobs.
        """
        start_us = self.scenario.start_us
        planned: list[tuple[int, Job | Act | Turn | None]] = [
            *((start_us + act.at_us, act) for act in self.scenario.acts),
            *((turn.at_us, turn) for turn in turns(self.scenario.faults, start_us)),
            *((start_us + job.at_us, job) for job in self.scenario.jobs),
        ]
        agenda = [(at_us, next(self._order), what) for at_us, what in planned]
        heapify(agenda)
        return agenda

    # -- the run ---------------------------------------------------------------

    async def run(self) -> None:
        """Run from the start until nothing more can happen."""
        topic = full_name(self._prefix, "orders")
        self._positions = [
            await self.log.end(topic, number) for number in range(await self.log.partitions(topic))
        ]
        self.clock.move_to(self.scenario.start_us)
        await self.loop.start()
        for node in self.nodes.values():
            node.start(self.clock.now_us)
        await self._instant(list(self.nodes), look=True)
        for instant in count(1):
            next_us = self._next_us()
            if next_us is None:
                break
            self.clock.move_to(next_us)
            await self._instant([], look=next_us == self.loop.next_due_us())
            if instant % _LOOK_EVERY == 0:
                await self._look()
        await self._look()

    def _next_us(self) -> int | None:
        """Return the time of the next thing that can change anything, or None at the end."""
        due_us = self.loop.next_due_us()
        idle = not self._agenda and due_us is None
        if idle and not any(node.busy for node in self.nodes.values()):
            return None
        times = [queue[0][0] for queue in (self._agenda, self._wakes) if queue]
        if due_us is not None:
            times.append(due_us)
        return min(times, default=None)

    async def _instant(self, names: Sequence[str], *, look: bool) -> None:
        """Let everything happen that is due now, and what follows from it at once.

        With ``look`` the ledger looks at the time as well: deadlines and silent nodes.
        """
        now_us = self.clock.now_us
        touched = dict.fromkeys(names)
        while self._agenda and self._agenda[0][0] <= now_us:
            what = heappop(self._agenda)[2]
            look = look or what is None
            self._happen(what, touched)
        while self._wakes and self._wakes[0][0] <= now_us:
            touched[heappop(self._wakes)[1]] = None
        for name in touched:
            self.nodes[name].advance(now_us)
            self._collect(name)
        if look:
            self._beat([name for name, node in self.nodes.items() if node.connected])
        await self._append()
        if look:
            await self.loop.tick(now_us)
        while True:
            await self.loop.step()
            heard = await self._hear_orders()
            for name in heard:
                self._collect(name)
            touched |= heard
            if not self._observations:
                break
            await self._append()
        self._wait_for(touched)

    def _wait_for(self, names: Iterable[str]) -> None:
        """Note when these nodes have something to do next."""
        for name in names:
            wake_us = self.nodes[name].next_us()
            if wake_us is not None:
                heappush(self._wakes, (wake_us, name))

    def _happen(self, what: Job | Act | Turn | None, touched: dict[str, None]) -> None:
        """Do one thing of the agenda; None is a time at which a silence may be noticed."""
        if isinstance(what, Turn):
            self._turn(what)
            touched[what.fault.node] = None
        elif isinstance(what, Act):
            entry = input_entry(self.scenario.cell, what.type, OPERATOR, what.id, what.data)
            self._requests.append(entry)
        elif what is not None:
            source = job_source(what.user)
            entry = input_entry(
                self.scenario.cell, "request.submit", source, what.id, what.submission
            )
            self._requests.append(entry)
            self._submitted += 1

    def _turn(self, turn: Turn) -> None:
        """Let a fault begin or end on its node; a node's heart beats for the last time before."""
        node, now_us = self.nodes[turn.fault.node], self.clock.now_us
        if turn.begins and isinstance(turn.fault, (Down, Silent)):
            self._beat([turn.fault.node])
            noticed_us = now_us + self.scenario.heartbeat_limit_s * _US
            heappush(self._agenda, (noticed_us, next(self._order), None))
        node.turn(turn.fault, now_us, begins=turn.begins)

    def _beat(self, names: Sequence[str]) -> None:
        now_us = self.clock.now_us
        self._heartbeats += [self.nodes[name].heartbeat(now_us).entry(name, name) for name in names]

    async def _append(self) -> None:
        """Append the inputs that have come together, in one transaction."""
        batches: dict[tuple[str, int], list[Entry]] = {}
        for suffix, entries in (
            ("requests", self._requests),
            ("observations", self._observations),
            ("heartbeats", self._heartbeats),
        ):
            if entries:
                batches[full_name(self._prefix, suffix), 0] = entries.copy()
                entries.clear()
        if batches:
            await self.log.append_all(batches)

    async def _hear_orders(self) -> dict[str, None]:
        """Hand new orders to their nodes; return the nodes that heard any."""
        heard: dict[str, None] = {}
        topic = full_name(self._prefix, "orders")
        reader = adapter("order", 1)
        for partition, position in enumerate(self._positions):
            records = await self.log.read(topic, partition, position, _READ)
            while records:
                for record in records:
                    order: Order = reader.validate_json(record.value or b"")
                    self.nodes[order.node].hear(order, self.clock.now_us)
                    heard[order.node] = None
                self._positions[partition] = records[-1].offset + 1
                if len(records) < _READ:
                    break
                records = await self.log.read(topic, partition, self._positions[partition], _READ)
        return heard

    def _collect(self, name: str) -> None:
        """Take what a node says now."""
        cell = self.scenario.cell
        self._observations.extend(said.entry(cell, name) for said in self.nodes[name].take())

    async def _look(self) -> None:
        """Read the replies so far, and report how far the run is."""
        await self.client.read()
        if self._progress is not None:
            jobs = len(self.scenario.jobs)
            ended = self.client.ended
            self._progress(Standing(self.clock.now_us, jobs, self._submitted, ended))
