"""Key to partition, the same in every adapter and as Kafka's own clients do it.

The hash is MurmurHash2 (32 bit) with the seed of Kafka's Java client, so a
producer in another language that leaves the partition to its default
partitioner sends a cell's requests to the partition the ledger expects.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ledger.log.port import Entry

__all__ = ["group_by_partition", "murmur2", "partition_of"]

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_SHIFT = 24
_MASK32 = 0xFFFFFFFF
_POSITIVE = 0x7FFFFFFF
_WORD_BYTES = 4


def murmur2(data: bytes) -> int:
    """Return the unsigned 32-bit MurmurHash2 of ``data`` with Kafka's seed."""
    whole = len(data) - len(data) % _WORD_BYTES
    state = _SEED ^ len(data)
    for at in range(0, whole, _WORD_BYTES):
        word = int.from_bytes(data[at : at + _WORD_BYTES], "little") * _MULTIPLIER & _MASK32
        word ^= word >> _SHIFT
        word = word * _MULTIPLIER & _MASK32
        state = (state * _MULTIPLIER & _MASK32) ^ word
    if whole < len(data):
        state ^= int.from_bytes(data[whole:], "little")
        state = state * _MULTIPLIER & _MASK32
    state ^= state >> 13
    state = state * _MULTIPLIER & _MASK32
    return state ^ (state >> 15)


@lru_cache(maxsize=4096)
def partition_of(key: bytes | None, partitions: int) -> int:
    """Return the partition of ``key`` among ``partitions``.

    A missing key counts as an empty one: Kafka's clients would pick at random,
    and the ledger wants the same answer every time. Remembered for the latest
    keys: cells, nodes and requesters are few, and the hash is slow in Python.
    """
    return (murmur2(key or b"") & _POSITIVE) % partitions


def group_by_partition(
    entries: Sequence[Entry], partition: int | None, partitions: int
) -> dict[int, list[int]]:
    """Return, for each partition to be written, the indices of its entries in order."""
    if partition is not None:
        return {partition: list(range(len(entries)))}
    groups: dict[int, list[int]] = {}
    for index, entry in enumerate(entries):
        groups.setdefault(partition_of(entry.key, partitions), []).append(index)
    return groups
