"""All checkpoints of a folder, held against each other; and the proof of one record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ledger.proof import merkle
from ledger.proof.inclusion import make_proof
from ledger.proof.leaf import record_hash
from ledger.proof.store import BadCheckpoint, Store, find_checkpoints, read_checkpoint
from ledger.proof.tiles import SignedTiles, TileFault
from ledger.reading import Damaged
from schemas.topics import full_name

if TYPE_CHECKING:
    from pathlib import Path

    from ledger.log.port import Log
    from ledger.proof.checkpoint import Checkpoint
    from ledger.proof.evidence import Evidence
    from ledger.proof.note import PublicKey

__all__ = ["Listed", "history", "prove_record"]

_WAIT_S = 5.0


@dataclass(frozen=True, slots=True)
class Listed:
    """One checkpoint's file, and what is to be said of it.

    ``verdict`` is ``last``, ``consistent`` (proved to be what the last one begins
    with), ``unproved`` (signed, but the kept hashes to prove it with are missing or
    changed), ``inconsistent`` or ``refused`` (not signed by the key).
    """

    path: Path
    checkpoint: Checkpoint | None
    verdict: str
    detail: str = ""

    @property
    def ok(self) -> bool:
        """Say whether nothing speaks against it."""
        return self.verdict in ("last", "consistent", "unproved")


def history(folder: Path, key: PublicKey) -> list[Listed]:
    """Return every checkpoint below a folder, by partition and size.

    Each is held against the last one of its partition: what begins the same tree is
    consistent with each other too (U2).
    """
    return [one for last in find_checkpoints(folder) for one in _partition(Store(last.parent), key)]


def _partition(store: Store, key: PublicKey) -> list[Listed]:
    found = []
    signed: list[tuple[Path, Checkpoint]] = []
    for path in store.checkpoints():
        try:
            signed.append((path, read_checkpoint(path, key)))
        except BadCheckpoint as error:
            found.append(Listed(path, None, "refused", str(error)))
    if signed:
        path, last = signed[-1]
        found.append(Listed(path, last, "last"))
        found += [_listed(path, one, last, store) for path, one in signed[:-1]]
    return sorted(found, key=lambda one: one.path.name)


def _listed(path: Path, one: Checkpoint, last: Checkpoint, store: Store) -> Listed:
    if one.origin != last.origin or one.time_us > last.time_us or one.size >= last.size:
        detail = f"its origin, size or time does not go before {last.origin} at {last.size}"
        return Listed(path, one, "inconsistent", detail)
    try:
        tiles = SignedTiles(last.size, last.root, store.load)
        proof = merkle.consistency_proof(one.size, last.size, tiles.subtree)
    except TileFault as fault:
        return Listed(path, one, "unproved", str(fault))
    if merkle.verify_consistency(one.size, last.size, one.root, last.root, proof):
        return Listed(path, one, "consistent")
    detail = f"no history has both this and the checkpoint of {last.size} records"
    return Listed(path, one, "inconsistent", detail)


async def prove_record(log: Log, prefix: str, evidence: Evidence, offset: int) -> bytes:
    """Return the proof that the log's record at ``offset`` stands under a checkpoint.

    Raise `Damaged` when the record is missing or not the one that was signed, and
    `BadCheckpoint` when the hashes beside the checkpoint do not do. The log's own
    errors pass.
    """
    one = evidence.checkpoint
    topic = full_name(prefix, "events")
    there = offset < await log.end(topic, one.partition)
    records = await log.read(topic, one.partition, offset, 1, _WAIT_S) if there else []
    if not records or records[0].offset != offset:
        raise Damaged(topic, one.partition, offset, "hole", "this record is missing")
    try:
        tiles = SignedTiles(one.size, one.root, evidence.store.load)
        signed = tiles.subtree(0, offset)
        proof = make_proof(records[0], one.size, tiles.subtree, evidence.path.read_bytes())
    except TileFault as fault:
        raise BadCheckpoint(
            f"{evidence.store.folder}: {fault}; take your own copy of this folder, or have"
            " gpuledger checkpoint create make its tiles anew"
        ) from None
    if record_hash(records[0]) != signed:
        detail = "this record is not the one that was signed"
        raise Damaged(topic, one.partition, offset, "changed", detail)
    return proof
