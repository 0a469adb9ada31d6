"""Ctrl-C ends a command soon: also one that is reading or counting and awaits nothing.

The first Ctrl-C cancels a command's task, which takes effect where it next awaits something;
so it can give back what it holds. A command that does not come to that within `_SOON_S` is
interrupted where it stands.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from types import FrameType

__all__ = ["run_until_interrupted"]

#: How long a command may take to notice that it is to end, in seconds.
_SOON_S = 0.5


def run_until_interrupted(work: Coroutine[object, object, None]) -> None:
    """Run it in an event loop of its own; raise `KeyboardInterrupt` after Ctrl-C."""
    asyncio.run(_attended(work))


async def _attended(work: Coroutine[object, object, None]) -> None:
    cancels = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(cancels):
        # Signals are the main thread's; where they are ignored they stay so.
        await work
        return
    loop = asyncio.get_running_loop()

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, _SOON_S)
        loop.call_soon_threadsafe(signal.setitimer, signal.ITIMER_REAL, 0)
        cancels(number, frame)

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    try:
        await work
    finally:
        if signal.getsignal(signal.SIGALRM) is stop:
            signal.setitimer(signal.ITIMER_REAL, 0)
        # Whoever ran the loop finds the signal as it left it.
        if signal.getsignal(signal.SIGINT) is interrupt:
            signal.signal(signal.SIGINT, cancels)
