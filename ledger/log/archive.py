"""The log as an exported folder: read only, the same records at the same offsets.

What `ledger.export` has written, opened as ``archive:DIR``. A file that is
missing, cut off or changed is named (`LogDamaged`) when something asks for what
it held; nothing is skipped.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from ledger.log.archive_files import File, Partition, read_file, read_manifest
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
    from collections.abc import Mapping, Sequence

__all__ = ["ArchiveLog"]


class ArchiveLog(Log):
    """The exported log in ``folder``."""

    def __init__(self, folder: Path | str) -> None:
        """Read the list of files.

        Raise `LogUnavailable` when there is none, `LogDamaged` when it is none.
        """
        self._folder = Path(folder)
        self._topics = read_manifest(self._folder).topics
        self._closed = False
        #: The file read last of each partition: readers go on where they ended.
        self._open: dict[tuple[str, int], tuple[File, list[Record]]] = {}

    async def partitions(self, topic: str) -> int:
        """See `Log.partitions`."""
        return len(self._topic(topic))

    async def begin(self, topic: str, partition: int) -> int:
        """See `Log.begin`."""
        found = self._partition(topic, partition)
        return found.files[0].first if found.files else found.end

    async def end(self, topic: str, partition: int) -> int:
        """See `Log.end`."""
        return self._partition(topic, partition).end

    async def append(
        self, topic: str, partition: int | None, entries: Sequence[Entry]
    ) -> list[int]:
        """Refuse: an export is read only."""
        where = topic if partition is None else f"{topic}/{partition}"
        raise LogError(
            f"{len(entries)} records for {where} are refused:"
            f" the exported log in {self._folder} cannot be written to"
        )

    async def read(
        self, topic: str, partition: int, start: int, limit: int = 1000, wait_s: float = 0.0
    ) -> list[Record]:
        """See `Log.read`. Nothing is ever added, so past the end ``wait_s`` just passes."""
        found = self._partition(topic, partition)
        if start >= found.end:
            await asyncio.sleep(wait_s)
            return []
        file = next((one for one in found.files if one.last >= start), None)
        if file is None or (file.first > start and file is not found.files[0]):
            following = found.end if file is None else file.first
            raise LogDamaged(
                f"{topic}/{partition}: no file in {self._folder} has the offsets"
                f" {start} to {following - 1}"
            )
        records = await self._records(topic, partition, file)
        skip = max(0, start - file.first)
        return records[skip : skip + limit]

    async def create_topics(self, topics: Mapping[str, TopicState]) -> list[str]:
        """Refuse: an export is read only."""
        raise LogError(
            f"{', '.join(topics)} cannot be made: the log in {self._folder} is an export"
        )

    async def describe_topics(self, names: Sequence[str]) -> dict[str, TopicState]:
        """See `Log.describe_topics`."""
        self._check_open()
        return {name: TopicState(len(self._topics[name])) for name in names if name in self._topics}

    async def close(self) -> None:
        """See `Log.close`."""
        self._closed = True
        self._open.clear()

    async def _records(self, topic: str, partition: int, file: File) -> list[Record]:
        kept = self._open.get((topic, partition))
        if kept is not None and kept[0] is file:
            return kept[1]
        records = await asyncio.to_thread(read_file, self._folder, topic, partition, file)
        self._open[topic, partition] = (file, records)
        return records

    def _check_open(self) -> None:
        if self._closed:
            raise LogClosed(f"the exported log in {self._folder} is closed")

    def _topic(self, topic: str) -> list[Partition]:
        self._check_open()
        try:
            return self._topics[topic]
        except KeyError:
            raise UnknownTopic(f"there is no topic {topic} in {self._folder}") from None

    def _partition(self, topic: str, partition: int) -> Partition:
        found = self._topic(topic)
        if not 0 <= partition < len(found):
            raise UnknownTopic(
                f"topic {topic} has no partition {partition}, only 0 to {len(found) - 1}"
            )
        return found[partition]
