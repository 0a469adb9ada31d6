"""The SQLite file of an agent's journal: its tables, how it is opened, and its transactions."""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["Clock", "JournalBusy", "JournalFile", "Stamp", "to_text"]

#: Marks the file as a gpuledger agent's journal ("GPUJ"), and the version of its tables.
_APPLICATION_ID, _FORMAT = 0x4750554A, 1

#: How many queries' rows are kept until something is written.
_MOST_FOUND = 1000

_TABLES = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE orders (
    id TEXT PRIMARY KEY, kind TEXT NOT NULL, plain TEXT NOT NULL, incarnation TEXT NOT NULL,
    state TEXT NOT NULL, plan TEXT, reason TEXT NOT NULL DEFAULT '',
    answer TEXT, heard_wall_us INTEGER NOT NULL, heard_steady_us INTEGER NOT NULL);
CREATE INDEX open_orders ON orders (state) WHERE state = 'open';
CREATE TABLE steps (
    seq INTEGER PRIMARY KEY, id TEXT NOT NULL, at INTEGER NOT NULL, phase TEXT NOT NULL,
    code TEXT NOT NULL, detail TEXT NOT NULL,
    wall_us INTEGER NOT NULL, steady_us INTEGER NOT NULL);
CREATE INDEX steps_of ON steps (id, seq);
CREATE TABLE outbox (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, type TEXT NOT NULL, id TEXT NOT NULL,
    data TEXT NOT NULL, tried INTEGER NOT NULL DEFAULT 0,
    wall_us INTEGER NOT NULL, steady_us INTEGER NOT NULL);
CREATE TABLE leases (
    lease TEXT NOT NULL, unit TEXT NOT NULL, generation INTEGER NOT NULL,
    exclusive INTEGER NOT NULL, state TEXT NOT NULL,
    wall_us INTEGER NOT NULL, steady_us INTEGER NOT NULL, PRIMARY KEY (lease, unit));
CREATE INDEX leases_on ON leases (unit);
CREATE TABLE slices (
    uuid TEXT PRIMARY KEY, generation INTEGER NOT NULL, device TEXT NOT NULL,
    there INTEGER NOT NULL,
    wall_us INTEGER NOT NULL, steady_us INTEGER NOT NULL);
CREATE TABLE baselines (
    unit TEXT PRIMARY KEY, generation INTEGER NOT NULL, used_mib INTEGER NOT NULL,
    wall_us INTEGER NOT NULL, steady_us INTEGER NOT NULL);
CREATE TABLE holds (
    device TEXT PRIMARY KEY, places TEXT NOT NULL, reason TEXT NOT NULL, evidence TEXT NOT NULL,
    wall_us INTEGER NOT NULL, steady_us INTEGER NOT NULL);
"""


class JournalBusy(RuntimeError):
    """The journal cannot be used: another agent has it open, or it is no journal."""


@dataclass(frozen=True, slots=True)
class Clock:
    """UTC and a clock that never goes back, both in microseconds."""

    wall_us: Callable[[], int]
    steady_us: Callable[[], int]


@dataclass(frozen=True, slots=True)
class Stamp:
    """When something was recorded, on both clocks."""

    wall_us: int
    steady_us: int


def to_text(value: object) -> str:
    """Return a value as the JSON text that a row has it as."""
    return orjson.dumps(value).decode()


class JournalFile:
    """An open file, and single values in it. Raise `JournalBusy` when it cannot be had."""

    def __init__(self, path: Path | str, clock: Clock) -> None:
        """Open or create the file; ``:memory:`` is for tests."""
        self.clock = clock
        self._found: dict[tuple[str, tuple[object, ...]], list[Any]] = {}
        self._db = sqlite3.connect(path, timeout=0.5, isolation_level=None)
        try:
            # Two agents with one journal would answer for each other.
            self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._prepare(path)
        except sqlite3.Error as error:
            self._db.close()
            # Whoever has it keeps it locked as long as it runs; nobody else ever waits for it.
            busy = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
            why = f"another agent has it open ({error})" if busy else error
            raise JournalBusy(f"{path}: {why}") from error
        except JournalBusy:
            self._db.close()
            raise

    def _prepare(self, path: Path | str) -> None:
        known = self._db.execute("PRAGMA application_id").fetchone()[0]
        empty = not self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if known != _APPLICATION_ID and not (empty and known == 0):
            raise JournalBusy(f"{path} is a SQLite file, but not an agent's journal")
        # Taking the write lock here keeps it: the next agent is told at once.
        self._db.execute("BEGIN IMMEDIATE")
        if empty:
            for statement in _TABLES.split(";\n"):
                self._db.execute(statement)
            self._db.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            self._db.execute(f"PRAGMA user_version = {_FORMAT}")
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        self._db.execute("COMMIT")
        if version != _FORMAT:
            raise JournalBusy(f"{path} has format {version}, this program reads {_FORMAT}")

    def close(self) -> None:
        """Let go of the file; what was not committed is gone, as after a crash."""
        self._db.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Write all of it or nothing; one within another is part of that."""
        if self._db.in_transaction:
            yield
            return
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            # Nothing to take back is no error: a failed commit may have done so.
            self._found.clear()
            self._db.rollback()
            raise

    def stamp(self) -> Stamp:
        """Return the time now, on both clocks."""
        return Stamp(self.clock.wall_us(), self.clock.steady_us())

    def write(self, statement: str, *values: object, stamped: bool = False) -> None:
        """Change rows, in a transaction; ``stamped`` puts both stamps after the values."""
        with self.transaction():
            now = self.stamp()
            more = (now.wall_us, now.steady_us) if stamped else ()
            self._found.clear()
            self._db.execute(statement, (*values, *more))

    def rows(self, statement: str, *values: object) -> list[Any]:
        """Return the rows that a query finds; they are looked for once between two changes.

        Nobody else writes the file. An agent at rest asks the same every second.
        """
        about = (statement, values)
        found = self._found.get(about)
        if found is None:
            if len(self._found) >= _MOST_FOUND:
                self._found.clear()
            found = self._found[about] = self._db.execute(statement, values).fetchall()
        return found

    # -- facts: single values ------------------------------------------------------

    def fact(self, name: str) -> Any:  # noqa: ANN401 - whatever was put there
        """Return a single value that was kept, or None."""
        found = self.rows("SELECT value FROM facts WHERE name = ?", name)
        return orjson.loads(found[0][0]) if found else None

    def keep(self, name: str, value: object) -> None:
        """Keep a single value: the epoch, the inventory last said, a position of a topic."""
        self.write("INSERT OR REPLACE INTO facts VALUES (?, ?)", name, to_text(value))
