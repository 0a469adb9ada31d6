"""What a log is held against: signed checkpoints, and the hashes that are kept beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ledger.proof.merkle import perfect
from ledger.proof.store import BadCheckpoint, Store, find_checkpoints, read_checkpoint
from ledger.proof.tiles import WIDTH, SignedTiles, TileFault

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ledger.proof.checkpoint import Checkpoint
    from ledger.proof.note import PublicKey

__all__ = ["Evidence", "Kept", "gather"]

#: The height of one tile's tree.
_HEIGHT = 8


@dataclass(frozen=True, slots=True)
class Evidence:
    """A checkpoint that the key has signed, and what is kept beside it.

    ``older`` are the key's smaller checkpoints of the same partition, by size.
    """

    path: Path
    checkpoint: Checkpoint
    older: tuple[Checkpoint, ...]
    store: Store
    notes: tuple[str, ...] = ()


def gather(paths: Sequence[Path], key: PublicKey) -> list[Evidence]:
    """Return the evidence of checkpoints' files; a folder stands for the last of each partition.

    Raise `BadCheckpoint` for one that the key has not signed, and for a folder without
    any; OSError for what cannot be read.
    """
    found = []
    for given in paths:
        files = find_checkpoints(given)
        if not files:
            raise BadCheckpoint(f"{given}: there is no checkpoint in this folder")
        found += [_evidence(path, key) for path in files]
    return found


def _evidence(path: Path, key: PublicKey) -> Evidence:
    checkpoint = read_checkpoint(path, key)
    store = Store(path.parent)
    older, notes = [], []
    for other in store.checkpoints():
        try:
            one = read_checkpoint(other, key)
        except BadCheckpoint as error:
            notes.append(str(error))
            continue
        if one.origin == checkpoint.origin and one.size < checkpoint.size:
            older.append(one)
    return Evidence(path, checkpoint, tuple(older), store, tuple(notes))


class Kept:
    """The hashes beside a checkpoint, as far as the signed root bears them out."""

    def __init__(self, evidence: Evidence) -> None:
        self.notes: list[str] = []
        self._leaves: tuple[int, Sequence[bytes] | None] = (-1, None)
        one = evidence.checkpoint
        self._tiles: SignedTiles | None = None
        try:
            self._tiles = SignedTiles(one.size, one.root, evidence.store.load)
        except TileFault as fault:
            self._note(f"{fault}: the kept hashes in {evidence.store.folder} cannot be used")

    def _note(self, text: str) -> None:
        if not self.notes:  # the first says it; a folder that is gone would say it for each tile
            self.notes.append(text)

    def leaf(self, offset: int) -> bytes | None:
        """Return the hash that was signed for an offset; None where it is not known."""
        index, at = divmod(offset, WIDTH)
        if self._leaves[0] != index:
            self._leaves = (index, self.leaves(index))
        leaves = self._leaves[1]
        return None if leaves is None else leaves[at]

    def leaves(self, index: int) -> Sequence[bytes] | None:
        """Return the hashes that were signed for a tile's leaves; None where they are not known."""
        if self._tiles is None:
            return None
        try:
            return self._tiles.tile(0, index)
        except TileFault as fault:
            self._note(f"{fault}: a record of {fault.first} to {fault.last} cannot be named")
            return None

    def differs(self, index: int, hashes: Sequence[bytes]) -> bool | None:
        """Say whether 256 leaves differ from those signed, by the level above; None: unknown."""
        if self._tiles is None:
            return None
        try:
            return self._tiles.subtree(_HEIGHT, index) != perfect(hashes)
        except TileFault:
            return None
