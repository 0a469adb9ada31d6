"""The loops of an agent: they run side by side until it is told to stop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable

__all__ = ["run_until"]


async def run_until(stop: asyncio.Event, loops: Iterable[Coroutine[None, None, None]]) -> None:
    """Run the loops until ``stop`` is set or one of them ends; raise the first error of any."""
    tasks = [asyncio.create_task(loop) for loop in loops]
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (stopped, *tasks):
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    for end in ends:
        if isinstance(end, Exception):
            raise end
