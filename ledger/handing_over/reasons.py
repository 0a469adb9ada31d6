"""Why a request waits, found out beside the wait and said when it is another reason than before.

Finding it out reads the log, which may be long: a grant, or a signal, must not wait for that.
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
        explain: Callable[[], Awaitable[str]],
        tell: Callable[..., None],
        broken: Callable[[BaseException], None],
    ) -> None:
        """``explain`` finds the reason, ``tell`` says it, ``broken`` takes what goes wrong."""
        self._explain = explain
        self._tell = tell
        self._broken = broken
        self._said = ""
        self._task: asyncio.Task[None] | None = None

    def __enter__(self) -> None:
        """Begin a wait: whatever was said in the one before, its reason is said."""
        self._said = ""

    def __exit__(self, *_: object) -> None:
        """End the wait: nothing more is said."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def look(self) -> None:
        """Find out why it waits, unless that is being done."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._find_out())

    async def _find_out(self) -> None:
        try:
            text = await self._explain()
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
