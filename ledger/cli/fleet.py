"""``gpuledger fleet``: many simulated machines, each with the agent that real nodes run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ledger.cli.common import DEFAULT_CELL, Session, Usage, command

if TYPE_CHECKING:
    from collectors.fleet.host import HostSpec

__all__ = ["register"]

_US = 1_000_000
_MS = 1_000


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "fleet")(fleet)


async def fleet(
    session: Session,
    *,
    nodes: Annotated[int, typer.Option(min=1, max=10_000, help="how many machines")] = 3,
    gpus: Annotated[int, typer.Option(min=1, max=16, help="GPUs of each")] = 8,
    board: Annotated[
        list[str] | None,
        typer.Option(help="their GPUs, may be repeated: machine by machine in turn [H100]"),
    ] = None,
    mig: Annotated[bool, typer.Option(help="MIG is on where a board can")] = True,
    pool: Annotated[str, typer.Option(help="the pool that they are in")] = "main",
    cell: Annotated[str, typer.Option(help="the cell that they are in")] = DEFAULT_CELL,
    name: Annotated[str, typer.Option(help="their names, {} is where the number goes")] = "n{:04}",
    first: Annotated[int, typer.Option(min=0, help="the number of the first")] = 1,
    faults: Annotated[Path | None, typer.Option(help="what goes wrong with them, and when")] = None,
    heartbeat_s: Annotated[float, typer.Option(min=0.1, help="seconds between heartbeats")] = 2.0,
    look_s: Annotated[float, typer.Option(min=1, help="seconds between two readings")] = 10.0,
    nvml_ms: Annotated[int, typer.Option(min=0, help="how long NVML takes for a change")] = 250,
    run_s: Annotated[int, typer.Option(min=1, help="how long a task runs that says nothing")] = 60,
    plays: Annotated[bool, typer.Option("--tasks/--no-tasks", help="leases get processes")] = True,
) -> None:
    """Be many simulated machines, until Ctrl-C: fake GPUs under the agent of real nodes.

    Boards: A100, A30, H100, H200, B200, RTX-PRO-6000, T4, L40S.
    """
    from collectors.agent.agent import NodeOptions
    from collectors.files import BadFile
    from collectors.fleet.fault_plan import MACHINE_KINDS, FaultPlan, check_nodes, read_faults
    from collectors.fleet.fleet import SimulatedFleet
    from collectors.fleet.host import HostOptions
    from collectors.health.hearing import WatchOptions
    from collectors.use.watch import UseOptions
    from ledger.cli.site import stop_on_signals

    specs = _specs(name, first, nodes, pool, _boards(board or ["H100"], gpus), mig=mig)
    try:
        plan = FaultPlan() if faults is None else read_faults(faults)
        check_nodes(plan, {one.name: gpus for one in specs}, MACHINE_KINDS)
    except BadFile as error:
        raise Usage(str(error)) from None
    look_us = round(look_s * _US)
    # Events are asked for, and samples of use taken, ten times as often as devices are read, as
    # on a machine of its own.
    watch = WatchOptions(listen_us=look_us // 10, signs_us=look_us)
    options = HostOptions(
        prefix=session.prefix,
        heartbeat_s=heartbeat_s,
        change_us=nvml_ms * _MS,
        run_us=run_s * _US,
        plays=plays,
        agent=NodeOptions(look_us=look_us, watch=watch),
        use=UseOptions(look_us // 10, look_us, look_us),
    )
    stop = stop_on_signals()
    async with session.open(write=True) as log:
        made = SimulatedFleet(log, cell, specs, plan=plan, options=options)
        plain = {"cell": cell, "nodes": nodes, "devices": nodes * gpus}
        session.emit(plain, f"cell {cell}: {nodes} machines, {nodes * gpus} GPUs; Ctrl-C ends")
        await made.run(stop)


def _boards(names: list[str], gpus: int) -> list[tuple[str, ...]]:
    from collectors.fake_nvml.boards import BOARDS
    from collectors.fleet.host import board_named

    found = []
    for name in names:
        known = board_named(name)
        if known is None:
            raise Usage(f"no board {name!r}; there are {', '.join(BOARDS)}")
        found.append((known,) * gpus)
    return found


def _specs(
    pattern: str, first: int, nodes: int, pool: str, boards: list[tuple[str, ...]], *, mig: bool
) -> list[HostSpec]:
    from collectors.fleet.host import HostSpec

    try:
        names = [pattern.format(number) for number in range(first, first + nodes)]
    except (AttributeError, LookupError, ValueError):
        raise Usage(f"--name {pattern!r} is no pattern such as 'n{{:04}}'") from None
    if len(set(names)) < nodes:
        raise Usage(f"--name {pattern!r} gives two machines one name; put {{}} into it")
    return [HostSpec(one, pool, boards[at % len(boards)], mig=mig) for at, one in enumerate(names)]
