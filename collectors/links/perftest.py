"""What ``ib_send_lat`` and ``ib_write_bw`` of perftest print, read. Pure.

Latency is what perftest calls it, half of a round trip: the median and the 99th percentile of
the smallest message. Bandwidth is the average of the largest message. Nothing is made better
than it is: microseconds round up and Mb/s down, and perftest's MB is read as 10^6 bytes.
"""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, InvalidOperation
from typing import NamedTuple

__all__ = ["BadOutput", "Bandwidth", "Latency", "read_perftest"]


#: A column is ``#name``, or a name with its unit behind it; a name may have blanks in it.
_COLUMN = re.compile(r"#\w+|[^\s\[#][^\[#]*\[[^\]]*\]")

#: How many Mb/s one of the unit is.
_MBPS = {"MB/sec": Decimal(8), "Gb/sec": Decimal(1000), "MiB/sec": Decimal("8.388608")}
_P50, _P99 = "t_typical[usec]", "99% percentile[usec]"
_AVERAGE = re.compile(r"BW average\[([^\]]+)\]")


class BadOutput(ValueError):
    """The text is no output of perftest, or lacks what is to be read."""


class Latency(NamedTuple):
    """Half of a round trip (us), rounded up."""

    p50_us: int
    p99_us: int


class Bandwidth(NamedTuple):
    """Mb/s, rounded down."""

    mbps: int


def read_perftest(text: str) -> Latency | Bandwidth:
    """Read one run; raise `BadOutput` with what is missing."""
    lines = text.splitlines()
    at = next((at for at, line in enumerate(lines) if line.strip().startswith("#bytes")), None)
    if at is None:
        raise BadOutput("there is no line that begins with '#bytes': is this perftest's output?")
    rows = [row for row in map(_numbers, lines[at + 1 :]) if row]
    if not rows:
        raise BadOutput("there are no results below '#bytes': the run did not end")
    columns = _columns(lines[at])
    average = next((one for one in columns if _AVERAGE.fullmatch(one)), None)
    if average is not None:
        return _bandwidth(columns, average, max(rows, key=lambda row: row[0]))
    if _P99 in columns and _P50 in columns:
        row = min(rows, key=lambda row: row[0])
        p50, p99 = (_at(columns, name, row) for name in (_P50, _P99))
        return Latency(*(int(one.to_integral_value(ROUND_CEILING)) for one in (p50, p99)))
    raise BadOutput(
        f"neither '{_P99}' nor 'BW average' is there: latency by percentiles needs a run by"
        " iterations (-n), not by duration (-D)"
    )


def _bandwidth(columns: list[str], average: str, row: list[Decimal]) -> Bandwidth:
    match = _AVERAGE.fullmatch(average)
    assert match is not None, "it was found by that"
    unit = match[1]
    if unit not in _MBPS:
        raise BadOutput(f"the unit of '{average}' is none of {', '.join(_MBPS)}")
    mbps = _at(columns, average, row) * _MBPS[unit]
    return Bandwidth(int(mbps.to_integral_value(ROUND_FLOOR)))


def _columns(line: str) -> list[str]:
    return _COLUMN.findall(line)


def _numbers(line: str) -> list[Decimal]:
    """Return the numbers of a row; nothing for a line that is none."""
    try:
        return [Decimal(one) for one in line.split()]
    except InvalidOperation:
        return []


def _at(columns: list[str], name: str, row: list[Decimal]) -> Decimal:
    at = columns.index(name)
    if at >= len(row) or not row[at].is_finite():
        raise BadOutput(f"a row has no '{name}'")
    return row[at]
