"""What the tests of proofs share: small logs of made-up records, signed, and a plain tree."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from ledger.log.memory import MemoryLog
from ledger.log.port import Entry, Record
from ledger.proof.check import Verdict, check_log
from ledger.proof.evidence import gather
from ledger.proof.note import PrivateKey
from ledger.proof.writing import Signed, sign_log

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

PREFIX = "gpuledger"
TOPIC = f"{PREFIX}.events"
KEY = PrivateKey("example.org/site", bytes(range(32)))
OTHER_KEY = PrivateKey("example.org/site", bytes(32))


def tree_root(leaves: Sequence[bytes]) -> bytes:
    """Return the root as RFC 6962 defines it, in its own words."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return hashlib.sha256(b"\x00" + leaves[0]).digest()
    half = 1
    while half * 2 < len(leaves):
        half *= 2
    both = tree_root(leaves[:half]) + tree_root(leaves[half:])
    return hashlib.sha256(b"\x01" + both).digest()


def entry(number: int, salt: str = "") -> Entry:
    """Return a record's content that no other has."""
    key = None if number % 5 == 0 else b"cell"
    headers = (("ce_id", f"{number}{salt}".encode()), ("ce_type", b"x"))
    return Entry(key, f'{{"seq":{number},"salt":"{salt}"}}'.encode(), headers[: number % 3])


def log_of(entries: Sequence[Entry]) -> MemoryLog:
    """Return a log with these records, at the offsets 0, 1, 2 ..., however they got there."""
    log = MemoryLog()
    log._store.topics[TOPIC] = [
        [Record(TOPIC, 0, offset, 1, *one) for offset, one in enumerate(entries)]
    ]
    return log


def entries_of(size: int, salt: str = "") -> list[Entry]:
    """Return so many records' contents."""
    return [entry(number, salt) for number in range(size)]


async def sign(
    entries: Sequence[Entry], folder: Path, sizes: Sequence[int] = (), key: PrivateKey = KEY
) -> Signed:
    """Sign a log when it has each of ``sizes``, and when it is whole; return the last."""
    now_us, signed = 1_000_000, []
    for size in [*sizes, len(entries)]:
        now_us += 1
        signed = await sign_log(log_of(entries[:size]), PREFIX, folder, key, now_us)
    return signed[0]


async def held(entries: Sequence[Entry], checkpoint: Path) -> Verdict:
    """Return what a log with these records is, held against a checkpoint or a folder of them."""
    evidence = gather([checkpoint], KEY.public)
    return (await check_log(log_of(entries), PREFIX, evidence))[0]
