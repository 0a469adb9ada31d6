"""The bell of a log in a file: who waits hears it, and need not keep looking."""

from __future__ import annotations

import asyncio
import stat
import time
from typing import TYPE_CHECKING

import pytest

from ledger.log import bell
from ledger.log.bell import Bell
from ledger.log.port import Entry, TopicState
from ledger.log.sqlite import SqliteLog
from tests.log_contract import DurableLogContract

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

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


async def test_a_bell_that_was_taken_away_is_hung_anew(
    pair: tuple[SqliteLog, SqliteLog], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody tidied up: the next one is heard, too."""
    one, other = pair
    monkeypatch.setattr(bell, "MISSED_S", 3600.0)
    reader = await waiting(one)
    file = path.with_name("log.sqlite-bell")
    file.unlink()
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
