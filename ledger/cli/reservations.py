"""Advance reservations: made and given up by an operator, and listed with who runs within them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ledger.cli.common import Session, Speaker, Usage, command
from ledger.cli.policy_apply import Operator, send

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ledger.core.state import State

__all__ = ["register"]

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="name of the reservation")]

_US = 1_000_000

_COLUMNS = ("reservation", "tenant", "start", "end", "state", "count", "model", "nodes", "in_use")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        help="Devices reserved for a tenant, for a time.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    for verb, function in (("apply", reservation_apply), ("cancel", cancel), ("list", list_all)):
        command(group, verb)(function)
    app.add_typer(group, name="reservation")


async def reservation_apply(
    session: Session,
    name: NameArgument,
    operator: Operator,
    speaker: Speaker,
    *,
    tenant: Annotated[str, typer.Option(help="for whom")],
    start: Annotated[str, typer.Option(metavar="TIME", help="such as 2026-01-31T12:00:00Z")],
    end: Annotated[str | None, typer.Option(metavar="TIME", help="the first instant after")] = None,
    lasts_s: Annotated[int | None, typer.Option(help="how long, instead of --end")] = None,
    count: Annotated[int, typer.Option(help="devices on each node")] = 1,
    nodes: Annotated[int, typer.Option(help="on how many nodes")] = 1,
    pool: Annotated[str | None, typer.Option(help="only of this pool [any]")] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="only of this model; may be repeated [any]")
    ] = None,
) -> None:
    """Reserve devices, or replace a reservation. Exit 1 when not enough would be free by then."""
    from schemas.reservations import ReservationApply

    if (end is None) == (lasts_s is None):
        raise Usage("give one of --end and --lasts-s")
    start_us = _time(start, "--start")
    end_us = _time(end, "--end") if end is not None else start_us + (lasts_s or 0) * _US
    if end_us <= start_us:
        raise Usage("a reservation ends after it starts")
    data = ReservationApply(
        reservation=name,
        tenant=tenant,
        pool=pool,
        models=tuple(model or ()),
        count=count,
        nodes=nodes,
        start_us=start_us,
        end_us=end_us,
        author=operator.name,
        reason=operator.reason,
    )
    await send(session, data, speaker)


async def cancel(
    session: Session, name: NameArgument, operator: Operator, speaker: Speaker
) -> None:
    """Give a reservation up; what runs within it goes on, who waits within it is answered."""
    from schemas.reservations import ReservationCancel

    data = ReservationCancel(reservation=name, author=operator.name, reason=operator.reason)
    await send(session, data, speaker)


async def list_all(
    session: Session,
    *,
    cell: Annotated[str | None, typer.Option(help="only this cell [all]")] = None,
) -> None:
    """List the reservations that are not over: when, where, and how much of them is in use."""
    from ledger.cli.questions import check_cell
    from ledger.reading import cells_of, fold_log

    async with session.open() as log:
        cells = cells_of(await fold_log(log, session.prefix, progress=session.progress("reading")))
    check_cell(cells, cell)
    rows = [row for state in cells.values() if cell in (None, state.cell) for row in _rows(state)]
    if not session.json:
        for row in rows:
            row["nodes"] = ", ".join(row["nodes"])
    session.emit_rows(rows, _COLUMNS)


def _rows(state: State) -> Iterator[dict[str, Any]]:
    from ledger.amounts import time_text
    from ledger.core.promises.reservations import SHORT

    for one in sorted(state.reservations.values(), key=lambda one: (one.start_us, one.name)):
        word = "open" if one.opened else "to come"
        leases = [
            lease
            for lease in state.leases.values()
            if state.requests[lease.request].reservation == one.name
        ]
        used = {unit for lease in leases for part in lease.parts.values() for unit in part.units}
        yield {
            "cell": state.cell,
            "reservation": one.name,
            "tenant": one.tenant,
            "start": time_text(one.start_us),
            "end": time_text(one.end_us),
            "state": "short" if f"{SHORT} {one.name}" in state.alarms else word,
            "count": one.count,
            "model": one.model,
            "nodes": one.chosen,
            "in_use": len(used),
            "leases": sorted(lease.id for lease in leases),
            "start_us": one.start_us,
            "end_us": one.end_us,
        }


def _time(text: str, option: str) -> int:
    """Return a time of RFC 3339 as UTC microseconds, without a zone it is UTC; raise `Usage`."""
    from datetime import UTC, datetime, timedelta

    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise Usage(f"{option} takes a time such as 2026-01-31T12:00:00Z, not {text!r}") from None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return (when - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
