"""A whole site in one process: the worker, simulated nodes, and a policy to start with."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collectors.fleet.description import DeviceGroup, Fleet, NodeGroup, SliceSpec, read_fleet
from collectors.fleet.fault_plan import FaultPlan, check_nodes, read_faults
from collectors.light.agent import Agent, AgentOptions
from ledger.cli.common import DEFAULT_CELL, DEFAULT_PREFIX, No, Usage
from ledger.cli.policy_apply import apply_site
from ledger.log.topics import apply
from ledger.shard import Fenced
from ledger.wire import input_entry
from schemas.topics import full_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ledger.cli.common import Session
    from ledger.log.port import Log
    from processors.settings import Settings

__all__ = ["FLEET", "QUEUE", "TENANT", "collect", "run", "stop_on_signals"]

QUEUE = "default"
TENANT = "demo"
_SOURCE = "/gpuledger/up"
_MILLI = 1000

#: Places and sizes as such a card has them; with more than four a pool raises `many_slices`.
_SLICES = (
    SliceSpec(profile="1g.10gb", start=0, size=1, compute_slices=1, memory_mib=9_984),
    SliceSpec(profile="1g.10gb", start=1, size=1, compute_slices=1, memory_mib=9_984),
    SliceSpec(profile="2g.20gb", start=2, size=2, compute_slices=2, memory_mib=20_096),
    SliceSpec(profile="3g.40gb", start=4, size=4, compute_slices=3, memory_mib=40_448),
)

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
                    slices=_SLICES,
                ),
            ),
        ),
    ),
)


async def run(
    session: Session,
    settings: Settings,
    fleet: Path | None,
    faults: Path | None,
    speed: float,
    site: Path | None = None,
) -> None:
    """Serve the session's log and play its nodes until SIGINT or SIGTERM.

    ``site`` is a file of policy to put in force first, instead of the starter policy.
    Raise `Usage` for files that are not what they should be, `No` where another serves the
    log already or takes it over, the log's errors, and what a worker raises.
    """
    described, plan = _read(fleet, faults)
    stop = stop_on_signals()
    async with session.open(write=True, make=True) as log:
        with _alone(session):
            on_kafka = session.url.startswith("kafka:")
            await apply(log, session.prefix, None if on_kafka else 1)
            if site is None:
                seeded = await _seed(log, session.prefix, described)
            else:
                seeded = False
                changed = await apply_site(session, log, described.cell, site)
                session.note(f"{site}: {changed} records to put in force")
            options = AgentOptions(prefix=session.prefix, speed=speed)
            agent = Agent(log, described.cell, described.specs(), plan=plan, options=options)
            who = f"--tenant {TENANT} --queue {QUEUE}" if site is None else "--tenant TENANT"
            _say(session, described, who, seeded=seeded)
            tasks = [
                asyncio.create_task(_serve(log, settings, stop, on_kafka=on_kafka)),
                asyncio.create_task(agent.run(stop)),
            ]
            # The first to end, in good order or not, ends the other.
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            stop.set()
            try:
                await asyncio.gather(*tasks)
            except Fenced as error:
                raise No(f"another worker has taken this log over: {error}") from None
    session.note("ended in good order; the log keeps everything")


@contextmanager
def _alone(session: Session) -> Iterator[None]:
    """Be the only site on a SQLite file meanwhile; raise `No` where another one is.

    The newest worker of a log takes it over (`processors.embedded`), and a second site would
    take it from the first without knowing. The lock, on a file beside the log, is the kernel's:
    it ends with the process, however that ends.
    """
    kind, _, path = session.url.partition(":")
    if kind != "sqlite":
        yield
        return
    lock = Path(f"{Path(path).resolve()}-up-{session.prefix}")
    with lock.open("a+", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise No(
                f"another gpuledger up serves {session.url} already (process"
                f" {file.read().strip()}); nothing was changed. Type the other commands here and"
                " it answers them; end it first to start anew; or name another file with --log"
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


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
    stop = stop_on_signals()
    async with session.open(write=True) as log:
        options = AgentOptions(prefix=session.prefix, speed=speed)
        agent = Agent(log, described.cell, mine, plan=own, options=options)
        plain = {"cell": described.cell, "nodes": [one.name for one in mine]}
        session.emit(plain, f"cell {described.cell}: {', '.join(plain['nodes'])}; Ctrl-C ends")
        await agent.run(stop)


def stop_on_signals() -> asyncio.Event:
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
    """Run the worker that fits the log; raise `Usage` where it is not let in."""
    if on_kafka:
        from processors import plain
        from processors.setup import Refused

        try:
            await plain.run(log, settings, stop)
        except Refused as error:
            raise Usage(str(error)) from None
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


def _say(session: Session, fleet: Fleet, who: str, *, seeded: bool) -> None:
    """Tell what is running, and what to type in another terminal; ``who`` asks for devices."""
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
        "a simulated task ends after its --expected-run, or after a minute",
        "in another terminal:",
        f"  {command} submit{cell} {who} --gpus 2",
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
