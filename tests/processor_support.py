"""What the processors' tests share: small cells, obedient nodes, services that release.

`Site` stands for everything outside the ledger. It works on any log: it writes
requests and observations, reads orders and replies, and keeps what it was told.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from ledger.core.digest import digest
from ledger.core.fold import Fold
from ledger.log.partition import partition_of
from ledger.log.port import Entry, LogUnavailable
from ledger.wire import input_entry
from processors.settings import Settings
from schemas.topics import full_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ledger.log.port import Log, Record

ROOT = Path(__file__).parent.parent
OPERATOR = "/ops"
TEAM = "/team/a"
POLICY = {"author": "operator", "reason": "test"}
_READ = 5000


def settings(**more: Any) -> Settings:
    """Return settings for a test: nothing of the environment, no snapshots unless asked for."""
    return Settings(**{"log": "memory:", "snapshot_every": 0, "worker": "test", **more})


def cell_on(partition: int, partitions: int) -> str:
    """Return the name of a cell that Kafka's hash puts on ``partition``."""
    names = (f"cell{number}" for number in range(1000))
    return next(each for each in names if partition_of(each.encode(), partitions) == partition)


def policy(cell: str, *, quota_milli: int = 1_000_000_000) -> list[Entry]:
    """Return the requests that make a cell with a pool, a queue and a tenant."""

    def one(name: str, data: dict[str, Any]) -> Entry:
        return input_entry(cell, name, OPERATOR, f"{cell}-{name}", {**data, **POLICY})

    return [
        one("pool.apply", {"pool": "h100"}),
        one("queue.apply", {"queue": "q"}),
        one("quota.apply", {"tenant": "t", "nominal_gpu_milli": quota_milli}),
    ]


def inventory(cell: str, node: str, gpus: int, *, incarnation: str = "boot1") -> Entry:
    """Return a node's inventory of whole devices."""
    devices = [
        {"uuid": f"GPU-{cell}-{node}-{each}", "model": "H100", "memory_mib": 81_920}
        for each in range(gpus)
    ]
    data = {"node": node, "incarnation": incarnation, "epoch": 1, "pool": "h100"}
    name = f"inventory-{incarnation}"
    return input_entry(cell, "node.inventory", f"/nodes/{node}", name, {**data, "devices": devices})


def heartbeat(cell: str, node: str, beat: int, *, incarnation: str = "boot1") -> Entry:
    """Return a node's heartbeat, keyed as nodes do."""
    data = {"cell": cell, "node": node, "incarnation": incarnation, "beat": beat}
    entry = input_entry(cell, "node.heartbeat", f"/nodes/{node}", f"beat-{beat}", data)
    return Entry(node.encode(), entry.value, entry.headers)


def submit(cell: str, name: str, *, source: str = TEAM, **more: Any) -> Entry:
    """Return a request for one whole device, or what ``more`` says."""
    data = {"tenant": "t", "queue": "q", "task": {"id": name}, "ask": {"mode": "whole"}, **more}
    return input_entry(cell, "request.submit", source, name, data)


def release(cell: str, lease: str, *, source: str = TEAM) -> Entry:
    """Return the release of a lease by its owner."""
    name = f"release-{lease.rpartition('#')[2].replace('/', '.')}"
    return input_entry(cell, "lease.release", source, name, {"lease": lease})


class Site:
    """Nodes and services of some cells. `work` answers what the ledger has said since."""

    def __init__(
        self, log: Log, prefix: str = "gpuledger", *, releases: bool = True, cleans: bool = True
    ) -> None:
        self.log = log
        self.prefix = prefix
        self.releases = releases
        self.cleans = cleans
        #: Reply's id -> the reply: a copy has the same id.
        self.replies: dict[str, dict[str, Any]] = {}
        self.copies = 0
        self.orders: dict[str, dict[str, Any]] = {}
        #: Request id -> the ids of its final answers.
        self.final: defaultdict[str, set[str]] = defaultdict(set)
        self._next: dict[tuple[str, int], int] = {}
        self._partitions: dict[str, int] = {}
        self._cells: dict[str, str] = {}

    async def ask(self, entries: Iterable[Entry]) -> None:
        """Put requests on the log."""
        kept = list(entries)
        for entry in kept:
            name = dict(entry.headers)
            key = f"{name['ce_source'].decode()}#{name['ce_id'].decode()}"
            self._cells[key] = (entry.key or b"").decode()
        await self._append("requests", kept)

    async def observe(self, entries: Iterable[Entry]) -> None:
        """Put observations on the log."""
        await self._append("observations", list(entries))

    async def beat(self, nodes: Iterable[tuple[str, str]], every_s: float) -> None:
        """Send a heartbeat of each (cell, node) for ever."""
        kept, number = list(nodes), 0
        while True:
            beats = [heartbeat(cell, node, number) for cell, node in kept]
            await self._append("heartbeats", beats)
            number += 1
            await asyncio.sleep(every_s)

    async def work(self) -> int:
        """Read orders and replies, do what they ask for; return how many new ones there were."""
        asked: list[Entry] = []
        seen: list[Entry] = []
        before = len(self.replies) + len(self.orders)
        for record in await self._read("replies"):
            self._reply(record, asked)
        for record in await self._read("orders"):
            self._order(record, seen)
        await self._append("observations", seen)
        await self.ask(asked)
        return len(self.replies) + len(self.orders) - before

    def answers(self, name: str, *, source: str = TEAM) -> list[str]:
        """Return what a request was answered, each once, in the order it came."""
        return [
            reply["answer"]
            for reply in self.replies.values()
            if reply["input"] == f"{source}#{name}"
        ]

    def _reply(self, record: Record, asked: list[Entry]) -> None:
        event_id = dict(record.headers)["ce_id"].decode()
        if event_id in self.replies:
            self.copies += 1
            return
        reply = self.replies[event_id] = orjson.loads(record.value or b"")
        if reply["final"]:
            self.final[reply["input"]].add(event_id)
        if reply["answer"] == "granted" and self.releases:
            request = reply["request"]
            source = request.partition("#")[0]
            asked.append(release(self._cells[request], reply["lease"], source=source))

    def _order(self, record: Record, seen: list[Entry]) -> None:
        order = orjson.loads(record.value or b"")
        if order["order"] in self.orders:
            return
        self.orders[order["order"]] = order
        about = {"node": order["node"], "incarnation": order["incarnation"]}
        if order["kind"] == "prepare":
            name, more = "task.started", {"lease": order["lease"]}
        else:
            name, more = "order.done", {"order": order["order"]}
        if self.cleans or name != "order.done":
            event_id = order["order"].rpartition("#")[2].replace("/", ".")
            source = f"/nodes/{order['node']}"
            seen.append(input_entry(order["cell"], name, source, event_id, {**about, **more}))

    async def _append(self, topic: str, entries: list[Entry]) -> None:
        """Append until the log has it: an input that comes twice is decided once."""
        while entries:
            try:
                await self.log.append(full_name(self.prefix, topic), None, entries)
            except LogUnavailable:
                await asyncio.sleep(0.2)
            else:
                return

    async def _read(self, topic: str) -> list[Record]:
        name = full_name(self.prefix, topic)
        found: list[Record] = []
        try:
            if name not in self._partitions:
                self._partitions[name] = await self.log.partitions(name)
            for partition in range(self._partitions[name]):
                start = self._next.get((name, partition), 0)
                records = await self.log.read(name, partition, start, _READ)
                if records:
                    self._next[name, partition] = records[-1].offset + 1
                    found += records
        except LogUnavailable:
            await asyncio.sleep(0.2)
        return found


async def events(log: Log, partition: int, prefix: str = "gpuledger") -> list[Record]:
    """Return every record of one partition of the ledger."""
    name = full_name(prefix, "events")
    end = await log.end(name, partition)
    found: list[Record] = []
    while len(found) < end:
        found += await log.read(name, partition, len(found), _READ, 5.0)
    return found


def replay(records: Iterable[Record]) -> tuple[Fold, list[dict[str, Any]]]:
    """Fold records from the beginning; return the fold and the effective decisions."""
    fold = Fold()
    effective = []
    for offset, record in enumerate(records):
        verdict, data = fold.apply(offset, record.value)
        if verdict == "effective":
            effective.append(data)
    return fold, effective


def digests(folds: Mapping[int, Fold]) -> dict[int, str]:
    """Return the digest of each partition."""
    return {partition: digest(fold.cells) for partition, fold in folds.items()}


class Worker:
    """A worker in a process of its own, its log lines in a file."""

    def __init__(self, runner: str, env: Mapping[str, str], log_path: Path) -> None:
        self.runner = runner
        self.log_path = log_path
        self._env = {**os.environ, **env}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process; its output is appended to the file."""
        code = (
            "import sys; from processors.run import run_worker;"
            " from processors.settings import Settings;"
            f" sys.exit(run_worker(Settings(), {self.runner!r}))"
        )
        with self.log_path.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-c", code],
                cwd=ROOT,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    @property
    def running(self) -> subprocess.Popen[bytes]:
        """The process; the worker must have been started."""
        assert self.process is not None
        return self.process

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.running.send_signal(number)

    def stop(self, timeout_s: float = 30.0) -> int:
        """Ask the worker to end; return its exit status."""
        self.signal(signal.SIGTERM)
        return self.running.wait(timeout_s)

    def kill(self) -> None:
        """End the process as a crash does, whatever state it is in."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def output(self) -> str:
        """Return what the worker has written so far."""
        return self.log_path.read_text(encoding="utf-8", errors="replace")


async def until(condition: Callable[[], bool], site: Site, timeout_s: float = 60.0) -> None:
    """Let ``site`` work until ``condition`` holds; fail after ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        if not await site.work():
            await asyncio.sleep(0.02)
