"""``gpuledger whatif replay``: the recorded inputs again, under other rules or with other nodes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ledger.cli.common import No, Session, Usage, table, user_name
from ledger.cli.positions import FromOption, Starts, ToOption, passed_over, places_of, position_of
from ledger.cli.pricing import BookOption, PricesOption, prices_in, recorded_prices

if TYPE_CHECKING:
    from ledger.counterfactual.changes import AddedNodes, Changes
    from ledger.policy_files import PolicyRecord

__all__ = ["Otherwise", "replay"]

_WHOLE = 1000
_NODES = re.compile(r"([0-9]{1,4})@like-(.+)")


@dataclass(frozen=True, slots=True)
class Otherwise:
    """Options that say what is to be otherwise; without any of them nothing is."""

    policy: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="quotas, queues, pools and the like (YAML, JSON)"),
    ] = None
    placement: Annotated[
        str | None, typer.Option(help="of all pools: best-fit, first-fit, fgd or least-waste")
    ] = None
    overcommit: Annotated[
        str | None, typer.Option(metavar="FACTOR", help="of device memory in all pools, as 1.5")
    ] = None
    preemption: Annotated[
        str | None, typer.Option(help="of all queues: never, same-tenant or any-tenant")
    ] = None
    reclaim: Annotated[
        str | None, typer.Option(help="of all queues: never, lower-priority or any")
    ] = None
    add_nodes: Annotated[
        list[str] | None,
        typer.Option(metavar="N@like-NODE", help="so many nodes more; may be repeated"),
    ] = None
    remove_node: Annotated[
        list[str] | None, typer.Option(metavar="NODE", help="without it; may be repeated")
    ] = None

    def changes(self) -> Changes:
        """Return what they say; raise `Usage` where they say it wrongly."""
        from ledger.counterfactual.changes import Changes

        permille = None if self.overcommit is None else _permille(self.overcommit)
        pools = (("placement", self.placement), ("memory_overcommit_permille", permille))
        queues = (("preemption", self.preemption), ("reclaim", self.reclaim))
        removed = tuple(dict.fromkeys(self.remove_node or ()))
        added = tuple(_added(text) for text in self.add_nodes or ())
        for one in added:
            if one.like in removed or sum(each.like == one.like for each in added) > 1:
                raise Usage(f"--add-nodes: {one.like} is removed, or named twice")
        return Changes(
            tuple(_records(self.policy)),
            tuple((name, value) for name, value in pools if value is not None),
            tuple((name, value) for name, value in queues if value is not None),
            added,
            removed,
        )


def _permille(text: str) -> int:
    try:
        found = Decimal(text) * _WHOLE
    except InvalidOperation:
        raise Usage(f"--overcommit is a factor as 1.5, not {text!r}") from None
    if not found.is_finite() or found != int(found) or found < _WHOLE:
        raise Usage(f"--overcommit is a factor from 1 up, with at most 3 digits, not {text}")
    return int(found)


def _added(text: str) -> AddedNodes:
    from ledger.counterfactual.changes import AddedNodes

    match = _NODES.fullmatch(text)
    if match is None or not int(match[1]):
        raise Usage(f"--add-nodes takes N@like-NODE, as 4@like-n17, not {text!r}")
    return AddedNodes(int(match[1]), match[2])


def _records(path: Path | None) -> list[PolicyRecord]:
    if path is None:
        return []
    from ledger.cli.policy_apply import Act, read_file

    return read_file(path, None, Act(reason="what-if replay", author=user_name()))


async def replay(
    session: Session,
    otherwise: Otherwise,
    since: FromOption = "begin",
    to: ToOption = "end",
    cell: Annotated[str | None, typer.Option(help="in this cell [the only one]")] = None,
    *,
    cost: Annotated[
        bool, typer.Option("--cost", help="also what it would have cost; so do --prices, --book")
    ] = False,
    prices: PricesOption = None,
    book: BookOption = None,
    starts: Starts,
) -> None:
    """Decide the recorded inputs again under other rules, and say what would be different.

    Waits, interruptions, use, fragmentation, cost: each with both numbers. An estimate: what
    it takes for granted is said with it. Without a change nothing differs.
    """
    from ledger.billing.charges import Tariff
    from ledger.billing.prices import NoPrice
    from ledger.cli.positions import stores_of
    from ledger.counterfactual.compare import compared
    from ledger.counterfactual.peaks import read_peaks
    from ledger.counterfactual.replay import NoCell, NoNode, Options
    from ledger.counterfactual.replay import replay as run
    from ledger.counterfactual.world import Refused
    from ledger.metering.policy import POLICIES
    from ledger.wording import listed

    changes, chosen = otherwise.changes(), prices_in(prices, book)
    priced = cost or chosen is not None or book is not None
    positions = position_of(since, "--from"), position_of(to, "--to")
    stores = stores_of(session, starts)
    async with session.open() as log:
        start, end = await places_of(log, session, *positions)
        if any(start[number] > end[number] for number in end):
            raise Usage(f"{since} is after {to}")
        # Only who overcommits asks of peaks: there are many more records of use than of the ledger.
        asked = otherwise.overcommit is not None
        peaks = await read_peaks(log, session.prefix) if asked else None
        progress = session.progress("replaying")
        options = Options(cell, rows=priced, peaks=peaks, progress=progress)
        try:
            found = await run(log, session.prefix, (start, end), changes, options, stores)
        except NoCell as error:
            if cell is None and error.cells:
                raise Usage(f"--cell is one of {', '.join(error.cells)}") from None
            raise No(f"there is no cell {cell or ''} between {since} and {to}") from None
        except NoNode as error:
            there = listed(error.known) or "none"
            raise Usage(f"between {since} and {to} there is no node {error}; there are {there}"
                        ) from None  # fmt: skip
        except Refused as error:
            raise No(str(error)) from None
    passed_over(session, stores)
    tariff = None
    if priced:
        # The book as it is at the end, in both worlds at once: prices decide nothing.
        chosen = chosen or recorded_prices([found.world.state], book)
        tariff = Tariff(chosen, POLICIES["pool"])
    try:
        plain = compared(found, changes.lines(), tariff)
    except NoPrice as error:
        raise No(str(error)) from None
    session.emit(plain, "" if session.json else _text(plain))


# -- in words ---------------------------------------------------------------------------


def _text(plain: dict[str, Any]) -> str:
    from ledger.amounts import seconds_text, time_text

    first = plain["first_difference"]
    span = f"{time_text(plain['start_us'])} to {time_text(plain['end_us'])}"
    counts = f"{plain['records']:,} records, {plain['decisions']:,} decisions"
    lines = [
        f"cell {plain['cell']}, {span}: {counts}",
        *(f"otherwise: {one}" for one in plain["changes"] or ["nothing"]),
        "every decision is the recorded one"
        if first is None
        else f"the first decision that is another: {first['position']}",
        "",
        _requests(plain["requests"]),
        _rest(plain),
        "what this rests on",
        *(f"  {one['leases']:,} leases ran for: {one['is']}" for one in plain["runs"].values()),
        *(
            f"  {name}: median {seconds_text(one['median_us'])} of {one['cases']:,}"
            for name, one in plain["durations"].items()
        ),
        *(f"  not fed: {count:,} x {why}" for why, count in plain["inputs_passed_over"].items()),
        *(f"  assumed: {one}" for one in plain["assumptions"]),
        "  seeds: none, nothing is drawn by chance",
    ]
    return "\n".join(lines)


_WAITS = ("wait_median_us", "wait_p95_us", "wait_total_us")
_COLUMNS = (
    "tenant", "type", "let in", "refused", "granted", "median wait", "95 %", "all waits",
    "longer", "shorter",
)  # fmt: skip


def _requests(groups: list[dict[str, Any]]) -> str:
    from ledger.amounts import seconds_text

    rows = [
        [
            one["tenant"] or "all",
            one["type"] or "",
            *(_both(one[name], _count) for name in ("let_in", "refused", "granted")),
            *(_both(one[name], seconds_text) for name in _WAITS),
            f"{one['wait_longer']:,}",
            f"{one['wait_shorter']:,}",
        ]
        for one in groups
    ]
    return table(_COLUMNS, rows)


def _rest(plain: dict[str, Any]) -> str:
    from ledger.amounts import gpu_hours, gpus, mib_text, money, per_cent

    def of_million(ppm: int) -> str:
        return per_cent(ppm, 1_000_000)

    def of_atto(atto: int) -> str:
        return money(atto, 10**18)

    use, memory, cut = plain["use"], plain["memory"], plain["interruptions"]
    fragmentation = plain["fragmentation"]
    rows = [
        ("GPU-hours held", use["held_milli_us"], gpu_hours),
        ("GPU-hours in service", use["in_service_milli_us"], gpu_hours),
        ("utilisation", use["utilisation_ppm"], of_million),
        ("GPUs free on average", fragmentation["free_milli"], gpus),
        ("of them of no use to a typical request", fragmentation["fragmented_ppm"], of_million),
        ("leases granted", plain["leases"]["granted"], _count),
        ("interruptions", cut["total"], _count),
        *((f"  {reason}", pair, _count) for reason, pair in cut["by_reason"].items()),
        ("GPU-hours lost with them", cut["lost_milli_us"], gpu_hours),
    ]
    if memory is not None:
        rows += [
            ("shares granted", memory["shares"], _count),
            ("  whose memory was never measured", memory["shares_unmeasured"], _count),
            ("devices whose memory peaks would have passed", memory["devices_over"], _count),
            ("  by at most", memory["most_mib_over"], mib_text),
        ]
    rows += [
        (f"GPU-hours held by {name}", pair, gpu_hours)
        for name, pair in use["held_milli_us_by_tenant"].items()
    ]
    cost = plain.get("cost")
    if cost is not None:
        rows += [
            (f"{cost['currency']} paid by {name}", pair["contracted_atto"], of_atto)
            for name, pair in cost["payers"].items()
        ]
    told = [
        [name, _or(pair["recorded"], how), _or(pair["whatif"], how), _signed(pair, how)]
        for name, pair, how in rows
    ]
    return table(("", "recorded", "what-if", "difference"), told)


def _or(value: int | None, how: Any) -> str:  # noqa: ANN401 - one of the ways below
    return "unknown" if value is None else str(how(value))


def _signed(pair: dict[str, int | None], how: Any) -> str:  # noqa: ANN401 - as above
    value = pair["difference"]
    if not value:
        return "" if value is None else "0"
    return f"{'+' if value > 0 else '-'}{how(abs(value))}"


def _both(pair: dict[str, int | None], how: Any) -> str:  # noqa: ANN401 - as above
    """Return both numbers, or one where they are the same."""
    one, other = _or(pair["recorded"], how), _or(pair["whatif"], how)
    return one if pair["recorded"] == pair["whatif"] else f"{one} -> {other}"


def _count(value: int) -> str:
    return f"{value:,}"
