"""Evidence: links between nodes that admission rests on, and how fast devices are."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ledger.cli.common import No, Session, Speaker, Usage, command
from ledger.cli.evidence_show import of_devices, show

if TYPE_CHECKING:
    from ledger.core.state import State
    from ledger.log.port import Log
    from schemas.base import Model

__all__ = ["register"]

_LOOPBACK = "127.0.0.1"
_DAY_S = 86_400
_LINK = ("p50_us", "p99_us", "bandwidth_mbps")

Valid = Annotated[int, typer.Option(help="for how many seconds it is to be believed")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        help="What was measured of links and devices: by whom, when, and for how long it holds.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    command(group, "probe")(probe)
    command(group, "record")(record)
    command(group, "record-device")(record_device)
    command(group, "list")(listed)
    command(group, "show")(show)
    app.add_typer(group, name="evidence")


# -- links --------------------------------------------------------------------------------


async def probe(
    session: Session,
    *,
    listen: Annotated[
        str | None, typer.Option(metavar="[HOST:]PORT", help="answer probes [loopback only]")
    ] = None,
    to: Annotated[str | None, typer.Option(metavar="[HOST:]PORT", help="who answers")] = None,
    once: Annotated[bool, typer.Option("--once", help="end after one probe")] = False,
    rounds: Annotated[int, typer.Option(min=100, max=1_000_000, help="of small messages")] = 1000,
    mib: Annotated[int, typer.Option(min=1, max=65_536, help="to send for the bandwidth")] = 256,
) -> None:
    """Measure the link between two hosts over TCP: run it on both, one with --listen.

    What --to prints is what 'evidence record' takes. Anybody who reaches --listen may
    probe: without a host it is reached from this one only.
    """
    from collectors.links.probe import TOOL, answer
    from collectors.links.probe import probe as measure
    from ledger.version import version

    if (listen is None) == (to is None):
        raise Usage("give --listen or --to")
    if listen is not None:
        host, port = _address(listen)
        await answer(
            host, port, lambda at: session.note(f"answering at {host}:{at}; Ctrl-C ends"), once=once
        )
        return
    host, port = _address(to or "")
    try:
        found = await measure(host, port, rounds=rounds, mib=mib)
    except (OSError, TimeoutError) as error:
        raise ConnectionError(f"{host}:{port}: {str(error) or 'no answer in time'}") from None
    plain = {"tool": TOOL, "version": version(), **found._asdict(), "measured_us": _now_us()}
    session.emit(
        plain,
        f"latency P50 {found.p50_us} us, P99 {found.p99_us} us (half of {rounds} round trips)\n"
        f"bandwidth {found.bandwidth_mbps:,} Mb/s ({mib} MiB)",
    )


async def record(
    session: Session,
    files: Annotated[
        list[Path], typer.Argument(help="of 'evidence probe --json' or of perftest; - is stdin")
    ],
    *,
    node: Annotated[str, typer.Option(help="from this node")],
    to_node: Annotated[str, typer.Option(help="to this one")],
    version: Annotated[str, typer.Option(help="of perftest, which does not print it")] = "",
    valid_s: Valid = 3_600,
    speaker: Speaker,
) -> None:
    """Put what was measured of a link on the log: remote devices are admitted by it.

    Of perftest it takes the output of ib_send_lat (by iterations) and of ib_write_bw.
    Exit 1 where the ledger does not know the nodes.
    """
    from schemas.observations import LinkEvidence

    found: dict[str, Any] = {}
    for file in files:
        found |= _read(file, version)
    lacking = [name for name in _LINK[1:] if name not in found]
    if lacking:
        raise Usage(f"{', '.join(lacking)} is in none of the files")
    measured_us = found.pop("measured_us", None) or _now_us()
    async with session.open(write=True) as log:
        states = await _states(session, log)
        known = {name: one for state in states for name, one in state.nodes.items()}
        for name in (node, to_node):
            if name not in known:
                raise No(f"the ledger knows no node {name}")
        fact = LinkEvidence(
            node=node,
            incarnation=known[node].incarnation,
            node_time_us=measured_us,
            to_node=to_node,
            valid_s=valid_s,
            **{name: found[name] for name in (*_LINK, "tool", "version") if name in found},
        )
        cell = next(one.cell for one in states if node in one.nodes)
        name = await _write(session, log, "observations", cell, "link.evidence", fact, speaker)
    plain = {"evidence": name, "node": node, "to_node": to_node, "valid_s": valid_s}
    session.emit(
        plain | {name: found[name] for name in found},
        f"{name}: {node} to {to_node} by {found['tool']} {found['version']}, for {valid_s} s",
    )


def _read(file: Path, version: str) -> dict[str, Any]:
    """Return what a file has of a link; raise `Usage` for one that has nothing."""
    import orjson

    from collectors.links.perftest import BadOutput, Latency, read_perftest

    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Usage(f"{file}: {error}") from None
    if text.lstrip().startswith("{"):
        try:
            plain = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise Usage(f"{file}: {error}") from None
        names = (*_LINK, "tool", "version", "measured_us")
        return {name: plain[name] for name in names if name in plain}
    try:
        found = read_perftest(text)
    except BadOutput as error:
        raise Usage(f"{file}: {error}") from None
    if not version:
        raise Usage(f"{file} is perftest's: give its --version")
    about = {"tool": "perftest", "version": version}
    if isinstance(found, Latency):
        return about | found._asdict()
    return about | {"bandwidth_mbps": found.mbps}


# -- devices ------------------------------------------------------------------------------


async def record_device(
    session: Session,
    device: Annotated[str, typer.Argument(help="UUID of a device")],
    *,
    kind: Annotated[str, typer.Option(help="whole-card, slice, or co-running")] = "whole-card",
    workload: Annotated[str, typer.Option(help="what ran")],
    metric: Annotated[str, typer.Option(help="with its unit, as tokens_per_s")],
    value: Annotated[int, typer.Option(min=0)],
    tool: Annotated[str, typer.Option(help="what measured it")],
    version: Annotated[str, typer.Option(help="of the tool")],
    mig_uuid: Annotated[str | None, typer.Option(help="the slice that it was on")] = None,
    profile: Annotated[str, typer.Option(help="the profile of that slice")] = "",
    neighbour: Annotated[
        list[str] | None, typer.Option(help="what ran beside it; may be repeated")
    ] = None,
    baseline: Annotated[str, typer.Option(help="id of the evidence without neighbours")] = "",
    driver: Annotated[str, typer.Option(help="the driver's version")] = "",
    valid_s: Valid = 30 * _DAY_S,
    speaker: Speaker,
) -> None:
    """Put on record how fast a device or a slice is, alone or beside others.

    With --baseline it says what is left of that. Exit 1 for a device, slice or
    baseline that nobody knows.
    """
    from pydantic import ValidationError

    from ledger.amounts import per_cent
    from schemas.evidence import DeviceEvidence

    if (kind == "co-running") != bool(neighbour):
        raise Usage("--neighbour and --kind co-running go together")
    async with session.open(write=True) as log:
        states = await _states(session, log)
        there = next((one for one in states if device in one.devices), None)
        if there is None:
            raise No(f"the ledger knows no device {device}")
        slices = [there.slices[one].mig_uuid for one in there.devices[device].slices]
        if mig_uuid is not None and mig_uuid not in slices:
            raise No(f"there is no slice {mig_uuid} on {device}")
        left = None
        if baseline:
            left = await _left_of(session, log, baseline, metric, value)
        try:
            fact = DeviceEvidence(
                kind=kind,  # type: ignore[arg-type]
                node=there.devices[device].node,
                device=device,
                mig_uuid=mig_uuid,
                profile=profile,
                workload=workload,
                metric=metric,
                value=value,
                neighbours=tuple(neighbour or ()),
                baseline=baseline,
                of_baseline_permille=left,
                driver=driver,
                tool=tool,
                version=version,
                measured_us=_now_us(),
                valid_s=valid_s,
            )
        except ValidationError as error:
            first = error.errors()[0]
            raise Usage(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
        name = await _write(session, log, "usage", fact.node, "device.evidence", fact, speaker)
    part = "" if left is None else f", {per_cent(left, 1000)} of {baseline}"
    plain = {"evidence": name, **fact.model_dump(mode="json", exclude_none=True)}
    session.emit(plain, f"{name}: {metric} {value} of {workload} on {device}{part}")


async def _left_of(session: Session, log: Log, baseline: str, metric: str, value: int) -> int:
    """Return how many thousandths of a baseline a value is; raise `No` for no such baseline."""
    async for name, _, plain in of_devices(session, log):
        if name == baseline:
            if plain["metric"] != metric or not plain["value"]:
                raise No(f"{baseline} has {plain['metric']} {plain['value']}: not to compare with")
            return int(value * 1000 // plain["value"])
    raise No(f"there is no evidence {baseline}")


async def listed(
    session: Session,
    *,
    fresh: Annotated[bool, typer.Option("--fresh", help="only what still holds")] = False,
) -> None:
    """List the evidence that there is: the newest of each link, and all of devices."""
    rows: list[dict[str, Any]] = []
    now_us = _now_us()
    async with session.open() as log:
        for state in await _states(session, log):
            rows += [
                {
                    "evidence": one.id,
                    "kind": "link",
                    "about": f"{one.from_node} to {one.to_node}",
                    "says": f"P99 {one.p99_us} us, {one.bandwidth_mbps} Mb/s",
                    "tool": f"{one.tool} {one.version}",
                    "holds": now_us < one.valid_until_us,
                }
                for one in state.links.values()
            ]
        async for name, time_us, plain in of_devices(session, log):
            rows.append(
                {
                    "evidence": name,
                    "kind": plain["kind"],
                    "about": plain.get("mig_uuid") or plain["device"],
                    "says": f"{plain['workload']}: {plain['metric']} {plain['value']}",
                    "tool": f"{plain['tool']} {plain['version']}",
                    "holds": now_us < time_us + plain["valid_s"] * 1_000_000,
                }
            )
    rows = [row for row in rows if row["holds"] or not fresh]
    session.emit_rows(rows, ["evidence", "kind", "about", "says", "tool", "holds"])


# -- both -----------------------------------------------------------------------------------


async def _states(session: Session, log: Log) -> list[State]:
    from ledger.reading import cells_of, fold_log

    folds = await fold_log(log, session.prefix, progress=session.progress("reading"))
    return list(cells_of(folds).values())


async def _write(
    session: Session,
    log: Log,
    topic: Literal["observations", "usage"],
    key: str,
    kind: str,
    fact: Model,
    speaker: Speaker,
) -> str:
    """Append a record; return its id, which is made of what it says: a copy has the same."""
    from hashlib import sha256

    from ledger.wire import input_entry
    from schemas.topics import full_name

    plain = fact.model_dump(mode="json", exclude_none=True)
    name = f"e-{sha256(fact.model_dump_json().encode()).hexdigest()[:24]}"
    source = speaker.client(session, log).source
    entry = input_entry(key, kind, source, name, plain)
    await log.append(full_name(session.prefix, topic), None, [entry])
    return name


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > 65_535:  # noqa: PLR2004 - ports
        raise Usage(f"{text!r} is not [HOST:]PORT")
    return host.strip("[]") or _LOOPBACK, int(port)


def _now_us() -> int:
    import time

    return time.time_ns() // 1000
