"""From a record of an input topic to an `Input` of the core, or to the dead letters.

What is malformed never enters the ledger, which keeps everything for ever: it
is put aside with its original bytes and a code, and answered where its identity
can be read. What is well formed goes to `decide`, however wrong it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b
from typing import TYPE_CHECKING, Literal

import orjson
from pydantic import ValidationError

from ledger.core.decisions.turn import Input
from ledger.log.port import MAX_HEADERS, MAX_RECORD_BYTES, Entry
from schemas import cloudevents
from schemas.catalogue import TYPES, adapter, parse_type
from schemas.faults import first_fault
from schemas.limits import MAX_LISTED_TEXT
from schemas.strict_json import JsonFault, read_strict

if TYPE_CHECKING:
    from ledger.log.port import Record

__all__ = [
    "ERROR_HEADER",
    "Refusal",
    "RefusalCode",
    "dead_letter",
    "fingerprint",
    "ingest",
    "original_headers",
]

#: Context headers of a dead letter; the suffixes are those of Kafka Streams (KIP-1034).
ERROR_HEADER = "__gpuledger.errors."

_CELL = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")

#: Kept free in a dead letter for its reason: names, numbers and a detail of a few hundred bytes.
_REASON_BYTES = 4096


_KNOWN = frozenset(name for name, _ in TYPES)


#: Why a record is put aside: all codes that a dead letter of this program may have.
RefusalCode = Literal[
    cloudevents.MalformedCode, "bad_key", "unknown_type", "unknown_version", "bad_field"
]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a record goes to the dead letters, and who sent it if that could be read."""

    code: RefusalCode
    detail: str
    id: str | None = None
    source: str | None = None


def ingest(record: Record, topic: str) -> tuple[str, Input] | Refusal:
    """Read a record of ``topic`` (the name without prefix); return its cell and input."""
    try:
        event = cloudevents.read(record.value, record.headers)
    except cloudevents.Malformed as fault:
        return Refusal(fault.code, fault.detail, fault.id, fault.source)
    if record.key is None or not _CELL.fullmatch(record.key):
        return Refusal("bad_key", "the key is not a cell's name", event.id, event.source)
    parsed = parse_type(event.type)
    spec = TYPES.get(parsed) if parsed is not None else None
    if spec is None or spec.topic != topic:
        known = parsed is not None and parsed[0] in _KNOWN and spec is None
        code: RefusalCode = "unknown_version" if known else "unknown_type"
        return Refusal(code, event.type[:200], event.id, event.source)
    try:
        plain, written = read_strict(event.data_bytes)
        data = adapter(spec.type, spec.version).validate_json(event.data_bytes)
    except JsonFault as fault:
        return Refusal(fault.code, fault.detail, event.id, event.source)
    except ValidationError as fault:
        return Refusal("bad_field", _first_fault(fault), event.id, event.source)
    return record.key.decode(), Input(
        topic,
        spec.type,
        spec.version,
        event.source,
        event.id,
        record.time_us,
        data,
        orjson.Fragment(written),
        fingerprint(event.type, plain),
        _claimed_us(event.time_text),
    )


def fingerprint(wire_type: str, plain: dict[str, object]) -> str:
    """Two inputs are the same when type and content are; blanks and key order do not count."""
    canonical = orjson.dumps(plain, option=orjson.OPT_SORT_KEYS)
    return blake2b(canonical, digest_size=8, key=wire_type.encode()[:64]).hexdigest()


def _first_fault(fault: ValidationError) -> str:
    where, message = first_fault(fault)
    place = ".".join(str(step)[:80] for step in where)[:200]
    more = fault.error_count() - 1
    text = f"{place or 'the record'}: {message[:200]}"
    text += f" (and {more} more)" if more else ""
    # Names and values of the sender's are in it; a reply carries no control characters.
    return text if text.isprintable() else ascii(text)[1:-1][:MAX_LISTED_TEXT]


def _claimed_us(text: str | None) -> int | None:
    """The sender's own stamp in microseconds; a date that does not exist is no stamp."""
    if text is None:
        return None
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1_000_000)
    except (ValueError, OverflowError):
        return None


#: As much of a key as a dead letter keeps; a cell's name has 63 characters.
_MOST_KEY = 1024


def dead_letter(record: Record, refusal: Refusal) -> Entry:
    """Return the record as it was, with the reason beside it in headers.

    A value that leaves no room for the reason is cut short, with its whole
    length told: the record itself must always find a place.
    """
    about = {
        "topic": record.topic,
        "partition": str(record.partition),
        "offset": str(record.offset),
        "time": str(record.time_us),
        "code": refusal.code,
        "message": refusal.detail,
    }
    kept = record.headers[: MAX_HEADERS - len(about) - 2]
    used = sum(len(name.encode()) + len(value) for name, value in kept)
    if used > MAX_RECORD_BYTES // 2:
        kept, used = (), 0
    key, value = record.key, record.value
    if key is not None and len(key) > _MOST_KEY:
        about["whole_key_length"] = str(len(key))
        key = key[:_MOST_KEY]
    room = MAX_RECORD_BYTES - used - len(key or b"") - _REASON_BYTES
    if value is not None and len(value) > room:
        about["whole_length"] = str(len(value))
        value = value[:room]
    extra = tuple((ERROR_HEADER + name, text.encode()) for name, text in about.items())
    return Entry(key, value, (*kept, *extra))


def original_headers(headers: tuple[tuple[str, bytes], ...]) -> tuple[tuple[str, bytes], ...]:
    """Return a dead letter's headers without the reason."""
    return tuple(one for one in headers if not one[0].startswith(ERROR_HEADER))
