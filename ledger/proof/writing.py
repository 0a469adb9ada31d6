"""Sign where a log stands now: read what is new, grow the tree, write a checkpoint.

What was signed is never taken back (U2): the new tree is proved to begin with the
one signed last before it is signed, its size and time are never lower, and where the
log no longer is what was signed nothing is written (`Rewound`). Only records after the
last checkpoint are read: the checkpoint and the edge of its tiles are all the state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ledger.proof import merkle
from ledger.proof.checkpoint import Checkpoint, origin_of, sign_checkpoint
from ledger.proof.leaf import GENESIS, link, record_hash
from ledger.proof.store import BadCheckpoint, Store
from ledger.proof.tiles import WIDTH, Edge, SignedTiles, TileFault
from ledger.reading import Damaged
from schemas.topics import full_name

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ledger.log.port import Log
    from ledger.proof.note import PrivateKey

__all__ = ["Rewound", "Signed", "sign_log"]

_CHUNK = 5000
_WAIT_S = 5.0


class Rewound(Damaged):
    """The log is not, or no longer, what the last checkpoint says. Nothing was signed."""

    def __init__(self, topic: str, partition: int, offset: int, detail: str) -> None:
        super().__init__(topic, partition, offset, "rewound", detail)


@dataclass(frozen=True, slots=True)
class Signed:
    """The checkpoint of a partition, its file, and how many records it adds to the one before.

    ``new`` is False where the log has not grown: the last one stands.
    """

    checkpoint: Checkpoint
    path: Path
    added: int
    new: bool


async def sign_log(
    log: Log,
    prefix: str,
    folder: Path,
    key: PrivateKey,
    now_us: int,
    progress: Callable[[int, int], None] | None = None,
) -> list[Signed]:
    """Sign every partition of the events as far as it goes now; return its checkpoints.

    Partitions that were signed before one fails stay signed. Raise `Rewound`;
    `Damaged` for a hole in what is new; `BadCheckpoint` when the last checkpoint is
    not this key's; the log's own errors pass.
    """
    topic = full_name(prefix, "events")
    numbers = range(await log.partitions(topic))
    total = sum([await log.end(topic, number) for number in numbers])
    done = 0
    signed = []
    for number in numbers:
        store = Store(folder / topic / str(number))
        with store.alone():
            one = await _sign(log, topic, number, store, key, now_us)
        signed.append(one)
        done += one.checkpoint.size
        if progress is not None:
            progress(done, total)
    return signed


async def _sign(
    log: Log, topic: str, partition: int, store: Store, key: PrivateKey, now_us: int
) -> Signed:
    last = store.latest(key.public)
    end = await log.end(topic, partition)
    origin = origin_of(key.name, topic, partition)
    if last is not None and last.origin != origin:
        raise Rewound(topic, partition, 0, f"the checkpoints in {store.folder} are {last.origin}'s")
    if last is not None and end < last.size:
        detail = (
            f"the log ends at {end}, but {last.size} records were signed; nothing was signed now"
        )
        raise Rewound(topic, partition, end, detail)
    edge = _edge(store, last)
    if last is not None and edge.size == last.size:
        await _still_there(log, topic, last, store)
        if end == last.size:
            return Signed(last, store.path_of(last.size), 0, new=False)
    chain = last.chain if last is not None and edge.size else GENESIS
    chain, full = await _grow(log, topic, partition, edge, chain, end, store, last)
    for level, index, hashes in edge.tiles():
        store.put_tile(level, index, hashes)
    if last is not None and end == last.size:  # the tiles were lost, and are back
        store.settle()
        return Signed(last, store.path_of(end), 0, new=False)
    root = edge.root()
    if last is not None:
        _prove_growth(store, last, end, root, topic)
    time_us = now_us if last is None else max(now_us, last.time_us)
    checkpoint = Checkpoint(origin, end, root, time_us, chain)
    path = store.put_checkpoint(end, sign_checkpoint(checkpoint, key))
    store.drop_partials(full)
    return Signed(checkpoint, path, end - (last.size if last is not None else 0), new=True)


def _edge(store: Store, last: Checkpoint | None) -> Edge:
    """Return the tree that was signed last, or an empty one when its tiles are lost."""
    if last is None:
        return Edge()
    try:
        tiles = SignedTiles(last.size, last.root, store.load)
        return Edge.of(last.size, tiles.tile)
    except TileFault:
        # All is read again, and must come to the root that was signed.
        return Edge()


async def _grow(
    log: Log,
    topic: str,
    partition: int,
    edge: Edge,
    chain: bytes,
    end: int,
    store: Store,
    last: Checkpoint | None,
) -> tuple[bytes, list[tuple[int, int]]]:
    """Add the records up to ``end``; return the chain's head and the tiles that are full now."""
    full = []
    signed_at = last.size if last is not None and last.size > edge.size else None
    while edge.size < end:
        limit = min(_CHUNK, end - edge.size)
        records = await log.read(topic, partition, edge.size, limit, _WAIT_S)
        found = records[0].offset if records else end
        if found != edge.size:
            detail = f"the entries {edge.size} to {found - 1} are missing; nothing was signed"
            raise Damaged(topic, partition, edge.size, "gap", detail)
        for record in records:
            if record.offset != edge.size:
                detail = f"entry {record.offset} follows entry {edge.size - 1}; nothing was signed"
                raise Damaged(topic, partition, edge.size, "gap", detail)
            leaf = record_hash(record)
            chain = link(chain, leaf)
            for level, index, hashes in edge.append(leaf):
                store.put_tile(level, index, hashes)
                full.append((level, index))
            if edge.size == signed_at and last and (edge.root(), chain) != (last.root, last.chain):
                detail = f"the first {last.size} records are not those that were signed"
                raise Rewound(topic, partition, 0, f"{detail}; nothing was signed now")
    return chain, full


async def _still_there(log: Log, topic: str, last: Checkpoint, store: Store) -> None:
    """Look at the last record that was signed: a log that was set back has another there."""
    if last.size == 0:
        return
    at = last.size - 1
    tiles = SignedTiles(last.size, last.root, store.load)
    records = await log.read(topic, last.partition, at, 1, _WAIT_S)
    try:
        expected = tiles.tile(0, at // WIDTH)[at % WIDTH]
    except TileFault:
        return
    if not records or record_hash(records[0]) != expected:
        detail = "this record is not the one that was signed: the log was set back, and has gone on"
        raise Rewound(topic, last.partition, at, f"{detail} otherwise; nothing was signed now")


def _prove_growth(store: Store, last: Checkpoint, size: int, root: bytes, topic: str) -> None:
    """Prove, from what is on disk, that the new tree begins with the one signed before."""
    try:
        tiles = SignedTiles(size, root, store.load)
        proof = merkle.consistency_proof(last.size, size, tiles.subtree)
    except TileFault as fault:
        raise BadCheckpoint(
            f"{store.folder}: {fault}; nothing was signed: remove the folder tile in it, the next"
            " run makes it anew from the log and holds it against the last checkpoint"
        ) from None
    if not merkle.verify_consistency(last.size, size, last.root, root, proof):
        detail = f"no tree of {size} records begins with the {last.size} that were signed"
        raise Rewound(topic, last.partition, last.size, detail)
