"""One partition of the ledger, held by one writer: claim, load, decide, append, fence.

Three runners feed it (`processors`), none of them copies its logic. Nothing
outside the log is trusted for safety (DESIGN 1.2): whoever believes it holds a
partition appends a claim, reads the log up to it, and from then on compares
every append with what the log says. Another writer's record in between either
makes ours void or is void itself; reading tells.
"""

from __future__ import annotations

import secrets
import socket
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson
import structlog

from ledger.batch import Batch
from ledger.core.decide import CREATES_CELL, Decision, decide, to_record
from ledger.core.fold import Fold
from ledger.core.outbox import (
    answer_again,
    answered,
    conflict_of,
    malformed_reply,
    messages,
    open_orders,
    refused_reply,
)
from ledger.ingest import Refusal, dead_letter, ingest
from ledger.log.port import LogUnavailable
from ledger.outgoing import Outgoing
from ledger.snapshots import value_reader
from ledger.wire import INPUTS, claim_entry, decision_entry
from schemas.topics import full_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ledger.core.decisions.turn import Input
    from ledger.core.outbox import Message
    from ledger.log.port import Entry, Log, Record
    from ledger.snapshots import SnapshotStore

__all__ = ["MAX_BATCH", "Batch", "Fenced", "Shard", "ShardCounts", "ShardOptions"]

_log = structlog.get_logger(__name__)
_READ = 5000

#: The most inputs of one batch, and so the most answers that a crash can swallow.
MAX_BATCH = 1000


class Fenced(Exception):
    """Another writer has claimed the partition: this one answers nothing and drops its state."""


@dataclass(frozen=True, slots=True)
class ShardOptions:
    """How a shard works. ``snapshot_every`` counts records of the log; 0 makes none."""

    prefix: str = "gpuledger"
    worker: str = "worker"
    generation: int = -1
    snapshot_every: int = 50_000


@dataclass(slots=True)
class ShardCounts:
    """What one load of a shard has done so far."""

    decided: int = 0
    unrecorded: int = 0
    dead_letters: int = 0
    answered_again: int = 0
    codes: Counter[str] = field(default_factory=Counter)


class Shard:
    """The ledger's partition ``partition`` as this writer holds it."""

    def __init__(
        self,
        log: Log,
        partition: int,
        options: ShardOptions | None = None,
        snapshots: SnapshotStore | None = None,
    ) -> None:
        """Take no claim yet: `load` does."""
        self.log = log
        self.partition = partition
        self.options = options or ShardOptions()
        self.snapshots = snapshots
        self.fold = Fold()
        self.counts = ShardCounts()
        #: Next offset to look at, by input topic.
        self.position: dict[str, int] = {}
        self._token = ""
        self._events = full_name(self.options.prefix, "events")
        self._last_value: bytes | None = None
        self._snapshot_at = 0
        self._out = Outgoing(log, self.options.prefix)

    # -- load --------------------------------------------------------------

    async def load(self) -> None:
        """Claim the partition and read the log up to the claim; say open orders again."""
        self._token = secrets.token_hex(16)
        entry = claim_entry(
            self._token, self.options.worker, socket.gethostname(), self.options.generation
        )
        (claimed,) = await self.log.append(self._events, self.partition, [entry])
        self.fold = (await self._snapshot(claimed) or Fold()).reading()
        self._snapshot_at = self.fold.head.offset
        self._last_value = None
        recent = await self._read_to(claimed + 1)
        self.fold.ready()
        for topic in INPUTS:
            self.position[topic] = self.fold.head.sources.get(topic, -1) + 1
        found = [one for state in self.fold.cells.values() for one in open_orders(state)]
        await self._out.send(found + self._last_answers(recent))
        _log.info(
            "partition claimed",
            partition=self.partition,
            offset=claimed,
            read_from=self._snapshot_at,
            seq=self.fold.head.seq,
        )

    async def _snapshot(self, end: int) -> Fold | None:
        if self.snapshots is None:
            return None
        value_at = value_reader(self.log, self._events, self.partition)
        return await self.snapshots.load(self.partition, end, value_at)

    async def _read_to(self, end: int) -> Iterable[dict[str, Any]]:
        """Fold the log up to (not including) offset ``end``; return the last decisions."""
        recent: deque[dict[str, Any]] = deque(maxlen=MAX_BATCH)
        head = self.fold.head
        while head.offset < end:
            limit = min(_READ, end - head.offset)
            rows = await self.log.values(self._events, self.partition, head.offset, limit)
            if not rows:
                raise LogUnavailable(
                    f"{self._events}/{self.partition}: nothing to read at {head.offset},"
                    f" though it ends at {end}"
                )
            for offset, _time_us, value in rows:
                verdict, data = self.fold.apply(offset, value)
                self._last_value = value
                if verdict == "effective":
                    recent.append(data)
        return recent

    def _last_answers(self, recent: Iterable[dict[str, Any]]) -> list[Message]:
        """Answer the last batch before the claim again: whoever wrote it may not have.

        A batch is appended only after the messages of the one before were sent,
        and a snapshot is made only after all messages were, so no older answer
        can be missing. Effective decisions are counted, not offsets: claims and
        void records may lie between them.
        """
        keys = dict.fromkeys(key for record in recent for key in answered(record))
        found = [one for cell, key in keys for one in answer_again(self.fold.cells[cell], key)]
        return found + [one for record in recent for one in conflict_of(record)]

    # -- decide ------------------------------------------------------------

    def decide(self, topic: str, records: Sequence[Record], batch: Batch) -> None:
        """Decide records of one input topic, in order, into ``batch``.

        A record from before the position has been looked at already: it is
        answered again, not decided again. The state is speculative until
        `commit` has seen the batch in the log.
        """
        for record in records:
            found = ingest(record, topic)
            redelivered = record.offset < self.position[topic]
            if not redelivered:
                self.position[topic] = record.offset + 1
            if isinstance(found, Refusal):
                if not redelivered:
                    self._put_aside(record, found, batch)
                continue
            cell, given = found
            if record.offset <= self.fold.head.sources.get(topic, -1) or redelivered:
                self._again(cell, given, batch)
            else:
                self._decide(cell, given, record.offset, batch)

    def _decide(self, cell: str, given: Input, offset: int, batch: Batch) -> None:
        state = self.fold.cells.get(cell)
        if state is None:
            if given.type not in CREATES_CELL:
                self._no_cell(cell, given, batch)
                return
            state = self.fold.cell(cell)
        decision = decide(state, given)
        self.counts.codes[decision.code] += 1
        if not decision.recorded:
            self.counts.unrecorded += 1
            if decision.code == "duplicate":
                batch.again.extend(answer_again(state, given.key))
            else:
                batch.again.extend(messages(state, decision, None))
            return
        self._record(cell, decision, offset, batch)

    def _record(self, cell: str, decision: Decision, offset: int, batch: Batch) -> None:
        head = self.fold.head
        record = to_record(decision, cell=cell, token=self._token, seq=head.seq + 1, offset=offset)
        entry = decision_entry(cell, record)
        position = f"events/{self.partition}@{head.offset}"
        batch.cut()
        batch.entries.append(entry)
        state = self.fold.cells[cell]
        batch.messages.extend(messages(state, decision, position))
        self.fold.advance(decision.input.topic, offset, decision.time_us)
        head.offset += 1
        self._last_value = entry.value
        self.counts.decided += 1

    def _no_cell(self, cell: str, given: Input, batch: Batch) -> None:
        """Refuse a request without a record: a cell is made by policy or by its first node."""
        self.counts.unrecorded += 1
        self.counts.codes["unknown_cell"] += 1
        if given.topic == "requests":
            batch.again.append(
                refused_reply(given.source, given.id, "unknown_cell", {"cell": cell})
            )

    def _again(self, cell: str, given: Input, batch: Batch) -> None:
        self.counts.answered_again += 1
        state = self.fold.cells.get(cell)
        if state is not None and given.topic == "requests":
            batch.again.extend(answer_again(state, given.key, given.fingerprint))

    def _put_aside(self, record: Record, refusal: Refusal, batch: Batch) -> None:
        self.counts.dead_letters += 1
        batch.dead.append(dead_letter(record, refusal))
        _log.warning(
            "record put aside",
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            code=refusal.code,
        )
        if refusal.source is not None and refusal.id is not None:
            batch.refused.append(
                malformed_reply(refusal.source, refusal.id, refusal.code, refusal.detail)
            )

    # -- both --------------------------------------------------------------

    async def take(self, topic: str, records: Sequence[Record]) -> None:
        """Decide and commit records of one input topic, as a runner hands them over.

        What lies between the position and the first of them is read from the
        log first: a runner's own offsets are not trusted (DESIGN 2.1). Raises as
        `commit` does.
        """
        if not records:
            return
        await self._close_gap(topic, records[0].offset)
        for start in range(0, len(records), MAX_BATCH):
            batch = Batch()
            self.decide(topic, records[start : start + MAX_BATCH], batch)
            await self.commit(batch)

    async def _close_gap(self, topic: str, offset: int) -> None:
        name = full_name(self.options.prefix, topic)
        begin = await self.log.begin(name, self.partition) if self.position[topic] < offset else 0
        self.position[topic] = max(self.position[topic], begin)
        while self.position[topic] < offset:
            limit = min(MAX_BATCH, offset - self.position[topic])
            missed = await self.log.read(name, self.partition, self.position[topic], limit, 5.0)
            batch = Batch()
            self.decide(topic, missed, batch)
            await self.commit(batch)

    # -- append ------------------------------------------------------------

    async def commit(self, batch: Batch) -> None:
        """Append the batch's records, check where they went, then send its messages.

        Raise `Fenced` when another writer has taken the partition, and
        `LogUnavailable` when the outcome is unknown: either way this shard must
        be dropped and loaded again.
        """
        await self._out.refused(batch)
        total = len(batch.entries)
        decided_at = self.fold.head.offset - total
        for index, entries, said in batch.pieces():
            first = self.fold.head.offset - (total - index)
            offsets = await self._append(first, entries, said)
            if offsets and offsets[-1] != decided_at + index + len(entries) - 1:
                _move(said, dict(enumerate(offsets, decided_at + index)))
            await self._out.send(said)
        self._snapshot_if_due()

    async def _append(
        self, first: int, entries: Sequence[Entry], said: Sequence[Message]
    ) -> list[int]:
        """Append records that belong at offset ``first``; return where they are.

        Answers without a record need to know as well that the state they speak of
        is still the ledger's.
        """
        if entries:
            offsets = await self.log.append(self._events, self.partition, entries)
            end = offsets[-1] + 1
        elif said:
            offsets, end = [], await self.log.end(self._events, self.partition)
        else:
            return []
        if end - first < len(entries):
            raise Fenced(f"{self._events}/{self.partition}: the log was cut off at {end}")
        if end - first > len(entries):
            await self._look_between(first, end, set(offsets))
        return offsets

    async def _look_between(self, first: int, end: int, ours: set[int]) -> None:
        """Read what others have written from ``first`` to ``end``.

        A writer that was fenced and does not know it yet writes void records:
        they take offsets and change nothing. A claim makes ours void: `Fenced`.
        """
        others = 0
        offset = first
        while offset < end:
            records = await self.log.read(
                self._events, self.partition, offset, min(_READ, end - offset), 5.0
            )
            for record in records:
                if record.offset not in ours:
                    if not _is_decision(record.value):
                        raise Fenced(
                            f"{self._events}/{self.partition}: another writer is there, since"
                            f" {record.offset}"
                        )
                    others += 1
                    self._last_value = record.value if not ours else self._last_value
                offset = record.offset + 1
        self.fold.head.offset += others
        self.fold.head.void += others
        _log.warning("void records of another writer", partition=self.partition, records=others)

    def _snapshot_if_due(self) -> None:
        every = self.options.snapshot_every
        if every and self.fold.head.offset - self._snapshot_at >= every:
            self.save_snapshot()

    def save_snapshot(self) -> None:
        """Write a snapshot of the confirmed state; call it only after `commit` or `load`.

        It says as well that every answer up to it is out: a load from it gives no older one again.
        """
        if self.snapshots is not None and self.fold.head.offset > self._snapshot_at:
            self._snapshot_at = self.fold.head.offset
            try:
                self.snapshots.save(self.partition, self.fold, self._last_value)
            except OSError as error:
                # Derived data: a full disk makes the next load longer, and stops nobody.
                _log.warning("no snapshot", partition=self.partition, error=str(error))

    def next_due_us(self) -> int | None:
        """Return when something falls due in any of the partition's cells, or None."""
        dues = [state.index.deadlines.next_due_us(state) for state in self.fold.cells.values()]
        return min((due for due in dues if due is not None), default=None)


def _is_decision(value: bytes | None) -> bool:
    """Say whether a record is a decision: with another's token it is void."""
    try:
        return bool(orjson.loads(value or b"{}")["kind"] == "decision")
    except (orjson.JSONDecodeError, KeyError, TypeError):
        # Not ours to judge: the load that follows does.
        return False


def _move(said: Sequence[Message], places: dict[int, int]) -> None:
    """Correct the positions in replies whose records did not get the offsets expected."""
    for message in said:
        position = message[3].get("position")
        if position is not None:
            partition, _, offset = position.partition("@")
            message[3]["position"] = f"{partition}@{places[int(offset)]}"
