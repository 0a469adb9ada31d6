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
    against: Annotated[
        str | None, typer.Option("--against", help="A commit to run in turn with this code.")
    ] = None,
    *,
    scale: Annotated[
        bool, typer.Option("--scale", help="What a decision costs at 100,000 GPUs and at 1,000.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Time the pure core: decisions a second in one process."""
    from bench import core as bench  # noqa: PLC0415 - each bench loads only what it needs

    if against is not None:
        _print(bench.run_against(against, nodes, gpus_per_node, requests, seed), as_json=as_json)
    elif scale:
        _print(bench.run_scaled((1_000, 100_000), requests, seed), as_json=as_json)
    else:
        _print(bench.run(nodes, gpus_per_node, requests, seed), as_json=as_json)


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


@bench_app.command()
def fleet(
    nodes: Annotated[int, typer.Option("--nodes", min=1)] = 1000,
    gpus_per_node: Annotated[int, typer.Option("--gpus-per-node", min=1, max=16)] = 8,
    processes: Annotated[int, typer.Option("--processes", min=1, help="Of the fleet.")] = 2,
    rate: Annotated[int, typer.Option("--rate", min=1, help="Slices asked for, a second.")] = 20,
    seconds: Annotated[int, typer.Option("--seconds", min=1)] = 30,
    heartbeat_limit_s: Annotated[
        float, typer.Option("--heartbeat-limit-s", min=4, help="As for the worker.")
    ] = 10.0,
    runner: Annotated[str, typer.Option("--runner", help="faust or plain.")] = "plain",
    *,
    as_json: Json = False,
) -> None:
    """Time discovery, slices made on demand and the loss of nodes, on a real Kafka."""
    from bench.fleet import Sizes, run  # noqa: PLC0415

    sizes = Sizes(nodes, gpus_per_node, seconds, rate, processes, heartbeat_limit_s)
    _print(run(sizes, runner), as_json=as_json)


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


@bench_app.command()
def no(
    nodes: Annotated[int, typer.Option("--nodes", min=12)] = 1000,
    gpus_per_node: Annotated[int, typer.Option("--gpus-per-node", min=4, max=16)] = 8,
    waiting: Annotated[int, typer.Option("--waiting", min=1)] = 100_000,
    tries: Annotated[int, typer.Option("--tries", min=1, help="Refusals of each kind.")] = 100,
    seed: Seed = 1,
    *,
    as_json: Json = False,
) -> None:
    """Time a no with its complete reason, while many wait."""
    from bench.no import run  # noqa: PLC0415

    _print(run(nodes, gpus_per_node, waiting, tries, seed), as_json=as_json)


@bench_app.command()
def fill(
    nodes: Annotated[int, typer.Option("--nodes", min=1)] = 500, *, as_json: Json = False
) -> None:
    """Time one-GPU requests that fill a site of 8 GPUs a node."""
    from bench.fill import fill as run  # noqa: PLC0415

    _print(run(nodes), as_json=as_json)


@bench_app.command()
def reclaim(
    case: Annotated[str, typer.Option("--case", help="one, gang, or both.")] = "both",
    nodes: Annotated[int, typer.Option("--nodes", min=2)] = 1000,
    *,
    as_json: Json = False,
) -> None:
    """Time taking borrowed GPUs back for who is entitled to them."""
    from bench.fill import reclaim as run  # noqa: PLC0415

    for one in ("one", "gang") if case == "both" else (case,):
        _print(run(one, nodes), as_json=as_json)


@bench_app.command()
def quota(
    cohorts: Annotated[int, typer.Option("--cohorts", min=1)] = 10,
    queues: Annotated[int, typer.Option("--queues", min=1, help="Quotas a cohort.")] = 100,
    *,
    as_json: Json = False,
) -> None:
    """Time 50 requests from each of many quotas that borrow from each other."""
    from bench.quotas import run  # noqa: PLC0415

    _print(run(cohorts, queues), as_json=as_json)


@bench_app.command()
def agent(
    gpus: Annotated[int, typer.Option("--gpus", min=1, max=16)] = 8,
    seconds: Annotated[float, typer.Option("--seconds", min=1, help="Of each of four.")] = 20.0,
    *,
    as_json: Json = False,
) -> None:
    """Weigh a node's agent: percent of a core, whole cards and MIG, without and with use."""
    from bench.agent import run  # noqa: PLC0415

    for row in run(gpus, seconds):
        _print(row, as_json=as_json)


@bench_app.command()
def idle(
    seconds: Annotated[float, typer.Option("--seconds", min=1, help="Of each of two.")] = 20.0,
    *,
    as_json: Json = False,
) -> None:
    """Weigh a worker to which nothing happens, with the bell of its log and without."""
    from bench.idle import run  # noqa: PLC0415

    for row in run(seconds):
        _print(row, as_json=as_json)


@bench_app.command()
def helios(
    policy: Annotated[
        str, typer.Option("--policy", help="fifo, back-fill, back-fill-planned, or all.")
    ] = "all",
    *,
    as_json: Json = False,
) -> None:
    """Replay a real month of two virtual clusters under their quotas."""
    from bench.helios import POLICIES, run  # noqa: PLC0415

    for one in POLICIES if policy == "all" else (policy,):
        _print(run(one), as_json=as_json)


@bench_app.command()
def openb(
    data: Annotated[
        Path | None, typer.Option("--data", help="Folder of public data (GPULEDGER_DATA).")
    ] = None,
    lists: Annotated[
        str, typer.Option("--lists", help="Pod lists with commas between; all of them if left out.")
    ] = "",
    policy: Annotated[
        str, typer.Option("--policy", help="least-waste, fgd, first-fit or best-fit.")
    ] = "least-waste",
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Counted up from 42.")] = 10,
    *,
    compare: Annotated[
        bool, typer.Option("--compare", help="Let fgd run on the same arrivals beside it.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Fill Alibaba's cluster with its own pods, beyond what it has, and see what is allocated."""
    from bench.openb import run  # noqa: PLC0415
    from bench.openb_trace import LISTS  # noqa: PLC0415
    from bench.parvagpu import data_folder  # noqa: PLC0415

    chosen = lists.split(",") if lists else list(LISTS)
    for name in chosen:
        if name not in LISTS:
            raise typer.BadParameter(f"{name!r} is not one of {', '.join(LISTS)}")
    if policy not in ("best-fit", "first-fit", "fgd", "least-waste"):
        raise typer.BadParameter(f"{policy!r} is no placement policy")
    folder = data_folder(data)
    if not (folder / "openb").is_dir():
        raise typer.BadParameter(
            f"{folder} has no folder openb: name it by --data or GPULEDGER_DATA"
        )
    for row in run(folder, chosen, policy, seeds, compare=compare):
        _print(row, as_json=as_json)


@bench_app.command()
def audit(
    events: Annotated[int, typer.Option("--events", min=10_000)] = 10_000_000,
    seed: Seed = 1,
    folder: Annotated[
        Path | None, typer.Option("--folder", help="Where the archive and the books are made.")
    ] = None,
    memory_mib: Annotated[
        int, typer.Option("--memory-mib", min=256, help="What the database may use.")
    ] = 1280,
    *,
    as_json: Json = False,
) -> None:
    """Archive a log of millions of events, and audit the archive as a whole."""
    from bench.audit import run  # noqa: PLC0415

    _print(run(events, seed, folder, memory_mib), as_json=as_json)
