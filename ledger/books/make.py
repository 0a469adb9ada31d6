"""Make the books of an archive: tables in a database of their own, from the files alone."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Any

import duckdb

from ledger.billing.prices import UNITS
from ledger.books.source import attach, files_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ledger.billing.charges import Tariff
    from ledger.books.source import Attached
    from ledger.metering.calendar import Period

__all__ = ["FINDINGS", "Books", "Room", "open_books"]

_SUPPLY = ("10_supply", "20_leases")
_METER = ("25_holds", "30_pieces", "40_reach", "70_findings")
_BILL = ("50_layouts", "60_charges", "80_bill_findings")
_PRICE = """CREATE TABLE price (
    id VARCHAR, model VARCHAR, profile VARCHAR, delivery VARCHAR, size BIGINT,
    list_nanos HUGEINT, agreed_nanos HUGEINT, valid_from_s BIGINT)"""

_LONGEST_US = 100 * 86_400_000_000

#: What an audit looks for, and what it is when it is found.
FINDINGS = {
    "gap": "a decision's number is left out: what followed it does not count",
    "duplicate": "a request, lease or end is there twice",
    "overlap": "more was leased of a device or slice than there is",
    "held": "a lease's recorded time is not the time between its grant and its end",
    "conservation": "a device's parts do not sum to the time that it was there",
    "bill": "a device's billed seconds are not its time, or have no price",
}


class Room:
    """Where the database of the books is, and what it may use.

    ``database`` is a file, or ``:memory:``; ``spill`` a folder for what does not fit into
    ``memory_mib``, none by default: then a log that is too large ends with an error.
    """

    def __init__(
        self,
        database: str = ":memory:",
        memory_mib: int = 1280,
        spill: Path | None = None,
        threads: int = 2,
    ) -> None:
        """Keep the settings."""
        self.database, self.memory_mib, self.spill, self.threads = (
            database, memory_mib, spill, threads,
        )  # fmt: skip

    def open(self) -> duckdb.DuckDBPyConnection:
        """Open the database."""
        db = duckdb.connect(self.database)
        db.execute(f"SET memory_limit = '{self.memory_mib}MiB'")
        db.execute(f"SET threads = {self.threads}")
        # What takes long draws a bar on standard output, where the answer goes.
        db.execute("SET enable_progress_bar = false")
        # Rows are found by what they hold: their order costs memory and is not needed.
        db.execute("SET preserve_insertion_order = false")
        db.execute("SET temp_directory = ?", (str(self.spill or ""),))
        return db


class Books:
    """The books of one archive, until `close`. `meter` makes them, then `bill` a month's bill."""

    def __init__(self, db: duckdb.DuckDBPyConnection, found: Attached) -> None:
        """Keep the database, and what was found of the archive's records."""
        self.db = db
        self.found = found
        self._billed = False

    def rows(self, query: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        return self.db.execute(query, list(parameters)).fetchall()

    def tenants(self) -> dict[str, int]:
        """Return allocated thousandths of devices x µs by tenant: less work than the books."""
        self._run(("21_tenants",))
        return dict(self.rows("SELECT tenant, milli_us FROM tenants ORDER BY tenant"))

    def allocated(self) -> dict[str, int]:
        """Return the same of the rows that `meter` has made."""
        return dict(
            self.rows(
                "SELECT tenant, CAST(sum(CAST(milli AS HUGEINT) * (t1 - t0)) AS HUGEINT)"
                " FROM tiles JOIN owners USING (o) WHERE kind < CAST('idle free' AS kind)"
                " GROUP BY tenant ORDER BY tenant"
            )
        )

    def meter(self) -> None:
        """Make the view ``tiles``: what each device was in pieces, all the time."""
        self._run(_METER)

    def bill(self, period: Period, tariff: Tariff) -> None:
        """Make the view ``charges`` of a period at a book's prices; `meter` before.

        What is open of a month, and what is corrected later, is `ledger.billing`'s to say: these
        are the charges of the period as the whole log tells it. Raise `ValueError` for more than
        100 days: a charge would not fit into its number.
        """
        if period.end_us - period.start_us > _LONGEST_US:
            raise ValueError("a bill is of 100 days at most")
        self.db.execute(_PRICE)
        self.db.executemany(
            "INSERT INTO price VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    one.id, one.model, one.profile, one.delivery, UNITS[one.unit], one.list_nanos,
                    one.agreed_nanos, one.valid_from_s,
                )
                for one in tariff.prices.book.prices
            ],
        )  # fmt: skip
        self.db.execute(
            "CREATE TABLE pays AS SELECT CAST(? AS kind[]) AS kinds",
            (sorted(tariff.policy.holder_pays),),
        )
        bounds = (period.start_us // 1_000_000, period.end_us // 1_000_000)
        self.db.execute(
            "CREATE TABLE period AS"
            " SELECT CAST(? AS BIGINT) AS start_s, CAST(? AS BIGINT) AS end_s",
            bounds,
        )
        self._run(_BILL)
        self._billed = True

    def findings(self, most: int = 5) -> dict[str, tuple[int, list[str]]]:
        """Return how often each of `FINDINGS` was found, and ``most`` of them in words."""
        found = {"gap": (len(self.found.gaps), list(self.found.gaps[:most]))}
        for kind in FINDINGS:
            if kind == "gap" or (kind == "bill" and not self._billed):
                continue
            if kind == "duplicate" and not self._twice():
                found[kind] = (0, [])
                continue
            rows = self.rows(
                f"SELECT what, count(*) OVER () FROM found_{kind} ORDER BY what LIMIT {most}"  # noqa: S608 - of this module
            )
            found[kind] = (rows[0][1] if rows else 0, [what for what, _ in rows])
        return found

    def _twice(self) -> bool:
        """Say whether a name may be there twice: not where all hashes differ."""
        return any(
            self.rows(f"SELECT count(*) > count(DISTINCT hash(c, {name})) FROM {table}")[0][0]  # noqa: S608 - of this module
            for table, name in (("requests", "request"), ("granted", "lease"), ("ends", "lease"))
        )

    def close(self) -> None:
        """Let go of the database."""
        self.db.close()

    def _run(self, steps: Sequence[str]) -> None:
        for step in steps:
            for one in statements(step):
                self.db.execute(one)


def statements(name: str) -> list[str]:
    """Return the statements of one step; comments are taken away."""
    text = (files("ledger.books") / "sql" / f"{name}.sql").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("--")]
    return [one.strip() for one in "\n".join(lines).split(";") if one.strip()]


def open_books(folder: Path, prefix: str = "gpuledger", room: Room | None = None) -> Books:
    """Read supply, requests and leases of the archive in ``folder``; `Books` makes the rest.

    Raise `LogDamaged` for an archive with a hole.
    """
    db = (room or Room()).open()
    books = Books(db, attach(db, files_of(folder, prefix)))
    books._run(_SUPPLY)  # noqa: SLF001 - of this module
    return books
