"""From a log to raw rows: a record's place, time and bytes, as they go to the audit's process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from ledger.log.archive import ArchiveLog
from ledger.reading import Damaged
from schemas.topics import full_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from ledger.log.port import Log
    from ledger.reading import Upto

__all__ = ["RAW", "raw_rows"]

#: Records read at a time.
_CHUNK = 50_000

RAW = pa.schema(
    [
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("appended_us", pa.int64()),
        pa.field("value", pa.string()),
    ]
)


async def raw_rows(
    log: Log, prefix: str, partition: int, upto: Upto | None = None
) -> AsyncIterator[pa.Table]:
    """Yield the records of one partition as raw rows, up to the end that the log has now.

    Raise `Damaged` where a record is missing, or is no text; the log's own errors pass.
    """
    topic = full_name(prefix, "events")
    offset, end = 0, await log.end(topic, partition)
    if upto is not None and upto.offsets is not None:
        end = min(end, upto.offsets.get(partition, end))
    while offset < end:
        rows = await _chunk(log, topic, partition, offset, min(_CHUNK, end - offset))
        _check_dense(rows, topic, partition, offset, end)
        offset += rows.num_rows
        if upto is not None and upto.time_us is not None:
            kept = rows.filter(pc.less_equal(rows["appended_us"], upto.time_us))
            if kept.num_rows < rows.num_rows:
                yield kept
                return
        yield rows


async def _chunk(log: Log, topic: str, partition: int, offset: int, limit: int) -> pa.Table:
    if isinstance(log, ArchiveLog):
        # It is in columns already.
        found = await log.columns(topic, partition, offset, limit, ("offset", "time_us", "value"))
        places, times, values = found.columns if found is not None else ([], [], [])
    else:
        rows = await log.values(topic, partition, offset, limit)
        places, times, values = zip(*rows, strict=True) if rows else ((), (), ())
    number = pa.array([partition] * len(places), pa.int32())
    return pa.table(
        [number, _column(places, pa.int64()), _column(times, pa.int64()),
         _text(values, topic, partition, places)],
        schema=RAW,
    )  # fmt: skip


def _column(values: Any, of: pa.DataType) -> Any:  # noqa: ANN401 - an Arrow column
    return values if isinstance(values, pa.ChunkedArray) else pa.array(values, of)


def _text(values: Any, topic: str, partition: int, places: Any) -> Any:  # noqa: ANN401 - Arrow
    column = _column(values, pa.binary())
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        pass
    for at, value in enumerate(column.to_pylist()):
        try:
            (value or b"").decode()
        except UnicodeDecodeError as error:
            offset = int(places[at].as_py() if hasattr(places[at], "as_py") else places[at])
            raise Damaged(topic, partition, offset, "not_json", str(error)) from error
    raise AssertionError("Arrow refused text that Python takes")


def _check_dense(rows: pa.Table, topic: str, partition: int, offset: int, end: int) -> None:
    """Raise `Damaged` where the next record is not the next one (L2)."""
    places = rows["offset"].to_pylist()
    if not places:
        text = f"the log ends at {end}, but has nothing from here on"
        raise Damaged(topic, partition, offset, "gap", text)
    for wanted, found in enumerate(places, offset):
        if found != wanted:
            text = f"the next record should be {wanted}, it is {found}"
            raise Damaged(topic, partition, wanted, "gap", text)
