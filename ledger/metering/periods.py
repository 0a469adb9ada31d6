"""Periods that close for good: open, closing while late facts are waited for, closed.

A period closes with the first record whose time is ``grace_us`` after its end: so it closes
at one place of the log, the same in every reading. What it has by then is final, with a
digest; a fact that comes later is a *correction*: a line of the period that is open then,
which names the one that it is about. A closed period and all corrections of it are what a
new count of that period would give (M6).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING

import orjson

from ledger.metering.calendar import months
from ledger.metering.rows import Ended, Holding, Row, clip
from ledger.metering.stream import PartitionMeter
from ledger.reading import read_events
from schemas.topics import full_name

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import tzinfo

    from ledger.log.port import Log
    from ledger.metering.calendar import Period
    from ledger.reading import Upto

__all__ = ["GRACE_US", "Book", "BookedPeriod", "Line", "book_log"]

#: How long late facts are waited for unless told otherwise: three days.
GRACE_US = 3 * 86_400_000_000


@dataclass(frozen=True, slots=True)
class Line:
    """What one holder, or nobody, had of one unit of a device in one state, within a period.

    The fields up to ``holding`` are those of a row; ``milli`` is how much of the device it
    is. ``span_us`` is for how long, over all its rows together. ``corrects`` names the period
    that a correction is about; None: it is about the period that it stands in. A correction's
    sums may be negative.
    """

    cell: str
    node: str
    pool: str
    model: str
    device: str
    unit: str
    state: str
    cause: str
    milli: int
    holding: Holding | None
    corrects: str | None = None
    span_us: int = 0

    @property
    def milli_us(self) -> int:
        """Return capacity x time."""
        return self.milli * self.span_us

    def row(self) -> Row:
        """Return a row of the line's length, for whatever reads rows; its times are none."""
        milli = self.milli if self.span_us >= 0 else -self.milli
        return Row(
            self.cell, self.node, self.pool, self.model, self.device, self.unit, self.state,
            self.cause, 0, abs(self.span_us), milli, self.holding,
        )  # fmt: skip


@dataclass(slots=True)
class BookedPeriod:
    """A period as it is booked: its state, and for a closed one its digest.

    ``lines`` are sorted; those of an open or closing period may still change.
    """

    period: Period
    state: str = "open"
    digest: str | None = None
    lines: tuple[Line, ...] = ()
    #: Line without its length -> its length so far.
    _spans: dict[Line, int] = field(default_factory=dict)

    def book(self, line: Line, span_us: int) -> None:
        """Add time to a line."""
        assert self.state != "closed", "a closed period never changes"
        self._spans[line] = self._spans.get(line, 0) + span_us

    def settle(self, state: str) -> None:
        """Bring ``lines`` up to date; a period that is closed has its digest from then on."""
        if self.state == "closed":
            return
        self.state = state
        found = [replace(line, span_us=us) for line, us in self._spans.items() if us]
        keyed = sorted((orjson.dumps(line), line) for line in found)
        self.lines = tuple(line for _, line in keyed)
        if state == "closed":
            about = f"{self.period.name} {self.period.start_us} {self.period.end_us}\n".encode()
            self.digest = sha256(about + b"\n".join(text for text, _ in keyed)).hexdigest()
            self._spans.clear()


class Book:
    """The periods of one partition. `follow` and `take` are called in the log's order."""

    def __init__(self, periods: Iterable[Period], grace_us: int = GRACE_US) -> None:
        """Begin with all periods open; there is one at least, they are neighbours in order."""
        first, *more = periods
        self.periods = [BookedPeriod(first)]
        self._bounds: tuple[int, ...] = (first.start_us, first.end_us)
        self._grace_us = grace_us
        self._closed = 0
        self._current = 0
        self.extend(more)

    @property
    def end_us(self) -> int:
        """Return the end of the last period."""
        return self._bounds[-1]

    def extend(self, periods: Iterable[Period]) -> None:
        """Add the periods that follow the last one."""
        for one in periods:
            assert one.start_us == self.end_us, "periods are neighbours"
            self.periods.append(BookedPeriod(one))
            self._bounds = (*self._bounds, one.end_us)

    def follow(self, meter: PartitionMeter, now_us: int) -> None:
        """Let the time be ``now_us``, before the meter takes the effective record of that time.

        What runs across the end of a period is booked in both.
        """
        for end_us in self._bounds[self._current + 1 :]:
            if end_us > now_us:
                break
            self.take(meter.cut(end_us))
        self._advance(now_us)

    def _advance(self, now_us: int) -> None:
        """What is over is closing, and closed after its grace."""
        last = len(self.periods) - 1
        while self._current < last and self.periods[self._current].period.end_us <= now_us:
            self.periods[self._current].state = "closing"
            self._current += 1
        while self._closed < self._current:
            one = self.periods[self._closed]
            if one.period.end_us + self._grace_us > now_us:
                break
            one.settle("closed")
            self._closed += 1

    def take(self, rows: Iterable[Row | Ended]) -> None:
        """Book rows; what is about a closed period is a correction in the one that is open."""
        for row in rows:
            if isinstance(row, Ended):
                continue
            for at, start_us, end_us in clip(row, self._bounds):
                about = self.periods[at]
                corrects = about.period.name if about.state == "closed" else None
                home = self.periods[self._current] if corrects else about
                line = Line(
                    row.cell, row.node, row.pool, row.model, row.device, row.unit, row.state,
                    row.cause, abs(row.milli), row.holding, corrects,
                )  # fmt: skip
                home.book(line, end_us - start_us if row.milli > 0 else start_us - end_us)

    def settle(self) -> list[BookedPeriod]:
        """Return the periods, with the lines of those that are not closed as they are now."""
        for one in self.periods[self._closed :]:
            one.settle(one.state)
        return self.periods


async def book_log(
    log: Log,
    prefix: str,
    zone: tzinfo,
    grace_us: int = GRACE_US,
    upto: Upto | None = None,
) -> dict[int, list[BookedPeriod]]:
    """Return the months of a place, booked, by partition. Raise as reading the log does."""
    topic = full_name(prefix, "events")
    found = {}
    for number in range(await log.partitions(topic)):
        meter = PartitionMeter()
        book: Book | None = None
        async for seen in read_events(log, prefix, number, meter.fold, upto):
            if seen.verdict == "effective":
                now_us = seen.data["time_us"]
                if book is None:
                    book = Book(months(now_us, now_us, zone), grace_us)
                if now_us >= book.end_us:
                    book.extend(months(book.end_us, now_us, zone))
                book.follow(meter, now_us)
                book.take(meter.take(seen.verdict, seen.data))
        if book is not None:
            book.take(meter.cut(meter.known_us))
            found[number] = book.settle()
    return found
