"""The log in memory: for tests and the simulator. Gone when the process ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ledger.log.partition import group_by_partition
from ledger.log.port import (
    Entry,
    Log,
    LogClosed,
    Record,
    TopicPartition,
    TopicState,
    UnknownTopic,
    check_sizes,
)
from ledger.log.wakeup import Wakeup, read_or_wait, wall_clock_us

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["MemoryLog"]


@dataclass(slots=True)
class _Store:
    """What several handles on one memory log share."""

    topics: dict[str, list[list[Record]]] = field(default_factory=dict)
    wakeup: Wakeup = field(default_factory=Wakeup)


class MemoryLog(Log):
    """A log in lists. Handles made by `another` see the same records."""

    def __init__(self, clock: Callable[[], int] = wall_clock_us) -> None:
        """Start empty. ``clock`` returns UTC microseconds: the append time."""
        self._clock = clock
        self._store = _Store()
        self._closed = False

    def another(self) -> MemoryLog:
        """Return a second handle on the same records, as another process would open it."""
        handle = MemoryLog(self._clock)
        handle._store = self._store
        return handle

    async def partitions(self, topic: str) -> int:
        """See `Log.partitions`."""
        return len(self._topic(topic))

    async def begin(self, topic: str, partition: int) -> int:
        """See `Log.begin`. Nothing is ever removed, so it is 0."""
        self._records(topic, partition)
        return 0

    async def end(self, topic: str, partition: int) -> int:
        """See `Log.end`."""
        return len(self._records(topic, partition))

    async def append(
        self, topic: str, partition: int | None, entries: Sequence[Entry]
    ) -> list[int]:
        """See `Log.append`. The whole call is atomic."""
        check_sizes(entries)
        groups = group_by_partition(entries, partition, len(self._topic(topic)))
        offsets = [0] * len(entries)
        for number in groups:
            self._records(topic, number)
        for number, indices in groups.items():
            added = self._add(topic, number, [entries[index] for index in indices])
            for index, offset in zip(indices, added, strict=True):
                offsets[index] = offset
        return offsets

    async def append_all(
        self, batches: Mapping[TopicPartition, Sequence[Entry]]
    ) -> dict[TopicPartition, list[int]]:
        """See `Log.append_all`. All or nothing: what can fail is checked first."""
        for (topic, partition), entries in batches.items():
            self._records(topic, partition)
            check_sizes(entries)
        return {
            (topic, partition): self._add(topic, partition, entries)
            for (topic, partition), entries in batches.items()
        }

    async def restore(self, topic: str, partition: int, records: Sequence[Record]) -> list[int]:
        """See `Log.restore`."""
        kept = self._records(topic, partition)
        first = len(kept)
        kept.extend(
            one._replace(topic=topic, partition=partition, offset=offset)
            for offset, one in enumerate(records, first)
        )
        self._store.wakeup.notify()
        return list(range(first, len(kept)))

    async def read(
        self, topic: str, partition: int, start: int, limit: int = 1000, wait_s: float = 0.0
    ) -> list[Record]:
        """See `Log.read`."""
        start = max(start, 0)

        async def read_now() -> list[Record]:
            return self._records(topic, partition)[start : start + limit]

        return await read_or_wait(self._store.wakeup, read_now, wait_s)

    async def create_topics(self, topics: Mapping[str, TopicState]) -> list[str]:
        """See `Log.create_topics`. Replication and settings have no meaning here."""
        self._check_open()
        missing = sorted(set(topics) - set(self._store.topics))
        for name in missing:
            self._store.topics[name] = [[] for _ in range(topics[name].partitions)]
        return missing

    async def describe_topics(self, names: Sequence[str]) -> dict[str, TopicState]:
        """See `Log.describe_topics`."""
        self._check_open()
        known = self._store.topics
        return {name: TopicState(len(known[name])) for name in names if name in known}

    async def close(self) -> None:
        """See `Log.close`. Other handles stay open; waiting readers are woken."""
        self._closed = True
        self._store.wakeup.notify()

    def _check_open(self) -> None:
        if self._closed:
            raise LogClosed("this memory log is closed")

    def _topic(self, topic: str) -> list[list[Record]]:
        self._check_open()
        try:
            return self._store.topics[topic]
        except KeyError:
            raise UnknownTopic(f"there is no topic {topic}") from None

    def _records(self, topic: str, partition: int) -> list[Record]:
        partitions = self._topic(topic)
        if not 0 <= partition < len(partitions):
            raise UnknownTopic(
                f"topic {topic} has no partition {partition}, only 0 to {len(partitions) - 1}"
            )
        return partitions[partition]

    def _add(self, topic: str, partition: int, entries: Sequence[Entry]) -> list[int]:
        """Append to one partition; its time never goes back, whatever the clock does."""
        if not entries:
            return []
        records = self._records(topic, partition)
        first = len(records)
        time_us = max(self._clock(), records[-1].time_us if records else 0)
        records.extend(
            Record(topic, partition, first + index, time_us, entry.key, entry.value, entry.headers)
            for index, entry in enumerate(entries)
        )
        self._store.wakeup.notify()
        return list(range(first, len(records)))
