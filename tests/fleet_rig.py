"""A simulated fleet in virtual time, on a memory log with a ledger at its other end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from collectors.fake_nvml.reader import fake_library
from collectors.fleet.fault_plan import FaultPlan
from collectors.fleet.fleet import SimulatedFleet
from collectors.fleet.host import HostOptions, HostSpec
from ledger.core.invariants import check
from ledger.log.memory import MemoryLog
from ledger.log.port import LogUnavailable
from ledger.log.topics import apply
from ledger.wire import input_entry
from processors.embedded import EmbeddedLoop
from tests.node_support import SECOND, Time
from tests.processor_support import POLICY, events, policy, replay, settings, submit

if TYPE_CHECKING:
    from collectors.fleet.fault_plan import Fault
    from collectors.fleet.host import SimulatedHost, Start
    from ledger.core.state import State

__all__ = ["CELL", "HEARTBEAT_LIMIT_S", "FleetRig", "host"]

CELL = "dc1"
HEARTBEAT_LIMIT_S = 10


def host(name: str, *boards: str, mig: bool = True) -> HostSpec:
    """Return a machine of the test's pool."""
    return HostSpec(name, "h100", boards or ("H100-80GB", "L40S"), mig=mig)


class FleetRig:
    """Machines, what befalls them, and the ledger that hears of it: one second at a time."""

    def __init__(
        self, *specs: HostSpec, faults: tuple[Fault, ...] = (), options: HostOptions | None = None
    ) -> None:
        self.time = Time()
        self.log = MemoryLog(clock=lambda: self.time.wall_us)
        self.loop = EmbeddedLoop(
            self.log,
            settings(heartbeat_limit_s=HEARTBEAT_LIMIT_S),
            lambda: self.time.wall_us,
        )
        self.fleet = SimulatedFleet(
            self.log,
            CELL,
            specs,
            plan=FaultPlan(fault=faults),
            options=options or HostOptions(run_us=10_000 * SECOND),
            clock=self.time.clock,
        )
        self._began: set[Start] = set()

    async def open(self, **pool: Any) -> None:
        """Set the ledger up and turn the machines on."""
        await apply(self.log, "gpuledger", 1)
        await self.loop.start()
        made = {"pool": "h100", "partition": "relayout", "silent_grace_s": 0, **pool, **POLICY}
        entries = [*policy(CELL), input_entry(CELL, "pool.apply", "/ops", "making", made)]
        await self.log.append("gpuledger.requests", None, entries)
        await self.fleet.log.open()
        self.fleet.begin()
        await self.live(3)

    async def live(self, seconds: int) -> None:
        """Let time pass."""
        with fake_library():
            for _ in range(seconds):
                self.fleet.live()
                await self.fleet.log.hear_all()
                for one in self.fleet.hosts.values():
                    for start in list(one.starts):
                        await self._step(start)
                await self.loop.step()
                await self.loop.tick(self.time.wall_us)
                await self.loop.step()
                self.time.passes(SECOND)

    async def _step(self, start: Start) -> None:
        """Do what a shell does in a second."""
        if start not in self._began:
            self._began.add(start)
            start.agent.start()
            await start.shell.begin()
        try:
            await start.shell.hear()
            await start.agent.work()
            await start.shell.send()
            await start.shell.beat()
        except LogUnavailable:
            await start.agent.work()

    async def ask(self, name: str, ask: dict[str, Any], **more: Any) -> None:
        """Submit a request, and give it the time to be granted."""
        await self.log.append("gpuledger.requests", None, [submit(CELL, name, ask=ask, **more)])
        await self.live(5)

    # -- what has become of it ----------------------------------------------------------

    @property
    def state(self) -> State:
        """The cell as the ledger sees it."""
        shard = self.loop.engine.shard(0)
        assert shard is not None
        return shard.fold.cells[CELL]

    def host(self, name: str = "n1") -> SimulatedHost:
        """Return a machine."""
        return self.fleet.hosts[name]

    async def ended(self) -> dict[str, str]:
        """Return why each lease has ended, by its id without the requester."""
        _, decisions = replay(await events(self.log, 0))
        found = [event for one in decisions for event in one["events"]]
        return {
            event["lease"].partition("#")[2]: event["reason"]
            for event in found
            if event["type"] == "lease.ended"
        }

    async def healths(self, uuid: str) -> list[str]:
        """Return what the ledger has heard of a device's health, one after the other."""
        _, decisions = replay(await events(self.log, 0))
        return [
            event["health"]
            for one in decisions
            for event in one["events"]
            if event["type"] == "device.health" and event["device"] == uuid
        ]

    async def told(self, kind: str) -> list[dict[str, Any]]:
        """Return what the nodes have said of one kind, in order."""
        records = await self.log.read("gpuledger.observations", 0, 0, 100_000)
        wanted = f".{kind}.v1".encode()
        return [
            orjson.loads(one.value or b"{}")
            for one in records
            if dict(one.headers)["ce_type"].endswith(wanted)
        ]

    def check(self) -> None:
        """Both sides agree: no order open, no rule broken, the same slices, nothing half made."""
        assert [] == check(self.state)
        assert {} == self.state.orders
        for name, one in self.fleet.hosts.items():
            for gpu in one.node.gpus:
                device = self.state.devices[gpu.uuid]
                believed = {self.state.slices[item].mig_uuid for item in device.slices}
                assert {each.uuid for _, each in gpu.compute()} == believed, name
                assert [] == [made.id for made in gpu.instances.values() if not made.compute]
