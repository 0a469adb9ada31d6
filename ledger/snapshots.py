"""Snapshots: a fold at an offset, on disk, to start from. Derived data, never trusted.

A snapshot counts only when its bytes have the digest it names, the log reaches
at least as far, and the last record it was made from is still the record that
stands there (a topic made anew begins its offsets again). Any other is set
aside, renamed and said so, and the next older one is tried.

A file is one line of JSON, then the head and the cells, then the ids that the cells
remember (`ledger.core.digest.save_parts`), each part with its own digest: who only reads
need not look at the ids, which are most of it.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from ledger.core.digest import load_parts, save_parts

if TYPE_CHECKING:
    from pathlib import Path

    from ledger.core.fold import Fold
    from ledger.log.port import Log

__all__ = ["SetAside", "SnapshotStore", "ValueAt", "record_hash", "value_reader"]

#: Returns the value of the record at an offset; None where there is none.
ValueAt = Callable[[int], Awaitable[bytes | None]]

_VERSION = 3
_KEEP = 2
#: Far more than a header has: what has no end of a line by then is no snapshot.
_HEADER_BYTES = 65_536
_NAME = re.compile(r"^(?P<topic>.+)-(?P<partition>[0-9]+)-(?P<offset>[0-9]{20})\.snapshot$")


def _offset_of(path: Path) -> int:
    return int(path.stem.rpartition("-")[2])


def _is_left(partial: Path) -> bool:
    """Say whether nobody writes this file any more: who did was killed."""
    writer = partial.suffix.rpartition("-")[2]
    if not writer.isdecimal() or int(writer) == os.getpid():
        return True
    try:
        os.kill(int(writer), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def record_hash(value: bytes | None) -> str:
    """Return the hash that ties a snapshot to the last record it was made from."""
    return hashlib.sha256(value or b"").hexdigest()


def value_reader(log: Log, topic: str, partition: int) -> ValueAt:
    """Return what reads one record's value of a partition, to hold a snapshot against it."""

    async def read(offset: int) -> bytes | None:
        rows = await log.values(topic, partition, offset, 1)
        return rows[0][2] if rows and rows[0][0] == offset else None

    return read


@dataclass(frozen=True, slots=True)
class SetAside:
    """A snapshot that was not used, and why."""

    path: Path
    reason: str


class SnapshotStore:
    """Snapshots of one topic's partitions in one folder."""

    def __init__(self, folder: Path, topic: str, keep: int = _KEEP) -> None:
        """Use ``folder``, made when the first snapshot is written; the newest ``keep`` stay."""
        self.folder = folder
        self.keep = keep
        self.topic = topic
        self.set_aside: list[SetAside] = []

    def save(self, partition: int, fold: Fold, last_value: bytes | None) -> Path:
        """Write a snapshot; it gets its final name only when it is whole and on disk."""
        cells, ids = save_parts(fold)
        header = orjson.dumps(
            {
                "v": _VERSION,
                "topic": self.topic,
                "partition": partition,
                "offset": fold.head.offset,
                "last": record_hash(last_value),
                "bytes": len(cells),
                "sha256": hashlib.sha256(cells).hexdigest(),
                "ids_sha256": hashlib.sha256(ids).hexdigest(),
            }
        )
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{self.topic}-{partition}-{fold.head.offset:020d}.snapshot"
        for left in self.folder.glob(f"{self.topic}-{partition}-*.partial-*"):
            if _is_left(left):
                left.unlink(missing_ok=True)
        partial = path.with_suffix(f".partial-{os.getpid()}")
        try:
            with partial.open("wb") as file:
                file.write(header + b"\n" + cells + ids)
                file.flush()
                os.fsync(file.fileno())
            partial.rename(path)
        except OSError:
            # On a full disk half a snapshot is in everybody's way.
            partial.unlink(missing_ok=True)
            raise
        for old in self._found(partition)[self.keep :]:
            old.unlink(missing_ok=True)
        return path

    async def load(
        self,
        partition: int,
        end: int,
        value_at: ValueAt,
    ) -> Fold | None:
        """Return the newest snapshot that the log bears out, or None.

        ``end`` is the log's high watermark; ``value_at`` reads one record's value.
        """
        for path in self._found(partition):
            loaded = self._read(path, partition)
            if isinstance(loaded, str):
                self._put_aside(path, loaded)
                continue
            offset = loaded[0].head.offset
            if offset > end:
                self._put_aside(
                    path, f"it is newer than the log: at {offset}, the log ends at {end}"
                )
                continue
            found = await self._borne_out(*loaded, value_at)
            if not isinstance(found, str):
                return found
            self._put_aside(path, found)
        return None

    async def _borne_out(self, fold: Fold, last: str, value_at: ValueAt) -> Fold | str:
        """Return the fold when the log still has the record it ends with, else what is wrong."""
        offset = fold.head.offset
        if offset and record_hash(await value_at(offset - 1)) != last:
            return f"the log has another record at {offset - 1}"
        return fold

    def _read(self, path: Path, partition: int, *, with_ids: bool = True) -> tuple[Fold, str] | str:
        """Return the fold and the hash of its last record, or what is wrong with the file."""
        parts = self._parts(path, partition, with_ids=with_ids)
        if isinstance(parts, str):
            return parts
        header, cells, ids = parts
        try:
            fold = load_parts(cells, ids)
        except (ValueError, KeyError, TypeError) as error:
            return f"it cannot be read: {type(error).__name__}: {error}"
        if fold.head.offset != header["offset"]:
            return "its offset is not the one it names"
        return fold, header["last"]

    def _parts(
        self, path: Path, partition: int, *, with_ids: bool = True
    ) -> tuple[dict[str, Any], bytes, bytes | None] | str:
        """Return header, cells and ids, whose digests are right; or what is wrong with them."""
        try:
            with path.open("rb") as file:
                header = orjson.loads(file.readline(_HEADER_BYTES))
                if header["v"] != _VERSION:
                    return f"its version is {header['v']}, this code reads {_VERSION}"
                if (header["topic"], header["partition"]) != (self.topic, partition):
                    return "it is of another partition"
                if header["offset"] != _offset_of(path):
                    return "its offset is not that of its name"
                cells = file.read(header["bytes"])
                ids = file.read() if with_ids else None
            parts = ((cells, "sha256"), (ids, "ids_sha256"))
            if any(
                one is not None and hashlib.sha256(one).hexdigest() != header[name]
                for one, name in parts
            ):
                return "its bytes do not have the digest it names"
        except (OSError, ValueError, KeyError, TypeError) as error:
            return f"it cannot be read: {type(error).__name__}: {error}"
        return header, cells, ids

    def _put_aside(self, path: Path, reason: str) -> None:
        import structlog  # noqa: PLC0415 - takes longer to load than most snapshots do

        log = structlog.get_logger(__name__)
        self.set_aside.append(SetAside(path, reason))
        log.warning("snapshot set aside", path=str(path), reason=reason)
        try:
            path.rename(path.with_suffix(".set-aside"))
        except OSError as error:
            log.warning("snapshot could not be renamed", path=str(path), error=str(error))

    def _found(self, partition: int) -> list[Path]:
        """Return the partition's snapshots, newest first."""
        if not self.folder.is_dir():
            return []
        found = []
        for path in self.folder.iterdir():
            match = _NAME.match(path.name)
            if match and match["topic"] == self.topic and int(match["partition"]) == partition:
                found.append((int(match["offset"]), path))
        return [path for _, path in sorted(found, reverse=True)]
