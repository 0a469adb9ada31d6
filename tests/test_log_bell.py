"""The bell of a log in a file: who waits hears it, and need not keep looking."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from ledger.log import bell
from ledger.log.bell import Bell
from ledger.log.port import Entry, LogClosed, LogUnavailable, TopicState
from ledger.log.sqlite import SqliteLog
from tests.log_contract import DurableLogContract

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from ledger.log.port import Log, Record

#: As long as something may take on a machine under load.
AT_MOST_S = 60.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The log's file."""
    return tmp_path / "log.sqlite"


@pytest.fixture
async def pair(path: Path) -> AsyncIterator[tuple[SqliteLog, SqliteLog]]:
    """Two handles of one log, as two processes have them."""
    async with SqliteLog(path) as one, SqliteLog(path) as other:
        await one.create_topics({"t": TopicState(1)})
        yield one, other


@pytest.fixture
def deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no inotify."""
    monkeypatch.setattr(bell, "_ears", lambda _: None)


def looks_of(log: SqliteLog, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return where each look of a waiting reader is noted from now on."""
    noted: list[str] = []
    glanced = log._glanced

    def look(query: str, *values: object) -> int | None:
        if query.startswith("PRAGMA"):
            noted.append(query)
        return glanced(query, *values)

    monkeypatch.setattr(log, "_glanced", look)
    return noted


async def waiting(log: SqliteLog, start: int = 0) -> asyncio.Task[list[Record]]:
    """Return a reader that waits by now."""
    task = asyncio.create_task(log.read("t", 0, start, wait_s=AT_MOST_S))
    async with asyncio.timeout(AT_MOST_S):
        while log._watcher is None or not log._waiting:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0)
    await asyncio.sleep(0.05)
    return task


class TestLogThatHearsNothing(DurableLogContract):
    """The contract, where there is no inotify: readers look."""

    @pytest.fixture
    def opener(self, path: Path, deaf: None) -> Callable[[], Log]:
        """Return a function that opens the same file again."""
        return lambda: SqliteLog(path)


async def test_nobody_looks_while_nobody_rings(
    pair: tuple[SqliteLog, SqliteLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for the ring that may have been missed; an append of another is heard then."""
    one, other = pair
    monkeypatch.setattr(bell, "MISSED_S", 3600.0)
    reader = await waiting(one)
    assert one._bell.hears
    looks = looks_of(one, monkeypatch)
    await asyncio.sleep(0.2)
    assert [] == looks
    await other.append("t", 0, [Entry(b"k", b"1")])
    (found,) = await asyncio.wait_for(reader, AT_MOST_S)
    assert b"1" == found.value
    assert looks


async def test_a_ring_that_never_comes_is_missed_for_no_longer_than_that(
    pair: tuple[SqliteLog, SqliteLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its writer died before it, or may not open the file."""
    one, other = pair
    monkeypatch.setattr(other._bell, "ring", lambda: None)
    reader = await waiting(one)
    await other.append("t", 0, [Entry(b"k", b"1")])
    assert 1 == len(await asyncio.wait_for(reader, AT_MOST_S))


async def test_a_bell_that_is_rung_all_the_time_is_answered_as_often_as_is_looked(
    pair: tuple[SqliteLog, SqliteLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy log costs who waits for something else no more than looking did."""
    one, other = pair
    one.poll_s = 0.1
    reader = await waiting(one)
    looks, began = looks_of(one, monkeypatch), time.monotonic()
    for _ in range(200):
        other._bell.ring()
        await asyncio.sleep(0.002)
    took_s = time.monotonic() - began
    assert 2 <= len(looks) <= took_s / one.poll_s + took_s / bell.MISSED_S + 2
    reader.cancel()


def move_away(file: Path) -> None:
    """Give a file another name."""
    file.rename(file.with_name("away"))


@pytest.mark.parametrize("take", [Path.unlink, move_away])
async def test_a_bell_that_was_taken_away_is_hung_anew(
    pair: tuple[SqliteLog, SqliteLog],
    path: Path,
    take: Callable[[Path], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Somebody tidied up: the next ring is of another file, and is heard, too."""
    one, other = pair
    monkeypatch.setattr(bell, "MISSED_S", 3600.0)
    reader = await waiting(one)
    file = path.with_name("log.sqlite-bell")
    take(file)
    async with asyncio.timeout(AT_MOST_S):
        while not (file.exists() and one._bell.hears):  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)
    await other.append("t", 0, [Entry(b"k", b"1")])
    assert 1 == len(await asyncio.wait_for(reader, AT_MOST_S))


async def test_who_only_reads_makes_no_bell_and_hears_that_of_others(path: Path) -> None:
    """Without one it looks; the file's rights are those of the log."""
    async with SqliteLog(path) as writer:
        await writer.create_topics({"t": TopicState(1)})
        await writer.append("t", 0, [Entry(b"k", b"1")])
        file = path.with_name("log.sqlite-bell")
        assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(file.stat().st_mode)  # noqa: ASYNC240 - a test
        for there in (True, False):
            if not there:
                file.unlink()
            async with SqliteLog(path, read_only=True) as reader:
                task = await waiting(reader, start=1 if there else 2)
                assert (there, there) == (reader._bell.hears, file.exists())
                await writer.append("t", 0, [Entry(b"k", b"2")])
                assert 1 == len(await asyncio.wait_for(task, AT_MOST_S))


def test_where_nothing_may_be_written_nobody_rings(tmp_path: Path) -> None:
    """That is no error: who reads has no business with it."""
    Bell(tmp_path / "none" / "log.sqlite", read_only=False).ring()
    assert [] == list(tmp_path.iterdir())


async def is_heard(reader: SqliteLog, writer: SqliteLog) -> None:
    """Append by one handle what is waited for by another."""
    task = await waiting(reader, await reader.end("t", 0))
    await writer.append("t", 0, [Entry(b"k", b"1")])
    assert 1 == len(await asyncio.wait_for(task, AT_MOST_S))


def link_away(file: Path) -> None:
    """Make a link to what is not there."""
    file.symlink_to(file.with_name("victim"))


@pytest.mark.parametrize("hang", [os.mkfifo, Path.mkdir, link_away])
async def test_what_is_no_file_is_no_bell(
    path: Path, hang: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe that nobody reads stops nobody, a link makes nothing elsewhere: readers look."""
    monkeypatch.setattr(bell, "MISSED_S", 3600.0)
    hang(path.with_name("log.sqlite-bell"))
    async with SqliteLog(path) as one, SqliteLog(path) as other:
        async with asyncio.timeout(AT_MOST_S):
            await one.create_topics({"t": TopicState(1)})
            await is_heard(one, other)
        assert not one._bell.hears
    assert not path.with_name("victim").exists()


@pytest.mark.parametrize("error", [ImportError, OSError, MemoryError, RuntimeError])
def test_where_inotify_cannot_be_had_nothing_is_heard(
    path: Path, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is in the way: a reader that cannot hear must look."""

    def fail() -> None:
        raise error

    path.touch()
    stub = SimpleNamespace(Inotify=fail, Mask=None)
    monkeypatch.setitem(sys.modules, "asyncinotify", stub)
    mine = Bell(path, read_only=False)
    mine.listen()
    assert not mine.hears


async def test_a_log_has_one_bell_by_all_its_names(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a link, and by a path of where the process is no more."""
    monkeypatch.setattr(bell, "MISSED_S", 3600.0)
    link, elsewhere = path.with_name("link.sqlite"), path.with_name("elsewhere")
    link.symlink_to(path)
    elsewhere.mkdir()
    monkeypatch.chdir(path.parent)
    async with SqliteLog(path.name) as one, SqliteLog(link) as other:
        await one.create_topics({"t": TopicState(1)})
        await is_heard(one, other)
        monkeypatch.chdir(elsewhere)
        await is_heard(other, one)
    bells = [file.name for file in path.parent.rglob("*-bell")]
    assert ["log.sqlite-bell"] == bells


@pytest.mark.parametrize("name", [".", "/"])
def test_a_name_that_is_no_files_is_refused_as_any_log_that_cannot_be_opened(name: str) -> None:
    """A folder is no log, also where no bell could be beside it."""
    with pytest.raises(LogUnavailable):
        SqliteLog(name)


def test_the_bell_that_root_makes_is_its_logs_owners(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever writes the log could not ring it otherwise."""
    path.touch()
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "fchown", lambda _, *whose: given.append(whose))
    Bell(path, read_only=False).ring()
    assert [(path.stat().st_uid, path.stat().st_gid)] == given


async def test_who_hears_is_gone_before_what_it_hears_by_is_closed(
    pair: tuple[SqliteLog, SqliteLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise another file of that number would be taken for it."""
    one, _ = pair
    reader, ends = await waiting(one), []
    close = one._bell.close

    def note() -> None:
        assert one._watcher is not None
        ends.append(one._watcher.done())
        close()

    monkeypatch.setattr(one._bell, "close", note)
    await one.close()
    assert [True] == ends
    with pytest.raises(LogClosed):
        await reader


@pytest.mark.parametrize("read_only", [True, False])
async def test_a_bell_that_comes_later_is_heard_while_one_waits(
    path: Path, monkeypatch: pytest.MonkeyPatch, *, read_only: bool
) -> None:
    """There was none and a reader may not make it, or something else had its place until now."""
    monkeypatch.setattr(bell, "MISSED_S", 0.1)
    async with SqliteLog(path) as writer:
        await writer.create_topics({"t": TopicState(1)})
        file = path.with_name("log.sqlite-bell")
        if not read_only:
            file.mkdir()
        async with SqliteLog(path, read_only=read_only) as reader:
            task = await waiting(reader)
            assert [False] == [reader._bell.hears]
            if not read_only:
                file.rmdir()
            writer._bell.ring()
            async with asyncio.timeout(AT_MOST_S):
                while not reader._bell.hears:  # noqa: ASYNC110 - nothing tells
                    await asyncio.sleep(0.01)
            task.cancel()
