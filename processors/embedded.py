"""The embedded loop: one process serves a whole log. The default on one machine.

The same records, the same engine as on Kafka; what is missing is a group that
says who holds what. So the newest loop on a log takes it over from an older
one, which ends with `Fenced`: two servers of one file are a mistake, and taking
turns would only hide it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.log.wakeup import wall_clock_us
from ledger.loops import run_until
from ledger.wire import INPUTS
from processors.engine import Engine
from processors.pump import Pumps, keep_time
from processors.setup import check_topics, snapshot_store
from schemas.topics import full_name

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from ledger.log.port import Log
    from processors.metrics import Metrics
    from processors.settings import Settings

__all__ = ["EmbeddedLoop", "run"]


class EmbeddedLoop:
    """Serve all partitions of ``log``, step by step as the caller says (tests, the demo).

    ``clock`` returns UTC microseconds, as the log's own does. Call `start`, then
    `step` and `tick` as often as wanted, then `close`.
    """

    def __init__(
        self,
        log: Log,
        settings: Settings,
        clock: Callable[[], int] = wall_clock_us,
        metrics: Metrics | None = None,
    ) -> None:
        self.log = log
        self.settings = settings
        self.clock = clock
        self.engine = Engine(log, settings, snapshot_store(settings), metrics=metrics, give_up=True)

    async def start(self) -> None:
        """Claim and load every partition.

        Raise `Refused` when the topics are missing or do not match each other,
        and what `Engine.take` raises.
        """
        count = await check_topics(self.log, self.settings)
        await self.engine.assign(range(count), 0)
        await self.engine.ready()

    async def step(self) -> int:
        """Take everything that is in the input topics now; return how many inputs it was.

        What is appended meanwhile is taken too. Raises as `Engine.take` does, `Fenced`
        when another loop has taken over, and `LogUnavailable` when inputs cannot be read.
        """
        handled = 0
        while taken := sum(
            [
                await self._take(topic, partition)
                for partition in self.engine.partitions
                for topic in INPUTS
            ]
        ):
            handled += taken
        return handled

    async def _take(self, topic: str, partition: int) -> int:
        start = await self.engine.position(topic, partition)
        if start is None:
            return 0
        name = full_name(self.settings.prefix, topic)
        records = await self.log.read(name, partition, start, self.settings.batch)
        await self.engine.take(topic, partition, records)
        return len(records)

    async def tick(self, now_us: int | None = None) -> int:
        """Write what is due at ``now_us`` (the clock's time); return how many observations."""
        return await self.engine.tick(self.clock() if now_us is None else now_us)

    def next_due_us(self) -> int | None:
        """Return when something falls due in any cell (UTC µs), or None."""
        return self.engine.next_due_us()

    async def close(self) -> None:
        """Snapshot the confirmed state and let go. The log stays open: it is the caller's."""
        await self.engine.close()


async def run(
    log: Log, settings: Settings, stop: asyncio.Event, metrics: Metrics | None = None
) -> None:
    """Serve ``log`` until ``stop`` is set; raise as `EmbeddedLoop.start` and `step` do."""
    loop = EmbeddedLoop(log, settings, metrics=metrics)
    pumps = Pumps(loop.engine)
    try:
        # A log that cannot be written to now is tried until it can: that, too, ends when asked.
        await run_until(stop, loop.start())
        if not stop.is_set():
            pumps.start()
            await run_until(stop, pumps.failed, keep_time(loop.engine, loop.clock))
    finally:
        await loop.close()
        await pumps.stop()
