"""An exported log as files: Parquet named by first and last offset, and one list of them.

``DIR/export.json`` names every file with its rows and SHA-256, and every
partition with its end. It is written last, so what it lists is complete; a file
that it does not list is left over from an export that was broken off, and no
part of the log. A file gets its final name only when it is on disk.

The rows are records as they are in the log: nothing is decoded, so whoever has
the folder can verify it as the log itself (``gpuledger verify --log archive:DIR``).
"""

from __future__ import annotations

import hashlib
import io
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from ledger.log.port import LogDamaged, LogUnavailable, Record

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["MANIFEST", "File", "Manifest", "Partition", "read_file", "read_manifest"]
__all__ += ["write_file", "write_manifest"]

MANIFEST = "export.json"
_VERSION = 1

#: One row a record. Headers keep their order and their bytes.
SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("time_us", pa.int64(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field(
            "headers",
            pa.list_(pa.struct([pa.field("name", pa.string()), pa.field("value", pa.binary())])),
        ),
    ]
)


@dataclass(frozen=True, slots=True)
class File:
    """One file: ``path`` is relative to the folder, ``last`` is its last offset."""

    path: str
    first: int
    last: int
    sha256: str


@dataclass(slots=True)
class Partition:
    """One partition: its files in order, and the offset that would come next."""

    end: int = 0
    files: list[File] = field(default_factory=list)


@dataclass(slots=True)
class Manifest:
    """What an exported folder holds, by topic; a list has one entry a partition."""

    topics: dict[str, list[Partition]] = field(default_factory=dict)


def read_manifest(folder: Path) -> Manifest:
    """Return the folder's list of files.

    Raise `LogUnavailable` when the folder has none, `LogDamaged` when it is none.
    """
    path = folder / MANIFEST
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise LogUnavailable(
            f"there is no exported log in {folder}: {path} cannot be read"
            f" ({error.strerror}); an export that was broken off is to be run again"
        ) from error
    try:
        plain = orjson.loads(raw)
        if plain["v"] != _VERSION:
            raise LogDamaged(f"{path} has version {plain['v']}, this program reads {_VERSION}")
        return Manifest(
            {
                topic: [
                    Partition(one["end"], [File(**each) for each in one["files"]])
                    for one in partitions
                ]
                for topic, partitions in plain["topics"].items()
            }
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LogDamaged(f"{path} is no list of an export: {type(error).__name__}") from error


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the list; it replaces the one before when it is on disk."""
    plain = {"v": _VERSION, "topics": manifest.topics}
    _write(folder / MANIFEST, orjson.dumps(plain, option=orjson.OPT_INDENT_2))


def write_file(folder: Path, records: Sequence[Record]) -> File:
    """Write records of one partition, in order and without a hole; return the file."""
    first, last = records[0], records[-1]
    table = pa.Table.from_pydict(
        {
            "offset": [one.offset for one in records],
            "time_us": [one.time_us for one in records],
            "key": [one.key for one in records],
            "value": [one.value for one in records],
            "headers": [
                [{"name": name, "value": value} for name, value in one.headers] for one in records
            ],
        },
        schema=SCHEMA,
    )
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    data = buffer.getvalue()
    name = f"{first.topic}/{first.partition}/{first.offset:020d}-{last.offset:020d}.parquet"
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, data)
    return File(name, first.offset, last.offset, hashlib.sha256(data).hexdigest())


def read_file(folder: Path, topic: str, partition: int, file: File) -> list[Record]:
    """Return a file's records; raise `LogDamaged` when it is not the one that was written."""
    path = folder / file.path
    about = f"{topic}/{partition} offsets {file.first} to {file.last}"
    try:
        data = path.read_bytes()
    except OSError as error:
        raise LogDamaged(f"{about} are missing: {path} cannot be read: {error.strerror}") from error
    if hashlib.sha256(data).hexdigest() != file.sha256:
        raise LogDamaged(f"{about}: {path} has been cut off or changed since it was written")
    try:
        columns = pq.read_table(io.BytesIO(data), schema=SCHEMA).to_pydict()
    except (pa.ArrowException, OSError) as error:
        raise LogDamaged(f"{about}: {path} is not such a file: {error}") from error
    if columns["offset"] != list(range(file.first, file.last + 1)):
        raise LogDamaged(f"{about}: {path} has a hole: its offsets are not these, in order")
    return [
        Record(topic, partition, offset, time_us, key, value, _pairs(headers))
        for offset, time_us, key, value, headers in zip(*columns.values(), strict=True)
    ]


def _pairs(headers: list[dict[str, Any]] | None) -> tuple[tuple[str, bytes], ...]:
    return tuple([(one["name"], one["value"]) for one in headers or ()])


def _write(path: Path, data: bytes) -> None:
    """Put a file in place whole: under another name first, then on disk, then renamed."""
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.rename(path)
    # The name itself is safe only when the folder that holds it is on disk.
    handle = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
