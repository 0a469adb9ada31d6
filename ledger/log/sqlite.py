"""The log in one SQLite file: the default on one machine.

Appends are transactions (WAL, ``synchronous=FULL``), so what was acknowledged
survives a crash and a batch is in the file whole or not at all. Several
processes may append to and read one file at once. All SQLite work that may wait for another
process's lock is done on one thread per handle, so that never stops the event loop.
"""

from __future__ import annotations

import asyncio
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import orjson

from ledger.log.bell import Bell
from ledger.log.partition import group_by_partition
from ledger.log.port import (
    Entry,
    Log,
    LogClosed,
    LogError,
    Record,
    TopicPartition,
    TopicState,
    UnknownTopic,
    check_sizes,
)
from ledger.log.sqlite_file import errors, open_file, transaction
from ledger.log.wakeup import Wakeup, read_or_wait, wall_clock_us

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

__all__ = ["SqliteLog"]

#: How long to wait for another process's transaction before `LogUnavailable`.
LOCK_TIMEOUT_S = 10.0

#: The least time between two looks of a waiting reader for other processes' appends.
POLL_S = 0.005

_INSERT = "INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?)"

_SELECT = (
    "SELECT offset, time_us, key, value, headers FROM records"
    " WHERE topic = ? AND partition = ? AND offset >= ? ORDER BY offset LIMIT ?"
)

_VALUES = (
    "SELECT offset, time_us, value FROM records"
    " WHERE topic = ? AND partition = ? AND offset >= ? ORDER BY offset LIMIT ?"
)

_LAST = (
    "SELECT offset, time_us FROM records"
    " WHERE topic = ? AND partition = ? ORDER BY offset DESC LIMIT 1"
)

_THERE = "SELECT 1 FROM records WHERE topic = ? AND partition = ? AND offset >= ? LIMIT 1"

_FIRST = "SELECT min(offset) FROM records WHERE topic = ? AND partition = ?"

T = TypeVar("T")


class SqliteLog(Log):
    """A log in the SQLite file at ``path``, created when it does not exist."""

    def __init__(
        self,
        path: Path | str,
        *,
        clock: Callable[[], int] = wall_clock_us,
        read_only: bool = False,
        lock_timeout_s: float = LOCK_TIMEOUT_S,
    ) -> None:
        """Open the file.

        ``clock`` returns UTC microseconds: the append time, which never goes
        back within a partition. With ``read_only`` the file must exist and
        appends are refused. Raise `LogUnavailable` when the file cannot be
        opened and `LogDamaged` when it is not a log.
        """
        self._path = Path(path)
        self._clock = clock
        self._read_only = read_only
        self._closed = False
        self._counts: dict[str, int] = {}
        #: For each topic that is waited for, and what is: topic, partition, offset.
        self._wakeups: dict[str, Wakeup] = {}
        self._waiting: list[tuple[str, int, int]] = []
        #: How often a waiting reader looks at most, and does where it does not hear the bell.
        self.poll_s = POLL_S
        self._bell = Bell(self._path, read_only=read_only)
        self._watcher: asyncio.Task[None] | None = None
        self._db = open_file(self._path, read_only=read_only, lock_timeout_s=lock_timeout_s)
        #: A second connection, of the event loop's own thread: see `_watch`.
        self._glance: sqlite3.Connection | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="gpuledger-sqlite")

    async def partitions(self, topic: str) -> int:
        """See `Log.partitions`."""
        return await self._run("read", self._count, topic)

    async def begin(self, topic: str, partition: int) -> int:
        """See `Log.begin`. Nothing is ever removed, so it is 0."""
        return await self._run("read", self._begin, topic, partition)

    async def end(self, topic: str, partition: int) -> int:
        """See `Log.end`."""
        return (await self._run("read", self._tail, topic, partition))[0]

    async def append(
        self, topic: str, partition: int | None, entries: Sequence[Entry]
    ) -> list[int]:
        """See `Log.append`. The whole call is one transaction."""
        check_sizes(entries)
        offsets = await self._run("append", self._append, topic, partition, entries)
        self._notify({topic})
        return offsets

    async def append_all(
        self, batches: Mapping[TopicPartition, Sequence[Entry]]
    ) -> dict[TopicPartition, list[int]]:
        """See `Log.append_all`. One transaction: all or nothing."""
        for entries in batches.values():
            check_sizes(entries)
        offsets = await self._run("append", self._append_batches, batches)
        self._notify({topic for topic, _ in batches})
        return offsets

    async def restore(self, topic: str, partition: int, records: Sequence[Record]) -> list[int]:
        """See `Log.restore`. One transaction."""
        offsets = await self._run("append", self._restore, topic, partition, records)
        self._notify({topic})
        return offsets

    async def read(
        self, topic: str, partition: int, start: int, limit: int = 1000, wait_s: float = 0.0
    ) -> list[Record]:
        """See `Log.read`. Appends of others are seen within ``poll_s`` of their ring (`Bell`)."""
        read_now = partial(self._run, "read", self._read, topic, partition, start, limit)
        if wait_s <= 0:
            return await read_now()
        waits = (topic, partition, start)

        async def read_if_there() -> list[Record]:
            known = topic in self._counts and partition in range(self._counts[topic])
            return await read_now() if not known or self._is_there(*waits) else []

        self._waiting.append(waits)
        wakeup = self._wakeups.setdefault(topic, Wakeup())
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.create_task(self._watch())
        try:
            return await read_or_wait(wakeup, read_if_there, wait_s)
        finally:
            self._waiting.remove(waits)

    async def values(
        self, topic: str, partition: int, start: int, limit: int = 1000
    ) -> list[tuple[int, int, bytes | None]]:
        """See `Log.values`."""
        return await self._run("read", self._values, topic, partition, start, limit)

    async def create_topics(self, topics: Mapping[str, TopicState]) -> list[str]:
        """See `Log.create_topics`. Replication and settings have no meaning here."""
        return await self._run("create topics", self._create_topics, topics)

    async def describe_topics(self, names: Sequence[str]) -> dict[str, TopicState]:
        """See `Log.describe_topics`."""
        return await self._run("read", self._describe_topics, names)

    async def close(self) -> None:
        """See `Log.close`. Ends after the work already begun."""
        if self._closed:
            return
        self._closed = True
        self._notify(self._wakeups)
        if self._watcher is not None:
            self._watcher.cancel()
            # The number of what it hears by may be another file's as soon as that is closed.
            await asyncio.wait([self._watcher])
        self._bell.close()
        if self._glance is not None:
            # The last connection to close puts the write-ahead log away; this one cannot.
            self._glance.close()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._db.close)
        self._thread.shutdown(wait=False)

    # What follows runs on the handle's thread, except `_run` and `_watch`.

    async def _run(self, doing: str, work: Callable[..., T], *args: object) -> T:
        """Do ``work`` on the handle's thread, with SQLite's errors turned into the port's."""
        if self._closed:
            raise LogClosed(f"the log {self._path} is closed")

        def guarded() -> T:
            with errors(self._path, doing):
                return work(*args)

        return await asyncio.get_running_loop().run_in_executor(self._thread, guarded)

    def _notify(self, topics: Iterable[str]) -> None:
        """Wake those who wait for something in these topics."""
        for topic in topics:
            if topic in self._wakeups:
                self._wakeups[topic].notify()

    async def _watch(self) -> None:
        """Wake the readers for whom somebody has committed something.

        It asks through a connection of its own, which never waits for a lock: that takes no
        hand-over to another thread, as many times a second as it is done.
        """
        seen: int | None = None
        clock = asyncio.get_running_loop().time
        next_s = clock()
        while self._waiting and not self._closed:
            # Before the look: what is rung between the two is looked for again.
            self._bell.listen()
            try:
                version = self._glanced("PRAGMA data_version")
            except (LogError, sqlite3.Error):
                # The readers look for themselves, and have the error if there is one.
                version = None
            if version is None or version != seen:
                seen = version
                self._notify({one[0] for one in self._waiting if self._is_there(*one)})
            if self._bell.hears and not await self._bell.rung():
                continue  # it is looked all the same, in case a ring was missed
            await asyncio.sleep(next_s - clock())
            next_s = clock() + self.poll_s

    def _is_there(self, *place: object) -> bool:
        """Say whether there is something to read; where that cannot be told there may be."""
        try:
            return self._closed or self._glanced(_THERE, *place) is not None
        except (LogError, sqlite3.Error):
            return True

    def _glanced(self, query: str, *values: object) -> int | None:
        if self._glance is None:
            self._glance = open_file(self._path, read_only=True, lock_timeout_s=0.0)
        row = self._glance.execute(query, values).fetchone()
        return None if row is None else int(row[0])

    def _count(self, topic: str) -> int:
        """Return the partition count, which is fixed for life and so kept."""
        known = self._counts.get(topic)
        if known is not None:
            return known
        row = self._db.execute("SELECT partitions FROM topics WHERE topic = ?", (topic,)).fetchone()
        if row is None:
            raise UnknownTopic(f"there is no topic {topic} in {self._path}")
        self._counts[topic] = int(row[0])
        return self._counts[topic]

    def _check(self, topic: str, partition: int) -> None:
        count = self._count(topic)
        if not 0 <= partition < count:
            raise UnknownTopic(f"topic {topic} has no partition {partition}, only 0 to {count - 1}")

    def _begin(self, topic: str, partition: int) -> int:
        self._check(topic, partition)
        return int(self._db.execute(_FIRST, (topic, partition)).fetchone()[0] or 0)

    def _tail(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the next offset and the last record's time (0 when there is none)."""
        self._check(topic, partition)
        row = self._db.execute(_LAST, (topic, partition)).fetchone()
        return (0, 0) if row is None else (row[0] + 1, row[1])

    def _append(self, topic: str, partition: int | None, entries: Sequence[Entry]) -> list[int]:
        groups = group_by_partition(entries, partition, self._count(topic))
        added = self._append_batches(
            {
                (topic, number): [entries[index] for index in indices]
                for number, indices in groups.items()
            }
        )
        offsets = [0] * len(entries)
        for number, indices in groups.items():
            for index, offset in zip(indices, added[topic, number], strict=True):
                offsets[index] = offset
        return offsets

    def _append_batches(
        self, batches: Mapping[TopicPartition, Sequence[Entry]]
    ) -> dict[TopicPartition, list[int]]:
        self._check_writable()
        for topic, partition in batches:
            self._check(topic, partition)
        added: dict[TopicPartition, list[int]] = {}
        with transaction(self._db):
            for (topic, partition), entries in batches.items():
                first, last_us = self._tail(topic, partition)
                time_us = max(self._clock(), last_us)
                at = (topic, partition)
                rows = (
                    (*at, offset, time_us, entry.key, entry.value, _dump_headers(entry.headers))
                    for offset, entry in enumerate(entries, first)
                )
                self._db.executemany(_INSERT, rows)
                added[topic, partition] = list(range(first, first + len(entries)))
        self._bell.ring()
        return added

    def _restore(self, topic: str, partition: int, records: Sequence[Record]) -> list[int]:
        self._check_writable()
        with transaction(self._db):
            first = self._tail(topic, partition)[0]
            self._db.executemany(
                _INSERT,
                (
                    (topic, partition, offset, one.time_us, one.key, one.value,
                     _dump_headers(one.headers))
                    for offset, one in enumerate(records, first)
                ),
            )  # fmt: skip
        self._bell.ring()
        return list(range(first, first + len(records)))

    def _check_writable(self) -> None:
        if self._read_only:
            raise LogError(f"the log {self._path} is open for reading only")

    def _read(self, topic: str, partition: int, start: int, limit: int) -> list[Record]:
        self._check(topic, partition)
        rows = self._db.execute(_SELECT, (topic, partition, start, limit))
        return [
            Record(topic, partition, offset, time_us, key, value, _load_headers(headers))
            for offset, time_us, key, value, headers in rows
        ]

    def _values(
        self, topic: str, partition: int, start: int, limit: int
    ) -> list[tuple[int, int, bytes | None]]:
        self._check(topic, partition)
        return self._db.execute(_VALUES, (topic, partition, start, limit)).fetchall()

    def _create_topics(self, topics: Mapping[str, TopicState]) -> list[str]:
        created: list[str] = []
        with transaction(self._db):
            for name in sorted(topics):
                cursor = self._db.execute(
                    "INSERT OR IGNORE INTO topics VALUES (?, ?)", (name, topics[name].partitions)
                )
                if cursor.rowcount:
                    created.append(name)
        return created

    def _describe_topics(self, names: Sequence[str]) -> dict[str, TopicState]:
        rows = self._db.execute("SELECT topic, partitions FROM topics").fetchall()
        wanted = set(names)
        return {name: TopicState(partitions) for name, partitions in rows if name in wanted}


def _dump_headers(headers: tuple[tuple[str, bytes], ...]) -> str | None:
    """Return the headers as JSON pairs: Latin-1 maps each byte to one character and back."""
    if not headers:
        return None
    pairs = [(name, value.decode("latin-1")) for name, value in headers]
    return orjson.dumps(pairs).decode()


def _load_headers(text: str | None) -> tuple[tuple[str, bytes], ...]:
    if text is None:
        return ()
    pairs: list[Any] = orjson.loads(text)
    return tuple([(name, value.encode("latin-1")) for name, value in pairs])
