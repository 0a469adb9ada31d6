"""An archive's folder: the same log, read only; what is missing, cut off or changed is named."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ledger.archive import files as files_module
from ledger.archive.check import check_archive
from ledger.archive.columns import COLUMNS, SCHEMA, table_of
from ledger.archive.compact import compact
from ledger.archive.files import Builder, Reader
from ledger.archive.folder import File
from ledger.archive.follow import Follower, Options, Written
from ledger.log.archive import ArchiveLog
from ledger.log.memory import MemoryLog
from ledger.log.port import (
    Entry,
    LogClosed,
    LogDamaged,
    LogError,
    LogUnavailable,
    Record,
    TopicState,
    UnknownTopic,
)
from ledger.log.url import BadLogUrl, open_log
from ledger.reading import Damaged
from ledger.verify import verify_log
from tests.ledgers import PREFIX, Site

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

EVENTS = f"{PREFIX}.events"
USAGE = f"{PREFIX}.usage"


async def site_with(requests: int) -> Site:
    """Return a site on a memory log with some requests: five records, and one for each."""
    site = Site(MemoryLog())
    await site.start()
    for number in range(requests):
        await site.submit(f"r{number}", 1)
    return site


async def archive(site: Site, folder: Path, every: int = 5, *topics: str) -> list[Written]:
    """Archive what a site's log has now; return the files that were written."""
    written: list[Written] = []
    options = Options(topics or ("events",), every)
    await Follower(site.log, PREFIX, folder, options, written=written.append).once()
    return written


def files(folder: Path, pattern: str = "*.parquet") -> dict[str, bytes]:
    """Return the files below a folder by name."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob(pattern))
    }


def name(first: int, last: int, topic: str = EVENTS, partition: int = 0) -> str:
    """Return the name of a range's file."""
    return f"{topic}/{partition}/{first:020d}-{last:020d}.parquet"


async def test_the_folder_is_the_same_log(tmp_path: Path) -> None:
    """Every record is there, byte for byte, and verifies to the same digest."""
    site = await site_with(10)
    done = await archive(site, tmp_path / "out")
    assert [(one.added, one.full) for one in done] == [(5, True), (5, True), (5, True)]
    async with open_log(f"archive:{tmp_path / 'out'}") as log:
        assert await log.partitions(EVENTS) == 1
        assert (await log.begin(EVENTS, 0), await log.end(EVENTS, 0)) == (0, 15)
        assert await log.describe_topics([EVENTS, "x"]) == {EVENTS: TopicState(1)}
        wanted = await site.log.read(EVENTS, 0, 0)
        assert await log.read(EVENTS, 0, 0) == wanted[:5]
        found = [record for at in range(15) for record in await log.read(EVENTS, 0, at, 1)]
        assert found == wanted
        assert await log.read(EVENTS, 0, 7, 100) == wanted[7:10]
        assert await log.read(EVENTS, 0, 15, wait_s=0.01) == []
        assert await log.values(EVENTS, 0, 8, 1) == await site.log.values(EVENTS, 0, 8, 1)
        assert await log.values(EVENTS, 0, 15) == []
        report = await verify_log(log, PREFIX)
    assert report.ok
    assert report.digest == (await verify_log(site.log, PREFIX)).digest


async def test_any_bytes_come_back(tmp_path: Path) -> None:
    """Missing and empty are different; headers keep order, repetition and any bytes."""
    log = MemoryLog()
    await log.create_topics({EVENTS: TopicState(2)})
    entries = [
        Entry(None, None),
        Entry(b"", b""),
        Entry(b"\x00\xff", bytes(range(256)), (("ce_type", b"\xff"),)),
        Entry(None, b"value", (("empty", b""), ("again", b"1"), ("again", b"2"))),
        Entry(b"key", b'{"seq":99999999999999999999,"source":[1]}', (("n-\u00fc", b"\x00"),)),
        Entry(b"key", b"[" * 10_000),
    ]
    await log.append(EVENTS, 1, entries)
    await Follower(log, PREFIX, tmp_path).once()
    async with ArchiveLog(tmp_path) as found:
        assert await found.read(EVENTS, 1, 0) == await log.read(EVENTS, 1, 0)
        assert await found.end(EVENTS, 0) == 0
    assert check_archive(tmp_path).wrong == ()


async def test_files_are_plain_parquet_with_typed_columns(tmp_path: Path) -> None:
    """Names say what is in a file, and each column says of a record what the record says."""
    site = await site_with(3)
    await archive(site, tmp_path)
    assert [name(0, 4), name(5, 7)] == list(files(tmp_path))
    assert [one.name for one in COLUMNS] == SCHEMA.names
    table = pq.read_table(tmp_path / name(5, 7), partitioning=None)
    assert table.column_names == SCHEMA.names
    for row in table.to_pylist():
        record = orjson.loads(row["value"])
        assert row["type"] == "io.gpuledger.ledger.decision.v1"
        assert [row["source_topic"], row["source_offset"]] == record["source"]
        said = {
            "kind": record["kind"],
            "cell": record["cell"],
            "seq": record["seq"],
            "token": record["token"],
            "input_type": record["input"]["type"],
            "decided_us": record["time_us"],
            "code": record["outcome"]["code"],
            "events": len(record["events"]),
        }
        assert said == {key: row[key] for key in said}
    claim = pq.read_table(tmp_path / name(0, 4), partitioning=None).to_pylist()[0]
    assert (claim["kind"], claim["cell"], claim["code"]) == ("claim", None, None)


async def test_the_same_range_is_the_same_file(tmp_path: Path) -> None:
    """However often a run was ended and begun again: the same names and the same bytes."""
    site = await site_with(0)
    seen: set[str] = set()
    for number in range(18):
        await archive(site, tmp_path / "often", 7)
        seen |= set(files(tmp_path / "often"))
        await site.submit(f"r{number}", 1)
    await archive(site, tmp_path / "often", 7)
    await archive(site, tmp_path / "once", 7)
    assert files(tmp_path / "once") == files(tmp_path / "often")
    assert [name(0, 6), name(7, 13), name(14, 20), name(21, 22)] == list(files(tmp_path / "once"))
    assert name(7, 9) in seen


async def test_compacted_is_what_a_follower_would_have_written(tmp_path: Path) -> None:
    """Compaction merges complete stretches only, gives the same bytes, and is idempotent."""
    site = await site_with(20)
    await archive(site, tmp_path / "small", 3)
    await archive(site, tmp_path / "large", 12)
    before = files(tmp_path / "small")
    done = compact(tmp_path / "small", 12)
    assert [(0, 11, 4), (12, 23, 4)] == [
        (one.file.first, one.file.last, len(one.files)) for one in done
    ]
    after = files(tmp_path / "small")
    assert {key: after[key] for key in (name(0, 11), name(12, 23))}.items() <= files(
        tmp_path / "large"
    ).items()
    assert after[name(24, 24)] == before[name(24, 24)]
    assert compact(tmp_path / "small", 12) == []
    async with ArchiveLog(tmp_path / "small") as log:
        assert (await verify_log(log, PREFIX)).ok
    # The follower goes on behind it as if nothing had been.
    await site.submit("later", 1)
    assert [(24, 25)] == [
        (one.file.first, one.file.last) for one in await archive(site, tmp_path / "small", 3)
    ]


async def test_large_records_end_groups_and_files_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes are limited too, at the same place whatever was archived when."""
    monkeypatch.setattr(files_module, "GROUP_BYTES", 1000)
    monkeypatch.setattr(files_module, "FILE_BYTES", 3000)
    monkeypatch.setattr("ledger.archive.follow.FILE_BYTES", 3000)
    monkeypatch.setattr("ledger.archive.compact.FILE_BYTES", 3000)
    log = MemoryLog()
    await log.create_topics({EVENTS: TopicState(1)})
    for number in range(40):
        await log.append(EVENTS, 0, [Entry(b"c", b"%d" % number * 200)])
        await Follower(log, PREFIX, tmp_path / "often", Options(("events",), 1000)).once()
    await Follower(log, PREFIX, tmp_path / "once", Options(("events",), 1000)).once()
    assert files(tmp_path / "often") == files(tmp_path / "once")
    assert len(files(tmp_path / "once")) > 3
    first = min((tmp_path / "once").rglob("*.parquet"))
    assert pq.ParquetFile(first).num_row_groups > 2
    async with ArchiveLog(tmp_path / "once") as found:
        read = [record for at in range(40) for record in await found.read(EVENTS, 0, at, 1)]
    assert read == await log.read(EVENTS, 0, 0)
    assert compact(tmp_path / "once", 1000) == [], "together they would be too large"


async def test_usage_and_other_topics(tmp_path: Path) -> None:
    """Other topics come along when asked for, empty partitions too; ``usage`` always."""
    site = await site_with(2)
    await site.log.append(USAGE, 3, [Entry(b"n1", b'{"sm":7}', (("ce_type", b"x.usage.v1"),))] * 7)
    await archive(site, tmp_path, 5, *Options().topics, "requests", "replies")
    async with ArchiveLog(tmp_path) as log:
        assert await log.partitions(f"{PREFIX}.replies") == 4
        assert await log.end(f"{PREFIX}.requests", 0) == 5
        assert await log.read(USAGE, 3, 0) == (await site.log.read(USAGE, 3, 0))[:5]
        assert await log.end(USAGE, 0) == 0
        with pytest.raises(UnknownTopic, match="all-topics"):
            await log.partitions(f"{PREFIX}.orders")
        with pytest.raises(UnknownTopic):
            await log.read(EVENTS, 1, 0)
    row = pq.read_table(tmp_path / name(5, 6, USAGE, 3), partitioning=None).to_pylist()[0]
    assert (row["type"], row["kind"]) == ("x.usage.v1", None)


async def test_nothing_can_be_written(tmp_path: Path) -> None:
    """An archive is evidence: no append, no topic."""
    site = await site_with(1)
    await archive(site, tmp_path)
    log = ArchiveLog(tmp_path)
    with pytest.raises(LogError, match="cannot be written"):
        await log.append(EVENTS, 0, [Entry(b"c", b"{}")])
    with pytest.raises(LogError, match="is an archive"):
        await log.create_topics({"x": TopicState(1)})
    await log.close()
    with pytest.raises(LogClosed):
        await log.end(EVENTS, 0)


async def test_c53_what_is_missing_or_half_is_named(tmp_path: Path) -> None:
    """C53: a file that is gone or half is named with what it held, and rebuilt from the log."""
    site = await site_with(10)
    await archive(site, tmp_path)
    middle = tmp_path / name(5, 9)
    whole = middle.read_bytes()

    async def fault() -> str:
        async with ArchiveLog(tmp_path) as log:
            with pytest.raises(LogDamaged) as caught:
                await log.read(EVENTS, 0, 7)
            report = await verify_log(log, PREFIX)
        assert [(one.kind, one.offset) for one in report.faults] == [("storage", 5)]
        assert [one.first for one in check_archive(tmp_path).wrong if one.kind != "hole"] == (
            [5] if middle.exists() else []
        )
        return str(caught.value)

    for size in (0, 7, len(whole) // 2, len(whole) - 1):
        middle.write_bytes(whole[:size])
        said = await fault()
        assert "offsets 5 to 9" in said
        assert str(middle) in said
        assert "move it out" in said
    middle.unlink()
    assert "3 entries missing: 7 to 9" in await fault()
    (hole,) = check_archive(tmp_path).wrong
    assert (hole.kind, hole.first, hole.detail) == ("hole", 5, "no file has the offsets 5 to 9")
    await archive(site, tmp_path)
    assert middle.read_bytes() == whole, "rebuilt from the event log"
    async with ArchiveLog(tmp_path) as log:
        assert (await verify_log(log, PREFIX)).ok


async def test_a_flipped_bit_is_found_wherever_it_is(tmp_path: Path) -> None:
    """In the rows, the typed columns, the footer, the hash itself: the file is named."""
    site = await site_with(1)
    await archive(site, tmp_path)
    path = tmp_path / name(0, 4)
    whole = path.read_bytes()
    missed = []
    file = File(EVENTS, 0, 0, 4, path)
    # A step that shares nothing with the alignment of what is in a file.
    for at in [*range(0, len(whole), 13), *range(len(whole) - 60, len(whole))]:
        changed = bytearray(whole)
        changed[at] ^= 1 << at % 8
        path.write_bytes(changed)
        try:
            Reader(file).close()
        except LogDamaged as error:
            assert str(path) in str(error)  # noqa: PT017 - any of thousands may not raise
        else:
            missed.append(at)
    assert missed == []
    path.write_bytes(whole)
    Reader(file).close()


async def test_typed_columns_that_lie_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole file whose columns are not those of its records is not accepted by a check."""
    site = await site_with(1)
    await archive(site, tmp_path)
    path = tmp_path / name(0, 4)
    builder = Builder(EVENTS, 0, 1)

    def lying(topic: str, records: Sequence[Record]) -> Any:
        kinds = [["decision"] * len(records)]
        return table_of(topic, records).set_column(3, SCHEMA.field("kind"), kinds)

    monkeypatch.setattr(files_module, "table_of", lying)
    for record in await site.log.read(EVENTS, 0, 0, 5):
        builder.add(record)
    path.write_bytes(builder.finish()[2])
    monkeypatch.undo()
    (wrong,) = check_archive(tmp_path).wrong
    assert (wrong.kind, wrong.first) == ("columns", 0)


async def test_a_file_in_another_place_is_named(tmp_path: Path) -> None:
    """A name that is not the file's own is damage, and so are files that overlap."""
    site = await site_with(10)
    await archive(site, tmp_path)
    shutil.copy(tmp_path / name(0, 4), tmp_path / name(5, 9))
    async with ArchiveLog(tmp_path) as log:
        with pytest.raises(LogDamaged, match=r"holds .* offsets 0 to 4: it has been renamed"):
            await log.read(EVENTS, 0, 5)
    shutil.copy(tmp_path / name(0, 4), tmp_path / name(3, 7))
    with pytest.raises(LogDamaged, match="offsets 3 to 4 are in two files"):
        await ArchiveLog(tmp_path).end(EVENTS, 0)
    assert [one.kind for one in check_archive(tmp_path).wrong] == ["overlap"]
    (tmp_path / name(3, 7)).rename(tmp_path / name(9, 7))
    with pytest.raises(LogDamaged, match="no such name"):
        await ArchiveLog(tmp_path).end(EVENTS, 0)


async def test_a_missing_partition_is_named(tmp_path: Path) -> None:
    """A file knows how many partitions its topic has."""
    log = MemoryLog()
    await log.create_topics({EVENTS: TopicState(3)})
    for number in range(3):
        await log.append(EVENTS, number, [Entry(b"c", b"x")])
    await Follower(log, PREFIX, tmp_path).once()
    shutil.rmtree(tmp_path / EVENTS / "2")
    with pytest.raises(LogDamaged, match="3 partitions, but the folders 2 to 2"):
        await ArchiveLog(tmp_path).partitions(EVENTS)
    assert {one.kind for one in check_archive(tmp_path).wrong} == {"missing_partition"}
    shutil.rmtree(tmp_path / EVENTS / "0")
    with pytest.raises(LogDamaged, match="events/0: its folder is missing"):
        await ArchiveLog(tmp_path).partitions(EVENTS)


async def test_no_archive(tmp_path: Path) -> None:
    """A folder that is none, or holds none, is said to be none."""
    for folder in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(LogUnavailable, match="no archive"):
            ArchiveLog(folder)
        with pytest.raises(LogUnavailable, match="no archive"):
            check_archive(folder)
    with pytest.raises(BadLogUrl):
        open_log("archive:")


async def test_a_log_with_a_hole_is_not_archived(tmp_path: Path) -> None:
    """An archive never closes a gap; it ends before it."""
    site = await site_with(10)
    assert isinstance(site.log, MemoryLog)
    del site.log._store.topics[EVENTS][0][7:9]
    with pytest.raises(Damaged, match="7 to 8 are missing"):
        await archive(site, tmp_path)
    assert [name(0, 4)] == list(files(tmp_path))


class Forgetful(MemoryLog):
    """A log whose retention has removed what lies before ``oldest``."""

    oldest = 0

    async def begin(self, topic: str, partition: int) -> int:
        """See `Log.begin`."""
        return min(self.oldest, await self.end(topic, partition))

    async def read(
        self, topic: str, partition: int, start: int, limit: int = 1000, wait_s: float = 0.0
    ) -> list[Record]:
        """See `Log.read`."""
        return await super().read(topic, partition, max(start, self.oldest), limit, wait_s)


async def test_what_was_lost_before_it_was_archived_is_said(tmp_path: Path) -> None:
    """A log that begins behind the archive's end stops the follower; nothing is skipped."""
    log = Forgetful()
    await log.create_topics({EVENTS: TopicState(1), USAGE: TopicState(1)})
    await log.append(EVENTS, 0, [Entry(b"c", b"x")] * 8)
    await log.append(USAGE, 0, [Entry(b"c", b"x")] * 8)
    usage, events = Options(("usage",), 5), Options(("events",), 5)
    log.oldest = 3
    with pytest.raises(Damaged, match="0 to 2 are no longer in the log"):
        await Follower(log, PREFIX, tmp_path, events).once()
    notes: list[str] = []
    await Follower(log, PREFIX, tmp_path, usage, note=notes.append).once()
    assert notes == [f"{USAGE}/0: the archive begins at 3: the log no longer has what was before"]
    assert {name(3, 4, USAGE), name(5, 7, USAGE)} == set(files(tmp_path))
    await log.append(USAGE, 0, [Entry(b"c", b"y")] * 8)
    log.oldest = 10
    with pytest.raises(Damaged, match="8 to 9 are no longer in the log") as caught:
        await Follower(log, PREFIX, tmp_path, usage).once()
    assert (caught.value.topic, caught.value.offset) == (USAGE, 8)
    assert {name(3, 4, USAGE), name(5, 7, USAGE)} == set(files(tmp_path))


async def test_another_log_is_not_mixed_in(tmp_path: Path) -> None:
    """A log that is shorter, differs at the last record, or has another count is refused."""
    site = await site_with(6)
    await archive(site, tmp_path)
    before = files(tmp_path)
    shorter = await site_with(1)
    with pytest.raises(Damaged, match="the log ends at 6, the archive at 11"):
        await archive(shorter, tmp_path)
    with pytest.raises(Damaged, match="another record than the archive"):
        await archive(await site_with(9), tmp_path)
    wider = MemoryLog()
    await wider.create_topics({EVENTS: TopicState(2)})
    with pytest.raises(Damaged, match=r"2 partitions, the archive in .* has 1"):
        await Follower(wider, PREFIX, tmp_path, Options(("events",))).once()
    assert before == files(tmp_path)


async def test_it_follows_until_it_is_stopped(tmp_path: Path) -> None:
    """Full files come while it runs, the tail with the flush and at the end; readers see them."""
    site = await site_with(0)
    stop = asyncio.Event()
    options = Options(("events",), 4, flush_s=1000.0, poll_s=0.01)
    loop = asyncio.get_running_loop()
    ends: asyncio.Queue[int] = asyncio.Queue()

    def written(one: Written) -> None:
        loop.call_soon_threadsafe(ends.put_nowait, one.file.last)

    follower = Follower(site.log, PREFIX, tmp_path, options, written=written)
    running = asyncio.create_task(follower.follow(stop))
    assert [3, 4] == [await ends.get(), await ends.get()]
    assert [name(0, 3), name(4, 4)] == list(files(tmp_path)), "the first round flushes"
    async with ArchiveLog(tmp_path) as log:
        waiting = asyncio.create_task(log.read(EVENTS, 0, 5, wait_s=30.0))
        for number in range(4):
            await site.submit(f"r{number}", 1)
        assert [5, 6, 7] == [one.offset for one in await waiting]
        assert 7 == await ends.get()
        assert [name(0, 3), name(4, 7)] == list(files(tmp_path))
        # What the reader had open has been superseded; the log it sees is the same.
        assert 4 == (await log.read(EVENTS, 0, 4, 1))[0].offset
    stop.set()
    await running
    assert [name(0, 3), name(4, 7), name(8, 8)] == list(files(tmp_path))


async def test_a_reader_whose_file_is_superseded_goes_on(tmp_path: Path) -> None:
    """A file that a compaction has removed is found again in the larger one."""
    site = await site_with(15)
    await archive(site, tmp_path)
    async with ArchiveLog(tmp_path) as log:
        assert len(await log.read(EVENTS, 0, 0)) == 5
        compact(tmp_path, 10)
        assert [one.offset for one in await log.read(EVENTS, 0, 5)] == [5, 6, 7, 8, 9]
        (tmp_path / name(10, 19)).unlink()
        with pytest.raises(LogDamaged, match="the file with offset 10 has gone"):
            await log.read(EVENTS, 0, 10)
        assert await log.end(EVENTS, 0) == 10


async def test_two_followers_of_one_folder(tmp_path: Path) -> None:
    """They get in each other's way, not in the files'."""
    site = await site_with(30)
    options = Options(("events",), 2)
    both = [Follower(site.log, PREFIX, tmp_path / "two", options) for _ in range(2)]
    await asyncio.gather(*(one.once() for one in both))
    await archive(site, tmp_path / "one", 2)
    assert files(tmp_path / "one") == files(tmp_path / "two")


async def test_a_whole_file_with_other_columns_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sealed anew by who took a column away: it is damage for every reader, and no traceback."""
    site = await site_with(1)
    await archive(site, tmp_path)
    path = tmp_path / name(0, 4)
    left = [one for one in SCHEMA.names if one != "value"]
    monkeypatch.setattr(files_module, "SCHEMA", pa.schema([SCHEMA.field(one) for one in left]))
    monkeypatch.setattr(files_module, "table_of", lambda *of: table_of(*of).select(left))
    builder = Builder(EVENTS, 0, 1)
    for record in await site.log.read(EVENTS, 0, 0, 5):
        builder.add(record)
    path.write_bytes(builder.finish()[2])
    monkeypatch.undo()
    assert [one.kind for one in check_archive(tmp_path).wrong] == ["damaged"]
    async with ArchiveLog(tmp_path) as log:
        with pytest.raises(LogDamaged, match="has other columns than its format"):
            await log.read(EVENTS, 0, 0)
