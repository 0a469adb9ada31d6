"""Make a log of an archive again: the same records at the same offsets, in SQLite or Kafka.

What was restored is read back and compared, and folded: the digest is that of the
ledger in the archive. A restore that was broken off is run again; it goes on.

The records keep their times (Kafka: to the millisecond; its topic takes times from
the writer until the restore is complete, and a worker refuses to start on it). The
input topics are filled up with empty records to where the ledger has decided them,
because a decision names the offset of its input: a worker goes on behind them, and
a new input must not come to stand at an offset that has been decided.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ledger.core.digest import digest
from ledger.log.port import Entry, LogError, TopicState
from ledger.log.topics import declared
from ledger.reading import Damaged, cells_of, fold_log
from ledger.wire import INPUTS
from schemas.topics import full_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from ledger.log.port import Log, Record

__all__ = ["NotEmpty", "Restored", "restore"]

_CHUNK = 5000
_WAIT_S = 5.0
_NOTHING = Entry(None, None)

#: Kafka's setting for times that the writer gives, in place of the broker's own.
_GIVEN_TIMES = {"message.timestamp.type": "CreateTime"}


class NotEmpty(LogError):
    """The log holds something that is not the beginning of what the archive holds."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore has written. ``filled`` counts the empty records of the input topics."""

    records: int
    before: int
    filled: int
    digest: str


@dataclass(slots=True)
class _Restore:
    source: Log
    target: Log
    total: int
    progress: Callable[[int, int], None] | None
    done: int = 0
    records: int = 0
    filled: int = 0
    ends: dict[tuple[str, int], int] = field(default_factory=dict)

    async def fill(self, topic: str, partition: int, end: int) -> None:
        """Append empty records up to an offset."""
        at = await self.target.end(topic, partition)
        while at < end:
            count = min(_CHUNK, end - at)
            at = self._follows(
                topic, partition, at,
                await self.target.append(topic, partition, [_NOTHING] * count),
            )  # fmt: skip
            self.filled += count

    async def partition(self, topic: str, partition: int) -> None:
        """Append what the target does not have yet."""
        begin = await self.source.begin(topic, partition)
        await self.fill(topic, partition, begin)
        at = max(await self.target.end(topic, partition), begin)
        async for records in _read(self.source, topic, partition, at):
            offsets = await self.target.restore(topic, partition, records)
            at = self._follows(topic, partition, at, offsets)
            self.records += len(records)
            self.step(len(records))

    async def compare(self, topic: str, partition: int) -> None:
        """Read back what was restored; raise `Damaged` for a record that is another."""
        begin = max(await self.source.begin(topic, partition),
                    await self.target.begin(topic, partition))  # fmt: skip
        async for wanted in _read(self.source, topic, partition, begin):
            found: list[Record] = []
            while len(found) < len(wanted):
                at = wanted[0].offset + len(found)
                limit = len(wanted) - len(found)
                more = await self.target.read(topic, partition, at, limit, _WAIT_S)
                if not more:
                    break
                found += more
            for index, record in enumerate(wanted):
                if index >= len(found) or not _same(record, found[index]):
                    raise Damaged(
                        topic, partition, record.offset, "restore",
                        "the log does not hold what the archive does; restore into an empty log",
                    )  # fmt: skip
            self.step(len(wanted))

    def step(self, count: int) -> None:
        """Tell how far it is."""
        self.done += count
        if self.progress is not None:
            self.progress(self.done, self.total)

    def _follows(self, topic: str, partition: int, at: int, offsets: Sequence[int]) -> int:
        if list(offsets) != list(range(at, at + len(offsets))):
            raise NotEmpty(
                f"{topic}/{partition}: something else is writing to this log; end it, and restore"
                " into an empty log"
            )
        return at + len(offsets)


async def restore(
    source: Log,
    target: Log,
    prefix: str,
    suffixes: Sequence[str] = ("events",),
    replication: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> Restored:
    """Write the topics ``suffixes`` of an archive (as a log) into another log.

    All declared topics are made. Raise `NotEmpty` for a target with records of its
    own, before anything is changed, `Damaged` for an archive whose beginning is
    missing; the errors of both logs pass.
    """
    counts = {
        full_name(prefix, one): await source.partitions(full_name(prefix, one)) for one in suffixes
    }
    where = [(topic, number) for topic, count in counts.items() for number in range(count)]
    states = declared(prefix, counts[full_name(prefix, "events")], replication)
    for topic, count in counts.items():
        states[topic] = replace(states[topic], partitions=count)
    given = {topic: _with_given_times(states[topic]) for topic in counts}
    before = 0
    for at in where:
        if at[0] == full_name(prefix, "events") and await source.begin(*at) > 0:
            detail = "the archive lacks the beginning of the ledger; put its first files back"
            raise Damaged(*at, 0, "hole", detail)
        before += await _already_there(source, target, *at, counts[at[0]])
    await target.create_topics({**states, **given})
    await target.configure_topics(given)
    ends = [await source.end(*at) for at in where]
    total = 2 * sum(ends) - before
    work = _Restore(source, target, total, progress)
    for at in where:
        await work.partition(*at)
    for at in where:
        await work.compare(*at)
    folds = await fold_log(target, prefix)
    for number, fold in folds.items():
        for suffix in INPUTS:
            end = fold.head.sources.get(suffix, -1) + 1
            await work.fill(full_name(prefix, suffix), number, end)
    await target.configure_topics({topic: states[topic] for topic in counts})
    if progress is not None:
        progress(total, total)
    return Restored(work.records, before, work.filled, digest(cells_of(folds)))


def _with_given_times(state: TopicState) -> TopicState:
    return replace(state, config={**(state.config or {}), **_GIVEN_TIMES})


async def _already_there(source: Log, target: Log, topic: str, partition: int, count: int) -> int:
    """Return how many of the records an earlier restore has written; raise `NotEmpty`."""
    known = await target.describe_topics([topic])
    if topic not in known:
        return 0
    if known[topic].partitions != count:
        raise NotEmpty(
            f"{topic} has {known[topic].partitions} partitions there, {count} in the archive;"
            " restore into a log without this topic"
        )
    end = await target.end(topic, partition)
    begin = await source.begin(topic, partition)
    if end <= begin:
        return 0
    ours = await source.read(topic, partition, end - 1, 1)
    theirs = await target.read(topic, partition, end - 1, 1, _WAIT_S)
    if not ours or not theirs or not _same(ours[0], theirs[0]):
        raise NotEmpty(
            f"{topic}/{partition} holds {end} records there, and they are not the archive's;"
            " restore into an empty log"
        )
    return end - begin


def _same(one: Record, other: Record) -> bool:
    """Compare two records; a broker counts milliseconds."""
    return (one.offset, one.time_us // 1000, one.key, one.value, one.headers) == (
        other.offset, other.time_us // 1000, other.key, other.value, other.headers
    )  # fmt: skip


async def _read(log: Log, topic: str, partition: int, start: int) -> AsyncIterator[list[Record]]:
    while records := await log.read(topic, partition, start, _CHUNK):
        yield records
        start = records[-1].offset + 1
