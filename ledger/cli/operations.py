"""``gpuledger report ops | capacity | weekly | acceptance``: reports for who runs a site."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from ledger.cli.common import No, Session, Usage, command, table
from ledger.cli.positions import LogAtOption
from ledger.cli.pricing import BookOption, PricesOption, prices_in, recorded_prices

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping
    from datetime import tzinfo

    from ledger.core.state import State
    from ledger.operations.gather import Edges, Gathered
    from ledger.operations.measure import Report, Window

__all__ = ["register"]


@dataclass(frozen=True, slots=True)
class Telling:
    """Options of every report: how it is told, what time costs, where the log is cut."""

    zone: Annotated[str, typer.Option(help="time zone of months, days and times")] = "UTC"
    prices: PricesOption = None
    book: BookOption = None
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="write one self-contained page there")
    ] = None
    log_at: LogAtOption = None
    policy: Annotated[
        str, typer.Option(help="who pays for idle and broken time, as of 'meter' and 'bill'")
    ] = "pool"


FromOption = Annotated[
    str | None,
    typer.Option("--from", metavar="TIME", help="month, day or time [the first record]"),
]
ToOption = Annotated[
    str | None,
    typer.Option("--to", metavar="TIME", help="a month or day is included [the last record]"),
]


def register(app: typer.Typer) -> None:
    """Add the commands to the group of ready questions (`ledger.cli.report`), which is there."""
    group = next(one.typer_instance for one in app.registered_groups if one.name == "report")
    assert group is not None
    command(group, "ops")(ops)
    command(group, "capacity")(capacity)
    command(group, "weekly")(weekly)
    command(group, "acceptance")(acceptance)


async def ops(
    session: Session, telling: Telling, *, from_: FromOption = None, to: ToOption = None
) -> None:
    """Where the time went, how tasks fared, who decided what: figures with their formula.

    Each figure is an amount or a part of a named whole; with --json it has both numbers,
    its formula and the records it was counted on.
    """
    from ledger.operations.gather import Gathered
    from ledger.operations.ops import ops_report

    found, _ = await _gather_one(session, telling, (from_, to), Gathered)
    _tell(session, telling, ops_report(found))


async def capacity(
    session: Session, telling: Telling, *, from_: FromOption = None, to: ToOption = None
) -> None:
    """Shapes that were asked for and not had, and what would have been enough.

    Advice says what it rests on, and is not given on less than a week and thirty requests.
    """
    from ledger.operations.capacity import capacity_report
    from ledger.operations.gather import Gathered

    found, _ = await _gather_one(session, telling, (from_, to), Gathered)
    _tell(session, telling, capacity_report(found))


async def weekly(
    session: Session,
    telling: Telling,
    *,
    to: ToOption = None,
    days: Annotated[int, typer.Option(min=1, help="length of a week, in days")] = 7,
) -> None:
    """The week until --to, the week before it, and what changed."""
    from ledger.operations.gather import Gathered
    from ledger.operations.measure import Window
    from ledger.operations.weekly import days_before, weekly_report

    place = _place(telling)

    def windows(edges: Edges) -> list[tuple[Window, int]]:
        whole, until_us = _window(telling, None, to, edges)
        middle_us = days_before(until_us, days, place)
        before = Window(days_before(until_us, 2 * days, place), middle_us)
        return [(Window(middle_us, whole.end_us), until_us), (before, before.end_us)]

    (this, before), _ = await _gather(session, telling, windows, Gathered)
    _tell(session, telling, weekly_report(this, before))


async def acceptance(
    session: Session,
    telling: Telling,
    *,
    from_: FromOption = None,
    to: ToOption = None,
    run: Annotated[
        bool,
        typer.Option(
            "--run", help="first run a script on simulated nodes, and leave its ledger there"
        ),
    ] = False,
) -> None:
    """The pack of a proof of concept: checks, eight questions, six pieces of evidence.

    All from the log. Exit 1 when a record contradicts a check; what nothing is about is
    told as not shown.
    """
    from ledger.core.digest import digest
    from ledger.operations.acceptance import acceptance_report
    from ledger.operations.trial import Trial

    if run:
        session = await _run(session)
    found, cells = await _gather_one(session, telling, (from_, to), Trial)
    found.digest = digest(cells)
    report = acceptance_report(found)
    _tell(session, telling, report)
    if report.more["verdicts"]["broken"]:
        raise No("a record contradicts what must hold: see what is broken, and where")


async def _run(session: Session) -> Session:
    """Run the script of a proof of concept; return the session on the ledger that it leaves."""
    from collectors.simulation.acceptance import DEFAULT_PATH, run_acceptance
    from collectors.simulation.demo import NotADemo
    from ledger.cli.running import simulated_loops

    if session.named and not session.url.startswith("sqlite:"):
        raise Usage("the run leaves its ledger in a file: --log sqlite:PATH")
    path = Path(session.url.removeprefix("sqlite:")) if session.named else DEFAULT_PATH
    _expect_void_records()
    try:
        await run_acceptance(path, session.prefix, simulated_loops(session), sys.stderr)
    except NotADemo as error:
        raise Usage(str(error)) from None
    session.note(f"the ledger of the run: --log sqlite:{path}")
    return replace(session, url=f"sqlite:{path}")


def _expect_void_records() -> None:
    """Log no warning of what the script does on purpose: a second writer takes the log over."""
    import structlog

    def expected(
        _logger: object, _method: str, event: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        if event.get("event") == "void records of another writer":
            raise structlog.DropEvent
        return event

    structlog.configure(processors=[expected, *structlog.get_config()["processors"]])


def _place(telling: Telling) -> tzinfo:
    from ledger.metering.calendar import BadTime, zone_of

    try:
        return zone_of(telling.zone)
    except BadTime as error:
        raise Usage(str(error)) from None


def _window(
    telling: Telling, from_: str | None, to: str | None, edges: Edges
) -> tuple[Window, int]:
    """Return the window that was named, and until when rows are looked at.

    A window that is open has the last record in it, and no time after it: nothing is known
    of that.
    """
    from ledger.amounts import time_text
    from ledger.metering.calendar import BadTime, span_of
    from ledger.operations.measure import Window

    place = _place(telling)
    try:
        start_us = edges.first_us if from_ is None else span_of(from_, place).start_us
        end_us = edges.end_us + 1 if to is None else span_of(to, place).end_us
    except BadTime as error:
        raise Usage(str(error)) from None
    if end_us <= start_us:
        began, ended = (time_text(one) for one in (edges.first_us, edges.last_us))
        if from_ is None:
            wrong = f"--to {to} is before the first record"
        elif to is None:
            wrong = f"--from {from_} is after the last record"
        else:
            wrong = f"--to {to} is not after --from {from_}"
        raise Usage(f"{wrong}; the ledger has records from {began} to {ended}")
    return Window(start_us, end_us), edges.last_us if to is None else end_us


G = TypeVar("G", bound="Gathered")


async def _gather_one(
    session: Session, telling: Telling, span: tuple[str | None, str | None], make: type[G]
) -> tuple[G, dict[str, State]]:
    """Return what there is of the window from --from to --to, as `_gather` does."""
    (found,), cells = await _gather(
        session, telling, lambda edges: [_window(telling, *span, edges)], make
    )
    return found, cells


async def _gather(
    session: Session,
    telling: Telling,
    windows: Callable[[Edges], list[tuple[Window, int]]],
    make: type[G],
) -> tuple[list[G], dict[str, State]]:
    """Return what there is of each window, and the cells at the end.

    Raise `No` where the log has no decision, or the book no price of what was there.
    """
    from ledger.billing.prices import NoPrice
    from ledger.cli.meter import policy_named
    from ledger.cli.questions import upto_of
    from ledger.operations.gather import edges_of, gather
    from ledger.reading import cells_of

    given, policy = prices_in(telling.prices, telling.book), policy_named(telling.policy)
    async with session.open() as log:
        upto = await upto_of(log, session, telling.log_at, "--log-at")
        edges = await edges_of(log, session.prefix, upto)
        if edges is None:
            raise No("the ledger has no decision yet: there is nothing to report")
        wanted = windows(edges)
        found = [make(window, telling.zone, until_us, policy) for window, until_us in wanted]
        folds = await gather(
            log, session.prefix, found, max(one.until_us for one in found), upto=upto,
            progress=session.progress("reading"),
        )  # fmt: skip
    cells = cells_of(folds)
    prices = given
    # Without any prices a report is told without money.
    if given is None and (telling.book or any(one.price_books for one in cells.values())):
        prices = recorded_prices(cells.values(), telling.book)
    try:
        for one in found:
            one.finish(prices)
    except NoPrice as error:
        raise No(str(error)) from None
    return found, cells


def _tell(session: Session, telling: Telling, report: Report) -> None:
    """Print a report, and write its page if one was asked for."""
    from ledger.operations.page import report_page
    from ledger.operations.text import report_text

    if telling.html is not None:
        telling.html.write_text(report_page(report), encoding="utf-8")
        session.note(f"written: {telling.html}")
    session.emit(report.plain(), report_text(report, table))
