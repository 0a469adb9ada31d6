"""Strict JSON: the fast path and the slow path accept and refuse the same bytes."""

from __future__ import annotations

import json
from typing import Any, get_args

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from schemas import strict_json
from schemas.base import MAX_INT
from schemas.strict_json import MAX_BYTES, MAX_DEPTH, JsonCode, JsonFault, loads_strict


def nested(depth: int, opening: str = '{"a":', closing: str = "}") -> bytes:
    """Return an object of exactly ``depth`` levels, the outermost being level 1."""
    return (opening * (depth - 1) + "{}" + closing * (depth - 1)).encode()


ACCEPTED = {
    "an empty object": b"{}",
    "white space everywhere": b' {\t"a" \n:\r 1 , "b" : [ ] } ',
    "the same name in two objects": b'{"a":{"x":1},"b":{"x":2}}',
    "a string that looks like a name": b'{"a":"\\":1","b":": 2","c":" :","d":[":",":"]}',
    "the largest integers": b'{"a":9007199254740991,"b":-9007199254740991}',
    "a long number in a string": b'{"a":"99999999999999999999999"}',
    "a float is not an integer": b'{"a":0.12345678901234567890,"b":1e300}',
    "names that differ by an escape's case": b'{"\\u00e9":1,"\\u00c9":2}',
    "as deep as may be": nested(MAX_DEPTH),
    "wide, with many brackets": b'{"a":[' + b",".join([b"[]"] * 200) + b"]}",
}

REFUSED: dict[str, tuple[bytes | None, JsonCode]] = {
    "no value, a tombstone": (None, "empty_value"),
    "an empty value": (b"", "empty_value"),
    "one byte too many": (b'{"a":"' + b"x" * (MAX_BYTES - 7) + b'"}', "too_large"),
    "latin-1": (b'{"a":"\xe9"}', "not_utf8"),
    "utf-16": ('{"a":1}'.encode("utf-16"), "not_utf8"),
    "a byte order mark": (b'\xef\xbb\xbf{"a":1}', "not_json"),
    "blanks": (b"  ", "not_json"),
    "cut off": (b'{"a":1', "not_json"),
    "two values": (b'{"a":1}{"a":1}', "not_json"),
    "a trailing comma": (b'{"a":1,}', "not_json"),
    "not a number": (b'{"a":NaN}', "not_json"),
    "a lone surrogate": (b'{"a":"\\ud800"}', "not_json"),
    "an array": (b"[1]", "not_an_object"),
    "a string": (b'"a"', "not_an_object"),
    "a number": (b"1", "not_an_object"),
    "a float": (b"1.5", "not_an_object"),
    "a truth": (b"true", "not_an_object"),
    "null": (b"null", "not_an_object"),
    "a name twice": (b'{"a":1,"a":1}', "duplicate_key"),
    "a name twice, further in": (b'{"z":[{"a":1,"b":2,"a":3}]}', "duplicate_key"),
    "a name twice, spelt differently": (b'{"a":1,"\\u0061":2}', "duplicate_key"),
    "a name twice, a blank before one colon": (b'{"a":1,"a" :2}', "duplicate_key"),
    "a name twice, and a string like a name": (b'{"a":":","a":":"}', "duplicate_key"),
    "an integer that doubles cannot hold": (b'{"a":9007199254740992}', "number_out_of_range"),
    "its negative": (b'{"a":-9007199254740992}', "number_out_of_range"),
    "beyond 64 bits": (b'{"a":[18446744073709551616]}', "number_out_of_range"),
    "five thousand digits": (b'{"a":-' + b"1" * 5000 + b"}", "number_out_of_range"),
    "a float beyond doubles": (b'{"a":1e400}', "number_out_of_range"),
    "one level too deep": (nested(MAX_DEPTH + 1), "too_deep"),
    "one level too deep, by arrays": (
        b'{"a":' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}",
        "too_deep",
    ),
    "deeper than the parser goes": (nested(5000), "too_deep"),
}


@pytest.mark.parametrize("raw", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_accepted(raw: bytes) -> None:
    """What no reader can misunderstand is read as the standard library reads it."""
    assert json.loads(raw) == loads_strict(raw)


@pytest.mark.parametrize(("raw", "code"), REFUSED.values(), ids=REFUSED.keys())
def test_refused(raw: bytes | None, code: JsonCode) -> None:
    """Each fault has its code, and a detail that is short enough to log."""
    with pytest.raises(JsonFault) as caught:
        loads_strict(raw)

    assert code == caught.value.code
    assert 0 < len(caught.value.detail) <= 300


def test_every_code_has_a_case() -> None:
    """No code is listed without an input that brings it about."""
    assert set(get_args(JsonCode)) == {code for _, code in REFUSED.values()}


def test_the_limit_is_the_callers_to_lower() -> None:
    """A caller's limit counts bytes of the value; the limit itself is still accepted."""
    assert {"a": 1} == loads_strict(b'{"a":1}', limit_bytes=7)

    with pytest.raises(JsonFault, match="too_large: 7 bytes; the limit is 6"):
        loads_strict(b'{"a":1}', limit_bytes=6)


def test_many_names_cost_linear_time() -> None:
    """Half a megabyte of distinct names before a repeated one is refused at once."""
    raw = b'{"' + b'":0,"'.join(b"%06x" % number for number in range(70_000)) + b'":0,"000000":0}'

    with pytest.raises(JsonFault, match="duplicate_key"):
        loads_strict(raw)


def reference(raw: bytes) -> dict[str, Any]:
    """Read with the slow path only: what the fast path has to agree with."""
    value = orjson.loads(raw)
    assert isinstance(value, dict)
    strict_json._check_depth(value)
    strict_json._check_slowly(raw)
    return value


def outcome(raw: bytes, *, slowly: bool) -> tuple[str, object]:
    """Return what reading ``raw`` comes to, a value or a code, for comparison."""
    try:
        return "value", reference(raw) if slowly else loads_strict(raw)
    except JsonFault as fault:
        return "fault", fault.code


# Few and hostile letters, so that repeated names and look-alikes are common.
TEXT = st.text(st.sampled_from('ab": \\,{}[]é\t'), max_size=4)
BLANK = st.sampled_from(["", "", " ", "\n\t"])
SCALAR = st.one_of(
    TEXT.map(json.dumps),
    TEXT.map(lambda text: json.dumps(text, ensure_ascii=False)),
    st.integers(-MAX_INT - 2, MAX_INT + 2).map(str),
    st.integers().map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.sampled_from(["null", "true", "false"]),
)


def _object(members: list[tuple[str, str, str, str]]) -> str:
    """Write an object as given: names may repeat, blanks are where they are."""
    return "{" + ",".join(f"{a}{name}{b}:{value}" for a, name, b, value in members) + "}"


OBJECT: st.SearchStrategy[str] = st.deferred(
    lambda: st.lists(
        st.tuples(BLANK, TEXT.map(json.dumps), BLANK, VALUE),
        max_size=4,
    ).map(_object)
)
VALUE: st.SearchStrategy[str] = st.deferred(
    lambda: st.one_of(
        SCALAR,
        OBJECT,
        st.lists(VALUE, max_size=3).map(lambda items: "[" + ", ".join(items) + "]"),
    )
)


@given(text=OBJECT)
@example(text='{"a":":","a":":"}')
@example(text='{"a" :1,"b":{"a":2,"a" :3}}')
def test_the_fast_path_agrees_with_the_slow_one(text: str) -> None:
    """Whatever is written, skipping the second parse never changes the outcome."""
    raw = text.encode()

    assert outcome(raw, slowly=True) == outcome(raw, slowly=False)


@given(raw=st.binary(max_size=64))
def test_any_bytes_come_to_an_object_or_a_fault(raw: bytes) -> None:
    """No input makes the reader fail in another way than with a fault."""
    kind, _ = outcome(raw, slowly=False)

    assert kind in {"value", "fault"}


@given(
    value=st.dictionaries(
        st.text(max_size=5),
        st.recursive(
            st.one_of(st.integers(-MAX_INT, MAX_INT), st.text(max_size=5), st.booleans()),
            lambda children: st.dictionaries(st.text(max_size=5), children, max_size=3),
            max_leaves=10,
        ),
        max_size=5,
    )
)
def test_what_we_write_we_read(value: dict[str, Any]) -> None:
    """Every object of ours is read back as it was."""
    assert value == loads_strict(orjson.dumps(value))
