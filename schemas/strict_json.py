"""JSON as the ledger accepts it: one reading, the same for every reader.

RFC 8259 leaves open what a name that occurs twice in an object means, how large an
integer may be and how deep a value may nest, and readers differ. A record that two
readers understand differently cannot be evidence, so such input is a fault here and
never enters the ledger.

Theory of operation. orjson does the parsing, and is silent about two of those: of a
repeated name it keeps the last value, and an integer beyond 64 bits it turns into a
float. Looking for both in plain Python costs ten times the parsing, so cheap tests that
can only err on the side of suspicion come first, and only suspects are parsed again by
the standard library, with a hook that sees every name and every integer.

- Names: the value written out again has each name once. If that text is the input, no
  name was lost. Otherwise, where there is neither a backslash nor a blank between a quote
  and a colon, each ``":`` ends a name or starts a string such as ``":x"``; a lost name
  takes at least one of them along, so equal numbers on both sides mean that none was lost.
- Integers: the least integer that is out of range has 16 digits, so a text without 16
  digits in a row has none.
- Depth: a text with few opening brackets is not deep.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any, Literal, NoReturn

import orjson

from schemas.base import MAX_INT

__all__ = ["MAX_BYTES", "MAX_DEPTH", "JsonCode", "JsonFault", "loads_strict", "read_strict"]

#: The largest value in bytes: a little below the 1 MiB that a Kafka broker takes by default.
MAX_BYTES = 1_000_000

#: How deep objects and arrays may nest; the outermost object is 1. No record type needs 10.
MAX_DEPTH = 32

#: How much of a library's message is kept in a fault's detail, in characters.
_MAX_DETAIL = 200

JsonCode = Literal[
    "empty_value",
    "too_large",
    "not_utf8",
    "not_json",
    "not_an_object",
    "too_deep",
    "duplicate_key",
    "number_out_of_range",
]

_find_blank_before_colon = re.compile(rb'"\s+:').search

#: Maps every digit to "0" and every other byte to a blank.
_DIGITS = bytes(0x30 if 0x30 <= byte <= 0x39 else 0x20 for byte in range(256))  # noqa: PLR2004
_LONG_NUMBER = b"0" * len(str(MAX_INT))


class JsonFault(Exception):
    """The bytes are not JSON that the ledger accepts.

    ``code`` is stable and for machines, ``detail`` is for people and never repeats the
    input beyond a name.
    """

    def __init__(self, code: JsonCode, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code: JsonCode = code
        self.detail = detail


def loads_strict(raw: bytes | None, *, limit_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """Read one JSON object; raise `JsonFault` for whatever readers could disagree about.

    ``None`` (a Kafka record without a value) is ``empty_value``. Of several faults one is
    told, always the same for the same bytes.
    """
    return read_strict(raw, limit_bytes=limit_bytes)[0]


def read_strict(raw: bytes | None, *, limit_bytes: int = MAX_BYTES) -> tuple[dict[str, Any], bytes]:
    """Read as `loads_strict` does; return the object and its compact text.

    The text has no blanks between tokens and the members in the order they had.
    """
    if not raw:
        raise JsonFault("empty_value", "there is no value")
    if len(raw) > limit_bytes:
        raise JsonFault("too_large", f"{len(raw)} bytes; the limit is {limit_bytes}")
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        _raise_unreadable(raw, error)
    if not isinstance(value, dict):
        raise JsonFault("not_an_object", f"the value is of JSON type {_json_type(value)}")
    if raw.count(b"{") + raw.count(b"[") > MAX_DEPTH:
        _check_depth(value)
    written = orjson.dumps(value)
    if _LONG_NUMBER in raw.translate(_DIGITS) or not _names_are_unique(raw, written):
        _check_slowly(raw)
    return value, written


def _raise_unreadable(raw: bytes, error: orjson.JSONDecodeError) -> NoReturn:
    """Say why orjson gave up. Its two named limits are told apart by its message only."""
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as encoding_error:
        detail = f"{encoding_error.reason} at byte {encoding_error.start}"
        raise JsonFault("not_utf8", detail) from None
    message = str(error)[:_MAX_DETAIL]
    if "depth limit" in message:
        raise JsonFault("too_deep", message) from None
    if "infinity" in message:
        raise JsonFault("number_out_of_range", message) from None
    raise JsonFault("not_json", message) from None


def _json_type(value: object) -> str:
    """Name a non-object value by its JSON type."""
    if value is None:
        return "null"
    names = {list: "array", str: "string", bool: "boolean", int: "number", float: "number"}
    return names[type(value)]


def _check_depth(value: dict[str, Any]) -> None:
    """Raise when ``value`` nests deeper than `MAX_DEPTH`. Goes level by level, no recursion."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for container in level:
            children = container.values() if isinstance(container, dict) else container
            below += [child for child in children if isinstance(child, (dict, list))]
        if not below:
            return
        level = below
    raise JsonFault("too_deep", f"objects and arrays nest deeper than {MAX_DEPTH}")


def _names_are_unique(raw: bytes, written: bytes) -> bool:
    """Return True only when no object in ``raw`` repeats a name; False means "perhaps not"."""
    if raw == written:
        return True
    return (
        b"\\" not in raw
        and _find_blank_before_colon(raw) is None
        and raw.count(b'":') == written.count(b'":')
    )


def _check_slowly(raw: bytes) -> None:
    """Parse again and raise for a repeated name or an integer beyond `MAX_INT`.

    ``raw`` has been parsed by orjson before, so it is valid and not deep.
    """
    json.loads(
        raw.decode("utf-8"),
        object_pairs_hook=_object_of_unique_names,
        parse_int=_integer_in_range,
    )


def _object_of_unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object from its members; raise `JsonFault` when a name comes twice."""
    members = dict(pairs)
    if len(members) != len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise JsonFault("duplicate_key", f"the name {twice[:64]!r} occurs more than once")
    return members


def _integer_in_range(digits: str) -> int:
    """Convert an integer; raise `JsonFault` where readers that use doubles would round it."""
    # The length is looked at first: converting thousands of digits is slow, or refused.
    if len(digits.lstrip("-")) > len(_LONG_NUMBER) or abs(int(digits)) > MAX_INT:
        raise JsonFault("number_out_of_range", f"an integer is beyond {MAX_INT} (2^53 - 1)")
    return int(digits)
