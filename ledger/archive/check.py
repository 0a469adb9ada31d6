"""Look at every file of an archive: whole, where it belongs, and its columns those of its records.

`ledger.verify` reads the ledger in the archive and judges what it says. This looks
at the files themselves, of every topic, and names each one that is not right.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ledger.archive.columns import RAW, SCHEMA, records_of, table_of
from ledger.archive.files import Reader
from ledger.archive.folder import File, list_partition, partitions_of, topics_of
from ledger.log.port import LogDamaged

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["Checked", "Wrong", "check_archive"]


@dataclass(frozen=True, slots=True)
class Wrong:
    """Something that is not right. ``kind`` is ``damaged``, ``hole``, ``offsets`` or ``columns``.

    ``missing_partition`` and ``overlap`` are the kinds of a partition that cannot be gone over.
    """

    kind: str
    topic: str
    partition: int
    first: int
    detail: str


@dataclass(frozen=True, slots=True)
class Checked:
    """What an archive holds, and what is wrong with it.

    ``left_over`` counts the files that a broken-off change has left: no part of the
    log, and removed by whoever writes next.
    """

    files: int
    records: int
    left_over: int
    wrong: tuple[Wrong, ...]

    def plain(self) -> dict[str, Any]:
        """Return the report as one JSON object."""
        return {"ok": not self.wrong, **asdict(self)}


def check_archive(folder: Path, progress: Callable[[int, int], None] | None = None) -> Checked:
    """Read every file; return what was found. Raise `LogUnavailable` for no archive."""
    files: list[File] = []
    wrong: list[Wrong] = []
    left_over = 0
    for topic in topics_of(folder):
        try:
            count = partitions_of(folder, topic)
        except LogDamaged as error:
            wrong.append(Wrong("missing_partition", topic, 0, 0, str(error)))
            continue
        for number in range(count):
            try:
                listing = list_partition(folder, topic, number)
            except LogDamaged as error:
                wrong.append(Wrong("overlap", topic, number, 0, str(error)))
                continue
            files += listing.files
            left_over += len(listing.superseded) + len(listing.partial)
            for first, following in listing.holes:
                detail = f"no file has the offsets {first} to {following - 1}"
                wrong.append(Wrong("hole", topic, number, first, detail))
    total, done = sum(one.records for one in files), 0
    counts: dict[str, int] = {}
    for file in files:
        wrong += _check_file(folder, file, counts)
        done += file.records
        if progress is not None:
            progress(done, total)
    return Checked(len(files), total, left_over, tuple(wrong))


def _check_file(folder: Path, file: File, counts: dict[str, int]) -> list[Wrong]:
    def fault(kind: str, detail: str) -> list[Wrong]:
        return [Wrong(kind, file.topic, file.partition, file.first, detail)]

    try:
        reader = Reader(file)
    except FileNotFoundError:
        return []  # superseded while we were on our way
    except LogDamaged as error:
        return fault("damaged", str(error))
    if file.topic not in counts:
        counts[file.topic] = partitions_of(folder, file.topic)
    try:
        wanted = reader.facts.partitions
        if wanted != counts[file.topic]:
            counts[file.topic] = wanted  # say it once
            return fault("missing_partition", f"{file.path}: the topic has {wanted} partitions")
        for number, start in enumerate(reader.starts[:-1]):
            table = reader.group(number, tuple(SCHEMA.names))
            records = records_of(file.topic, file.partition, table.select(list(RAW)))
            if [one.offset for one in records] != list(range(start, reader.starts[number + 1])):
                return fault("offsets", f"{file.path}: its offsets are not those of its name")
            if not table_of(file.topic, records).equals(table):
                return fault("columns", f"{file.path}: columns differ from what the records say")
    except LogDamaged as error:
        return fault("damaged", str(error))
    finally:
        reader.close()
    return []
