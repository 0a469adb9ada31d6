"""Proof that one record stands under a checkpoint, as one text file (C2SP tlog-proof).

Whoever has the file and the key needs nothing else: no log, no tiles, not this
program's word (U3). The record's leaf is in the ``extra`` line, so what was proved can
be read from the file too.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ledger.proof import merkle
from ledger.proof.checkpoint import Checkpoint, open_checkpoint
from ledger.proof.leaf import leaf_bytes, read_leaf
from ledger.proof.note import BadNote

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.log.port import Record
    from ledger.proof.note import PublicKey

__all__ = ["Proved", "check_proof", "make_proof"]

_HEAD = re.compile(
    rb"c2sp\.org/tlog-proof@v1\n"
    rb"extra (?P<extra>[^\n]+)\n"
    rb"index (?P<index>0|[1-9][0-9]{0,18})\n"
    rb"(?P<path>(?:[^\n]+\n)*)\n"
    rb"(?P<note>.*)",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Proved:
    """A record, and the checkpoint it is proved to stand under at its offset."""

    record: Record
    checkpoint: Checkpoint


def make_proof(
    record: Record, size: int, subtree: Callable[[int, int], bytes], note: bytes
) -> bytes:
    """Return the proof that ``record`` is in the tree of ``size`` leaves that ``note`` signs."""
    path = merkle.inclusion_proof(record.offset, size, subtree)
    lines = [
        b"c2sp.org/tlog-proof@v1",
        b"extra " + base64.b64encode(leaf_bytes(record)),
        b"index %d" % record.offset,
        *map(base64.b64encode, path),
    ]
    return b"\n".join(lines) + b"\n\n" + note


def check_proof(proof: bytes, key: PublicKey) -> Proved:
    """Return what a proof proves; raise `BadNote` when that is nothing."""
    match = _HEAD.fullmatch(proof)
    if match is None:
        raise BadNote("it is no proof of a record (c2sp.org/tlog-proof@v1 with its extra line)")
    try:
        leaf = base64.b64decode(match["extra"], validate=True)
        path = [base64.b64decode(line, validate=True) for line in match["path"].splitlines()]
    except binascii.Error:
        raise BadNote("a line of it is not base64") from None
    checkpoint = open_checkpoint(match["note"], key)
    index = int(match["index"])
    hashed = merkle.leaf_hash(leaf)
    if not merkle.verify_inclusion(hashed, index, checkpoint.size, path, checkpoint.root):
        raise BadNote(
            f"the record in it is not record {index} of what {checkpoint.origin} signed at"
            f" {checkpoint.size}"
        )
    try:
        record = read_leaf(leaf, checkpoint.topic, checkpoint.partition)
    except ValueError as error:
        raise BadNote(f"the record in it cannot be read: {error}") from None
    if record.offset != index:
        raise BadNote(f"the record in it says that it is {record.offset}, not {index}")
    return Proved(record, checkpoint)
