"""A service's or operator's side of the ledger: put a request on the log, await the answer.

Works on any log. Delivery is at least once in both directions: a request may be
sent again under its own id (same id and same content get the same answer), and
a reply that comes twice is handed out once.
"""

from __future__ import annotations

import asyncio
import getpass
import re
import secrets
import time
import uuid
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog
from pydantic import ValidationError

from ledger.log.partition import partition_of
from ledger.wire import input_entry
from schemas.compatibility import CompatibilityApply, LicenceApply
from schemas.messages import Reply
from schemas.placement import PlacementApply
from schemas.prices import PricesApply
from schemas.requests import (
    DeviceClear,
    DeviceMode,
    DevicePartition,
    LeaseExtend,
    LeaseReclaim,
    LeaseRelease,
    NodeSet,
    PoolApply,
    QueueApply,
    QuotaAnswer,
    QuotaApply,
    QuotaAsk,
    RequestCancel,
    RequestSubmit,
    TaskBegin,
)
from schemas.reservations import ReservationApply, ReservationCancel
from schemas.templates import TemplateApply
from schemas.topics import full_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from ledger.log.port import Log, Record
    from schemas.base import Model

__all__ = ["ANSWER_S", "Client", "NoAnswer", "Sent", "default_source", "new_id"]

_log = structlog.get_logger(__name__)

#: How long to wait for an answer unless told otherwise, in seconds.
ANSWER_S = 15.0

#: How long one wait at the log lasts: a cancelled caller is let go by then.
_POLL_S = 0.5

#: How many replies are remembered to tell a copy from a new one.
_REMEMBERED = 10_000

_TYPES: dict[type[Model], str] = {
    RequestSubmit: "request.submit",
    RequestCancel: "request.cancel",
    LeaseRelease: "lease.release",
    LeaseReclaim: "lease.reclaim",
    PoolApply: "pool.apply",
    PlacementApply: "placement.apply",
    QueueApply: "queue.apply",
    QuotaApply: "quota.apply",
    QuotaAsk: "quota.ask",
    QuotaAnswer: "quota.answer",
    LeaseExtend: "lease.extend",
    TaskBegin: "task.begin",
    TemplateApply: "template.apply",
    CompatibilityApply: "compatibility.apply",
    LicenceApply: "licence.apply",
    PricesApply: "prices.apply",
    NodeSet: "node.set",
    DeviceClear: "device.clear",
    DevicePartition: "device.partition",
    DeviceMode: "device.mode",
    ReservationApply: "reservation.apply",
    ReservationCancel: "reservation.cancel",
}


class NoAnswer(Exception):
    """Nobody has answered in time. The request is in the log and may still be decided."""

    def __init__(self, request: str, waited_s: float) -> None:
        super().__init__(f"no answer to {request} within {waited_s:g} s")
        self.request = request
        self.waited_s = waited_s


def new_id() -> str:
    """Return a new id that sorts by time: a UUID of version 7 (RFC 9562)."""
    milliseconds = time.time_ns() // 1_000_000
    bits = (
        milliseconds << 80 | 7 << 76 | secrets.randbits(12) << 64 | 2 << 62 | secrets.randbits(62)
    )
    return str(uuid.UUID(int=bits))


def default_source() -> str:
    """Return ``/cli/USER``: who speaks when nobody says so."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"  # a container's user may have no name
    # A name of the ledger, so that it can be an author too.
    return "/cli/" + (re.sub(r"[^A-Za-z0-9._-]", "-", user).lstrip("._-")[:63] or "unknown")


@dataclass(frozen=True, slots=True)
class Sent:
    """A request that is in the log: its id, and from where its replies are to be read."""

    id: str
    key: str
    replies_from: int


class Client:
    """Speaks as ``source`` to one cell of the ledger on ``log``.

    Replies are those to ``source``: clients that share one see each other's.
    """

    def __init__(
        self, log: Log, cell: str, *, prefix: str = "gpuledger", source: str | None = None
    ) -> None:
        self._log = log
        self.cell = cell
        self.source = default_source() if source is None else source
        self._requests = full_name(prefix, "requests")
        self._replies = full_name(prefix, "replies")

    async def send(self, data: Model, id: str | None = None) -> Sent:  # noqa: A002 - CloudEvents
        """Put a request on the log under ``id`` (a new one, when None).

        Raise ValueError for a source or id that no ledger takes; the log's
        errors pass.
        """
        event_id = new_id() if id is None else id
        plain = data.model_dump(mode="json", exclude_unset=True)
        if isinstance(data, RequestSubmit) and "ask" in plain:
            plain["ask"]["mode"] = data.ask.mode  # a default to the model, a must on the wire
        entry = input_entry(self.cell, _TYPES[type(data)], self.source, event_id, plain)
        start = await self._log.end(self._replies, await self._partition())
        await self._log.append(self._requests, None, [entry])
        return Sent(event_id, f"{self.source}#{event_id}", start)

    async def ask(
        self,
        data: Model,
        id: str | None = None,  # noqa: A002 - the CloudEvents attribute
        *,
        timeout_s: float = ANSWER_S,
    ) -> Reply:
        """Send a request and return the first answer to it; raise `NoAnswer`."""
        return await self.answer(await self.send(data, id), timeout_s=timeout_s)

    async def submit(
        self,
        request: RequestSubmit,
        id: str | None = None,  # noqa: A002 - the CloudEvents attribute
        *,
        final: bool = False,
        timeout_s: float = ANSWER_S,
    ) -> Reply:
        """Ask for devices; return the first answer, or the final one with ``final``.

        Raise `NoAnswer`; see `answer`.
        """
        return await self.answer(await self.send(request, id), final=final, timeout_s=timeout_s)

    async def cancel(self, request: str, reason: str = "", *, timeout_s: float = ANSWER_S) -> Reply:
        """Withdraw one's own request (``source#id``); raise `NoAnswer`."""
        return await self.ask(RequestCancel(request=request, reason=reason), timeout_s=timeout_s)

    async def release(self, lease: str, *, timeout_s: float = ANSWER_S) -> Reply:
        """Give back one's own lease (``source#id/attempt``); raise `NoAnswer`."""
        return await self.ask(LeaseRelease(lease=lease), timeout_s=timeout_s)

    async def answer(
        self, sent: Sent, *, final: bool = False, timeout_s: float | None = ANSWER_S
    ) -> Reply:
        """Return the first answer to what was sent; with ``final`` the first that is final.

        A ``refused`` or ``malformed`` answer is one in either case. Raise
        `NoAnswer` after ``timeout_s`` seconds (None: wait for ever).
        """
        try:
            async with asyncio.timeout(timeout_s):
                async for reply in self.watch(sent.replies_from):
                    over = reply.final or reply.answer in ("refused", "malformed")
                    if reply.input == sent.key and (over or not final):
                        return reply
        except TimeoutError:
            pass
        raise NoAnswer(sent.key, timeout_s or 0.0)

    async def watch(self, start: int | None = None) -> AsyncIterator[Reply]:
        """Yield the replies to this source, each once, for ever.

        ``start`` is an offset of the replies topic; None begins with what comes
        from now on. A reply that this program cannot read is logged and passed over:
        it was written by a newer one.
        """
        partition = await self._partition()
        begin = await self._log.begin(self._replies, partition)
        at = await self._log.end(self._replies, partition) if start is None else max(start, begin)
        mine = self.source.encode()
        seen: OrderedDict[str, None] = OrderedDict()
        while True:
            for record in await self._log.read(self._replies, partition, at, 1000, _POLL_S):
                at = record.offset + 1
                if record.key != mine:
                    continue
                reply = _reply(record)
                if reply is None or not _first_time(seen, reply):
                    continue
                yield reply

    async def first_reply(self) -> int:
        """Return the offset of the oldest reply that the log still has, for `watch`."""
        return await self._log.begin(self._replies, await self._partition())

    async def _partition(self) -> int:
        return partition_of(self.source.encode(), await self._log.partitions(self._replies))


def _reply(record: Record) -> Reply | None:
    try:
        return Reply.model_validate_json(record.value or b"")
    except ValidationError as error:
        place = f"{record.topic}/{record.partition}@{record.offset}"
        _log.warning("reply cannot be read", position=place, error=str(error)[:500])
        return None


def _first_time(seen: OrderedDict[str, None], reply: Reply) -> bool:
    """Say whether the reply is new, and remember it.

    One that is said again names no position: it is a copy when anything like it
    was seen. One with a position is new when that was not seen with it.
    """
    about = f"{reply.input} {reply.answer} {reply.attempt}"
    exact = f"{about} {reply.code} {reply.position}"
    known = about in seen if reply.position is None else exact in seen
    seen[about] = seen[exact] = None
    while len(seen) > _REMEMBERED:
        seen.popitem(last=False)
    return not known
