"""S1 to S5 as properties: on logs to which everything happens, disturbed at drawn places."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.core.digest import canonical, digest, load_fold, save_fold
from ledger.core.invariants import check
from ledger.dead_letters import DeadLetter, original, read_all, redrive
from ledger.log.memory import MemoryLog
from ledger.log.port import Entry, Log
from ledger.reading import cells_of, fold_log
from ledger.snapshots import SnapshotStore
from ledger.wire import input_entry
from tests.ledgers import OPERATOR, PREFIX, Site
from tests.property_support import (
    chances,
    decisions,
    driver_at,
    few,
    folded,
    histories,
    history,
    redecide,
    submission,
)
from tests.replay_support import EVENTS, KINDS, log_of, put
from tests.test_bad_input import MUTATIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ledger.core.fold import Fold


def of(values: Sequence[bytes]) -> str:
    """Return the digest of records."""
    return digest(folded(values).cells)


# -- S1 ------------------------------------------------------------------------


@few
@given(histories, chances)
def test_s1_saved_and_loaded_anywhere_the_digest_is_the_same(
    values: tuple[bytes, ...], chance: Random
) -> None:
    """Cut into any pieces, each of which begins with what the one before left on disk."""
    fold = folded(())
    for at, value in enumerate(values):
        if chance.random() < 0.1:
            fold = load_fold(save_fold(fold))
            fold = fold.ready() if chance.random() < 0.5 else fold
        fold.apply(at, value)
    whole = folded(values)
    assert digest(whole.cells) == digest(fold.cells)
    assert canonical(whole.cell("c")) == canonical(fold.cell("c"))
    assert save_fold(whole) == save_fold(fold)
    assert [] == check(fold.ready().cell("c"))


@few
@given(histories, st.integers(1, 50))
def test_s1_read_in_any_chunks_the_digest_is_the_same(
    values: tuple[bytes, ...], chunk: int
) -> None:
    """As many records at a time as it may be; and one record less is another digest."""

    async def run(records: Sequence[bytes]) -> str:
        log = MemoryLog()
        await put(log, PREFIX, records)
        return digest(cells_of(await fold_log(log, PREFIX)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ledger.reading._CHUNK", chunk)
        assert of(values) == asyncio.run(run(values))
        assert of(values) != asyncio.run(run(values[: decisions(values)[-1]]))


# -- S2 ------------------------------------------------------------------------


@few
@given(histories, chances)
def test_s2_who_goes_on_from_a_snapshot_decides_the_same(
    values: tuple[bytes, ...], chance: Random
) -> None:
    """From any position, loaded anew as often as it may be: the same records to the byte."""
    cell = driver_at(values, chance.randint(1, len(values)))
    while len(cell.records) < len(values):
        if chance.random() < 0.1:
            cell.fold = load_fold(save_fold(cell.fold)).ready()
        redecide(cell, values[len(cell.records)])
    assert list(values) == cell.records
    assert cell.digest() == of(values)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
async def test_s2_live_replay_snapshot_and_archive_are_one(
    kind: str, seed: int, tmp_path: Path
) -> None:
    """The state of who decided, of a reader, of one from a snapshot, in each kind of log."""
    values, chance = history(seed), Random(f"{kind} {seed}")
    live = driver_at(values, 1)
    for value in values[1:]:
        redecide(live, value)
    log = await log_of(kind, tmp_path, values)
    assert live.digest() == digest(cells_of(await fold_log(log, PREFIX)))
    for at in chance.sample(range(1, len(values)), 3):
        store = SnapshotStore(tmp_path / f"at-{at}", EVENTS)
        store.save(0, folded(values[:at]), values[at - 1])
        folds = await fold_log(log, PREFIX, snapshots=store)
        assert [] == store.set_aside
        assert live.digest() == digest(cells_of(folds))
    await log.close()


# -- S3 ------------------------------------------------------------------------


@few
@given(histories, chances)
def test_s3_duplicates_and_void_records_do_not_change_the_digest(
    values: tuple[bytes, ...], chance: Random
) -> None:
    """Copies at once or later, of another claim or out of turn: counted, and of no effect."""
    disturbed: list[bytes] = []
    for value in values:
        disturbed.append(value)
        record = orjson.loads(value)
        if record["kind"] == "decision" and chance.random() < 0.3:
            # Each of these would count but for one thing: its claim, its turn, its source.
            (topic, source), turn = record["source"], record["seq"] + 1
            newer = {"source": [topic, source + 1], "seq": turn}
            foreign = record | newer | {"token": "f" * 32}
            ahead = record | newer | {"seq": turn + chance.randint(1, 9)}
            stale = record | {"seq": turn}
            more = [value, *map(orjson.dumps, (foreign, ahead, stale))]
            disturbed += chance.sample(more, chance.randint(1, 4))
    fold = folded(disturbed)
    assert of(values) == digest(fold.cells)
    assert len(disturbed) - len(values) == fold.head.void


@few
@given(histories, histories, chances)
def test_s3_the_order_between_partitions_does_not_matter(
    one: tuple[bytes, ...], two: tuple[bytes, ...], chance: Random
) -> None:
    """Two cells of two partitions, read in any turns and listed in any order."""
    logs = [one, tuple(value.replace(b'"cell":"c"', b'"cell":"d"') for value in two)]
    folds = [folded(()), folded(())]
    turns = [number for number in (0, 1) for _ in logs[number]]
    chance.shuffle(turns)
    for number in turns:
        at = folds[number].head.offset
        folds[number].apply(at, logs[number][at])
    wanted = {"c": folded(logs[0]).cell("c"), "d": folded(logs[1]).cell("d")}
    for order in ((0, 1), (1, 0)):
        found = cells_of({place: folds[number] for place, number in enumerate(order)})
        assert digest(wanted) == digest(found)


# -- S4 ------------------------------------------------------------------------


async def started(values: Sequence[bytes], store: SnapshotStore) -> Fold:
    """Return the fold of a log, begun from a snapshot where the log bears it out."""
    log = MemoryLog()
    await put(log, PREFIX, values)
    return (await fold_log(log, PREFIX, snapshots=store))[0]


@few
@given(histories, chances)
def test_s4_a_snapshot_beyond_the_log_is_refused(values: tuple[bytes, ...], chance: Random) -> None:
    """However far: it is set aside, and the state is the shorter log's; at its end it is used."""
    at = chance.randint(1, len(values))
    shorter = values[: chance.randint(0, at)]

    async def run() -> None:
        with TemporaryDirectory() as folder:
            store = SnapshotStore(Path(folder), EVENTS)
            store.save(0, folded(values[:at]), values[at - 1])
            fold = await started(shorter, store)
            assert of(shorter) == digest(fold.cells)
            assert len(shorter) == fold.head.offset
            assert (len(shorter) < at) == any("newer" in one.reason for one in store.set_aside)

    asyncio.run(run())


@few
@given(histories, chances)
def test_s4_a_snapshot_of_another_log_is_refused(values: tuple[bytes, ...], chance: Random) -> None:
    """The record that it ends with is another in this log; an older one that holds is used."""
    at = chance.randint(2, len(values))
    older = chance.randint(1, at - 1)
    other = list(values)
    other[at - 1] = values[at - 1].replace(b'"v":1', b'"v": 1')

    async def run() -> None:
        with TemporaryDirectory() as folder:
            store = SnapshotStore(Path(folder), EVENTS)
            # Were one of the two taken on trust, its mark would be in the digest.
            for end in (older, at):
                marked = folded(values[:end])
                marked.cell("c").swept_us += end == at
                store.save(0, marked, values[end - 1])
            fold = await started(other, store)
            assert of(values) == digest(fold.cells)
            assert ["another record"] == [one.reason[12:26] for one in store.set_aside]

    asyncio.run(run())


# -- S5 ------------------------------------------------------------------------


def malformed(number: int, chance: Random) -> Entry:
    """Return noise, or an input that was changed in its value or one of its headers."""
    entry, kind = submission(number, chance), chance.randrange(4)
    value = entry.value or b""
    if kind == 0:
        return Entry(chance.choice([None, b"c"]), chance.randbytes(chance.randrange(50)))
    if kind == 1:
        return Entry(entry.key, chance.choice(MUTATIONS)(value, chance), entry.headers)
    if kind == 2:
        kept = [one for one in entry.headers if chance.random() < 0.8]
        return Entry(entry.key, value, (*kept, ("trace", chance.randbytes(3))))
    return Entry(b"c", value[: chance.randrange(len(value))], entry.headers)


async def letters(log: Log) -> list[DeadLetter]:
    """Return all dead letters."""
    return [one async for one in read_all(log, PREFIX)]


@pytest.mark.parametrize("seed", range(8))
async def test_s5_what_is_malformed_is_counted_kept_and_redriven(seed: int) -> None:
    """Applied + rejected + put aside = read; every letter has its bytes, and comes back as one."""
    chance, site = Random(seed), Site(MemoryLog())
    await site.start()
    first = site.shard.position["requests"]
    given_ = [malformed(number, chance) for number in range(40)]
    for entry in given_:
        await site.put(entry)
    found = await letters(site.log)
    assert 10 < len(found) == site.shard.counts.dead_letters
    counts = site.shard.counts
    handled = counts.decided + counts.unrecorded + counts.dead_letters + counts.answered_again
    assert handled == sum(site.shard.position.values())
    before = site.shard.fold.head.seq, digest(site.shard.fold.cells)
    for letter in found:
        entry = given_[letter.offset - first]
        assert entry == await original(site.log, letter)
        assert (entry.key, entry.value) == (letter.record.key, letter.record.value)
        assert letter.code
        await redrive(site.log, letter)
    await site.pump()
    again = (await letters(site.log))[len(found) :]
    assert [(one.code, one.record.value) for one in again] == [
        (one.code, one.record.value) for one in found
    ]
    assert before == (site.shard.fold.head.seq, digest(site.shard.fold.cells))


@pytest.mark.parametrize("seed", range(6))
async def test_s5_what_is_redriven_counts_once(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an older version did not know is decided once it does, however often it is sent."""
    chance, site = Random(seed), Site(MemoryLog())
    await site.start()
    names = [f"q{number}" for number in range(chance.randint(2, 8))]
    with monkeypatch.context() as older:
        older.setattr("ledger.ingest.TYPES", {})
        for name in names:
            data = {"queue": name, **OPERATOR}
            await site.put(input_entry("c", "queue.apply", "/ops", name, data))
    found = await letters(site.log)
    assert len(names) == len(found)
    assert not site.state.queues.keys() & set(names)
    seq = site.shard.fold.head.seq
    sent = [letter for letter in found for _ in range(chance.randint(1, 3))]
    chance.shuffle(sent)
    for letter in sent:
        await redrive(site.log, letter)
        if chance.random() < 0.5:
            await site.pump()
    await site.pump()
    assert set(names) <= site.state.queues.keys()
    assert seq + len(names) == site.shard.fold.head.seq
    assert found == await letters(site.log)
