"""Write a log into a folder: whole files that anybody can read, and verify, without us."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ledger.log.archive_files import (
    MANIFEST,
    Manifest,
    Partition,
    read_manifest,
    write_file,
    write_manifest,
)
from ledger.reading import Damaged
from ledger.wire import full_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from ledger.log.port import Log, Record

__all__ = ["Exported", "export_log"]

#: A file holds no more than this many records, and not much more than so many bytes.
ROWS = 50_000
BYTES = 64 * 1024 * 1024

_CHUNK = 5000
_WAIT_S = 5.0


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export has added; the folder held ``before`` records already."""

    records: int
    files: int
    before: int


async def export_log(
    log: Log,
    prefix: str,
    folder: Path,
    topics: Sequence[str] = ("events",),
    progress: Callable[[int, int], None] | None = None,
) -> Exported:
    """Write the records of ``topics`` (without prefix) into ``folder``, as far as they go now.

    A folder that holds an earlier export is continued: only what it lacks is
    written. Raise `Damaged` for a hole in the log; what lies before it is in the
    folder then, but not on its list. The log's own errors pass.
    """
    manifest = read_manifest(folder) if (folder / MANIFEST).exists() else Manifest()
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    names = [full_name(prefix, topic) for topic in topics]
    ends = {
        name: [await log.end(name, at) for at in range(await log.partitions(name))]
        for name in names
    }
    total = sum(sum(one) for one in ends.values())
    before = sum(one.end for name in names for one in manifest.topics.get(name, []))
    done, files = before, 0
    for name in names:
        kept = manifest.topics.setdefault(name, [Partition() for _ in ends[name]])
        for number, partition in enumerate(kept):
            start = partition.end if partition.files else await log.begin(name, number)
            async for group in _groups(log, name, number, start, ends[name][number]):
                partition.files.append(await asyncio.to_thread(write_file, folder, group))
                files += 1
                done += len(group)
                if progress is not None:
                    progress(done, total)
            partition.end = max(partition.end, ends[name][number])
    await asyncio.to_thread(write_manifest, folder, manifest)
    return Exported(done - before, files, before)


async def _groups(
    log: Log, topic: str, partition: int, start: int, end: int
) -> AsyncIterator[list[Record]]:
    """Yield the records from ``start`` to ``end``, a file's worth at a time."""
    group: list[Record] = []
    size = 0
    while start < end:
        records = await log.read(topic, partition, start, min(_CHUNK, end - start), _WAIT_S)
        if not records:
            raise _gap(topic, partition, start, end)
        for record in records:
            if record.offset != start:
                raise _gap(topic, partition, start, record.offset)
            start += 1
            group.append(record)
            size += len(record.value or b"")
            if len(group) >= ROWS or size >= BYTES:
                yield group
                group, size = [], 0
    if group:
        yield group


def _gap(topic: str, partition: int, first: int, following: int) -> Damaged:
    detail = f"the entries {first} to {following - 1} are missing from the log"
    return Damaged(topic, partition, first, "gap", detail)
