"""``bench pipeline``: the whole path on a real log, a worker in a process of its own.

Throughput: workers set the cells up and share the partitions out; they are held
(SIGSTOP) while the requests are written, and then let go. Counted are the
decisions from the first to the last of the backlog, by the log's own append
times, so neither the workers' start nor the client's writing is in it. Latency:
requests at a steady pace, one at a time as a client sends them, from before the
send to after the reply; beside it the same client through a bare echo of two
topics on the same log, right after, at the same pace.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from bench.workload import inventory, policy
from ledger.log.partition import partition_of
from ledger.log.port import Entry
from ledger.log.topics import apply
from ledger.log.url import open_log
from ledger.wire import input_entry
from schemas.topics import full_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ledger.log.port import Log, Record

__all__ = ["percentile", "raw_round_trips", "run", "start_kafka"]

GPUS = 8
PACE_PER_S = 100
#: A request is released after this many later ones of its cell.
LAG = 50
_CHUNK = 500
_PATIENCE_S = 240.0
#: Longer than a rebalance takes.
_QUIET_S = 6.0
_IS_DECISION = b'"kind":"decision"'
_ROOT = Path(__file__).resolve().parent.parent


def run(
    runner: str, partitions: int, requests: int, paced: int, workers: int
) -> Iterator[dict[str, Any]]:
    """Yield one row for each runner asked for; on Kafka with so many worker processes."""
    wanted = ("faust", "plain", "sqlite") if runner == "all" else (runner,)
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        bootstrap = None
        for name in wanted:
            if name == "sqlite":
                url, count, processes = f"sqlite:{scratch}/bench.sqlite", 1, 1
            else:
                bootstrap = bootstrap or start_kafka(stack, Path(scratch))
                url, count, processes = f"kafka://{bootstrap}", partitions, workers
            bench = _Bench(url, name, count, processes, Path(scratch))
            try:
                yield asyncio.run(bench.run(requests, paced))
            finally:
                bench.stop()


def start_kafka(stack: contextlib.ExitStack, scratch: Path) -> str:
    """Return ``KAFKA_BOOTSTRAP``, or start a broker that ends with the bench."""
    given = os.environ.get("KAFKA_BOOTSTRAP")
    if given:
        return given
    from deploy.kafka_local import LocalKafka  # noqa: PLC0415 - only where none is given

    broker = LocalKafka(scratch / "kafka")
    broker.start()
    stack.callback(broker.stop)
    return broker.bootstrap


class _Bench:
    """One runner on one log, under a prefix of its own."""

    def __init__(
        self, url: str, runner: str, partitions: int, processes: int, scratch: Path
    ) -> None:
        self.url = url
        self.runner = runner
        self.partitions = partitions
        self.scratch = scratch
        self.prefix = f"bench-{runner}-{secrets.token_hex(3)}"
        self.cells = _cells(partitions)
        self.processes = processes
        self.workers: list[subprocess.Popen[bytes]] = []

    async def run(self, requests: int, paced: int) -> dict[str, Any]:
        """Measure; return the row."""
        each = requests // self.partitions
        nodes = -(-(each + paced) // GPUS)
        async with open_log(self.url) as log:
            await apply(log, self.prefix, self.partitions)
            await self._set_up(log, nodes)
            self._start()
            await self._decided(log, self.partitions * (nodes + 3))
            await self._settled(log)
            self._signal(signal.SIGSTOP)
            before = await self._ends(log, "events")
            backlog = await self._backlog(log, each)
            self._signal(signal.SIGCONT)
            await self._decided(log, self.partitions * (nodes + 3) + backlog)
            rate = await self._rate(log, before, backlog)
            latency = await self._latency(log, paced)
            self.stop()
            raw = await raw_round_trips(log, self.url, f"{self.prefix}-raw", self.partitions, paced)
        return {
            "bench": "pipeline",
            "workload": "one-GPU requests, submitted and granted, released 50 later",
            "runner": self.runner,
            "partitions": self.partitions,
            "workers": self.processes,
            "decisions": backlog,
            "decisions_per_s": round(rate),
            "pace_per_s": PACE_PER_S,
            "paced": paced,
            "p50_ms": percentile(latency, 50),
            "p99_ms": percentile(latency, 99),
            "raw_p50_ms": percentile(raw, 50),
            "raw_p99_ms": percentile(raw, 99),
        }

    # -- the worker ----------------------------------------------------------

    def _start(self) -> None:
        command = [sys.executable, "-m", "ledger.cli", "worker"]
        kind = "embedded" if self.runner == "sqlite" else self.runner
        command += ["--log", self.url, "--prefix", self.prefix, "--runner", kind]
        environment = {
            **os.environ,
            "GPULEDGER_SNAPSHOTS": str(self.scratch / "snapshots"),
            "GPULEDGER_LOG_LEVEL": "warning",
            # The benchmark's nodes send no heartbeats.
            "GPULEDGER_HEARTBEAT_LIMIT_S": "86400",
            # Longer than they are held while the backlog is written.
            "GPULEDGER_SESSION_TIMEOUT_S": "30",
            "PYTHONPATH": str(_ROOT),
        }
        self.workers = [
            subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
            for _ in range(self.processes)
        ]

    def _signal(self, number: signal.Signals) -> None:
        for worker in self.workers:
            worker.send_signal(number)

    def stop(self) -> None:
        """End the workers that run."""
        for worker in self.workers:
            worker.send_signal(signal.SIGTERM)
        for worker in self.workers:
            worker.wait(60)
        self.workers = []

    # -- the work ------------------------------------------------------------

    async def _set_up(self, log: Log, nodes: int) -> None:
        for partition, cell in enumerate(self.cells):
            entries = [
                input_entry(cell, name, "/bench/operator", event_id, data)
                for name, event_id, data in policy(nodes * GPUS)
            ]
            await log.append(full_name(self.prefix, "requests"), partition, entries)
            reports = [
                input_entry(cell, "node.inventory", f"/nodes/{name}", "boot", inventory(name, GPUS))
                for name in (f"{cell}-{number}" for number in range(nodes))
            ]
            for at in range(0, len(reports), _CHUNK):
                topic = full_name(self.prefix, "observations")
                await log.append(topic, partition, reports[at : at + _CHUNK])

    async def _backlog(self, log: Log, each: int) -> int:
        """Write submissions and releases to every partition; return how many."""
        written = 0
        for partition, cell in enumerate(self.cells):
            entries = []
            for number in range(each):
                entries.append(_submit(cell, f"r{number}"))
                if number >= LAG:
                    name = f"r{number - LAG}"
                    data = {"lease": f"/bench#{name}/1"}
                    event_id = f"end-{name}"
                    entries.append(input_entry(cell, "lease.release", "/bench", event_id, data))
            for at in range(0, len(entries), _CHUNK):
                topic = full_name(self.prefix, "requests")
                await log.append(topic, partition, entries[at : at + _CHUNK])
            written += len(entries)
        return written

    async def _settled(self, log: Log) -> None:
        """Wait until the group has shared the partitions out: no claim for a while."""
        ends: list[int] = []
        while ends != (now := await self._ends(log, "events")):
            ends = now
            await asyncio.sleep(_QUIET_S)

    # -- what is measured ------------------------------------------------------

    async def _ends(self, log: Log, topic: str) -> list[int]:
        name = full_name(self.prefix, topic)
        return [await log.end(name, number) for number in range(self.partitions)]

    async def _decided(self, log: Log, decisions: int) -> None:
        """Wait until the ledger holds so many decisions; claims are not counted."""
        name = full_name(self.prefix, "events")
        seen = [0] * self.partitions
        found = 0
        limit = time.monotonic() + _PATIENCE_S
        while found < decisions:
            if any(worker.poll() is not None for worker in self.workers):
                raise RuntimeError("a worker has ended")
            if time.monotonic() > limit:
                raise RuntimeError(f"{found} of {decisions} decisions after {_PATIENCE_S} s")
            await asyncio.sleep(0.25)
            for partition, end in enumerate(await self._ends(log, "events")):
                while seen[partition] < end:
                    rows = await log.values(name, partition, seen[partition], 5000)
                    found += sum(_IS_DECISION in (value or b"")[:40] for _, _, value in rows)
                    seen[partition] += len(rows)

    async def _rate(self, log: Log, before: list[int], backlog: int) -> float:
        """Return decisions a second between the first and the last of the backlog."""
        name = full_name(self.prefix, "events")
        times: list[int] = []
        codes: set[str] = set()
        for partition, start in enumerate(before):
            end = await log.end(name, partition)
            at = start
            while at < end:
                for offset, time_us, value in await log.values(name, partition, at, 5000):
                    record = orjson.loads(value or b"{}")
                    if record["kind"] == "decision":
                        times.append(time_us)
                        codes.add(record["outcome"]["code"])
                    at = offset + 1
        if len(times) != backlog or codes != {"granted", "released"}:
            raise RuntimeError(f"{len(times)} of {backlog} decisions, with the codes {codes}")
        return (len(times) - 1) / ((max(times) - min(times)) / 1e6)

    async def _latency(self, log: Log, paced: int) -> list[float]:
        replies = full_name(self.prefix, "replies")
        partition = partition_of(b"/bench", await log.partitions(replies))
        cell = self.cells[0]
        wanted = [(f"p{number}", _submit(cell, f"p{number}")) for number in range(paced)]

        def name_of(record: Record) -> str | None:
            reply = orjson.loads(record.value or b"{}")
            return reply["request"].partition("#")[2] if reply["answer"] == "granted" else None

        requests = (full_name(self.prefix, "requests"), 0)
        return await _paced(log, requests, (replies, partition), wanted, name_of)


def _echo(url: str, source: str, target: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "bench.roundtrip", url, source, target]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(_ROOT)})


async def raw_round_trips(
    log: Log, url: str, prefix: str, partitions: int, paced: int, pace_per_s: int = PACE_PER_S
) -> list[float]:
    """Send the same through an echo in a process of its own; return the times in milliseconds.

    Observations out, heartbeats back, under a prefix where nobody else is.
    """
    source, target = full_name(prefix, "observations"), full_name(prefix, "heartbeats")
    await apply(log, prefix, partitions)
    echo = _echo(url, source, target)
    try:
        wanted = [(f"p{n}", _submit("raw", f"p{n}")) for n in range(paced)]

        def name_of(record: Record) -> str | None:
            return orjson.loads(record.value or b"{}")["task"]["id"]  # type: ignore[no-any-return]

        await log.append(source, 0, [Entry(b"first", b'{"task":{"id":"first"}}')])
        await log.read(target, 0, 0, 1, wait_s=60.0)
        return await _paced(log, (source, 0), (target, 0), wanted, name_of, pace_per_s)
    finally:
        echo.terminate()
        echo.wait(30)


async def _paced(
    log: Log,
    out: tuple[str, int],
    back: tuple[str, int],
    wanted: list[tuple[str, Entry]],
    name_of: Any,  # noqa: ANN401 - a function of a record
    pace_per_s: int = PACE_PER_S,
) -> list[float]:
    """Send at the pace, note when each answer comes; return the times in milliseconds."""
    sent: dict[str, float] = {}
    took: dict[str, float] = {}
    done = asyncio.Event()
    begin = await log.end(*back)

    async def collect() -> None:
        offset = begin
        while len(took) < len(wanted):
            for record in await log.read(*back, offset, 1000, wait_s=1.0):
                offset = record.offset + 1
                name = name_of(record)
                if name in sent and name not in took:
                    took[name] = (time.perf_counter() - sent[name]) * 1000
        done.set()

    collector = asyncio.create_task(collect())
    sending: set[asyncio.Task[list[int]]] = set()
    start = time.perf_counter()
    for number, (name, entry) in enumerate(wanted):
        await asyncio.sleep(max(0.0, start + number / pace_per_s - time.perf_counter()))
        sent[name] = time.perf_counter()
        task = asyncio.create_task(log.append(*out, [entry]))
        sending.add(task)
        task.add_done_callback(sending.discard)
    await asyncio.wait_for(done.wait(), 60)
    await collector
    return list(took.values())


def _submit(cell: str, name: str) -> Entry:
    data: dict[str, Any] = {
        "tenant": "team",
        "queue": "train",
        "task": {"id": name},
        "ask": {"mode": "whole"},
    }
    return input_entry(cell, "request.submit", "/bench", name, data)


def _cells(partitions: int) -> list[str]:
    """Return one cell name for each partition, in order."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < partitions:
        name = f"c{number}"
        found.setdefault(partition_of(name.encode(), partitions), name)
        number += 1
    return [found[partition] for partition in range(partitions)]


def percentile(values: list[float], per_cent: int) -> float:
    """Return the value that so many of a hundred do not exceed."""
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, len(ordered) * per_cent // 100)], 2)
