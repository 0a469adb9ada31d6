"""Checkpoints: how long a partition was, and what stood in it, over a signature.

The form is C2SP tlog-checkpoint: origin, size and root, one a line, then two lines
of ours (``time_us`` and ``chain``), signed as a note under the origin's name. The
origin is ``KEY NAME/TOPIC/PARTITION``, so each partition is a log of its own, and one
key signs them all.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass

from ledger.proof.note import BadNote, PrivateKey, PublicKey, open_note, sign_note, split_note

__all__ = ["Checkpoint", "open_checkpoint", "origin_of", "sign_checkpoint"]

_TEXT = re.compile(
    r"(?P<origin>[^\n]+/(?P<partition>0|[1-9][0-9]{0,8}))\n"
    r"(?P<size>0|[1-9][0-9]{0,18})\n"
    r"(?P<root>[^\n]+)\n"
    r"time_us (?P<time_us>0|[1-9][0-9]{0,18})\n"
    r"chain (?P<chain>[^\n]+)\n"
)
_HASH_BYTES = 32


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One partition's first ``size`` records: the tree's root, the chain's head, and when.

    ``time_us`` is the signer's clock (UTC microseconds), which never falls from one
    checkpoint to the next.
    """

    origin: str
    size: int
    root: bytes
    time_us: int
    chain: bytes

    @property
    def partition(self) -> int:
        """Return the partition's number."""
        return int(self.origin.rpartition("/")[2])

    @property
    def topic(self) -> str:
        """Return the topic's full name."""
        return self.origin.rpartition("/")[0].rpartition("/")[2]

    @property
    def text(self) -> str:
        """Return the lines that are signed."""
        return (
            f"{self.origin}\n{self.size}\n{_base64(self.root)}\n"
            f"time_us {self.time_us}\nchain {_base64(self.chain)}\n"
        )


def origin_of(name: str, topic: str, partition: int) -> str:
    """Return what a partition's checkpoints begin with."""
    return f"{name}/{topic}/{partition}"


def sign_checkpoint(checkpoint: Checkpoint, key: PrivateKey) -> bytes:
    """Return the signed checkpoint."""
    return sign_note(checkpoint.text, key, checkpoint.origin)


def open_checkpoint(note: bytes, key: PublicKey) -> Checkpoint:
    """Return a checkpoint that ``key`` has signed; raise `BadNote` for anything else.

    The key may have the name of one partition's origin, or the one that all begin with.
    """
    origin = split_note(note)[0].partition("\n")[0]
    if origin != key.name and not origin.startswith(f"{key.name}/"):
        raise BadNote(f"it is of {origin!r}, and the key is {key.name}'s")
    match = _TEXT.fullmatch(open_note(note, key.named(origin)))
    root = _hash(match["root"]) if match else None
    chain = _hash(match["chain"]) if match else None
    if match is None or root is None or chain is None:
        raise BadNote("it is signed, but it is no checkpoint of this program")
    return Checkpoint(origin, int(match["size"]), root, int(match["time_us"]), chain)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _hash(text: str) -> bytes | None:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    # Base64 has several spellings of some bytes; only the one that is written is read.
    return data if len(data) == _HASH_BYTES and _base64(data) == text else None
