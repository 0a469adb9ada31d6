"""The log on a real Kafka: the contract, large appends, a broker that dies."""

from __future__ import annotations

import asyncio
import logging
import socket
import uuid
from typing import TYPE_CHECKING

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from ledger.log.kafka import KafkaLog
from ledger.log.port import Entry, LogUnavailable, TooLarge, TopicState
from tests.log_contract import DurableLogContract, entries, read_all, values

if TYPE_CHECKING:
    from collections.abc import Callable

    from deploy.kafka_local import LocalKafka
    from ledger.log.port import Log

pytestmark = pytest.mark.kafka


class TestKafkaLog(DurableLogContract):
    """The contract."""

    @pytest.fixture
    def topic(self, kafka_prefix: str) -> str:
        """Return a name that no other test has."""
        return f"{kafka_prefix}.events"

    @pytest.fixture
    def opener(self, kafka: str) -> Callable[[], Log]:
        """Return a function that opens one more set of clients."""
        return lambda: KafkaLog(kafka)


@pytest.fixture
def topic(kafka_prefix: str) -> str:
    """Return the name of this test's topic."""
    return f"{kafka_prefix}.events"


async def test_an_append_of_several_batches(kafka: str, topic: str) -> None:
    """Appends above Kafka's batch limit stay together and in order, also several at once."""
    async with KafkaLog(kafka) as log:
        await log.create_topics({topic: TopicState(2)})
        big = [Entry(b"k", bytes(1000), (("n", b"%d" % number),)) for number in range(5000)]
        results = await asyncio.gather(*(log.append(topic, 0, big) for _ in range(4)))
        assert sorted(offset for each in results for offset in each) == list(range(20_000))
        assert all(each == list(range(each[0], each[0] + 5000)) for each in results)
        found = await read_all(log, topic, 0)
        assert [each.headers for each in found] == [each.headers for each in big] * 4


async def test_a_topic_with_a_lower_limit(kafka: str, topic: str) -> None:
    """The broker's own limit is the same clear error; nothing is kept and the log goes on."""
    async with KafkaLog(kafka) as log:
        small = TopicState(1, 1, {"max.message.bytes": "10000"})
        await log.create_topics({topic: small})
        with pytest.raises(TooLarge, match=topic):
            await log.append(topic, 0, [Entry(None, bytes(20_000))])
        assert await log.end(topic, 0) == 0
        assert await log.append(topic, 0, entries(2)) == [0, 1]


async def test_what_other_clients_write(kafka: str, topic: str) -> None:
    """A plain client's records are read; its partitioner agrees; the time is the broker's."""
    async with KafkaLog(kafka) as log:
        await log.create_topics(
            {topic: TopicState(5, 1, {"message.timestamp.type": "LogAppendTime"})}
        )
        producer = AIOKafkaProducer(bootstrap_servers=kafka)
        await producer.start()
        sent = await producer.send_and_wait(
            topic, b"v", b"cell-7", timestamp_ms=1, headers=[("none", None), ("a", b"b")]
        )
        await producer.stop()
        [offset] = await log.append(topic, None, [Entry(b"cell-7", b"w")])
        first, second = await log.read(topic, sent.partition, 0)
        assert (first.value, first.headers) == (b"v", (("none", b""), ("a", b"b")))
        assert (second.offset, second.value) == (offset, b"w")
        assert 1_000_000_000_000_000 < first.time_us <= second.time_us


async def test_readers_of_one_partition_do_not_disturb_each_other(kafka: str, topic: str) -> None:
    """A waiting reader, a scan, and jumps back and forth, all at once."""
    async with KafkaLog(kafka) as log:
        await log.create_topics({topic: TopicState(1)})
        await log.append(topic, 0, entries(100))
        waiting = asyncio.create_task(log.read(topic, 0, 100, wait_s=30.0))
        for start in (50, 0, 99, 100, 10):
            found = await log.read(topic, 0, start, limit=3)
            assert [each.offset for each in found] == list(range(start, min(start + 3, 100)))
        assert not waiting.done()
        await log.append(topic, 0, entries(1))
        assert [each.offset for each in await waiting] == [100]


async def test_what_a_retention_removed(kafka: str, topic: str) -> None:
    """Reads begin at what is left, also for a reader that stood at what was removed."""
    async with KafkaLog(kafka) as log:
        await log.create_topics({topic: TopicState(1)})
        # More than one fetch, so that the reader does not have the rest already.
        await log.append(topic, 0, [Entry(None, bytes(500_000)) for _ in range(40)])
        assert len(await log.read(topic, 0, 0, limit=2)) == 2
        admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
        await admin.start()
        await admin.delete_records({TopicPartition(topic, 0): RecordsToDelete(before_offset=35)})
        await admin.close()
        assert await log.begin(topic, 0) == 35
        assert (await log.read(topic, 0, 10))[0].offset == 35
        found = 2
        while found < 40:
            records = await log.read(topic, 0, found, limit=2)
            found = records[-1].offset + 1
        assert await log.read(topic, 0, 40) == []


async def test_a_cancelled_read_leaves_the_log_usable(kafka: str, topic: str) -> None:
    """The cancelled reader is let go, and another takes its place."""
    async with KafkaLog(kafka) as log:
        await log.create_topics({topic: TopicState(1)})
        waiting = asyncio.create_task(log.read(topic, 0, 0, wait_s=30.0))
        await asyncio.sleep(0.2)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await log.append(topic, 0, entries(1))
        assert len(await log.read(topic, 0, 0)) == 1


async def test_no_broker(caplog: pytest.LogCaptureFixture) -> None:
    """Every call says that the broker cannot be reached, and where it was looked for."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        async with KafkaLog(address, timeout_s=1.0) as log:
            for call in (
                log.partitions("t"),
                log.append("t", 0, entries(1)),
                log.read("t", 0, 0),
                log.end("t", 0),
                log.create_topics({"t": TopicState(1)}),
                log.describe_topics(["t"]),
            ):
                with pytest.raises(LogUnavailable, match=address):
                    await call


@pytest.mark.slow
async def test_a_broker_killed_during_appends(
    own_kafka: Callable[[], LocalKafka], caplog: pytest.LogCaptureFixture
) -> None:
    """The append in flight is told as unknown; what was acknowledged is there after the restart."""
    broker = own_kafka()
    topic = "test.events"
    async with KafkaLog(broker.bootstrap, timeout_s=3.0) as log:
        await log.create_topics({topic: TopicState(1)})
        acknowledged: list[tuple[int, bytes | None]] = []
        enough = asyncio.Event()

        async def write() -> None:
            for number in range(100_000):
                batch = entries(20, f"b{number}")
                for offset, entry in zip(await log.append(topic, 0, batch), batch, strict=True):
                    acknowledged.append((offset, entry.value))
                if number == 20:
                    enough.set()

        writing = asyncio.create_task(write())
        await enough.wait()
        broker.kill()
        with pytest.raises(LogUnavailable, match=topic):
            await writing
        with pytest.raises(LogUnavailable, match=topic):
            await log.append(topic, 0, entries(1, "while-down"))
        with pytest.raises(LogUnavailable):
            await log.end(topic, 0)
        # aiokafka would have said some of this ten times a second.
        warnings = [each for each in caplog.records if each.levelno >= logging.WARNING]
        kinds = {(each.name, each.levelno, each.msg) for each in warnings}
        assert len(warnings) <= 2 * len(kinds) + 5

        await asyncio.to_thread(broker.start)
        found = {record.offset: record.value for record in await read_all(log, topic, 0)}
        assert acknowledged
        assert all(found[offset] == value for offset, value in acknowledged)
        # A new producer; offsets go on without a gap, and nothing given up arrives late.
        end = len(found)
        assert await log.append(topic, 0, entries(2, "after")) == [end, end + 1]
        await asyncio.sleep(1.0)
        assert values(await log.read(topic, 0, end)) == [b"after-0", b"after-1"]
        assert b"while-down-0" not in found.values()


def test_a_broker_starts_whatever_its_cluster_is_called(
    own_kafka: Callable[[], LocalKafka], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One id of sixty-four begins with a hyphen, as an option does."""
    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(bytes=bytes([0xF8] * 16)))
    assert own_kafka().pid is not None
