"""Percentiles by nearest rank: each is a value that was there."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable

__all__ = ["percentile", "time_percentile"]


def percentile(values: Iterable[int], per_cent: int) -> int | None:
    """Return the value that so many per cent do not exceed; None of none."""
    ordered = sorted(values)
    return ordered[max(-(-len(ordered) * per_cent // 100), 1) - 1] if ordered else None


def time_percentile(times: Counter[int], per_cent: int) -> int | None:
    """Return the value that was not exceeded for so much of the time; None of no time."""
    total, passed = times.total(), 0
    for value in sorted(times):
        passed += times[value]
        if passed * 100 >= total * per_cent and times[value] > 0:
            return value
    return None
