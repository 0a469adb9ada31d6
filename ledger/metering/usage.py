"""What was used of what was held, where somebody measured it. No sample is not zero (C41).

Used is one of four numbers, beside requested, reserved and delivered: how much of what was
delivered did anything. A sample is an average over a half-open time. Its id makes it count
once: the same id with the same content again is no more (C37), with other content it is a
conflict and changes nothing; marking an id and counting its sample are one step.

`read_usage` makes samples of what nodes put on ``gpuledger.usage``. When a window was is told
by the log's time of its record, how long it was by the node's steady clock (C43); where two of
a unit would overlap by the delay of an append, the later one is cut.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError

from ledger.log.port import UnknownTopic
from schemas.catalogue import adapter, wire_type
from schemas.topics import full_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ledger.log.port import Log, Record
    from schemas.usage import NodeUsage

__all__ = ["Sample", "UsageBook", "Used", "read_usage"]

_READ = 1000
_WHOLE_MILLI = 1000


@dataclass(frozen=True, slots=True, order=True)
class Sample:
    """So many thousandths of a unit were busy for a lease, on average from start to end."""

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
    """Samples by lease and unit. ``conflicts`` are the ids that came with two contents.

    A unit is a device's UUID, or that of a MIG device: `note` learns which slice it was.
    """

    conflicts: list[str] = field(default_factory=list)
    _seen: dict[str, tuple[str, str, Sample]] = field(default_factory=dict)
    _samples: dict[tuple[str, str], list[Sample]] = field(default_factory=dict)
    _units: dict[str, str] = field(default_factory=dict)

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

    def note(self, record: Mapping[str, Any]) -> None:
        """Learn from a decision which slice a MIG device is; their UUIDs come back."""
        for event in record.get("events", ()):
            if event["type"] == "slice.present":
                self._units[event["slice"]] = event["mig_uuid"]

    def used(
        self, lease: str, unit: str, start_us: int, end_us: int, unit_milli: int = _WHOLE_MILLI
    ) -> Used:
        """Return what was measured of a unit of a lease in a half-open time.

        ``unit_milli`` is how much of a device the unit is: a slice's part.
        """
        there = self._samples.get((lease, self._units.get(unit, unit)), [])
        first = bisect_right(there, start_us, key=lambda one: one.end_us)
        total, measured_us = 0, 0
        for one in there[first:]:
            if one.start_us >= end_us:
                break
            overlap_us = min(one.end_us, end_us) - max(one.start_us, start_us)
            total += one.used_milli * overlap_us
            measured_us += overlap_us
        used = total * unit_milli // _WHOLE_MILLI
        return Used(used if measured_us else None, measured_us)


async def read_usage(log: Log, prefix: str) -> UsageBook:
    """Return the samples of a log's usage topic; a log without that topic has none.

    Records that are none of ours, or that came twice, are left out.
    """
    topic = full_name(prefix, "usage")
    book = UsageBook()
    try:
        count = await log.partitions(topic)
    except UnknownTopic:
        return book
    seen: dict[tuple[str, str], bytes] = {}  # the digest: a month has a quarter of a million
    last: dict[tuple[str, str], int] = {}
    for number in range(count):
        position, end = await log.begin(topic, number), await log.end(topic, number)
        while position < end:
            records = await log.read(topic, number, position, min(_READ, end - position), 1.0)
            if not records:
                break
            for record in records:
                _take(book, record, seen, last)
            position = records[-1].offset + 1
    return book


def _take(
    book: UsageBook,
    record: Record,
    seen: dict[tuple[str, str], bytes],
    last: dict[tuple[str, str], int],
) -> None:
    headers = dict(record.headers)
    if headers.get("ce_type", b"").decode(errors="replace") != wire_type("node.usage"):
        return
    name = (
        headers.get("ce_source", b"").decode(errors="replace"),
        headers.get("ce_id", b"").decode(errors="replace"),
    )
    value = record.value or b""
    digest = sha256(value).digest()
    if name in seen:
        if seen[name] != digest:
            book.conflicts.append("#".join(name))
        return
    seen[name] = digest
    try:
        window: NodeUsage = adapter("node.usage", 1).validate_json(value)
    except ValidationError:
        return
    for one in window.leases:
        unit = (one.lease, one.unit)
        start_us = max(record.time_us - one.measured_us, last.get(unit, 0))
        if start_us < record.time_us:
            last[unit] = record.time_us
            sample = Sample(
                start_us, record.time_us, one.busy_permille, f"{'#'.join(name)} {one.unit}"
            )
            book.add(*unit, sample)
