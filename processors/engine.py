"""The shards that one process holds, and what becomes of them when they are lost.

The three runners feed the same engine: they say which partitions are this
process's (`Engine.assign`, `Engine.revoke`) and hand over inputs (`Engine.take`).
A loss that the log explains (another writer, an unknown outcome) is answered by
loading again, as long as the partition is still assigned. Everything else is
raised, and the runner must end the process before it commits an offset: what
comes after a fault of ours must not be acknowledged.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from typing import TYPE_CHECKING

import structlog

from ledger.core.fold import LogDamaged as FoldDamaged
from ledger.log.port import LogDamaged, LogUnavailable
from ledger.shard import Fenced, Shard, ShardCounts, ShardOptions
from ledger.wire import INPUTS
from processors.metrics import Metrics
from processors.watch import Watch
from schemas.topics import full_name

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence

    from ledger.log.port import Log, Record
    from ledger.snapshots import SnapshotStore
    from processors.settings import Settings

__all__ = ["DAMAGED", "Engine"]

_log = structlog.get_logger(__name__)

#: Nobody may go past these: the log, or what is in it, is not what it should be.
DAMAGED = (LogDamaged, FoldDamaged)

#: The first wait before a partition is claimed again, and the longest, in seconds. Being
#: fenced means that somebody else believes to hold it: the group needs time to say who does.
_FENCED_S = 1.0
_UNAVAILABLE_S = 0.2
_LONGEST_S = 8.0

#: How long a batch under way may take to end when its partition goes away, in seconds.
_FINISH_S = 5.0

#: Read at a time when inputs were passed over.
_READ = 5000

#: How long an input may lie in the log, while nothing is handed over, before it is read here.
_OVERLOOKED_US = 5_000_000


class _Slot:
    """One assigned partition in one generation; ``shard`` is None until it is loaded."""

    def __init__(self, partition: int, generation: int) -> None:
        self.partition = partition
        self.generation = generation
        self.shard: Shard | None = None
        #: Held while the shard works: what is under way is never looked at half done.
        self.lock = asyncio.Lock()
        #: Set when the partition is no longer assigned.
        self.gone = asyncio.Event()
        #: Losses of each kind since the last work that was done.
        self.losses: Counter[str] = Counter()
        #: Input topic -> the offset below which everything is in the log and answered.
        self.answered: dict[str, int] = {}
        #: Input topic -> position, and since when (µs) it has not moved.
        self.still: dict[str, tuple[int, int]] = {}


class Engine:
    """``{partition: Shard}`` of one process, and the ticks and liveness of their cells.

    With ``give_up`` a fenced partition is not claimed again: `Fenced` is raised.
    """

    def __init__(
        self,
        log: Log,
        settings: Settings,
        snapshots: SnapshotStore | None = None,
        *,
        metrics: Metrics | None = None,
        give_up: bool = False,
    ) -> None:
        """Hold nothing yet: `assign` says what."""
        self.log = log
        self.settings = settings
        self.snapshots = snapshots
        self.metrics = metrics or Metrics()
        self.watch = Watch(log, settings)
        self._give_up = give_up
        self._slots: dict[int, _Slot] = {}
        # Spreads retries of workers that lost the same broker; no decision depends on it.
        self._random = random.Random()  # noqa: S311

    # -- which partitions ---------------------------------------------------

    @property
    def partitions(self) -> list[int]:
        """The partitions assigned now, in order."""
        return sorted(self._slots)

    def shard(self, partition: int) -> Shard | None:
        """Return the shard of an assigned partition if it is loaded: to look at, not to feed."""
        slot = self._slots.get(partition)
        return slot.shard if slot is not None else None

    async def assign(self, partitions: Iterable[int], generation: int) -> None:
        """Hold exactly ``partitions`` from now on; each is claimed and loaded at its first use.

        All are claimed anew, those held before too: in between, the group may
        have given them to another and back, and nobody tells (a worker that was
        frozen hears of one assignment only).
        """
        await self.revoke(list(self._slots))
        self._slots = {number: _Slot(number, generation) for number in partitions}
        _log.info("partitions assigned", partitions=self.partitions, generation=generation)

    async def revoke(self, partitions: Collection[int]) -> None:
        """Let go of ``partitions``. Batches under way may end, within `_FINISH_S`."""
        await self._release(partitions, lambda _shard: None)

    async def ready(self) -> None:
        """Claim and load every assigned partition now; raise as `take` does."""

        async def nothing(_shard: Shard) -> None:
            """Do nothing: loading is all that is wanted."""

        await self._on_each(lambda slot: self._insist(slot, nothing))

    async def close(self) -> None:
        """Let go of everything, and snapshot what is confirmed so that the next load is short."""

        def save(shard: Shard) -> None:
            if self.settings.snapshot_every:
                shard.save_snapshot()

        await self._release(list(self._slots), save)

    async def _release(self, partitions: Collection[int], last: Callable[[Shard], None]) -> None:
        slots = [self._slots.pop(number) for number in partitions if number in self._slots]
        for slot in slots:
            slot.gone.set()
        for slot in slots:
            try:
                async with asyncio.timeout(_FINISH_S), slot.lock:
                    if slot.shard is not None:
                        last(slot.shard)
                        slot.shard = None
            except TimeoutError:
                # It ends by itself: `gone` is set, and what it appends the log will judge.
                _log.warning("a batch did not end in time", partition=slot.partition)
            self.metrics.forget(slot.partition)

    # -- inputs ------------------------------------------------------------

    async def take(self, topic: str, partition: int, records: Sequence[Record]) -> bool:
        """Decide records of one input topic (without prefix), append, answer.

        Return when all of it is in the log and the answers are out: True. False
        when the partition is not, or no longer, assigned: whoever holds it reads
        from where the ledger stands. Raise `DAMAGED` and whatever is a bug.
        """
        slot = self._slots.get(partition)
        if slot is None:
            return False

        async def work(shard: Shard) -> None:
            size = self.settings.batch
            for start in range(0, len(records), size):
                await shard.take(topic, records[start : start + size])

        return await self._insist(slot, work)

    async def position(self, topic: str, partition: int) -> int | None:
        """Return the next offset to hand over of an input topic; None when not assigned."""
        slot = self._slots.get(partition)
        found: list[int] = []

        async def look(shard: Shard) -> None:
            found.append(shard.position[topic])

        if slot is None or not await self._insist(slot, look):
            return None
        return found[0]

    def answered(self, topic: str, partition: int) -> int | None:
        """Return the offset below which all inputs are answered; None when not known here."""
        slot = self._slots.get(partition)
        return slot.answered.get(topic) if slot is not None else None

    async def _insist(self, slot: _Slot, work: Callable[[Shard], Awaitable[None]]) -> bool:
        """Do ``work`` on the loaded shard, from the start after each loss, while assigned."""
        async with slot.lock:
            while not slot.gone.is_set():
                try:
                    shard = slot.shard or await self._load(slot)
                    await work(shard)
                except DAMAGED:
                    slot.shard = None
                    raise
                except (Fenced, LogUnavailable) as error:
                    slot.shard = None
                    await self._back_off(slot, error)
                except BaseException:
                    # Cancelled or broken in the middle: what it believes may not be in the log.
                    slot.shard = None
                    raise
                else:
                    slot.losses.clear()
                    slot.answered = dict(shard.position)
                    self.metrics.worked(shard.counts)
                    shard.counts = ShardCounts()
                    return True
        return False

    async def _load(self, slot: _Slot) -> Shard:
        settings = self.settings
        options = ShardOptions(
            settings.prefix, settings.worker, slot.generation, settings.snapshot_every
        )
        shard = Shard(self.log, slot.partition, options, self.snapshots)
        started = time.monotonic()
        await shard.load()
        self.metrics.loaded(slot.partition, time.monotonic() - started, shard.fold.head.void)
        slot.shard = shard
        return shard

    async def _back_off(self, slot: _Slot, error: Exception) -> None:
        fenced = isinstance(error, Fenced)
        cause = "fenced" if fenced else "unavailable"
        self.metrics.lost(cause)
        if fenced and self._give_up:
            # Whoever waits for this partition's lock must not claim it either.
            slot.gone.set()
            raise error
        # Beyond ten doublings the longest wait is reached anyway.
        doubled = 2.0 ** min(slot.losses[cause], 10)
        slot.losses[cause] += 1
        wait_s = min(
            _LONGEST_S, (_FENCED_S if fenced else _UNAVAILABLE_S) * doubled
        ) * self._random.uniform(0.5, 1.0)
        _log.warning(
            "partition lost, claiming it again while it is assigned",
            partition=slot.partition,
            error=str(error),
            wait_s=round(wait_s, 3),
        )
        try:
            async with asyncio.timeout(wait_s):
                await slot.gone.wait()
        except TimeoutError:
            return

    async def _on_each(self, work: Callable[[_Slot], Awaitable[object]]) -> None:
        """Do ``work`` for every slot at once; the first error ends the others and is raised."""
        slots = list(self._slots.values())
        if not slots:
            return
        try:
            async with asyncio.TaskGroup() as group:
                for slot in slots:
                    group.create_task(_call(work, slot))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    # -- time --------------------------------------------------------------

    async def tick(self, now_us: int) -> int:
        """Write what time brings onto the observations; return how many were written.

        A tick for each cell where something is due at ``now_us``, and the
        nodes that fell silent or are heard again. A log that cannot be reached is
        told and left for the next tick.
        """
        try:
            await self.watch.hear(now_us)
            shards = [slot.shard for slot in self._slots.values() if slot.shard is not None]
            return sum([await self.watch.write(shard, now_us) for shard in shards])
        except DAMAGED:
            raise
        except LogUnavailable as error:
            _log.warning("tick left out", error=str(error))
            return 0

    def next_due_us(self) -> int | None:
        """Return when something falls due in any cell held here (UTC µs), or None."""
        shards = [slot.shard for slot in self._slots.values() if slot.shard is not None]
        dues = [due for shard in shards if (due := shard.next_due_us()) is not None]
        return min(dues, default=None)

    def next_look_us(self, now_us: int) -> int | None:
        """Return when time brings something next: a deadline, or a node's silence (UTC µs)."""
        cells = [slot.shard.fold.cells for slot in self._slots.values() if slot.shard is not None]
        silences = [self.watch.liveness.next_us(each) for each in cells]
        dues = [due for due in (self.next_due_us(), *silences) if due is not None and due > now_us]
        return min(dues, default=None)

    async def catch_up(self, now_us: int) -> None:
        """Take the inputs that the runner's own reading has passed over.

        For a runner whose offsets are not the ledger's (Faust commits its own, and
        passes over what it held at a rebalance): where a position has not moved for
        `_OVERLOOKED_US`, what lies there is read from the log. Sets the lag.
        """
        try:
            for slot in list(self._slots.values()):
                for topic in INPUTS:
                    await self._catch_up(slot, topic, now_us)
        except DAMAGED:
            raise
        except LogUnavailable as error:
            _log.warning("inputs not looked for", error=str(error))

    async def _catch_up(self, slot: _Slot, topic: str, now_us: int) -> None:
        shard = slot.shard
        if shard is None:
            return
        position = shard.position[topic]
        name = full_name(self.settings.prefix, topic)
        waiting = max(await self.log.end(name, slot.partition) - position, 0)
        self.metrics.lag(topic, slot.partition, waiting)
        before, since_us = slot.still.get(topic, (None, now_us))
        if before != position or not waiting:
            since_us = now_us
        if now_us - since_us < _OVERLOOKED_US:
            slot.still[topic] = (position, since_us)
            return
        # Looked for once in this while, found or not: what lies there need not be a record
        # (the mark at the end of a client's Kafka transaction takes an offset too).
        slot.still[topic] = (position, now_us)
        _log.warning(
            "reading inputs that were passed over",
            topic=name,
            partition=slot.partition,
            offset=position,
            records=waiting,
        )
        while records := await self.log.read(name, slot.partition, position, _READ):
            if not await self.take(topic, slot.partition, records):
                return
            position = records[-1].offset + 1


async def _call(work: Callable[[_Slot], Awaitable[object]], slot: _Slot) -> None:
    await work(slot)
