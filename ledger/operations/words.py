"""Amounts as people read them: the only place where integers are rounded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.metering.rows import GPU_HOUR_MILLI_US
from ledger.wording import listed, time_text

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["UNITS", "amount_text", "duration_text", "hours_text", "money_text", "share_text"]

_S_US = 1_000_000
_NANO = 1_000_000_000
#: Unit of time -> seconds of it, the largest first.
_SIZES = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def _decimal(amount: int, one: int, digits: int) -> str:
    """Return an amount in units of ``one`` with so many digits, rounded to the nearest."""
    scale: int = 10**digits
    rounded = (2 * abs(amount) * scale + one) // (2 * one)
    sign = "-" if amount < 0 and rounded else ""
    whole, rest = divmod(rounded, scale)
    return f"{sign}{whole:,}.{rest:0{digits}d}"


def hours_text(milli_us: int) -> str:
    """Return capacity x time in GPU-hours."""
    return f"{_decimal(milli_us, GPU_HOUR_MILLI_US, 2)} GPU-h"


def money_text(nanos: int) -> str:
    """Return thousand-millionths of a currency with two digits; whose is told by the report."""
    return _decimal(nanos, _NANO, 2)


def duration_text(duration_us: int) -> str:
    """Return a duration in its two largest units; below a minute in seconds."""
    sign, seconds = ("-" if duration_us < 0 else ""), abs(duration_us) // _S_US
    for at, (name, size) in enumerate(_SIZES[:-1]):
        if seconds >= size:
            smaller, small = _SIZES[at + 1]
            return f"{sign}{seconds // size} {name} {seconds % size // small} {smaller}"
    return f"{sign}{_decimal(abs(duration_us), _S_US, 3)} s"


def share_text(permyriad: int | None) -> str:
    """Return ten-thousandths as per cent; a dash where there is nothing to be a part of."""
    return "-" if permyriad is None else f"{_decimal(permyriad, 100, 2)} %"


UNITS: dict[str, Callable[[int], str]] = {
    "count": lambda value: f"{value:,}",
    "milli": lambda value: f"{_decimal(value, 1000, 3)} GPUs",
    "milli_us": hours_text,
    "us": duration_text,
    "time_us": time_text,
    "mib": lambda value: f"{value:,} MiB",
    "nanos": money_text,
    "permyriad": share_text,
}


def amount_text(value: object, unit: str) -> str:
    """Return a value in its unit; what is missing is a dash, never 0."""
    if value is None:
        return "-"
    if isinstance(value, (list, tuple)):
        return listed([str(one) for one in value], 4)
    if isinstance(value, int) and unit in UNITS:
        return UNITS[unit](value)
    return str(value)
