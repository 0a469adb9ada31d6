"""Both worlds from one log: the records as they are, and their inputs under what is changed.

The log is read twice. The first time it is folded, counted, and learned from: how long
work and nodes took. The second time its inputs are decided again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson

from ledger.counterfactual.free import shape_of
from ledger.counterfactual.history import ELSEWHERE, History
from ledger.counterfactual.sums import Sums
from ledger.counterfactual.work import Work
from ledger.counterfactual.world import World
from ledger.reading import Upto, read_events
from ledger.replay.states import copy_of, fold_at
from schemas.topics import full_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from ledger.core.fold import Fold
    from ledger.counterfactual.changes import Changes
    from ledger.counterfactual.free import Shape
    from ledger.log.port import Log
    from ledger.replay.position import Place
    from ledger.replay.states import PositionSnapshots

__all__ = ["NoCell", "NoNode", "Options", "Outcome", "replay"]

#: Into how many steps of time the log is divided, to look at what is free.
SAMPLES = 500

_CHUNK = 5000


class NoCell(LookupError):
    """The log has no such cell, or several of which none was named; ``cells`` are those seen."""

    def __init__(self, cells: Sequence[str]) -> None:
        super().__init__(", ".join(cells))
        self.cells = list(cells)


class NoNode(LookupError):
    """Changes name nodes that the records do not have; ``known`` are those that they have."""

    def __init__(self, names: Sequence[str], known: Sequence[str]) -> None:
        super().__init__(", ".join(names))
        self.names = list(names)
        self.known = list(known)


@dataclass(frozen=True, slots=True)
class Options:
    """What is replayed and how it is counted.

    ``cell`` None is the only one. ``rows`` keeps the metered rows, for a bill; ``peaks``
    is the most device memory of a request's task, in MiB; None: nobody asks.
    """

    cell: str | None = None
    rows: bool = False
    peaks: Mapping[str, int] | None = None
    progress: Callable[[int, int], None] | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What both worlds come to; ``recorded`` and ``changed`` are counted by the same rules.

    ``measured``: peaks of memory were given.
    """

    cell: str
    partition: int
    records: int
    recorded: Sums
    changed: Sums
    world: World
    work: Work
    shapes: Mapping[Shape, int]
    measured: bool


async def replay(
    log: Log,
    prefix: str,
    places: tuple[Place, Place],
    changes: Changes,
    options: Options,
    stores: Sequence[PositionSnapshots] = (),
) -> Outcome:
    """Replay a cell's records between two places under changes; nothing is written.

    Raise `NoCell`, `NoNode`, `ledger.counterfactual.world.Refused` for a policy that the ledger
    would refuse, and as `ledger.reading.read_events` does.
    """
    start, end = places
    folds = await fold_at(log, prefix, start, stores)
    partition, cell = await _find(log, prefix, places, folds, options.cell)
    mine = {partition: folds[partition]}
    copy = copy_of(mine)[partition]
    source = _Source(log, prefix, partition, start[partition], end[partition], cell, options)
    recorded, history, shapes = await source.learn(mine[partition])
    # A node's name stays in the state for ever: at the end it has all that there ever were.
    known = mine[partition].cells[cell].nodes
    unknown = [name for name in changes.nodes() if name not in known]
    if unknown:
        raise NoNode(unknown, sorted(known))
    work = Work(history)
    state = copy.ready().cell(cell)
    sums = Sums(state, recorded.start_us, source.step_us, rows=options.rows, peaks=options.peaks)
    world = World(state, history, work, changes, sums.take)
    await source.decide(world, history, recorded.start_us)
    world.finish(recorded.end_us)
    sums.finish(recorded.end_us)
    count = end[partition] - start[partition]
    measured = options.peaks is not None
    return Outcome(cell, partition, count, recorded, sums, world, work, shapes, measured)


async def _find(
    log: Log, prefix: str, places: tuple[Place, Place], folds: Mapping[int, Fold], cell: str | None
) -> tuple[int, str]:
    """Return the partition and name of the cell: that which is named, or the only one."""
    found: dict[str, int] = {}
    for number, fold in folds.items():
        found |= dict.fromkeys(fold.cells, number)
    if cell in found:
        return found[cell], cell
    start, end = places
    for number in start:
        async for value in _values(log, prefix, number, start[number], end[number]):
            record = orjson.loads(value[1] or b"{}")
            if record.get("kind") == "decision":
                found.setdefault(record["cell"], number)
                if cell is None or record["cell"] == cell:
                    break
    if cell is None and len(found) == 1:
        cell = next(iter(found))
    if cell not in found:
        raise NoCell(sorted(found))
    return found[cell], cell


async def _values(
    log: Log, prefix: str, partition: int, first: int, end: int
) -> AsyncIterator[tuple[int, bytes | None]]:
    topic = full_name(prefix, "events")
    while first < end:
        rows = await log.values(topic, partition, first, min(_CHUNK, end - first))
        if not rows:
            return
        for offset, _, value in rows:
            yield offset, value
        first = rows[-1][0] + 1


class _Source:
    """The records of one cell between two places of its partition."""

    def __init__(
        self,
        log: Log,
        prefix: str,
        partition: int,
        first: int,
        end: int,
        cell: str,
        options: Options,
    ) -> None:
        self._log, self._prefix, self._partition = log, prefix, partition
        self._first, self._end, self._cell = first, end, cell
        self._options = options
        self.step_us = 1

    async def learn(self, fold: Fold) -> tuple[Sums, History, Mapping[Shape, int]]:
        """Fold the records, count them and learn from them."""
        state = fold.cell(self._cell)
        start_us, last_us = await self._times(state.now_us)
        self.step_us = max((last_us - start_us) // SAMPLES, 1)
        options = self._options
        sums = Sums(state, start_us, self.step_us, rows=options.rows, peaks=options.peaks)
        history = History(self._cell, self._first)
        history.begin(state)
        history.last_us = start_us
        shapes: dict[Shape, int] = {}
        upto = Upto(offsets={self._partition: self._end})
        cells = {self._cell}
        async for seen in read_events(self._log, self._prefix, self._partition, fold, upto):
            record = seen.data
            self._told(seen.record.offset - self._first)
            if seen.verdict != "effective" or record["cell"] != self._cell:
                cells.add(record.get("cell", self._cell))
                history.skip()
                continue
            history.take(record, seen.record.offset)
            if not record["events"]:
                continue
            given = record["input"]
            sums.take(record["time_us"], given["type"], given["data"], record["events"])
            if given["type"] == "request.submit":
                request = state.requests.get(f"{given['source']}#{given['id']}")
                shape = None if request is None else shape_of(request.need)
                if shape is not None:
                    shapes[shape] = shapes.get(shape, 0) + 1
        if options.cell is None and len(cells) > 1:
            raise NoCell(sorted(cells))
        sums.finish(history.last_us)
        return sums, history, shapes

    async def decide(self, world: World, history: History, start_us: int) -> None:
        """Let a world decide the records' inputs."""
        world.begin(start_us)
        values = _values(self._log, self._prefix, self._partition, self._first, self._end)
        count = self._end - self._first
        async for offset, value in values:
            self._told(count + offset - self._first)
            fate = history.fate(offset)
            if fate != ELSEWHERE:
                world.step(orjson.loads(value or b""), offset, fate)

    async def _times(self, now_us: int) -> tuple[int, int]:
        """Return when the records begin and end; where the cell has a clock, it begins there."""
        last = await self._time_of(range(self._end - 1, self._first - 1, -1))
        if not now_us:
            now_us = await self._time_of(range(self._first, self._end)) or 0
        return now_us, last or now_us

    async def _time_of(self, offsets: range) -> int | None:
        """Return the time of the first decision at these offsets: a claim has another clock's."""
        topic = full_name(self._prefix, "events")
        for offset in offsets[:_CHUNK]:
            rows = await self._log.values(topic, self._partition, offset, 1)
            record = orjson.loads(rows[0][2] or b"{}") if rows else {}
            if record.get("kind") == "decision":
                time_us: int = record["time_us"]
                return time_us
        return None

    def _told(self, done: int) -> None:
        progress = self._options.progress
        if progress is not None and done % _CHUNK == 0:
            progress(done, 2 * (self._end - self._first))
