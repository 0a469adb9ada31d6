"""The cells of a report: a value in its unit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.amounts import (
    decimal,
    duration_text,
    gib_hours,
    gpu_hours,
    mib_text,
    money,
    per_cent,
    time_text,
)
from ledger.wording import listed

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["UNITS", "amount_text", "hours_text"]


def hours_text(milli_us: int) -> str:
    """Return capacity x time in GPU-hours, with its unit."""
    return f"{gpu_hours(milli_us)} GPU-h"


UNITS: dict[str, Callable[[int], str]] = {
    "count": lambda value: f"{value:,}",
    "milli": lambda value: f"{decimal(value, 1000, 3)} GPUs",
    "milli_us": hours_text,
    "mib_us": lambda value: f"{gib_hours(value)} GiB-h",
    "us": duration_text,
    "time_us": time_text,
    "mib": mib_text,
    # Whose currency is told by the report.
    "nanos": money,
    "permyriad": per_cent,
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
