"""A bill as files: the rows, the schema object and the recency object, each of its own.

The same log, prices and policy give the same bytes; nothing is read from a clock. The file
of a month that is closed is never replaced by another.
"""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from hashlib import sha256
from typing import TYPE_CHECKING, Any, cast

import orjson

from ledger.billing.focus import COLUMNS, FOCUS_VERSION, Column, rows_of, time_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from ledger.billing.charges import Tariff
    from ledger.billing.collect import Bill
    from ledger.billing.focus import Values

__all__ = ["FORMATS", "ClosedMonth", "Export", "NoExport", "read_exports", "write_bill"]

#: Format -> how its file's name ends. JSON is one object a line.
FORMATS = {"csv": ".csv", "parquet": ".parquet", "json": ".jsonl"}

_DATASET = "cost-and-usage"
_SCHEMA, _RECENCY = ".schema.json", ".recency.json"
_GENERATOR = "gpuledger"
#: The most digits of a decimal.
_PRECISION = 38


class ClosedMonth(Exception):
    """The folder has another bill of a month that is closed; that one stays."""


class NoExport(Exception):
    """There is no bill in the folder, or a file of it cannot be read."""


@dataclass(slots=True)
class Export:
    """A bill as it was read from its files: ``rows`` have the columns that the file has."""

    name: str
    columns: list[str]
    rows: list[Values]
    schema: dict[str, Any]
    recency: dict[str, Any]
    sha256: str


def write_bill(folder: Path, bill: Bill, tariff: Tariff, form: str, version: str) -> list[Path]:
    """Write a bill's three files into a folder; return their paths.

    ``form`` is one of `FORMATS`, ``version`` that of the code. Raise `ClosedMonth` rather
    than change what was said of a month that is closed.
    """
    rows = list(rows_of(bill, tariff))
    data = _WRITERS[form](rows)
    # Of the rows whatever the format: the CSV is as plain as they are.
    digests = {
        "x_DataSha256": sha256(data).hexdigest(),
        "x_RowsSha256": sha256(data if form == "csv" else _csv(rows)).hexdigest(),
    }
    stem = f"{_DATASET}-{bill.month.name}"
    recency = folder / f"{stem}{_RECENCY}"
    if recency.exists():
        had = _said(recency)
        if had.get("x_State") == "closed" and had.get("x_RowsSha256") != digests["x_RowsSha256"]:
            raise ClosedMonth(
                f"{folder} has another bill of {bill.month.name}, which is closed; what has been"
                " learnt since belongs to a later month. If the price book or the policy is"
                " another one, write to another folder"
            )
    folder.mkdir(parents=True, exist_ok=True)
    written = {
        f"{stem}{FORMATS[form]}": data,
        f"{stem}{_SCHEMA}": _json(_schema(bill, version)),
        f"{stem}{_RECENCY}": _json(_recency(bill, tariff) | digests),
    }
    for name, content in written.items():
        part = folder / f".{name}.part"
        part.write_bytes(content)
        part.replace(folder / name)
    for other in FORMATS.values():
        # One bill of a month in a folder, or a reader would count it twice.
        if other != FORMATS[form]:
            (folder / f"{stem}{other}").unlink(missing_ok=True)
    return [folder / name for name in written]


def _said(recency: Path) -> dict[str, Any]:
    """Return the recency object of a bill that is there; raise `ClosedMonth` for none."""
    try:
        had = json.loads(recency.read_text())
    except (OSError, ValueError):
        had = None
    if not isinstance(had, dict):
        raise ClosedMonth(
            f"{recency} cannot be read, so nobody knows whether its month is closed; put a copy"
            " back, or write to another folder"
        )
    return had


def _json(plain: dict[str, Any]) -> bytes:
    return orjson.dumps(plain, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


# -- rows ----------------------------------------------------------------------


def _csv(rows: list[Values]) -> bytes:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow([column.name for column in COLUMNS])
    for row in rows:
        writer.writerow([row[column.name] for column in COLUMNS])
    return out.getvalue().encode()


def _jsonl(rows: list[Values]) -> bytes:
    numbers = {one.name for one in COLUMNS if one.type in ("decimal", "integer")}
    lines = []
    for row in rows:
        plain = {
            name: orjson.Fragment(value) if name in numbers and value is not None else value
            for name, value in row.items()
        }
        lines.append(orjson.dumps(plain, option=orjson.OPT_APPEND_NEWLINE))
    return b"".join(lines)


def _parquet(rows: list[Values]) -> bytes:
    import pyarrow as pa  # noqa: PLC0415 - 100 ms that the other formats do not need
    import pyarrow.parquet as pq  # noqa: PLC0415

    kinds = {"time": pa.timestamp("ms", "UTC"), "integer": pa.int64()}
    makers: dict[str, Any] = {"decimal": Decimal, "integer": int, "time": datetime.fromisoformat}
    arrays, fields = [], []
    for one in COLUMNS:
        kind = pa.decimal128(_PRECISION, one.scale) if one.type == "decimal" else None
        kind = kind or kinds.get(one.type, pa.string())
        make = makers.get(one.type, str)
        values = [None if row[one.name] is None else make(row[one.name]) for row in rows]
        arrays.append(pa.array(values, kind))
        fields.append(pa.field(one.name, kind, nullable=one.null))
    sink = io.BytesIO()
    table = pa.Table.from_arrays(arrays, schema=pa.schema(fields))
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


_WRITERS = {"csv": _csv, "parquet": _parquet, "json": _jsonl}


# -- objects -------------------------------------------------------------------


def _schema(bill: Bill, version: str) -> dict[str, Any]:
    """Return the schema object; its id is another one as soon as a column is."""
    columns = [_definition(one) for one in COLUMNS]
    digest = sha256(orjson.dumps([FOCUS_VERSION, columns])).hexdigest()
    return {
        "SchemaId": f"{_GENERATOR}-{_DATASET}-{digest[:16]}",
        "FocusVersion": FOCUS_VERSION,
        "CreationDate": time_text(bill.known_us // 1_000_000),
        "DataGenerator": _GENERATOR,
        "DataGeneratorVersion": version,
        "DatasetInstanceId": _DATASET,
        "ColumnDefinition": columns,
    }


_DATA_TYPES = {"decimal": "DECIMAL", "integer": "INTEGER", "time": "DATETIME", "json": "JSON"}


def _definition(column: Column) -> dict[str, Any]:
    found: dict[str, Any] = {
        "ColumnName": column.name,
        "DataType": _DATA_TYPES.get(column.type, "STRING"),
    }
    if column.type == "decimal":
        found |= {"NumericPrecision": _PRECISION, "NumberScale": column.scale}
    elif column.type not in ("integer", "time"):
        found["StringEncoding"] = "UTF-8"
    return found


def _recency(bill: Bill, tariff: Tariff) -> dict[str, Any]:
    known = time_text(bill.known_us // 1_000_000)
    complete = bill.state == "closed"
    sector = {
        "TimeSectorStart": time_text(bill.month.start_us // 1_000_000),
        "TimeSectorEnd": time_text(bill.month.end_us // 1_000_000),
        "TimeSectorComplete": complete,
        "TimeSectorLastUpdated": known,
    }
    return {
        "DatasetInstanceId": _DATASET,
        "DatasetInstanceComplete": complete,
        "DatasetInstanceLastUpdated": known,
        "RecencyLastUpdated": known,
        "TimeSectors": [sector],
        "x_State": bill.state,
        "x_LogEnds": {str(number): end for number, end in bill.ends.items()},
        "x_Checkpoints": dict(sorted(bill.checkpoints.items())),
        "x_PriceBook": tariff.prices.book.book,
        "x_PriceBookSha256": tariff.prices.sha256,
        "x_PayerPolicy": tariff.policy.plain(),
    }


# -- reading -------------------------------------------------------------------


def read_exports(folder: Path) -> list[Export]:
    """Return the bills of a folder, by month; raise `NoExport` where there is none to read."""
    found = []
    for recency in sorted(folder.glob(f"{_DATASET}-*{_RECENCY}")):
        stem = recency.name.removesuffix(_RECENCY)
        there = [folder / f"{stem}{end}" for end in FORMATS.values()]
        data = [path for path in there if path.exists()]
        if len(data) != 1:
            raise NoExport(f"{stem}: one file of rows is wanted, {len(data)} are there")
        try:
            columns, found_rows = _READERS[data[0].suffix](data[0].read_bytes())
            rows = list(found_rows)
            schema = json.loads((folder / f"{stem}{_SCHEMA}").read_text())
            said = json.loads(recency.read_text())
        except (OSError, ValueError, csv.Error) as error:
            raise NoExport(f"{stem}: {error}") from None
        if not all(isinstance(one, dict) for one in (schema, said, *rows)):
            raise NoExport(f"{stem}: rows, schema and recency are JSON objects")
        digest = sha256(data[0].read_bytes()).hexdigest()
        found.append(Export(stem, columns, rows, schema, said, digest))
    if not found:
        raise NoExport(f"{folder} has no bill; gpuledger bill --to {folder} writes one")
    return found


def _read_csv(data: bytes) -> tuple[list[str], Iterable[Values]]:
    reader = csv.reader(io.StringIO(data.decode(), newline=""))
    columns = next(reader, [])
    # Most values stand in many rows: each is kept once, or a large month takes gigabytes.
    known: dict[str, str] = {}
    return columns, [
        {
            name: known.setdefault(value, value) or None
            for name, value in zip(columns, line, strict=True)
        }
        for line in reader
    ]


def _read_jsonl(data: bytes) -> tuple[list[str], Iterable[Values]]:
    rows = [json.loads(line, parse_float=str, parse_int=str) for line in data.splitlines()]
    return list(rows[0]) if rows else [one.name for one in COLUMNS], rows


def _read_parquet(data: bytes) -> tuple[list[str], Iterable[Values]]:
    import pyarrow.parquet as pq  # noqa: PLC0415 - as for writing

    table = pq.read_table(io.BytesIO(data))
    return table.column_names, _texts(table.to_pylist())


def _texts(rows: Iterable[dict[str, Any]]) -> Iterator[Values]:
    for row in rows:
        yield {name: _text(value) for name, value in row.items()}


def _text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
    if isinstance(value, Decimal):
        text = f"{value:f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    return str(cast("int", value))


_READERS = {".csv": _read_csv, ".parquet": _read_parquet, ".jsonl": _read_jsonl}
