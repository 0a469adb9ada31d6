"""CloudEvents 1.0 on Kafka: written in binary mode, read in binary or structured mode.

In binary mode the attributes are headers (``ce_id``, ``ce_source``, ...), the header
``content-type`` says what the value is, and the value is the data. In structured mode
the value is one JSON object that holds attributes and data, and ``content-type`` is
``application/cloudevents+json``; that header alone decides the mode, as the Kafka
binding says, and ``ce_`` headers beside it are copies that nobody reads.

Stricter than CloudEvents where the ledger needs it: ``id`` and ``source`` have the forms
of `schemas.base`, the data must be there and be JSON (a record without a value is a
tombstone to Kafka), and no attribute may come twice.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal

import orjson
from pydantic import TypeAdapter, ValidationError

from schemas.base import EventId, Source
from schemas.strict_json import JsonCode, JsonFault, loads_strict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["Incoming", "Malformed", "MalformedCode", "read", "to_headers"]

SPEC_VERSION: Final = "1.0"
CONTENT_TYPE: Final = "content-type"
JSON: Final = "application/json"
STRUCTURED: Final = "application/cloudevents+json"

#: More headers than this on one record is a mistake or an attack.
MAX_HEADERS: Final = 64

#: The longest value of an attribute, in characters.
MAX_ATTRIBUTE: Final = 1000

MalformedCode = Literal[JsonCode, "bad_envelope"]

_PREFIX = "ce_"
_REQUIRED = ("id", "source", "type")
#: Faults of a structured event's JSON that leave its identity readable.
_FAULTS_INSIDE = frozenset({"too_deep", "number_out_of_range"})
_NAME = re.compile(r"[a-z0-9]{1,64}")
_VALUE = re.compile(rf"[^\x00-\x1f\x7f-\x9f]{{1,{MAX_ATTRIBUTE}}}")
_JSON_TYPE = re.compile(r"application/(?:json|[a-z0-9.!#$&^_-]+\+json)")
_TYPE = re.compile(r"[!-~]{1,200}")
_TIME = re.compile(
    r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:[Zz]|[+-]\d\d:\d\d)", re.ASCII
)
_ID: TypeAdapter[str] = TypeAdapter(EventId)
_SOURCE: TypeAdapter[str] = TypeAdapter(Source)
_SPEC_BYTES = SPEC_VERSION.encode()
_JSON_BYTES = JSON.encode()
_USUAL_NEEDS = frozenset({"ce_id", "ce_source", "ce_type", "ce_specversion", CONTENT_TYPE})
_USUAL = _USUAL_NEEDS | {"ce_time"}
_FIXED_HEADERS = ((f"{_PREFIX}specversion", SPEC_VERSION.encode()), (CONTENT_TYPE, JSON.encode()))


class Malformed(Exception):
    """A record that is not a CloudEvent of ours.

    ``code`` is a name of `schemas.codes.CODES`. ``id`` and ``source`` are what could
    be read of the identity, so that the sender can be answered; None where it could not.
    """

    def __init__(
        self,
        code: MalformedCode,
        detail: str,
        id: str | None = None,  # noqa: A002 - the attribute's name in CloudEvents
        source: str | None = None,
    ) -> None:
        super().__init__(f"{code}: {detail}")
        self.code: MalformedCode = code
        self.detail = detail
        self.id = id
        self.source = source


@dataclass(frozen=True, slots=True)
class Incoming:
    """A CloudEvent as read; the data is bytes that nobody has looked into yet.

    ``time_text`` is the sender's own stamp (RFC 3339): a claim, never used as the time.
    ``extensions`` are all other attributes, ``subject`` and ``dataschema`` among them.
    """

    id: str
    source: str
    type: str
    time_text: str | None
    data_bytes: bytes
    extensions: dict[str, str]


def to_headers(attributes: Mapping[str, str | None]) -> tuple[tuple[str, bytes], ...]:
    """Return the Kafka headers of an event whose data is JSON, in binary mode.

    ``attributes`` are CloudEvents attributes and extensions by their bare names;
    ``id``, ``source`` and ``type`` must be there, a None is left out, and
    ``specversion`` and the content type are added. Raise ValueError for an attribute
    that `read` would refuse: such a record must not be written.
    """
    for name in _REQUIRED:
        if not attributes.get(name):
            raise ValueError(f"a CloudEvent needs the attribute {name!r}")
    headers = []
    for name, value in attributes.items():
        if value is None:
            continue
        fault = _fault_of(name, value)
        if fault is None and name in {"specversion", "datacontenttype"}:
            fault = "is not the caller's to set"
        if fault is not None:
            raise ValueError(f"the attribute {name!r} {fault}")
        headers.append((_PREFIX + name, value.encode()))
    return (*headers, *_FIXED_HEADERS)


def read(value: bytes | None, headers: Iterable[tuple[str, bytes | None]]) -> Incoming:
    """Read a Kafka record as a CloudEvent; raise `Malformed` with the identity if readable.

    In binary mode ``data_bytes`` is the value itself; in structured mode the data is
    written out again (compact JSON, members in the order they had).
    """
    headers = tuple(headers)
    usual = _read_usual(value, headers)
    if usual is not None:
        return usual
    attributes, fault = _attributes_of(headers)
    media_type = _media_type(attributes)
    if media_type == STRUCTURED:
        return _read_structured(value)
    if not attributes:
        fault = fault or f"there are neither ce_ headers nor the content type {STRUCTURED}"
    if media_type.startswith("application/cloudevents") or not _JSON_TYPE.fullmatch(media_type):
        fault = fault or "the content type is not JSON"
    return _checked(attributes, value, fault)


def _read_usual(
    value: bytes | None, headers: tuple[tuple[str, bytes | None], ...]
) -> Incoming | None:
    """Read the form that nearly every record has, in binary mode; None for any other.

    Answers only where the rules below it would give the same event: it exists because
    they cost four times as much.
    """
    given = dict(headers)
    if not value or len(given) != len(headers) or not _USUAL_NEEDS <= given.keys() <= _USUAL:
        return None
    if given["ce_specversion"] != _SPEC_BYTES or given[CONTENT_TYPE] != _JSON_BYTES:
        return None
    try:
        texts = {name: (given.get(f"{_PREFIX}{name}") or b"").decode() for name in _REQUIRED}
        stamp = given.get("ce_time")
        time_text = None if stamp is None else stamp.decode()
    except UnicodeDecodeError:
        return None
    if any(_fault_of(name, text) for name, text in texts.items()) or (
        time_text is not None and _fault_of("time", time_text)
    ):
        return None
    return Incoming(texts["id"], texts["source"], texts["type"], time_text, value, {})


def _attributes_of(
    headers: Iterable[tuple[str, bytes | None]],
) -> tuple[dict[str, str], str | None]:
    """Collect the attributes that headers carry, and what is wrong with them if anything.

    An attribute that comes twice is in neither way a part of the identity.
    """
    attributes: dict[str, str] = {}
    twice: set[str] = set()
    fault = None
    for count, (key, raw) in enumerate(headers):
        if count == MAX_HEADERS:
            fault = fault or f"more than {MAX_HEADERS} headers"
            break
        name = key.lower()
        if name == CONTENT_TYPE:
            name = "datacontenttype"
        elif name.startswith(_PREFIX):
            name = name.removeprefix(_PREFIX)
            if name == "datacontenttype":
                fault = fault or f"the data's content type belongs in {CONTENT_TYPE}"
                continue
        else:
            continue  # another protocol's header, such as a trace's: not ours to judge
        if name in attributes or name in twice:
            fault = fault or f"the attribute {name[:64]!r} comes more than once"
            twice.add(name)
            attributes.pop(name, None)
            continue
        try:
            attributes[name] = (raw or b"").decode()
        except UnicodeDecodeError:
            fault = fault or f"the attribute {name[:64]!r} is not UTF-8"
    return attributes, fault


def _media_type(attributes: Mapping[str, str]) -> str:
    """Return the data's content type without its parameters, in lower case."""
    return attributes.get("datacontenttype", JSON).partition(";")[0].strip().lower()


def _read_structured(value: bytes | None) -> Incoming:
    """Read a record whose value holds both attributes and data."""
    try:
        envelope = loads_strict(value)
    except JsonFault as fault:
        raise Malformed(fault.code, fault.detail, *_identity_of(value, fault.code)) from None
    data, wrong = _take_data(envelope)
    attributes: dict[str, str] = {}
    for name, member in envelope.items():
        text = _attribute_text(member)
        if text is not None:
            attributes[name] = text
        elif member is not None:
            wrong = wrong or f"the attribute {name[:64]!r} is neither text, integer nor boolean"
    if not _JSON_TYPE.fullmatch(_media_type(attributes)):
        wrong = wrong or "the data's content type is not JSON"
    return _checked(attributes, data, wrong)


def _identity_of(value: bytes | None, code: JsonCode) -> tuple[str | None, str | None]:
    """Return id and source of a structured event that `loads_strict` refused.

    Only where the fault leaves no doubt about them: a number or the depth is wrong, not
    the text as a whole and not a name that may be theirs.
    """
    try:
        envelope = orjson.loads(value or b"") if code in _FAULTS_INSIDE else {}
    except orjson.JSONDecodeError:
        return None, None
    found = (envelope.get("id"), envelope.get("source"))
    event_id, source = (text if isinstance(text, str) else "" for text in found)
    return (
        event_id if _fault_of("id", event_id) is None else None,
        source if _fault_of("source", source) is None else None,
    )


def _take_data(envelope: dict[str, Any]) -> tuple[bytes | None, str | None]:
    """Remove the data from a structured event; return its bytes, and what is wrong with it."""
    encoded = envelope.pop("data_base64", None)
    data = envelope.pop("data", None)
    if encoded is None:
        return (None if data is None else orjson.dumps(data)), None
    if data is not None:
        return None, "both data and data_base64 are there"
    try:
        return base64.b64decode(encoded, validate=True), None
    except (TypeError, ValueError):
        return None, "data_base64 is not base64"


def _attribute_text(member: object) -> str | None:
    """Return the text of an attribute of a structured event; None if it has none."""
    if isinstance(member, bool):
        return "true" if member else "false"
    if isinstance(member, int):
        return str(member)
    return member if isinstance(member, str) else None


@lru_cache(maxsize=1024)
def _fault_of(name: str, value: str) -> str | None:
    """Say what is wrong with one attribute, or None.

    Cached because all but the id and the time are the same from record to record.
    """
    if not _NAME.fullmatch(name):
        return "is not named in lower-case letters and digits"
    if name == "data":
        return "has the one name that no attribute may have"
    if not _VALUE.fullmatch(value):
        return f"is empty, longer than {MAX_ATTRIBUTE} characters, or has control characters"
    if name == "time" and not _TIME.fullmatch(value):
        return "is not an RFC 3339 time"
    if name == "type" and not _TYPE.fullmatch(value):
        return "is not up to 200 printable ASCII characters"
    if (name == "id" and not _fits(_ID, value)) or (name == "source" and not _fits(_SOURCE, value)):
        return "is not of the form that the ledger takes"
    return None


def _fits(adapter: TypeAdapter[str], value: str) -> bool:
    """Say whether pydantic takes the text as the adapter's type."""
    try:
        adapter.validate_python(value)
    except ValidationError:
        return False
    return True


def _checked(attributes: dict[str, str], data: bytes | None, fault: str | None) -> Incoming:
    """Return the event, or raise `Malformed` for ``fault`` or the first one found here."""
    rest = dict(attributes)
    rest.pop("datacontenttype", None)
    for name in _REQUIRED:
        if name not in rest:
            fault = fault or f"the attribute {name!r} is missing"
    for name, value in attributes.items():
        wrong = _fault_of(name, value)
        if wrong is not None:
            fault = fault or f"the attribute {name[:64]!r} {wrong}"
            rest.pop(name, None)
    if fault is None and rest.get("specversion") != SPEC_VERSION:
        fault = f"the attribute 'specversion' is not {SPEC_VERSION}"
    event_id, source = rest.pop("id", None), rest.pop("source", None)
    event_type = rest.pop("type", "")
    if fault is None and not data:
        raise Malformed("empty_value", "there is no data", event_id, source)
    if fault is not None or event_id is None or source is None or not data:
        raise Malformed("bad_envelope", fault or "no identity", event_id, source)
    del rest["specversion"]
    return Incoming(event_id, source, event_type, rest.pop("time", None), data, rest)
