"""From a log to rows: one pass over each partition, what has become certain handed on at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ledger.core.fold import Fold
from ledger.metering.meter import Meter
from ledger.reading import read_events
from schemas.topics import full_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ledger.log.port import Log
    from ledger.metering.rows import Ended, Row
    from ledger.metering.usage import UsageBook
    from ledger.reading import Upto

__all__ = ["PartitionMeter", "meter_log"]


class PartitionMeter:
    """The meters of one partition's cells. Records are given to `take` in order.

    ``fold`` is what they follow; whoever feeds the meter lets it take each record in first.
    Until the partition's last record everything is known, in all its cells: whoever writes
    it decides for all of them.
    """

    def __init__(self) -> None:
        """Start before the first record."""
        self.fold = Fold().reading()
        self.first_us: int | None = None
        self._meters: dict[str, Meter] = {}

    @property
    def known_us(self) -> int:
        """Return the time of the last effective record, 0 before the first."""
        return self.fold.head.time_us

    def apply(self, offset: int, value: bytes | None) -> list[Row | Ended]:
        """Fold one record and follow it; raise `ledger.core.fold.LogDamaged` as the fold does."""
        return self.take(*self.fold.apply(offset, value))

    def take(self, verdict: str, record: dict[str, Any]) -> list[Row | Ended]:
        """Follow a record that the fold has taken in; void records have no effect."""
        if verdict != "effective":
            return []
        if self.first_us is None:
            self.first_us = record["time_us"]
        cell = record["cell"]
        meter = self._meters.get(cell)
        if meter is None:
            meter = self._meters[cell] = Meter(cell)
        meter.take(self.fold.cells[cell], record)
        return meter.drain()

    def cut(self, at_us: int) -> list[Row | Ended]:
        """Return rows for everything that still runs, up to ``at_us``; it changes no sum."""
        out = []
        for meter in self._meters.values():
            meter.cut(at_us)
            out += meter.drain()
        return out

    def beyond(self, until_us: int) -> Iterator[Row]:
        """Yield the time after the last record as unknown; `cut` at ``known_us`` before."""
        for meter in self._meters.values():
            yield from meter.beyond(self.known_us, until_us)


async def meter_log(
    log: Log,
    prefix: str,
    take: Callable[[Row | Ended], None],
    *,
    upto: Upto | None = None,
    progress: Callable[[int, int], None] | None = None,
    usage: UsageBook | None = None,
) -> list[PartitionMeter]:
    """Give all rows of a log to ``take``, up to its last record; return the partitions' meters.

    ``usage`` learns of each slice before a row of it is given.

    Raise as `ledger.reading.read_events` does: a log with a hole is not metered past it.
    """
    topic = full_name(prefix, "events")
    numbers = range(await log.partitions(topic))
    total = sum([await log.end(topic, number) for number in numbers])
    done, meters = 0, []
    for number in numbers:
        meter = PartitionMeter()
        meters.append(meter)
        async for seen in read_events(log, prefix, number, meter.fold, upto):
            done += 1
            if usage is not None and seen.verdict == "effective":
                usage.note(seen.data)
            for one in meter.take(seen.verdict, seen.data):
                take(one)
            if progress is not None and done % _EVERY == 0:
                progress(done, total)
        for one in meter.cut(meter.known_us):
            take(one)
    if progress is not None:
        progress(total, total)
    return meters


#: Records between two words on how far it is.
_EVERY = 5000
