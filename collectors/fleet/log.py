"""One log for the shells of many nodes: orders are read once for all, appends go together.

Each node's shell (`collectors.agent.shell`) sees a log of its own, as on a machine of its own;
what it reads of the orders are the records under its key. A thousand shells with a reader and a
producer each would measure the machine that simulates them, and nothing else.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from typing import TYPE_CHECKING

from ledger.log.port import Log, LogUnavailable
from schemas.topics import full_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ledger.log.port import Entry, Record, TopicState

__all__ = ["FleetLog", "NodeLog"]

#: The most records of one append of many nodes, and of one read.
_TOGETHER, _READ = 500, 1000

#: Orders that are kept for a node that is away. The ledger sends an open one again.
_KEPT = 10_000

#: How long one read waits for orders, and the waits after a log that was not there, in seconds.
_WAIT_S, _RETRY_S, _LONGEST_S = 1.0, 0.1, 5.0


class _Batch:
    """What several nodes append together."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.task: asyncio.Task[list[int]] | None = None


class FleetLog:
    """Shares ``log`` between the nodes of a fleet; whoever made the log closes it."""

    def __init__(self, log: Log, prefix: str = "gpuledger") -> None:
        """Share this log; nothing is read before `open`."""
        self.log = log
        self.orders = full_name(prefix, "orders")
        #: Whoever computes for long takes this first, so that the log has its turn between.
        self.turn = asyncio.Lock()
        self._positions: dict[int, int] = {}
        self._nodes: defaultdict[bytes, list[NodeLog]] = defaultdict(list)
        self._open: dict[str, _Batch] = {}
        self._ends: dict[tuple[str, int], asyncio.Task[int]] = {}
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def of(self, node: str) -> NodeLog:
        """Return the log as one node sees it."""
        made = NodeLog(self)
        self._nodes[node.encode()].append(made)
        return made

    def forget(self, node: str, log: NodeLog) -> None:
        """Keep nothing more for a node's log."""
        self._nodes[node.encode()].remove(log)

    # -- orders ---------------------------------------------------------------------

    async def open(self) -> None:
        """Stand at the end of the orders. To be done before the first node begins there."""
        for partition in range(await self.log.partitions(self.orders)):
            self._positions[partition] = await self.log.end(self.orders, partition)

    async def hear(self, partition: int, wait_s: float = 0.0) -> int:
        """Hand the orders of a partition to their nodes; return how many records there were."""
        start = self._positions[partition]
        records = await self.log.read(self.orders, partition, start, _READ, wait_s)
        for record in records:
            for node in self._nodes.get(record.key or b"", ()):
                node.put(record)
            self._positions[partition] = record.offset + 1
        return len(records)

    async def hear_all(self) -> int:
        """Hand over what is there now, of all partitions; return how many records it was."""
        return sum([await self.hear(partition) for partition in self._positions])

    async def run(self) -> None:
        """Hand orders over for ever. A log that cannot be reached is waited for."""
        async with asyncio.TaskGroup() as tasks:
            for partition in self._positions:
                tasks.create_task(self._hear_on(partition))

    async def _hear_on(self, partition: int) -> None:
        retry_s = _RETRY_S
        while True:
            try:
                await self.hear(partition, _WAIT_S)
            except LogUnavailable:
                # Every node's shell says so, and asks again by itself.
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, _LONGEST_S)
            else:
                retry_s = _RETRY_S

    async def end(self, topic: str, partition: int) -> int:
        """Return an end from which nothing that comes later is missing.

        Of the orders it is where this log has read to. Nodes that ask at one time, after a
        start or an outage all of them, ask the broker once.
        """
        if topic == self.orders:
            return self._positions[partition]
        where = (topic, partition)
        asked = self._ends.get(where)
        if asked is None or asked.done():
            asked = self._ends[where] = asyncio.create_task(self.log.end(topic, partition))
        return await asyncio.shield(asked)

    # -- appends --------------------------------------------------------------------

    async def append(self, topic: str, entries: Sequence[Entry]) -> list[int]:
        """Append with whatever other nodes have to append just now; return the offsets."""
        batch = self._open.get(topic)
        if batch is None or len(batch.entries) + len(entries) > _TOGETHER:
            batch = self._open[topic] = _Batch()
            batch.task = asyncio.create_task(self._flush(topic, batch))
            batch.task.add_done_callback(_seen)
        at = len(batch.entries)
        batch.entries.extend(entries)
        assert batch.task is not None, "it was made with the batch"
        # A node that goes away takes nothing of the others' with it.
        offsets = await asyncio.shield(batch.task)
        return offsets[at : at + len(entries)]

    async def _flush(self, topic: str, batch: _Batch) -> list[int]:
        async with self._turns[topic]:
            # Whoever came while the batch before was under way is in this one.
            if self._open.get(topic) is batch:
                del self._open[topic]
            return await self.log.append(topic, None, batch.entries)


def _seen(task: asyncio.Task[list[int]]) -> None:
    """Take an append's error as heard: whoever waited for it may be gone."""
    if not task.cancelled():
        task.exception()


class NodeLog(Log):
    """The log as the shell of one node sees it. ``cut``: nothing gets through."""

    def __init__(self, fleet: FleetLog) -> None:
        """Made by `FleetLog.of`."""
        self.cut = False
        self._fleet = fleet
        self._inbox: deque[Record] = deque(maxlen=_KEPT)
        self._came = asyncio.Event()

    def put(self, record: Record) -> None:
        """Keep an order for this node."""
        self._inbox.append(record)
        self._came.set()

    def _inner(self) -> Log:
        if self.cut:
            raise LogUnavailable("the simulated machine is cut off")
        return self._fleet.log

    async def partitions(self, topic: str) -> int:
        """See `Log.partitions`."""
        return await self._inner().partitions(topic)

    async def begin(self, topic: str, partition: int) -> int:
        """See `Log.begin`."""
        return await self._inner().begin(topic, partition)

    async def end(self, topic: str, partition: int) -> int:
        """See `FleetLog.end`."""
        self._inner()
        return await self._fleet.end(topic, partition)

    async def append(
        self, topic: str, partition: int | None, entries: Sequence[Entry]
    ) -> list[int]:
        """See `Log.append`; an agent leaves the partition to the key."""
        inner = self._inner()
        if partition is not None:
            return await inner.append(topic, partition, entries)
        return await self._fleet.append(topic, entries)

    async def read(
        self, topic: str, partition: int, start: int, limit: int = 1000, wait_s: float = 0.0
    ) -> list[Record]:
        """See `Log.read`; of the orders, those of this node."""
        inner = self._inner()
        if topic != self._fleet.orders:
            return await inner.read(topic, partition, start, limit, wait_s)
        while self._inbox and self._inbox[0].offset < start:
            self._inbox.popleft()
        if not self._inbox and wait_s:
            self._came.clear()
            try:
                await asyncio.wait_for(self._came.wait(), wait_s)
            except TimeoutError:
                return []
            self._inner()
        return [record for record, _ in zip(self._inbox, range(limit), strict=False)]

    async def create_topics(self, topics: Mapping[str, TopicState]) -> list[str]:
        """See `Log.create_topics`."""
        return await self._inner().create_topics(topics)

    async def describe_topics(self, names: Sequence[str]) -> dict[str, TopicState]:
        """See `Log.describe_topics`."""
        return await self._inner().describe_topics(names)

    async def close(self) -> None:
        """Leave the fleet's log open: it is the caller's."""
