"""One pass over a log: everything that the reports of a window are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import orjson

from ledger.metering.policy import POLICIES, MeteringPolicy
from ledger.metering.stream import PartitionMeter
from ledger.operations.measure import Range, Reading, Window
from ledger.operations.register import Register, time_of
from ledger.operations.tasks import Tasks
from ledger.operations.time_use import TimeUse
from ledger.reading import Upto, read_events
from schemas.topics import full_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ledger.billing.prices import Prices
    from ledger.core.fold import Fold
    from ledger.core.state import State
    from ledger.log.port import Log, Record
    from ledger.metering.rows import Ended, Row
    from ledger.reading import Seen

__all__ = ["Edges", "Follower", "Gathered", "edges_of", "gather"]

_CHUNK = 200
#: Records between two words on how far it is.
_EVERY = 5000


class Follower(Protocol):
    """What follows a log, record by record."""

    def take(self, seen: Seen, state: State | None) -> None:
        """Follow one record; ``state`` is its cell's after it."""

    def take_row(self, row: Row | Ended) -> None:
        """Take a row of the meter, or the end of a lease."""


class Edges(NamedTuple):
    """The times of the first record of a log, its last decision and its last record, UTC (µs).

    A claim is appended after what it then decides came in: decisions that follow it may be of
    an earlier time, and all of them.
    """

    first_us: int
    last_us: int
    end_us: int


class Gathered:
    """What was gathered of one window; rows are looked at until ``until_us`` [its end].

    A window that is open ends after the last record, in whose time nothing is known: its
    rows end with the record.
    """

    def __init__(
        self,
        window: Window,
        zone: str = "UTC",
        until_us: int | None = None,
        policy: MeteringPolicy = POLICIES["pool"],
    ) -> None:
        """Begin with nothing; ``policy`` says which time is charged to its holder."""
        self.until_us = window.end_us if until_us is None else until_us
        self.time = TimeUse(Window(window.start_us, self.until_us), policy)
        self.tasks = Tasks(window)
        self.register = Register(window)
        self.reading = Reading(window, zone)
        self._read: dict[int, list[str]] = {}
        self._within: dict[int, list[str]] = {}

    @property
    def window(self) -> Window:
        """Return what time it is about."""
        return self.reading.window

    def take(self, seen: Seen, state: State | None) -> None:
        """Follow one record; ``state`` is its cell's after it."""
        partition, position = seen.record.partition, seen.position
        _extend(self._read, partition, position)
        if self.window.holds(time_of(seen)):
            _extend(self._within, partition, position)
        self.register.take(seen)
        if seen.verdict == "effective" and state is not None:
            self.tasks.take(seen, state)

    def take_row(self, row: Row | Ended) -> None:
        """Count a row of the meter."""
        self.time.take(row)

    def finish(self, prices: Prices | None = None) -> None:
        """Close what is open, once everything was read; raise as `TimeUse.finish` does."""
        self.time.finish(prices)
        self.tasks.finish(self.until_us)
        read, within = (
            tuple(Range(first, last) for _, (first, last) in sorted(one.items()))
            for one in (self._read, self._within)
        )
        self.reading = Reading(self.window, self.reading.zone, read, within)


def _extend(ranges: dict[int, list[str]], partition: int, position: str) -> None:
    ranges.setdefault(partition, [position, position])[1] = position


async def edges_of(log: Log, prefix: str, upto: Upto | None = None) -> Edges | None:
    """Return when the first and the last records of a log were; None where none is a decision.

    Reads the ends of each partition only; raises as the log does.
    """
    upto = Upto() if upto is None else upto
    topic = full_name(prefix, "events")
    firsts, lasts, ends = [], [], []
    for number in range(await log.partitions(topic)):
        end = await log.end(topic, number)
        end = min(end, (upto.offsets or {}).get(number, end))
        begin = await log.begin(topic, number)
        starts = list(range(begin, end, _CHUNK))
        for start in reversed(starts):
            decided, claimed = _times(await _between(log, topic, number, (start, end)), upto)
            ends += claimed
            if decided:
                lasts.append(max(decided))
                break
        else:
            continue
        for start in starts:
            decided, claimed = _times(await _between(log, topic, number, (start, end)), upto)
            firsts += decided + claimed
            if decided:
                break
    return Edges(min(firsts), max(lasts), max(lasts + ends)) if lasts else None


async def _between(log: Log, topic: str, partition: int, bounds: tuple[int, int]) -> list[Record]:
    """Return a chunk of records; what one read returns may be less than was asked for."""
    start, end = bounds[0], min(bounds[0] + _CHUNK, bounds[1])
    found: list[Record] = []
    while start < end:
        records = await log.read(topic, partition, start, end - start)
        if not records:
            # A hole: whoever reads on says so.
            break
        found += records
        start = records[-1].offset + 1
    return found


def _times(records: Sequence[Record], upto: Upto) -> tuple[list[int], list[int]]:
    """Return the times of decisions and of claims that are not after ``upto``, as `time_of` has."""
    decided, claimed = [], []
    for one in records:
        if upto.time_us is not None and one.time_us > upto.time_us:
            break
        try:
            data = orjson.loads(one.value or b"{}")
        except orjson.JSONDecodeError:
            # Whoever reads on says what is wrong with it.
            continue
        kind = data.get("kind") if isinstance(data, dict) else ""
        if kind == "decision":
            decided.append(int(data["time_us"]))
        elif kind == "claim":
            claimed.append(one.time_us)
    return decided, claimed


async def gather(
    log: Log,
    prefix: str,
    followers: Sequence[Follower],
    until_us: int,
    *,
    upto: Upto | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[int, Fold]:
    """Let followers follow a whole log; of what nobody has told yet, rows go to ``until_us``.

    Return the folds, by partition. Raise as `ledger.reading.read_events` does: a log with a
    hole is not told of past it.
    """
    topic = full_name(prefix, "events")
    numbers = range(await log.partitions(topic))
    total = sum([await log.end(topic, number) for number in numbers])
    done, folds = 0, {}
    for number in numbers:
        meter = PartitionMeter()
        async for seen in read_events(log, prefix, number, meter.fold, upto):
            done += 1
            rows = meter.take(seen.verdict, seen.data)
            state = meter.fold.cells.get(seen.data.get("cell", ""))
            for one in followers:
                one.take(seen, state)
                for row in rows:
                    one.take_row(row)
            if progress is not None and done % _EVERY == 0:
                progress(done, total)
        for row in [*meter.cut(meter.known_us), *meter.beyond(until_us)]:
            for one in followers:
                one.take_row(row)
        folds[number] = meter.fold.ready()
    if progress is not None:
        progress(total, total)
    return folds
