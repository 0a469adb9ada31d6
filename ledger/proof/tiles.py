"""The tree in tiles of 256 hashes, as C2SP tlog-tiles lays them out.

Level 0 has the hashes of the leaves; each hash of level ``n + 1`` is that over one full
tile of level ``n``. What changes when a tree grows is the last tile of each level, its
edge: `Edge` keeps those and no more, so that n records are added in O(n), whatever
the size of the tree. A full tile never changes.

`SignedTiles` reads tiles that nobody vouches for and returns only what follows from
a root that is known to be right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.proof import merkle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["WIDTH", "Edge", "SignedTiles", "TileFault", "edge_tiles"]

#: Hashes in a full tile.
WIDTH = 256
_HEIGHT = 8


class TileFault(Exception):
    """A tile is missing, or is not part of the signed tree.

    Without it nothing is known of the leaves ``first`` to ``last``.
    """

    def __init__(self, level: int, index: int, size: int, why: str) -> None:
        super().__init__(f"tile {index} of level {level} {why}")
        span = WIDTH ** (level + 1)
        self.first = index * span
        self.last = min(self.first + span, size) - 1


def edge_tiles(size: int) -> Iterator[tuple[int, int, int]]:
    """Yield (level, index, width) of the last tile of each level, where it is not full."""
    level = 0
    while count := size >> _HEIGHT * level:
        if count % WIDTH:
            yield level, count // WIDTH, count % WIDTH
        level += 1


class Edge:
    """A tree that grows: its size, and the last tile of each level."""

    def __init__(self) -> None:
        """Start with the empty tree."""
        self.size = 0
        self._levels: list[list[bytes]] = []

    @classmethod
    def of(cls, size: int, tiles: Callable[[int, int], Sequence[bytes]]) -> Edge:
        """Return the edge of a tree whose tiles are known, by (level, index)."""
        edge = cls()
        edge.size = size
        while size >> _HEIGHT * len(edge._levels):
            edge._levels.append([])
        for level, index, _width in edge_tiles(size):
            edge._levels[level] = list(tiles(level, index))
        return edge

    def append(self, leaf: bytes) -> list[tuple[int, int, list[bytes]]]:
        """Add a leaf's hash; return the tiles that are full now: (level, index, hashes)."""
        full = []
        level, hashed = 0, leaf
        while True:
            if level == len(self._levels):
                self._levels.append([])
            row = self._levels[level]
            row.append(hashed)
            if len(row) < WIDTH:
                break
            self._levels[level] = []
            full.append((level, self.size >> _HEIGHT * (level + 1), row))
            level, hashed = level + 1, merkle.perfect(row)
        self.size += 1
        return full

    def tiles(self) -> Iterator[tuple[int, int, list[bytes]]]:
        """Yield the tiles of the edge that are not full: (level, index, hashes)."""
        for level, index, _width in edge_tiles(self.size):
            yield level, index, self._levels[level]

    def root(self) -> bytes:
        """Return the root of the tree as it is now."""
        return merkle.root(self.size, self._subtree)

    def _subtree(self, height: int, index: int) -> bytes:
        # What the root asks for lies in the tiles of the edge, and nowhere else.
        return _within(self._levels[height // _HEIGHT], height, index)


class SignedTiles:
    """The tiles of the tree with ``size`` leaves under ``root``, each proved when it is read.

    ``load`` returns the hashes of a tile by (level, index, width), None when there are
    none. Raises `TileFault` where that is not what the root stands for: at once for
    the edge, on which everything else rests, and otherwise when it is asked for.
    """

    def __init__(
        self, size: int, root: bytes, load: Callable[[int, int, int], Sequence[bytes] | None]
    ) -> None:
        """Read the edge and hold it against the root."""
        self._size = size
        self._load = load
        self._known: dict[tuple[int, int], Sequence[bytes]] = {}
        for level, index, width in edge_tiles(size):
            self._known[level, index] = self._read(level, index, width)
        # The root of a tree rests on its edge alone.
        if merkle.root(size, self.subtree) != root:
            level = max((level for level, _, _ in edge_tiles(size)), default=0)
            raise TileFault(level, 0, size, "or another at the edge is not what was signed")

    def tile(self, level: int, index: int) -> Sequence[bytes]:
        """Return a tile's hashes; raise `TileFault`."""
        known = self._known.get((level, index))
        if known is not None:
            return known
        parent = self.tile(level + 1, index // WIDTH)[index % WIDTH]
        hashes = self._read(level, index, WIDTH)
        if merkle.perfect(hashes) != parent:
            raise TileFault(level, index, self._size, "is not what was signed")
        if level:  # one in 256 is kept; leaves are read in order, and once
            self._known[level, index] = hashes
        return hashes

    def subtree(self, height: int, index: int) -> bytes:
        """Return the hash of a perfect subtree, as `ledger.proof.merkle` asks; or `TileFault`."""
        level = height // _HEIGHT
        tile = (index << height % _HEIGHT) // WIDTH
        return _within(self.tile(level, tile), height, index)

    def _read(self, level: int, index: int, width: int) -> Sequence[bytes]:
        hashes = self._load(level, index, width)
        if hashes is None or len(hashes) != width:
            raise TileFault(level, index, self._size, "is missing, or not of its length")
        return hashes


def _within(tile: Sequence[bytes], height: int, index: int) -> bytes:
    """Return the hash of a subtree from the tile that holds the hashes it is made of."""
    count = 1 << height % _HEIGHT
    start = index * count % WIDTH
    return merkle.perfect(tile[start : start + count])
