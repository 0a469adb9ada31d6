"""What runs: the demo, a whole site in one process, workers, collectors, topics, benches."""

from __future__ import annotations

import sys
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ledger.cli.common import EXIT_DAMAGED, EXIT_USAGE, No, Session, Usage, command, pairs_of
from ledger.cli.nodes import FakeOption

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from collectors.simulation.demo import MakeLoop
    from ledger.log.port import Log
    from processors.embedded import EmbeddedLoop
    from processors.settings import Settings

__all__ = ["register", "simulated_loops"]

_RUNNERS = ("faust", "plain", "embedded")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app, "demo")(demo)
    command(app, "up")(up)
    command(app, "worker")(worker)
    command(app, "collector")(collector)
    topics = typer.Typer(
        help="Topics as the ledger needs them.", no_args_is_help=True, rich_markup_mode=None
    )
    command(topics, "apply")(topics_apply)
    command(topics, "check")(topics_check)
    app.add_typer(topics, name="topics")
    app.command(
        "bench",
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )(bench)


def _settings(session: Session, **more: Any) -> Settings:  # noqa: ANN401 - any setting
    """Return a worker's settings: the environment's, and over them what the line says."""
    from processors.settings import Settings

    given = {name: value for name, value in more.items() if value is not None}
    return Settings(log=session.url, prefix=session.prefix, **given)


async def demo(
    session: Session,
    *,
    scenario: Annotated[Path | None, typer.Option(help="what is simulated, TOML")] = None,
    jobs: Annotated[int | None, typer.Option(help="only so many jobs of the trace [all]")] = None,
    openb_nodes: Annotated[Path | None, typer.Option(help="openb node list (CSV)")] = None,
    openb_pods: Annotated[Path | None, typer.Option(help="openb pod list (CSV)")] = None,
) -> None:
    """Show the main job: a month of a real cluster's requests, in virtual time, verified.

    Without --log the ledger is left in demo-ledger/ for the commands that are
    printed at the end. Exit 4 when what it has written does not verify.
    """
    from collectors.files import BadFile
    from collectors.simulation.demo import DEFAULT_PATH, SCENARIO, DemoOptions, NotADemo, run_demo

    if (openb_nodes is None) != (openb_pods is None):
        raise Usage("--openb-nodes and --openb-pods go together")
    if session.named and not session.url.startswith("sqlite:"):
        raise Usage("a demonstration leaves its ledger in a file: --log sqlite:PATH")
    options = DemoOptions(
        path=Path(session.url.removeprefix("sqlite:")) if session.named else DEFAULT_PATH,
        scenario=SCENARIO if scenario is None else scenario,
        jobs=jobs,
        openb_nodes=openb_nodes,
        openb_pods=openb_pods,
        prefix=session.prefix,
        command=_called(),
    )

    try:
        report = await run_demo(options, simulated_loops(session))
    except (BadFile, NotADemo) as error:
        raise Usage(str(error)) from None
    session.emit(report.plain(), report.text())
    if not report.verified.ok:
        raise typer.Exit(EXIT_DAMAGED)


def simulated_loops(session: Session) -> MakeLoop:
    """Return what makes the ledger of a simulation: the real one, on the simulation's clock."""

    def make_loop(
        log: Log, url: str, clock: Callable[[], int], heartbeat_limit_s: int
    ) -> EmbeddedLoop:
        from processors.embedded import EmbeddedLoop
        from processors.settings import Settings

        settings = Settings(
            log=url,
            prefix=session.prefix,
            snapshot_every=0,
            heartbeat_limit_s=heartbeat_limit_s,
        )
        return EmbeddedLoop(log, settings, clock)

    return make_loop


def _called() -> str:
    """Return how the user calls this program, for the commands that are printed to be typed."""
    name = Path(sys.argv[0])
    if name.name != "gpuledger":
        return f"{sys.executable} -m ledger.cli"
    found = which("gpuledger")
    return "gpuledger" if found and Path(found).resolve() == name.resolve() else str(name)


async def up(
    session: Session,
    *,
    fleet: Annotated[
        Path | None, typer.Option(help="simulated nodes, TOML or JSON [three small nodes]")
    ] = None,
    faults: Annotated[Path | None, typer.Option(help="what goes wrong with them, and when")] = None,
    speed: Annotated[float, typer.Option(help="tasks run so many times faster")] = 1.0,
    site: Annotated[
        Path | None, typer.Option(help="policy to put in force first (gpuledger apply)")
    ] = None,
) -> None:
    """Run a whole site in this process: worker and simulated nodes. Ctrl-C ends it.

    Topics are made when they are missing. In an empty ledger a starter policy is
    set: the pools of the fleet, a queue 'default' (best effort) and a tenant
    'demo' that may hold everything; with --site that file instead.
    """
    from ledger.cli.site import run

    await run(session, _settings(session, log_level="warning"), fleet, faults, speed, site)


def worker(
    session: Session,
    *,
    runner: Annotated[
        str | None,
        typer.Option(
            help="faust, plain or embedded [faust on Kafka, embedded on SQLite]; all of a log alike"
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="who writes the claims [host and pid]")] = None,
    metrics_port: Annotated[int | None, typer.Option(help="Prometheus, on the loopback")] = None,
) -> None:
    """Decide what comes in, until SIGTERM or Ctrl-C. Other settings: GPULEDGER_* variables."""
    from processors.run import run_worker

    chosen = runner or ("faust" if session.url.startswith("kafka:") else "embedded")
    if chosen not in _RUNNERS:
        raise Usage(f"--runner is one of {', '.join(_RUNNERS)}, not {chosen!r}")
    settings = _settings(session, worker=name, metrics_port=metrics_port)
    kinds: dict[str, Any] = {one: one for one in _RUNNERS}
    raise typer.Exit(run_worker(settings, kinds[chosen]))


async def collector(
    session: Session,
    *,
    simulate: Annotated[
        Path | None, typer.Option(help="simulated nodes, TOML or JSON [this host's GPUs]")
    ] = None,
    node: Annotated[
        list[str] | None,
        typer.Option(help="only this one of the file's, may be repeated; or this host's name"),
    ] = None,
    cell: Annotated[str | None, typer.Option(help="the cell, to be sure [the file's]")] = None,
    faults: Annotated[Path | None, typer.Option(help="what goes wrong with them, and when")] = None,
    speed: Annotated[float, typer.Option(help="tasks run so many times faster")] = 1.0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print what this host would report, and end")
    ] = False,
    pool: Annotated[str, typer.Option(help="the pool that this host's GPUs are in")] = "main",
    label: Annotated[list[str] | None, typer.Option(help="of this host, NAME=VALUE")] = None,
    fake: FakeOption = None,
    journal: Annotated[
        Path | None, typer.Option(help="this host's memory [gpuledger-agent-NODE.db]")
    ] = None,
    mig_mode: Annotated[
        list[str] | None, typer.Option(help="change a device's MIG mode at the start, UUID=on|off")
    ] = None,
    leave_processes: Annotated[
        bool, typer.Option("--leave-processes", help="end no process: wait until it has ended")
    ] = False,
    kernel_log: Annotated[
        Path | None, typer.Option(help="where the kernel logs XIDs [/dev/kmsg]")
    ] = None,
) -> None:
    """Be the agent of nodes: report what they have, carry out orders, until Ctrl-C.

    Of this host and its GPUs, or with --simulate of simulated nodes. With --dry-run nothing
    is put on the log: what this host's agent would report is printed, and what it could not
    read.
    """
    about_host = {
        "--dry-run": dry_run, "--label": label, "--fake": fake, "--journal": journal,
        "--mig-mode": mig_mode, "--leave-processes": leave_processes, "--kernel-log": kernel_log,
    }  # fmt: skip
    if simulate is None:
        _unused({"--faults": faults, "--speed": speed != 1}, "goes with --simulate")
        _unused({"--node": len(node or ()) > 1}, "names this host: give it once")
        from ledger.cli import nodes

        name, labels = nodes.name_of(node), pairs_of(label)
        if dry_run:
            await nodes.dry_run(session, node=name, pool=pool, fake=fake, labels=labels)
            return
        from ledger.cli.node_agent import HostAgent, run

        modes = pairs_of(mig_mode, "--mig-mode")
        ends = not leave_processes
        checked = nodes.checked(fake)
        host = HostAgent(name, pool, cell, checked, journal, labels, modes, ends, kernel_log)
        await run(session, host)
        return
    _unused(about_host, "is about this host, and --simulate plays other nodes")
    from ledger.cli.site import collect

    await collect(session, simulate, faults, cell, node or (), speed)


def _unused(given: Mapping[str, object], why: str) -> None:
    """Raise `Usage` for the first option that was given and would do nothing."""
    for name, value in given.items():
        if value:
            raise Usage(f"{name} {why}")


async def topics_apply(
    session: Session,
    *,
    partitions: Annotated[
        int | None,
        typer.Option(help="of requests, observations and events, for life [8; SQLite: 1]"),
    ] = None,
    replication: Annotated[int, typer.Option(help="copies of each record (Kafka)")] = 1,
) -> None:
    """Create the topics that are missing. Exit 1 when existing ones are not as they must be."""
    from ledger.log.topics import apply, check

    async with session.open(write=True, make=True) as log:
        count = partitions or (None if session.url.startswith("kafka:") else 1)
        made = await apply(log, session.prefix, count, replication)
        findings = await check(log, session.prefix, partitions)
    for topic in made:
        session.emit({"topic": topic, "created": True}, f"created {topic}")
    for finding in findings:
        session.note(str(finding))
    if findings:
        raise No("change these at the broker; what exists is left as it is")
    if not made and not session.json:
        session.note("nothing to create: all topics are there, and as they must be")


async def topics_check(
    session: Session,
    *,
    partitions: Annotated[int | None, typer.Option(help="wanted count [any, but equal]")] = None,
    replication: Annotated[int | None, typer.Option(help="wanted copies [any]")] = None,
) -> None:
    """Compare the topics with what the ledger needs. Exit 1 when something differs."""
    from dataclasses import asdict

    from ledger.log.topics import check

    async with session.open() as log:
        findings = await check(log, session.prefix, partitions, replication)
    for finding in findings:
        session.emit(asdict(finding), str(finding))
    if findings:
        raise No("gpuledger topics apply makes what is missing; the rest is changed at the broker")
    if not session.json:
        session.note("all topics are as they must be")


def bench(context: typer.Context) -> None:
    """Measure this machine; `gpuledger bench --help` lists what."""
    from importlib import import_module

    try:
        # Benches are no part of the installed package, so nothing may depend on them.
        benches = import_module("bench.cli").bench_app
    except ModuleNotFoundError as error:
        if error.name not in ("bench", "bench.cli"):
            raise
        sys.stderr.write("gpuledger: benches are run from a checkout, with its root as folder\n")
        raise typer.Exit(EXIT_USAGE) from None
    root = context.find_root().params
    arguments = [*context.args, *(["--json"] if root.get("json") else [])]
    benches(args=arguments, prog_name="gpuledger bench")
