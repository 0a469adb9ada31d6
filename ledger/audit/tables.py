"""The ledger as tables: what the columns are, and the rows of a log.

Every table is described here once: the database is made from it, and
``gpuledger sql --tables`` prints it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa

from ledger.core.fold import Fold
from ledger.reading import read_events
from ledger.wire import full_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from ledger.log.port import Log
    from ledger.reading import Seen, Upto

__all__ = ["EVENTS", "RECORDS", "VIEWS", "Table", "View", "batches"]

#: Records turned into rows at a time.
_BATCH = 20_000


@dataclass(frozen=True, slots=True)
class Table:
    """A table: what a row is, and its columns as (name, type, meaning)."""

    name: str
    meaning: str
    columns: tuple[tuple[str, str, str], ...]

    def schema(self) -> pa.Schema:
        """Return the columns for Arrow; JSON travels as text and is typed in the database."""
        return pa.schema([(name, _ARROW[kind]) for name, kind, _ in self.columns])


@dataclass(frozen=True, slots=True)
class View:
    """A view over the tables: what a row is, and the query that makes it."""

    name: str
    meaning: str
    query: str


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
        ("time_us", "BIGINT", "when it was decided, UTC microseconds"),
        ("kind", "VARCHAR", "claim or decision"),
        ("verdict", "VARCHAR", "claim, effective, or void (another writer's: no effect)"),
        ("cell", "VARCHAR", "cell that the decision is about"),
        ("seq", "BIGINT", "number of the decision in its partition"),
        ("source_topic", "VARCHAR", "topic of the input: requests or observations"),
        ("source_offset", "BIGINT", "offset of the input in that topic's partition"),
        ("input_type", "VARCHAR", "type of the input"),
        ("input_source", "VARCHAR", "who sent it"),
        ("input_id", "VARCHAR", "its id; source#id names it for ever"),
        ("code", "VARCHAR", "outcome (docs: codes)"),
        ("data", "JSON", "the record as it is in the log"),
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

_NAMED = ("request", "lease", "device", "node", "tenant", "order")

VIEWS = (
    View(
        "decisions",
        "one row an effective decision: position, time, cell, input, outcome and its numbers",
        """
        SELECT partition, "offset", make_timestamp(time_us) AS time, cell, seq,
               input_type, input_source, input_id, code,
               data->'outcome'->'numbers' AS numbers, json_array_length(data, '$.events') AS events
        FROM records WHERE verdict = 'effective'
        """,
    ),
    View(
        "requests",
        "one row a request: who asked for what, its answer, how it ended; times UTC",
        """
        SELECT request, any_value(cell) AS cell, max(tenant) AS tenant,
               max(data->>'queue') AS queue, max(data->>'project') AS project,
               any_value(data->'need') FILTER (type = 'request.received') AS need,
               make_timestamp(min(time_us)) AS received,
               make_timestamp(min(time_us) FILTER (type = 'lease.granted')) AS first_granted,
               make_timestamp(max(time_us) FILTER (type = 'request.ended')) AS ended,
               CASE WHEN bool_or(type = 'request.rejected') THEN 'rejected'
                    WHEN bool_or(type = 'request.ended')
                    THEN max(data->>'how') FILTER (type = 'request.ended')
                    ELSE arg_max(CASE type WHEN 'lease.granted' THEN 'granted' ELSE 'queued' END,
                                 ("offset", n)) FILTER (type IN ('lease.granted', 'request.queued'))
               END AS state,
               arg_max(data->>'code', ("offset", n))
                   FILTER (type IN ('request.queued', 'request.rejected')) AS last_no,
               count(*) FILTER (type = 'lease.granted') AS leases
        FROM events
        WHERE type IN ('request.received', 'request.queued', 'request.rejected',
                       'request.ended', 'lease.granted')
        GROUP BY request
        """,
    ),
    View(
        "leases",
        "one row a lease: what it held, where, from when to when (UTC), why it ended",
        """
        SELECT g.lease, g.request, g.cell, r.tenant,
               CAST(g.data->>'charge_milli' AS BIGINT) AS charge_milli,
               make_timestamp(g.time_us) AS granted, make_timestamp(e.time_us) AS ended,
               CAST(e.data->>'held_us' AS BIGINT) AS held_us, e.data->>'reason' AS reason,
               g.data->'parts' AS parts, g.partition, g."offset"
        FROM events g
        LEFT JOIN events e ON e.type = 'lease.ended' AND e.lease = g.lease
        LEFT JOIN events r ON r.type = 'request.received' AND r.request = g.request
        WHERE g.type = 'lease.granted'
        """,
    ),
    View(
        "holdings",
        "one row a device or slice of a lease: unit, node, lease, tenant, times UTC",
        """
        SELECT unit.value->>'$' AS unit, part.value->>'node' AS node,
               lease, request, tenant, cell, granted, ended, reason
        FROM leases, json_each(parts) AS part, json_each(part.value, '$.units') AS unit
        """,
    ),
    View(
        "refusals",
        "one row a request that was refused: who, when (UTC), code and the numbers compared",
        """
        SELECT request, tenant, cell, make_timestamp(time_us) AS time, data->>'code' AS code,
               data->'numbers' AS numbers, partition, "offset"
        FROM events WHERE type = 'request.rejected'
        """,
    ),
    View(
        "policy",
        "one row an operator's act: what, who, why and when (UTC)",
        """
        SELECT make_timestamp(time_us) AS time, cell, type, data->>'author' AS author,
               data->>'reason' AS reason, data, partition, "offset"
        FROM events WHERE data->>'author' IS NOT NULL
        """,
    ),
)


async def batches(
    log: Log, prefix: str, upto: Upto | None = None
) -> AsyncIterator[tuple[pa.Table, pa.Table]]:
    """Yield the log as (rows of ``records``, rows of ``events``), part by part.

    Raises as `ledger.reading.read_events` does.
    """
    rows = _Rows()
    for partition in range(await log.partitions(full_name(prefix, "events"))):
        async for seen in read_events(log, prefix, partition, Fold().reading(), upto):
            rows.add(seen)
            if rows.count >= _BATCH:
                yield rows.take()
    yield rows.take()


class _Rows:
    """Rows by column, as Arrow takes them."""

    def __init__(self) -> None:
        self._records: dict[str, list[Any]] = {}
        self._events: dict[str, list[Any]] = {}
        self.count = 0
        self._clear()

    def _clear(self) -> None:
        self._records = {name: [] for name, _, _ in RECORDS.columns}
        self._events = {name: [] for name, _, _ in EVENTS.columns}
        self.count = 0

    def take(self) -> tuple[pa.Table, pa.Table]:
        """Return what was added since the last time."""
        found = (
            pa.table(self._records, schema=RECORDS.schema()),
            pa.table(self._events, schema=EVENTS.schema()),
        )
        self._clear()
        return found

    def add(self, seen: Seen) -> None:
        """Add a record, and its events when it has an effect."""
        self.count += 1
        record, data = seen.record, seen.data
        given = data.get("input", {})
        topic, offset = data.get("source", (None, None))
        row = {
            "partition": record.partition,
            "offset": record.offset,
            "time_us": data["time_us"],
            "kind": data["kind"],
            "verdict": seen.verdict,
            "cell": data.get("cell"),
            "seq": data.get("seq"),
            "source_topic": topic,
            "source_offset": offset,
            "input_type": given.get("type"),
            "input_source": given.get("source"),
            "input_id": given.get("id"),
            "code": data.get("outcome", {}).get("code"),
            "data": (record.value or b"").decode(),
        }
        for name, column in self._records.items():
            column.append(row[name])
        if seen.verdict == "effective":
            for number, event in enumerate(data["events"]):
                self._add_event(row, number, event)

    def _add_event(self, row: Mapping[str, Any], number: int, event: dict[str, Any]) -> None:
        columns = self._events
        for name in ("partition", "offset", "time_us", "cell"):
            columns[name].append(row[name])
        columns["n"].append(number)
        columns["type"].append(event["type"])
        for name in _NAMED:
            columns[name].append(event.get(name))
        columns["data"].append(orjson.dumps(event).decode())
