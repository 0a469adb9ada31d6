"""What the process of an audit and the one that asks it say to each other, byte by byte.

A frame is one letter, the length of what follows in eight bytes, and that. Rows travel as
Arrow, everything else as JSON: neither makes anything run where it arrives.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from typing import IO

__all__ = ["arrow_bytes", "arrow_table", "read_frame", "write_frame"]

_HEAD = struct.Struct(">cQ")

#: Rows of one part of an Arrow stream.
_PART = 8_192


def write_frame(stream: IO[bytes], letter: bytes, payload: bytes) -> None:
    """Write one frame and flush it."""
    stream.write(_HEAD.pack(letter, len(payload)))
    stream.write(payload)
    stream.flush()


def read_frame(stream: IO[bytes]) -> tuple[bytes, bytes] | None:
    """Return the next frame; None where the other side has ended, in a frame or between two."""
    head = stream.read(_HEAD.size)
    if len(head) < _HEAD.size:
        return None
    letter, length = _HEAD.unpack(head)
    payload = stream.read(length)
    return (letter, payload) if len(payload) == length else None


def arrow_bytes(rows: pa.Table) -> bytes:
    """Return rows as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        # In parts, so that the database can take them apart on several threads.
        writer.write_table(rows, max_chunksize=_PART)
    return bytes(sink.getvalue())


def arrow_table(payload: bytes) -> pa.Table:
    """Return the rows of an Arrow stream."""
    return pa.ipc.open_stream(payload).read_all()
