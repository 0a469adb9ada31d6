"""What an archive's names say: ``DIR/TOPIC/PARTITION/FIRST-LAST.parquet``, and nothing else.

There is no list and no stored position: the log's range is what the files' names
cover, and it ends where the files end. One rule makes every moment of a change
readable: a file whose range lies within another's is *superseded*, and no part of
the log any more (it is about to be removed). Files that overlap in any other way
are damage, and so is a range between two files that no file has: a *hole*.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ledger.archive.disk import PARTIAL
from ledger.log.port import LogDamaged, LogUnavailable, UnknownTopic

if TYPE_CHECKING:
    from pathlib import Path

    from ledger.archive.disk import Disk

__all__ = ["File", "Listing", "NoArchive", "file_path", "list_partition", "make_topic"]
__all__ += ["partitions_of", "sweep", "topics_of"]

_NAME = re.compile(r"^(?P<first>[0-9]{20})-(?P<last>[0-9]{20})\.parquet$")
_NUMBER = re.compile(r"^(?:0|[1-9][0-9]*)$")


class NoArchive(LogUnavailable):
    """There is no archive in the folder that was named."""


@dataclass(frozen=True, slots=True)
class File:
    """One file, by its name; ``last`` is its last offset."""

    topic: str
    partition: int
    first: int
    last: int
    path: Path

    @property
    def records(self) -> int:
        """Return how many records it holds."""
        return self.last + 1 - self.first


@dataclass(frozen=True, slots=True)
class Listing:
    """One partition: the files that make the log, in order, and what lies beside them."""

    files: tuple[File, ...] = ()
    superseded: tuple[File, ...] = ()
    partial: tuple[Path, ...] = ()

    @property
    def begin(self) -> int:
        """Return the first offset there is (0 in an empty partition)."""
        return self.files[0].first if self.files else 0

    @property
    def end(self) -> int:
        """Return the offset that comes next: the archive's position."""
        return self.files[-1].last + 1 if self.files else 0

    @property
    def holes(self) -> list[tuple[int, int]]:
        """Return the ranges between files that no file has: first offset, and the next there is."""
        pairs = zip(self.files, self.files[1:], strict=False)
        return [(one.last + 1, two.first) for one, two in pairs if one.last + 1 < two.first]


def file_path(folder: Path, topic: str, partition: int, first: int, last: int) -> Path:
    """Return where a range of a partition is kept."""
    return folder / topic / f"{partition}" / f"{first:020d}-{last:020d}.parquet"


def topics_of(folder: Path) -> list[str]:
    """Return the topics in the archive; raise `NoArchive` where there is none."""
    try:
        found = sorted(one for one in folder.iterdir() if one.is_dir())
    except OSError as error:
        raise NoArchive(f"there is no archive in {folder}: {error.strerror}") from error
    names = [one.name for one in found if not one.name.endswith(PARTIAL)]
    if not names:
        raise NoArchive(f"there is no archive in {folder}: no topic's folder is in it")
    return names


def partitions_of(folder: Path, topic: str) -> int:
    """Return how many partitions of a topic there are; raise `UnknownTopic` for another topic.

    A folder missing between others is damage (`LogDamaged`).
    """
    if topic not in topics_of(folder):
        raise UnknownTopic(
            f"there is no topic {topic} in {folder}: --topic and --all-topics of"
            " 'gpuledger archive' say what is archived"
        )
    numbers = sorted(int(one.name) for one in (folder / topic).iterdir() if _is_partition(one))
    for wanted, number in enumerate(numbers):
        if number != wanted:
            raise LogDamaged(f"{topic}/{wanted}: its folder is missing in {folder / topic}")
    return len(numbers)


def _is_partition(path: Path) -> bool:
    return bool(_NUMBER.match(path.name)) and path.is_dir()


def list_partition(folder: Path, topic: str, partition: int) -> Listing:
    """Return what is there of a partition; raise `LogDamaged` for files that overlap."""
    found: list[File] = []
    partial: list[Path] = []
    where = folder / topic / f"{partition}"
    for path in where.iterdir() if where.is_dir() else ():
        match = _NAME.match(path.name)
        if match:
            first, last = int(match["first"]), int(match["last"])
            if last < first:
                raise LogDamaged(f"{topic}/{partition}: {path} has no such name: it ends before")
            found.append(File(topic, partition, first, last, path))
        elif path.name.endswith(PARTIAL):
            partial.append(path)
    files: list[File] = []
    superseded: list[File] = []
    for file in sorted(found, key=lambda one: (one.first, -one.last)):
        end = files[-1].last + 1 if files else file.first
        if file.last < end:
            superseded.append(file)
        elif file.first < end:
            raise LogDamaged(
                f"{topic}/{partition} offsets {file.first} to {end - 1} are in two files,"
                f" {files[-1].path} and {file.path}; find out which is right and move the other"
                " out of the archive"
            )
        else:
            files.append(file)
    return Listing(tuple(files), tuple(superseded), tuple(sorted(partial)))


def make_topic(disk: Disk, folder: Path, topic: str, partitions: int) -> None:
    """Make the folders of a topic's partitions, all of them or none."""
    if (folder / topic).is_dir():
        disk.sync(folder)  # whoever made it may have been killed before this
        return
    partial = folder / f"{topic}{PARTIAL}"
    disk.make_folder(partial)
    for number in range(partitions):
        disk.make_folder(partial / f"{number}")
    disk.sync(partial)
    disk.rename(partial, folder / topic)
    disk.sync(folder)


def sweep(disk: Disk, listing: Listing) -> None:
    """Remove what a change that was broken off has left; the caller holds the folder."""
    if listing.superseded:
        # Whoever put the longer file there may have been killed before its name was on disk.
        disk.sync(listing.superseded[0].path.parent)
    for path in (*listing.partial, *(one.path for one in listing.superseded)):
        disk.remove(path)
