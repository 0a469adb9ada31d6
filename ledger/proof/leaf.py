"""What of a record is proved: its bytes on the wire, in one unmistakable form.

A leaf is, in order, with integers big-endian:

| part | bytes |
|---|---|
| version | 1 byte, ``0x01`` |
| offset | 8 bytes |
| key | an optional field |
| value | an optional field |
| headers | 4 bytes: how many; then for each its name and its value, both fields |

A field is its length in 4 bytes and the bytes; an optional field has ``0x01`` before
it, or is ``0x00`` alone where the record has none. Lengths stand before what they
measure, so two different records never have the same leaf. Nothing is decoded: what
is signed is what was written. The append time is not part of it: a broker sets it
anew when a log is restored.
"""

from __future__ import annotations

import hashlib
from struct import Struct

from ledger.log.port import Record
from ledger.proof.merkle import leaf_hash

__all__ = ["GENESIS", "leaf_bytes", "link", "read_leaf", "record_hash"]

_START = Struct(">BQ")
_COUNT = Struct(">I")
_PRESENT = Struct(">BI")
_VERSION = 1
_ABSENT = b"\x00"

#: What the chain of every partition begins with (U1).
GENESIS = hashlib.sha256(b"gpuledger chain v1").digest()


def leaf_bytes(record: Record, offset: int | None = None) -> bytes:
    """Return the record's leaf; with ``offset``, as it would be there."""
    headers = record.headers
    parts = [
        _START.pack(_VERSION, record.offset if offset is None else offset),
        _optional(record.key),
        _optional(record.value),
        _COUNT.pack(len(headers)),
    ]
    for name, value in headers:
        encoded = name.encode()
        parts += (_COUNT.pack(len(encoded)), encoded, _COUNT.pack(len(value)), value)
    return b"".join(parts)


def record_hash(record: Record, offset: int | None = None) -> bytes:
    """Return the hash of the record's leaf, as it stands in the tree and in the chain."""
    return leaf_hash(leaf_bytes(record, offset))


def link(head: bytes, leaf: bytes) -> bytes:
    """Return the chain's head after a record whose leaf hash is ``leaf`` (U1).

    The first byte keeps links apart from the leaves (0x00) and nodes (0x01) of the tree.
    """
    return hashlib.sha256(b"\x02" + head + leaf).digest()


def _optional(data: bytes | None) -> bytes:
    return _ABSENT if data is None else _PRESENT.pack(1, len(data)) + data


def read_leaf(leaf: bytes, topic: str, partition: int) -> Record:
    """Return the record that a leaf was made of, its time 0; raise `ValueError` for no leaf."""
    rest = memoryview(leaf)

    def take(count: int) -> bytes:
        nonlocal rest
        if len(rest) < count:
            raise ValueError("it ends too early")
        taken, rest = bytes(rest[:count]), rest[count:]
        return taken

    def field() -> bytes:
        return take(_COUNT.unpack(take(_COUNT.size))[0])

    def optional() -> bytes | None:
        return None if take(1) == _ABSENT else field()

    version, offset = _START.unpack(take(_START.size))
    key, value = optional(), optional()
    count = _COUNT.unpack(take(_COUNT.size))[0]
    headers = tuple([(field().decode(), field()) for _ in range(count)])
    record = Record(topic, partition, offset, 0, key, value, headers)
    if version != _VERSION or leaf_bytes(record) != leaf:
        raise ValueError("it is not in the form of version 1")
    return record
