"""The SQLite log of a simulation: the same file and records, without what only real time needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from ledger.log.port import LogClosed
from ledger.log.sqlite import SqliteLog
from ledger.log.sqlite_file import errors

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["SimulationLog"]

T = TypeVar("T")


class SimulationLog(SqliteLog):
    """A log whose appends survive the process, but not a power failure.

    A simulation that is cut off is run again, so nothing waits for the disk. And
    nothing else runs beside it, so its work is done on the caller's own thread: to
    hand a read of two records to another takes longer than to do it.
    """

    def __init__(self, path: Path | str, *, clock: Callable[[], int]) -> None:
        """Open or create the file; raise as `SqliteLog` does."""
        super().__init__(path, clock=clock)
        with errors(self._path, "open"):
            self._db.execute("PRAGMA synchronous = OFF")

    async def _run(self, doing: str, work: Callable[..., T], *args: object) -> T:
        if self._closed:
            raise LogClosed(f"the log {self._path} is closed")
        with errors(self._path, doing):
            return work(*args)
