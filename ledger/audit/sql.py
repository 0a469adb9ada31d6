"""One SELECT over a copy of the ledger, in a database that can reach nothing else.

The rows are loaded into a DuckDB that lives in memory only; then everything by which a
query could reach out is turned off and the configuration is locked. What is left to a query
is the copy, and that in a read-only transaction: the log's files are not known to the
database, so no statement can write to them. The gate in front, exactly one statement and
that a SELECT, is there for clear messages.

The database keeps neither its memory limit nor its time limit in every case: a constant
of four gigabytes is made before either is looked at. So whoever asks is asked in a process
of its own, which the kernel holds to them (`ledger.audit.sandbox`).
"""

from __future__ import annotations

import json
import threading
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import duckdb

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from ledger.audit.tables import Table

__all__ = [
    "AtLimit",
    "BadQuery",
    "Ledger",
    "Limits",
    "Result",
    "out_of_memory",
    "out_of_time",
    "plain_value",
    "too_large",
]

#: Rows taken from the database at a time.
_ROWS = 256


class BadQuery(Exception):
    """The query is refused, is wrong, or went beyond a limit; the text says which."""


class AtLimit(BadQuery):
    """The query was stopped at a limit of time or memory."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one query may use.

    ``rows`` and ``result_mib`` are how much is returned; more is cut off, and said.
    """

    rows: int = 10_000
    result_mib: int = 64
    seconds: float = 30.0
    memory_mib: int = 2048
    threads: int = 2

    def plain(self) -> dict[str, Any]:
        """Return the fields."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Result:
    """Rows of a query; values are those of JSON, what JSON has no form for is text.

    ``cut`` names the limit that there was more than: ``rows``, ``bytes``, or nothing.
    """

    columns: tuple[str, ...]
    types: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    cut: str = ""


def plain_value(value: object) -> Any:  # noqa: ANN401 - whatever the database returns
    """Return a value as JSON has it; a time, a decimal or bytes as text."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        # JSON has no infinity, and no number that is none.
        return value if abs(value) < float("inf") else str(value)
    if isinstance(value, Decimal):
        # All of its digits: str() of a zero has an exponent.
        return format(value, "f")
    if isinstance(value, dict):
        return {str(key): plain_value(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_value(one) for one in value]
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).hex()
    return str(value)


class Ledger:
    """A copy of the ledger in memory. `put` rows, `lock` once, then `query`."""

    def __init__(self, limits: Limits, tables: Sequence[Table]) -> None:
        """Make the tables."""
        self.limits = limits
        self.db = duckdb.connect()
        # Without this a name of a Python variable is a table.
        self.db.execute("SET python_enable_replacements = false")
        # Times without an offset are UTC, on any machine.
        self.db.execute("SET TimeZone = 'UTC'")
        # No spill: what does not fit is an error, not a file.
        self.db.execute("SET temp_directory = ''")
        self.db.execute(f"SET memory_limit = '{int(limits.memory_mib)} MiB'")
        self.db.execute(f"SET threads = {int(limits.threads)}")
        # What takes long draws a bar on standard output, where the answer goes.
        self.db.execute("SET enable_progress_bar = false")
        for table in tables:
            columns = ", ".join(f'"{name}" {kind}' for name, kind, _ in table.columns)
            self.db.execute(f"CREATE TABLE {table.name} ({columns})")

    def put(self, table: Table, rows: pa.Table) -> None:
        """Add rows of one table."""
        self.db.register("incoming", rows)
        try:
            self.db.execute(f"INSERT INTO {table.name} FROM incoming")
        except duckdb.OutOfMemoryException as error:
            raise too_large(self.limits) from error
        finally:
            self.db.unregister("incoming")

    def clear(self, table: Table) -> None:
        """Take all rows out of one table, so that others can be put there."""
        self.db.execute(f"DELETE FROM {table.name}")  # noqa: S608 - a name of this program's

    def lock(self) -> None:
        """Turn off every way out, for good."""
        for setting in (
            "enable_external_access = false",
            "autoinstall_known_extensions = false",
            "autoload_known_extensions = false",
            "allow_community_extensions = false",
            "lock_configuration = true",
        ):
            self.db.execute(f"SET {setting}")

    def query(self, text: str, parameters: Mapping[str, str | None] | None = None) -> Result:
        """Run one SELECT; raise `BadQuery` for anything else, and `AtLimit`."""
        interrupted = threading.Event()

        def interrupt() -> None:
            interrupted.set()
            self.db.interrupt()

        timer = threading.Timer(self.limits.seconds, interrupt)
        timer.daemon = True
        timer.start()
        try:
            statement = self._statement(text)
            self.db.execute("BEGIN TRANSACTION READ ONLY")
            try:
                return self._result(self.db.execute(statement, dict(parameters or {})))
            finally:
                self.db.execute("ROLLBACK")
        except (duckdb.OutOfMemoryException, MemoryError) as error:
            raise out_of_memory(self.limits) from error
        except duckdb.Error as error:
            if interrupted.is_set():
                raise out_of_time(self.limits) from error
            raise BadQuery(str(error)) from error
        except (ArithmeticError, TypeError, ValueError) as error:
            # A date beyond Python's, a list as a key: the database has it, JSON has not.
            raise BadQuery(
                f"a value of the answer has no form here ({error}); CAST it to VARCHAR"
            ) from error
        finally:
            timer.cancel()

    def _statement(self, text: str) -> duckdb.Statement:
        """Return the one SELECT that the text is."""
        statements = self.db.extract_statements(text)
        if len(statements) != 1:
            raise BadQuery(f"the query is {len(statements)} statements, not one")
        if statements[0].type != duckdb.StatementType.SELECT:
            kind = statements[0].type.name
            raise BadQuery(f"a query is a SELECT; this is {kind}. The ledger cannot be changed")
        return statements[0]

    def _result(self, cursor: duckdb.DuckDBPyConnection) -> Result:
        description = cursor.description or []
        names = _told_apart([str(one[0]) for one in description])
        types = tuple(str(one[1]) for one in description)
        rows: list[tuple[Any, ...]] = []
        left_bytes = self.limits.result_mib * 1_048_576
        while found := cursor.fetchmany(min(_ROWS, self.limits.rows + 1 - len(rows))):
            for one in found:
                row = tuple(plain_value(value) for value in one)
                left_bytes -= len(json.dumps(row))
                if len(rows) == self.limits.rows or left_bytes < 0:
                    return Result(names, types, rows, "bytes" if left_bytes < 0 else "rows")
                rows.append(row)
        return Result(names, types, rows)

    def close(self) -> None:
        """Let go of the memory."""
        self.db.close()


def _told_apart(names: Sequence[str]) -> tuple[str, ...]:
    """Return the columns' names, each once: what comes again gets the first number that is free.

    A row is a JSON object for whoever reads it, and of two equal names that keeps one value.
    """
    taken = set(names)
    found: list[str] = []
    for name in names:
        told, number = name, 2
        if name in found:
            while (told := f"{name}_{number}") in taken:
                number += 1
            taken.add(told)
        found.append(told)
    return tuple(found)


def out_of_time(limits: Limits) -> AtLimit:
    """Return what is said of a query that takes too long."""
    return AtLimit(
        f"stopped after {limits.seconds:g} s; ask for less, or allow more with --seconds"
    )


def out_of_memory(limits: Limits) -> AtLimit:
    """Return what is said of a query that needs too much."""
    return AtLimit(
        f"the query needs more memory than {limits.memory_mib} MiB; ask for less,"
        " or allow more with --memory-mib"
    )


def too_large(limits: Limits) -> AtLimit:
    """Return what is said of a ledger that is too large."""
    return AtLimit(
        f"the ledger does not fit into {limits.memory_mib} MiB;"
        " allow more with --memory-mib, or less of the log with --at"
    )
