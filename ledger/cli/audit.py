"""For auditors and after an incident: verify and SQL."""

from __future__ import annotations

import os
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ledger.cli.checkpoint import CheckpointOption, KeyOption, hold_against, said
from ledger.cli.common import (
    EXIT_DAMAGED,
    AtOption,
    No,
    Session,
    Usage,
    check_identity,
    command,
    table,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from ledger.audit.auditor import Auditor
    from ledger.audit.sql import Result
    from ledger.verify import Report

__all__ = ["Asking", "CsvOption", "register", "show_result", "warn_unrecorded"]

CsvOption = Annotated[bool, typer.Option("--csv", help="print CSV")]


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
        verdicts = await hold_against(session, log, checkpoint, key)
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
    *,
    tables: Annotated[bool, typer.Option("--tables", help="list tables, views, macros")] = False,
    csv: CsvOption = False,
    export: Annotated[
        Path | None,
        typer.Option("--export", metavar="DIR", help="all tables and views as Parquet, new folder"),
    ] = None,
    at: AtOption = None,
    asking: Asking,
) -> None:
    """Ask in SQL (DuckDB). The database is a copy in memory; nothing can be changed from it.

    Every question is put on record on the log, with who asked, before a row is shown. Of
    an archive it is kept in the file DIR-queries.jsonl beside it.
    """
    if tables:
        _tables(session)
        return
    text = sys.stdin.read() if query == "-" else query
    if bool(text.strip()) == (export is not None):
        raise Usage("give a query or --export; --tables says what can be asked")
    if csv and session.json:
        raise Usage("--csv and --json are two forms; give one of them")
    async with asking.open(session, at) as auditor:
        if export is None:
            result = await auditor.ask(text)
            show_result(session, result, csv=csv)
        else:
            await _export(session, auditor, export)
        warn_unrecorded(session, auditor)


async def _export(session: Session, auditor: Auditor, folder: Path) -> None:
    from ledger.audit.auditor import client_name
    from ledger.audit.export import export

    if folder.exists():  # noqa: ASYNC240 - nothing else runs here
        raise Usage(f"{folder} is there already; --export makes a new folder")
    # Before a row leaves, as with every question.
    await auditor.record(str(folder.name), "export", outcome="answered", took_us=0)
    files = export(
        auditor.room, folder, prefix=session.prefix, ends=auditor.ends, client=client_name()
    )
    for one in files:
        plain = {"name": one.name, "file": str(one.path), "rows": one.rows}
        session.emit(plain, f"{one.path}: {one.rows:,} rows")


@dataclass(frozen=True, slots=True)
class Asking:
    """How a question is asked: its limits, and by whom."""

    limit: Annotated[int, typer.Option("--limit", help="most rows returned")] = 10_000
    seconds: Annotated[float, typer.Option("--seconds", help="longest run of the query")] = 30.0
    memory_mib: Annotated[int, typer.Option("--memory-mib", help="most memory of the database")] = (
        2048
    )
    source: Annotated[
        str | None,
        typer.Option("--source", help="who asks  [env GPULEDGER_SOURCE; default /cli/USER]"),
    ] = None

    @asynccontextmanager
    async def open(
        self, session: Session, at: str | None, option: str = "--at"
    ) -> AsyncIterator[Auditor]:
        """Load a copy for the block; what is wrong with a question is a no (exit 1).

        ``at`` is where the log is cut, as ``option`` says it.
        """
        from ledger.audit.auditor import audit
        from ledger.audit.sql import BadQuery, Limits
        from ledger.cli.questions import upto_of
        from ledger.client import default_source

        if self.limit < 1 or self.seconds <= 0 or self.memory_mib < 1:
            raise Usage("--limit, --seconds and --memory-mib are more than 0")
        who = self.source or os.environ.get("GPULEDGER_SOURCE") or default_source()
        check_identity(who)
        limits = Limits(rows=self.limit, seconds=self.seconds, memory_mib=self.memory_mib)
        async with session.open() as log:
            upto = await upto_of(log, session, at, option)
        try:
            async with audit(
                session.url, prefix=session.prefix, who=who, limits=limits, upto=upto
            ) as auditor:
                yield auditor
        except BadQuery as error:
            raise No(str(error)) from None


def show_result(session: Session, result: Result, *, csv: bool) -> None:
    """Print the rows of a question: JSON lines, CSV, or a table; and say what was cut."""
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
    if result.cut == "rows":
        count = len(result.rows)
        session.note(f"cut after {count:,} rows, there are more: --limit allows them")
    elif result.cut:
        session.note("cut: the rows are too large together; ask for fewer columns or rows")


def warn_unrecorded(session: Session, auditor: Auditor) -> None:
    """Say where a question could not be put on record."""
    if not auditor.kept:
        session.note(
            "this question is not on record: the folder beside the archive cannot be written to"
        )


def _tables(session: Session) -> None:
    """Describe every table, view and macro."""
    from ledger.audit.sql_texts import TEXTS
    from ledger.audit.tables import TABLES

    for one in TABLES:
        _described(session, "table", one.name, one.meaning, one.columns)
    for text in TEXTS:
        columns = tuple((each.name, each.type, each.meaning) for each in text.columns)
        name = text.name
        if text.kind == "macro":
            name += f"({', '.join(each.rstrip('_') for each in text.arguments)})"
        _described(session, text.kind, name, text.meaning, columns)


def _described(
    session: Session, kind: str, name: str, meaning: str, columns: tuple[tuple[str, str, str], ...]
) -> None:
    plain = [{"name": one, "type": of, "meaning": means} for one, of, means in columns]
    text = f"{name} ({kind}): {meaning}"
    if columns:
        rows = [[f"  {one}", of, means] for one, of, means in columns]
        text += f"\n{table(['  column', 'type', 'meaning'], rows)}"
    session.emit({kind: name, "meaning": meaning, "columns": plain}, text)
