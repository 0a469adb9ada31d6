"""The exported folder: the same log, read only; what is missing or cut is named."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from ledger import export
from ledger.export import export_log
from ledger.log.archive import ArchiveLog
from ledger.log.archive_files import MANIFEST, read_manifest, write_manifest
from ledger.log.memory import MemoryLog
from ledger.log.port import (
    Entry,
    LogClosed,
    LogDamaged,
    LogError,
    LogUnavailable,
    TopicState,
    UnknownTopic,
)
from ledger.log.url import BadLogUrl, open_log
from ledger.reading import Damaged
from ledger.verify import verify_log
from tests.ledgers import PREFIX, Site

if TYPE_CHECKING:
    from pathlib import Path

EVENTS = f"{PREFIX}.events"


async def site_with(requests: int) -> Site:
    """Return a site on a memory log with some requests."""
    site = Site(MemoryLog())
    await site.start()
    for number in range(requests):
        await site.submit(f"r{number}", 1)
    return site


def files(folder: Path, pattern: str = "*.parquet") -> dict[str, bytes]:
    """Return the files below a folder by name."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob(pattern))
    }


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a file hold five records."""
    monkeypatch.setattr(export, "ROWS", 5)


async def test_the_folder_is_the_same_log(tmp_path: Path, small_files: None) -> None:
    """Every record is there, byte for byte, and verifies to the same digest."""
    site = await site_with(10)
    done = await export_log(site.log, PREFIX, tmp_path / "out")
    assert (done.records, done.files, done.before) == (15, 3, 0)
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
        report = await verify_log(log, PREFIX)
    assert report.ok
    assert report.digest == (await verify_log(site.log, PREFIX)).digest


async def test_files_are_plain_parquet_named_by_offset(tmp_path: Path, small_files: None) -> None:
    """Anybody can read them: the names say what is in them, the columns are those of a record."""
    site = await site_with(3)
    await export_log(site.log, PREFIX, tmp_path)
    names = list(files(tmp_path))
    assert names == [
        f"{EVENTS}/0/{0:020d}-{4:020d}.parquet",
        f"{EVENTS}/0/{5:020d}-{7:020d}.parquet",
    ]
    table = pq.read_table(tmp_path / names[0], partitioning=None)
    assert table.column_names == ["offset", "time_us", "key", "value", "headers"]
    assert not files(tmp_path, "*.partial")


async def test_a_second_export_adds_what_is_new(tmp_path: Path) -> None:
    """The files of the first stay as they are."""
    site = await site_with(2)
    await export_log(site.log, PREFIX, tmp_path)
    before = files(tmp_path)
    await site.submit("later", 1)
    done = await export_log(site.log, PREFIX, tmp_path)
    assert (done.records, done.files, done.before) == (1, 1, 7)
    assert (await export_log(site.log, PREFIX, tmp_path)).records == 0
    assert before.items() <= files(tmp_path).items()
    async with ArchiveLog(tmp_path) as log:
        assert (await verify_log(log, PREFIX)).ok


async def test_all_topics_and_partitions(tmp_path: Path) -> None:
    """Other topics come along when asked for, empty partitions too."""
    site = await site_with(2)
    await export_log(site.log, PREFIX, tmp_path, ["events", "requests", "replies"])
    async with ArchiveLog(tmp_path) as log:
        assert await log.partitions(f"{PREFIX}.replies") == 4
        assert await log.end(f"{PREFIX}.requests", 0) == 5
        with pytest.raises(UnknownTopic):
            await log.partitions(f"{PREFIX}.orders")
        with pytest.raises(UnknownTopic):
            await log.read(EVENTS, 1, 0)


async def test_nothing_can_be_written(tmp_path: Path) -> None:
    """An export is evidence: no append, no topic."""
    site = await site_with(1)
    await export_log(site.log, PREFIX, tmp_path)
    log = ArchiveLog(tmp_path)
    with pytest.raises(LogError, match="cannot be written"):
        await log.append(EVENTS, 0, [Entry(b"c", b"{}")])
    with pytest.raises(LogError, match="is an export"):
        await log.create_topics({"x": TopicState(1)})
    await log.close()
    with pytest.raises(LogClosed):
        await log.end(EVENTS, 0)


async def test_c53_what_is_missing_or_half_is_named(tmp_path: Path, small_files: None) -> None:
    """C53: a file that is gone, cut or changed is named with the offsets it held."""
    site = await site_with(10)
    await export_log(site.log, PREFIX, tmp_path)
    middle = tmp_path / EVENTS / "0" / f"{5:020d}-{9:020d}.parquet"
    whole = middle.read_bytes()

    async def fault() -> str:
        async with ArchiveLog(tmp_path) as log:
            with pytest.raises(LogDamaged) as caught:
                await log.read(EVENTS, 0, 7)
            report = await verify_log(log, PREFIX)
        assert [(one.kind, one.offset) for one in report.faults] == [("storage", 5)]
        assert str(middle) in report.faults[0].detail
        return str(caught.value)

    middle.write_bytes(whole[: len(whole) // 2])
    assert "offsets 5 to 9" in await fault()
    middle.write_bytes(bytes([*whole[:100], whole[100] ^ 1, *whole[101:]]))
    assert "cut off or changed" in await fault()
    middle.unlink()
    assert "offsets 5 to 9 are missing" in await fault()
    middle.write_bytes(whole)
    async with ArchiveLog(tmp_path) as log:
        assert (await verify_log(log, PREFIX)).ok


async def test_a_list_with_a_hole_is_named(tmp_path: Path, small_files: None) -> None:
    """A file that the list itself lacks is a hole, not the end."""
    site = await site_with(10)
    await export_log(site.log, PREFIX, tmp_path)
    manifest = read_manifest(tmp_path)
    del manifest.topics[EVENTS][0].files[1]
    write_manifest(tmp_path, manifest)
    async with ArchiveLog(tmp_path) as log:
        with pytest.raises(LogDamaged, match="offsets 5 to 9"):
            await log.read(EVENTS, 0, 5)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"v":1,"topics":[]}', '{"v":2,"topics":{}}'])
async def test_a_list_that_is_none(tmp_path: Path, text: str) -> None:
    """A broken list is damage; a folder without one is no export."""
    with pytest.raises(LogUnavailable, match="no exported log"):
        ArchiveLog(tmp_path)
    (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(LogDamaged):
        ArchiveLog(tmp_path)
    with pytest.raises(BadLogUrl):
        open_log("archive:")


async def test_a_log_with_a_hole_is_not_exported(tmp_path: Path) -> None:
    """An export never closes a gap; what it had before stays as it was."""
    site = await site_with(5)
    assert isinstance(site.log, MemoryLog)
    del site.log._store.topics[EVENTS][0][3:5]
    with pytest.raises(Damaged, match="3 to 4 are missing"):
        await export_log(site.log, PREFIX, tmp_path)
    assert not (tmp_path / MANIFEST).exists()
