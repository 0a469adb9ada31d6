"""The tamper drill: every kind of change at many places is found, and the record is named."""

from __future__ import annotations

import random
import shutil
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from ledger.archive import files as archive_files
from ledger.archive.check import check_archive
from ledger.archive.columns import table_of
from ledger.archive.follow import Follower, Options
from ledger.log.archive import ArchiveLog
from ledger.log.memory import MemoryLog
from ledger.log.port import Entry, LogDamaged, Record
from ledger.proof.check import check_log
from ledger.proof.evidence import gather
from ledger.proof.store import BadCheckpoint
from ledger.proof.writing import sign_log
from tests.proofs import (
    KEY,
    OTHER_KEY,
    PREFIX,
    TOPIC,
    entries_of,
    entry,
    held,
    log_of,
    sign,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from ledger.proof.check import Verdict

ROUNDS = 100
#: Around one and two tiles of 256, and one that is far from it.
SIZES = (2, 3, 100, 255, 256, 257, 511, 513)


def flipped(entries: list[Entry], draw: random.Random) -> tuple[str, int]:
    """Flip one bit of a record: of its value, key or a header."""
    at = draw.randrange(len(entries))
    one = entries[at]
    parts = {"value": one.value or b"", "key": one.key or b"", "header": b""}
    parts["header"] = one.headers[-1][1] if one.headers else b""
    part = draw.choice([name for name, data in parts.items() if data])
    data = bytearray(parts[part])
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    if part == "header":
        entries[at] = one._replace(headers=(*one.headers[:-1], (one.headers[-1][0], bytes(data))))
    elif part == "key":
        entries[at] = one._replace(key=bytes(data))
    else:
        entries[at] = one._replace(value=bytes(data))
    return "changed", at


def dropped(entries: list[Entry], draw: random.Random) -> tuple[str, int]:
    """Take a record out, and let those behind it move up."""
    at = draw.randrange(len(entries) - 1)
    del entries[at]
    return "dropped", at


def swapped(entries: list[Entry], draw: random.Random) -> tuple[str, int]:
    """Let two records change places."""
    first, second = sorted(draw.sample(range(len(entries)), 2))
    entries[first], entries[second] = entries[second], entries[first]
    return "swapped", first


def repeated(entries: list[Entry], draw: random.Random) -> tuple[str, int]:
    """Put a record in again, behind itself."""
    source = draw.randrange(len(entries) - 1)
    at = draw.randrange(source + 1, len(entries))
    entries.insert(at, entries[source])
    return "repeated", at


def inserted(entries: list[Entry], draw: random.Random) -> tuple[str, int]:
    """Put a record in that never was."""
    at = draw.randrange(len(entries))
    entries.insert(at, entry(at, "forged"))
    return "inserted", at


def truncated(entries: list[Entry], draw: random.Random) -> tuple[str, int]:
    """Cut the log off."""
    at = draw.randrange(len(entries))
    del entries[at:]
    return "truncated", at


def recomputed(entries: list[Entry], draw: random.Random) -> tuple[str, int]:
    """Cut the log and write it anew, as long as it was."""
    at = draw.randrange(len(entries) - 1)
    entries[at:] = [entry(number, "forged") for number in range(at, len(entries))]
    return "rewritten", at


def rewound(entries: list[Entry], draw: random.Random) -> tuple[str, int]:
    """Set the log back, and let it go on otherwise: shorter than it was, or longer."""
    at = draw.randrange(len(entries) - 1)
    size = draw.randrange(at + 2, len(entries) + 50)
    entries[at:] = [entry(number, "other life") for number in range(at, size)]
    return "rewritten", at


KINDS: tuple[Callable[[list[Entry], random.Random], tuple[str, int]], ...] = (
    flipped, dropped, swapped, repeated, inserted, truncated, recomputed, rewound,
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS, ids=lambda one: one.__name__)
async def test_every_change_is_found_and_named(
    kind: Callable[[list[Entry], random.Random], tuple[str, int]], tmp_path: Path
) -> None:
    """The first bad record is named by its offset, and what became of it: 100 of 100."""
    paths = {size: (await sign(entries_of(size), tmp_path / str(size), [size // 2])).path
             for size in SIZES}  # fmt: skip
    draw = random.Random(kind.__name__)
    wrong = []
    for number in range(ROUNDS):
        size = draw.choice(SIZES)
        entries = entries_of(size)
        wanted = kind(entries, draw)
        verdict = await held(entries, paths[size])
        first = verdict.faults[0] if verdict.faults else None
        if first is None or (first.kind, first.offset) != wanted or not verdict.exact:
            wrong.append((number, size, wanted, first))
    assert [] == wrong


@pytest.mark.parametrize("size", [0, 1, *SIZES])
async def test_what_is_as_it_was_signed_is_proved(size: int, tmp_path: Path) -> None:
    """No fault where there is none, also where the log has gone on since."""
    path = (await sign(entries_of(size), tmp_path)).path
    verdict = await held(entries_of(size), path)
    assert ((), True, size) == (verdict.faults, verdict.exact, verdict.end)
    assert () == verdict.notes
    later = await held(entries_of(size + 300), path)
    assert ((), size, size + 300) == (later.faults, later.size, later.end)


def forge_tiles(store: Path, of: Path) -> None:
    """Put the tiles of another log in place, as somebody would who can write there too."""
    shutil.rmtree(store / "tile")
    shutil.copytree(of / "tile", store / "tile")


async def test_who_forges_the_kept_hashes_too_is_found_within_a_range(tmp_path: Path) -> None:
    """Cut, written anew, all hashes made anew: found 100 times, between two signed checkpoints."""
    size, every = 600, (100, 200, 300, 400, 500)
    path = (await sign(entries_of(size), tmp_path / "true", every)).path
    draw = random.Random("forged")
    for number in range(ROUNDS):
        entries = entries_of(size)
        _kind, at = recomputed(entries, draw)
        forged = await sign(entries, tmp_path / "forged" / str(number), key=OTHER_KEY)
        forge_tiles(path.parent, forged.path.parent)
        verdict = await held(entries, path)
        assert not verdict.exact
        fault = verdict.faults[0]
        assert ("changed", at // 100 * 100) == (fault.kind, fault.offset)
        assert f"one of the records {fault.offset} to {fault.offset + 99} " in fault.detail
        assert "cannot be used" in verdict.notes[0]


async def test_a_checkpoint_alone_tells_that_not_where(tmp_path: Path) -> None:
    """Without the kept hashes, and without an older checkpoint, there is only yes or no."""
    path = (await sign(entries_of(300), tmp_path / "full")).path
    alone = tmp_path / "alone.checkpoint"
    alone.write_bytes(path.read_bytes())
    assert () == (await held(entries_of(300), alone)).faults
    entries = entries_of(300)
    flipped(entries, random.Random(1))
    verdict = await held(entries, alone)
    assert (False, 0) == (verdict.exact, verdict.faults[0].offset)
    assert "one of the records 0 to 299 is" in verdict.faults[0].detail
    short = await held(entries_of(200), alone)
    assert ("truncated", 200, False) == (
        short.faults[0].kind, short.faults[0].offset, short.exact,
    )  # fmt: skip


async def test_one_forged_tile_leaves_256_records(tmp_path: Path) -> None:
    """Where one tile is not to be believed, the level above still names its range."""
    signed = await sign(entries_of(1000), tmp_path)
    tile = signed.path.parent / "tile" / "0" / "001"
    tile.write_bytes(bytes(8192))
    whole = await held(entries_of(1000), signed.path)
    assert ((), True) == (whole.faults, whole.exact)
    assert "tile 1 of level 0 is not what was signed" in whole.notes[0]
    entries = entries_of(1000)
    entries[300] = entry(300, "forged")
    entries[900] = entry(900, "forged")
    verdict = await held(entries, signed.path)
    assert [("changed", 256), ("changed", 900)] == [
        (one.kind, one.offset) for one in verdict.faults
    ]
    assert not verdict.exact
    entries[300] = entry(300)
    only = await held(entries, signed.path)
    assert [("changed", 900, True)] == [(one.kind, one.offset, only.exact) for one in only.faults]
    tile.unlink()
    assert "is missing" in (await held(entries_of(1000), signed.path)).notes[0]


async def test_who_signs_with_another_key_is_refused(tmp_path: Path) -> None:
    """A forged history signed by its forger: the checkpoint is refused, by its file's name."""
    forged = await sign(entries_of(30), tmp_path, key=OTHER_KEY)
    with pytest.raises(BadCheckpoint, match=r"30\.checkpoint: no signature of the key"):
        gather([tmp_path], KEY.public)
    changed = forged.path.read_bytes().replace(b"\n30\n", b"\n29\n")
    forged.path.write_bytes(changed)
    with pytest.raises(BadCheckpoint, match="the signature of"):
        gather([forged.path], OTHER_KEY.public)


async def test_a_signer_that_signed_two_histories_is_found(tmp_path: Path) -> None:
    """U2: an older checkpoint of another history stands against the signer, not the log."""
    other = [*entries_of(50), *(entry(number, "other") for number in range(50, 60))]
    old = await sign(other, tmp_path / "other")
    new = await sign(entries_of(100), tmp_path / "true")
    (new.path.parent / old.path.name).write_bytes(old.path.read_bytes())
    verdict = await held(entries_of(100), new.path)
    assert ["inconsistent"] == [one.kind for one in verdict.faults]
    assert "checkpoint of 60 records is of another history" in verdict.faults[0].detail


class Holed(MemoryLog):
    """A log in which some offsets are not there, or come twice, and some cannot be read."""

    def __init__(self, entries: Sequence[Entry], bad: str, at: int) -> None:
        super().__init__()
        self._store = log_of(entries)._store
        self._bad, self._at = bad, at

    async def read(
        self, topic: str, partition: int, start: int, limit: int = 1000, wait_s: float = 0.0
    ) -> list[Record]:
        """Return the records but for what is bad."""
        found = await super().read(topic, partition, start, limit)
        if self._bad == "storage" and start <= self._at < start + limit:
            raise LogDamaged(f"page of {self._at} is torn")
        if self._bad == "hole":
            return [one for one in found if one.offset != self._at]
        if self._bad == "overlap":
            return [one for each in found for one in [each] * (1 + (each.offset == self._at))]
        return found


@pytest.mark.parametrize("bad", ["hole", "overlap", "storage"])
async def test_bad_places_are_named_to_the_record(bad: str, tmp_path: Path) -> None:
    """A hole, an offset that comes twice, a record that the storage cannot give: by offset."""
    path = (await sign(entries_of(300), tmp_path)).path
    draw = random.Random(bad)
    for at in draw.sample(range(299), 20):
        log = Holed(entries_of(300), bad, at)
        verdict = (await check_log(log, PREFIX, gather([path], KEY.public)))[0]
        assert (bad, at, True) == (verdict.faults[0].kind, verdict.faults[0].offset, verdict.exact)


async def archived(entries: list[Entry], folder: Path) -> Path:
    """Return an archive of a log, 20 records a file."""
    await Follower(log_of(entries), PREFIX, folder, Options(("events",), every=20)).once()
    return folder


async def of_archive(folder: Path, path: Path) -> Verdict:
    """Return what a folder is, held against a checkpoint: with nothing but files."""
    async with ArchiveLog(folder) as log:
        return (await check_log(log, PREFIX, gather([path], KEY.public)))[0]


async def test_a_missing_or_changed_file_is_named_with_its_records(tmp_path: Path) -> None:
    """Offline: a file that is gone, cut, or has one bit flipped, 100 times each."""
    path = (await sign(entries_of(200), tmp_path / "checkpoints")).path
    folder = await archived(entries_of(200), tmp_path / "archive")
    assert () == (await of_archive(folder, path)).faults
    files = sorted(folder.rglob("*.parquet"))
    assert 10 == len(files)
    draw = random.Random("files")
    for number in range(3 * ROUNDS):
        file = draw.choice(files)
        first = int(file.name[:20])
        data = file.read_bytes()
        if number % 3 == 0:
            file.unlink()
        elif number % 3 == 1:
            file.write_bytes(data[: draw.randrange(len(data))])
        else:
            bad = bytearray(data)
            bad[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
            file.write_bytes(bad)
        verdict = await of_archive(folder, path)
        kind = "storage"
        if not file.exists() and file in (files[0], files[-1]):
            kind = "hole" if file == files[0] else "truncated"
        assert (kind, first) == (verdict.faults[0].kind, verdict.faults[0].offset)
        assert verdict.exact
        assert f"{first} to {first + 19}" in verdict.faults[0].detail
        file.write_bytes(data)
    assert () == (await of_archive(folder, path)).faults


async def test_an_archive_of_a_forged_log_is_found_too(tmp_path: Path) -> None:
    """Who can write the folder can write whole files with right sums: the signed root tells."""
    path = (await sign(entries_of(400), tmp_path / "checkpoints")).path
    draw = random.Random("archive")
    for number, kind in enumerate(KINDS):
        entries = entries_of(400)
        wanted = kind(entries, draw)
        fault = (await of_archive(await archived(entries, tmp_path / str(number)), path)).faults[0]
        assert wanted == (fault.kind, fault.offset)


@pytest.mark.parametrize("column", ["kind", "value"])
async def test_an_archive_is_proved_by_its_bytes(
    column: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Typed columns that lie change nothing that was signed; bytes do, whatever the columns say."""
    path = (await sign(entries_of(40), tmp_path / "checkpoints")).path

    def lying(topic: str, records: Sequence[Record]) -> Any:
        table = table_of(topic, records)
        at, of = table.column_names.index(column), table.schema.field(column)
        told = ["claim" if column == "kind" else b"{}" for _ in records]
        return table.set_column(at, of, pa.chunked_array([told], of.type))

    monkeypatch.setattr(archive_files, "table_of", lying)
    folder = await archived(entries_of(40), tmp_path / "archive")
    assert {"columns"} == {one.kind for one in check_archive(folder).wrong}
    faults = (await of_archive(folder, path)).faults
    assert ("rewritten" if column == "value" else "") == "".join(one.kind for one in faults)


async def test_a_partition_that_is_gone_is_a_fault(tmp_path: Path) -> None:
    """A checkpoint of a partition that the log does not have: all of its records are missing."""
    log = log_of(entries_of(10))
    log._store.topics[TOPIC].append(
        [one._replace(partition=1) for one in log._store.topics[TOPIC][0]]
    )
    await sign_log(log, PREFIX, tmp_path, KEY, 5)
    evidence = gather([tmp_path], KEY.public)
    assert [(), ()] == [one.faults for one in await check_log(log, PREFIX, evidence)]
    log._store.topics[TOPIC].pop()
    verdicts = await check_log(log, PREFIX, evidence)
    assert [0, 1] == [len(one.faults) for one in verdicts]
    fault = verdicts[1].faults[0]
    assert ("truncated", 1, 0) == (fault.kind, fault.partition, fault.offset)
