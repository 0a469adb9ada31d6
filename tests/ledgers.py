"""Small ledgers for tests: a log, a shard that is pumped by hand, one node, a few requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ledger.log.topics import apply
from ledger.shard import Shard, ShardOptions
from ledger.wire import INPUTS, input_entry
from schemas.topics import full_name

if TYPE_CHECKING:
    from ledger.core.state import State
    from ledger.log.port import Entry, Log

PREFIX = "gpuledger"
TEAM = "/team/a"
OPERATOR = {"author": "ops", "reason": "test"}


class Site:
    """One cell ``c`` with pool ``main``, queue ``q``, tenant ``t`` and node ``n1``."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.shard = Shard(log, 0, ShardOptions(snapshot_every=0))
        self._ids = 0

    @property
    def state(self) -> State:
        """The cell's state."""
        return self.shard.fold.cells["c"]

    async def start(self, *, gpus: int = 4, quota_milli: int = 100_000) -> None:
        """Make the topics, load the shard, set the policy, report the node."""
        await apply(self.log, PREFIX, partitions=1)
        await self.shard.load()
        await self.says("pool.apply", pool="main", **OPERATOR)
        await self.says("queue.apply", queue="q", **OPERATOR)
        await self.says("quota.apply", tenant="t", nominal_gpu_milli=quota_milli, **OPERATOR)
        devices = [
            {"uuid": f"GPU-{number}", "model": "H100", "memory_mib": 81_920}
            for number in range(gpus)
        ]
        await self.says(
            "node.inventory", "/nodes/n1", node="n1", incarnation="b1", epoch=1, pool="main",
            devices=devices,
        )  # fmt: skip

    async def says(
        self, name: str, source: str = TEAM, event_id: str | None = None, **data: Any
    ) -> None:
        """Put one input on its topic and let the shard decide it."""
        self._ids += 1
        await self.put(
            input_entry("c", name, source, event_id or f"auto-{self._ids}", data),
            "observations" if source.startswith("/nodes/") else "requests",
        )

    async def put(self, entry: Entry, topic: str = "requests") -> None:
        """Put any record on a topic and let the shard take it."""
        await self.log.append(full_name(PREFIX, topic), 0, [entry])
        await self.pump()

    async def pump(self) -> None:
        """Let the shard take everything that is there."""
        for topic in INPUTS:
            start = self.shard.position[topic]
            records = await self.log.read(full_name(PREFIX, topic), 0, start, 100_000)
            await self.shard.take(topic, records)

    async def submit(self, event_id: str, count: int = 1, **more: Any) -> str:
        """Submit a request for whole devices; return its whole id."""
        data = {
            "tenant": "t",
            "queue": "q",
            "task": {"id": event_id},
            "ask": {"mode": "whole", "count": count},
            **more,
        }
        await self.says("request.submit", TEAM, event_id, **data)
        return f"{TEAM}#{event_id}"

    async def finish(self, lease: str) -> None:
        """Let the node report the end of the lease's task and prove its devices clean."""
        await self.says(
            "task.ended", "/nodes/n1", node="n1", incarnation="b1", lease=lease, how="completed"
        )
        for order in list(self.state.orders):
            await self.says("order.done", "/nodes/n1", node="n1", incarnation="b1", order=order)

    async def values(self, topic: str) -> list[bytes]:
        """Return the values of all records of a topic's first partition."""
        records = await self.log.read(full_name(PREFIX, topic), 0, 0, 1_000_000)
        return [record.value or b"" for record in records]
