"""Follow a log into files: a partition's next file is written when all of it is there.

Files are cut at multiples of ``every`` offsets (or earlier, where the records fill
a file: `ledger.archive.files.FILE_BYTES`), so a restart goes on with the files that
an uninterrupted run would have written. What has come since the last cut is the
*tail*: it is written as a shorter file when the follower ends, and every so often
before. The next file of that partition begins where the tail's does and takes its
records in; the shorter one is superseded when the longer one is on disk.

The position is where the files end. A hole (a file that was lost or moved away) is
written again first, as long as the log still has its records.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ledger.archive.disk import Disk, locked, put
from ledger.archive.files import FILE_BYTES, GROUP_ROWS, Builder, Reader, facts_of
from ledger.archive.folder import (
    File,
    Listing,
    file_path,
    list_partition,
    make_topic,
    partitions_of,
    sweep,
)
from ledger.log.port import UnknownTopic
from ledger.reading import Damaged
from schemas.topics import FOR_EVER, TOPICS, full_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from ledger.log.port import Log, Record

__all__ = ["EVERY", "Follower", "Options", "Written"]

#: Offsets of a full file, unless told otherwise: one row group, as large as scans like it.
EVERY = GROUP_ROWS

_CHUNK = 5000
_WAIT_S = 5.0


@dataclass(frozen=True, slots=True)
class Options:
    """What is followed, and how files are cut.

    ``topics`` are without prefix; one that the log does not have is left out,
    except ``events``. ``every`` is the offsets of a full file. The tail is written
    every ``flush_s`` seconds, new records are looked for every ``poll_s``.
    """

    topics: tuple[str, ...] = ("events", "usage")
    every: int = EVERY
    flush_s: float = 60.0
    poll_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Written:
    """A file that was put in place, with its size, and how many of its records are new."""

    file: File
    size: int
    added: int
    full: bool


@dataclass(slots=True)
class Follower:
    """Copies a log's topics into ``folder``, which may hold what an earlier one has written.

    ``written`` is called for each file, ``note`` for what an operator should know,
    ``progress`` with the records archived and the records there are.
    """

    log: Log
    prefix: str
    folder: Path
    options: Options = field(default_factory=Options)
    disk: Disk = field(default_factory=Disk)
    written: Callable[[Written], None] | None = None
    note: Callable[[str], None] | None = None
    progress: Callable[[int, int], None] | None = None
    _counts: dict[str, int] = field(default_factory=dict)

    async def once(self) -> None:
        """Write everything that the log has now, the tail too.

        Raise `Damaged` where the log lacks what the archive needs or is another
        log than the archived one, `LogDamaged` for a damaged archive.
        """
        await self._open()
        await self._round(flush=True)

    async def follow(self, stop: asyncio.Event) -> None:
        """Write files as the log grows until ``stop`` is set. Raise as `once`.

        At the end each partition gets one more file, its tail, however far behind it is.
        """
        await self._open()
        clock = asyncio.get_running_loop().time
        flushed = -self.options.flush_s
        while not stop.is_set():
            flush = clock() - flushed >= self.options.flush_s
            await self._round(flush=flush, stop=stop)
            if flush:
                flushed = clock()
            try:
                async with asyncio.timeout(self.options.poll_s):
                    await stop.wait()
            except TimeoutError:
                continue
        await self._round(flush=True, stop=stop)

    async def _open(self) -> None:
        """Make the folders, sweep them, and see that the log is the one in them."""
        await asyncio.to_thread(self.folder.mkdir, parents=True, exist_ok=True)
        await asyncio.to_thread(self.disk.sync, self.folder.parent)
        for suffix in self.options.topics:
            topic = full_name(self.prefix, suffix)
            try:
                count = await self.log.partitions(topic)
            except UnknownTopic:
                if suffix == "events":
                    raise
                continue
            await asyncio.to_thread(self._prepare, topic, count)
            self._counts[topic] = count
            for number in range(count):
                await self._same_log(topic, number)

    def _prepare(self, topic: str, count: int) -> None:
        with locked(self.folder):
            make_topic(self.disk, self.folder, topic, count)
            found = partitions_of(self.folder, topic)
            if found != count:
                raise Damaged(
                    topic, min(found, count), 0, "another_log",
                    f"the topic has {count} partitions, the archive in {self.folder} has {found};"
                    " a topic's count never changes: archive another log in another folder",
                )  # fmt: skip
            for number in range(count):
                sweep(self.disk, list_partition(self.folder, topic, number))

    async def _same_log(self, topic: str, partition: int) -> None:
        """Hold the last archived record against the log's, where the log still has it."""
        listing = await asyncio.to_thread(list_partition, self.folder, topic, partition)
        if not listing.files:
            return
        last = listing.end - 1
        end = await self.log.end(topic, partition)
        if end <= last:
            raise _another(
                topic, partition, end, f"the log ends at {end}, the archive at {last + 1}"
            )
        if await self.log.begin(topic, partition) > last:
            return
        theirs = (await self.log.read(topic, partition, last, 1, _WAIT_S))[0]
        ours = await asyncio.to_thread(_last_record, listing.files[-1])
        if (theirs.key, theirs.value, theirs.headers) != (ours.key, ours.value, ours.headers):
            raise _another(topic, partition, last, "the log has another record than the archive")

    async def _round(self, *, flush: bool, stop: asyncio.Event | None = None) -> None:
        """Write what is due of each partition; when ``stop`` is set, one file and no more."""
        ends = {
            (topic, number): await self.log.end(topic, number)
            for topic, count in self._counts.items()
            for number in range(count)
        }
        total, done = sum(ends.values()), 0
        for (topic, number), end in ends.items():
            before = done
            async for position in self._partition(topic, number, end, flush=flush):
                if self.progress is not None:
                    self.progress(min(before + position, total), total)
                if stop is not None and stop.is_set():
                    break
            done = before + end
        if self.progress is not None:
            self.progress(total, total)

    async def _partition(
        self, topic: str, partition: int, end: int, *, flush: bool
    ) -> AsyncIterator[int]:
        """Write what is due of one partition; yield the offset that has been reached."""
        while True:
            listing = await asyncio.to_thread(list_partition, self.folder, topic, partition)
            start, stop = await self._due(topic, partition, listing, end)
            cut = start - start % self.options.every + self.options.every
            if start >= stop or (cut > stop and not flush and not listing.holes):
                return
            builder = Builder(topic, partition, self._counts[topic])
            old = None
            if start == listing.end and listing.files:
                old = await asyncio.to_thread(self._tail_into, builder, listing.files[-1])
            await self._copy(builder, topic, partition, start, min(cut, stop))
            file = await asyncio.to_thread(self._commit, builder, listing, old)
            if file is not None:
                yield file.last + 1

    async def _due(self, topic: str, partition: int, listing: Listing, end: int) -> tuple[int, int]:
        """Return the first range to write: a hole's, else from the end of the files on."""
        oldest = await self.log.begin(topic, partition)
        kept = _kept_for_ever(topic)
        start, stop = listing.end, end
        if kept and listing.begin > 0:
            start, stop = 0, listing.begin
        elif listing.holes:
            start, stop = listing.holes[0]
        if start >= oldest or start >= stop:
            return start, stop
        if not listing.files and not kept:
            if self.note is not None:
                self.note(
                    f"{topic}/{partition}: the archive begins at {oldest}:"
                    f" the log no longer has what was before"
                )
            return oldest, stop
        raise Damaged(
            topic, partition, start, "lost",
            f"the records {start} to {min(oldest, stop) - 1} are no longer in the log, which"
            f" begins at {oldest}, and not in the archive in {self.folder}; put back a copy of"
            " their files, or keep this archive as it is and begin another in a new folder",
        )  # fmt: skip

    def _tail_into(self, builder: Builder, tail: File) -> File | None:
        """Give the builder the tail's records; return the tail, or None when the file is full."""
        every = self.options.every
        if tail.records >= every or not (tail.last + 1) % every:
            return None
        if facts_of(tail).raw >= FILE_BYTES:
            return None
        reader = Reader(tail)
        for records in reader.records():
            for record in records:
                builder.add(record)
        reader.close()
        return tail

    async def _copy(
        self, builder: Builder, topic: str, partition: int, start: int, stop: int
    ) -> None:
        """Give the builder the log's records, up to ``stop`` or until it is full."""
        while start < stop:
            limit = min(_CHUNK, stop - start)
            records = await self.log.read(topic, partition, start, limit, _WAIT_S)
            if not records:
                raise _gap(topic, partition, start, stop)
            for record in records:
                if record.offset != start:
                    raise _gap(topic, partition, start, record.offset)
                builder.add(record)
                start += 1
                if builder.full:
                    return

    def _commit(self, builder: Builder, seen: Listing, old: File | None) -> File | None:
        """Put the file in place, remove the tail that it supersedes; None when others were first.

        Nothing is written when the partition is not as it was ``seen``: another
        follower, or a compaction, has changed it meanwhile.
        """
        first, last, data = builder.finish()
        topic, partition = builder.topic, builder.partition
        path = file_path(self.folder, topic, partition, first, last)
        file = File(topic, partition, first, last, path)
        with locked(self.folder):
            now = list_partition(self.folder, topic, partition)
            if _shape(now) != _shape(seen):
                return None
            sweep(self.disk, now)
            put(self.disk, path, data)
            if old is not None:
                self.disk.remove(old.path)
        if self.written is not None:
            added = file.records - (0 if old is None else old.records)
            full = builder.full or not (last + 1) % self.options.every
            self.written(Written(file, len(data), added, full))
        return file


def _shape(listing: Listing) -> tuple[object, ...]:
    """Return what a file's place depends on; a compaction of older files leaves it as it is."""
    return listing.begin, listing.holes, listing.end, listing.files[-1:]


def _kept_for_ever(topic: str) -> bool:
    suffix = topic.rpartition(".")[2]
    return any(one.retention_ms == FOR_EVER for one in TOPICS if one.suffix == suffix)


def _last_record(file: File) -> Record:
    reader = Reader(file)
    *_, records = reader.records()
    reader.close()
    return records[-1]


def _another(topic: str, partition: int, offset: int, what: str) -> Damaged:
    return Damaged(
        topic, partition, offset, "another_log",
        f"{what}; is this the log that was archived here? Archive another log in another folder",
    )  # fmt: skip


def _gap(topic: str, partition: int, first: int, following: int) -> Damaged:
    detail = f"the entries {first} to {following - 1} are missing from the log"
    return Damaged(topic, partition, first, "gap", detail)
