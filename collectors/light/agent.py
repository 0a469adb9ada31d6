"""The agent of simulated nodes in real time: orders from any log, observations onto it.

It is the shell around `collectors.light.node`: it reads the partitions of the
orders topic that its nodes' orders are in, hands each order to its node, and
appends what the nodes say, observations keyed by cell and heartbeats by node. What
could not be appended is kept and appended later, in order; an append whose
outcome is unknown is repeated under the same ids, and the ledger takes the copy for
what it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog
from pydantic import ValidationError

from collectors.fleet.fault_plan import FaultPlan, turns
from collectors.light.node import Ending, SimulatedNode, Timing
from ledger.log.partition import partition_of
from ledger.log.port import LogDamaged, LogUnavailable
from ledger.log.wakeup import wall_clock_us
from ledger.loops import run_until
from schemas.catalogue import adapter
from schemas.topics import full_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from collectors.fleet.description import NodeSpec
    from collectors.fleet.fault_plan import Turn
    from ledger.log.port import Entry, Log, Record
    from schemas.messages import Order

__all__ = ["MAX_UNSENT", "Agent", "AgentOptions"]

_log = structlog.get_logger(__name__)
_US = 1_000_000

#: Observations kept while the log is away. When so many wait, the nodes are not asked for
#: more and hear nothing: they keep what they have to say, and nothing is lost.
MAX_UNSENT = 10_000

#: The most observations of one append.
_BATCH = 500

#: How long one read waits for orders; a cancelled agent is let go by then at the latest.
_READ_S = 1.0

#: The first wait after the log was not there, and the longest, in seconds.
_RETRY_S = 0.1
_LONGEST_S = 5.0


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """How an agent works.

    ``heartbeat_s`` must be well below the workers' ``heartbeat_limit_s``. Tasks run
    ``speed`` times faster than their requests expect.
    """

    prefix: str = "gpuledger"
    heartbeat_s: float = 2.0
    speed: float = 1.0
    timing: Timing = field(default_factory=Timing)


class Agent:
    """Simulated nodes on a log, from `run` until its stop event is set."""

    def __init__(
        self,
        log: Log,
        cell: str,
        specs: Sequence[NodeSpec],
        *,
        plan: FaultPlan | None = None,
        options: AgentOptions | None = None,
        clock: Callable[[], int] = wall_clock_us,
    ) -> None:
        """Make the nodes; they are off until `run`. The fault plan's times count from there.

        ``clock`` returns UTC microseconds.
        """
        self.options = options or AgentOptions()
        self._log = log
        self._cell = cell
        self._plan = plan or FaultPlan()
        self._clock = clock
        # A new process is a new boot of its nodes: nothing of the one before runs on.
        boot = f"{clock():x}-{secrets.token_hex(4)}"
        self.nodes = {
            spec.name: SimulatedNode(
                spec,
                cell,
                timing=self.options.timing,
                ending=self._ending,
                boot_name=(boot + "-{}").format,
            )
            for spec in specs
        }
        self._turns: deque[Turn] = deque()
        self._unsent: deque[Entry] = deque()
        self._positions: dict[int, int] = {}
        self._wake = asyncio.Event()
        self._beat_us = 0

    @property
    def unsent(self) -> int:
        """How many observations are kept until the log takes them."""
        return len(self._unsent)

    def _ending(self, order: Order) -> Ending:
        return Ending(round(self.options.timing.ending(order).run_us / self.options.speed))

    async def run(self, stop: asyncio.Event) -> None:
        """Live until ``stop`` is set. A log that cannot be reached is waited for.

        Raise what else the log raises: `UnknownTopic` when the topics are missing,
        `LogDamaged`, `LogClosed`.
        """
        await self._begin()
        await run_until(stop, *map(self._hear, self._positions), self._speak())

    async def _begin(self) -> None:
        """Find where orders begin to be for these nodes, then boot them.

        What was ordered before was for boots that are over, so the end will do.
        """
        topic = full_name(self.options.prefix, "orders")
        retry_s = _RETRY_S
        while not self._positions:
            try:
                count = await self._log.partitions(topic)
                mine = sorted({partition_of(name.encode(), count) for name in self.nodes})
                self._positions = {number: await self._log.end(topic, number) for number in mine}
            except LogUnavailable as error:
                retry_s = await _wait_for_log(error, retry_s)
        now_us = self._clock()
        self._turns = deque(turns(self._plan, now_us))
        for node in self.nodes.values():
            node.start(now_us)

    # -- orders ------------------------------------------------------------------

    async def _hear(self, partition: int) -> None:
        """Hand the orders of one partition to their nodes, for ever."""
        topic = full_name(self.options.prefix, "orders")
        retry_s = _RETRY_S
        while True:
            if len(self._unsent) >= MAX_UNSENT:
                await asyncio.sleep(_RETRY_S)
                continue
            try:
                position = self._positions[partition]
                records = await self._log.read(topic, partition, position, wait_s=_READ_S)
            except LogUnavailable as error:
                retry_s = await _wait_for_log(error, retry_s)
                continue
            retry_s = _RETRY_S
            for record in records:
                self._hand_over(record)
                self._positions[partition] = record.offset + 1
            if records:
                self._wake.set()

    def _hand_over(self, record: Record) -> None:
        node = self.nodes.get((record.key or b"").decode(errors="replace"))
        if node is None:
            return
        try:
            order: Order = adapter("order", 1).validate_json(record.value or b"")
        except ValidationError as error:
            # Whoever wrote it is not the ledger; the nodes' other orders must not wait for it.
            _log.warning("order not read", offset=record.offset, error=str(error)[:200])
            return
        node.hear(order, self._clock())

    # -- observations ------------------------------------------------------------

    async def _speak(self) -> None:
        """Let the nodes live and say what they have to say, for ever."""
        retry_s = _RETRY_S
        while True:
            self._wake.clear()
            self._live()
            try:
                await self._send()
            except LogUnavailable as error:
                retry_s = await _wait_for_log(error, retry_s)
                continue
            retry_s = _RETRY_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause_s()):
                    await self._wake.wait()

    def _live(self) -> None:
        """Let faults and whatever else is due happen, and take what the nodes say."""
        now_us = self._clock()
        while self._turns and self._turns[0].at_us <= now_us:
            turn = self._turns.popleft()
            if turn.fault.node in self.nodes:
                _log.info("fault", **turn.fault.model_dump(), begins=turn.begins)
                self.nodes[turn.fault.node].turn(turn.fault, now_us, begins=turn.begins)
        for name, node in self.nodes.items():
            node.advance(now_us)
            if len(self._unsent) < MAX_UNSENT:
                self._unsent.extend(said.entry(self._cell, name) for said in node.take())

    async def _send(self) -> None:
        """Append what is unsent, oldest first, then the heartbeats that are due."""
        observations = full_name(self.options.prefix, "observations")
        while self._unsent:
            batch = [self._unsent[at] for at in range(min(_BATCH, len(self._unsent)))]
            await self._log.append(observations, None, batch)
            for _ in batch:
                self._unsent.popleft()
        now_us = self._clock()
        if now_us - self._beat_us < self.options.heartbeat_s * _US:
            return
        beats = [
            node.heartbeat(now_us).entry(name, name)
            for name, node in self.nodes.items()
            if node.connected
        ]
        if beats:
            await self._log.append(full_name(self.options.prefix, "heartbeats"), None, beats)
        self._beat_us = now_us

    def _pause_s(self) -> float:
        """Return how long nothing is due, in seconds."""
        times = [self._beat_us + round(self.options.heartbeat_s * _US)]
        times += [due for node in self.nodes.values() if (due := node.next_us()) is not None]
        if self._turns:
            times.append(self._turns[0].at_us)
        return max(0, min(times) - self._clock()) / _US


async def _wait_for_log(error: LogUnavailable, retry_s: float) -> float:
    """Wait before the log is tried again; return how long to wait the next time.

    A damaged log does not mend by waiting: that error is raised.
    """
    if isinstance(error, LogDamaged):
        raise error
    _log.warning("the log cannot be reached", error=str(error), retry_s=retry_s)
    await asyncio.sleep(retry_s)
    return min(2 * retry_s, _LONGEST_S)
