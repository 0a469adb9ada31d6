"""The SQLite file of a log: its tables, how it is opened, and what its errors mean."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from typing import TYPE_CHECKING
from urllib.parse import quote

from ledger.log.port import LogDamaged, LogUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["APPLICATION_ID", "FORMAT_VERSION", "errors", "open_file", "transaction"]

#: Marks the file as a gpuledger log ("GPUL"), and the version of its tables.
APPLICATION_ID = 0x4750554C
FORMAT_VERSION = 1

#: Fits a batch's records better than SQLite's default of 4096.
_PAGE_BYTES = 8192

#: How long to wait before another try to turn on write-ahead logging.
_RETRY_S = 0.005

_TABLES = (
    "CREATE TABLE topics (topic TEXT PRIMARY KEY, partitions INTEGER NOT NULL)",
    (
        "CREATE TABLE records (topic TEXT NOT NULL, partition INTEGER NOT NULL,"
        " offset INTEGER NOT NULL, time_us INTEGER NOT NULL, key BLOB, value BLOB,"
        " headers TEXT, PRIMARY KEY (topic, partition, offset))"
    ),
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {FORMAT_VERSION}",
)

_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_LOCKED = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})

#: SQLite's extended codes carry the primary code in their low byte.
_PRIMARY_CODE = 0xFF


def open_file(path: Path, *, read_only: bool, lock_timeout_s: float) -> sqlite3.Connection:
    """Open the log at ``path``; create the file and its tables unless ``read_only``.

    The connection may be used by any one thread at a time. Raise
    `LogUnavailable` when it cannot be opened, `LogDamaged` when it is no log.
    """
    if read_only and not path.exists():
        raise LogUnavailable(f"there is no log {path}")
    mode = "ro" if read_only else "rwc"
    with errors(path, "open"):
        db = sqlite3.connect(
            f"file:{quote(str(path))}?mode={mode}",
            uri=True,
            timeout=lock_timeout_s,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            if not read_only:
                _prepare(db, lock_timeout_s)
            _check_format(db, path)
        except BaseException:
            db.close()
            raise
    return db


@contextlib.contextmanager
def errors(path: Path, doing: str) -> Iterator[None]:
    """Turn SQLite's errors into the port's, with the file's name and what went wrong."""
    try:
        yield
    except sqlite3.Error as error:
        code = _primary(error)
        where = f"cannot {doing} ({path})"
        if code in _DAMAGED:
            raise LogDamaged(f"{where}: the file is damaged or not SQLite: {error}") from error
        if code in _LOCKED:
            raise LogUnavailable(f"{where}: another process keeps it locked: {error}") from error
        if code == sqlite3.SQLITE_FULL:
            raise LogUnavailable(f"{where}: the disk is full, nothing was added") from error
        raise LogUnavailable(f"{where}: {error}") from error


@contextlib.contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Hold the file's one write lock; commit at the end, roll back on an error."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _prepare(db: sqlite3.Connection, lock_timeout_s: float) -> None:
    """Set the connection up for durable appends; create the tables in an empty file."""
    db.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
    _enter_wal(db, lock_timeout_s)
    db.execute("PRAGMA synchronous = FULL")
    with transaction(db):
        if not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            for statement in _TABLES:
                db.execute(statement)


def _enter_wal(db: sqlite3.Connection, lock_timeout_s: float) -> None:
    """Turn on write-ahead logging; SQLite's own lock time-out does not cover this step."""
    deadline = time.monotonic() + lock_timeout_s
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if _primary(error) not in _LOCKED or time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_S)
        else:
            return


def _check_format(db: sqlite3.Connection, path: Path) -> None:
    application = db.execute("PRAGMA application_id").fetchone()[0]
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if application != APPLICATION_ID:
        raise LogDamaged(f"{path} is a SQLite file, but not a gpuledger log")
    if version != FORMAT_VERSION:
        raise LogDamaged(f"{path} has log format {version}, this program reads {FORMAT_VERSION}")


def _primary(error: sqlite3.Error) -> int:
    """Return SQLite's primary result code, or -1 for an error of Python's module itself."""
    code: int = getattr(error, "sqlite_errorcode", -1)
    return code if code < 0 else code & _PRIMARY_CODE
