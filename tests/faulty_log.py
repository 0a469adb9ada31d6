"""A log that breaks at a chosen call, before or after the call has had its effect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ledger.log.port import Log, LogUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from ledger.log.port import Entry, Record, TopicPartition, TopicState

__all__ = ["FaultyLog", "Killed"]


class Killed(BaseException):
    """The process ends here: nothing of it runs on."""


class FaultyLog(Log):
    """Pass every call on to ``log``; the ``at``-th (from 0) breaks.

    ``error`` is raised before the call, or ``after`` it: then it has had its
    effect, and the caller cannot know. With ``at`` None nothing breaks and the
    calls are counted.
    """

    def __init__(
        self,
        log: Log,
        at: int | None = None,
        *,
        after: bool = False,
        error: Callable[[], BaseException] = lambda: LogUnavailable("injected"),
    ) -> None:
        self._log = log
        self._at = at
        self._after = after
        self._error = error
        self.calls = 0
        self.names: list[str] = []
        self._name: str | None = None

    def break_after(self, name: str) -> None:
        """Let the next call of ``name`` have its effect, and break there."""
        self._name = name

    async def _call(self, name: str, work: Awaitable[Any], close: Callable[[], None]) -> Any:
        number = self.calls
        self.calls += 1
        self.names.append(name)
        if number == self._at and not self._after:
            close()
            raise self._error()
        result = await work
        if number == self._at or name == self._name:
            raise self._error()
        return result

    async def _pass(self, name: str, *args: Any) -> Any:
        work = getattr(self._log, name)(*args)
        return await self._call(name, work, work.close)

    async def partitions(self, topic: str) -> int:
        """See `Log.partitions`."""
        count: int = await self._pass("partitions", topic)
        return count

    async def begin(self, topic: str, partition: int) -> int:
        """See `Log.begin`."""
        offset: int = await self._pass("begin", topic, partition)
        return offset

    async def end(self, topic: str, partition: int) -> int:
        """See `Log.end`."""
        offset: int = await self._pass("end", topic, partition)
        return offset

    async def append(
        self, topic: str, partition: int | None, entries: Sequence[Entry]
    ) -> list[int]:
        """See `Log.append`."""
        offsets: list[int] = await self._pass("append", topic, partition, entries)
        return offsets

    async def append_all(
        self, batches: Mapping[TopicPartition, Sequence[Entry]]
    ) -> dict[TopicPartition, list[int]]:
        """See `Log.append_all`: one partition after the other, as Kafka does it."""
        return {
            (topic, partition): await self.append(topic, partition, entries)
            for (topic, partition), entries in batches.items()
        }

    async def read(
        self, topic: str, partition: int, start: int, limit: int = 1000, wait_s: float = 0.0
    ) -> list[Record]:
        """See `Log.read`."""
        records: list[Record] = await self._pass("read", topic, partition, start, limit, wait_s)
        return records

    async def create_topics(self, topics: Mapping[str, TopicState]) -> list[str]:
        """See `Log.create_topics`."""
        return await self._log.create_topics(topics)

    async def describe_topics(self, names: Sequence[str]) -> dict[str, TopicState]:
        """See `Log.describe_topics`."""
        return await self._log.describe_topics(names)

    async def close(self) -> None:
        """Leave the log below open: it outlives the process that is being tested."""
