"""A place in a ledger, said in one way to every command.

A position names the last thing that has happened: a record (``events/0@17``,
``0@17``, or ``17`` of partition 0), a UTC time (all records appended at or before it),
``begin`` (nothing has) or ``end`` (everything has).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ledger.reading import Upto
from schemas.topics import full_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ledger.log.port import Log

__all__ = ["BadPosition", "NoSuchRecord", "Place", "Position", "find", "parse", "place_names"]

#: By partition, how many of its records have happened: the first offset that has not.
Place = dict[int, int]

_RECORD = re.compile(r"(?:(?:(?P<topic>[\w.-]+)/)?(?P<partition>[0-9]+)@)?(?P<offset>[0-9]+)")

#: Before every time: no record is.
_BEFORE_US = -1

_FORMS = (
    "a position is a time such as 2026-01-31T12:00:00Z, a record as events/0@17,"
    " an offset of partition 0, begin or end"
)


class BadPosition(ValueError):
    """The text is no position."""


class NoSuchRecord(LookupError):
    """A position names a record that the log does not have."""


@dataclass(frozen=True, slots=True)
class Position:
    """What a position says; ``text`` is how it was given.

    Either ``partition`` and ``offset`` are set (that record, the last one to have
    happened), or ``time_us`` (UTC microseconds), or none of them: the end.
    """

    text: str
    time_us: int | None = None
    partition: int | None = None
    offset: int | None = None

    def upto(self) -> Upto | None:
        """Return it as a limit of `ledger.reading`; None for the end."""
        if self.partition is not None and self.offset is not None:
            return Upto(offsets={self.partition: self.offset + 1})
        return None if self.time_us is None else Upto(time_us=self.time_us)


def parse(text: str) -> Position:
    """Return the position that a text means; raise `BadPosition` when it is none.

    Digits alone are an offset, never a date; a time without a zone is UTC.
    """
    if text == "begin":
        return Position(text, time_us=_BEFORE_US)
    if text == "end":
        return Position(text)
    match = _RECORD.fullmatch(text)
    if match is not None:
        topic = match["topic"] or "events"
        if topic.rpartition(".")[2] != "events":
            raise BadPosition(f"{text!r}: the ledger is the topic events, not {topic}")
        return Position(text, partition=int(match["partition"] or 0), offset=int(match["offset"]))
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise BadPosition(f"{_FORMS}; not {text!r}") from None
    when = when.replace(tzinfo=UTC) if when.tzinfo is None else when
    since = when - datetime(1970, 1, 1, tzinfo=UTC)
    return Position(text, time_us=(since.days * 86_400 + since.seconds) * 1_000_000
                    + since.microseconds)  # fmt: skip


async def find(log: Log, prefix: str, *positions: Position) -> list[Place]:
    """Return where the positions are in the log, over the partitions that all of them speak of.

    A record speaks of its partition only, a time of all. Raise `NoSuchRecord` for a
    record beyond the log, and `BadPosition` for records of several partitions.
    """
    topic = full_name(prefix, "events")
    count = await log.partitions(topic)
    named = {one.partition for one in positions if one.partition is not None}
    if len(named) > 1:
        pair = " and ".join(one.text for one in positions if one.partition is not None)
        raise BadPosition(f"{pair} are in different partitions, which have no common order")
    if any(number >= count for number in named):
        raise NoSuchRecord(f"there is no partition {max(named)}; the ledger has {count}")
    numbers = sorted(named) or range(count)
    return [
        {number: await _records_before(log, topic, number, one) for number in numbers}
        for one in positions
    ]


async def _records_before(log: Log, topic: str, partition: int, position: Position) -> int:
    """Return how many records of a partition have happened at a position."""
    end = await log.end(topic, partition)
    if position.offset is not None:
        if position.offset >= end:
            last = "it is empty" if end == 0 else f"its last is {end - 1}"
            raise NoSuchRecord(f"there is no record events/{partition}@{position.offset}; {last}")
        return position.offset + 1
    if position.time_us is None:
        return end
    # A partition's append times never go back, so its records can be searched by halves.
    low, high = 0, end
    while low < high:
        middle = (low + high) // 2
        rows = await log.values(topic, partition, middle, 1)
        if rows and rows[0][1] <= position.time_us:
            low = middle + 1
        else:
            high = middle
    return low


def place_names(place: Mapping[int, int]) -> Sequence[str]:
    """Return the last record of each partition that has happened, as ``events/0@17``."""
    return [f"events/{number}@{end - 1}" for number, end in sorted(place.items()) if end]
