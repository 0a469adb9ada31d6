"""The steps by which a folder changes, each one a method, so that a test can end at any of them.

After a crash, of the process or of the machine, a file under its final name is
whole: its bytes are on disk before it is renamed, and its name is on disk before
anything relies on it. No step cleans up after an error: a killed process could
not either, so what is left behind is swept by whoever writes next.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["LOCK", "PARTIAL", "Disk", "locked", "put"]

#: What the name of an unfinished file or folder ends with.
PARTIAL = ".partial"

#: Who changes a folder holds this file of it, for one change at a time.
LOCK = ".lock"


class Disk:
    """The file system as an archive uses it; `OSError` passes."""

    def write(self, path: Path, data: memoryview | bytes) -> None:
        """Write a file; one that is there is replaced."""
        path.write_bytes(data)

    def sync(self, path: Path) -> None:
        """Wait until a file's bytes, or the names that a folder holds, are on disk."""
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def rename(self, path: Path, target: Path) -> None:
        """Give a file or folder another name."""
        path.rename(target)

    def remove(self, path: Path) -> None:
        """Remove a file; none that is there is none to remove."""
        path.unlink(missing_ok=True)

    def make_folder(self, path: Path) -> None:
        """Make a folder unless it is there."""
        path.mkdir(exist_ok=True)


def put(disk: Disk, path: Path, data: memoryview | bytes) -> None:
    """Put a file in place whole: when this returns it is on disk under its name."""
    partial = path.with_name(path.name + PARTIAL)
    disk.write(partial, data)
    disk.sync(partial)
    disk.rename(partial, path)
    disk.sync(path.parent)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder for one change; wait for who holds it. A dead process holds nothing."""
    handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
