"""A wrapper's side of the log: its request, and everything it says about it, each once.

What is said about a request has an id derived from the request's, whoever says it: so a
wrapper that tries again, and one that cleans up after it, say the same thing, and the
ledger decides it once.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from ledger.log.port import LogDamaged, LogUnavailable
from schemas.requests import LeaseExtend, LeaseRelease, RequestCancel, TaskBegin

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from typing import Literal

    from ledger.client import Client, Sent
    from schemas.base import Model
    from schemas.messages import Reply

__all__ = ["MAX_ID", "Talk", "attempt_of"]

#: The longest id of a request: what is said about it has a longer one.
MAX_ID = 100

#: How long something is tried to be put on a log that is away, in seconds.
_PATIENCE_S = 60.0
_FIRST_RETRY_S = 0.1
_LONGEST_RETRY_S = 2.0

#: How long it is waited at a command's end that its start is on the log, in seconds.
_BEGUN_S = 2.0


def attempt_of(lease: str) -> int:
    """Return which of its request's leases this is, from 1 on."""
    return int(lease.rpartition("/")[2])


class Talk:
    """Speaks about one request of a client's, and hears what is said about it."""

    def __init__(self, client: Client, event_id: str) -> None:
        self._client = client
        self.id = event_id
        self.request = f"{client.source}#{event_id}"

    async def submit(self, data: Model) -> Sent:
        """Ask; the log's errors pass, because nothing has begun."""
        return await self._client.send(data, self.id)

    async def cancel(self, reason: str) -> Sent:
        """Withdraw the request, waiting or running."""
        return await self.put(RequestCancel(request=self.request, reason=reason), "cancel")

    async def release(self, lease: str, how: Literal["completed", "failed"]) -> Sent:
        """Give a lease back."""
        return await self.put(LeaseRelease(lease=lease, how=how), f"release.{attempt_of(lease)}")

    async def extend(self, lease: str, more_s: int, number: int) -> Sent:
        """Ask for a longer longest run, for the ``number``-th time."""
        name = f"extend.{attempt_of(lease)}.{number}"
        return await self.put(LeaseExtend(lease=lease, more_s=more_s), name)

    @asynccontextmanager
    async def telling_begun(self, lease: str, node: str, after_s: float) -> AsyncIterator[None]:
        """Say beside what is done here that the command was started, ``after_s`` after the grant.

        It is told for the record: a command neither waits for it nor fails with it.
        """
        said_us = time.time_ns() // 1000
        told = TaskBegin(lease=lease, node=node, said_us=said_us, after_us=int(after_s * 1_000_000))
        telling = asyncio.create_task(self.put(told, f"begin.{attempt_of(lease)}"))
        try:
            yield
        finally:
            await asyncio.wait([telling], timeout=_BEGUN_S)
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)

    async def put(self, data: Model, name: str) -> Sent:
        """Put it on the log, again and again while that is away, always under one id."""
        clock = asyncio.get_running_loop().time
        until, wait_s = clock() + _PATIENCE_S, _FIRST_RETRY_S
        while True:
            try:
                return await self._client.send(data, f"{self.id}.{name}")
            except LogUnavailable as error:
                if isinstance(error, LogDamaged) or clock() + wait_s > until:
                    raise
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_RETRY_S)

    async def listen(self, start: int, hear: Callable[[Reply], None]) -> None:
        """Hand over every reply about the request from an offset on, each once, for ever.

        A log that is away is waited for; its other errors pass.
        """
        known: set[tuple[object, ...]] = set()
        while True:
            try:
                async for reply in self._client.watch(start):
                    about = (reply.input, reply.answer, reply.attempt, reply.code, reply.position)
                    if self._mine(reply) and about not in known:
                        known.add(about)
                        hear(reply)
            except LogUnavailable as error:
                if isinstance(error, LogDamaged):
                    raise
                await asyncio.sleep(_LONGEST_RETRY_S)

    def _mine(self, reply: Reply) -> bool:
        return reply.input == self.request or reply.input.startswith(f"{self.request}.")
