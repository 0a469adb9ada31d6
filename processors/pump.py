"""Feed an engine from the log itself: one reader for each input topic and partition.

Used by the runners that read for themselves (plain and embedded). The readers of
a partition take turns at its lock, one batch each, so neither topic starves the
other; reads wait at the log, so a lone input is handed over as soon as it is there.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from ledger.log.port import LogUnavailable
from ledger.wire import INPUTS
from processors.engine import DAMAGED
from schemas.topics import full_name

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from processors.engine import Engine

__all__ = ["Pace", "Pumps", "find_overlooked", "keep_time"]

_log = structlog.get_logger(__name__)

#: How long one wait at the log lasts, in seconds.
_WAIT_S = 1.0

#: How long to wait after a read that failed, in seconds.
_RETRY_S = 0.5

#: How soon it is looked again after something was written, doubled each time; and the least
#: wait, which is no longer than a clock's steps may be, in seconds.
_SOON_S, _LEAST_S = 0.05, 0.002

_US = 1_000_000


class Pumps:
    """The readers of the partitions that an engine holds."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._tasks: list[asyncio.Task[None]] = []
        #: Done with the error when a reader has failed for good.
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def start(self) -> None:
        """Begin to read for every partition assigned to the engine now."""
        for partition in self._engine.partitions:
            for topic in INPUTS:
                task = asyncio.create_task(self._pump(topic, partition))
                task.add_done_callback(self._ended)
                self._tasks.append(task)

    async def stop(self) -> None:
        """End the readers. Revoke the engine's partitions first: batches then end whole."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not self.failed.done():
            self.failed.set_exception(error)

    async def _pump(self, topic: str, partition: int) -> None:
        engine = self._engine
        name = full_name(engine.settings.prefix, topic)
        # Asked for anew each time: after a loss the engine may stand elsewhere.
        while (start := await engine.position(topic, partition)) is not None:
            try:
                size = engine.settings.batch
                records = await engine.log.read(name, partition, start, size, _WAIT_S)
            except DAMAGED:
                raise
            except LogUnavailable as error:
                _log.warning("inputs cannot be read", topic=name, error=str(error))
                await asyncio.sleep(_RETRY_S)
                continue
            if records:
                await engine.take(topic, partition, records)


class Pace:
    """When to look next for what time brings. Pure, but for how long the last wait was.

    At the moment when something is due that is known of; soon after something was written,
    since what follows from it may be due as well (a node that fell silent may be lost at
    once); else after ``tick_s``.
    """

    def __init__(self, tick_s: float) -> None:
        """Begin with the longest wait."""
        self._tick_s = self._wait_s = tick_s

    def wait_s(self, now_us: int, due_us: int | None, *, wrote: bool) -> float:
        """Return how long to wait from ``now_us`` on.

        ``due_us`` is when something falls due that was not at the last look; it may be by now.
        """
        self._wait_s = min(_SOON_S if wrote else 2 * self._wait_s, self._tick_s)
        if due_us is None:
            return self._wait_s
        return max(min(self._wait_s, (due_us - now_us) / _US), _LEAST_S)


async def keep_time(
    engine: Engine,
    clock: Callable[[], int],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Tick the engine for ever. ``clock`` returns UTC microseconds."""
    pace = Pace(engine.settings.tick_s)
    while True:
        looked_us = clock()
        wrote = await engine.tick(looked_us)
        # What fell due while it looked was not looked at.
        await sleep(pace.wait_s(clock(), engine.next_look_us(looked_us), wrote=wrote > 0))


async def find_overlooked(engine: Engine, clock: Callable[[], int]) -> None:
    """Look for inputs passed over, for ever: beside the ticks, which must not wait for a read."""
    while True:
        await engine.catch_up(clock())
        await asyncio.sleep(engine.settings.tick_s)
