"""Loops side by side: they end together, and no error of any is lost."""

from __future__ import annotations

import asyncio

import pytest

from ledger.loops import run_until


async def for_ever(ended: list[str], error: Exception | None = None) -> None:
    """Run until it is cancelled, and say so; then meet an error, if one is given."""
    try:
        await asyncio.Event().wait()
    finally:
        ended.append("cancelled")
        if error is not None:
            raise error


async def fails(error: Exception) -> None:
    """Meet an error at once."""
    raise error


async def test_they_run_until_they_are_told_to_stop() -> None:
    """All of them, and what is only waited for is let go, too."""
    stop, ended = asyncio.Event(), list[str]()
    failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    running = asyncio.create_task(run_until(stop, for_ever(ended), failed, for_ever(ended)))
    await asyncio.sleep(0.01)
    assert ([], False) == (ended, running.done())
    stop.set()
    await running
    assert (["cancelled"] * 2, True) == (ended, failed.cancelled())


async def test_one_that_ends_ends_the_others() -> None:
    """Without an error there is none."""
    ended: list[str] = []
    await run_until(asyncio.Event(), for_ever(ended), asyncio.sleep(0))
    assert ["cancelled"] == ended


async def test_the_first_error_is_raised_and_none_is_lost() -> None:
    """In the order given, not in which they came; also one of a loop that was cancelled."""
    ended: list[str] = []
    with pytest.raises(ValueError, match="second"):
        await run_until(asyncio.Event(), for_ever(ended), fails(ValueError("second")))
    with pytest.raises(OSError, match="first"):
        await run_until(
            asyncio.Event(), for_ever(ended, OSError("first")), fails(ValueError("second"))
        )
    stop = asyncio.Event()
    stop.set()
    with pytest.raises(OSError, match="at the end"):
        await run_until(stop, for_ever(ended, OSError("at the end")))


async def test_who_cancels_it_cancels_all() -> None:
    """And is not told of another error."""
    ended: list[str] = []
    running = asyncio.create_task(run_until(asyncio.Event(), for_ever(ended)))
    await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ["cancelled"] == ended
