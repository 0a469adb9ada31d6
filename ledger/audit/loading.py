"""Raw rows into the tables of an audit, each with what every reader believes of it.

A raw row is a record's place, time and bytes; the database takes it apart, which is
several times as fast as Python and needs no memory for objects. What a reader of the log
believes of a record (its verdict) follows from a few of its fields; `Verdicts` says it as
`ledger.core.fold` does, without the state: that the *rules* of the domain were kept is for
``gpuledger verify`` to say.

This is loaded by the process in which questions are asked, so it imports neither the core
nor the models: what it needs of them it is told.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import duckdb
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from ledger.audit.tables import RECORDS

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Known", "Unreadable", "Verdicts", "take_rows"]


class Unreadable(Exception):
    """A record that no reader can take: its offset, the fold's code for it, and what was found."""

    def __init__(self, offset: int, code: str, detail: str) -> None:
        super().__init__(f"{offset}: {code}: {detail}")
        self.offset = offset
        self.code = code
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Known:
    """What this version knows: the version of a record, and the types of events."""

    version: int
    events: Sequence[str]


@dataclass(slots=True)
class Verdicts:
    """What every reader believes of the records of one partition, given in order.

    The rule of `ledger.core.fold.Fold`: a claim sets the token; a decision counts only with
    the current token, the next number, and an input that is newer than the last of its topic.
    """

    token: str = ""
    seq: int = 0
    sources: dict[str, int] = field(default_factory=dict)

    def of(self, kind: str, token: str, seq: int, topic: str, source: int) -> tuple[str, str]:
        """Return the verdict, and of a void record why it is one."""
        if kind == "claim":
            self.token = token
            return "claim", ""
        if token != self.token:
            return "void", "token"
        if seq != self.seq + 1:
            return "void", "seq"
        if source <= self.sources.get(topic, -1):
            return "void", "source"
        self.seq = seq
        self.sources[topic] = source
        return "effective", ""


#: What is taken out of a record for the table ``records``.
_SHAPE = orjson.dumps(
    {
        "v": "BIGINT",
        "kind": "VARCHAR",
        "token": "VARCHAR",
        "worker": "VARCHAR",
        "host": "VARCHAR",
        "cell": "VARCHAR",
        "seq": "BIGINT",
        "time_us": "BIGINT",
        "source": ["JSON"],
        "input": {"type": "VARCHAR", "source": "VARCHAR", "id": "VARCHAR", "data": "JSON"},
        "outcome": {"code": "VARCHAR", "numbers": "JSON"},
        "events": ["JSON"],
    }
).decode()

_HEADS = f"""
    SELECT "offset", r.v, appended_us, r.time_us, r.kind, r.token, r.worker, r.host, r.cell, r.seq,
           r.source[1]->>'$' AS source_topic,
           TRY_CAST(r.source[2]->>'$' AS BIGINT) AS source_offset,
           r.input.type AS input_type, r.input.source AS input_source, r.input.id AS input_id,
           CAST(r.input.data AS VARCHAR) AS input, r.outcome.code AS code,
           CAST(r.outcome.numbers AS VARCHAR) AS numbers, CAST(len(r.events) AS INTEGER) AS events
    FROM (SELECT "offset", appended_us, from_json(value, '{_SHAPE}') AS r FROM raw)
    ORDER BY "offset"
"""  # noqa: S608 - a constant of this module

_NAMED = ("request", "lease", "device", "node", "tenant", "order")
_PATHS = ("type", *_NAMED)

#: One look into each event for all of its columns takes half as long as one look for each.
_EVENTS = f"""
    INSERT INTO events
    SELECT partition, "offset", n, of[1], time_us, cell,
           {", ".join(f"of[{at}]" for at in range(2, len(_NAMED) + 2))}, data
    FROM (SELECT *, json_extract_string(data, [{", ".join(f"'$.{one}'" for one in _PATHS)}]) AS of
          FROM (SELECT partition, "offset", time_us, cell,
                       generate_subscripts(list, 1) - 1 AS n, unnest(list) AS data
                FROM (SELECT raw.partition, "offset", time_us, cell,
                             json_extract(value, '$.events[*]') AS list
                      FROM raw JOIN effective USING ("offset"))))
    ORDER BY "offset", n
"""  # noqa: S608 - made of names of this module

#: What a record has to have for any reader to judge it, by its kind; and what one that counts.
_MUST = {"claim": ("token",), "decision": ("source_topic", "source_offset")}
_MUST_COUNT = ("time_us", "cell", "events", "input_source", "input_id", "code")


def take_rows(
    db: duckdb.DuckDBPyConnection, rows: pa.Table, verdicts: Verdicts, known: Known
) -> None:
    """Put the raw rows of one partition into the tables ``records`` and ``events``.

    Raise `Unreadable` for a record that no reader could take.
    """
    if not rows.num_rows:
        return
    try:
        heads = _heads(db, rows)
        old = pc.not_equal(pc.fill_null(heads["v"], -1), known.version)
        if pc.any(old).as_py():
            rows = _upcast(rows, old.to_pylist())
            heads = _heads(db, rows)
        partition, first = rows["partition"][0].as_py(), rows["offset"][0].as_py()
        records = _judged(heads, partition, verdicts)
        db.register("records_now", records)
        db.execute("INSERT INTO records SELECT * FROM records_now")
        counts = records.filter(pc.equal(records["verdict"], "effective"))
        db.register("effective", counts.select(["offset", "time_us", "cell"]))
        db.execute(_EVENTS)
    finally:
        for name in ("raw", "records_now", "effective"):
            db.unregister(name)
    _check_types(db, partition, first, known)


def _heads(db: duckdb.DuckDBPyConnection, rows: pa.Table) -> pa.Table:
    db.register("raw", rows)
    try:
        return db.sql(_HEADS).to_arrow_table()
    except duckdb.InvalidInputException:
        raise _not_json(rows) from None


def _judged(heads: pa.Table, partition: int, verdicts: Verdicts) -> pa.Table:
    """Return the rows of ``records``, each with its verdict."""
    columns = {name: heads[name] for name in heads.column_names}
    kinds = columns["kind"].to_pylist()
    unknown = [at for at, kind in enumerate(kinds) if kind not in _MUST]
    faults = _lacking(columns, {kind: pc.equal(columns["kind"], kind) for kind in _MUST}, _MUST)
    if unknown:
        offset = columns["offset"][unknown[0]].as_py()
        faults.append((offset, "unknown_type", f"kind {kinds[unknown[0]]!r}"))
    stop = min(faults, default=None)
    given = (
        columns[name].to_pylist() for name in ("token", "seq", "source_topic", "source_offset")
    )
    # What cannot be judged ends the log: nothing after it is looked at.
    judged = [
        verdicts.of(*one) if stop is None or offset < stop[0] else ("", "")
        for offset, *one in zip(columns["offset"].to_pylist(), kinds, *given, strict=True)
    ]
    columns["partition"] = pa.array([partition] * len(kinds), pa.int32())
    columns["verdict"] = pa.array([verdict for verdict, _ in judged], pa.string())
    columns["why_void"] = pa.array([why or None for _, why in judged], pa.string())
    counts = pc.equal(columns["verdict"], "effective")
    faults += _lacking(columns, {"effective": counts}, {"effective": _MUST_COUNT})
    if faults:
        raise Unreadable(*min(faults))
    return pa.table([columns[name] for name, _, _ in RECORDS.columns], schema=RECORDS.schema())


def _lacking(
    columns: dict[str, Any], rows: dict[str, Any], must: dict[str, tuple[str, ...]]
) -> list[tuple[int, str, str]]:
    """Return where some rows have no value that they must have: offset, code, detail."""
    found = []
    for kind, names in must.items():
        for name in names:
            lacking = pc.and_(rows[kind], pc.is_null(columns[name]))
            if pc.any(lacking).as_py():
                offset = columns["offset"].filter(lacking)[0].as_py()
                found.append((offset, "bad_field", f"missing or unknown {name!r}"))
    return found


def _upcast(rows: pa.Table, old: list[bool]) -> pa.Table:
    """Return the rows with old records as this version has them."""
    values = rows["value"].to_pylist()
    for at, offset in enumerate(rows["offset"].to_pylist()):
        if old[at]:
            values[at] = _current(offset, values[at])
    return rows.set_column(rows.column_names.index("value"), "value", pa.array(values, pa.string()))


def _current(offset: int, value: str | None) -> str:
    from schemas.upcast import UnknownVersion, upcast  # noqa: PLC0415 - loads all models

    if not value:
        raise Unreadable(offset, "empty_value", "a record of the ledger carries no data")
    try:
        record = orjson.loads(value)
        if not isinstance(record, dict):
            raise Unreadable(offset, "not_an_object", "the record is no JSON object")
        return orjson.dumps(upcast(record)).decode()
    except orjson.JSONDecodeError as error:
        raise Unreadable(offset, "not_json", str(error)) from error
    except UnknownVersion as error:
        raise Unreadable(offset, "unknown_version", str(error)) from error


def _not_json(rows: pa.Table) -> Unreadable:
    offset = -1
    for offset, value in zip(rows["offset"].to_pylist(), rows["value"].to_pylist(), strict=True):
        try:
            _current(offset, value)
        except Unreadable as fault:
            return fault
    return Unreadable(
        offset, "bad_field", "a record up to here has another form than any reader takes"
    )


def _check_types(db: duckdb.DuckDBPyConnection, partition: int, first: int, known: Known) -> None:
    """Raise `Unreadable` for an event of a type that this version does not know (L7)."""
    names = ", ".join(f"'{name}'" for name in known.events)
    found = db.execute(
        'SELECT "offset", type FROM events WHERE partition = ? AND "offset" >= ?'  # noqa: S608
        f' AND (type IS NULL OR type NOT IN ({names})) ORDER BY "offset" LIMIT 1',
        (partition, first),
    ).fetchone()
    if found is not None:
        raise Unreadable(found[0], "bad_field", f"missing or unknown {found[1]!r}")
