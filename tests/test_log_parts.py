"""The small parts of the log: partition by key, URLs, repeated log lines."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
from aiokafka.partitioner import DefaultPartitioner
from aiokafka.partitioner import murmur2 as aiokafka_murmur2
from hypothesis import given
from hypothesis import strategies as st

from ledger.log.kafka import KafkaLog
from ledger.log.memory import MemoryLog
from ledger.log.partition import murmur2, partition_of
from ledger.log.port import LogError, LogUnavailable, TopicState
from ledger.log.quiet import RepeatFilter, quiet_loggers
from ledger.log.sqlite import SqliteLog
from ledger.log.url import BadLogUrl, open_log

if TYPE_CHECKING:
    from pathlib import Path


@given(st.binary(max_size=64))
def test_murmur2_is_aiokafkas(data: bytes) -> None:
    """The hash agrees with an independent implementation."""
    assert murmur2(data) == aiokafka_murmur2(data)


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        # From the tests of Kafka's Java client, which has signed numbers.
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_javas(data: bytes, wanted: int) -> None:
    """The hash agrees with the values that Kafka's Java client is tested with."""
    assert murmur2(data) == wanted & 0xFFFFFFFF


@given(st.binary(max_size=40), st.integers(1, 100))
def test_partition_is_that_of_kafkas_clients(key: bytes, partitions: int) -> None:
    """A producer with the default partitioner agrees with us."""
    everywhere = list(range(partitions))
    assert partition_of(key, partitions) == DefaultPartitioner()(key, everywhere, everywhere)


def test_no_key_counts_as_an_empty_one() -> None:
    """The answer is the same every time."""
    assert partition_of(None, 7) == partition_of(b"", 7)


async def test_open_log(tmp_path: Path) -> None:
    """Each kind of URL opens its adapter, with the options passed on."""
    path = tmp_path / "log.sqlite"
    async with open_log(f"sqlite:{path}", clock=lambda: 42) as log:
        assert isinstance(log, SqliteLog)
        await log.create_topics({"t": TopicState(1)})
        await log.append("t", None, [])
    async with open_log(f"sqlite:{path}", read_only=True) as log:
        with pytest.raises(LogError):
            await log.create_topics({"u": TopicState(1)})
    async with open_log("memory:") as log:
        assert isinstance(log, MemoryLog)
    async with open_log("kafka://one:9092,[::1]:9093/") as log:
        assert isinstance(log, KafkaLog)
    with pytest.raises(LogUnavailable, match="no log"):
        open_log(f"sqlite:{tmp_path / 'absent'}", read_only=True)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ledger.sqlite",
        "postgres://x",
        "sqlite",
        "sqlite:",
        "sqlite::memory:",
        "kafka:one:9092",
        "kafka://",
        "kafka://one",
        "kafka://one:9092,",
        "kafka://one:port",
        "kafka://one:99999",
        "memory:x",
    ],
)
async def test_bad_urls(url: str) -> None:
    """The error says what is expected."""
    with pytest.raises(BadLogUrl, match=r"begins with one of|needs|takes nothing"):
        open_log(url)


def line(text: str, level: int = logging.WARNING) -> logging.LogRecord:
    """Return a log record with this message template."""
    return logging.LogRecord("aiokafka.conn", level, __file__, 1, text, ("broker",), None)


def test_repeated_lines_are_held_back_and_counted() -> None:
    """One line of a kind passes in each span; the next one tells how many were held back."""
    now = 0.0
    repeats = RepeatFilter(10.0, lambda: now)
    assert repeats.filter(line("no connection to %s"))
    assert not any(repeats.filter(line("no connection to %s")) for _ in range(99))
    assert repeats.filter(line("another line about %s"))
    assert repeats.filter(line("no connection to %s", logging.INFO))
    now = 10.0
    after = line("no connection to %s")
    assert repeats.filter(after)
    assert after.getMessage() == "no connection to broker (99 more like it since the last one)"


def test_quiet_loggers_covers_children_once() -> None:
    """Each logger of the package gets one filter, however often it is asked for."""
    names = ["gpuledger_test", "gpuledger_test.a", "gpuledger_test.a.b", "gpuledger_testing"]
    loggers = [logging.getLogger(name) for name in names]
    quiet_loggers("gpuledger_test")
    quiet_loggers("gpuledger_test")
    assert [len(logger.filters) for logger in loggers] == [1, 1, 1, 0]
