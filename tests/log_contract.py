"""What every log must do. Each adapter's tests inherit `LogContract` and say how to open one."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from ledger.log.partition import partition_of
from ledger.log.port import (
    MAX_HEADERS,
    MAX_RECORD_BYTES,
    Entry,
    Log,
    LogClosed,
    Record,
    TooLarge,
    TopicState,
    UnknownTopic,
)
from schemas.topics import MAX_MESSAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

PARTITIONS = 3
CELLS = [f"cell-{number}".encode() for number in range(20)]


def entries(count: int, tag: str = "e") -> list[Entry]:
    """Return ``count`` different entries."""
    return [Entry(b"cell", f"{tag}-{number}".encode()) for number in range(count)]


async def read_all(log: Log, topic: str, partition: int) -> list[Record]:
    """Return every record of a partition."""
    found: list[Record] = []
    while more := await log.read(topic, partition, len(found)):
        found += more
    return found


def values(records: Sequence[Record | Entry]) -> list[bytes | None]:
    """Return the values of records or entries."""
    return [each.value for each in records]


class LogContract:
    """The behaviour that the ledger relies on."""

    @pytest.fixture
    def opener(self) -> Callable[[], Log]:
        """Return a function that opens one more handle on this test's log."""
        raise NotImplementedError

    @pytest.fixture
    def topic(self) -> str:
        """Return the full name of this test's topic."""
        return "test.events"

    @pytest.fixture
    async def log(self, opener: Callable[[], Log], topic: str) -> AsyncIterator[Log]:
        """Return an open log that has the topic, empty."""
        async with opener() as log:
            config = {"max.message.bytes": f"{MAX_MESSAGE_BYTES}"}
            await log.create_topics({topic: TopicState(PARTITIONS, 1, config)})
            yield log

    async def test_a_new_partition_is_empty(self, log: Log, topic: str) -> None:
        """Begin and end are 0, and there is nothing to read."""
        assert await log.partitions(topic) == PARTITIONS
        assert await log.begin(topic, 0) == 0
        assert await log.end(topic, 0) == 0
        assert await log.read(topic, 0, 0) == []

    async def test_offsets_are_dense_from_zero(self, log: Log, topic: str) -> None:
        """Offsets count up by one, over appends of any size."""
        assert await log.append(topic, 1, entries(2)) == [0, 1]
        assert await log.append(topic, 1, entries(1)) == [2]
        assert await log.append(topic, 1, []) == []
        assert await log.append(topic, 1, entries(700)) == list(range(3, 703))
        assert await log.end(topic, 1) == 703
        assert await log.begin(topic, 1) == 0
        assert [record.offset for record in await read_all(log, topic, 1)] == list(range(703))

    async def test_order_is_kept(self, log: Log, topic: str) -> None:
        """What was appended first is read first."""
        batches = [entries(count, f"batch-{count}") for count in (3, 1, 40, 2)]
        for batch in batches:
            await log.append(topic, 0, batch)
        wanted = [entry.value for batch in batches for entry in batch]
        assert values(await read_all(log, topic, 0)) == wanted

    async def test_what_is_read_is_what_was_written(self, log: Log, topic: str) -> None:
        """Missing and empty are different; headers keep order, repetition and any bytes."""
        written = [
            Entry(None, None),
            Entry(b"", b""),
            Entry(b"\x00\xff", bytes(range(256))),
            Entry(None, b"value", (("empty", b""), ("again", b"1"), ("again", b"2"))),
            Entry(b"key", None, (("name-\u00fc", bytes(range(256))),)),
        ]
        await log.append(topic, 0, written)
        found = await read_all(log, topic, 0)
        assert [Entry(each.key, each.value, each.headers) for each in found] == written
        assert {(each.topic, each.partition) for each in found} == {(topic, 0)}

    async def test_read_from_the_middle_and_past_the_end(self, log: Log, topic: str) -> None:
        """A read begins at its start; from the end on there is nothing."""
        await log.append(topic, 0, entries(10))
        assert [each.offset for each in await log.read(topic, 0, 7)] == [7, 8, 9]
        assert await log.read(topic, 0, 10) == []
        assert await log.read(topic, 0, 99) == []
        assert (await log.read(topic, 0, 0))[0].offset == 0

    async def test_limit(self, log: Log, topic: str) -> None:
        """No more than ``limit`` records come, and the next read goes on."""
        await log.append(topic, 0, entries(10))
        assert [each.offset for each in await log.read(topic, 0, 0, limit=4)] == [0, 1, 2, 3]
        assert [each.offset for each in await log.read(topic, 0, 4, limit=4)] == [4, 5, 6, 7]
        assert await log.read(topic, 0, 0, limit=0) == []

    async def test_an_append_wakes_a_waiting_reader(
        self, log: Log, topic: str, opener: Callable[[], Log]
    ) -> None:
        """A reader gets the record long before its wait is over, from whatever handle."""
        async with opener() as writer:
            for number in range(3):
                waiting = asyncio.create_task(log.read(topic, 0, number, wait_s=30.0))
                await asyncio.sleep(0.1)
                assert not waiting.done()
                began = time.monotonic()
                await (writer if number else log).append(topic, 0, entries(1))
                assert [each.offset for each in await waiting] == [number]
                assert time.monotonic() - began < 5.0

    async def test_a_wait_ends(self, log: Log, topic: str) -> None:
        """With nothing appended a read returns empty after ``wait_s``."""
        for start in (0, 5):
            began = time.monotonic()
            assert await log.read(topic, 0, start, wait_s=0.2) == []
            assert 0.15 < time.monotonic() - began < 5.0

    async def test_what_is_there_is_returned_without_waiting(self, log: Log, topic: str) -> None:
        """``wait_s`` is for the first record only."""
        await log.append(topic, 0, entries(2))
        began = time.monotonic()
        assert len(await log.read(topic, 0, 0, wait_s=30.0)) == 2
        assert time.monotonic() - began < 10.0

    async def test_partitions_are_apart(self, log: Log, topic: str) -> None:
        """Each partition has its own offsets and records."""
        await log.append(topic, 0, entries(2, "zero"))
        await log.append(topic, 2, entries(1, "two"))
        assert [await log.end(topic, number) for number in range(PARTITIONS)] == [2, 0, 1]
        assert values(await read_all(log, topic, 2)) == [b"two-0"]

    async def test_partition_by_key(self, log: Log, topic: str) -> None:
        """Without a partition each entry goes where `partition_of` says, in order."""
        written = [Entry(cell, b"%d" % number) for number in range(3) for cell in CELLS]
        offsets = await log.append(topic, None, written)
        places = [partition_of(entry.key, PARTITIONS) for entry in written]
        assert set(places) == set(range(PARTITIONS))
        for number in range(PARTITIONS):
            mine = [index for index, place in enumerate(places) if place == number]
            assert [offsets[index] for index in mine] == list(range(len(mine)))
            found = await read_all(log, topic, number)
            assert values(found) == [written[index].value for index in mine]

    async def test_append_all(self, log: Log, topic: str) -> None:
        """Several partitions in one call."""
        await log.append(topic, 0, entries(1))
        batches = {(topic, 0): entries(2, "a"), (topic, 1): entries(3, "b")}
        assert await log.append_all(batches) == {(topic, 0): [1, 2], (topic, 1): [0, 1, 2]}
        assert values(await read_all(log, topic, 1)) == values(batches[topic, 1])

    async def test_unknown_topic_and_partition(self, log: Log, topic: str) -> None:
        """Both are errors with the name in them, and create nothing."""
        for name, partition in (("test.nothing", 0), (topic, PARTITIONS), (topic, -1)):
            for call in (
                log.append(name, partition, entries(1)),
                log.read(name, partition, 0),
                log.begin(name, partition),
                log.end(name, partition),
            ):
                with pytest.raises(UnknownTopic, match=name):
                    await call
        with pytest.raises(UnknownTopic, match=r"test\.nothing"):
            await log.partitions("test.nothing")
        assert await log.describe_topics(["test.nothing"]) == {}

    async def test_two_writers(self, log: Log, topic: str, opener: Callable[[], Log]) -> None:
        """Appends at once get offsets that are dense and each given once; batches stay whole."""

        async def write(writer: Log, tag: str) -> list[int]:
            offsets: list[int] = []
            for number in range(20):
                added = await writer.append(topic, 0, entries(5, f"{tag}-{number}"))
                assert added == list(range(added[0], added[0] + 5))
                offsets += added
            return offsets

        async with opener() as other:
            first, second = await asyncio.gather(write(log, "first"), write(other, "second"))
        assert sorted(first + second) == list(range(200))
        found = await read_all(log, topic, 0)
        tags = [value.rpartition(b"-")[0] for value in values(found) if value is not None]
        assert all(len(set(tags[at : at + 5])) == 1 for at in range(0, 200, 5))
        # Each writer's own batches are in the order in which it wrote them.
        for tag in (b"first", b"second"):
            mine = [each for each in tags[::5] if each.startswith(tag)]
            assert mine == [b"%s-%d" % (tag, number) for number in range(20)]

    async def test_time_is_the_logs_and_never_goes_back(self, log: Log, topic: str) -> None:
        """Append times lie around now, in UTC microseconds, and never fall."""
        before_us = time.time_ns() // 1000
        for _ in range(5):
            await log.append(topic, 0, entries(3))
        times = [record.time_us for record in await read_all(log, topic, 0)]
        assert times == sorted(times)
        # A broker's clock counts milliseconds.
        assert before_us - 1000 <= times[0]
        assert times[-1] <= time.time_ns() // 1000 + 1000

    async def test_large_values(self, log: Log, topic: str) -> None:
        """A record of exactly the limit fits, also behind and before others."""
        largest = Entry(b"k", b"x" * (MAX_RECORD_BYTES - 4), (("h", b"vv"),))
        await log.append(topic, 0, [*entries(1), largest, largest, *entries(1)])
        sizes = [len(value or b"") for value in values(await read_all(log, topic, 0))]
        assert sizes == [3, MAX_RECORD_BYTES - 4, MAX_RECORD_BYTES - 4, 3]

    @pytest.mark.parametrize(
        "bad",
        [
            Entry(b"k", b"x" * MAX_RECORD_BYTES),
            Entry(None, b"", (("h", b"x" * MAX_RECORD_BYTES),)),
            Entry(None, b"", (("h", b""),) * (MAX_HEADERS + 1)),
        ],
        ids=["value", "header", "headers"],
    )
    async def test_too_large_is_refused_whole(self, log: Log, topic: str, bad: Entry) -> None:
        """Nothing of an append with one entry above the limit is kept."""
        for call in (
            log.append(topic, 0, [*entries(2), bad]),
            log.append_all({(topic, 0): entries(1), (topic, 1): [bad]}),
        ):
            with pytest.raises(TooLarge, match="the limit is"):
                await call
        assert [await log.end(topic, number) for number in range(PARTITIONS)] == [0, 0, 0]
        assert await log.append(topic, 0, entries(1)) == [0]

    async def test_create_topics_is_idempotent(self, log: Log, topic: str) -> None:
        """What exists is left alone, records and all."""
        await log.append(topic, 0, entries(1))
        more = f"{topic}-more"
        wanted = {topic: TopicState(PARTITIONS + 1), more: TopicState(2)}
        assert await log.create_topics(wanted) == [more]
        assert await log.create_topics(wanted) == []
        assert await log.partitions(topic) == PARTITIONS
        assert await log.end(topic, 0) == 1
        states = await log.describe_topics([topic, more])
        assert {name: state.partitions for name, state in states.items()} == {topic: 3, more: 2}

    async def test_closed(self, log: Log, topic: str) -> None:
        """Use after close is a clear error; closing twice is none."""
        await log.append(topic, 0, entries(1))
        await log.read(topic, 0, 0)
        await log.close()
        await log.close()
        for call in (
            log.partitions(topic),
            log.begin(topic, 0),
            log.end(topic, 0),
            log.append(topic, 0, entries(1)),
            log.append_all({(topic, 0): entries(1)}),
            log.read(topic, 0, 0),
            log.create_topics({}),
            log.describe_topics([topic]),
        ):
            with pytest.raises(LogClosed, match="closed"):
                await call

    async def test_close_ends_a_waiting_read(self, log: Log, topic: str) -> None:
        """The reader is told, long before its wait is over."""
        waiting = asyncio.create_task(log.read(topic, 0, 0, wait_s=60.0))
        await asyncio.sleep(0.2)
        await log.close()
        with pytest.raises(LogClosed, match="closed"):
            await asyncio.wait_for(waiting, 10.0)


class DurableLogContract(LogContract):
    """What a log that outlives its process must do in addition."""

    async def test_reopen_keeps_everything(
        self, log: Log, topic: str, opener: Callable[[], Log]
    ) -> None:
        """A handle opened later sees all records, unchanged, and appends behind them."""
        await log.append(topic, 0, [Entry(b"k", b"v", (("h", b"1"),)), Entry(None, None)])
        before = await read_all(log, topic, 0)
        await log.close()
        async with opener() as again:
            assert await read_all(again, topic, 0) == before
            assert await again.append(topic, 0, entries(1)) == [2]
            assert (await again.read(topic, 0, 2))[0].time_us >= before[-1].time_us
