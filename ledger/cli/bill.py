"""``gpuledger bill``: a month at the prices of a book, as a FOCUS export, and its checks."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ledger.cli.checkpoint import CheckpointOption, KeyOption, hold_against, said
from ledger.cli.common import EXIT_DAMAGED, EXIT_NO, AtOption, No, Session, Usage, command, table
from ledger.cli.meter import GRACE_S, GraceOption, policy_named
from ledger.cli.pricing import BookOption, PricesOption, prices_in, recorded_prices

if TYPE_CHECKING:
    from ledger.billing.charges import Tariff
    from ledger.billing.checks import Finding
    from ledger.billing.collect import Bill
    from ledger.metering.calendar import Period

__all__ = ["register"]


class Format(StrEnum):
    """How the rows are written."""

    CSV = "csv"
    PARQUET = "parquet"
    JSON = "json"


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "bill")(bill)


async def bill(
    session: Session,
    *,
    prices: PricesOption = None,
    book: BookOption = None,
    period: Annotated[
        str | None, typer.Option(metavar="MONTH", help="a month of UTC, as 2026-10")
    ] = None,
    to: Annotated[
        Path | None, typer.Option(metavar="DIR", help="write the FOCUS export there")
    ] = None,
    form: Annotated[Format, typer.Option("--format", help="how rows are written")] = Format.CSV,
    policy: Annotated[
        str, typer.Option(help="who pays for cleaning, idle and broken time; or a JSON file")
    ] = "pool",
    grace_s: GraceOption = GRACE_S,
    check: Annotated[
        Path | None, typer.Option(metavar="DIR", help="check an export by the rule list instead")
    ] = None,
    checkpoint: CheckpointOption = None,
    key: KeyOption = None,
    at: AtOption = None,
) -> None:
    """What a month's GPU time costs, and whom: FOCUS 1.4 rows from the events alone.

    With --checkpoint and --key the log is first proved to be the one that was signed, and
    the export names the checkpoint. Exit 4 when it is not.
    """
    if check is not None:
        _check(session, check)
        return
    if period is None:
        raise Usage("bill takes --period MONTH; or --check DIR")
    from ledger.billing.charges import Tariff
    from ledger.billing.collect import bill_of, meter_log
    from ledger.billing.export import ClosedMonth, write_bill
    from ledger.billing.prices import NoPrice
    from ledger.cli.questions import upto_of
    from ledger.version import version

    month, payers = _month(period), policy_named(policy)
    chosen = prices_in(prices, book)
    async with session.open() as log:
        proofs = await hold_against(session, log, checkpoint, key)
        if any(one.faults for one in proofs):
            session.note("\n".join(map(said, proofs)))
            raise typer.Exit(EXIT_DAMAGED)
        grace_us = grace_s * 1_000_000
        upto = await upto_of(log, session, at)
        metered = await meter_log(log, session.prefix, month, grace_us=grace_us, upto=upto)
    try:
        tariff = Tariff(chosen or recorded_prices(metered.cells(), book), payers)
        found = bill_of(metered, tariff)
        found.checkpoints = {one.origin: one.size for one in proofs}
        written = [] if to is None else write_bill(to, found, tariff, form.value, version())
    except (NoPrice, ClosedMonth) as error:
        raise No(str(error)) from None
    plain = _plain(found, tariff, written)
    session.emit(plain, _text(plain))


def _month(text: str) -> Period:
    from datetime import UTC

    from ledger.metering.calendar import BadTime, span_of

    if not re.fullmatch(r"\d{4}-\d{2}", text):
        raise Usage(f"a bill is of a month, as 2026-10, not of {text!r}")
    try:
        return span_of(text, UTC)
    except BadTime as error:
        raise Usage(str(error)) from None


def _plain(found: Bill, tariff: Tariff, written: list[Path]) -> dict[str, Any]:
    """Return the bill's sums by who pays: money in nanos of nanos, exact, and as decimals."""
    from ledger.billing.focus import decimal_text

    payers: dict[str, list[int]] = {}
    corrections = 0
    for origin in found.origins:
        for charge in origin.charges:
            sums = payers.setdefault(charge.payer, [0, 0, 0])
            sums[0] += charge.metered_milli_s
            sums[1] += charge.list_atto
            sums[2] += charge.contracted_atto
            corrections += charge.corrects is not None
    total = [sum(column) for column in zip(*payers.values(), strict=True)] or [0, 0, 0]
    return {
        "period": found.month.name,
        "state": found.state,
        "currency": tariff.prices.book.currency,
        "price_book": tariff.prices.book.book,
        "price_book_sha256": tariff.prices.sha256,
        "policy": tariff.policy.name,
        "rows": sum(len(origin.charges) for origin in found.origins),
        "corrections": corrections,
        "payers": [
            {
                "payer": name,
                "gpu_seconds": decimal_text(seconds, 3),
                "list_cost": decimal_text(listed, 18),
                "contracted_cost": decimal_text(contracted, 18),
            }
            for name, (seconds, listed, contracted) in [*sorted(payers.items()), ("total", total)]
        ],
        "files": [str(path) for path in written],
    }


def _text(plain: dict[str, Any]) -> str:
    columns = ("payer", "gpu_seconds", "list_cost", "contracted_cost")
    title = (
        f"{plain['period']}, {plain['state']}: {plain['rows']} rows,"
        f" {plain['corrections']} of them corrections; {plain['currency']},"
        f" prices {plain['price_book']}, policy {plain['policy']}"
    )
    rows = [[one[name] for name in columns] for one in plain["payers"]]
    return "\n".join([title, "", table(columns, rows), *plain["files"]]).rstrip("\n")


def _check(session: Session, folder: Path) -> None:
    from ledger.billing.checks import RULES, check_export
    from ledger.billing.export import NoExport, read_exports

    try:
        exports = read_exports(folder)
    except NoExport as error:
        raise No(str(error)) from None
    bad = False
    for export in exports:
        found = check_export(export)
        bad = bad or bool(found)
        plain = {
            "export": export.name,
            "rows": len(export.rows),
            "rules": len(RULES),
            "broken": [one._asdict() for one in found],
        }
        session.emit(plain, _verdict(export.name, len(export.rows), len(RULES), found))
    if bad:
        raise typer.Exit(EXIT_NO)


def _verdict(name: str, rows: int, rules: int, found: list[Finding]) -> str:
    title = f"{name}: {rows} rows, {rules} rules, {len(found)} broken"
    if not found:
        return title
    broken = [[one.rule, str(one.times), one.first, one.text] for one in found]
    return f"{title}\n{table(('rule', 'times', 'first', 'what must hold'), broken)}".rstrip("\n")
