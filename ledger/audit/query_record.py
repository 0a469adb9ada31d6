"""Where questions are on record: on the log itself, or in a file beside an archive.

A log that can be written to has them on its topic ``audit``, for ever; when that cannot be
done nothing is shown. An archive is a copy in its reader's hands, which nobody can make keep
a record: the question goes into the file ``DIR-queries.jsonl`` beside the folder, and where
that cannot be written, the answer says so.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from pydantic import ValidationError

from ledger.audit.tables import QUERIES, rows_table
from ledger.client import new_id
from ledger.log.port import Entry, TopicState, UnknownTopic
from ledger.log.topics import declared
from ledger.log.url import open_log
from schemas.audit import AuditQuery
from schemas.catalogue import wire_type
from schemas.cloudevents import to_headers
from schemas.topics import full_name

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import pyarrow as pa

    from ledger.log.port import Log, Record

__all__ = ["beside_archive", "keep_on_log", "keeper_of", "queries_of"]

#: Without the prefix.
_TOPIC = "audit"

#: Records read at a time.
_CHUNK = 5_000


def keeper_of(url: str, prefix: str, who: str) -> Callable[[AuditQuery], Awaitable[str]]:
    """Return what puts a question on record; it returns where, or nothing where it could not."""

    async def on_log(query: AuditQuery) -> str:
        log = open_log(url)
        try:
            return await keep_on_log(log, prefix, who, query)
        finally:
            await log.close()

    async def beside(query: AuditQuery) -> str:
        return _keep_beside(beside_archive(url), who, query)

    return beside if url.startswith("archive:") else on_log


async def keep_on_log(log: Log, prefix: str, who: str, query: AuditQuery) -> str:
    """Append the question; return its place as ``audit/PARTITION@OFFSET``.

    The log's errors pass: what is not on record is not shown.
    """
    topic = full_name(prefix, _TOPIC)
    headers = to_headers({"id": new_id(), "source": who, "type": wire_type("audit.query")})
    plain = query.model_dump(mode="json", exclude_defaults=True)
    entry = Entry(who.encode(), orjson.dumps(plain), headers)
    try:
        (offset,) = await log.append(topic, 0, [entry])
    except UnknownTopic:
        # A log from before this topic was declared.
        await log.create_topics({topic: await _as_declared(log, prefix)})
        (offset,) = await log.append(topic, 0, [entry])
    return f"{_TOPIC}/0@{offset}"


async def _as_declared(log: Log, prefix: str) -> TopicState:
    events = full_name(prefix, "events")
    found = (await log.describe_topics([events])).get(events)
    copies = found.replication if found is not None else None
    return declared(prefix, replication=copies or 1)[full_name(prefix, _TOPIC)]


def beside_archive(url: str) -> Path:
    """Return the file in which questions of an archive are kept."""
    folder = Path(url.partition(":")[2])
    return folder.with_name(f"{folder.name}-queries.jsonl")


def _keep_beside(file: Path, who: str, query: AuditQuery) -> str:
    line = orjson.dumps({"who": who, **query.model_dump(mode="json", exclude_defaults=True)})
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    except OSError:
        return ""
    try:
        os.write(descriptor, line + b"\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return str(file)


async def queries_of(log: Log, prefix: str) -> pa.Table:
    """Return the questions that are on the log, as rows; none where it has no such topic."""
    topic = full_name(prefix, _TOPIC)
    rows: list[dict[str, Any]] = []
    if topic in await log.describe_topics([topic]):
        offset, end = await log.begin(topic, 0), await log.end(topic, 0)
        while offset < end:
            records = await log.read(topic, 0, offset, min(_CHUNK, end - offset))
            if not records:
                break
            rows += [_row(one) for one in records]
            offset = records[-1].offset + 1
    return rows_table(QUERIES, rows)


def _row(record: Record) -> dict[str, Any]:
    source = dict(record.headers).get("ce_source", record.key or b"").decode(errors="replace")
    row: dict[str, Any] = {"offset": record.offset, "time_us": record.time_us, "who": source}
    try:
        query = AuditQuery.model_validate_json(record.value or b"", strict=False)
    except ValidationError as error:
        # Somebody wrote something else there: that is worth a row too.
        return row | {"outcome": "unreadable", "detail": str(error.error_count()) + " faults"}
    return row | query.model_dump(mode="json")
