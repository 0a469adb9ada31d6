"""The tables of an audit: what their columns are. Views over them are `ledger.audit.sql_texts`.

Every table is described here once: the database is made from it, and
``gpuledger sql --tables`` prints it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa

from ledger.metering.rows import OUTCOMES
from schemas.codes import CODES

__all__ = [
    "CODE_TABLE",
    "ENDINGS",
    "EVENTS",
    "QUERIES",
    "RECORDS",
    "TABLES",
    "Table",
    "constants",
    "rows_table",
]


@dataclass(frozen=True, slots=True)
class Table:
    """A table: what a row is, and its columns as (name, type, meaning)."""

    name: str
    meaning: str
    columns: tuple[tuple[str, str, str], ...]

    def schema(self) -> pa.Schema:
        """Return the columns for Arrow; JSON travels as text and is typed in the database."""
        return pa.schema([(name, _ARROW[kind]) for name, kind, _ in self.columns])


_ARROW: dict[str, Any] = {
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "VARCHAR": pa.string(),
    "BOOLEAN": pa.bool_(),
    "JSON": pa.string(),
}

RECORDS = Table(
    "records",
    "one row a record of the ledger: claims, decisions and void records",
    (
        ("partition", "INTEGER", "partition of the events topic"),
        ("offset", "BIGINT", "its place in the partition"),
        ("appended_us", "BIGINT", "when the log took it, UTC microseconds"),
        ("time_us", "BIGINT", "when it was decided, UTC microseconds"),
        ("kind", "VARCHAR", "claim or decision"),
        ("verdict", "VARCHAR", "claim, effective, or void (another writer's: no effect)"),
        ("why_void", "VARCHAR", "token (not the current claim's), seq, or source (decided before)"),
        ("token", "VARCHAR", "claim under which it was written"),
        ("worker", "VARCHAR", "who claimed; of claims only"),
        ("host", "VARCHAR", "where that ran; of claims only"),
        ("cell", "VARCHAR", "cell that the decision is about"),
        ("seq", "BIGINT", "number of the decision in its partition"),
        ("source_topic", "VARCHAR", "topic of the input: requests or observations"),
        ("source_offset", "BIGINT", "offset of the input in that topic's partition"),
        ("input_type", "VARCHAR", "type of the input"),
        ("input_source", "VARCHAR", "who sent it"),
        ("input_id", "VARCHAR", "its id; source#id names it for ever"),
        ("input", "JSON", "what the input says"),
        ("code", "VARCHAR", "outcome (table codes)"),
        ("numbers", "JSON", "the numbers that were compared"),
        ("events", "INTEGER", "how many events follow from it"),
    ),
)

EVENTS = Table(
    "events",
    "one row an event of an effective decision, in order",
    (
        ("partition", "INTEGER", "partition of the record"),
        ("offset", "BIGINT", "offset of the record"),
        ("n", "INTEGER", "number of the event in its record, from 0"),
        ("type", "VARCHAR", "type of the event"),
        ("time_us", "BIGINT", "when it was decided, UTC microseconds"),
        ("cell", "VARCHAR", "cell"),
        ("request", "VARCHAR", "request (source#id) that it names"),
        ("lease", "VARCHAR", "lease (source#id/attempt) that it names"),
        ("device", "VARCHAR", "device UUID that it names"),
        ("node", "VARCHAR", "node that it names"),
        ("tenant", "VARCHAR", "tenant that it names"),
        ("order", "VARCHAR", "order that it names"),
        ("data", "JSON", "the event"),
    ),
)

QUERIES = Table(
    "queries",
    "one row a question that was asked of the ledger in SQL; the one being asked is not in it yet",
    (
        ("offset", "BIGINT", "its place in the audit topic"),
        ("time_us", "BIGINT", "when the log took it, UTC microseconds"),
        ("who", "VARCHAR", "who asked"),
        ("kind", "VARCHAR", "sql, report or export"),
        ("name", "VARCHAR", "name of the report"),
        ("text", "VARCHAR", "the query, its first 4,000 characters"),
        ("text_sha256", "VARCHAR", "SHA-256 of the whole query in UTF-8"),
        ("parameters", "JSON", "of a report"),
        ("upto", "JSON", "by partition, the first offset that it did not see"),
        ("outcome", "VARCHAR", "answered, refused or stopped (at a limit)"),
        ("detail", "VARCHAR", "why it was not answered"),
        ("rows", "BIGINT", "how many rows were shown"),
        ("cut", "BOOLEAN", "there were more than the limit"),
    ),
)

CODE_TABLE = Table(
    "codes",
    "one row an outcome that the ledger can give",
    (
        ("code", "VARCHAR", "the outcome"),
        ("precedence", "INTEGER", "of several noes the one with the least is given"),
        ("number", "INTEGER", "its number, for ever"),
        ("kind", "VARCHAR", "yes, transient (may become a yes by itself) or final"),
        ("meaning", "VARCHAR", "what it says"),
    ),
)

ENDINGS = Table(
    "endings",
    "one row a reason for which leases end, and what becomes of the work",
    (
        ("reason", "VARCHAR", "the reason"),
        (
            "outcome",
            "VARCHAR",
            "completed, failed, stopped (its user's word or limit), interrupted",
        ),
    ),
)

#: What the database of an audit is made of.
TABLES = (RECORDS, EVENTS, QUERIES, CODE_TABLE, ENDINGS)


def constants() -> dict[Table, pa.Table]:
    """Return the rows of the tables that are the same for every log."""
    codes = [
        {"code": one.name, "precedence": at, "number": one.number, "kind": one.kind.value,
         "meaning": one.meaning}
        for at, one in enumerate(CODES.values())
    ]  # fmt: skip
    endings = [{"reason": reason, "outcome": outcome} for reason, outcome in OUTCOMES.items()]
    return {CODE_TABLE: rows_table(CODE_TABLE, codes), ENDINGS: rows_table(ENDINGS, endings)}


def rows_table(table: Table, rows: list[dict[str, Any]]) -> pa.Table:
    """Return rows of a table for Arrow; what is nested in a JSON column becomes its text."""
    columns = {
        name: [_value(kind, row.get(name)) for row in rows] for name, kind, _ in table.columns
    }
    return pa.table(columns, schema=table.schema())


def _value(kind: str, value: object) -> object:
    if kind != "JSON" or value is None:
        return value
    return orjson.dumps(value).decode()
