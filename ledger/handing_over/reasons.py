"""Why a request waits, found out beside the wait and said when it is another reason than before.

Finding it out reads the log, which may be long: a grant, or a signal, must not wait for that.
Within one wait the log is read once, and then what is new of it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ledger.log.port import LogDamaged, LogUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["Reasons"]


class Reasons:
    """Within a ``with`` block, which is a wait: call `look` whenever it may be another."""

    def __init__(
        self,
        explainer: Callable[[], Callable[[], Awaitable[str]]],
        tell: Callable[..., None],
        broken: Callable[[BaseException], None],
    ) -> None:
        """``tell`` says a reason, ``broken`` takes what goes wrong.

        ``explainer`` makes for each wait what finds the reason. That may keep what it has read:
        it is let go of with the wait, so that no command runs beside the whole state of a site.
        """
        self._explainer = explainer
        self._explain: Callable[[], Awaitable[str]] | None = None
        self._tell = tell
        self._broken = broken
        self._said = ""
        self._task: asyncio.Task[None] | None = None

    def __enter__(self) -> None:
        """Begin a wait: whatever was said in the one before, its reason is said."""
        self._said = ""
        self._explain = self._explainer()

    def __exit__(self, *_: object) -> None:
        """End the wait: nothing more is said."""
        self._explain = None
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def look(self) -> None:
        """Find out why it waits, unless that is being done."""
        if self._task is None or self._task.done():
            assert self._explain is not None, "a wait has begun"
            self._task = asyncio.create_task(self._find_out(self._explain))

    async def _find_out(self, explain: Callable[[], Awaitable[str]]) -> None:
        try:
            text = await explain()
        except LogDamaged as error:
            self._broken(error)
            return
        except LogUnavailable:
            # A request keeps its place in line while the log is away: the next look tells more.
            return
        except Exception as error:  # noqa: BLE001 - whoever waits raises it
            self._broken(error)
            return
        if text and text != self._said:
            self._said = text
            self._tell("waits", text)
