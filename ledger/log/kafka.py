"""The log on Kafka, through aiokafka.

One idempotent producer with acks=all; readers without a consumer group, one for
each partition being read; a client for offsets that never fetches, because a
broker answers one connection's requests in order and a waiting fetch would hold
up the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import MessageSizeTooLargeError, OffsetOutOfRangeError, ProducerClosed

from ledger.log.kafka_admin import FAILURES, KafkaTopics, unavailable
from ledger.log.kafka_batches import Batch, abandon, fill_offsets, headers_of, send
from ledger.log.partition import group_by_partition
from ledger.log.port import (
    MAX_RECORD_BYTES,
    Entry,
    Log,
    LogClosed,
    LogUnavailable,
    Record,
    TooLarge,
    TopicState,
    UnknownTopic,
    check_sizes,
)
from ledger.log.port import TopicPartition as Where
from ledger.log.quiet import quiet_loggers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["KafkaLog"]

#: After this long without an answer an append's outcome counts as unknown.
TIMEOUT_S = 15.0

#: Fetched at a time for one partition: large enough for fast scans.
_FETCH_BYTES = MAX_RECORD_BYTES + 65_536

#: A batch of several records is at most this large; a larger record goes alone.
_BATCH_BYTES = 1_048_576

#: The most readers kept open between reads.
_MAX_IDLE_READERS = 64

#: How often to look again when asked for an offset that is past the end.
_PAST_END_POLL_S = 0.02

#: How long a client that is being let go of may take to end.
_STOP_S = 5.0


@dataclass(slots=True)
class _Reader:
    """A consumer of one partition; ``next`` is the offset that it returns next."""

    consumer: AIOKafkaConsumer
    where: TopicPartition
    next: int


class KafkaLog(Log):
    """The log on the brokers at ``bootstrap`` ("host:port,host:port").

    Connects at the first use. ``timeout_s`` bounds every call beyond its own
    ``wait_s``; ``client_options`` go to every aiokafka client (TLS, SASL).
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        timeout_s: float = TIMEOUT_S,
        client_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._bootstrap = bootstrap
        self._timeout_s = timeout_s
        self._options: dict[str, Any] = {
            "bootstrap_servers": bootstrap,
            "request_timeout_ms": int(timeout_s * 1000),
            **(client_options or {}),
        }
        self._topics = KafkaTopics(self._options, timeout_s)
        self._closed = False
        self._counts: dict[str, int] = {}
        self._producer: AIOKafkaProducer | None = None
        self._offsets: AIOKafkaConsumer | None = None
        self._connecting = asyncio.Lock()
        #: One append at a time hands its batches over: they stay together, and aiokafka's own
        #: queue gives up too early when several wait for one partition.
        self._sending: defaultdict[Where, asyncio.Lock] = defaultdict(asyncio.Lock)
        #: Idle readers, the longest unused first.
        self._readers: dict[TopicPartition, _Reader] = {}
        #: Consumers that a read is waiting for.
        self._reading: set[AIOKafkaConsumer] = set()
        self._stopping: set[asyncio.Task[None]] = set()
        quiet_loggers("aiokafka")

    async def partitions(self, topic: str) -> int:
        """See `Log.partitions`. Counts are fixed for life, so they are asked for once."""
        self._check_open()
        if topic not in self._counts:
            known = await self._topics.partitions()
            self._counts.update({name: len(found) for name, found in known.items()})
        if topic not in self._counts:
            raise UnknownTopic(f"there is no topic {topic} on {self._bootstrap}")
        return self._counts[topic]

    async def begin(self, topic: str, partition: int) -> int:
        """See `Log.begin`."""
        await self._check(topic, partition)
        return await self._ask_begin(TopicPartition(topic, partition))

    async def end(self, topic: str, partition: int) -> int:
        """See `Log.end`."""
        await self._check(topic, partition)
        return await self._ask_end(TopicPartition(topic, partition))

    async def append(
        self, topic: str, partition: int | None, entries: Sequence[Entry]
    ) -> list[int]:
        """See `Log.append`. Any producer error drops the producer; the next append makes one."""
        return await self._append(topic, partition, entries)

    async def restore(self, topic: str, partition: int, records: Sequence[Record]) -> list[int]:
        """See `Log.restore`. Times in milliseconds, while the topic takes them from writers."""
        entries = [Entry(one.key, one.value, one.headers) for one in records]
        return await self._append(topic, partition, entries, [one.time_us for one in records])

    async def _append(
        self,
        topic: str,
        partition: int | None,
        entries: Sequence[Entry],
        times_us: Sequence[int] | None = None,
    ) -> list[int]:
        check_sizes(entries)
        groups = group_by_partition(entries, partition, await self.partitions(topic))
        for number in groups:
            await self._check(topic, number)
        offsets = [0] * len(entries)
        producer: AIOKafkaProducer | None = None
        try:
            async with asyncio.timeout(self._timeout_s):
                producer = await self._get_producer()
                batches: list[Batch] = []
                for number, indices in groups.items():
                    async with self._sending[topic, number]:
                        batches += await send(producer, topic, number, entries, indices, times_us)
                await fill_offsets(offsets, batches)
        except (*FAILURES, LogUnavailable) as error:
            self._drop_producer(producer)
            if isinstance(error, MessageSizeTooLargeError) and len(entries) == 1:
                raise TooLarge(f"topic {topic} takes no record of this size") from error
            unavailable(f"append to {topic}", error)
        return offsets

    async def append_all(self, batches: Mapping[Where, Sequence[Entry]]) -> dict[Where, list[int]]:
        """See `Log.append_all`. The partitions' acknowledgements are waited for together."""
        for entries in batches.values():
            check_sizes(entries)
        ends = await asyncio.gather(
            *(self.append(*where, entries) for where, entries in batches.items()),
            return_exceptions=True,
        )
        offsets: dict[Where, list[int]] = {}
        for where, end in zip(batches, ends, strict=True):
            if isinstance(end, BaseException):
                raise end
            offsets[where] = end
        return offsets

    async def read(
        self, topic: str, partition: int, start: int, limit: int = 1000, wait_s: float = 0.0
    ) -> list[Record]:
        """See `Log.read`. To go on where the last read ended is fast; elsewhere takes ~10 ms."""
        await self._check(topic, partition)
        where = TopicPartition(topic, partition)
        try:
            reader = await self._reader_at(where, start, wait_s) if limit > 0 else None
            if reader is None:
                return []
            self._reading.add(reader.consumer)
            try:
                records = await self._fetch(reader, limit, wait_s)
            except BaseException:
                self._stop_later(reader.consumer)
                raise
            finally:
                self._reading.discard(reader.consumer)
        except OffsetOutOfRangeError:
            # A retention has just removed what this reader stood at: begin at what is left.
            return await self.read(topic, partition, start, limit, wait_s)
        except FAILURES as error:
            unavailable(f"read {topic}", error)
        self._keep(reader)
        return records

    async def create_topics(self, topics: Mapping[str, TopicState]) -> list[str]:
        """See `Log.create_topics`."""
        self._check_open()
        return await self._topics.create(topics)

    async def configure_topics(self, topics: Mapping[str, TopicState]) -> list[str]:
        """See `Log.configure_topics`."""
        self._check_open()
        return await self._topics.configure(topics)

    async def describe_topics(self, names: Sequence[str]) -> dict[str, TopicState]:
        """See `Log.describe_topics`."""
        self._check_open()
        return await self._topics.describe(names)

    async def close(self) -> None:
        """See `Log.close`. Appends still waiting for an answer fail as unknown."""
        self._closed = True
        self._drop_producer(self._producer)
        self._drop_offsets_client()
        idle = [reader.consumer for reader in self._readers.values()]
        self._readers.clear()
        for consumer in [*idle, *self._reading]:
            self._stop_later(consumer)
        while self._stopping:
            await asyncio.wait(self._stopping)

    def _check_open(self) -> None:
        if self._closed:
            raise LogClosed(f"the log on {self._bootstrap} is closed")

    async def _check(self, topic: str, partition: int) -> None:
        count = await self.partitions(topic)
        if not 0 <= partition < count:
            raise UnknownTopic(f"topic {topic} has no partition {partition}, only 0 to {count - 1}")

    # Clients

    async def _get_producer(self) -> AIOKafkaProducer:
        async with self._connecting:
            if self._producer is None:
                producer = AIOKafkaProducer(
                    acks="all",
                    enable_idempotence=True,
                    max_batch_size=_BATCH_BYTES,
                    **self._options,
                )
                await self._start(producer)
                self._producer = producer
            return self._producer

    async def _get_offsets_client(self) -> AIOKafkaConsumer:
        async with self._connecting:
            if self._offsets is None:
                self._offsets = await self._start_consumer()
            return self._offsets

    async def _start_consumer(self) -> AIOKafkaConsumer:
        consumer = AIOKafkaConsumer(
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            isolation_level="read_uncommitted",
            max_partition_fetch_bytes=_FETCH_BYTES,
            **self._options,
        )
        await self._start(consumer)
        return consumer

    async def _start(self, client: AIOKafkaProducer | AIOKafkaConsumer) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await client.start()
            self._check_open()
        except BaseException:
            self._stop_later(client)
            raise

    def _drop_producer(self, producer: AIOKafkaProducer | None) -> None:
        """Let go of ``producer``; appends that wait for it fail as unknown."""
        if self._producer is producer:
            self._producer = None
        if producer is not None:
            abandon(producer, ProducerClosed())
            self._stop_later(producer)

    def _drop_offsets_client(self) -> None:
        if self._offsets is not None:
            self._stop_later(self._offsets)
            self._offsets = None

    def _stop_later(self, client: AIOKafkaProducer | AIOKafkaConsumer) -> None:
        """Stop ``client`` in a task of its own, and for no longer than `_STOP_S`.

        In its own task, because a consumer that is stopped soon after its start
        raises CancelledError, which must not look like a cancellation of ours.
        """

        async def stop() -> None:
            with contextlib.suppress(*FAILURES):
                async with asyncio.timeout(_STOP_S):
                    await client.stop()

        task = asyncio.create_task(stop())
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)

    # Reading

    async def _ask_begin(self, where: TopicPartition) -> int:
        """Return the oldest offset kept."""
        return await self._ask("beginning_offsets", where)

    async def _ask_end(self, where: TopicPartition) -> int:
        """Return the high watermark."""
        return await self._ask("end_offsets", where)

    async def _ask(self, question: str, where: TopicPartition) -> int:
        try:
            async with asyncio.timeout(self._timeout_s):
                client = await self._get_offsets_client()
                answer = await getattr(client, question)([where])
        except FAILURES as error:
            self._drop_offsets_client()
            unavailable(f"ask for the offsets of {where.topic}", error)
        return int(answer[where])

    async def _reader_at(self, where: TopicPartition, start: int, wait_s: float) -> _Reader | None:
        """Return a reader that stands at ``start``, or None when that is past the end."""
        idle = self._readers.pop(where, None)
        if idle is not None:
            if idle.next == start:
                return idle
            # A fetch for the old place may be waiting at the broker; a new reader is quicker.
            self._stop_later(idle.consumer)
        clock = asyncio.get_running_loop().time
        deadline = clock() + wait_s
        while start > await self._ask_end(where):
            if clock() >= deadline:
                return None
            await asyncio.sleep(_PAST_END_POLL_S)
        start = max(start, await self._ask_begin(where))
        consumer = await self._start_consumer()
        # Nothing may run between these two: without a place a fetch is an error.
        consumer.assign([where])
        consumer.seek(where, start)
        return _Reader(consumer, where, start)

    async def _fetch(self, reader: _Reader, limit: int, wait_s: float) -> list[Record]:
        """Return what the reader finds; nothing only when it stands at the end."""
        found = await self._poll(reader, limit, max(wait_s, 0.0))
        if not found and reader.next < await self._ask_end(reader.where):
            found = await self._poll(reader, limit, self._timeout_s)
            if not found:
                unavailable(f"read {reader.where.topic}", "the broker sent nothing in time")
        return found

    async def _poll(self, reader: _Reader, limit: int, wait_s: float) -> list[Record]:
        where = reader.where
        topic, partition = where
        found = await reader.consumer.getmany(
            where, timeout_ms=int(wait_s * 1000), max_records=limit
        )
        records = [
            Record(
                topic,
                partition,
                each.offset,
                each.timestamp * 1000,
                each.key,
                each.value,
                headers_of(each.headers),
            )
            for each in found.get(where, ())
        ]
        if records:
            reader.next = records[-1].offset + 1
        return records

    def _keep(self, reader: _Reader) -> None:
        """Keep the reader for the read that goes on from here; let the least used go."""
        replaced = self._readers.pop(reader.where, None)
        if replaced is not None:
            self._stop_later(replaced.consumer)
        if self._closed:
            self._stop_later(reader.consumer)
            return
        self._readers[reader.where] = reader
        while len(self._readers) > _MAX_IDLE_READERS:
            self._stop_later(self._readers.pop(next(iter(self._readers))).consumer)
