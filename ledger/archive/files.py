"""One file of an archive: Parquet that says what it holds, and whether it is still whole.

The same records give the same bytes (by the same version of this program and of
pyarrow): rows, row groups and settings follow from the records alone. The footer
names topic, partition, range, format and writer, and carries the SHA-256 of the
file itself, taken with zeros in the hash's own place. So a file needs no list
beside it to be found cut off or changed.
"""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from ledger.archive.columns import RAW, SCHEMA, records_of, table_of
from ledger.archive.event_columns import EVENT_COLUMNS, REPEATED
from ledger.archive.usage_columns import USAGE_COLUMNS, USAGE_REPEATED
from ledger.log.port import LogDamaged
from ledger.version import version

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ledger.archive.folder import File
    from ledger.log.port import Record

__all__ = ["FILE_BYTES", "GROUP_ROWS", "Builder", "Facts", "Reader", "facts_of"]

#: A row group ends with this many records, or with the record that fills it up to so many bytes.
GROUP_ROWS = 100_000
GROUP_BYTES = 64 * 1024 * 1024

#: A file ends with the record that fills it up to so many bytes (keys, values, headers).
FILE_BYTES = 512 * 1024 * 1024

FORMAT = 3
_MARK = "gpuledger."
_SEAL = f"{_MARK}sha256"
_BLANK = b"0" * 64
#: What stands between a name and its value in the footer: a string of 64 bytes follows.
_BEFORE_VALUE = b"\x18\x40"
#: The footer is followed by its length and this.
_MAGIC = b"PAR1"
_TAIL = 8
_BLOCK = 1024 * 1024

_LISTS = (*EVENT_COLUMNS, *USAGE_COLUMNS)
_COUNTED = [one.name for one in SCHEMA if one.name not in ("key", "value", "headers", *_LISTS)]
_REPEATED = [
    *(*_COUNTED[2:], "key", "headers.list.element.name", "headers.list.element.value"),
    *REPEATED,
    *USAGE_REPEATED,
]


@dataclass(frozen=True, slots=True)
class Facts:
    """What a file says of itself. ``partitions`` is the topic's count, ``raw`` in bytes."""

    topic: str
    partition: int
    partitions: int
    first: int
    last: int
    raw: int


class Builder:
    """Makes one file in memory from records that come in order, without a hole."""

    def __init__(self, topic: str, partition: int, partitions: int) -> None:
        """Begin a file of a partition of a topic that has ``partitions``."""
        self.topic, self.partition, self.partitions = topic, partition, partitions
        #: Bytes of keys, values and headers so far.
        self.raw = 0
        self._first: int | None = None
        self._next = 0
        self._group: list[Record] = []
        self._group_raw = 0
        self._sink = io.BytesIO()
        self._writer = pq.ParquetWriter(
            self._sink,
            SCHEMA,
            compression="zstd",
            compression_level=3,
            use_dictionary=_REPEATED,
            write_statistics=_COUNTED,
            write_page_checksum=True,
            store_schema=False,
        )

    @property
    def full(self) -> bool:
        """Say whether the file must end here, whatever its range was to be."""
        return self.raw >= FILE_BYTES

    def add(self, record: Record) -> None:
        """Take the next record."""
        if self._first is None:
            self._first = self._next = record.offset
        if record.offset != self._next:
            raise ValueError(f"offset {record.offset} follows, {self._next} is the next")
        self._next += 1
        size = len(record.key or b"") + len(record.value or b"")
        size += sum([len(name) + len(value) for name, value in record.headers])
        self.raw += size
        self._group.append(record)
        self._group_raw += size
        if len(self._group) >= GROUP_ROWS or self._group_raw >= GROUP_BYTES:
            self._flush()

    def finish(self) -> tuple[int, int, memoryview]:
        """Return first and last offset and the bytes; the builder is done with."""
        if self._first is None:
            raise ValueError("a file holds at least one record")
        self._flush()
        facts = {
            "format": FORMAT,
            "topic": self.topic,
            "partition": self.partition,
            "partitions": self.partitions,
            "first": self._first,
            "last": self._next - 1,
            "raw": self.raw,
            "writer": f"gpuledger {version()}",
        }
        named = {f"{_MARK}{name}": f"{value}" for name, value in facts.items()}
        self._writer.add_key_value_metadata({_SEAL: _BLANK.decode(), **named})
        self._writer.close()
        data = self._sink.getbuffer()
        place = _seal_place(data)
        if place is None:
            raise RuntimeError("the Parquet writer has left the hash no place in the footer")
        data[place : place + len(_BLANK)] = hashlib.sha256(data).hexdigest().encode()
        return self._first, self._next - 1, data

    def _flush(self) -> None:
        if self._group:
            table = table_of(self.topic, self._group)
            self._writer.write_table(table, row_group_size=len(self._group))
            self._group, self._group_raw = [], 0


class Reader:
    """A file that has been found whole, to be read a row group at a time."""

    def __init__(self, file: File) -> None:
        """Open and check the file. Raise `LogDamaged` that names it, its range and what to do."""
        self.file = file
        about = f"{file.topic}/{file.partition} offsets {file.first} to {file.last}"
        self._about = f"{about}: {file.path}"
        with _named(self._about):
            _check_seal(file.path, self._about)
            self._parquet = pq.ParquetFile(file.path)
            self.facts = _facts(self._parquet.metadata, self._about)
            if not self._parquet.schema_arrow.equals(SCHEMA):
                raise _damaged(self._about, "has other columns than its format")
        found = self.facts
        named = (file.topic, file.partition, file.first, file.last)
        if named != (found.topic, found.partition, found.first, found.last):
            inside = f"{found.topic}/{found.partition} offsets {found.first} to {found.last}"
            raise LogDamaged(f"{self._about} holds {inside}: it has been renamed or moved")
        #: The first offset of each row group, and the end of the last.
        self.starts = [file.first]
        for number in range(self._parquet.num_row_groups):
            rows = self._parquet.metadata.row_group(number).num_rows
            self.starts.append(self.starts[-1] + rows)
        if self.starts[-1] != file.last + 1:
            raise LogDamaged(f"{self._about} has {self.starts[-1] - file.first} rows")

    def group(self, number: int, columns: tuple[str, ...] = RAW) -> pa.Table:
        """Return columns of a row group, in the order asked for."""
        with _named(self._about):
            table = self._parquet.read_row_group(number, columns=list(columns))
        return table.select(list(columns))

    def records(self) -> Iterator[list[Record]]:
        """Yield the records, a row group at a time."""
        for number in range(len(self.starts) - 1):
            yield records_of(self.file.topic, self.file.partition, self.group(number))

    def close(self) -> None:
        """Let go of the file."""
        self._parquet.close()


def facts_of(file: File) -> Facts:
    """Return what a file says of itself, from its footer alone; raise as `Reader` does."""
    about = f"{file.topic}/{file.partition} offsets {file.first} to {file.last}: {file.path}"
    with _named(about):
        return _facts(pq.read_metadata(file.path), about)


class _named:  # noqa: N801 - used like a function
    """Turn what reading a broken file raises into `LogDamaged`, with its name and what to do.

    A file that is gone passes as it is: it may have been replaced by a longer one.
    """

    def __init__(self, about: str) -> None:
        self.about = about

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, FileNotFoundError):
            return
        if isinstance(error, (pa.ArrowException, OSError, ValueError)):
            raise _damaged(self.about, f"cannot be read: {error}") from error


def _damaged(about: str, what: str) -> LogDamaged:
    return LogDamaged(
        f"{about} {what}; move it out of the archive and run 'gpuledger archive' on the log again,"
        " or put back a copy"
    )


def _facts(metadata: Any, about: str) -> Facts:  # noqa: ANN401 - pyarrow has no types
    named = metadata.metadata or {}
    try:
        found = {
            name: named[f"{_MARK}{name}".encode()].decode()
            for name in ("format", *Facts.__dataclass_fields__)
        }
        if found.pop("format") != f"{FORMAT}":
            raise LogDamaged(f"{about} has another format, this program reads {FORMAT}")
        topic = found.pop("topic")
        return Facts(topic, **{name: int(value) for name, value in found.items()})
    except (KeyError, ValueError) as error:
        raise _damaged(about, "is no file of an archive") from error


def _check_seal(path: Path, about: str) -> None:
    """Hold a file's bytes against the hash in its footer."""
    with path.open("rb") as file:
        size = file.seek(0, io.SEEK_END)
        file.seek(max(size - _TAIL, 0))
        tail = file.read()
        length = int.from_bytes(tail[:4], "little") + _TAIL
        if tail[4:] != _MAGIC or length > size:
            raise _damaged(about, "has been cut off")
        file.seek(size - length)
        place = _seal_place(file.read())
        if place is None:
            raise _damaged(about, "has been changed since it was written, or is no such file")
        place += size - length
        file.seek(place)
        seal = file.read(len(_BLANK))
        file.seek(0)
        made = hashlib.sha256()
        left = place
        while left:
            block = file.read(min(_BLOCK, left))
            made.update(block)
            left -= len(block)
        made.update(_BLANK)
        file.seek(len(_BLANK), io.SEEK_CUR)
        while block := file.read(_BLOCK):
            made.update(block)
    if made.hexdigest().encode() != seal:
        raise _damaged(about, "has been changed since it was written")


def _seal_place(data: memoryview | bytes) -> int | None:
    """Return where in the data, which ends with a footer, the hash has its place."""
    # Behind the rows and their statistics there is nothing that a record could have written.
    end = bytes(data[-_BLOCK:])
    name = _SEAL.encode() + _BEFORE_VALUE
    found = end.rfind(name)
    if found < 0 or found + len(name) + len(_BLANK) > len(end):
        return None
    return len(data) - len(end) + found + len(name)
