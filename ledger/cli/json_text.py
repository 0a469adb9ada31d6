"""One line of JSON, whatever the size of its integers."""

from __future__ import annotations

from typing import Any

import orjson

__all__ = ["json_text"]

_BITS = 63


def json_text(plain: object) -> str:
    """Return a value as JSON; integers have all of their digits, what JSON has no form for is text.

    Sums of a large site take more than 64 bits, which orjson refuses: a month of 8,000 devices
    in thousandths x microseconds, of a hundred in MiB x microseconds.
    """
    try:
        return _dumped(plain)
    except TypeError:
        return _dumped(_written_out(plain))


def _dumped(plain: object) -> str:
    return orjson.dumps(plain, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def _written_out(value: object) -> Any:  # noqa: ANN401 - whatever there is to print
    if isinstance(value, dict):
        return {name: _written_out(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_written_out(one) for one in value]
    if isinstance(value, int) and value.bit_length() > _BITS:
        return orjson.Fragment(str(value))
    return value
