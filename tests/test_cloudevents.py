"""The CloudEvents codec, held against the reference library in both directions."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from cloudevents.core.bindings import kafka as reference
from cloudevents.core.v1.event import CloudEvent
from hypothesis import given
from hypothesis import strategies as st

from schemas.cloudevents import (
    MAX_ATTRIBUTE,
    MAX_HEADERS,
    Incoming,
    Malformed,
    MalformedCode,
    read,
    to_headers,
)
from schemas.codes import CODES

ID = b"8c1f-1"
SOURCE = b"/teams/vision/trainer"
TYPE = b"io.gpuledger.request.submit.v1"

GOOD: dict[str, bytes | None] = {
    "ce_id": ID,
    "ce_source": SOURCE,
    "ce_type": TYPE,
    "ce_specversion": b"1.0",
    "content-type": b"application/json",
}
ENVELOPE: dict[str, Any] = {
    "specversion": "1.0",
    "id": ID.decode(),
    "source": SOURCE.decode(),
    "type": TYPE.decode(),
    "data": {"a": 1},
}
STRUCTURED = (("content-type", b"application/cloudevents+json; charset=utf-8"),)
IDENTITY = (ID.decode(), SOURCE.decode())


def headers(**changes: bytes | None) -> list[tuple[str, bytes | None]]:
    """Return good binary headers with some changed; the change None takes one away."""
    renamed = {name.replace("content_type", "content-type"): v for name, v in changes.items()}
    merged = GOOD | renamed
    return [(name, value) for name, value in merged.items() if value is not None]


def envelope(**changes: object) -> bytes:
    """Return a good structured event with some members changed."""
    return orjson.dumps(ENVELOPE | changes)


def refusal(value: bytes | None, given_headers: Any) -> Malformed:
    """Return the fault that reading the record comes to."""
    with pytest.raises(Malformed) as caught:
        read(value, given_headers)
    return caught.value


# ------------------------------------------------------------------------ by example


def test_binary_headers_are_exactly_these() -> None:
    """The wire form is fixed: names, order and bytes."""
    written = to_headers(
        {
            "id": "7",
            "source": "/ledger/dc1",
            "type": "io.gpuledger.reply.v1",
            "time": "2026-01-02T03:04:05.000006Z",
            "subject": None,
            "partitionkey": "dc1",
        }
    )

    assert written == (
        ("ce_id", b"7"),
        ("ce_source", b"/ledger/dc1"),
        ("ce_type", b"io.gpuledger.reply.v1"),
        ("ce_time", b"2026-01-02T03:04:05.000006Z"),
        ("ce_partitionkey", b"dc1"),
        ("ce_specversion", b"1.0"),
        ("content-type", b"application/json"),
    )


@pytest.mark.parametrize(
    "attributes",
    [
        {"id": "7", "source": "/s"},
        {"id": "", "source": "/s", "type": "t"},
        {"id": "7", "source": "/s", "type": "t", "Trace": "x"},
        {"id": "7", "source": "/s#1", "type": "t"},
        {"id": "7", "source": "/s", "type": "t", "subject": "two\nlines"},
        {"id": "7", "source": "/s", "type": "t", "specversion": "1.0"},
        {"id": "7", "source": "/s", "type": "t", "time": "yesterday"},
    ],
)
def test_what_could_not_be_read_is_not_written(attributes: dict[str, str | None]) -> None:
    """A writer's mistake is an error in the writer, not a dead letter later."""
    with pytest.raises(ValueError, match="attribute"):
        to_headers(attributes)


def test_a_whole_binary_record() -> None:
    """Everything that is there is read; other protocols' headers are left alone."""
    given_headers = [
        *headers(ce_time=b"2026-01-02T03:04:05+01:00", ce_subject=b"run \xc3\xa9"),
        ("traceparent", b"00-aa-bb-01"),
        ("traceparent", b"\xff"),
    ]

    assert read(b'{"a":1}', given_headers) == Incoming(
        id="8c1f-1",
        source="/teams/vision/trainer",
        type="io.gpuledger.request.submit.v1",
        time_text="2026-01-02T03:04:05+01:00",
        data_bytes=b'{"a":1}',
        extensions={"subject": "run é"},
    )


@pytest.mark.parametrize(
    "given_headers",
    [
        headers(content_type=None),
        headers(content_type=b"Application/JSON; charset=utf-8"),
        headers(content_type=b"application/vnd.example+json"),
        [(name.upper(), value) for name, value in headers()],
    ],
    ids=["no content type", "with a parameter", "a JSON format", "upper-case names"],
)
def test_binary_variants_are_taken(given_headers: list[tuple[str, bytes | None]]) -> None:
    """What the binding allows is read as the same event."""
    assert read(b"{}", headers()) == read(b"{}", given_headers)


def test_a_whole_structured_record() -> None:
    """Integers and truths become text as CloudEvents says, null means absent."""
    value = envelope(
        subject="s", sequence=7, sampled=True, dataschema=None, time="2026-01-02T03:04:05Z"
    )

    # Copies in headers are not read, whatever they say.
    incoming = read(value, [*STRUCTURED, ("ce_id", b"other"), ("ce_id", b"another")])

    assert incoming == Incoming(
        id="8c1f-1",
        source="/teams/vision/trainer",
        type="io.gpuledger.request.submit.v1",
        time_text="2026-01-02T03:04:05Z",
        data_bytes=b'{"a":1}',
        extensions={"subject": "s", "sequence": "7", "sampled": "true"},
    )


def test_structured_data_in_base64() -> None:
    """Encoded data is the decoded bytes, unread."""
    value = envelope(data=None, data_base64="eyJiIjogMn0=")

    assert read(value, STRUCTURED).data_bytes == b'{"b": 2}'


BAD_BINARY: dict[str, tuple[list[tuple[str, bytes | None]], tuple[str | None, str | None]]] = {
    "no headers": ([], (None, None)),
    "only foreign headers": ([("trace", b"1")], (None, None)),
    "no id": (headers(ce_id=None), (None, IDENTITY[1])),
    "no source": (headers(ce_source=None), (IDENTITY[0], None)),
    "no type": (headers(ce_type=None), IDENTITY),
    "no version": (headers(ce_specversion=None), IDENTITY),
    "an older version": (headers(ce_specversion=b"0.3"), IDENTITY),
    "an id of another form": (headers(ce_id=b"a/b"), (None, IDENTITY[1])),
    "an id with a line break": (headers(ce_id=b"a\n"), (None, IDENTITY[1])),
    "an id that is not UTF-8": (headers(ce_id=b"\xff"), (None, IDENTITY[1])),
    "an empty id": (headers(ce_id=b""), (None, IDENTITY[1])),
    "a null id": ([*headers(ce_id=None), ("ce_id", None)], (None, IDENTITY[1])),
    "a source with a hash": (headers(ce_source=b"/a#b"), (IDENTITY[0], None)),
    "a type with a blank": (headers(ce_type=b"a b"), IDENTITY),
    "a time of day": (headers(ce_time=b"12:00"), IDENTITY),
    "digits of another script": (headers(ce_time="٢026-01-02T03:04:05Z".encode()), IDENTITY),
    "a control character": (headers(ce_subject=b"a\x00"), IDENTITY),
    "an attribute too long": (headers(ce_subject=b"x" * (MAX_ATTRIBUTE + 1)), IDENTITY),
    "an attribute with an underscore": (headers(ce_my_name=b"x"), IDENTITY),
    "an attribute called data": (headers(ce_data=b"x"), IDENTITY),
    "the content type as an attribute": (headers(ce_datacontenttype=b"text/xml"), IDENTITY),
    "another content type": (headers(content_type=b"text/xml"), IDENTITY),
    "a batch": (headers(content_type=b"application/cloudevents-batch+json"), IDENTITY),
    "another event format": (headers(content_type=b"application/cloudevents+avro"), IDENTITY),
    "a subject twice": (
        [*headers(ce_subject=b"a"), ("ce_subject", b"a")],
        IDENTITY,
    ),
    "an id twice": ([*headers(), ("ce_id", ID)], (None, IDENTITY[1])),
    "an id thrice": ([*headers(), ("ce_id", ID), ("ce_id", ID)], (None, IDENTITY[1])),
    "an id twice, spelt differently": ([*headers(), ("CE_ID", ID)], (None, IDENTITY[1])),
    "a content type twice": ([*headers(), ("Content-Type", b"application/json")], IDENTITY),
    "too many headers": ([*headers(), *[("x", b"")] * MAX_HEADERS], IDENTITY),
}


@pytest.mark.parametrize(("given_headers", "identity"), BAD_BINARY.values(), ids=BAD_BINARY.keys())
def test_bad_binary_envelopes(
    given_headers: list[tuple[str, bytes | None]], identity: tuple[str | None, str | None]
) -> None:
    """Each is refused with one code, and keeps what can be trusted of the identity."""
    fault = refusal(b"{}", given_headers)

    assert fault.code == "bad_envelope"
    assert identity == (fault.id, fault.source)
    assert 0 < len(fault.detail) <= 300
    assert fault.detail.isprintable()


BAD_STRUCTURED: dict[str, tuple[bytes | None, MalformedCode, tuple[str | None, str | None]]] = {
    "a tombstone": (None, "empty_value", (None, None)),
    "not JSON": (b"{", "not_json", (None, None)),
    "a list": (b"[]", "not_an_object", (None, None)),
    "a name twice in the data": (
        envelope().replace(b'{"a":1}', b'{"a":1,"a":2}'),
        "duplicate_key",
        (None, None),
    ),
    "an integer out of range in the data": (
        envelope(data={"a": 2**60}),
        "number_out_of_range",
        IDENTITY,
    ),
    "data too deep": (
        envelope(data=json.loads("[" * 40 + "]" * 40)),
        "too_deep",
        IDENTITY,
    ),
    "too deep, and the id is a number": (
        envelope(data=json.loads("[" * 40 + "]" * 40), id=7),
        "too_deep",
        (None, IDENTITY[1]),
    ),
    "deeper than can be parsed": (b'{"id":"a","data":' + b"[" * 5000, "too_deep", (None, None)),
    "no id": (envelope(id=None), "bad_envelope", (None, IDENTITY[1])),
    "a list as a source": (envelope(source=["/a"]), "bad_envelope", (IDENTITY[0], None)),
    "a float": (envelope(weight=0.5), "bad_envelope", IDENTITY),
    "an empty extension": (envelope(subject=""), "bad_envelope", IDENTITY),
    "both kinds of data": (envelope(data_base64="e30="), "bad_envelope", IDENTITY),
    "not base64": (envelope(data=None, data_base64="e30=!"), "bad_envelope", IDENTITY),
    "base64 of a number": (envelope(data=None, data_base64=5), "bad_envelope", IDENTITY),
    "another content type": (envelope(datacontenttype="text/xml"), "bad_envelope", IDENTITY),
    "no data": (envelope(data=None), "empty_value", IDENTITY),
    "empty data": (envelope(data=None, data_base64=""), "empty_value", IDENTITY),
}


@pytest.mark.parametrize(
    ("value", "code", "identity"), BAD_STRUCTURED.values(), ids=BAD_STRUCTURED.keys()
)
def test_bad_structured_events(
    value: bytes | None, code: MalformedCode, identity: tuple[str | None, str | None]
) -> None:
    """The faults of the JSON keep their code; the envelope's own have one."""
    fault = refusal(value, STRUCTURED)

    assert (code, *identity) == (fault.code, fault.id, fault.source)
    assert code in CODES


@pytest.mark.parametrize("value", [None, b""])
def test_a_tombstone_is_no_event(value: bytes | None) -> None:
    """A record without data is refused, and its sender can be told."""
    fault = refusal(value, headers())

    assert ("empty_value", *IDENTITY) == (fault.code, fault.id, fault.source)


# --------------------------------------------------------------------- by the library

IDS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:@+=-]{0,40}", fullmatch=True)
SOURCES = st.from_regex(r"[!\"$-~]{1,40}", fullmatch=True)
TYPES = st.from_regex(r"[!-~]{1,40}", fullmatch=True)
VALUES = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=20)
NAMES = st.from_regex(r"[a-z0-9]{1,20}", fullmatch=True).filter(
    lambda name: (
        name not in {"id", "source", "type", "specversion", "time", "data", "datacontenttype"}
    )
)
TIMES = st.datetimes(timezones=st.just(UTC), min_value=datetime(1000, 1, 1))  # noqa: DTZ001
JSON = st.dictionaries(
    st.text(max_size=5),
    st.one_of(st.none(), st.booleans(), st.integers(-(2**53) + 1, 2**53 - 1), st.text(max_size=5)),
    max_size=4,
)
EVENTS = st.fixed_dictionaries({"id": IDS, "source": SOURCES, "type": TYPES, "time": TIMES})


def as_incoming(event: dict[str, Any], extensions: dict[str, str], data: bytes) -> Incoming:
    """Return what reading the drawn event has to come to."""
    time_text = event["time"].isoformat().replace("+00:00", "Z")
    return Incoming(event["id"], event["source"], event["type"], time_text, data, extensions)


@given(event=EVENTS, extensions=st.dictionaries(NAMES, VALUES, max_size=4), data=JSON)
def test_what_we_write_everyone_reads(
    event: dict[str, Any], extensions: dict[str, str], data: dict[str, Any]
) -> None:
    """Our headers come back from our reader and from the library's as the same event."""
    value = orjson.dumps(data)
    expected = as_incoming(event, extensions, value)
    attributes = {**event, "time": expected.time_text, **extensions}

    written = to_headers(attributes)
    theirs = reference.from_binary_event(reference.KafkaMessage(dict(written), None, value))

    assert expected == read(value, written)
    assert {
        **attributes,
        "time": event["time"],
        "specversion": "1.0",
        "datacontenttype": "application/json",
    } == theirs.get_attributes()
    assert data == theirs.get_data()


@given(
    event=EVENTS,
    extensions=st.dictionaries(NAMES, VALUES, max_size=4),
    data=JSON,
    binary=st.booleans(),
)
def test_what_the_library_writes_we_read(
    event: dict[str, Any], extensions: dict[str, str], data: dict[str, Any], *, binary: bool
) -> None:
    """Binary and structured records of the library are the event that went in."""
    write = reference.to_binary_event if binary else reference.to_structured_event

    # The library keeps and completes the dictionary that it is given: hand over a copy.
    message = write(CloudEvent({**event, **extensions}, data))
    incoming = read(message.value, message.headers.items())

    assert as_incoming(event, extensions, incoming.data_bytes) == incoming
    assert data == json.loads(incoming.data_bytes)


@given(
    value=st.one_of(st.none(), st.binary(max_size=40), JSON.map(orjson.dumps)),
    given_headers=st.lists(
        st.tuples(
            st.one_of(st.sampled_from(sorted(GOOD)), st.text(max_size=8)),
            st.one_of(st.none(), st.binary(max_size=12), st.sampled_from([*GOOD.values()])),
        ),
        max_size=10,
    ),
)
def test_any_record_comes_to_an_event_or_a_fault(
    value: bytes | None, given_headers: list[tuple[str, bytes | None]]
) -> None:
    """No record makes the reader fail in another way than with a fault."""
    try:
        incoming = read(value, given_headers)
    except Malformed as fault:
        assert fault.code in CODES  # noqa: PT017 - either outcome is right
    else:
        assert incoming.id
        assert incoming.data_bytes
