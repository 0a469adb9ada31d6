"""The agent on a real Kafka: a small fleet, a host of its own, a worker, each a process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ledger.core.fold import Fold
from ledger.core.invariants import check
from ledger.core.state import device_state
from ledger.log.kafka import KafkaLog
from ledger.log.topics import apply
from ledger.wire import input_entry
from schemas.topics import full_name
from tests.processor_support import POLICY, Worker, policy, submit

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from ledger.core.state import State

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

ROOT = Path(__file__).parent.parent
CELL = "dc1"
LIMIT_S = 6.0
MACHINES, GPUS = 20, 2
HOST = '[[gpu]]\nboard = "A30-24GB"\nmig = true\n'


class Scene:
    """One site on a broker, and the ledger as far as it was read."""

    def __init__(self, log: KafkaLog, bootstrap: str, prefix: str, path: Path) -> None:
        self.log = log
        self.prefix = prefix
        self.fold = Fold()
        self.ended: dict[str, tuple[int, str]] = {}
        self._path = path
        self._url = f"kafka://{bootstrap}"
        self._next = 0
        self._started: list[subprocess.Popen[bytes]] = []
        env = {
            "GPULEDGER_LOG": self._url,
            "GPULEDGER_PREFIX": prefix,
            "GPULEDGER_SNAPSHOTS": str(path / "snapshots"),
            "GPULEDGER_HEARTBEAT_LIMIT_S": str(LIMIT_S),
            "GPULEDGER_TICK_S": "0.2",
        }
        self._worker = Worker("plain", env, path / "worker.log")

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a command on the site's log."""
        command = [sys.executable, "-m", "ledger.cli", *arguments]
        command += ["--log", self._url, "--prefix", self.prefix]
        with (self._path / f"{arguments[0]}.log").open("ab") as output:
            made = subprocess.Popen(
                command,
                cwd=self._path,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=output,
                stderr=output,
            )
        self._started.append(made)
        return made

    async def begin(self) -> None:
        """Start the worker and set the policy."""
        await apply(self.log, self.prefix, 1)
        self._worker.start()
        making = {"pool": "h100", "partition": "create", "silent_grace_s": 0, **POLICY}
        await self.ask(*policy(CELL), input_entry(CELL, "pool.apply", "/ops", "making", making))

    def end(self) -> None:
        """End every process as a crash does."""
        for process in self._started:
            process.kill()
            process.wait()
        self._worker.kill()

    async def ask(self, *entries: Any) -> None:
        """Put requests on the log."""
        await self.log.append(full_name(self.prefix, "requests"), None, list(entries))

    @property
    def state(self) -> State:
        """The cell, as far as it was read."""
        return self.fold.cell(CELL)

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Read the ledger until a condition holds of it."""
        deadline = time.monotonic() + 90
        while not condition():
            assert time.monotonic() < deadline, f"not in time: {what}"
            name = full_name(self.prefix, "events")
            for record in await self.log.read(name, 0, self._next, 1000, 0.2):
                self._next = record.offset + 1
                _, data = self.fold.apply(record.offset, record.value)
                for event in data.get("events", ()):
                    if event["type"] == "lease.ended":
                        self.ended[event["lease"]] = (record.time_us, event["reason"])

    async def last_beat_us(self, node: str) -> int:
        """Return when the log got the last heartbeat of a machine."""
        name, found = full_name(self.prefix, "heartbeats"), 0
        for partition in range(await self.log.partitions(name)):
            at, end = 0, await self.log.end(name, partition)
            while at < end:
                for record in await self.log.read(name, partition, at, 1000, 1.0):
                    at = record.offset + 1
                    found = record.time_us if record.key == node.encode() else found
        return found


@asynccontextmanager
async def scene(bootstrap: str, prefix: str, path: Path) -> AsyncIterator[Scene]:
    """Make a site; end what it has started afterwards."""
    async with KafkaLog(bootstrap) as log:
        made = Scene(log, bootstrap, prefix, path)
        try:
            await made.begin()
            yield made
        finally:
            made.end()


async def test_twenty_machines_and_a_host(kafka: str, kafka_prefix: str, tmp_path: Path) -> None:
    """All are found, slices are made on demand, and a killed agent's leases end in time."""
    async with scene(kafka, kafka_prefix, tmp_path) as site:
        sizes = ("--nodes", str(MACHINES), "--gpus", str(GPUS), "--nvml-ms", "20", "--no-tasks")
        site.start("fleet", *sizes, "--board", "H100", "--cell", CELL, "--pool", "h100")
        (tmp_path / "host.toml").write_text(HOST)
        host = ("collector", "--fake", "host.toml", "--node", "host1", "--pool", "h100")
        agent = site.start(*host, "--cell", CELL)
        wanted = MACHINES * GPUS + 1
        devices = site.state.devices
        await site.until(lambda: len(devices) == wanted, "all devices are there")
        assert {"sliced"} == {device_state(one) for one in devices.values()}

        profiles = ("1g.10gb", "2g.20gb", "3g.40gb", "1g.6gb", "2g.12gb")
        await site.ask(
            *(
                submit(CELL, profile, ask={"mode": "mig", "profile": profile})
                for profile in profiles
            )
        )
        leases = site.state.leases
        await site.until(lambda: len(leases) == len(profiles), "the slices are made")
        mine = [name for name, one in leases.items() if "host1" in one.parts]
        assert {"/team/a#1g.6gb/1", "/team/a#2g.12gb/1"} == set(mine)

        agent.kill()
        agent.wait()
        await site.until(lambda: set(mine) == set(site.ended), "the host's leases have ended")
        last_us = await site.last_beat_us("host1")
        assert {"node-lost"} == {reason for _, reason in site.ended.values()}
        # The promise is the limit and a second; the rest is for a machine that runs other tests.
        late_us = max(at_us for at_us, _ in site.ended.values()) - last_us
        assert LIMIT_S * 1_000_000 <= late_us <= (LIMIT_S + 5) * 1_000_000

        # The journal is there: the agent goes on under the same boot, and its node is back.
        site.start(*host, "--cell", CELL)
        await site.until(lambda: site.state.nodes["host1"].state == "online", "the host is back")
        assert [] == check(site.state)
        assert 3 == len(leases)
