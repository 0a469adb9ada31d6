"""The fold at any place of the log, made from the nearest one known before it.

Snapshots of positions are derived data: one that is damaged or of another log is
passed over and said so, and the next older one is taken; at last the log is read from
its beginning. Reading never renames or removes one, and never one of a worker's.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ledger.core.digest import load_parts, save_parts
from ledger.core.fold import Fold
from ledger.reading import Upto, fold_values
from ledger.snapshots import SetAside, SnapshotStore, record_hash, value_reader
from schemas.topics import full_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from pathlib import Path

    from ledger.log.port import Log
    from ledger.replay.position import Place
    from ledger.snapshots import ValueAt

__all__ = ["PositionSnapshots", "copy_of", "fold_at", "make_snapshots"]


class PositionSnapshots(SnapshotStore):
    """Snapshots at many offsets of a folder, for readers: all are kept, none is renamed."""

    def __init__(self, folder: Path, topic: str) -> None:
        """Use ``folder``; it may be that of a worker, as long as it is only read."""
        super().__init__(folder, topic, keep=sys.maxsize)

    def offsets(self, partition: int) -> dict[int, Path]:
        """Return the snapshots of a partition by offset, newest first."""
        return {int(path.stem.rpartition("-")[2]): path for path in self._found(partition)}

    async def stands(self, path: Path, partition: int, value_at: ValueAt) -> bool:
        """Say whether a snapshot can be read by this version, and is of this log."""
        parts = self._parts(path, partition)
        if isinstance(parts, str):
            return False
        header = parts[0]
        return record_hash(await value_at(header["offset"] - 1)) == str(header["last"])

    async def read(
        self,
        path: Path,
        partition: int,
        value_at: ValueAt,
        *,
        with_ids: bool = True,
    ) -> Fold | None:
        """Return one snapshot when the log bears it out, else None (see ``set_aside``)."""
        loaded = self._read(path, partition, with_ids=with_ids)
        found = loaded if isinstance(loaded, str) else await self._borne_out(*loaded, value_at)
        if isinstance(found, str):
            self.set_aside.append(SetAside(path, found))
            return None
        return found


async def fold_at(
    log: Log,
    prefix: str,
    place: Place,
    stores: Sequence[PositionSnapshots] = (),
    start: Mapping[int, Fold] | None = None,
    progress: Callable[[int, int], None] | None = None,
    *,
    with_ids: bool = True,
) -> dict[int, Fold]:
    """Return the folds at a place, by partition; they keep no index (`Fold.ready` makes it).

    ``start`` are folds to go on from, at or before the place; they are used up. A newer
    snapshot goes before them. ``progress`` is called with the records done and those there
    are. Without ``with_ids`` the states are whole but for the ids that they remember
    (``seen``), which are most of a long log's state: for who only looks at the rest, and
    takes no digest. Raises as `ledger.reading.read_events` does.
    """
    topic = full_name(prefix, "events")
    folds: dict[int, Fold] = {}
    total, done = sum(place.values()), 0
    for number, end in place.items():
        fold = (start or {}).get(number) or Fold()
        between = fold.head.offset, end
        fold = await _newest(log, topic, number, stores, between, with_ids=with_ids) or fold
        fold.reading()
        async for _ in fold_values(log, topic, number, fold, Upto(offsets={number: end})):
            if progress is not None:
                progress(done + fold.head.offset, total)
        done += end
        folds[number] = fold
    return folds


async def _newest(
    log: Log,
    topic: str,
    partition: int,
    stores: Sequence[PositionSnapshots],
    between: tuple[int, int],
    *,
    with_ids: bool,
) -> Fold | None:
    """Return the newest snapshot that is of this log, behind the first offset, not the second."""
    value_at = value_reader(log, topic, partition)
    first, last = between
    found = [
        (offset, number, path)
        for number, store in enumerate(stores)
        for offset, path in store.offsets(partition).items()
        if first < offset <= last
    ]
    for _, number, path in sorted(found, reverse=True):
        fold = await stores[number].read(path, partition, value_at, with_ids=with_ids)
        if fold is not None:
            return fold
    return None


def copy_of(folds: Mapping[int, Fold]) -> dict[int, Fold]:
    """Return folds that can go on without changing these."""
    found = {}
    for number, fold in folds.items():
        found[number] = copy = load_parts(save_parts(fold, with_ids=False)[0], None)
        for name, state in fold.cells.items():
            copy.cells[name].seen = {key: list(entry) for key, entry in state.seen.items()}
    return found


async def make_snapshots(
    log: Log, prefix: str, store: PositionSnapshots, every: int
) -> AsyncIterator[tuple[Path, int]]:
    """Write a snapshot at each multiple of ``every`` records; yield its path and offset.

    Those that are there already are gone on from, so a second call adds what is new. One that
    cannot be used (of an earlier version, damaged, of another log) is made anew.
    """
    topic = full_name(prefix, "events")
    for number in range(await log.partitions(topic)):
        end = await log.end(topic, number)
        folds: dict[int, Fold] = {}
        value_at = value_reader(log, topic, number)
        for offset in range(every, end + 1, every):
            there = store.offsets(number).get(offset)
            if there is not None and await store.stands(there, number, value_at):
                folds.clear()
                continue
            folds = await fold_at(log, prefix, {number: offset}, [store], folds)
            yield store.save(number, folds[number], await value_at(offset - 1)), offset
