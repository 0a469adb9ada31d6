"""The log port: what the ledger needs of an ordered, partitioned, durable log.

Three adapters implement it (memory, SQLite, Kafka); one contract suite in
``tests/log_contract.py`` holds them to the same behaviour. Offsets of a
partition are dense and start at 0 (a retention may have moved ``begin``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

__all__ = [
    "MAX_HEADERS",
    "MAX_RECORD_BYTES",
    "Entry",
    "Log",
    "LogClosed",
    "LogDamaged",
    "LogError",
    "LogUnavailable",
    "Record",
    "TooLarge",
    "TopicPartition",
    "TopicState",
    "UnknownTopic",
    "check_sizes",
]

#: The most bytes of one record: key, value, header names and header values together.
#: Inputs are far smaller (`schemas.strict_json.MAX_BYTES`); one decision may free and
#: give away thousands of devices (`ledger.core.limits`).
MAX_RECORD_BYTES = 8 * 1_048_576

#: The most headers of one record; keeps Kafka's framing of a record below 4 KiB.
MAX_HEADERS = 64

#: A topic's full name and a partition number.
TopicPartition = tuple[str, int]


class LogError(Exception):
    """Base of what an adapter raises."""


class LogUnavailable(LogError):
    """The log cannot be reached, or an append's outcome is unknown.

    The caller must drop what it believes and read the log again.
    """


class LogDamaged(LogUnavailable):
    """The log's storage is not what it should be: a corrupt file, or another kind of file."""


class LogClosed(LogError):
    """The log was used after `Log.close`."""


class UnknownTopic(LogError):
    """The topic or partition does not exist in this log."""


class TooLarge(LogError):
    """An entry is above `MAX_RECORD_BYTES` or `MAX_HEADERS`; nothing was appended."""


class Entry(NamedTuple):
    """What is to be appended. A named tuple for the reason that `Record` is one."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()


class Record(NamedTuple):
    """What was appended. ``time_us`` is the log's own append time (UTC microseconds).

    A named tuple because a scan makes millions: a frozen dataclass takes three
    times as long to make.
    """

    topic: str
    partition: int
    offset: int
    time_us: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class TopicState:
    """How a topic is, or is to be, set up.

    ``replication`` and ``config`` are None where the log has no such thing
    (memory and SQLite: one copy, and nothing is ever removed).
    """

    partitions: int
    replication: int | None = None
    config: Mapping[str, str] | None = None


def check_sizes(entries: Sequence[Entry]) -> None:
    """Raise `TooLarge`, naming the first entry that no log takes."""
    for index, entry in enumerate(entries):
        # No character is longer than four bytes: exact counting is for what may be too large.
        most = 4 * sum(map(len, chain.from_iterable(entry.headers)))
        size = len(entry.key or b"") + len(entry.value or b"") + most
        if size > MAX_RECORD_BYTES:
            names = sum(len(name.encode()) + len(value) for name, value in entry.headers)
            size += names - most
        if size > MAX_RECORD_BYTES:
            raise TooLarge(f"entry {index} has {size} bytes, the limit is {MAX_RECORD_BYTES}")
        if len(entry.headers) > MAX_HEADERS:
            raise TooLarge(
                f"entry {index} has {len(entry.headers)} headers, the limit is {MAX_HEADERS}"
            )


class Log(ABC):
    """An ordered, partitioned, append-only log. Topic names are the full names."""

    @abstractmethod
    async def partitions(self, topic: str) -> int:
        """Return the topic's partition count; raise `UnknownTopic`."""

    @abstractmethod
    async def begin(self, topic: str, partition: int) -> int:
        """Return the offset of the oldest record kept (or the end, when empty)."""

    @abstractmethod
    async def end(self, topic: str, partition: int) -> int:
        """Return the high watermark: the offset that the next record will get."""

    @abstractmethod
    async def append(
        self, topic: str, partition: int | None, entries: Sequence[Entry]
    ) -> list[int]:
        """Append in order and durably; return each entry's offset.

        With ``partition`` None each entry goes to the partition of its key
        (`ledger.log.partition.partition_of`). Records of other writers may lie
        between the returned offsets: the caller compares.

        Entries for one partition that take no more than `MAX_RECORD_BYTES`
        together (framing included) are appended all or none; a larger append
        to Kafka may leave its first part behind when it fails.

        Raise `TooLarge` or `UnknownTopic` with nothing appended, and
        `LogUnavailable` when the outcome is unknown. A cancelled append may
        still take place.
        """

    async def append_all(
        self, batches: Mapping[TopicPartition, Sequence[Entry]]
    ) -> dict[TopicPartition, list[int]]:
        """Append to several partitions; return the offsets of each.

        Memory and SQLite append all of it or nothing. Kafka may have appended
        to any of the partitions when it raises.
        """
        for entries in batches.values():
            check_sizes(entries)
        return {
            (topic, partition): await self.append(topic, partition, entries)
            for (topic, partition), entries in batches.items()
        }

    async def restore(self, topic: str, partition: int, records: Sequence[Record]) -> list[int]:
        """Append another log's records as `append` does, with the times that they have.

        For `ledger.archive.restore` only: everything else takes the log's own time.
        A log that cannot be given times overrides nothing, and gives its own.
        """
        entries = [Entry(one.key, one.value, one.headers) for one in records]
        return await self.append(topic, partition, entries)

    @abstractmethod
    async def read(
        self, topic: str, partition: int, start: int, limit: int = 1000, wait_s: float = 0.0
    ) -> list[Record]:
        """Return up to ``limit`` records from offset ``start`` on, in order.

        Waits up to ``wait_s`` seconds for the first one when there is none yet
        (also when ``start`` is past the end). Fewer than ``limit`` does not
        mean that the end is reached; none at all does. Where a retention has
        removed ``start``, the records begin later: the caller sees the gap.
        """

    async def values(
        self, topic: str, partition: int, start: int, limit: int = 1000
    ) -> list[tuple[int, int, bytes | None]]:
        """Return (offset, time_us, value) as `read` does without waiting: all that a fold needs.

        An adapter overrides it where leaving out keys and headers saves work.
        """
        records = await self.read(topic, partition, start, limit)
        return [(record.offset, record.time_us, record.value) for record in records]

    @abstractmethod
    async def create_topics(self, topics: Mapping[str, TopicState]) -> list[str]:
        """Create those of ``topics`` that do not exist; return their names, sorted.

        What exists already is left as it is, whatever its settings.
        """

    async def configure_topics(self, topics: Mapping[str, TopicState]) -> list[str]:
        """Give topics that exist the settings of ``config``; return those that have any.

        A log whose topics have no settings overrides nothing.
        """
        del topics
        return []

    @abstractmethod
    async def describe_topics(self, names: Sequence[str]) -> dict[str, TopicState]:
        """Return the state of those of ``names`` that exist."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of connections and files."""

    async def __aenter__(self) -> Self:
        """Return the log itself, to be closed at the end of the block."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the log."""
        await self.close()
