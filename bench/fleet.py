"""``bench fleet``: a thousand simulated machines under the real agent, on a real Kafka.

The machines are `gpuledger fleet` in processes of their own, the ledger is a worker in another.
Every time is the broker's own append time, so no clock is compared with another.

Discovery: from the start of the fleet's processes to the record with which the last device is
available. Slices: MIG profiles that no free slice has, asked for at a steady pace; the ledger's
own share is from the ask to the order, and from the node's answer to the grant. What is between
is the node's: the simulated time of NVML and the agent's. A killed node: the process of a few
machines with leases is killed with -9; from the last heartbeat to the end of their last lease.
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
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from bench.pipeline import percentile, raw_round_trips, start_kafka
from ledger.core.fold import Fold
from ledger.core.state import device_state
from ledger.log.topics import apply
from ledger.log.url import open_log
from ledger.wire import input_entry
from schemas.topics import full_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.log.port import Entry, Log, Record

__all__ = ["Sizes", "run"]

CELL = "site"
PROFILES = ("1g.10gb", "2g.20gb", "3g.40gb")
_VICTIM_MODEL = "Tesla T4"
#: Devices of which something can be leased: whole, or in slices.
_THERE = ("available", "sliced")
_US = 1_000_000
_MS = 1_000
_READ = 5000
_ROOT = Path(__file__).resolve().parent.parent
_WHY = {"author": "bench", "reason": "a benchmark"}
_FLEET_NICE = 10


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large the bench is. ``victims`` are machines that are killed, with one GPU each.

    ``seconds`` and ``rate`` are of the slices that are asked for, ``processes`` of the fleet.
    """

    nodes: int
    gpus: int
    seconds: int = 30
    rate: int = 20
    processes: int = 2
    heartbeat_limit_s: float = 10.0
    #: Eight thousand fake GPUs are read on the cores of one machine.
    look_s: float = 60.0
    victims: int = 5
    nvml_ms: int = 250
    patience_s: float = 900.0

    @property
    def changes(self) -> int:
        """How many slices are asked for."""
        return self.rate * self.seconds


def run(sizes: Sizes, runner: str) -> dict[str, Any]:
    """Measure; return the row."""
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        bootstrap = start_kafka(stack, Path(scratch))
        bench = _Bench(f"kafka://{bootstrap}", runner, sizes, Path(scratch))
        stack.callback(bench.stop)
        return asyncio.run(bench.run())


class _Bench:
    """One site on one broker, under a prefix of its own."""

    def __init__(self, url: str, runner: str, sizes: Sizes, scratch: Path) -> None:
        self.url = url
        self.runner = runner
        self.sizes = sizes
        self.scratch = scratch
        self.prefix = f"bench-fleet-{secrets.token_hex(3)}"
        self.processes: list[subprocess.Popen[bytes]] = []
        self.fold = Fold()
        self._read_to = 0
        #: Each record of the ledger: append time (us) and what it says.
        self.records: list[tuple[int, dict[str, Any]]] = []

    async def run(self) -> dict[str, Any]:
        """Measure; return the row."""
        sizes = self.sizes
        async with open_log(self.url) as log:
            await apply(log, self.prefix, 1)
            self._worker()
            await self._ask(log, _policy())
            await self._until(
                log, "the policy is set", lambda: len(self.records) >= _POLICY_RECORDS
            )
            discovery_s = await self._discover(log)
            slices = await self._slices(log)
            raw = await raw_round_trips(
                log, self.url, f"{self.prefix}-raw", 1, sizes.changes, sizes.rate
            )
            lost = await self._kill(log)
        return {
            "bench": "fleet",
            "workload": f"{', '.join(PROFILES)} in turn, none of them there before",
            "runner": self.runner,
            "nodes": sizes.nodes + sizes.victims,
            "gpus_per_node": sizes.gpus,
            "fleet_processes": sizes.processes + 1,
            "fleet_nice": _FLEET_NICE,
            "look_s": sizes.look_s,
            "discovery_s": discovery_s,
            **slices,
            # A slice is two of these: to the order, and from the answer to the grant.
            "raw_p50_ms": percentile(raw, 50),
            "raw_p99_ms": percentile(raw, 99),
            **lost,
            "heartbeat_limit_s": sizes.heartbeat_limit_s,
            "load_average": round(os.getloadavg()[0], 1),
            "cores": os.cpu_count(),
        }

    # -- processes --------------------------------------------------------------------

    def _start(self, *arguments: str, **more: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "ledger.cli", *arguments]
        command += ["--log", self.url, "--prefix", self.prefix]
        environment = {**os.environ, **more, "PYTHONPATH": str(_ROOT)}
        made = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
        self.processes.append(made)
        return made

    def _worker(self) -> None:
        self._start(
            "worker",
            "--runner",
            self.runner,
            GPULEDGER_SNAPSHOTS=str(self.scratch / "snapshots"),
            GPULEDGER_LOG_LEVEL="warning",
            GPULEDGER_HEARTBEAT_LIMIT_S=str(self.sizes.heartbeat_limit_s),
        )

    def _fleet(self, first: int, nodes: int, gpus: int, board: str) -> subprocess.Popen[bytes]:
        options = {
            "--nodes": nodes,
            "--gpus": gpus,
            "--board": board,
            "--first": first,
            "--cell": CELL,
            "--nvml-ms": self.sizes.nvml_ms,
            "--look-s": self.sizes.look_s,
        }
        plain = [str(word) for pair in options.items() for word in pair]
        made = self._start("fleet", "--no-tasks", *plain)
        # A thousand machines have cores of their own: on these they give way to the ledger.
        os.setpriority(os.PRIO_PROCESS, made.pid, _FLEET_NICE)
        return made

    def stop(self) -> None:
        """End what was started."""
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait(60)

    # -- the three measurements ---------------------------------------------------------

    async def _discover(self, log: Log) -> float:
        """Start every machine; return after how long the last device is available."""
        sizes = self.sizes
        began_us = time.time_ns() // 1000
        each = -(-sizes.nodes // sizes.processes)
        for first in range(1, sizes.nodes + 1, each):
            nodes = min(each, sizes.nodes + 1 - first)
            self._fleet(first, nodes, sizes.gpus, "H100")
        self.victims = self._fleet(sizes.nodes + 1, sizes.victims, 1, "T4")
        wanted = sizes.nodes * sizes.gpus + sizes.victims

        def all_there() -> bool:
            devices = self.fold.cell(CELL).devices.values()
            return len(devices) == wanted and all(device_state(one) in _THERE for one in devices)

        await self._until(log, f"{wanted} devices are available", all_there)
        last_us = max(
            at_us
            for at_us, one in self.records
            for event in one.get("events", ())
            if event["type"] == "device.discovered"
        )
        return round((last_us - began_us) / _US, 1)

    async def _slices(self, log: Log) -> dict[str, Any]:
        """Ask for slices at the pace; return how long they took, and whose time it was."""
        sizes = self.sizes
        asks = [
            _submit(f"s{n}", {"mode": "mig", "profile": PROFILES[n % len(PROFILES)]})
            for n in range(sizes.changes)
        ]
        start = time.perf_counter()
        sending = set()
        for number, entry in enumerate(asks):
            await asyncio.sleep(max(0.0, start + number / sizes.rate - time.perf_counter()))
            task = asyncio.create_task(self._ask(log, [entry]))
            sending.add(task)
            task.add_done_callback(sending.discard)
        names = [f"/bench#s{number}" for number in range(sizes.changes)]
        await self._until(log, "all slices are granted", lambda: self._granted(names))
        spent = await self._spent(log)
        own = [(whole_us - sum(node_us)) / _MS for whole_us, node_us in spent]
        node = [sum(node_us) / _MS for _, node_us in spent]
        return {
            "changes": sizes.changes,
            "changes_per_s": sizes.rate,
            "changes_repeated": sum(len(node_us) - 1 for _, node_us in spent),
            "mig_ledger_p50_ms": percentile(own, 50),
            "mig_ledger_p99_ms": percentile(own, 99),
            "mig_node_p50_ms": percentile(node, 50),
            "mig_node_p99_ms": percentile(node, 99),
            # A GPU instance, and the compute instance in it.
            "mig_nvml_simulated_ms": 2 * sizes.nvml_ms,
        }

    async def _spent(self, log: Log) -> list[tuple[int, list[int]]]:
        """Return for each slice the time from ask to grant, and the node's of it by order (us)."""
        asked = {_id(one): one.time_us for one in await _all(log, self._topic("requests"))}
        granted = await self._first(log, "replies", "request", b'"granted"')
        ordered = await self._first(log, "orders", "order", b'"partition"')
        answered = await self._first(log, "observations", "order", b'"order"')
        node_us: defaultdict[str, list[int]] = defaultdict(list)
        for _, record in self.records:
            for event in record.get("events", ()):
                if event["type"] == "order.issued" and event["kind"] == "partition":
                    name = event["order"]
                    node_us[event["request"]].append(answered[name] - ordered[name])
        return [(granted[name] - asked[name], found) for name, found in node_us.items()]

    async def _first(self, log: Log, suffix: str, name: str, having: bytes) -> dict[str, int]:
        """Return when the first record of each name was appended, of those that have a text."""
        found: dict[str, int] = {}
        for one in await _all(log, self._topic(suffix)):
            if having in (one.value or b""):
                found.setdefault(orjson.loads(one.value or b"{}").get(name), one.time_us)
        return found

    async def _kill(self, log: Log) -> dict[str, Any]:
        """Kill machines with leases; return how long the ledger took to end those."""
        number = self.sizes.victims
        ask = {"mode": "whole", "models": [_VICTIM_MODEL]}
        await self._ask(log, [_submit(f"v{n}", ask) for n in range(number)])
        names = [f"/bench#v{n}" for n in range(number)]
        await self._until(log, "the victims have leases", lambda: self._granted(names))
        await asyncio.sleep(3.0)
        self.victims.send_signal(signal.SIGKILL)
        killed_us = time.time_ns() // 1000
        self.victims.wait(30)
        self.processes.remove(self.victims)
        ended: dict[str, tuple[int, str]] = {}

        def all_ended() -> bool:
            for at_us, record in self.records:
                for event in record.get("events", ()):
                    if event["type"] == "lease.ended":
                        ended.setdefault(
                            event["lease"].rpartition("/")[0], (at_us, event["reason"])
                        )
            return all(name in ended for name in names)

        await self._until(log, "the victims' leases have ended", all_ended)
        last_beat: dict[str, int] = {}
        for one in await _all(log, self._topic("heartbeats")):
            last_beat[(one.key or b"").decode()] = one.time_us
        node_of = {
            event["request"]: event["parts"][0]["node"]
            for _, record in self.records
            for event in record.get("events", ())
            if event["type"] == "lease.granted" and event["request"] in names
        }
        since_beat = [(ended[name][0] - last_beat[node_of[name]]) / _US for name in names]
        since_kill = [(ended[name][0] - killed_us) / _US for name in names]
        return {
            "nodes_killed": number,
            "node_lost_s": round(max(since_beat), 2),
            "node_lost_after_kill_s": round(max(since_kill), 2),
            "reasons": dict(Counter(ended[name][1] for name in names)),
        }

    # -- the log ------------------------------------------------------------------------

    def _topic(self, suffix: str) -> str:
        return full_name(self.prefix, suffix)

    async def _ask(self, log: Log, entries: list[Entry]) -> None:
        await log.append(self._topic("requests"), None, entries)

    async def _until(self, log: Log, what: str, condition: Callable[[], bool]) -> None:
        """Read the ledger until a condition holds of it."""
        limit = time.monotonic() + self.sizes.patience_s
        while True:
            records = await log.read(self._topic("events"), 0, self._read_to, _READ)
            for one in records:
                self.fold.apply(one.offset, one.value)
                self.records.append((one.time_us, orjson.loads(one.value or b"{}")))
                self._read_to = one.offset + 1
            if not records and condition():
                return
            if any(process.poll() is not None for process in self.processes):
                raise RuntimeError(f"a process has ended before this: {what}")
            if time.monotonic() > limit:
                raise RuntimeError(f"after {self.sizes.patience_s} s not yet: {what}")
            if not records:
                await asyncio.sleep(0.1)

    def _granted(self, names: list[str]) -> bool:
        requests = self.fold.cell(CELL).requests
        return all(name in requests and requests[name].lease for name in names)


_POLICY_RECORDS = 4


def _policy() -> list[Entry]:
    pool = {"pool": "main", "partition": "create", "silent_grace_s": 0, **_WHY}
    # Every device whole, and every slice of it.
    quota = {"tenant": "team", "nominal_gpu_milli": 1_000_000_000, **_WHY}
    wanted: list[tuple[str, dict[str, Any]]] = [
        ("pool.apply", pool),
        ("queue.apply", {"queue": "train", **_WHY}),
        ("quota.apply", quota),
    ]
    return [input_entry(CELL, kind, "/bench/operator", kind, data) for kind, data in wanted]


def _submit(name: str, ask: dict[str, Any]) -> Entry:
    data = {
        "tenant": "team",
        "queue": "train",
        "task": {"id": name},
        "ask": ask,
        "max_wait_s": 3600,
        "max_run_s": 86_400,
    }
    return input_entry(CELL, "request.submit", "/bench", name, data)


def _id(record: Record) -> str:
    headers = dict(record.headers)
    return f"{headers['ce_source'].decode()}#{headers['ce_id'].decode()}"


async def _all(log: Log, topic: str) -> list[Record]:
    """Return every record of a topic, partition by partition."""
    found: list[Record] = []
    for partition in range(await log.partitions(topic)):
        at, end = await log.begin(topic, partition), await log.end(topic, partition)
        while at < end:
            records = await log.read(topic, partition, at, _READ, 1.0)
            found += records
            at = records[-1].offset + 1 if records else at
    return found
