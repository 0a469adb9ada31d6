"""Reports of logs in memory, and what plain Python counts in the same records."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import orjson

from ledger.core.digest import digest
from ledger.log.memory import MemoryLog
from ledger.operations.gather import edges_of, gather
from ledger.operations.measure import Window
from ledger.operations.trial import Trial
from ledger.reading import cells_of
from tests.ledgers import PREFIX
from tests.replay_support import put

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ledger.billing.prices import Prices
    from ledger.log.port import Log

__all__ = ["Plain", "decided", "gathered", "trial_of", "windows_of"]


async def windows_of(
    log: Log, prefix: str, windows: Sequence[Window], prices: Prices | None = None
) -> list[Trial]:
    """Return what is gathered of windows; of none, of the whole log."""
    edges = await edges_of(log, prefix)
    assert edges is not None
    whole = [(Window(edges.first_us, edges.end_us + 1), edges.last_us)]
    wanted = [(one, one.end_us) for one in windows] or whole
    found = [Trial(window, "UTC", until_us) for window, until_us in wanted]
    folds = await gather(log, prefix, found, max(until_us for _, until_us in wanted))
    for one in found:
        one.finish(prices)
        one.digest = digest(cells_of(folds))
    return found


def gathered(
    values: Sequence[bytes], *windows: Window, prices: Prices | None = None
) -> list[Trial]:
    """Return what is gathered of a ledger's records in memory."""

    async def work() -> list[Trial]:
        async with MemoryLog() as log:
            await put(log, PREFIX, values)
            return await windows_of(log, PREFIX, windows, prices)

    return asyncio.run(work())


def trial_of(values: Sequence[bytes], *, prices: Prices | None = None) -> Trial:
    """Return what is gathered of a whole log."""
    (found,) = gathered(values, prices=prices)
    return found


def decided(values: Sequence[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the decisions that count, by the rules of the log alone."""
    token, seq, newest = "", 0, dict[str, int]()
    for value in values:
        record = orjson.loads(value)
        if record["kind"] == "claim":
            token = record["token"]
            continue
        topic, offset = record["source"]
        if record["token"] == token and record["seq"] == seq + 1 and offset > newest.get(topic, -1):
            seq, newest[topic] = seq + 1, offset
            yield record


class Plain:
    """What happened to requests in a window, counted from the records' bytes by other means.

    One pass that keeps everything, then questions of what was kept.
    """

    def __init__(self, values: Sequence[bytes], start_us: int = 0, end_us: int = 10**18) -> None:
        self.counts: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()
        self.types: Counter[str] = Counter()
        self.waits_us: list[int] = []
        self.repairs_us: list[int] = []
        received: dict[str, int] = {}
        waiting: dict[str, int] = {}
        granted: set[str] = set()
        owner: dict[str, str] = {}
        broken: dict[str, int] = {}
        for record in decided(values):
            now = record["time_us"]
            if now >= end_us:
                break
            within = now >= start_us
            for event in record["events"]:
                kind = event["type"]
                self.types[kind] += within
                if kind == "request.received":
                    received[event["request"]] = waiting[event["request"]] = now
                elif kind == "request.rejected" and within:
                    self.refused[event["code"]] += 1
                elif kind == "request.queued" and event["again"]:
                    waiting[event["request"]] = now
                elif kind == "lease.granted":
                    request = event["request"]
                    owner[event["lease"]] = request
                    since = waiting.pop(request)
                    if within and request not in granted:
                        self.waits_us.append(now - since)
                    if within and request in broken:
                        self.repairs_us.append(now - broken[request])
                    broken.pop(request, None)
                    granted.add(request)
                elif kind == "lease.ended" and event["reason"] not in OWN:
                    broken[owner[event["lease"]]] = now
                    self.counts["interrupted"] += within
                elif kind == "request.ended":
                    self.ends[event["how"]] += within
                    waiting.pop(event["request"], None)
                    received.pop(event["request"], None)
        self.counts["waiting"] = len(waiting)
        self.counts["running"] = len(received) - len(waiting)


#: Ends of a lease that are its task's own, its user's, or a limit it was given with.
OWN = {"completed", "failed", "cancelled", "max-run", "idle"}
