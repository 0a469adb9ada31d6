"""One SELECT over a copy of the ledger, in a database that can reach nothing else.

Theory of operation. The rows are loaded into a DuckDB that lives in memory
only; then everything by which a query could reach out is turned off and the
configuration is locked. What is left to a query is the copy, and that in a
read-only transaction: the log's files are not known to the database, so no
statement can write to them (`tests/test_sql_sandbox.py` has the attempts). The
gate in front, exactly one statement and that a SELECT, is there for clear messages.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import duckdb

from ledger.audit.tables import EVENTS, RECORDS, VIEWS, batches

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from ledger.audit.tables import Table, View
    from ledger.log.port import Log
    from ledger.reading import Upto

__all__ = ["BadQuery", "Ledger", "Limits", "Result", "load"]


class BadQuery(Exception):
    """The query is refused, is wrong, or went beyond a limit; the text says which."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one query may use. ``rows`` is how many are returned; more are counted as cut off."""

    rows: int = 10_000
    seconds: float = 30.0
    memory_mib: int = 2048
    threads: int = 2


@dataclass(frozen=True, slots=True)
class Result:
    """Rows of a query. ``cut`` says that there were more than the limit."""

    columns: tuple[str, ...]
    types: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    cut: bool


async def load(
    log: Log, prefix: str, limits: Limits | None = None, upto: Upto | None = None
) -> Ledger:
    """Return a locked database with all of the ledger (or up to ``upto``) in it.

    Raises as `ledger.reading.read_events` does.
    """
    ledger = Ledger(limits or Limits())
    try:
        async for records, events in batches(log, prefix, upto):
            ledger.add(records, events)
        ledger.lock()
    except BaseException:
        ledger.close()
        raise
    return ledger


class Ledger:
    """A copy of the ledger in memory. `add` rows, `lock` once, then `query`."""

    def __init__(
        self,
        limits: Limits,
        tables: Sequence[Table] = (RECORDS, EVENTS),
        views: Sequence[View] = VIEWS,
    ) -> None:
        self._limits = limits
        self._db = duckdb.connect()
        # Without this a name of a Python variable is a table.
        self._db.execute("SET python_enable_replacements = false")
        # No spill: what does not fit is an error, not a file.
        self._db.execute("SET temp_directory = ''")
        self._db.execute(f"SET memory_limit = '{int(limits.memory_mib)} MiB'")
        self._db.execute(f"SET threads = {int(limits.threads)}")
        for table in tables:
            columns = ", ".join(f'"{name}" {kind}' for name, kind, _ in table.columns)
            self._db.execute(f"CREATE TABLE {table.name} ({columns})")
        for view in views:
            self._db.execute(f"CREATE VIEW {view.name} AS {view.query}")

    def add(self, records: pa.Table, events: pa.Table) -> None:
        """Add rows of both tables; before `lock`."""
        self.put(RECORDS, records)
        self.put(EVENTS, events)

    def put(self, table: Table, rows: pa.Table) -> None:
        """Add rows of one table."""
        self._db.register("incoming", rows)
        try:
            self._db.execute(f"INSERT INTO {table.name} FROM incoming")
        except duckdb.OutOfMemoryException as error:
            raise BadQuery(
                f"the ledger does not fit into {self._limits.memory_mib} MiB;"
                " allow more with --memory-mib, or less of the log with --at"
            ) from error
        finally:
            self._db.unregister("incoming")

    def clear(self, table: Table) -> None:
        """Take all rows out of one table, so that others can be put there."""
        self._db.execute(f"DELETE FROM {table.name}")  # noqa: S608 - a name of this program's

    def lock(self) -> None:
        """Turn off every way out, for good."""
        for setting in (
            "enable_external_access = false",
            "autoinstall_known_extensions = false",
            "autoload_known_extensions = false",
            "allow_community_extensions = false",
            "lock_configuration = true",
        ):
            self._db.execute(f"SET {setting}")

    def query(self, text: str) -> Result:
        """Run one SELECT; raise `BadQuery` for anything else and at any limit."""
        statement = self._statement(text)
        interrupted = threading.Event()

        def interrupt() -> None:
            interrupted.set()
            self._db.interrupt()

        timer = threading.Timer(self._limits.seconds, interrupt)
        timer.daemon = True
        self._db.execute("BEGIN TRANSACTION READ ONLY")
        timer.start()
        try:
            cursor = self._db.execute(statement)
            description = cursor.description or []
            rows = cursor.fetchmany(self._limits.rows + 1)
        except duckdb.OutOfMemoryException as error:
            raise BadQuery(
                f"the query needs more memory than {self._limits.memory_mib} MiB; ask for less,"
                " or allow more with --memory-mib"
            ) from error
        except duckdb.Error as error:
            if interrupted.is_set():
                raise BadQuery(
                    f"stopped after {self._limits.seconds:g} s; ask for less, or allow more"
                    " with --seconds"
                ) from error
            raise BadQuery(str(error)) from error
        finally:
            timer.cancel()
            self._db.execute("ROLLBACK")
        return Result(
            tuple(str(one[0]) for one in description),
            tuple(str(one[1]) for one in description),
            rows[: self._limits.rows],
            len(rows) > self._limits.rows,
        )

    def _statement(self, text: str) -> duckdb.Statement:
        """Return the one SELECT that the text is."""
        try:
            statements = self._db.extract_statements(text)
        except duckdb.Error as error:
            raise BadQuery(str(error)) from error
        if len(statements) != 1:
            raise BadQuery(f"the query is {len(statements)} statements, not one")
        if statements[0].type != duckdb.StatementType.SELECT:
            kind = statements[0].type.name
            raise BadQuery(f"a query is a SELECT; this is {kind}. The ledger cannot be changed")
        return statements[0]

    def close(self) -> None:
        """Let go of the memory."""
        self._db.close()
