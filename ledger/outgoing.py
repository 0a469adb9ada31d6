"""What leaves the ledger beside its records: replies, orders and dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.log.partition import partition_of
from ledger.wire import message_entry
from schemas.topics import full_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ledger.batch import Batch
    from ledger.core.outbox import Message
    from ledger.log.port import Entry, Log, TopicPartition

__all__ = ["Outgoing"]


class Outgoing:
    """Appends messages, those of one key in order. Raises what `Log.append_all` raises."""

    def __init__(self, log: Log, prefix: str) -> None:
        self._log = log
        self._prefix = prefix
        self._counts: dict[str, int] = {}

    async def send(self, found: Sequence[Message]) -> None:
        """Send replies and orders."""
        outgoing = await self._grouped(found)
        if outgoing:
            await self._log.append_all(outgoing)

    async def refused(self, batch: Batch) -> None:
        """Put the batch's malformed inputs aside and answer them.

        Before its records: once they are in the log no load sees these inputs again.
        """
        outgoing = await self._grouped(batch.refused)
        if batch.dead:
            topic = full_name(self._prefix, "dead-letters")
            count = await self._count(topic)
            for entry in batch.dead:
                outgoing.setdefault((topic, partition_of(entry.key, count)), []).append(entry)
        if outgoing:
            await self._log.append_all(outgoing)

    async def _grouped(self, found: Sequence[Message]) -> dict[TopicPartition, list[Entry]]:
        outgoing: dict[TopicPartition, list[Entry]] = {}
        for message in found:
            topic = full_name(self._prefix, message[0])
            entry = message_entry(message)
            target = partition_of(entry.key, await self._count(topic))
            outgoing.setdefault((topic, target), []).append(entry)
        return outgoing

    async def _count(self, topic: str) -> int:
        count = self._counts.get(topic)
        if count is None:
            count = self._counts[topic] = await self._log.partitions(topic)
        return count
