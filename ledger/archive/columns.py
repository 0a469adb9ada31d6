"""A record as a row: its original bytes, and beside them what a query asks for.

The bytes (``key``, ``value``, ``headers``) and ``offset`` and ``time_us`` are the
record; the other columns are made from them and can be made again (`check`
does). Where a value is not what its column expects, the column is null.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa

from ledger.archive.event_columns import EVENT_COLUMNS, event_arrays, text, whole
from ledger.archive.usage_columns import USAGE_COLUMNS, usage_arrays
from ledger.log.port import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["COLUMNS", "RAW", "SCHEMA", "Column", "records_of", "table_of"]

_HEADER = pa.struct(
    [pa.field("name", pa.string(), nullable=False), pa.field("value", pa.binary(), nullable=False)]
)
_HEADERS = pa.list_(pa.field("element", _HEADER, nullable=False))


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its Arrow type, what it means, and whether it may be null."""

    name: str
    type: Any
    meaning: str
    nullable: bool = True


COLUMNS: tuple[Column, ...] = (
    Column("offset", pa.int64(), "the record's place in its partition", nullable=False),
    Column("time_us", pa.int64(), "the log's append time, UTC microseconds", nullable=False),
    Column("type", pa.string(), "CloudEvents type (header ce_type), of any topic"),
    Column("kind", pa.string(), "claim or decision; this and what follows of events only"),
    Column("cell", pa.string(), "cell that the decision is about"),
    Column("seq", pa.int64(), "number of the decision in its partition"),
    Column("token", pa.string(), "claim under which it was written"),
    Column("input_type", pa.string(), "type of the input that it answers"),
    Column("source_topic", pa.string(), "topic of that input: requests or observations"),
    Column("source_offset", pa.int64(), "offset of that input"),
    Column("decided_us", pa.int64(), "the record's own time, UTC microseconds"),
    Column("code", pa.string(), "outcome of the decision"),
    Column("events", pa.int32(), "how many events follow from it"),
    Column("heard_us", pa.int64(), "of a node that is silent: its last heartbeat, as told"),
    *(Column(name, kind, meaning) for name, (kind, meaning) in EVENT_COLUMNS.items()),
    *(Column(name, kind, meaning) for name, (kind, meaning) in USAGE_COLUMNS.items()),
    Column("key", pa.binary(), "the key's bytes"),
    Column("value", pa.binary(), "the value's bytes: the record itself"),
    Column("headers", _HEADERS, "names and bytes, in order", nullable=False),
)

SCHEMA = pa.schema([pa.field(one.name, one.type, one.nullable) for one in COLUMNS])

#: The columns that a record is read from.
RAW = ("offset", "time_us", "key", "value", "headers")

#: Records taken apart at a time: what JSON makes of more of them is slow to make and to drop.
_AT_ONCE = 10_000

_TYPED = 12
_NOTHING = (None,) * _TYPED


def table_of(topic: str, records: Sequence[Record]) -> pa.Table:
    """Return the records of one partition as rows, in their order."""
    parts = [_rows(topic, records[at : at + _AT_ONCE]) for at in range(0, len(records), _AT_ONCE)]
    return parts[0] if len(parts) == 1 else pa.concat_tables(parts).combine_chunks()


def _rows(topic: str, records: Sequence[Record]) -> pa.Table:
    suffix = topic.rpartition(".")[2]
    is_ledger, is_usage = suffix == "events", suffix == "usage"
    typed = [_typed(one.value) if is_ledger else _NOTHING for one in records]
    *columns, events = zip(*typed, strict=True)
    made: list[Any] = [
        [one.offset for one in records],
        [one.time_us for one in records],
        [_type_of(one.headers) for one in records],
        *(list(values) for values in columns),
        *event_arrays(events),
        *usage_arrays([one.value if is_usage else None for one in records]),
        [one.key for one in records],
        [one.value for one in records],
    ]
    arrays = [
        values if isinstance(values, pa.Array) else pa.array(values, column.type)
        for values, column in zip(made, COLUMNS[:-1], strict=True)
    ]
    return pa.Table.from_arrays([*arrays, _headers(records)], schema=SCHEMA)


def records_of(topic: str, partition: int, table: pa.Table) -> list[Record]:
    """Return the records that rows hold; the table has the columns `RAW`, in that order."""
    offsets, times, keys, values, headers = (column.to_pylist() for column in table.columns)
    return [
        Record(
            topic,
            partition,
            offset,
            time_us,
            key,
            value,
            tuple([(one["name"], one["value"]) for one in pairs]),
        )
        for offset, time_us, key, value, pairs in zip(
            offsets, times, keys, values, headers, strict=True
        )
    ]


def _headers(records: Sequence[Record]) -> pa.Array:
    # Flat arrays and where each list begins: one dict for each header takes five times as long.
    starts = [0]
    names: list[str] = []
    values: list[bytes] = []
    for record in records:
        for name, value in record.headers:
            names.append(name)
            values.append(value)
        starts.append(len(names))
    pairs = pa.StructArray.from_arrays(
        [pa.array(names, pa.string()), pa.array(values, pa.binary())], fields=list(_HEADER)
    )
    return pa.ListArray.from_arrays(pa.array(starts, pa.int32()), pairs, type=_HEADERS)


def _type_of(headers: tuple[tuple[str, bytes], ...]) -> str | None:
    for name, value in headers:
        if name == "ce_type":
            try:
                return value.decode()
            except UnicodeDecodeError:
                return None
    return None


def _typed(value: bytes | None) -> tuple[Any, ...]:
    """Return the columns from ``kind`` to ``heard_us`` and the events of a record of the ledger."""
    try:
        plain = orjson.loads(value or b"")
    except orjson.JSONDecodeError:
        return _NOTHING
    if not isinstance(plain, dict):
        return _NOTHING
    source = plain.get("source")
    if not isinstance(source, list) or len(source) != 2:  # noqa: PLR2004 - topic and offset
        source = (None, None)
    given, outcome, events = plain.get("input"), plain.get("outcome"), plain.get("events")
    given = given if isinstance(given, dict) else {}
    data = given.get("data")
    return (
        text(plain.get("kind")),
        text(plain.get("cell")),
        whole(plain.get("seq")),
        text(plain.get("token")),
        text(given.get("type")),
        text(source[0]),
        whole(source[1]),
        whole(plain.get("time_us")),
        text(outcome.get("code")) if isinstance(outcome, dict) else None,
        len(events) if isinstance(events, list) else None,
        whole(data.get("last_heartbeat_us")) if isinstance(data, dict) else None,
        events,
    )
