"""Make few large files of many small ones; the log that they hold stays the same.

The files between two multiples of ``every`` offsets become one, as soon as they
reach the upper multiple: then no record will be added to them. A file is only
merged whole, and a merge that would be too large is left apart. The result has the
bytes that a follower with this ``every`` would have written.

The large file is on disk, under its name, before the first small one is removed. A
small one that is still there is superseded (`ledger.archive.folder`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ledger.archive.disk import Disk, locked, put
from ledger.archive.files import FILE_BYTES, GROUP_ROWS, Builder, Reader, facts_of
from ledger.archive.folder import (
    File,
    Listing,
    file_path,
    list_partition,
    partitions_of,
    sweep,
    topics_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["EVERY", "Merged", "compact"]

#: Offsets of a compacted file, unless told otherwise.
EVERY = 10 * GROUP_ROWS


@dataclass(frozen=True, slots=True)
class Merged:
    """A file made of others."""

    file: File
    size: int
    files: tuple[File, ...]


def compact(
    folder: Path,
    every: int = EVERY,
    disk: Disk | None = None,
    merged: Callable[[Merged], None] | None = None,
) -> list[Merged]:
    """Merge what can be merged in an archive; return it, and call ``merged`` for each file.

    A follower of the same folder may run meanwhile. Raise `LogDamaged` for a file that is
    not whole, with nothing of its range changed, and `LogUnavailable` for no archive.
    """
    disk = disk or Disk()
    done: list[Merged] = []
    for topic in topics_of(folder):
        for number in range(partitions_of(folder, topic)):
            with locked(folder):
                sweep(disk, list_partition(folder, topic, number))
            listing = list_partition(folder, topic, number)
            for run in _runs(listing, every):
                made = _merge(disk, folder, run)
                if made is None:
                    continue
                done.append(made)
                if merged is not None:
                    merged(made)
    return done


def _runs(listing: Listing, every: int) -> Iterator[list[File]]:
    """Yield the files that are to become one."""
    segment: list[File] = []
    for file in listing.files:
        if segment and segment[-1].last + 1 != file.first:
            segment = []
        if file.first // every != file.last // every:
            segment = []  # it lies across a multiple: another cut was in force
            continue
        segment.append(file)
        if not (file.last + 1) % every:
            yield from _small_enough(segment)
            segment = []


def _small_enough(segment: list[File]) -> Iterator[list[File]]:
    """Yield the runs of a segment that fit in a file; a file alone is none."""
    run: list[File] = []
    raw = 0
    for file in segment:
        more = facts_of(file).raw
        if run and raw + more > FILE_BYTES:
            if len(run) > 1:
                yield run
            run, raw = [], 0
        run.append(file)
        raw += more
    if len(run) > 1:
        yield run


def _merge(disk: Disk, folder: Path, run: list[File]) -> Merged | None:
    topic, partition = run[0].topic, run[0].partition
    builder = Builder(topic, partition, facts_of(run[0]).partitions)
    for file in run:
        reader = Reader(file)
        for records in reader.records():
            for record in records:
                builder.add(record)
        reader.close()
    first, last, data = builder.finish()
    path = file_path(folder, topic, partition, first, last)
    with locked(folder):
        now = list_partition(folder, topic, partition)
        if not set(run) <= set(now.files):
            return None  # another compaction was first
        put(disk, path, data)
        for file in run:
            disk.remove(file.path)
    return Merged(File(topic, partition, first, last, path), len(data), tuple(run))
