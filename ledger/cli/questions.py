"""What can be asked of a ledger: why this answer, what became of an id, who has what."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ledger.cli.common import AtOption, No, Session, Usage, command, table
from ledger.cli.positions import Starts, passed_over, places_of, position_of, stores_of

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Mapping

    from ledger.answers.placed import Placed
    from ledger.core.state import State
    from ledger.log.port import Log
    from ledger.reading import Seen, Upto
    from ledger.show import Shown
    from ledger.steps import Step

__all__ = ["check_cell", "register", "upto_of"]

_POSITION = re.compile(r"(?:events/)?([0-9]+)@([0-9]+)")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app, "why")(why)
    command(app, "show")(show)
    command(app, "state", warns=False)(state)


async def why(
    session: Session,
    request: Annotated[str, typer.Argument(help="request or lease: its id, or SOURCE#ID")],
    at: AtOption = None,
) -> None:
    """Explain a request: the rules with the numbers compared, what would change it, what happened.

    For one that waits the rules are asked again now. Exit 1 when nobody knows it.
    """
    from dataclasses import replace

    import orjson

    from ledger.answers.outages import Outages
    from ledger.answers.placed import granting
    from ledger.cli.explained import explained
    from ledger.core.fold import Fold
    from ledger.explain import Ambiguous, resolve
    from ledger.explain import why as explain
    from ledger.reading import cells_of, read_events
    from schemas.topics import full_name

    # Whatever concerns a request names it; the rest need not be kept.
    short = request.rpartition("#")[2].partition("/")[0]
    # An argument that is no text is in no record either.
    needle = orjson.dumps(short.encode(errors="replace").decode())[1:-1]
    history, folds, outages = [], {}, Outages()
    async with session.open() as log:
        upto = await upto_of(log, session, at)
        every = range(await log.partitions(full_name(session.prefix, "events")))
        for partition in every if upto is None or upto.offsets is None else upto.offsets:
            fold = folds[partition] = Fold().reading()
            async for seen in read_events(log, session.prefix, partition, fold, upto):
                outages.take(seen)
                if needle in (seen.record.value or b""):
                    history.append(seen)
    cells = cells_of({partition: fold.ready() for partition, fold in folds.items()})
    try:
        name = resolve(cells.values(), request)
    except Ambiguous as error:
        raise Usage(str(error)) from None
    source, _, own = name.rpartition("#")
    name = f"{source}#{own.partition('/')[0]}"  # of a lease, the request it is of
    for cell in cells.values():
        mine = [one for one in history if one.data.get("cell") == cell.cell]
        found = explain(cell, mine, name, outages)
        if found is not None:
            given = granting(mine, name) if found.code == "granted" else None
            if given is not None:
                found = replace(found, placed=await _placed(session, cell.cell, *given))
            session.emit(found.plain(), explained(found))
            return
    raise No(
        f"no request {request} is known; one that was malformed is among the dead letters:"
        " gpuledger dead-letters list"
    )


async def _placed(session: Session, cell: str, seen: Seen, granted: dict[str, Any]) -> Placed:
    """Read up to the record that gave the devices, and say why these."""
    from ledger.answers.placed import placed_by_record
    from ledger.reading import Upto, fold_log

    partition, offset = seen.record.partition, seen.record.offset
    async with session.open() as log:
        before = await fold_log(
            log, session.prefix, [partition], upto=Upto(offsets={partition: offset})
        )
    return placed_by_record(before[partition].cells[cell], seen, granted)


async def show(
    session: Session,
    name: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="any id: request, lease, order, device, slice, node, tenant, queue, pool, cell;"
            " or the position of a record, as events/0@17",
        ),
    ],
    last: Annotated[int, typer.Option(help="how many steps of the timeline; 0 is all")] = 50,
) -> None:
    """Show what an id is now, what it touched, and when. Exit 1 when nobody knows it."""
    from ledger.core.fold import Fold
    from ledger.explain import Ambiguous
    from ledger.reading import cells_of, read_events
    from ledger.show import Search
    from schemas.topics import full_name

    match = _POSITION.fullmatch(name)
    if match is not None:
        await _show_record(session, int(match[1]), int(match[2]))
        return
    search, folds = Search(name), {}
    async with session.open() as log:
        for partition in range(await log.partitions(full_name(session.prefix, "events"))):
            fold = folds[partition] = Fold().reading()
            async for seen in read_events(log, session.prefix, partition, fold):
                search.take(seen)
    try:
        shown = search.finish(cells_of(folds))
    except Ambiguous as error:
        raise Usage(str(error)) from None
    if not shown.found:
        raise No(f"nothing called {name} has ever been in this ledger")
    left_out = max(0, len(shown.timeline) - last) if last else 0
    shown.timeline = shown.timeline[left_out:]
    session.emit({**shown.plain(), "left_out": left_out}, _shown(shown, left_out))


async def _show_record(session: Session, partition: int, offset: int) -> None:
    """Print one record of the ledger, with the verdict that every reader gives it."""
    import orjson

    from ledger.amounts import time_text
    from ledger.reading import Upto, read_events
    from ledger.wording import sentence

    async with session.open() as log:
        upto = Upto(offsets={partition: offset + 1})
        found = None
        async for seen in read_events(log, session.prefix, partition, None, upto):
            found = seen
    if found is None or found.record.offset != offset:
        raise No(f"there is no record events/{partition}@{offset}")
    said = [sentence(event) for event in found.data.get("events", ())]
    plain = {
        "position": found.position,
        "time_us": found.record.time_us,
        "verdict": found.verdict,
        "record": found.data,
        "sentences": said,
    }
    head = f"{found.position}  {time_text(found.record.time_us)}  {found.verdict}"
    body = orjson.dumps(found.data, option=orjson.OPT_INDENT_2).decode()
    session.emit(plain, "\n".join([head, *(f"  {one}" for one in said), body]))


def _shown(shown: Shown, left_out: int) -> str:
    lines = []
    for thing in shown.things:
        cell = f" of cell {thing.cell}" if thing.cell else ""
        lines.append(f"{thing.kind} {shown.id}{cell}")
        if thing.state is None:
            lines.append("  has no state of its own now; below is what named it")
        else:
            now = _of_quota(thing.state) if thing.kind == "tenant" else thing.state
            shown_now = {n: v for n, v in now.items() if v not in (None, [], {}, "")}
            lines += [f"  {_row(name, value)}" for name, value in shown_now.items()]
    lines += ["touched"] if any(shown.touched.values()) else []
    for kind, ids in shown.touched.items():
        names = list(ids)
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        if names:
            lines.append(f"  {kind:<10} {' '.join(names[:_NAMED])}{more}")
    lines.append("what happened")
    if left_out:
        lines.append(f"  ({left_out} earlier steps left out; --last 0 shows them)")
    lines += [_step_line(step) for step in shown.timeline]
    return "\n".join(lines)


def _of_quota(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a quota's fields with its amounts in their resources' units.

    The GPU time that fair share looks at is named apart from what is used now.
    """
    from ledger.wording import quantity_text

    told = {name: value for name, value in state.items() if name not in _QUOTA_WINDOWS}
    told["limits"] = {
        resource: {
            name: quantity_text(resource, one) for name, one in limit.items() if one is not None
        }
        for resource, limit in state["limits"].items()
    }
    for name in ("capacity", "kept", "used", "leaving"):
        told[name] = {one: quantity_text(one, amount) for one, amount in state[name].items()}
    told["used_lately_milli_us"] = told.pop("used_milli_us")
    return told


#: Numbers of stretches of time, which only the ledger counts.
_QUOTA_WINDOWS = frozenset({"spent_period", "used_window"})


def _row(name: str, value: object) -> str:
    """Return one field of a thing: times and amounts in the units of people, lists shortened."""
    shown, text = _field(name, value)
    return f"{shown:<16} {text}"


def _field(name: str, value: object) -> tuple[str, str]:
    from ledger.wording import field_text, listed

    if isinstance(value, list):
        return name.replace("_", " "), listed([_field("", one)[1] for one in value])
    if isinstance(value, dict):
        inner = [_field(key, one) for key, one in value.items() if one not in (None, [], {}, "")]
        return name.replace("_", " "), listed([" ".join(one) for one in inner])
    return field_text(name, value)


#: How many ids of a kind are named to people; JSON has all.
_NAMED = 8


def _step_line(step: Step) -> str:
    from ledger.amounts import time_text

    return f"  {time_text(step.time_us)}  {step.position}  {step.text}"


async def state(
    session: Session,
    at: AtOption = None,
    cell: Annotated[str | None, typer.Option(help="only this cell [all]")] = None,
    all_: Annotated[bool, typer.Option("--all", help="with --json answered ids too")] = False,
    *,
    starts: Starts,
) -> None:
    """Show who has what, what waits and what is broken, now or at any point of the log."""
    from ledger.core.digest import canonical
    from ledger.reading import cells_of
    from ledger.replay.states import fold_at

    position = position_of(at or "end", "--at")
    stores = stores_of(session, starts)
    async with session.open() as log:
        (place,) = await places_of(log, session, position)
        folds = await fold_at(
            log, session.prefix, place, stores, progress=session.progress("reading"),
            with_ids=all_,
        )  # fmt: skip
    passed_over(session, stores)
    cells = cells_of(folds)
    check_cell(cells, cell)
    for name, one in cells.items():
        if cell not in (None, name):
            continue
        if session.json:
            session.emit_json(canonical(one, with_ids=all_))
        else:
            session.emit({}, _cell_text(one, at))
    if not cells and not session.json:
        empty = "the ledger is empty: nothing has been decided yet"
        session.note(empty if at is None else f"at {at} nothing had been decided yet")


def check_cell(cells: Mapping[str, State], cell: str | None) -> None:
    """Raise `No` for a cell that the ledger does not have."""
    if cell is not None and cell not in cells:
        raise No(f"there is no cell {cell}; the ledger has {', '.join(cells) or 'none'}")


async def upto_of(log: Log, session: Session, at: str | None, option: str = "--at") -> Upto | None:
    """Return what a position means (`ledger.replay.position`); raise `Usage` when it is none.

    Raise `No` for a record that the log does not have: the answer would be about another.
    """
    if at is None:
        return None
    position = position_of(at, option)
    if position.offset is not None:
        await places_of(log, session, position)
    return position.upto()


def _cell_text(one: State, at: str | None) -> str:
    """Return a cell for people: supply, tenants, what waits, what a person should look at."""
    from collections import Counter

    from ledger.amounts import gpus, time_text

    holders, waiting = _waiting(one)
    held = Counter(each.tenant for each in one.leases.values())
    quotas = [
        [
            quota.name,
            quota.parent or "",
            gpus(quota.used.get("gpu", 0)),
            gpus(quota.limits["gpu"].nominal),
            str(held[quota.name]),
            str(holders[quota.name]),
        ]
        for _, quota in sorted(one.quotas.items())
    ]
    queues = [
        [queue.name, queue.ordering, str(waiting[queue.name])]
        for _, queue in sorted(one.queues.items())
    ]
    leases = [
        [lease.id, lease.tenant, lease.state, time_text(lease.granted_us), _units(lease.parts)]
        for lease in sorted(one.leases.values(), key=lambda each: (each.granted_us, each.id))[
            :_LEASES
        ]
    ]
    sections = (
        (["node", "pool", "state", "devices", "which are"], _node_rows(one)),
        (["quota", "below", "held GPUs", "nominal GPUs", "leases", "waiting"], quotas),
        (["queue", "ordering", "waiting"], queues),
        (["lease", "tenant", "state", "since", "units"], leases),
    )
    last = f"the last decision was at {time_text(one.now_us)}"
    lines = [f"cell {one.cell}, {last}" if at is None else f"cell {one.cell} at {at}, {last}"]
    lines += [table(columns, rows) for columns, rows in sections if rows]
    if len(one.leases) > _LEASES:
        lines.append(f"and {len(one.leases) - _LEASES} more leases; --json has all")
    lines += [
        f"out of use: {device.uuid} on {device.node}: {device.quarantine or device.health}"
        for _, device in sorted(one.devices.items())
        if device.quarantine is not None or device.health != "healthy"
    ]
    lines += [
        f"alarm {name}: since {time_text(since)}" for name, since in sorted(one.alarms.items())
    ]
    lines.append(f"open orders: {len(one.orders)}")
    return "\n".join(lines)


def _node_rows(one: State) -> list[list[str]]:
    """Return a row for each node, with how many of its devices or slices are in which state."""
    from collections import Counter

    from ledger.core.state import device_state, slice_state

    rows = []
    for _, node in sorted(one.nodes.items()):
        counts: Counter[str] = Counter()
        for uuid in node.devices:
            device = one.devices[uuid]
            if device.slices:
                counts.update(f"slices {slice_state(one.slices[each])}" for each in device.slices)
            else:
                counts[device_state(device)] += 1
        which = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
        rows.append([node.name, node.pool, node.state, str(len(node.devices)), which])
    return rows


#: How many leases are shown to people.
_LEASES = 50


def _units(parts: dict[str, Any]) -> str:
    from ledger.wording import parts_text

    return parts_text([{"node": name, "units": part.units} for name, part in parts.items()])


def _waiting(one: State) -> tuple[Counter[str], Counter[str]]:
    """Return how many requests wait, by the quota that they count against and by queue."""
    from collections import Counter

    from ledger.core.quotas.quota import holder_of

    queued = [each for each in one.requests.values() if each.state == "queued"]
    holders = Counter(holder_of(one, each.tenant, each.project) for each in queued)
    return holders, Counter(each.queue for each in queued)
