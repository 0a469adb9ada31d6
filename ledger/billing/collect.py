"""From a log to the charges of a month: its own, and corrections of months that are closed.

Months are those of UTC. A month closes as in metering (`ledger.metering.periods`): at one
place of the log, for good. What is learnt later of it is billed with the month that is open
then: the charges that it changes are taken back and made anew.

One pass keeps the rows of the month that is asked for. Only where it has late facts of
closed months, a second one keeps the rows of the devices that they are about.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from datetime import UTC
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ledger.billing.charges import device_charges, differences
from ledger.billing.reserved import Reservations, mark_unused
from ledger.billing.seconds import TILES
from ledger.metering.calendar import months
from ledger.metering.periods import GRACE_US, Book
from ledger.metering.rows import Ended, Row, clip
from ledger.metering.stream import PartitionMeter
from ledger.reading import Upto, read_events
from schemas.topics import full_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ledger.billing.charges import Origin, Tariff
    from ledger.billing.reserved import ByDevice
    from ledger.core.state import State
    from ledger.log.port import Log
    from ledger.metering.calendar import Period

__all__ = ["Bill", "Collector", "Metered", "bill_of", "meter_log", "month_bill"]

#: (month that the rows are about, cell, device).
About: TypeAlias = tuple[str, str, str]
Rows: TypeAlias = "dict[About, list[tuple[str, Row]]]"


@dataclass(slots=True)
class Bill:
    """The charges of one month.

    ``state`` is that of the least settled partition: open, closing or closed. ``known_us``
    is until when everything is known, ``ends`` the offset after the last record that was
    read, by partition, ``checkpoints`` those that the log was proved by, by origin: how
    many records they cover (U4).
    """

    month: Period
    origins: list[Origin] = field(default_factory=list)
    state: str = "closed"
    known_us: int = 0
    ends: dict[int, int] = field(default_factory=dict)
    checkpoints: dict[str, int] = field(default_factory=dict)


class Collector(Book):
    """Keeps rows by the month in which they are issued: one that closed issues in a later one.

    ``month`` is the one whose bill is made. ``wanted`` are the devices of earlier months
    of which rows are kept; ``late`` those of which the month has corrections. ``reserved``
    is what the records say of reservations.
    """

    def __init__(
        self,
        month: Period,
        periods: Iterable[Period],
        grace_us: int,
        wanted: frozenset[About] = frozenset(),
    ) -> None:
        """Begin with the months that are known of, the first record's at least."""
        super().__init__(periods, grace_us)
        self.month = month
        self.wanted = wanted
        self.late: set[About] = set()
        self.reserved = Reservations()
        #: (cell, node) on which something is reserved -> its devices.
        self._beside: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        #: What rows are about -> the month in which each was issued, and it.
        self.rows: Rows = {}

    def step(self, meter: PartitionMeter, record: dict[str, Any]) -> None:
        """Follow an effective record that the meter's fold has taken in."""
        now_us = record["time_us"]
        if now_us >= self.end_us:
            self.extend(months(self.end_us, now_us, UTC))
        self.follow(meter, now_us)
        self.reserved.take(record)
        self.take(meter.take("effective", record))

    def take(self, rows: Iterable[Row | Ended]) -> None:
        """Keep what the bill needs of rows."""
        for row in rows:
            if isinstance(row, Ended) or row.state not in TILES:
                continue
            self._beside[row.cell, row.node].add(row.device)
            for at, start_us, end_us in clip(row, self._bounds):
                about = self.periods[at]
                late = about.state == "closed"
                issued = (self.periods[self._current] if late else about).period
                key = (about.period.name, row.cell, row.device)
                if issued.start_us > self.month.start_us:
                    continue
                if late and issued.name == self.month.name:
                    self.late.add(key)
                if about.period.name == self.month.name or key in self.wanted:
                    # Only what lies in the month: what the rest takes back is not kept here.
                    part = row
                    if (start_us, end_us) != (row.start_us, row.end_us):
                        part = replace(row, start_us=start_us, end_us=end_us)
                    self.rows.setdefault(key, []).append((issued.name, part))

    def concerned(self) -> frozenset[About]:
        """Return the devices of closed months whose charges may be others by what came late.

        On a node on which something is reserved, which devices are its unused part depends
        on all of them.
        """
        nodes = self.reserved.nodes()
        found = set(self.late)
        for (cell, node), devices in self._beside.items():
            if (cell, node) in nodes:
                months_of = {month for month, at, device in self.late
                             if at == cell and device in devices}  # fmt: skip
                found |= {(month, cell, device) for month in months_of for device in devices}
        return frozenset(found)

    def state_of(self, month: Period, known_us: int) -> str:
        """Return how settled a month is when everything until ``known_us`` is known.

        One that has not begun is open; of one before the first record nothing is to come but
        what is late.
        """
        for one in self.periods:
            if one.period.name == month.name:
                return one.state
        if month.start_us > self.periods[0].period.start_us:
            return "open"
        return "closed" if known_us >= month.end_us + self._grace_us else "closing"


def month_bill(collector: Collector, tariff: Tariff) -> list[Origin]:
    """Return the origins that the collector's month issues, corrections after its own."""
    month = collector.month.name
    own = _charged(collector, tariff, month, lambda issued: issued == month)
    corrections: list[Origin] = []
    for name in sorted({about[0] for about in collector.wanted}):
        before = _charged(collector, tariff, name, lambda issued: issued != month)
        after = _charged(collector, tariff, name, lambda _: True)
        for key in sorted(after):
            corrections += differences(before[key], after[key], name)
    return [one for _, found in sorted(own.items()) for one in found] + corrections


def _charged(
    collector: Collector, tariff: Tariff, month: str, counts: Callable[[str], bool]
) -> ByDevice:
    """Return the origins of a month by device, of the rows whose month of issue counts."""
    spans = {one.period.name: one.period for one in collector.periods}
    found = {
        (cell, device): device_charges(
            (row for issued, row in rows if counts(issued)),
            spans[name].start_us // 1_000_000,
            spans[name].end_us // 1_000_000,
            tariff,
        )
        for (name, cell, device), rows in collector.rows.items()
        if name == month
    }
    return mark_unused(found, collector.reserved.known())


@dataclass(slots=True)
class Metered:
    """A month as it was metered, by partition, before any price.

    What a partition has of it (None: no record), and the meter after its last record.
    """

    month: Period
    parts: dict[int, tuple[Collector | None, PartitionMeter]] = field(default_factory=dict)

    def cells(self) -> list[State]:
        """Return the cells as the last record left them."""
        return [one for _, meter in self.parts.values() for one in meter.fold.cells.values()]


async def meter_log(
    log: Log, prefix: str, month: Period, *, grace_us: int = GRACE_US, upto: Upto | None = None
) -> Metered:
    """Return a month of a log as it was metered; raise as reading the log does."""
    metered = Metered(month)
    for number in range(await log.partitions(full_name(prefix, "events"))):
        reader = _Reader(log, prefix, number, upto)
        found, meter = await reader.collect(month, grace_us)
        if found is not None and found.late:
            # To the same place: the log grows meanwhile.
            reader = reader._replace(upto=Upto(offsets={number: meter.fold.head.offset}))
            found, meter = await reader.collect(month, grace_us, found.concerned())
        metered.parts[number] = (found, meter)
    return metered


def bill_of(metered: Metered, tariff: Tariff) -> Bill:
    """Return what the month costs; raise `NoPrice`."""
    month = metered.month
    bill = Bill(month)
    for number, (found, meter) in metered.parts.items():
        bill.ends[number] = meter.fold.head.offset
        if found is not None:
            bill.origins += month_bill(found, tariff)
            bill.state = min(bill.state, found.state_of(month, meter.known_us), key=_SETTLED.index)
            bill.known_us = max(bill.known_us, meter.known_us)
    return bill


_SETTLED = ("open", "closing", "closed")


class _Reader(NamedTuple):
    """One partition of a log, up to a place."""

    log: Log
    prefix: str
    number: int
    upto: Upto | None

    async def collect(
        self, month: Period, grace_us: int, wanted: frozenset[About] = frozenset()
    ) -> tuple[Collector | None, PartitionMeter]:
        """Return the collector after the last record (None: there was none), and the meter."""
        meter = PartitionMeter()
        found: Collector | None = None
        async for seen in read_events(self.log, self.prefix, self.number, meter.fold, self.upto):
            if seen.verdict == "effective":
                if found is None:
                    first_us = seen.data["time_us"]
                    found = Collector(month, months(first_us, first_us, UTC), grace_us, wanted)
                found.step(meter, seen.data)
        if found is not None:
            found.take(meter.cut(meter.known_us))
        return found, meter
