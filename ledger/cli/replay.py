"""For SREs: what differs, what happened in between, what broke it first, what touched an id."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ledger.cli.common import No, Session, Usage, command
from ledger.cli.positions import (
    FromOption,
    PositionArgument,
    Starts,
    ToOption,
    beside,
    passed_over,
    places_of,
    position_of,
    stores_of,
)

if TYPE_CHECKING:
    from ledger.replay.bisect import Turn
    from ledger.replay.timeline import Timeline

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app, "diff", warns=False)(diff)
    command(app, "replay")(replay)
    command(app, "bisect")(bisect)
    command(app, "timeline", warns=False)(timeline)
    snapshots = typer.Typer(
        help="Snapshots of positions, from which any state is quickly reached.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    app.add_typer(snapshots, name="snapshots")
    command(snapshots, "make")(make)


async def diff(
    session: Session,
    first: PositionArgument,
    second: PositionArgument,
    by: Annotated[str, typer.Option(help="table, tenant, node, device or lease")] = "table",
    all_: Annotated[bool, typer.Option("--all", help="clocks and answered ids too")] = False,
    *,
    starts: Starts,
) -> None:
    """Show what differs between the states at two positions, and which records touched it.

    With --all nothing is left out, and both states' digests are told.
    """
    from ledger.replay import diff as work
    from ledger.replay.position import place_names
    from ledger.replay.words import GROUPS, grouped

    if by not in GROUPS:
        raise Usage(f"--by is one of {', '.join(GROUPS)}")
    positions = position_of(first), position_of(second)
    stores = stores_of(session, starts)
    async with session.open() as log:
        old, new = await places_of(log, session, *positions)
        if any(old[number] > new[number] for number in new):
            raise Usage(f"{first} is after {second}; give the earlier position first")
        found = await work.diff(log, session.prefix, (old, new), stores, with_ids=all_)
    passed_over(session, stores)
    ends = [
        {"position": text, "records": place_names(place), "digest": digest}
        for text, place, digest in zip(
            (first, second), (old, new), found.digests or (None, None), strict=True
        )
    ]
    plain = {
        "from": ends[0],
        "to": ends[1],
        "records": found.records,
        "counts": found.counts,
        "changes": found.changes,
    }
    if session.json:
        session.emit(plain, "")
        return
    head = [
        f"{end['position']}: {_last(end['records'])}"
        + (f", digest {end['digest']}" if end["digest"] else "")
        for end in ends
    ]
    body = list(grouped(found.changes, by, quiet=not all_)) or ["nothing differs"]
    session.emit(plain, "\n".join([*head, f"{found.records} records in between", *body]))


def _last(names: Any) -> str:  # noqa: ANN401 - names of records
    return ", ".join(names) or "before the first record"


async def replay(
    session: Session,
    to: ToOption = "end",
    since: FromOption = "begin",
    trace: Annotated[bool, typer.Option("--trace", help="one line a change")] = False,
    cell: Annotated[str | None, typer.Option(help="only this cell")] = None,
    tenant: Annotated[str | None, typer.Option(help="only what is about this tenant")] = None,
    node: Annotated[str | None, typer.Option(help="only what is about this node")] = None,
    unit: Annotated[str | None, typer.Option(help="only this device, slice or MIG UUID")] = None,
    *,
    starts: Starts,
) -> None:
    """Replay the log up to a position; print the changes on the way, and the state's digest."""
    from ledger.amounts import time_text
    from ledger.core.digest import digest
    from ledger.reading import cells_of
    from ledger.replay.legend import legend
    from ledger.replay.position import place_names
    from ledger.replay.records import follow
    from ledger.replay.states import fold_at
    from ledger.replay.trace import Filters
    from ledger.replay.trace import trace as trace_of
    from ledger.replay.words import legend_lines

    filters = Filters(cell, tenant, node, unit)
    if not trace and filters != Filters():
        raise Usage("--cell, --tenant, --node and --unit choose lines of --trace")
    positions = position_of(since, "--from"), position_of(to, "--to")
    stores, lines = stores_of(session, starts), 0
    used: dict[str, None] = {}
    async with session.open() as log:
        start, end = await places_of(log, session, *positions)
        if any(start[number] > end[number] for number in end):
            raise Usage(f"{since} is after {to}")
        if not trace:
            folds = await fold_at(log, session.prefix, end, stores)
        else:
            folds = await fold_at(log, session.prefix, start, stores)
            async for seen, names in follow(log, session.prefix, end, folds):
                for line in trace_of(seen, names, filters):
                    used[line.code] = None
                    lines += 1
                    text = f"{line.position}  {time_text(line.time_us)}  {line.code}  {line.text}"
                    session.emit(line.plain(), text)
    passed_over(session, stores)
    if filters != Filters() and not lines:
        session.note(f"between {since} and {to} nothing is about all that was asked for")
    codes = legend(used)
    plain = {
        "to": to,
        "records": place_names(end),
        "lines": lines,
        "legend": codes,
        "digest": digest(cells_of(folds)),
    }
    notes = [f"legend: {line}" for line in legend_lines(codes)]
    session.emit(plain, "\n".join([*notes, f"{_last(plain['records'])}  digest {plain['digest']}"]))


async def bisect(
    session: Session,
    expr: Annotated[str | None, typer.Option(help="one SELECT that returns one boolean")] = None,
    invariant: Annotated[str | None, typer.Option(help="an invariant, such as A1")] = None,
    since: FromOption = "begin",
    to: ToOption = "end",
    scan: Annotated[bool, typer.Option("--scan", help="after every record, not by halves")] = False,
    tables: Annotated[bool, typer.Option("--tables", help="list tables and columns")] = False,
    *,
    starts: Starts,
) -> None:
    """Find the first record after which an expression or invariant holds, or breaks.

    By halves it is assumed to change once between the positions; --scan assumes nothing.
    Exit 1 when it does not change.
    """
    from contextlib import AsyncExitStack

    from ledger.audit.sql import BadQuery
    from ledger.replay.bisect import INVARIANTS, Bisection, Same
    from ledger.replay.sql import StateTables, state_room

    if tables:
        _tables(session)
        return
    if (expr is None) == (invariant is None):
        raise Usage("give either --expr or --invariant (or --tables, to see what can be asked)")
    if invariant is not None and invariant not in INVARIANTS:
        raise Usage(f"--invariant is one of {', '.join(INVARIANTS)}")
    positions = position_of(since, "--from"), position_of(to, "--to")
    stores = stores_of(session, starts)
    try:
        async with AsyncExitStack() as entered:
            asked = None
            if expr is not None:
                asked = StateTables(expr, entered.enter_context(state_room()))
            log = await entered.enter_async_context(session.open())
            start, end = await places_of(log, session, *positions)
            if len(end) != 1:
                raise Usage(f"the ledger has {len(end)} partitions; name one, as --to 0@17")
            ((partition, last),) = end.items()
            if start[partition] > last:
                raise Usage(f"{since} is after {to}")
            search = Bisection(
                log, session.prefix, partition, stores, tables=asked, invariant=invariant
            )
            found = await search.run(start[partition], last, scan=scan)
    except BadQuery as error:
        raise No(str(error)) from None
    passed_over(session, stores)
    what = invariant or expr or ""
    if isinstance(found, Same):
        says = "holds" if found.held else "does not hold"
        rest = "after every record" if scan else "at both ends; --scan looks after every record"
        raise No(f"{what} {says} {rest}")
    _turn(session, found, what, scan=scan)


def _turn(session: Session, found: Turn, what: str, *, scan: bool) -> None:
    from dataclasses import asdict

    import orjson

    from ledger.amounts import time_text
    from ledger.replay.names import Names
    from ledger.replay.records import lines_of, one_line
    from ledger.replay.words import grouped

    turn = "holds" if found.held else "breaks"
    assumed = None if scan else "that it changes once between the positions"
    plain: dict[str, Any] = {
        "asked": what, "turn": turn, "position": found.position, "detail": found.detail,
        "assumed": assumed, "evaluated": found.evaluated,
        "changes": [asdict(one) for one in found.changes],
    }  # fmt: skip
    how = "looked after every record" if scan else f"by halves, assuming {assumed}"
    lines = [f"{what} {turn} with {found.position}",
             f"  {how}; {found.evaluated} states looked at"]  # fmt: skip
    if found.detail:
        lines.append(f"  {found.detail}")
    if found.seen is None:
        lines.append("  every reader refuses this record, so nothing has changed")
    else:
        data, seen = found.seen.data, found.seen
        given = data.get("input", {})
        said = list(lines_of(seen, Names()))
        plain |= {
            "time_us": seen.record.time_us, "verdict": seen.verdict, "source": data.get("source"),
            "input": given, "outcome": data.get("outcome"), "events": [one.plain() for one in said],
        }  # fmt: skip
        if given:
            cause = f"{given['type']} {given['source']}#{given['id']}"
            when, code = time_text(data["time_us"]), data["outcome"]["code"]
            lines.append(f"  {when} caused by {cause}, answered {code}")
            lines.append(f"    {orjson.dumps(given['data']).decode()}")
        lines += [f"    {one.code}  {one.text}" for one in said]
    lines += ["before and after", *grouped(found.changes, "table")] if found.changes else []
    session.emit(plain, "\n".join(one_line(one) for one in lines))


def _tables(session: Session) -> None:
    from ledger.replay.sql import TABLES

    for one in TABLES.values():
        columns = {name: kind for name, kind, _ in one.columns}
        text = ", ".join(f"{name} {kind}" for name, kind in columns.items())
        session.emit(
            {"table": one.name, "meaning": one.meaning, "columns": columns},
            f"{one.name}: {one.meaning}\n  {text}",
        )


async def timeline(
    session: Session,
    name: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="request, lease, device, slice, node, order, quota, queue, pool, tenant, cell",
        ),
    ],
    to: ToOption = "end",
    since: FromOption = "begin",
    *,
    starts: Starts,
) -> None:
    """Show everything that touched an id, in log order. Exit 1 when nothing did."""
    from ledger.explain import Ambiguous
    from ledger.replay.records import follow
    from ledger.replay.states import fold_at
    from ledger.replay.timeline import Timeline

    positions = position_of(since, "--from"), position_of(to, "--to")
    found, stores = Timeline(name), stores_of(session, starts)
    async with session.open() as log:
        start, end = await places_of(log, session, *positions)
        folds = await fold_at(log, session.prefix, start, stores, with_ids=False)
        async for seen, names in follow(log, session.prefix, end, folds):
            found.take(seen, names)
    passed_over(session, stores)
    try:
        found.finish()
    except Ambiguous as error:
        raise Usage(str(error)) from None
    if not found.steps:
        raise No(f"nothing called {name} was touched between {since} and {to}")
    session.emit(found.plain(), _timeline(found))


def _timeline(found: Timeline) -> str:
    from ledger.amounts import seconds_text, time_text
    from ledger.wording import listed

    lines = [f"{found.id}: {', '.join(found.kinds)}"]
    for one in found.steps:
        line = one.line
        since = "" if one.since_us is None else f"+{seconds_text(one.since_us)}"
        lines.append(
            f"{time_text(line.time_us)} {since:>14}  {line.position}  {line.code}  {line.text}"
        )
    spent_us = found.steps[-1].line.time_us - found.steps[0].line.time_us
    lines.append(f"{len(found.steps)} steps in {seconds_text(spent_us)}")
    lines += [f"  {kind}: {listed(list(ids))}" for kind, ids in found.links.items() if ids]
    return "\n".join(lines)


async def make(
    session: Session,
    folder: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="where [beside the log]")
    ] = None,
    every: Annotated[int, typer.Option(help="records between two snapshots", min=1)] = 25_000,
) -> None:
    """Write a snapshot of the state at every so many records; a second call adds what is new."""
    from ledger.replay.states import PositionSnapshots, make_snapshots
    from schemas.topics import full_name

    store = PositionSnapshots(
        folder or beside(session.url, "positions"), full_name(session.prefix, "events")
    )
    made = 0
    async with session.open() as log:
        async for path, offset in make_snapshots(log, session.prefix, store, every):
            made += 1
            size = path.stat().st_size
            session.emit({"path": str(path), "offset": offset, "bytes": size},
                         f"{path}  {size:,} bytes")  # fmt: skip
    passed_over(session, [store])
    if not made:
        session.note(f"nothing to add to {store.folder}: no {every:,} records more")
