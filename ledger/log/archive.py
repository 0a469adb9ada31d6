"""The log as an archive's files: read only, the same records at the same offsets.

What `ledger.archive` has written, opened as ``archive:DIR``; a follower may go on
writing to it. A file that is missing, cut off or changed is named (`LogDamaged`)
when something asks for what it held; nothing is skipped.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ledger.archive.columns import RAW, records_of
from ledger.archive.files import Reader, facts_of
from ledger.archive.folder import Listing, list_partition, partitions_of, topics_of
from ledger.log.port import (
    Entry,
    Log,
    LogClosed,
    LogDamaged,
    LogError,
    Record,
    TopicState,
    UnknownTopic,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["ArchiveLog"]

#: How often to look for new files while a reader waits at the end.
_POLL_S = 0.2

_VALUES = ("offset", "time_us", "value")

T = TypeVar("T")


@dataclass(slots=True)
class _Open:
    """The file read last of a partition, and one row group of it: readers go on from there."""

    reader: Reader
    number: int = -1
    columns: tuple[str, ...] = ()
    table: Any = None


class ArchiveLog(Log):
    """The archived log in ``folder``."""

    def __init__(self, folder: Path | str) -> None:
        """Look at the folder; raise `LogUnavailable` when there is no archive in it."""
        self._folder = Path(folder)
        topics_of(self._folder)
        self._closed = False
        self._counts: dict[str, int] = {}
        self._listings: dict[tuple[str, int], Listing] = {}
        self._open: dict[tuple[str, int], _Open] = {}
        # One thread: a Parquet reader is for one at a time, and a cancelled call runs on.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="gpuledger-archive")

    async def partitions(self, topic: str) -> int:
        """See `Log.partitions`. Raise `LogDamaged` when a partition's folder is missing."""
        return await self._run(self._count, topic)

    async def begin(self, topic: str, partition: int) -> int:
        """See `Log.begin`."""
        return (await self._run(self._list, topic, partition)).begin

    async def end(self, topic: str, partition: int) -> int:
        """See `Log.end`."""
        return (await self._run(self._list, topic, partition)).end

    async def append(
        self, topic: str, partition: int | None, entries: Sequence[Entry]
    ) -> list[int]:
        """Refuse: an archive is read only."""
        where = topic if partition is None else f"{topic}/{partition}"
        raise LogError(
            f"{len(entries)} records for {where} are refused: the archive in {self._folder} cannot"
            " be written to; 'gpuledger archive restore' makes a log of it that can"
        )

    async def read(
        self, topic: str, partition: int, start: int, limit: int = 1000, wait_s: float = 0.0
    ) -> list[Record]:
        """See `Log.read`. Files that a follower adds are seen while a reader waits."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + wait_s
        while True:
            table = await self._run(self._rows, topic, partition, start, limit, RAW)
            if table is not None:
                return records_of(topic, partition, table)
            left_s = deadline - clock()
            if left_s <= 0:
                return []
            await asyncio.sleep(min(_POLL_S, left_s))

    async def values(
        self, topic: str, partition: int, start: int, limit: int = 1000
    ) -> list[tuple[int, int, bytes | None]]:
        """See `Log.values`."""
        table = await self._run(self._rows, topic, partition, start, limit, _VALUES)
        if table is None:
            return []
        return list(zip(*(column.to_pylist() for column in table.columns), strict=True))

    async def columns(
        self, topic: str, partition: int, start: int, limit: int, names: tuple[str, ...]
    ) -> Any:  # noqa: ANN401 - an Arrow table
        """Return columns (`ledger.archive.columns`) of some records from ``start`` on, or None."""
        return await self._run(self._rows, topic, partition, start, limit, names)

    async def create_topics(self, topics: Mapping[str, TopicState]) -> list[str]:
        """Refuse: an archive is read only."""
        raise LogError(
            f"{', '.join(topics)} cannot be made: the log in {self._folder} is an archive"
        )

    async def describe_topics(self, names: Sequence[str]) -> dict[str, TopicState]:
        """See `Log.describe_topics`."""
        existing = await self._run(topics_of, self._folder)
        return {name: TopicState(await self.partitions(name)) for name in names if name in existing}

    async def close(self) -> None:
        """See `Log.close`."""
        self._closed = True
        self._open.clear()
        self._thread.shutdown(wait=False)

    # What follows runs on the handle's thread, except `_run`.

    async def _run(self, work: Callable[..., T], *args: object) -> T:
        if self._closed:
            raise LogClosed(f"the archive in {self._folder} is closed")
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *args)

    def _count(self, topic: str) -> int:
        """Return the partition count, which is fixed for life and so kept."""
        if topic not in self._counts:
            found = partitions_of(self._folder, topic)
            declared = self._declared(topic, found)
            if found < declared:
                raise LogDamaged(
                    f"{topic} has {declared} partitions, but the folders {found} to {declared - 1}"
                    f" are missing in {self._folder / topic}; put them back from a copy, or run"
                    " 'gpuledger archive' on the log again"
                )
            self._counts[topic] = found
        return self._counts[topic]

    def _declared(self, topic: str, found: int) -> int:
        """Return how many partitions a file that can be read says that there are."""
        for number in range(found):
            for file in list_partition(self._folder, topic, number).files[-1:]:
                try:
                    return facts_of(file).partitions
                except (LogDamaged, FileNotFoundError):
                    continue
        return found

    def _check(self, topic: str, partition: int) -> None:
        count = self._count(topic)
        if not 0 <= partition < count:
            raise UnknownTopic(f"topic {topic} has no partition {partition}, only 0 to {count - 1}")

    def _list(self, topic: str, partition: int) -> Listing:
        """Look at the folder again; a follower may have been there."""
        self._check(topic, partition)
        listing = list_partition(self._folder, topic, partition)
        self._listings[topic, partition] = listing
        return listing

    def _rows(
        self, topic: str, partition: int, start: int, limit: int, columns: tuple[str, ...]
    ) -> Any:  # noqa: ANN401 - an Arrow table
        """Return some rows from ``start`` on, or None at the end."""
        at = (topic, partition)
        listing = self._listings.get(at) or self._list(topic, partition)
        if start >= listing.end:
            listing = self._list(topic, partition)
            if start >= listing.end:
                return None
        try:
            return self._rows_of(at, listing, start, limit, columns)
        except FileNotFoundError:
            # A longer file has superseded it since; one that is gone leaves a hole.
            self._open.pop(at, None)
            listing = self._list(topic, partition)
        if start >= listing.end:
            raise _missing(at, start, self._folder)
        try:
            return self._rows_of(at, listing, start, limit, columns)
        except FileNotFoundError:
            raise _missing(at, start, self._folder) from None

    def _rows_of(
        self,
        at: tuple[str, int],
        listing: Listing,
        start: int,
        limit: int,
        columns: tuple[str, ...],
    ) -> Any:  # noqa: ANN401 - an Arrow table
        index = max(bisect_right(listing.files, start, key=lambda one: one.first) - 1, 0)
        file = listing.files[index]
        if file.last < start:
            following = listing.files[index + 1].first
            count = following - start
            entries = "1 entry" if count == 1 else f"{count} entries"
            raise LogDamaged(
                f"{at[0]}/{at[1]}: {entries} missing: {start} to {following - 1}: no file in"
                f" {file.path.parent} has them; put the file back, or run 'gpuledger archive' on"
                " the log again"
            )
        opened = self._open.get(at)
        if opened is None or opened.reader.file != file:
            opened = self._open[at] = _Open(Reader(file))
        # From before the first record on, a reader begins with the first.
        start = max(start, file.first)
        number = bisect_right(opened.reader.starts, start) - 1
        if number != opened.number or not set(columns) <= set(opened.columns):
            opened.table = opened.reader.group(number, columns)
            opened.number, opened.columns = number, columns
        rows = opened.table.slice(start - opened.reader.starts[number], limit)
        return rows.select(list(columns))


def _missing(at: tuple[str, int], start: int, folder: Path) -> LogDamaged:
    return LogDamaged(f"{at[0]}/{at[1]}: the file with offset {start} has gone from {folder}")
