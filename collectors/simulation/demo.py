"""`gpuledger demo`: a month of a cluster on the embedded ledger, in virtual time.

What feeds the ledger is handed in (`MakeLoop`): collectors and processors do not
know each other.
"""

from __future__ import annotations

import gc
import sys
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from collectors.simulation.clock import VirtualClock
from collectors.simulation.cluster import OPERATOR, Cluster, Scenario, Standing
from collectors.simulation.log import SimulationLog
from collectors.simulation.openb import openb_scenario
from collectors.simulation.report import RunReport
from collectors.simulation.scenario import read_scenario
from collectors.simulation.tally import tally_log
from ledger.amounts import time_text
from ledger.log.port import LogDamaged, TopicState
from ledger.log.sqlite import SqliteLog
from ledger.log.topics import declared
from ledger.verify import verify_log
from schemas.topics import full_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TextIO

    from collectors.simulation.cluster import Loop
    from ledger.log.port import Log

__all__ = [
    "DEFAULT_PATH",
    "SCENARIO",
    "DemoOptions",
    "MakeLoop",
    "NotADemo",
    "make_room",
    "run_demo",
]

#: The main demonstration, in a checkout.
SCENARIO = Path(__file__).parents[2] / "examples" / "helios" / "scenario.toml"

#: Where the ledger of a demonstration is left.
DEFAULT_PATH = Path("demo-ledger") / "ledger.sqlite"

#: Progress is told in so many lines where there is no terminal.
_LINES = 10


class NotADemo(Exception):
    """What stands where the ledger is to go was not left by a demonstration: it is kept."""


class MakeLoop(Protocol):
    """Makes what feeds the ledger (`processors.embedded.EmbeddedLoop`)."""

    def __call__(
        self, log: Log, url: str, clock: Callable[[], int], heartbeat_limit_s: int
    ) -> Loop:
        """Return a loop on ``log``, at ``url``; it makes no snapshots."""


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What to run and where to leave it.

    ``jobs`` takes only so many of the trace. With ``openb_nodes`` and ``openb_pods``
    (both or neither) the lists of Alibaba's trace v2023 are run in place of ``scenario``.
    ``command`` is how the reader calls gpuledger.
    """

    path: Path = DEFAULT_PATH
    scenario: Path = SCENARIO
    jobs: int | None = None
    openb_nodes: Path | None = None
    openb_pods: Path | None = None
    prefix: str = "gpuledger"
    command: str = "gpuledger"
    notes: TextIO = field(default_factory=lambda: sys.stderr)


async def run_demo(options: DemoOptions, make_loop: MakeLoop) -> RunReport:
    """Run a demonstration; return what it has left.

    Raise `collectors.files.BadFile` for a file that is not what it should be,
    `NotADemo` when another ledger stands at ``options.path``, and what the log
    and the loop raise.
    """
    began = time.monotonic()
    title, scenario = _scenario(options)
    await make_room(options)
    clock = VirtualClock(scenario.start_us)
    url = f"sqlite:{options.path}"
    async with SimulationLog(options.path, clock=clock) as log:
        # One cell, so one partition: more would only be looked at in vain.
        await log.create_topics({name: TopicState(1) for name in declared(options.prefix)})
        loop = make_loop(log, url, clock, scenario.heartbeat_limit_s)
        with _progress(options.notes, scenario) as progress, _uncollected():
            cluster = Cluster(log, loop, clock, scenario, prefix=options.prefix, progress=progress)
            await cluster.run()
            tally = await tally_log(log, options.prefix)
            verified = await verify_log(log, options.prefix)
    wall_us = round((time.monotonic() - began) * 1_000_000)
    given = Counter(answers.total() for answers in cluster.client.finals.values())
    given[0] += len(scenario.jobs) - given.total()
    finals = {answers: count for answers, count in sorted(given.items()) if count}
    return RunReport(title, tally, verified, finals, wall_us, url, options.command)


def _scenario(options: DemoOptions) -> tuple[str, Scenario]:
    if options.openb_nodes is not None and options.openb_pods is not None:
        scenario = openb_scenario(options.openb_nodes, options.openb_pods, jobs=options.jobs)
        trace = "openb (Alibaba, 2023)"
    else:
        scenario = read_scenario(options.scenario, jobs=options.jobs)
        trace = "Helios Venus, September 2020 (CC-BY-4.0, Hu et al., SC '21), and serving beside it"
    gpus = sum(len(node.devices) for node in scenario.nodes)
    counts = f"{len(scenario.nodes):,} nodes, {gpus:,} GPUs, {len(scenario.jobs):,} requests"
    return f"{trace}\n{counts}", scenario


async def make_room(options: DemoOptions) -> None:
    """Remove the ledger of an earlier demonstration; raise `NotADemo` for anything else."""
    path = options.path
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        return
    if not await _is_demo(path, options.prefix):
        raise NotADemo(
            f"{path} was not left by a demonstration, so it is kept; name another file with --log"
        )
    options.notes.write(f"replacing the ledger of the last demonstration, {path}\n")
    for suffix in ("", "-wal", "-shm", "-bell"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


async def _is_demo(path: Path, prefix: str) -> bool:
    """Say whether the first request in a ledger is a demonstration's.

    One that was interrupted before anything was asked or told leaves nothing to be kept.
    """
    try:
        async with SqliteLog(path, read_only=True) as log:
            name, other = full_name(prefix, "requests"), full_name(prefix, "observations")
            there = await log.describe_topics([name, other])
            if name not in there:
                return False
            first = await log.read(name, 0, 0, 1)
            numbers = [(one, at) for one in there for at in range(await log.partitions(one))]
            if not any([await log.end(*one) for one in numbers]):
                return True
    except LogDamaged:
        return False
    return bool(first) and ("ce_source", OPERATOR.encode()) in first[0].headers


@contextmanager
def _uncollected() -> Iterator[None]:
    """Keep the garbage collector from searching a ledger that holds no garbage, time after time."""
    gc.collect()
    gc.freeze()
    thresholds = gc.get_threshold()
    gc.set_threshold(100_000, 50, 1_000)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


@contextmanager
def _progress(notes: TextIO, scenario: Scenario) -> Iterator[Callable[[Standing], None]]:
    """Show how far the run is: a bar on a terminal, a few lines elsewhere."""
    total = len(scenario.jobs)
    if not notes.isatty():
        told = 0

        def tell(standing: Standing) -> None:
            nonlocal told
            if standing.ended * _LINES >= (told + 1) * total:
                told = standing.ended * _LINES // total
                day = time_text(standing.time_us)[:10]
                notes.write(f"{day}  {standing.ended:,} of {total:,} requests have ended\n")
                notes.flush()

        yield tell
        return
    # Only a terminal needs it, and it takes longer to import than all the rest.
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import Progress  # noqa: PLC0415

    with Progress(console=Console(file=notes), transient=True) as bar:
        task = bar.add_task("", total=total)

        def show(standing: Standing) -> None:
            day = time_text(standing.time_us)[:10]
            bar.update(task, completed=standing.ended, description=day)

        yield show
