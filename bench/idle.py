"""``bench idle``: what a worker on a log in a file costs while nothing happens.

With the log's bell (`ledger.log.bell`) and without, as it is where there is no inotify.
Both ways in one run, each on a new log: CPU time of the embedded worker, how often it is waked,
and how long a record that another process appends is on its way to a reader that waits for it.
"""

from __future__ import annotations

import asyncio
import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.quiet import quiet
from ledger.log.port import Entry, TopicState
from ledger.log.sqlite import SqliteLog
from ledger.log.topics import apply
from processors.embedded import run as serve
from processors.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["run", "weigh"]

#: Time before counting begins, and appends that are timed.
_WARM_S, _APPENDS = 2.0, 200


def run(seconds: float) -> Iterator[dict[str, Any]]:
    """Yield a row for each of the two ways; takes 2 x (seconds + 10)."""
    quiet()
    for bell in (True, False):
        with tempfile.TemporaryDirectory() as folder:
            yield asyncio.run(weigh(Path(folder), seconds, _APPENDS, bell=bell))


async def weigh(folder: Path, seconds: float, appends: int, *, bell: bool) -> dict[str, Any]:
    """Let a worker idle for so long, and then time so many appends; return the row."""
    path = folder / "log.sqlite"
    settings, stop = Settings(log=f"sqlite:{path}"), asyncio.Event()
    async with _opened(path, bell=bell) as log:
        await apply(log, "gpuledger", 1)
        task = asyncio.create_task(serve(log, settings, stop))
        await asyncio.sleep(_WARM_S)
        began, cpu_s, wakes = time.perf_counter(), time.process_time(), _wakes()
        await asyncio.sleep(seconds)
        took_s = time.perf_counter() - began
        cpu_s, wakes = time.process_time() - cpu_s, _wakes() - wakes
        stop.set()
        await task
    ways_ms = await _ways_ms(folder / "ways.sqlite", appends, bell=bell)
    return {
        "bench": "idle",
        "workload": "an embedded worker on SQLite to which nothing happens",
        "bell": bell,
        "seconds": round(took_s, 1),
        "core_pct": round(100 * cpu_s / took_s, 2),
        "wakes_per_s": round(wakes / took_s, 1),
        "append_to_read_p50_ms": round(statistics.median(ways_ms), 2),
    }


def _opened(path: Path, *, bell: bool) -> SqliteLog:
    log = SqliteLog(path)
    if not bell:
        log._bell.listen = lambda: None  # type: ignore[method-assign]  # noqa: SLF001 - the way without
    return log


async def _ways_ms(path: Path, appends: int, *, bell: bool) -> list[float]:
    """Return how long records of one handle take to a reader of another, appending included."""
    found = []
    async with _opened(path, bell=bell) as reader, SqliteLog(path) as writer:
        await writer.create_topics({"t": TopicState(1)})
        for number in range(appends):
            waiting = asyncio.create_task(reader.read("t", 0, number, wait_s=60))
            # Not in step with the reader's looks.
            await asyncio.sleep(0.02 + 0.005 * number / appends)
            began = time.perf_counter()
            await writer.append("t", 0, [Entry(b"k", b"v")])
            await waiting
            found.append(1000 * (time.perf_counter() - began))
    return found


def _wakes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
