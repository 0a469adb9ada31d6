"""A whole site in one process: the worker, simulated nodes, and a policy to start with."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from typing import TYPE_CHECKING, Any

from collectors.faults import FaultPlan, check_nodes, read_faults, turns
from collectors.fleet import DeviceGroup, Fleet, NodeGroup, SliceSpec, read_fleet
from collectors.simulated import Ending, SimulatedNode, Timing
from ledger.cli.common import DEFAULT_CELL, DEFAULT_PREFIX, Usage
from ledger.log.topics import apply
from ledger.log.wakeup import wall_clock_us
from ledger.wire import full_name, input_entry
from schemas.catalogue import adapter

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from collectors.fleet import NodeSpec
    from ledger.cli.common import Session
    from ledger.log.port import Entry, Log
    from processors.settings import Settings
    from schemas.messages import Order

__all__ = ["FLEET", "QUEUE", "TENANT", "Nodes", "collect", "run"]

QUEUE = "default"
TENANT = "demo"
_SOURCE = "/gpuledger/up"
_MILLI = 1000

#: How often a node looks at its clock, in seconds, and how often its heart beats, in µs.
_STEP_S = 0.05
_BEAT_US = 2_000_000

#: Three nodes: two with four whole devices, one whose device is cut into MIG slices.
FLEET = Fleet(
    cell="main",
    nodes=(
        NodeGroup(
            name="node-{}",
            count=2,
            pool="main",
            cpu_milli=64_000,
            memory_mib=524_288,
            devices=(DeviceGroup(count=4, model="NVIDIA H100 80GB HBM3", memory_mib=81_559),),
        ),
        NodeGroup(
            name="node-mig",
            pool="main",
            cpu_milli=64_000,
            memory_mib=524_288,
            devices=(
                DeviceGroup(
                    count=1,
                    model="NVIDIA H100 80GB HBM3",
                    memory_mib=81_559,
                    compute_slices=7,
                    slices=tuple(
                        SliceSpec(
                            profile="1g.10gb", start=at, size=1, compute_slices=1, memory_mib=9_984
                        )
                        for at in range(7)
                    ),
                ),
            ),
        ),
    ),
)


async def run(
    session: Session, settings: Settings, fleet: Path | None, faults: Path | None, speed: float
) -> None:
    """Serve the session's log and play its nodes until SIGINT or SIGTERM.

    Raise `Usage` for files that are not what they should be, the log's errors,
    and what a worker raises.
    """
    described, plan = _read(fleet, faults)
    stop = _stop_on_signals()
    async with session.open(write=True) as log:
        on_kafka = session.url.startswith("kafka:")
        await apply(log, session.prefix, None if on_kafka else 1)
        seeded = await _seed(log, session.prefix, described)
        nodes = Nodes(log, session.prefix, described.cell, described.specs(), plan, speed)
        await nodes.start()
        _say(session, described, seeded=seeded)
        tasks = [
            asyncio.create_task(_serve(log, settings, stop, on_kafka=on_kafka)),
            asyncio.create_task(nodes.play(stop)),
        ]
        # The first to end, in good order or not, ends the other.
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        stop.set()
        await asyncio.gather(*tasks)
    session.note("ended in good order; the log keeps everything")


async def collect(
    session: Session,
    fleet: Path,
    faults: Path | None,
    cell: str | None,
    names: Sequence[str],
    speed: float,
) -> None:
    """Play some nodes of a fleet (all, when none is named) until SIGINT or SIGTERM.

    Raise `Usage` for files, a cell or nodes that do not fit, and the log's errors.
    """
    described, plan = _read(fleet, faults)
    if cell not in (None, described.cell):
        raise Usage(f"{fleet} describes cell {described.cell}, not {cell}")
    known = {one.name: one for one in described.specs()}
    missing = [name for name in names if name not in known]
    if missing:
        raise Usage(f"{fleet} describes no node {missing[0]}; it has {', '.join(known)}")
    mine = [known[name] for name in names or known]
    own = FaultPlan(fault=tuple(one for one in plan.fault if one.node in {n.name for n in mine}))
    stop = _stop_on_signals()
    async with session.open(write=True) as log:
        nodes = Nodes(log, session.prefix, described.cell, mine, own, speed)
        await nodes.start()
        plain = {"cell": described.cell, "nodes": [one.name for one in mine]}
        session.emit(plain, f"cell {described.cell}: {', '.join(plain['nodes'])}; Ctrl-C ends")
        await nodes.play(stop)


def _stop_on_signals() -> asyncio.Event:
    """Return an event that SIGINT and SIGTERM set."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


def _read(fleet: Path | None, faults: Path | None) -> tuple[Fleet, FaultPlan]:
    try:
        described = FLEET if fleet is None else read_fleet(fleet)
        plan = FaultPlan() if faults is None else read_faults(faults)
        check_nodes(plan, {one.name: len(one.devices) for one in described.specs()})
    except ValueError as error:
        raise Usage(str(error)) from None
    return described, plan


async def _serve(log: Log, settings: Settings, stop: asyncio.Event, *, on_kafka: bool) -> None:
    """Run the worker that fits the log."""
    if on_kafka:
        from processors import plain

        await plain.run(log, settings, stop)
    else:
        from processors import embedded

        await embedded.run(log, settings, stop)


async def _seed(log: Log, prefix: str, fleet: Fleet) -> bool:
    """Set the starter policy when nothing has ever been asked of the ledger; say whether it was."""
    topic = full_name(prefix, "requests")
    partitions = range(await log.partitions(topic))
    if any([await log.end(topic, number) for number in partitions]):
        return False
    about = {"author": "gpuledger-up", "reason": "starter policy of an empty ledger"}
    devices = sum(len(one.devices) for one in fleet.specs())
    pools = dict.fromkeys(group.pool for group in fleet.nodes)
    quota = {"tenant": TENANT, "nominal_gpu_milli": devices * _MILLI}
    wanted: list[tuple[str, str, dict[str, Any]]] = [
        ("queue.apply", "queue", {"queue": QUEUE}),
        ("quota.apply", "quota", quota),
    ]
    wanted += [("pool.apply", f"pool-{name}", {"pool": name}) for name in pools]
    await log.append(
        topic,
        None,
        [
            input_entry(fleet.cell, kind, _SOURCE, f"starter-{name}", {**data, **about})
            for kind, name, data in wanted
        ],
    )
    return True


def _say(session: Session, fleet: Fleet, *, seeded: bool) -> None:
    """Tell what is running, and what to type in another terminal."""
    specs = fleet.specs()
    devices = sum(len(one.devices) for one in specs)
    command = f"gpuledger --log {session.url}"
    if session.prefix != DEFAULT_PREFIX:
        command += f" --prefix {session.prefix}"
    cell = "" if fleet.cell == DEFAULT_CELL else f" --cell {fleet.cell}"
    lines = [f"cell {fleet.cell}: {len(specs)} simulated nodes, {devices} devices; Ctrl-C ends"]
    if seeded:
        lines.append(f"the ledger was empty: made queue {QUEUE}, tenant {TENANT} and the pools")
    lines += [
        "in another terminal:",
        f"  {command} submit{cell} --tenant {TENANT} --queue {QUEUE} --gpus 2",
        f"  {command} state",
        f"  {command} why REQUEST",
    ]
    plain = {
        "cell": fleet.cell,
        "log": session.url,
        "nodes": len(specs),
        "devices": devices,
        "seeded": seeded,
    }
    session.emit(plain, "\n".join(lines))


class Nodes:
    """Simulated nodes in real time: they hear orders from the log, and say things to it."""

    def __init__(
        self,
        log: Log,
        prefix: str,
        cell: str,
        specs: Sequence[NodeSpec],
        plan: FaultPlan,
        speed: float,
    ) -> None:
        """Make the nodes; they are off until `start`. Tasks run ``speed`` times faster."""
        self._log = log
        self._prefix = prefix
        self._cell = cell
        self._turns = turns(plan, wall_clock_us())
        boot = f"{time.time_ns()}-{{}}"
        timing = Timing(default_run_us=round(Timing().default_run_us / speed))

        def ending(order: Order) -> Ending:
            asked = timing.ending(order)
            return Ending(round(asked.run_us / speed) if order.expected_run_us else asked.run_us)

        self._nodes = {
            spec.name: SimulatedNode(
                spec, cell, timing=timing, ending=ending, boot_name=boot.format
            )
            for spec in specs
        }

    async def start(self) -> None:
        """Boot the nodes; each tells what it has."""
        for node in self._nodes.values():
            node.start(wall_clock_us())
        await self._append()

    async def play(self, stop: asyncio.Event) -> None:
        """Live until ``stop`` is set."""
        topic = full_name(self._prefix, "orders")
        hearing = [
            asyncio.create_task(self._hear(topic, number, await self._log.end(topic, number)))
            for number in range(await self._log.partitions(topic))
        ]
        try:
            beat_us = 0
            while not stop.is_set():
                now_us = wall_clock_us()
                while self._turns and self._turns[0].at_us <= now_us:
                    turn = self._turns.pop(0)
                    self._nodes[turn.fault.node].turn(turn.fault, now_us, begins=turn.begins)
                for node in self._nodes.values():
                    node.advance(now_us)
                beat = now_us - beat_us >= _BEAT_US
                beat_us = now_us if beat else beat_us
                await self._append(beat=beat)
                ended = next((one for one in hearing if one.done()), None)
                if ended is not None:
                    await ended
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), _STEP_S)
        finally:
            for one in hearing:
                one.cancel()
            await asyncio.gather(*hearing, return_exceptions=True)

    async def _hear(self, topic: str, partition: int, at: int) -> None:
        """Hand the orders of one partition to their nodes, for ever."""
        reader = adapter("order", 1)
        while True:
            for record in await self._log.read(topic, partition, at, wait_s=1.0):
                at = record.offset + 1
                order: Order = reader.validate_json(record.value or b"")
                node = self._nodes.get(order.node)
                if node is not None and order.cell == self._cell:
                    node.hear(order, wall_clock_us())

    async def _append(self, *, beat: bool = False) -> None:
        """Write what the nodes have to say now."""
        observations: list[Entry] = []
        heartbeats: list[Entry] = []
        for name, node in self._nodes.items():
            observations += [said.entry(self._cell, name) for said in node.take()]
            if beat and node.connected:
                heartbeats.append(node.heartbeat(wall_clock_us()).entry(name, name))
        for suffix, entries in (("observations", observations), ("heartbeats", heartbeats)):
            if entries:
                await self._log.append(full_name(self._prefix, suffix), None, entries)
