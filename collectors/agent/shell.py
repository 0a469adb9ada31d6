"""Between a node's agent and a log: orders in, observations out in order, heartbeats.

What the log has not acknowledged stays in the journal, through outages and restarts. Of an
append whose outcome is unknown the log is asked first: what it has is not sent again. So an
observation is in it once, unless an append that was given up for lost arrives after that
look; such a copy has the same id, and the ledger takes it for what it is.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import structlog
from pydantic import ValidationError

from collectors.agent.ledger_clock import learn_time, time_is_known
from collectors.said import agent_source
from ledger.log.partition import partition_of
from ledger.log.port import LogDamaged, LogUnavailable, UnknownTopic
from ledger.loops import run_until
from schemas.catalogue import adapter
from schemas.topics import full_name

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from collectors.agent.agent import NodeAgent
    from collectors.said import Said
    from collectors.use.watch import UseOptions
    from ledger.log.port import Log, Record
    from schemas.messages import Order

__all__ = ["NodeShell", "ShellOptions"]

_log = structlog.get_logger(__name__)
_US = 1_000_000

#: The most observations of one append, and of records of one read.
_BATCH, _READ = 200, 1000

#: How long one read waits for orders, and the first and longest wait for a log, in seconds.
_READ_S, _RETRY_S, _LONGEST_S = 5.0, 0.1, 5.0

#: How long the agent may be at work before samples of use are taken beside that, in seconds.
_LONG_S = 0.25


@dataclass(frozen=True, slots=True)
class ShellOptions:
    """``heartbeat_s`` must be well below the workers' ``heartbeat_limit_s``.

    ``use`` is how the use of devices is watched; None: it is not.
    """

    prefix: str = "gpuledger"
    heartbeat_s: float = 2.0
    use: UseOptions | None = None


class NodeShell:
    """Moves records for one agent. `run` does all of it until its stop event is set."""

    def __init__(self, log: Log, agent: NodeAgent, options: ShellOptions | None = None) -> None:
        """Use this log; whoever made it closes it."""
        self._log = log
        self._agent = agent
        self._options = options or ShellOptions()
        self._orders = full_name(self._options.prefix, "orders")
        self._observations = full_name(self._options.prefix, "observations")
        self._source = agent_source(agent.standing.node).encode()
        self._key = agent.standing.node.encode()
        self._partition = 0
        self._next = 0
        self._wake = asyncio.Event()
        self._begun = asyncio.Event()
        self._said = asyncio.Event()
        self._long = asyncio.Event()
        self._away = False

    # -- single steps ---------------------------------------------------------------

    async def begin(self) -> None:
        """Find where to read orders from: after the last one that was kept.

        Without a journal from before it is the end: what was ordered until then was of an
        agent that nobody remembers, and done again it would be done twice.
        """
        self._partition = partition_of(self._key, await self._log.partitions(self._orders))
        journal = self._agent.journal
        position = journal.fact(f"orders-{self._partition}")
        end = await self._log.end(self._orders, self._partition)
        if position is not None and position > end:
            # It would be deaf until the topic is as long as that of another log was.
            _log.warning("the journal is of another log", position=position, end=end)
            position = None
        if position is None:
            position = end
            journal.keep(f"orders-{self._partition}", position)
        elif not time_is_known(journal):
            await self._ask_time()
        self._next = position
        if journal.fact("observed") is None:
            # From here on the log may have what this agent says.
            cell = await self._cell_partition()
            journal.keep("observed", await self._log.end(self._observations, cell))

    async def _ask_time(self) -> None:
        """Read a beat back for its stamp: what was ordered meanwhile may be past due."""
        topic = full_name(self._options.prefix, "heartbeats")
        (offset,) = await self.beat()
        partition = partition_of(self._key, await self._log.partitions(topic))
        found = await self._log.read(topic, partition, offset, 1, _READ_S)
        if found:
            learn_time(self._agent.journal, [found[0].time_us])

    async def _cell_partition(self) -> int:
        count = await self._log.partitions(self._observations)
        return partition_of(self._agent.cell.encode(), count)

    async def hear(self, wait_s: float = 0.0) -> int:
        """Hand the orders that are there to the agent; return how many records were read.

        Those of other nodes, with which it shares a partition, do not wake it.
        """
        records = await self._log.read(self._orders, self._partition, self._next, _READ, wait_s)
        if records:
            learn_time(self._agent.journal, [one.time_us for one in records])
        for record in records:
            self._hand_over(record)
            self._next = record.offset + 1
        return len(records)

    def _hand_over(self, record: Record) -> None:
        position = (self._partition, record.offset + 1)
        if record.key != self._key:
            return
        try:
            order: Order = adapter("order", 1).validate_json(record.value or b"")
        except ValidationError as error:
            # Whoever wrote it is not the ledger; the other orders must not wait for it.
            _log.warning("order not read", offset=record.offset, error=str(error)[:200])
            return
        self._agent.hear(order, position)
        self._wake.set()

    async def send(self) -> int:
        """Append what waits, oldest first; return how many the log has now for sure."""
        try:
            sent = await self._send()
        except LogUnavailable:
            self._away = True
            raise
        if self._away:
            self._away = False
            # The ledger may have given this node up: then only an inventory brings it back.
            self._agent.retell()
            self._wake.set()
        return sent

    async def _send(self) -> int:
        journal, sent = self._agent.journal, 0
        while batch := journal.unsent(_BATCH):
            if batch[0][2]:
                sent += await self._look_back()
                continue
            entries = [
                said.entry(self._agent.cell, self._agent.standing.node) for _, said, _ in batch
            ]
            numbers = [number for number, _, _ in batch]
            journal.trying(numbers)
            offsets = await self._log.append(self._observations, None, entries)
            journal.sent(numbers, offsets[-1] + 1)
            sent += len(batch)
        return sent

    async def _look_back(self) -> int:
        """Find what the log has of what was tried; the rest is as if it never was tried."""
        journal = self._agent.journal
        tried = {said.id: number for number, said, tried in journal.unsent(_BATCH) if tried}
        position: int = journal.fact("observed")
        partition = await self._cell_partition()
        found: list[int] = []
        while records := await self._log.read(self._observations, partition, position, _READ):
            for record in records:
                headers = dict(record.headers)
                name = headers.get("ce_id", b"").decode()
                if headers.get("ce_source") == self._source and name in tried:
                    found.append(tried.pop(name))
            position = records[-1].offset + 1
        journal.sent(found, position)
        journal.untried(list(tried.values()))
        return len(found)

    async def beat(self) -> list[int]:
        """Append one heartbeat; return its offset."""
        node = self._agent.standing.node
        entry = self._agent.heartbeat().entry(node, node)
        topic = full_name(self._options.prefix, "heartbeats")
        return await self._log.append(topic, None, [entry])

    # -- for ever -------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Live until ``stop`` is set. A log that cannot be reached is waited for.

        Raise what else the log raises: `UnknownTopic`, `LogDamaged`, `LogClosed`.
        """
        self._agent.start()
        loops = [self._hear_on, self._work_on, self._send_on, self._beat_on]
        if self._options.use is not None:
            loops.append(self._watch_on)
        await run_until(stop, *[loop() for loop in loops])

    async def _hear_on(self) -> None:
        # The node is watched also while there is no log: what is seen is told when it is back.
        await self._persist(self.begin)
        self._begun.set()
        while True:
            await self._persist(partial(self.hear, _READ_S))

    async def _work_on(self) -> None:
        clock, later = self._agent.journal.clock, asyncio.get_running_loop().call_later
        while True:
            self._wake.clear()
            long = later(_LONG_S, self._long.set)
            due_us = await self._agent.work()
            long.cancel()
            self._long.clear()
            due_us = await self._agent.rest(due_us, self._wake)
            with contextlib.suppress(TimeoutError):
                wait_s = (due_us - clock.steady_us()) / _US
                async with asyncio.timeout(max(0.0, wait_s)):
                    await self._wake.wait()

    async def _send_on(self) -> None:
        await self._begun.wait()
        self._agent.journal.on_said = self._said.set
        while True:
            # What is said from here on is either sent now or wakes this again.
            self._said.clear()
            await self._persist(self.send)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LONGEST_S):
                    await self._said.wait()

    async def _beat_on(self) -> None:
        clock, every_us = self._agent.journal.clock, int(self._options.heartbeat_s * _US)
        next_us = clock.steady_us()
        while True:
            # A beat that could not be sent is not sent later: it would say nothing.
            with contextlib.suppress(LogUnavailable):
                await self.beat()
            next_us = max(next_us + every_us, clock.steady_us())
            next_us -= self._agent.since_us(next_us, every_us)
            await asyncio.sleep((next_us - clock.steady_us()) / _US)

    async def _watch_on(self) -> None:
        """Have the use of devices sampled, with whatever else is asked then; and send it.

        While the agent is long at an order, which is asked for step by step, samples are taken
        between its steps. A record that cannot be sent now is lost, and unknown.
        """
        watch, clock = self._agent.use_watch(self._options.use), self._agent.journal.clock
        async with asyncio.TaskGroup() as group:
            sending: asyncio.Task[None] | None = None

            def send(record: Said) -> None:
                nonlocal sending
                if sending is None or sending.done():
                    # Samples go on while a log is slow.
                    sending = group.create_task(self._send_use(record))

            self._agent.on_use = send
            self._agent.sample_for(watch)
            self._wake.set()
            while True:
                await self._long.wait()
                if clock.steady_us() >= watch.due_us:
                    record = await watch.sample()
                    if record is not None:
                        send(record)
                await asyncio.sleep(max(0, watch.due_us - clock.steady_us()) / _US)

    async def _send_use(self, record: Said) -> None:
        node = self._agent.standing.node
        topic = full_name(self._options.prefix, "usage")
        try:
            await self._log.append(topic, None, [record.entry(node, node)])
        except LogDamaged:
            raise
        except (LogUnavailable, UnknownTopic) as error:
            _log.warning("a record of use is lost", error=str(error))

    async def _persist(self, work: Callable[[], Awaitable[object]]) -> None:
        """Do it until the log lets it be done. A damaged log does not mend by waiting."""
        retry_s = _RETRY_S
        while True:
            try:
                await work()
            except LogDamaged:
                raise
            except LogUnavailable as error:
                _log.warning("the log cannot be reached", error=str(error), retry_s=retry_s)
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, _LONGEST_S)
            else:
                return
