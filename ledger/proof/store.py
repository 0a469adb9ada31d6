"""Checkpoints and tiles as files: ``DIR/TOPIC/PARTITION/``, in a place of their own.

| file | what it is |
|---|---|
| ``SIZE.checkpoint`` | one signed checkpoint (size in 20 digits); never changed, never removed |
| ``tile/LEVEL/INDEX`` | a full tile: 256 hashes of 32 bytes; never changed |
| ``tile/LEVEL/INDEX.p/WIDTH`` | the last tile of a level while it is not full; removed when it is |

The tiles' names are those of C2SP tlog-tiles (index 1234067 is ``x001/x234/067``). A
file has its name only when it is whole and on disk, and a checkpoint is written after
the tiles it stands on: a crash leaves the checkpoint before, and perhaps tiles that
nobody has signed yet, which the next run writes again.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ledger.proof.checkpoint import Checkpoint, open_checkpoint
from ledger.proof.note import BadNote
from ledger.proof.tiles import WIDTH

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from ledger.proof.note import PublicKey

__all__ = ["BadCheckpoint", "Store", "find_checkpoints", "read_checkpoint", "write_file"]

_SUFFIX = ".checkpoint"
_NAME = re.compile(rf"\d{{20}}{re.escape(_SUFFIX)}")
_HASH_BYTES = 32


class BadCheckpoint(Exception):
    """A file is no checkpoint that the key has signed. Nothing it says is used."""


def read_checkpoint(path: Path, key: PublicKey) -> Checkpoint:
    """Return the checkpoint in a file.

    Raise `BadCheckpoint`, and OSError when the file cannot be read.
    """
    try:
        return open_checkpoint(path.read_bytes(), key)
    except BadNote as error:
        raise BadCheckpoint(
            f"{path}: {error}; it was changed or signed with another key, so nothing it says"
            " is used: take your own copy of it, and the key that you were given"
        ) from None


def find_checkpoints(path: Path) -> list[Path]:
    """Return the file itself, or the last checkpoint of each partition below a folder."""
    if not path.is_dir():
        return [path]
    # By partition; the names have leading zeros, so the last name is the largest size.
    last = {
        one.parent: one for one in sorted(path.rglob(f"*{_SUFFIX}")) if _NAME.fullmatch(one.name)
    }
    return [last[folder] for folder in sorted(last)]


class Store:
    """The files of one partition."""

    def __init__(self, folder: Path) -> None:
        """Use ``folder``; it is made when something is written."""
        self.folder = folder
        self._touched: set[Path] = set()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other writers out for the block; wait for one that is in."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / ".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def checkpoints(self) -> list[Path]:
        """Return the checkpoints' files, by size."""
        if not self.folder.is_dir():
            return []
        return sorted(one for one in self.folder.iterdir() if _NAME.fullmatch(one.name))

    def latest(self, key: PublicKey) -> Checkpoint | None:
        """Return the last checkpoint, None when there is none; raise `BadCheckpoint`."""
        paths = self.checkpoints()
        return read_checkpoint(paths[-1], key) if paths else None

    def path_of(self, size: int) -> Path:
        """Return the file of the checkpoint of a size."""
        return self.folder / f"{size:020d}{_SUFFIX}"

    def load(self, level: int, index: int, width: int) -> list[bytes] | None:
        """Return the first ``width`` hashes of a tile; None when there are none of it.

        A file of a wrong length counts as none.
        """
        full = self._tile(level, index)
        for path, held in [*self._partials(full, width), (full, WIDTH)]:
            try:
                data = path.read_bytes()
            except OSError:
                continue
            if len(data) == held * _HASH_BYTES:
                ends = range(_HASH_BYTES, (width + 1) * _HASH_BYTES, _HASH_BYTES)
                return [data[end - _HASH_BYTES : end] for end in ends]
        return None

    def _partials(self, full: Path, width: int) -> list[tuple[Path, int]]:
        """Return what stands in for a tile and has at least ``width`` hashes, smallest first."""
        folder = _partial(full, width).parent
        if width == WIDTH or not folder.is_dir():
            return []
        held = sorted(int(one.name) for one in folder.iterdir() if one.name.isdecimal())
        return [(folder / str(one), one) for one in held if one >= width]

    def put_tile(self, level: int, index: int, hashes: Sequence[bytes]) -> None:
        """Write a tile, full or not. It is safe after `settle`."""
        path = self._tile(level, index)
        if len(hashes) < WIDTH:
            path = _partial(path, len(hashes))
        write_file(path, b"".join(hashes))
        self._touched.add(path.parent)

    def settle(self) -> None:
        """Have the names of all that was written on disk, and those of their folders."""
        folders = self._touched | {
            parent
            for one in self._touched
            for parent in one.parents
            if parent.is_relative_to(self.folder)
        }
        # The three above are the partition's, the topic's, and where the store itself is named.
        for folder in sorted({*folders, *list(self.folder.parents)[:3]}):
            _sync_folder(folder)
        self._touched.clear()

    def put_checkpoint(self, size: int, note: bytes) -> Path:
        """Write a signed checkpoint, after everything that it stands on; return its file."""
        self.settle()
        path = self.path_of(size)
        write_file(path, note)
        _sync_folder(self.folder)
        return path

    def drop_partials(self, full: Sequence[tuple[int, int]]) -> None:
        """Remove what stood in for tiles, by (level, index), that are full now."""
        for level, index in full:
            shutil.rmtree(_partial(self._tile(level, index), 1).parent, ignore_errors=True)

    def _tile(self, level: int, index: int) -> Path:
        digits = f"{index:d}"
        digits = digits.zfill(-len(digits) % 3 + len(digits))
        groups = [digits[at : at + 3] for at in range(0, len(digits), 3)]
        names = [*(f"x{one}" for one in groups[:-1]), groups[-1]]
        return self.folder.joinpath("tile", str(level), *names)


def _partial(tile: Path, width: int) -> Path:
    return tile.with_name(f"{tile.name}.p") / str(width)


def write_file(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Put a file in place whole: under a name of its own first, then on disk, then renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
