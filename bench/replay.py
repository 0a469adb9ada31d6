"""``bench replay``: from a log on disk to the state's digest, and to a first decision."""

from __future__ import annotations

import asyncio
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import orjson

from bench.workload import CELL, Cell, peak_rss_mib
from ledger.cli.positions import beside
from ledger.collector import relax
from ledger.core.digest import digest
from ledger.log.port import Record
from ledger.log.sqlite import SqliteLog
from ledger.log.topics import apply
from ledger.reading import cells_of, fold_log
from ledger.replay.states import PositionSnapshots, fold_at, make_snapshots
from ledger.shard import Shard, ShardOptions
from ledger.snapshots import SnapshotStore
from ledger.wire import input_entry
from schemas.topics import full_name

__all__ = ["run"]

PREFIX = "gpuledger"
_EVENTS = full_name(PREFIX, "events")
_CHUNK = 5000

#: Records between two snapshots of positions: the default of ``gpuledger snapshots make``.
_EVERY = 25_000

#: Records between the two positions of a difference.
_BETWEEN = 1_000


def run(records: int, seed: int, folder: Path | None) -> dict[str, Any]:
    """Make a log of ``records`` records in SQLite, replay it, and time a first decision."""
    relax()
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        return asyncio.run(_run(Path(scratch), records, seed))


async def _run(scratch: Path, records: int, seed: int) -> dict[str, Any]:
    path = scratch / "log.sqlite"
    async with SqliteLog(str(path)) as log:
        await apply(log, PREFIX, partitions=1)
        live = await _fill(log, records, seed)
        end = await log.end(_EVENTS, 0)
        began = time.perf_counter()
        folds = await fold_log(log, PREFIX)
        found = digest(cells_of(folds))
        replayed = time.perf_counter() - began
        if found != live:
            raise RuntimeError("the replayed digest is not the live one")
        snapshots = SnapshotStore(scratch / "snapshots", _EVENTS)
        last = (await log.read(_EVENTS, 0, end - 1, 1))[0]
        snapshots.save(0, folds[0], last.value)
        first = await _first_decision(log, snapshots)
        drawn = _drawn(end, seed)
        positions = await _positions(log, beside(f"sqlite:{path}", "positions"), drawn)
    commands = _commands(path, drawn)
    return {
        "bench": "replay",
        "workload": "one-GPU requests in SQLite: submitted and granted, released, proved clean",
        "seed": seed,
        "records": end,
        "seconds": round(replayed, 3),
        "records_per_s": round(end / replayed),
        "first_decision_s": round(first, 3),
        "snapshot_every": _EVERY,
        "position_s": round(statistics.median(positions), 3),
        "position_worst_s": round(max(positions), 3),
        **{f"{name}_command_worst_s": round(max(took), 3) for name, took in commands.items()},
        "digest": found,
        "peak_rss_mib": peak_rss_mib(),
    }


async def _fill(log: SqliteLog, records: int, seed: int) -> str:
    """Write the log; return the digest of the state that wrote it."""
    cell = Cell(seed, keep=True)
    cell.claim()
    nodes = 1000
    cell.build(nodes, 8)
    rounds = max(1, (records - nodes - 4) // 3)
    part = 20_000
    for start in range(0, rounds, part):
        count = min(part, rounds - start)
        cell.churn(count, held=nodes)
        for at in range(0, len(cell.entries), _CHUNK):
            await log.append(_EVENTS, 0, cell.entries[at : at + _CHUNK])
        cell.entries.clear()
    return digest(cell.fold.cells)


def _drawn(end: int, seed: int) -> list[int]:
    """Return positions as counts of records: the farthest from a snapshot, and some drawn."""
    draw = random.Random(seed)
    farthest = max(end // _EVERY * _EVERY, 2) - 1
    return [farthest, *(draw.randrange(1, end) for _ in range(8))]


async def _positions(log: SqliteLog, folder: Path, drawn: list[int]) -> list[float]:
    """Time the way to the state at positions, ids too."""
    store = PositionSnapshots(folder, _EVENTS)
    async for _ in make_snapshots(log, PREFIX, store, _EVERY):
        pass
    seconds = []
    for offset in drawn:
        began = time.perf_counter()
        await fold_at(log, PREFIX, {0: offset}, [store])
        seconds.append(time.perf_counter() - began)
    return seconds


def _commands(path: Path, drawn: list[int]) -> dict[str, list[float]]:
    """Time whole commands at positions: the state there, and what the last 1,000 records did."""
    found: dict[str, list[float]] = {"state": [], "diff": []}
    for offset in drawn:
        before = max(0, offset - _BETWEEN)
        for name, asked in {
            "state": ["--at", str(offset - 1)],
            "diff": [str(before - 1) if before else "begin", str(offset - 1)],
        }.items():
            command = [sys.executable, "-P", "-m", "ledger.cli", name, "--log", f"sqlite:{path}"]
            began = time.perf_counter()
            subprocess.run([*command, *asked], check=True, stdout=subprocess.DEVNULL)
            found[name].append(time.perf_counter() - began)
    return found


async def _first_decision(log: SqliteLog, snapshots: SnapshotStore) -> float:
    """Time a worker from its claim to its first decision in the log."""
    data: dict[str, Any] = {
        "tenant": "team",
        "queue": "train",
        "task": {"id": "first"},
        "ask": {"mode": "whole"},
    }
    entry = input_entry(CELL, "request.submit", "/bench", "first", data)
    began = time.perf_counter()
    shard = Shard(log, 0, ShardOptions(prefix=PREFIX, worker="bench"), snapshots)
    await shard.load()
    # The benchmark wrote decisions without their inputs: the next one follows the last decided.
    offset = shard.position["requests"]
    now_us = shard.fold.head.time_us
    record = Record("", 0, offset, now_us, entry.key, entry.value, entry.headers)
    await shard.take("requests", [record])
    seconds = time.perf_counter() - began
    end = await log.end(_EVENTS, 0)
    last = (await log.read(_EVENTS, 0, end - 1, 1))[0]
    if orjson.loads(last.value or b"{}")["outcome"]["code"] != "granted":
        raise RuntimeError("the first request was not granted")
    return seconds
