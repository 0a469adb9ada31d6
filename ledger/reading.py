"""Read a ledger from any log: its records with their verdicts, and the state they fold to.

Replay, explanation, audit and the command line all read through here, so there
is one way to go over a partition. Reading never writes, and never skips: a
record that is not the next one, or that cannot be taken in, ends it with its
position (`Damaged`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ledger.core.fold import Fold, LogDamaged
from ledger.snapshots import value_reader
from schemas.topics import full_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping

    from ledger.core.state import State
    from ledger.log.port import Log, Record
    from ledger.snapshots import SnapshotStore

__all__ = [
    "Damaged",
    "Seen",
    "Upto",
    "cells_of",
    "fold_log",
    "fold_values",
    "position_of",
    "read_events",
]

#: Records asked of the log at a time.
_CHUNK = 5000

#: How long the log may take for a record that lies before its own end, in seconds.
_WAIT_S = 5.0


class Damaged(Exception):
    """A partition of the ledger cannot be read past an offset, and why.

    ``code`` is that of the fault (``gap``, ``not_json``, an invariant such as
    ``Q1``, ...).
    """

    def __init__(self, topic: str, partition: int, offset: int, code: str, detail: str) -> None:
        super().__init__(f"{topic}/{partition}@{offset}: {code}: {detail}")
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.code = code
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Seen:
    """One record as a reader of the ledger sees it.

    ``verdict`` is ``claim``, ``effective`` or ``void``; ``data`` is the decoded record.
    """

    record: Record
    verdict: str
    data: dict[str, Any]

    @property
    def position(self) -> str:
        """Where it stands, as replies name it: ``events/PARTITION@OFFSET``."""
        return position_of(self.record)


@dataclass(frozen=True, slots=True)
class Upto:
    """Where to stop; what is None does not limit.

    ``time_us`` keeps records that were appended at or before it (UTC
    microseconds; a partition's append times never go back, so that is a first
    part of it). ``offsets`` has, by partition, the first offset not to read.
    """

    time_us: int | None = None
    offsets: Mapping[int, int] | None = None


def position_of(record: Record) -> str:
    """Return the record's place as ``events/PARTITION@OFFSET``."""
    return f"events/{record.partition}@{record.offset}"


async def read_events(
    log: Log,
    prefix: str,
    partition: int,
    fold: Fold | None = None,
    upto: Upto | None = None,
) -> AsyncIterator[Seen]:
    """Yield the records of one partition, each after ``fold`` has taken it in.

    Reads from where ``fold`` stands (the beginning, when there is none) to the
    end that the log has at the call, or to ``upto``. Raise `Damaged` for a
    record that is missing or cannot be taken in; the log's own errors pass.
    """
    fold = Fold() if fold is None else fold
    topic = full_name(prefix, "events")
    head = fold.head
    end = await _end(log, topic, partition, upto)
    while head.offset < end:
        limit = min(_CHUNK, end - head.offset)
        records = await log.read(topic, partition, head.offset, limit, _WAIT_S)
        if not records:
            raise _nothing_more(topic, partition, head.offset, end)
        for record in records:
            if upto is not None and upto.time_us is not None and record.time_us > upto.time_us:
                return
            try:
                verdict, data = fold.apply(record.offset, record.value)
            except LogDamaged as fault:
                raise Damaged(topic, partition, fault.offset, fault.code, fault.detail) from fault
            yield Seen(record, verdict, data)


async def fold_log(
    log: Log,
    prefix: str,
    partitions: Iterable[int] | None = None,
    *,
    upto: Upto | None = None,
    snapshots: SnapshotStore | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[int, Fold]:
    """Return the folds of the named partitions (all, when None), by partition.

    ``snapshots`` are started from where the log bears them out; they are not
    used together with ``upto``, which may lie before them. Raises as
    `read_events` does.
    """
    topic = full_name(prefix, "events")
    numbers = list(range(await log.partitions(topic)) if partitions is None else partitions)
    total = sum([await log.end(topic, number) for number in numbers])
    done = 0
    folds: dict[int, Fold] = {}
    for number in numbers:
        fold = Fold()
        if snapshots is not None and upto is None:
            fold = await _from_snapshot(log, topic, number, snapshots) or fold
        fold.reading()
        done += fold.head.offset
        async for count in fold_values(log, topic, number, fold, upto):
            done += count
            if progress is not None:
                progress(done, total)
        folds[number] = fold.ready()
    if progress is not None:
        progress(total, total)
    return folds


async def fold_values(
    log: Log, topic: str, partition: int, fold: Fold, upto: Upto | None
) -> AsyncIterator[int]:
    """Fold one partition as `read_events` does, values only; yield the count of each chunk.

    The fold goes on from where it stands.
    """
    end = await _end(log, topic, partition, upto)
    head = fold.head
    while head.offset < end:
        limit = min(_CHUNK, end - head.offset)
        rows = await log.values(topic, partition, head.offset, limit)
        if not rows:
            raise _nothing_more(topic, partition, head.offset, end)
        last_us = None if upto is None else upto.time_us
        try:
            for offset, time_us, value in rows:
                if last_us is not None and time_us > last_us:
                    return
                fold.apply(offset, value)
        except LogDamaged as fault:
            raise Damaged(topic, partition, fault.offset, fault.code, fault.detail) from fault
        yield len(rows)


async def _end(log: Log, topic: str, partition: int, upto: Upto | None) -> int:
    end = await log.end(topic, partition)
    if upto is not None and upto.offsets is not None:
        end = min(end, upto.offsets.get(partition, end))
    return end


def _nothing_more(topic: str, partition: int, offset: int, end: int) -> Damaged:
    detail = f"the log ends at {end}, but has nothing from here on"
    return Damaged(topic, partition, offset, "gap", detail)


async def _from_snapshot(
    log: Log, topic: str, partition: int, snapshots: SnapshotStore
) -> Fold | None:
    value_at = value_reader(log, topic, partition)
    return await snapshots.load(partition, await log.end(topic, partition), value_at)


def cells_of(folds: Mapping[int, Fold]) -> dict[str, State]:
    """Return all cells of the folds, by name in order.

    A cell lives in one partition; of one that two hold (which `ledger.verify`
    reports) the one with the later clock is returned.
    """
    found: dict[str, State] = {}
    for _, fold in sorted(folds.items()):
        for name, state in fold.cells.items():
            if name not in found or state.now_us > found[name].now_us:
                found[name] = state
    return dict(sorted(found.items()))
