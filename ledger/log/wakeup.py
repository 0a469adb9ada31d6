"""Sleep until something was appended, without losing a wake-up."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ledger.log.port import Record

__all__ = ["Wakeup", "read_or_wait", "wall_clock_us"]


def wall_clock_us() -> int:
    """Return the time of day in UTC microseconds since 1970."""
    return time.time_ns() // 1000


class Wakeup:
    """One signal for all readers of a log.

    A reader takes the signal *before* it looks, and waits for that same signal
    when it found nothing: an append in between has set it already.
    """

    def __init__(self) -> None:
        """Begin with nothing signalled."""
        self._signal = asyncio.Event()

    def signal(self) -> asyncio.Event:
        """Return the event that the next `notify` sets."""
        return self._signal

    def notify(self) -> None:
        """Wake every reader that took the signal before now."""
        self._signal.set()
        self._signal = asyncio.Event()


async def read_or_wait(
    wakeup: Wakeup, read_now: Callable[[], Awaitable[list[Record]]], wait_s: float
) -> list[Record]:
    """Call ``read_now`` until it returns records or ``wait_s`` seconds have passed."""
    deadline = time.monotonic() + wait_s
    while True:
        signal = wakeup.signal()
        records = await read_now()
        left_s = deadline - time.monotonic()
        if records or left_s <= 0:
            return records
        try:
            async with asyncio.timeout(left_s):
                await signal.wait()
        except TimeoutError:
            # One last look: an append may have come with the time-out.
            deadline = 0.0
