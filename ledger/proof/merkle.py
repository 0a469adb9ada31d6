"""Merkle trees as RFC 6962 defines them: roots, inclusion and consistency proofs.

A tree is known by its ``subtree``: a function of (height, index) that returns the
hash over the leaves ``index * 2**height`` up to ``(index + 1) * 2**height``, asked
only for what lies whole within the tree. Where the hashes come from (memory, tiles
on disk) is not known here.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["EMPTY", "consistency_proof", "inclusion_proof", "leaf_hash", "node_hash"]
__all__ += ["perfect", "root", "verify_consistency", "verify_inclusion"]


#: The root of the tree without leaves.
EMPTY = hashlib.sha256(b"").digest()


def leaf_hash(data: bytes) -> bytes:
    """Return the hash of a leaf."""
    return hashlib.sha256(b"\x00" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Return the hash of a node over its two children."""
    return hashlib.sha256(b"\x01" + left + right).digest()


def perfect(hashes: Sequence[bytes]) -> bytes:
    """Return the hash over hashes of one height; their number is a power of two."""
    row = list(hashes)
    while len(row) > 1:
        row = [node_hash(row[at], row[at + 1]) for at in range(0, len(row), 2)]
    return row[0]


def root(size: int, subtree: Callable[[int, int], bytes]) -> bytes:
    """Return the root of the tree with ``size`` leaves."""
    return _range(0, size, subtree) if size else EMPTY


def inclusion_proof(index: int, size: int, subtree: Callable[[int, int], bytes]) -> list[bytes]:
    """Return the hashes that lead from leaf ``index`` to the root, nearest first.

    RFC 6962, 2.1.1. Raise `ValueError` for a leaf that is not in the tree.
    """
    if not 0 <= index < size:
        raise ValueError(f"leaf {index} is not in a tree of {size}")
    path = []
    start = 0
    while size > 1:
        half = _split(size)
        if index - start < half:
            path.append(_range(start + half, size - half, subtree))
            size = half
        else:
            path.append(_range(start, half, subtree))
            start, size = start + half, size - half
    return path[::-1]


def consistency_proof(first: int, second: int, subtree: Callable[[int, int], bytes]) -> list[bytes]:
    """Return the proof that the tree of ``first`` leaves begins the one of ``second``.

    RFC 6962, 2.1.2; empty where there is nothing to show (a tree of 0 leaves begins
    every tree). Raise `ValueError` when ``first`` is the larger.
    """
    if not 0 <= first <= second:
        raise ValueError(f"a tree of {first} leaves cannot begin one of {second}")
    if first in (0, second):
        return []
    path = []
    start, size, whole = 0, second, True
    while first - start != size:
        half = _split(size)
        if first - start <= half:
            path.append(_range(start + half, size - half, subtree))
            size = half
        else:
            path.append(_range(start, half, subtree))
            start, size, whole = start + half, size - half, False
    if not whole:
        path.append(_range(start, size, subtree))
    return path[::-1]


def verify_inclusion(
    leaf: bytes, index: int, size: int, proof: Sequence[bytes], expected: bytes
) -> bool:
    """Say whether the leaf with this hash stands at ``index`` under a root. RFC 9162, 2.1.3.2."""
    if not 0 <= index < size:
        return False
    node, last, found = index, size - 1, leaf
    for hashed in proof:
        if last == 0:
            return False
        if node & 1 or node == last:
            found = node_hash(hashed, found)
            while not node & 1 and node:
                node, last = node >> 1, last >> 1
        else:
            found = node_hash(found, hashed)
        node, last = node >> 1, last >> 1
    return last == 0 and found == expected


def verify_consistency(
    first: int, second: int, first_root: bytes, second_root: bytes, proof: Sequence[bytes]
) -> bool:
    """Say whether one root begins the other. RFC 9162, 2.1.4.2."""
    if not 0 <= first <= second:
        return False
    if first == second:
        return not proof and first_root == second_root
    if first == 0:
        return not proof and first_root == EMPTY
    path = list(proof)
    if first & (first - 1) == 0:
        path.insert(0, first_root)
    if not path:
        return False
    node, last = first - 1, second - 1
    while node & 1:
        node, last = node >> 1, last >> 1
    old = new = path[0]
    for hashed in path[1:]:
        if last == 0:
            return False
        if node & 1 or node == last:
            old, new = node_hash(hashed, old), node_hash(hashed, new)
            while not node & 1 and node:
                node, last = node >> 1, last >> 1
        else:
            new = node_hash(new, hashed)
        node, last = node >> 1, last >> 1
    return last == 0 and old == first_root and new == second_root


def _split(size: int) -> int:
    """Return the largest power of two below ``size``."""
    return 1 << (size - 1).bit_length() - 1


def _range(start: int, size: int, subtree: Callable[[int, int], bytes]) -> bytes:
    """Return the hash over ``size`` leaves from ``start``, which every split above aligns."""
    if size & (size - 1) == 0:
        height = size.bit_length() - 1
        return subtree(height, start >> height)
    half = _split(size)
    return node_hash(_range(start, half, subtree), _range(start + half, size - half, subtree))
