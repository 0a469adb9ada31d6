"""What tests of the audit share: rooms with small and with drawn ledgers, and plain rows."""

from __future__ import annotations

from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import orjson

from ledger.audit.auditor import load
from ledger.audit.sql import Limits
from ledger.log.memory import MemoryLog
from tests.ledgers import PREFIX, TEAM
from tests.replay_support import put

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from ledger.audit.auditor import Room
    from ledger.log.port import Log
    from tests.ledgers import Site

__all__ = ["effective", "fill", "plain_events", "room_of", "room_with", "time_text"]


async def fill(site: Site) -> None:
    """Give a site requests that were granted, ended, wait and were refused."""
    await site.start(gpus=4)
    await site.submit("a", 2)
    await site.finish(f"{TEAM}#a/1")
    await site.submit("b", 3)
    await site.submit("c", 2)
    await site.submit("d", 2, max_wait_s=0)


@asynccontextmanager
async def room_of(log: Log, limits: Limits | None = None) -> AsyncIterator[Room]:
    """Load a log for the block."""
    room, _ = await load(log, PREFIX, limits or Limits())
    with room:
        yield room


@asynccontextmanager
async def room_with(
    *partitions: Sequence[bytes], limits: Limits | None = None
) -> AsyncIterator[Room]:
    """Load the records of partitions for the block."""
    log = MemoryLog()
    await put(log, PREFIX, *partitions)
    async with room_of(log, limits) as room:
        yield room


def effective(values: Sequence[bytes]) -> list[tuple[int, dict[str, Any]]]:
    """Return the decisions that count, with their offsets, by the rule in words of DESIGN 2.1."""
    found, token, seq, sources = [], "", 0, dict[str, int]()
    for offset, value in enumerate(values):
        record = orjson.loads(value)
        if record["kind"] == "claim":
            token = record["token"]
            continue
        topic, source = record["source"]
        if record["token"] != token or record["seq"] != seq + 1:
            continue
        if source <= sources.get(topic, -1):
            continue
        seq, sources[topic] = record["seq"], source
        found.append((offset, record))
    return found


def plain_events(values: Sequence[bytes]) -> Iterator[tuple[int, dict[str, Any], dict[str, Any]]]:
    """Yield (offset, record, event) of all events of decisions that count, in order."""
    for offset, record in effective(values):
        for event in record["events"]:
            yield offset, record, event


def time_text(time_us: int | None) -> str | None:
    """Return a time as an answer has it."""
    if time_us is None:
        return None
    time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_us)
    return str(time.replace(tzinfo=None))
