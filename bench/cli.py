"""``gpuledger bench NAME``: each prints one JSON object a line."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import Annotated, Any

import orjson
import typer

__all__ = ["bench_app"]

bench_app = typer.Typer(
    help="Measure this machine: one JSON object a line. Without a name, all of them.",
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Seed = Annotated[int, typer.Option("--seed", help="Seed of everything that is random.")]
Json = Annotated[bool, typer.Option("--json", help="JSON, one object a line.")]


def _print(row: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        typer.echo(orjson.dumps(row).decode())
        return
    for name, value in row.items():
        typer.echo(f"{name:>18}  {value}")
    typer.echo("")


@bench_app.callback()
def every(context: typer.Context, *, as_json: Json = False) -> None:
    """Run every bench, unless one is named."""
    if context.invoked_subcommand is None:
        core(as_json=as_json)
        replay(as_json=as_json)
        pipeline(as_json=as_json)


@bench_app.command()
def core(
    nodes: Annotated[int, typer.Option("--nodes", min=1)] = 1000,
    gpus_per_node: Annotated[int, typer.Option("--gpus-per-node", min=1, max=64)] = 8,
    requests: Annotated[int, typer.Option("--requests", min=1)] = 20_000,
    seed: Seed = 1,
    *,
    as_json: Json = False,
) -> None:
    """Time the pure core: decisions a second in one process."""
    from bench.core import run  # noqa: PLC0415 - each bench loads only what it needs

    _print(run(nodes, gpus_per_node, requests, seed), as_json=as_json)


@bench_app.command()
def replay(
    records: Annotated[int, typer.Option("--records", min=2000)] = 1_000_000,
    seed: Seed = 1,
    folder: Annotated[Path | None, typer.Option("--folder", help="Where the log is made.")] = None,
    *,
    as_json: Json = False,
) -> None:
    """Time a replay from disk to the digest, and a worker's first decision."""
    from bench.replay import run  # noqa: PLC0415

    _print(run(records, seed, folder), as_json=as_json)


@bench_app.command()
def pipeline(
    runner: Annotated[
        str, typer.Option("--runner", help="faust, plain, sqlite, or all of them.")
    ] = "all",
    partitions: Annotated[int, typer.Option("--partitions", min=1, max=64)] = 4,
    requests: Annotated[int, typer.Option("--requests", min=100)] = 20_000,
    paced: Annotated[int, typer.Option("--paced", min=10, help="Requests at 100 a second.")] = 1000,
    *,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Processes on Kafka.")] = 2,
    as_json: Json = False,
) -> None:
    """Time the whole path on a real log: throughput, and latency beside a bare round trip."""
    from bench.pipeline import run  # noqa: PLC0415

    for row in run(runner, partitions, requests, paced, workers):
        _print(row, as_json=as_json)


@bench_app.command(name="mig-loss")
def mig_loss(
    mixes: Annotated[
        str, typer.Option("--mixes", help="uniform, skew-small, skew-big, bimodal.")
    ] = "uniform,skew-small,skew-big,bimodal",
    loads: Annotated[
        str, typer.Option("--loads", help="Slices asked for, as shares of those there are.")
    ] = "0.8,1.0,1.2",
    policy: Annotated[
        str, typer.Option("--policy", help="scarcity, first-fit, best-fit, fgd, keep-options.")
    ] = "scarcity",
    migrations: Annotated[
        int, typer.Option("--migrations-per-100", min=0, help="Allowed for 100 accepted requests.")
    ] = 0,
    seeds: Annotated[int, typer.Option("--seeds", min=1)] = 5,
    *,
    as_json: Json = False,
) -> None:
    """Count the MIG requests that a full site without a queue turns away, rule by rule."""
    from bench.mig_loss import MIXES, run  # noqa: PLC0415
    from bench.mig_rules import RULES  # noqa: PLC0415

    chosen, policies = mixes.split(","), policy.split(",")
    for name, known in [(one, MIXES) for one in chosen] + [(one, RULES) for one in policies]:
        if name not in known:
            raise typer.BadParameter(f"{name!r} is not one of {', '.join(known)}")
    try:
        shares = [float(load) for load in loads.split(",")]
    except ValueError:
        raise typer.BadParameter(f"--loads {loads!r}: numbers with commas between") from None
    if not all(0 < share < 100 for share in shares):
        raise typer.BadParameter(f"--loads {loads!r}: each above 0 and below 100")
    for row in run(chosen, shares, policies, migrations, seeds):
        _print(row, as_json=as_json)


@bench_app.command()
def parvagpu(
    data: Annotated[
        Path | None, typer.Option("--data", help="Folder of public data (GPULEDGER_DATA).")
    ] = None,
    *,
    as_json: Json = False,
) -> None:
    """Pack ParvaGPU's published MIG segments again, into the fewest GPUs."""
    from bench.parvagpu import data_folder, run  # noqa: PLC0415

    try:
        for row in run(data_folder(data)):
            _print(row, as_json=as_json)
    except FileNotFoundError as error:
        raise typer.BadParameter(str(error)) from None
