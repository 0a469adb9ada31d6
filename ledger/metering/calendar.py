"""Months and days of a place, as half-open spans of UTC: an input to reports, never to the log.

A month in Europe/Berlin has 743 hours in March and 745 in October. Neighbours share a bound,
so no instant is in two of them or in none.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

if TYPE_CHECKING:
    from datetime import tzinfo

__all__ = ["BadTime", "Period", "months", "span_of", "zone_of"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MONTH = re.compile(r"(\d{4})-(\d{2})")
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")


class BadTime(ValueError):
    """A zone that nobody knows, or a text that is no month, day or time."""


class Period(NamedTuple):
    """A span of time with a name: from ``start_us`` until before ``end_us`` (UTC, µs)."""

    name: str
    start_us: int
    end_us: int


def zone_of(name: str) -> tzinfo:
    """Return a time zone by its name in the tz database; raise `BadTime` for another."""
    if name in ("UTC", "Z"):
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise BadTime(f"no time zone is called {name!r}: give a name as Europe/Berlin") from None


def _us(when: datetime) -> int:
    # Not astimezone(): the first day of the year 1 in the east is none in UTC.
    return (when - _EPOCH) // timedelta(microseconds=1)


def _month(year: int, month: int, zone: tzinfo) -> Period:
    after = (year + month // 12, month % 12 + 1)
    bounds = [_us(datetime(*one, 1, tzinfo=zone)) for one in ((year, month), after)]
    return Period(f"{year:04d}-{month:02d}", *bounds)


def span_of(text: str, zone: tzinfo) -> Period:
    """Return what a text means at a place: a month, a day, or one instant (RFC 3339).

    ``2026-03`` and ``2026-03-29`` are whole, as the clocks there had them; a time without
    an offset is that of the place. Raise `BadTime` for anything else.
    """
    try:
        match = _MONTH.fullmatch(text)
        if match is not None:
            return _month(int(match[1]), int(match[2]), zone)
        when = datetime.fromisoformat(text)
        if _DAY.fullmatch(text):
            day, after = when.replace(tzinfo=zone), (when + timedelta(days=1)).replace(tzinfo=zone)
            return Period(text, _us(day), _us(after))
    except (ValueError, OverflowError):
        raise BadTime(
            f"{text!r} is no month (2026-03), day (2026-03-29) or time (2026-03-29T12:00:00Z)"
        ) from None
    at_us = _us(when if when.tzinfo is not None else when.replace(tzinfo=zone))
    return Period(text, at_us, at_us)


def months(first_us: int, last_us: int, zone: tzinfo) -> list[Period]:
    """Return the months of a place from that of ``first_us`` to that of ``last_us``."""
    when = (_EPOCH + timedelta(microseconds=first_us)).astimezone(zone)
    found = [_month(when.year, when.month, zone)]
    while found[-1].end_us <= last_us:
        year, month = map(int, found[-1].name.split("-"))
        found.append(_month(year + month // 12, month % 12 + 1, zone))
    return found
