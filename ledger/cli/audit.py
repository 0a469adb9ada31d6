"""For auditors and after an incident: verify and SQL."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from ledger.cli.checkpoint import CheckpointOption, KeyOption, hold_against, said
from ledger.cli.common import EXIT_DAMAGED, No, Session, Usage, command, table

if TYPE_CHECKING:
    from ledger.audit.sql import Result
    from ledger.verify import Report

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app, "verify")(verify)
    command(app, "sql")(sql)


async def verify(
    session: Session, checkpoint: CheckpointOption = None, key: KeyOption = None
) -> None:
    """Read the whole ledger and name the first fault of each kind. Exit 4 when there is one.

    With --checkpoint and --key also prove that it is the log that was signed, and name
    the first record that is not. Needs no network with --log archive:DIR.
    """
    from ledger.verify import verify_log

    async with session.open() as log:
        verdicts = await hold_against(session, log, checkpoint, key) if checkpoint else []
        report = await verify_log(log, session.prefix, session.progress("verifying"))
    ok = report.ok and not any(one.faults for one in verdicts)
    proofs = {"checkpoints": [one.plain() for one in verdicts]} if verdicts else {}
    text = "\n".join([*map(said, verdicts), _report(report)])
    session.emit({**report.plain(), "ok": ok, **proofs}, text)
    if not ok:
        raise typer.Exit(EXIT_DAMAGED)


def _report(report: Report) -> str:
    counts = "\n".join(f"  {name:<11} {count:>12,}" for name, count in report.counts.items())
    lines = [counts, f"  digest      {report.digest}"]
    for fault in report.faults:
        more = f" (and {fault.more} more of this kind)" if fault.more else ""
        lines.append(f"DAMAGED {fault.position}: {fault.kind}: {fault.detail}{more}")
    if report.ok:
        lines.append("nothing is missing, out of order, malformed or against the rules")
    else:
        stopped = [one for one in report.partitions if one.folded < one.end]
        lines += [f"the state of partition {one.partition} is known up to offset {one.folded}"
                  for one in stopped]  # fmt: skip
        lines.append(
            "what to do: keep the log as it is, restore these offsets from a copy or an archive,"
            " and verify again"
        )
    return "\n".join(lines)


async def sql(
    session: Session,
    query: Annotated[str, typer.Argument(help="one SELECT; - reads it from stdin")] = "",
    tables: Annotated[bool, typer.Option("--tables", help="list tables, views, columns")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="print CSV")] = False,
    at: Annotated[str | None, typer.Option(help="only the log up to a time or record")] = None,
    limit: Annotated[int, typer.Option(help="most rows returned")] = 10_000,
    seconds: Annotated[float, typer.Option(help="longest run of the query")] = 30.0,
    memory_mib: Annotated[int, typer.Option(help="most memory of the database")] = 2048,
) -> None:
    """Ask in SQL (DuckDB). The database is a copy in memory; nothing can be changed from it."""
    from ledger.audit.sql import BadQuery, Limits, load
    from ledger.cli.questions import upto_of

    if tables:
        _tables(session)
        return
    text = sys.stdin.read() if query == "-" else query
    if not text.strip():
        raise Usage("give a query, or --tables to see what can be asked")
    if csv and session.json:
        raise Usage("--csv and --json are two forms; give one of them")
    limits = Limits(rows=limit, seconds=seconds, memory_mib=memory_mib)
    try:
        async with session.open() as log:
            ledger = await load(log, session.prefix, limits, upto_of(at))
        try:
            result = ledger.query(text)
        finally:
            ledger.close()
    except BadQuery as error:
        raise No(str(error)) from None
    _print(session, result, csv=csv)
    if result.cut:
        session.note(f"cut after {limit:,} rows, there are more: --limit allows them")


def _print(session: Session, result: Result, *, csv: bool) -> None:
    if session.json:
        for row in result.rows:
            session.emit(dict(zip(result.columns, row, strict=True)), "")
    elif csv:
        import csv as csv_module

        writer = csv_module.writer(sys.stdout, lineterminator="\n")
        writer.writerow(result.columns)
        writer.writerows(result.rows)
    else:
        cells = [["" if one is None else str(one) for one in row] for row in result.rows]
        sys.stdout.write(table(result.columns, cells))


def _tables(session: Session) -> None:
    """Describe every table and view."""
    from ledger.audit.tables import EVENTS, RECORDS, VIEWS

    for one in (RECORDS, EVENTS):
        columns = [
            {"name": name, "type": kind, "meaning": meaning} for name, kind, meaning in one.columns
        ]
        rows = [[f"  {each['name']}", each["type"], each["meaning"]] for each in columns]
        text = f"{one.name}: {one.meaning}\n{table(['  column', 'type', 'meaning'], rows)}"
        session.emit({"table": one.name, "meaning": one.meaning, "columns": columns}, text)
    for view in VIEWS:
        session.emit(
            {"view": view.name, "meaning": view.meaning}, f"{view.name} (view): {view.meaning}"
        )
