"""Loops that run side by side until they are told to stop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Coroutine

__all__ = ["run_until"]


async def run_until(
    stop: asyncio.Event, *loops: Coroutine[None, None, None] | asyncio.Future[None]
) -> None:
    """Run the loops until ``stop`` is set or one of them ends; then cancel what still runs.

    Raise the first error of any of them, in the order in which they are given; one that a loop
    meets while it is cancelled is an error, too.
    """
    waiting = asyncio.ensure_future(stop.wait())
    tasks = [asyncio.ensure_future(loop) for loop in loops]
    try:
        await asyncio.wait([waiting, *tasks], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (waiting, *tasks):
            task.cancel()
        # Gathered, so that a second error is not complained about as one that nobody saw.
        ends = await asyncio.gather(waiting, *tasks, return_exceptions=True)
    for end in ends:
        if isinstance(end, Exception):
            raise end
