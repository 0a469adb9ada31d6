"""The state at any place is the one that all records up to it make, however it is reached."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ledger.core.digest import canonical, digest
from ledger.reading import cells_of
from ledger.replay.diff import diff
from ledger.replay.states import PositionSnapshots, copy_of, fold_at, make_snapshots
from tests.ledgers import PREFIX
from tests.replay_support import EVENTS, KINDS, drawn, folds_of, log_of

if TYPE_CHECKING:
    from pathlib import Path

    from ledger.log.port import Log

EVERY = 40


async def made(log: Log, folder: Path) -> list[PositionSnapshots]:
    """Make snapshots of a log; return where they are."""
    store = PositionSnapshots(folder, EVENTS)
    async for _ in make_snapshots(log, PREFIX, store, EVERY):
        pass
    return [store]


@pytest.mark.parametrize("kind", KINDS)
async def test_with_snapshots_and_without_it_is_the_same_state(kind: str, tmp_path: Path) -> None:
    """At places before, on and behind a snapshot; each is started from the newest before it."""
    values = drawn()
    async with await log_of(kind, tmp_path, values) as log:
        stores = await made(log, tmp_path / "positions")
        assert sorted(stores[0].offsets(0)) == list(range(EVERY, len(values) + 1, EVERY))
        for end in (0, 1, EVERY - 1, EVERY, EVERY + 1, 3 * EVERY - 1, len(values)):
            wanted = digest(folds_of(values, end).cells)
            for used in ([], stores):
                folds = await fold_at(log, PREFIX, {0: end}, used)
                assert folds[0].head.offset == end
                assert digest(cells_of(folds)) == wanted


async def test_without_ids_it_is_all_but_these(tmp_path: Path) -> None:
    """Started from a snapshot whose ids were not read, the records go on changing the rest alike.

    And so does a difference of two such states, which has no digests.
    """
    values = drawn()
    async with await log_of("memory", tmp_path, values) as log:
        stores = await made(log, tmp_path / "positions")
        remembered = []
        for end in (EVERY, EVERY + 1, 3 * EVERY - 1, len(values)):
            (whole,) = folds_of(values, end).cells.values()
            folds = await fold_at(log, PREFIX, {0: end}, stores, with_ids=False)
            state = folds[0].cells[whole.cell]
            assert canonical(state, with_ids=False) == canonical(whole, with_ids=False)
            remembered.append(len(state.seen) < len(whole.seen))
        assert all(remembered)
        places = {0: EVERY + 1}, {0: 3 * EVERY + 2}
        every = await diff(log, PREFIX, places, stores)
        found = await diff(log, PREFIX, places, stores, with_ids=False)
    assert found.digests is None
    assert found.changes == [one for one in every.changes if one.table != "seen"] != []


async def test_ids_that_are_damaged_are_no_matter_to_who_does_not_read_them(tmp_path: Path) -> None:
    """Each part has its own digest: with ids the snapshot is passed over, without it is taken."""
    values = drawn()
    async with await log_of("memory", tmp_path, values) as log:
        stores = await made(log, tmp_path / "positions")
        path = stores[0].offsets(0)[EVERY]
        data = path.read_bytes()
        assert data.endswith(b"}")
        path.write_bytes(data[:-1] + b" ")
        await fold_at(log, PREFIX, {0: EVERY}, stores, with_ids=False)
        assert not stores[0].set_aside
        await fold_at(log, PREFIX, {0: EVERY}, stores)
        assert [path] == [one.path for one in stores[0].set_aside]


class Counting:
    """A log's values, counted."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.read = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self.log, name)

    async def values(self, *arguments: object) -> list[tuple[int, int, bytes | None]]:
        """Pass on what is read."""
        found = await self.log.values(*arguments)  # type: ignore[arg-type]
        self.read += len(found)
        return found


async def test_only_the_tail_is_read(tmp_path: Path) -> None:
    """From a snapshot on; with a fold that is nearer, from there on."""
    values = drawn()
    async with await log_of("memory", tmp_path, values) as log:
        stores = await made(log, tmp_path / "positions")
        counting = Counting(log)
        folds = await fold_at(counting, PREFIX, {0: 2 * EVERY + 7}, stores)  # type: ignore[arg-type]
        assert counting.read == 1 + 7  # the record the snapshot ends with, and the tail
        counting.read = 0
        await fold_at(counting, PREFIX, {0: 2 * EVERY + 9}, stores, copy_of(folds))  # type: ignore[arg-type]
        assert counting.read == 2


async def test_a_second_call_adds_what_is_new(tmp_path: Path) -> None:
    """Snapshots that are there are neither made again nor removed, and there is no limit."""
    values = drawn()
    async with await log_of("memory", tmp_path, values[: 2 * EVERY]) as log:
        store = PositionSnapshots(tmp_path / "positions", EVENTS)
        first = [offset async for _, offset in make_snapshots(log, PREFIX, store, EVERY)]
    async with await log_of("memory", tmp_path, values) as log:
        again = [offset async for _, offset in make_snapshots(log, PREFIX, store, EVERY)]
    assert first == [EVERY, 2 * EVERY]
    assert again == list(range(3 * EVERY, len(values) + 1, EVERY))
    assert len(store.offsets(0)) == len(values) // EVERY > 2


async def test_a_bad_snapshot_is_passed_over_and_stays(tmp_path: Path) -> None:
    """Damaged, or of another log: the next older one is taken, nothing is renamed."""
    values, end = drawn(), 3 * EVERY
    async with await log_of("memory", tmp_path, values) as log:
        stores = await made(log, tmp_path / "positions")
        before = {path.name for path in stores[0].folder.iterdir()}
        newest = stores[0].offsets(0)[end]
        newest.write_bytes(newest.read_bytes()[:-1] + b" ")
        folds = await fold_at(log, PREFIX, {0: end}, stores)
        assert digest(cells_of(folds)) == digest(folds_of(values, end).cells)
        assert [one.path for one in stores[0].set_aside] == [newest]
        assert {path.name for path in stores[0].folder.iterdir()} == before
    other = drawn(seed=4)
    async with await log_of("memory", tmp_path, other) as log:
        folds = await fold_at(log, PREFIX, {0: end}, [PositionSnapshots(newest.parent, EVENTS)])
        assert digest(cells_of(folds)) == digest(folds_of(other, end).cells)


async def test_partitions_are_apart(tmp_path: Path) -> None:
    """Each partition has its own snapshots and its own place."""
    one, other = drawn(seed=3), drawn(seed=4)
    async with await log_of("memory", tmp_path, one, other) as log:
        stores = await made(log, tmp_path / "positions")
        folds = await fold_at(log, PREFIX, {0: EVERY + 1, 1: EVERY + 2}, stores)
    assert digest(folds[0].cells) == digest(folds_of(one, EVERY + 1).cells)
    assert digest(folds[1].cells) == digest(folds_of(other, EVERY + 2).cells)


async def test_a_snapshot_under_another_name_is_passed_over(tmp_path: Path) -> None:
    """It would be a state of the future: what it holds is of another offset than its name says."""
    values = drawn()
    async with await log_of("memory", tmp_path, values) as log:
        stores = await made(log, tmp_path / "positions")
        there = stores[0].offsets(0)
        there[2 * EVERY].rename(there[EVERY])
        folds = await fold_at(log, PREFIX, {0: EVERY + 1}, stores)
        assert digest(cells_of(folds)) == digest(folds_of(values, EVERY + 1).cells)
        assert [there[EVERY]] == [one.path for one in stores[0].set_aside]


async def test_a_second_call_makes_anew_what_cannot_be_used(tmp_path: Path) -> None:
    """Of an earlier version of the program, cut off, or of another log: else it stays so."""
    values = drawn()
    async with await log_of("memory", tmp_path, values) as log:
        (store,) = await made(log, tmp_path / "positions")
        there = store.offsets(0)
        whole = there[EVERY].read_bytes()
        there[EVERY].write_bytes(whole.replace(b'{"v":3,', b'{"v":2,', 1))
        there[2 * EVERY].write_bytes(there[2 * EVERY].read_bytes()[:-1])
        again = [offset async for _, offset in make_snapshots(log, PREFIX, store, EVERY)]
        assert [EVERY, 2 * EVERY] == again
        assert there[EVERY].read_bytes() == whole
