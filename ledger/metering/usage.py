"""What was used of what was held, where somebody measured it. No sample is not zero (C41).

A sample is an average over a half-open time. Its id makes it count once: the same id with
the same content again is no more (C37), with other content it is a conflict and changes
nothing; marking an id and counting its sample are one step.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["Sample", "UsageBook", "Used"]


@dataclass(frozen=True, slots=True, order=True)
class Sample:
    """So many thousandths of a device were busy for a lease, on average from start to end."""

    start_us: int
    end_us: int
    used_milli: int
    id: str = ""


class Used(NamedTuple):
    """What was measured: thousandths x µs in use, and for how long there are samples at all.

    ``milli_us`` is None when there are none: unknown, never 0.
    """

    milli_us: int | None
    measured_us: int


@dataclass(slots=True)
class UsageBook:
    """Samples by lease and unit. ``conflicts`` are the ids that came with two contents."""

    conflicts: list[str] = field(default_factory=list)
    _seen: dict[str, tuple[str, str, Sample]] = field(default_factory=dict)
    _samples: dict[tuple[str, str], list[Sample]] = field(default_factory=dict)

    def add(self, lease: str, unit: str, sample: Sample) -> str:
        """Count a sample; return ``counted``, ``duplicate`` or ``conflict``.

        A sample that overlaps another of the same unit is a conflict too: no time is
        measured twice.
        """
        what = (lease, unit, sample)
        known = self._seen.get(sample.id)
        if known is not None:
            if known == what:
                return "duplicate"
            self.conflicts.append(sample.id)
            return "conflict"
        there = self._samples.setdefault((lease, unit), [])
        at = bisect_left(there, sample)
        before, after = there[max(at - 1, 0) : at], there[at : at + 1]
        if any(one.end_us > sample.start_us for one in before) or any(
            one.start_us < sample.end_us for one in after
        ):
            self.conflicts.append(sample.id)
            return "conflict"
        self._seen[sample.id] = what
        insort(there, sample)
        return "counted"

    def used(self, lease: str, unit: str, start_us: int, end_us: int) -> Used:
        """Return what was measured of a unit of a lease in a half-open time."""
        total, measured_us = 0, 0
        for one in self._samples.get((lease, unit), ()):
            overlap_us = min(one.end_us, end_us) - max(one.start_us, start_us)
            if overlap_us > 0:
                total += one.used_milli * overlap_us
                measured_us += overlap_us
        return Used(total if measured_us else None, measured_us)
