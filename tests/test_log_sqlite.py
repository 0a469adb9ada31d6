"""The log in a SQLite file: the contract, several processes, crashes and damage."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ledger.log.port import (
    Entry,
    LogDamaged,
    LogError,
    LogUnavailable,
    TopicState,
    UnknownTopic,
)
from ledger.log.sqlite import SqliteLog
from tests.log_contract import DurableLogContract, entries, read_all, values

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.log.port import Log

ROOT = Path(__file__).resolve().parent.parent
BATCH = 50

#: Appends batches of records "tag-batch-index", and prints each batch's first offset.
WRITER = """
import asyncio, sys
from ledger.log.port import Entry
from ledger.log.sqlite import SqliteLog

async def main(path, tag, batches, size):
    log = SqliteLog(path)
    for batch in range(batches):
        new = [Entry(b"k", f"{tag}-{batch}-{index}".encode() * 20) for index in range(size)]
        print((await log.append("t", 0, new))[0], flush=True)
    await log.close()

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
"""


def start_writer(path: Path, tag: str, batches: int, size: int) -> subprocess.Popen[str]:
    """Start a process that appends to the log at ``path``."""
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), tag, str(batches), str(size)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where this test's log is; the name needs quoting in a URI."""
    return tmp_path / "a log#1?.sqlite"


class TestSqliteLog(DurableLogContract):
    """The contract."""

    @pytest.fixture
    def opener(self, path: Path) -> Callable[[], Log]:
        """Return a function that opens the same file again."""
        return lambda: SqliteLog(path)


async def test_two_processes_append_at_once(path: Path) -> None:
    """Offsets are dense, and each process's batches are whole and in its order."""
    log = SqliteLog(path)
    await log.create_topics({"t": TopicState(1)})
    writers = [start_writer(path, tag, 30, BATCH) for tag in ("a", "b")]
    answers = [writer.communicate(timeout=120)[0] for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0]
    firsts = [[int(line) for line in answer.split()] for answer in answers]
    assert sorted(firsts[0] + firsts[1]) == list(range(0, 60 * BATCH, BATCH))
    found = values(await read_all(log, "t", 0))
    for tag, mine in zip("ab", firsts, strict=True):
        for batch, first in enumerate(mine):
            wanted = [f"{tag}-{batch}-{index}".encode() * 20 for index in range(BATCH)]
            assert found[first : first + BATCH] == wanted
    await log.close()


async def test_a_killed_writer_leaves_whole_batches_only(path: Path) -> None:
    """After kill -9 in the middle of appending, all that was acknowledged is there, and no part."""
    log = SqliteLog(path)
    await log.create_topics({"t": TopicState(1)})
    acknowledged = 0
    for round_number in range(3):
        writer = start_writer(path, f"r{round_number}", 100_000, 500)
        assert writer.stdout is not None
        for _ in range(4 + round_number):
            acknowledged = int(writer.stdout.readline()) + 500
        # Somewhere within the next batch, which takes about 10 ms.
        await asyncio.sleep(0.003 * round_number)
        writer.kill()
        rest = writer.stdout.read().split()
        acknowledged = int(rest[-1]) + 500 if rest else acknowledged
        writer.wait()
        writer.stdout.close()
        end = await log.end("t", 0)
        assert end % 500 == 0
        assert end >= acknowledged
    found = await read_all(log, "t", 0)
    assert [record.offset for record in found] == list(range(await log.end("t", 0)))
    # The file is sound, and the next writer goes on.
    assert await log.append("t", 0, entries(1)) == [len(found)]
    await log.close()
    check = sqlite3.connect(path)
    assert check.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    check.close()


async def test_a_clock_set_back_does_not_take_time_back(path: Path) -> None:
    """The append time stays at the latest one seen in the partition, also for a new handle."""
    async with SqliteLog(path, clock=lambda: 5_000) as log:
        await log.create_topics({"t": TopicState(2)})
        await log.append("t", 0, entries(1))
    async with SqliteLog(path, clock=lambda: 1_000) as log:
        await log.append("t", 0, entries(1))
        await log.append("t", 1, entries(1))
        assert [each.time_us for each in await log.read("t", 0, 0)] == [5_000, 5_000]
        assert [each.time_us for each in await log.read("t", 1, 0)] == [1_000]


@pytest.mark.parametrize(
    "content",
    [b"this is no database, " * 500, b"\x00" * 4096, b"SQLite format 3\x00" + b"x" * 9000],
)
def test_a_file_of_another_kind(path: Path, content: bytes) -> None:
    """It is refused with the file's name, and not touched."""
    path.write_bytes(content)
    with pytest.raises(LogDamaged, match="a log#1"):
        SqliteLog(path)
    assert path.read_bytes() == content


async def test_a_database_of_another_program(path: Path) -> None:
    """A sound SQLite file that is no log is refused."""
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE t (x)")
    other.close()
    for read_only in (False, True):
        with pytest.raises(LogDamaged, match="not a gpuledger log"):
            SqliteLog(path, read_only=read_only)


async def test_a_log_of_a_later_format(path: Path) -> None:
    """The message names both formats."""
    await SqliteLog(path).close()
    other = sqlite3.connect(path)
    other.execute("PRAGMA user_version = 9")
    other.close()
    with pytest.raises(LogDamaged, match="log format 9, this program reads 1"):
        SqliteLog(path)


def damage(path: Path) -> None:
    """Overwrite the head of every page but the first four."""
    content = bytearray(path.read_bytes())
    for at in range(8192 * 4, len(content), 8192):
        content[at : at + 64] = b"\xff" * 64
    path.write_bytes(content)


async def test_a_damaged_page(path: Path) -> None:
    """Damage in the middle of the file is told when it is read, not passed over."""
    async with SqliteLog(path) as log:
        await log.create_topics({"t": TopicState(1)})
        await log.append("t", 0, [Entry(b"k", os.urandom(2000)) for _ in range(2000)])
    damage(path)
    async with SqliteLog(path) as log:
        with pytest.raises(LogDamaged, match="damaged"):
            await read_all(log, "t", 0)


async def test_another_process_keeps_the_lock(path: Path) -> None:
    """An append gives up after the time-out and says why; reads go on, and so does the log."""
    async with SqliteLog(path, lock_timeout_s=0.2) as log:
        await log.create_topics({"t": TopicState(1)})
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LogUnavailable, match="locked"):
            await log.append("t", 0, entries(1))
        assert await log.read("t", 0, 0) == []
        other.execute("ROLLBACK")
        other.close()
        assert await log.append("t", 0, entries(1)) == [0]


async def test_disk_full(path: Path) -> None:
    """An append that does not fit is refused whole; the log is usable when there is room."""
    async with SqliteLog(path) as log:
        await log.create_topics({"t": TopicState(1)})
        await log.append("t", 0, entries(1))
        log._db.execute("PRAGMA max_page_count = 20")
        with pytest.raises(LogUnavailable, match="disk is full"):
            await log.append("t", 0, [Entry(None, bytes(100_000))] * 20)
        assert await log.end("t", 0) == 1
        log._db.execute("PRAGMA max_page_count = 100000")
        assert await log.append("t", 0, entries(1)) == [1]


def test_a_reader_creates_nothing(path: Path) -> None:
    """A missing file is an error, and stays missing."""
    with pytest.raises(LogUnavailable, match="there is no log"):
        SqliteLog(path, read_only=True)
    assert not path.exists()


async def test_read_only(path: Path) -> None:
    """A reader sees another handle's appends, waits for them, and cannot write."""
    async with SqliteLog(path) as log:
        await log.create_topics({"t": TopicState(1)})
        async with SqliteLog(path, read_only=True) as reader:
            waiting = asyncio.create_task(reader.read("t", 0, 0, wait_s=30.0))
            await asyncio.sleep(0.05)
            await log.append("t", 0, entries(2))
            assert len(await waiting) == 2
            with pytest.raises(LogError, match="reading only"):
                await reader.append("t", 0, entries(1))
            with pytest.raises(LogError, match="readonly"):
                await reader.create_topics({"other": TopicState(1)})


async def test_append_all_is_all_or_nothing(path: Path) -> None:
    """A failure in the second partition takes the first one's records back."""
    async with SqliteLog(path) as log:
        await log.create_topics({"t": TopicState(2)})
        with pytest.raises(UnknownTopic):
            await log.append_all({("t", 0): entries(1), ("t", 2): entries(1)})
        log._db.execute(
            "CREATE TRIGGER fail BEFORE INSERT ON records WHEN new.partition = 1"
            " BEGIN SELECT raise(ABORT, 'no'); END"
        )
        with pytest.raises(LogUnavailable, match="no"):
            await log.append_all({("t", 0): entries(1), ("t", 1): entries(1)})
        assert await log.end("t", 0) == 0


async def test_many_open_at_once(path: Path) -> None:
    """Several processes that create the same file at the same time all get a log."""
    opened = await asyncio.gather(*(asyncio.to_thread(SqliteLog, path) for _ in range(8)))
    await opened[0].create_topics({"t": TopicState(1)})
    for number, log in enumerate(opened):
        assert await log.append("t", 0, entries(1)) == [number]
        await log.close()


async def test_a_reader_that_waits_reads_when_there_is_something_to_read(path: Path) -> None:
    """Waiting takes nothing from the thread that appends and reads, nor do other topics."""
    asked: list[str] = []
    async with SqliteLog(path) as log, SqliteLog(path) as another:
        await log.create_topics(dict.fromkeys(("t", "other"), TopicState(1)))
        log._db.set_trace_callback(asked.append)
        waiting = asyncio.create_task(log.read("t", 0, 0, wait_s=30.0))
        await asyncio.sleep(0.3)
        asked.clear()
        for writer in (log, another):
            await writer.append("other", 0, [Entry(b"k", b"1")])
            await asyncio.sleep(0.1)
        assert not [one for one in asked if one.startswith("SELECT") and "'t'" in one]
        await another.append("t", 0, [Entry(b"k", b"2")])
        async with asyncio.timeout(5.0):
            found = await waiting
    assert [b"2"] == [one.value for one in found]
    assert not path.with_name(f"{path.name}-wal").exists(), "the last to close puts it away"
