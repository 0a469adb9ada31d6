"""What a worker writes of its own accord: ticks where something is due, and liveness verdicts.

Both are observations like a node's: they go through the log and are judged
there, so it does no harm when two workers write the same, or one writes late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import structlog

from ledger.ingest import Refusal, ingest
from ledger.log.port import LogUnavailable
from ledger.wire import input_entry
from processors.liveness import Liveness
from schemas.topics import full_name

if TYPE_CHECKING:
    from ledger.core.state import State
    from ledger.log.port import Entry, Log, Record
    from ledger.shard import Shard
    from processors.settings import Settings

__all__ = ["Watch"]

_log = structlog.get_logger(__name__)
_US = 1_000_000
_READ = 5000

#: Who says what is written here. Not the worker's name: the same record whoever writes it.
_SOURCE = "/gpuledger/watch"

#: How long a cell may take to act on a tick before it gets another one, µs.
_REPEAT_US = _US


class Watch:
    """Heartbeats heard, and what follows for the cells of this process's shards."""

    def __init__(self, log: Log, settings: Settings) -> None:
        self._log = log
        self._heartbeats = full_name(settings.prefix, "heartbeats")
        self._observations = full_name(settings.prefix, "observations")
        self.liveness = Liveness(round(settings.heartbeat_limit_s * _US))
        #: Partition of the heartbeats -> next offset; empty until the first `hear`.
        self._ears: dict[int, int] = {}
        self._deaf = True
        #: Cell -> the due time it was last given a tick for, and when (µs).
        self._ticked: dict[str, tuple[int, int]] = {}

    async def hear(self, now_us: int) -> None:
        """Take in every heartbeat up to now; the first time, begin to listen.

        ``now_us`` must have been read before the call: silence is told up to then.
        Raise `LogUnavailable`; the nodes then get their whole limit again from
        the next time on, because what they said meanwhile is not known.
        """
        try:
            if not self._ears:
                count = await self._log.partitions(self._heartbeats)
                ends = [await self._log.end(self._heartbeats, each) for each in range(count)]
                self._ears = dict(enumerate(ends))
            for partition in self._ears:
                await self._hear(partition)
        except LogUnavailable:
            self._deaf = True
            raise
        if self._deaf:
            self._deaf = False
            self.liveness.listen_from(now_us)

    async def _hear(self, partition: int) -> None:
        name = self._heartbeats
        while records := await self._log.read(name, partition, self._ears[partition], _READ):
            for record in records:
                self._note(record)
            self._ears[partition] = records[-1].offset + 1

    def _note(self, record: Record) -> None:
        found = ingest(record, "heartbeats")
        if isinstance(found, Refusal):
            _log.warning("heartbeat not read", code=found.code, offset=record.offset)
            return
        key, given = found
        # The key is what access lists can hold a writer to; a node speaks for itself only.
        if key == given.data.node:
            beat = given.data
            self.liveness.heard(beat.cell, beat.node, beat.incarnation, record.time_us)

    async def write(self, shard: Shard, now_us: int) -> int:
        """Write what is due in the shard's cells at ``now_us``; return how many records.

        The state looked at may be ahead of the log; what is written is judged by
        the state it meets there.
        """
        cells = shard.fold.cells
        entries = [
            entry
            for name in sorted(cells)
            if (entry := self._tick(cells[name], now_us)) is not None
        ]
        for verdict in self.liveness.verdicts(cells, now_us):
            _log.info(verdict.type, cell=verdict.cell, **verdict.data)
            name = f"{verdict.data['node']}-{now_us}"
            entries.append(_entry(verdict.cell, verdict.type, name, verdict.data))
        if entries:
            await self._log.append(self._observations, shard.partition, entries)
        return len(entries)

    def _tick(self, state: State, now_us: int) -> Entry | None:
        due_us = state.index.deadlines.next_due_us(state)
        if due_us is None or due_us > now_us:
            return None
        before = self._ticked.get(state.cell)
        # A clock that was set back must not keep a tick for hours.
        if before is not None and before[0] == due_us and 0 <= now_us - before[1] < _REPEAT_US:
            return None
        self._ticked[state.cell] = (due_us, now_us)
        return _entry(state.cell, "tick", f"{state.cell}-{now_us}", {})


def _entry(cell: str, name: str, event_id: str, data: dict[str, Any]) -> Entry:
    return input_entry(cell, name, _SOURCE, event_id, data)
