"""Positions and snapshots as every command takes them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ledger.cli.common import No, Session, Usage

if TYPE_CHECKING:
    from ledger.log.port import Log
    from ledger.replay.position import Place, Position
    from ledger.replay.states import PositionSnapshots

__all__ = [
    "FromOption",
    "LogAtOption",
    "PositionArgument",
    "Starts",
    "ToOption",
    "beside",
    "passed_over",
    "places_of",
    "position_of",
    "stores_of",
]

_WHERE = "a time (RFC 3339), a record as events/0@17, an offset, begin or end"

FromOption = Annotated[str, typer.Option("--from", metavar="POSITION", help=_WHERE)]
ToOption = Annotated[str, typer.Option("--to", metavar="POSITION", help=_WHERE)]
#: Of a report, whose own times (``--at``, ``--from``, ``--to``) are those that it is about.
LogAtOption = Annotated[
    str | None,
    typer.Option("--log-at", metavar="POSITION", help="only the log up to there [all of it]"),
]
PositionArgument = Annotated[str, typer.Argument(metavar="POSITION", help=_WHERE)]


@dataclass(frozen=True, slots=True)
class Starts:
    """Where a state is started from."""

    snapshots: Annotated[
        Path | None,
        typer.Option("--snapshots", metavar="DIR", help="folder of snapshots [beside the log]"),
    ] = None
    no_snapshots: Annotated[
        bool, typer.Option("--no-snapshots", help="fold every record from the first on")
    ] = False


def position_of(text: str, option: str = "") -> Position:
    """Return what a position means; raise `Usage`, naming the option, when it is none."""
    from ledger.replay.position import BadPosition, parse

    try:
        return parse(text)
    except BadPosition as error:
        raise Usage(f"{option}: {error}" if option else str(error)) from None


async def places_of(log: Log, session: Session, *positions: Position) -> list[Place]:
    """Return where positions are in the log; raise `Usage` or `No` where they are not."""
    from ledger.replay.position import BadPosition, NoSuchRecord, find

    try:
        return await find(log, session.prefix, *positions)
    except NoSuchRecord as error:
        raise No(str(error)) from None
    except BadPosition as error:
        raise Usage(str(error)) from None


def stores_of(session: Session, starts: Starts) -> list[PositionSnapshots]:
    """Return the snapshots that may be started from: those named, or those beside the log."""
    from ledger.replay.states import PositionSnapshots
    from schemas.topics import full_name

    if starts.no_snapshots:
        return []
    folders = (
        [starts.snapshots]
        if starts.snapshots
        else [
            beside(session.url, "positions"),
            Path(os.environ.get("GPULEDGER_SNAPSHOTS") or beside(session.url, "snapshots")),
        ]
    )
    topic = full_name(session.prefix, "events")
    return [PositionSnapshots(folder, topic) for folder in folders]


def beside(url: str, what: str) -> Path:
    """Return the folder beside a log's file or folder, or one of the broker's own."""
    kind, _, rest = url.partition(":")
    file = Path(rest)
    if kind in ("sqlite", "archive") and file.name:
        return file.with_name(f"{file.name}-{what}")
    broker = re.sub(r"[^A-Za-z0-9.]+", "-", url.partition("//")[2])
    return Path(".gpuledger") / what / (broker or "log")


def passed_over(session: Session, stores: list[PositionSnapshots]) -> None:
    """Say which snapshots were not used: the answer is right without them, and slower."""
    for store in stores:
        for one in store.set_aside:
            session.note(f"snapshot {one.path} was passed over: {one.reason}")
