"""What runs: the demo, a whole site in one process, workers, collectors, topics, benches."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ledger.cli.common import EXIT_USAGE, No, Session, Usage, command

if TYPE_CHECKING:
    from processors.settings import Settings

__all__ = ["register"]

_RUNNERS = ("faust", "plain", "embedded")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app, "up")(up)
    command(app, "worker")(worker)
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


async def up(
    session: Session,
    *,
    fleet: Annotated[
        Path | None, typer.Option(help="simulated nodes, TOML or JSON [three small nodes]")
    ] = None,
    faults: Annotated[Path | None, typer.Option(help="what goes wrong with them, and when")] = None,
    speed: Annotated[float, typer.Option(help="tasks run so many times faster")] = 1.0,
) -> None:
    """Run a whole site in this process: worker and simulated nodes. Ctrl-C ends it.

    Topics are made when they are missing. In an empty ledger a starter policy is
    set: the pools of the fleet, a queue 'default' (best effort) and a tenant
    'demo' that may hold everything.
    """
    from ledger.cli.site import run

    await run(session, _settings(session, log_level="warning"), fleet, faults, speed)


def worker(
    session: Session,
    *,
    runner: Annotated[
        str | None,
        typer.Option(help="faust, plain or embedded [faust on Kafka, embedded on SQLite]"),
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

    async with session.open(write=True) as log:
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
