"""The embedded loop on one SQLite file: the default on one machine."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import TYPE_CHECKING

import pytest

from ledger.core.invariants import check
from ledger.log.memory import MemoryLog
from ledger.log.port import LogUnavailable
from ledger.log.sqlite import SqliteLog
from ledger.log.topics import apply
from ledger.shard import Fenced
from processors.embedded import EmbeddedLoop, run
from processors.setup import Refused
from tests.faulty_log import FaultyLog, Killed
from tests.processor_support import (
    TEAM,
    Site,
    Worker,
    cell_on,
    events,
    inventory,
    policy,
    replay,
    settings,
    submit,
    until,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from ledger.log.port import Entry, Log, TopicPartition

PARTITIONS = 2


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """Return a file with the topics of two partitions."""
    path = tmp_path / "ledger.sqlite"
    async with SqliteLog(path) as log:
        await apply(log, "gpuledger", PARTITIONS)
    return path


async def settle(loop: EmbeddedLoop, site: Site) -> None:
    """Step and let the site answer until neither has anything left to do."""
    while await loop.step() + await site.work():
        pass


async def found_a_cell(loop: EmbeddedLoop, site: Site, cell: str, gpus: int = 2) -> None:
    """Make a cell with one node."""
    await site.ask(policy(cell))
    await loop.step()
    await site.observe([inventory(cell, "n1", gpus)])
    await loop.step()


async def effective(log: Log, partition: int = 0) -> list[str]:
    """Return the codes of the partition's effective decisions; the state must be sound."""
    fold, decisions = replay(await events(log, partition))
    assert [each for state in fold.cells.values() for each in check(state)] == []
    return [one["outcome"]["code"] for one in decisions]


async def test_requests_end_to_end(path: Path) -> None:
    """Everything asked is granted in turn, released, cleaned, and answered once."""
    async with SqliteLog(path) as log:
        loop, site = EmbeddedLoop(log, settings()), Site(log)
        await loop.start()
        for partition in range(PARTITIONS):
            cell = cell_on(partition, PARTITIONS)
            await found_a_cell(loop, site, cell)
            await site.ask(submit(cell, f"{cell}-r{number}") for number in range(20))
        await settle(loop, site)
        assert {1} == {len(each) for each in site.final.values()}
        assert 40 == len(site.final)
        for partition in range(PARTITIONS):
            codes = await effective(log, partition)
            # Those that waited are granted by the decision that a proof of clean led to.
            assert (2, 18, 20) == (
                codes.count("granted"),
                codes.count("queued"),
                codes.count("released"),
            )
        await loop.close()


async def test_time_is_the_callers(path: Path) -> None:
    """With a clock of its own the loop makes what is due happen when the clock gets there."""
    clock = [1_700_000_000_000_000]
    async with SqliteLog(path, clock=lambda: clock[0]) as log:
        loop, site = EmbeddedLoop(log, settings(), lambda: clock[0]), Site(log)
        await loop.start()
        cell = cell_on(0, PARTITIONS)
        await found_a_cell(loop, site, cell, gpus=0)
        await site.ask([submit(cell, "r1", max_wait_s=100)])
        await settle(loop, site)
        due_us = loop.next_due_us()
        assert due_us == clock[0] + 100_000_000
        clock[0] = due_us
        assert 1 == await loop.tick()
        assert 1 == await loop.step()
        await site.work()
        assert ["queued", "expired"] == site.answers("r1")
        assert loop.next_due_us() is None
        await loop.close()


async def test_a_file_without_topics_is_refused(tmp_path: Path) -> None:
    """What is missing is named; nothing is made on the way."""
    async with SqliteLog(tmp_path / "empty.sqlite") as log:
        with pytest.raises(Refused, match=r"gpuledger\.requests: topic is missing"):
            await EmbeddedLoop(log, settings()).start()


async def test_answers_swallowed_by_a_crash_are_sent_after_the_restart(path: Path) -> None:
    """The records are in the file, the replies and orders are not: the next loop sends them."""
    async with SqliteLog(path) as log, SqliteLog(path) as other:
        dying = FaultyLog(log, error=Killed)
        loop, site = EmbeddedLoop(dying, settings()), Site(other)
        await loop.start()
        cell = cell_on(0, PARTITIONS)
        await found_a_cell(loop, site, cell)
        await site.ask(submit(cell, name) for name in ("r1", "r2", "r3"))
        dying.break_after("append")
        with pytest.raises(Killed):
            await loop.step()
        assert ["granted", "granted", "queued"] == (await effective(other))[-3:]
        await site.work()
        assert [] == site.answers("r1")
        assert {} == site.orders
        again = EmbeddedLoop(other, settings())
        await again.start()
        await site.work()
        assert [["granted"], ["granted"], ["queued"]] == [
            site.answers(name) for name in ("r1", "r2", "r3")
        ]
        assert 2 == len(site.orders)
        await settle(again, site)
        assert {1} == {len(each) for each in site.final.values()}
        await again.close()


async def test_the_newer_of_two_loops_has_the_file(path: Path) -> None:
    """The older one ends at its next append, whatever both were doing; nothing is doubled."""
    async with SqliteLog(path) as log, SqliteLog(path) as other:
        first, site = EmbeddedLoop(log, settings()), Site(other)
        await first.start()
        cell = cell_on(0, PARTITIONS)
        await found_a_cell(first, site, cell)
        second = EmbeddedLoop(other, settings())
        await second.start()
        await site.ask(submit(cell, f"r{number}") for number in range(5))

        async def race(loop: EmbeddedLoop) -> bool:
            try:
                await loop.step()
            except Fenced:
                return True
            return False

        fenced = await asyncio.gather(race(first), race(second))
        # The older one's void records may lie between the newer one's: they change nothing.
        assert [True, False] == list(fenced)
        await settle(second, site)
        assert 5 == len(site.final)
        assert {1} == {len(each) for each in site.final.values()}
        codes = await effective(other)
        assert 5 == codes.count("granted") + codes.count("queued")


async def test_two_running_loops_do_not_share_a_file(path: Path) -> None:
    """In the foreground too: the older one ends by itself, the newer one serves on."""
    async with SqliteLog(path) as log, SqliteLog(path) as other, SqliteLog(path) as outside:
        stop, site = asyncio.Event(), Site(outside)
        first = asyncio.create_task(run(log, settings(), stop))
        cell = cell_on(0, PARTITIONS)
        await site.ask(policy(cell))
        await until(lambda: len(site.replies) == 3, site)
        second = asyncio.create_task(run(other, settings(), stop))
        await site.observe([inventory(cell, "n1", 2)])
        number = 0
        while not first.done():
            await site.ask([submit(cell, f"r{number}")])
            number += 1
            await asyncio.sleep(0.01)
            assert not second.done()
        with pytest.raises(Fenced):
            await first
        await until(lambda: len(site.final) == number, site)
        stop.set()
        await second
        assert {1} == {len(each) for each in site.final.values()}


def worker(path: Path, tmp_path: Path) -> Worker:
    """Return an embedded worker on the file, in a process of its own."""
    return Worker("embedded", {"GPULEDGER_LOG": f"sqlite:{path}"}, tmp_path / "worker.log")


async def test_a_worker_killed_again_and_again(path: Path, tmp_path: Path) -> None:
    """Kill -9 in the middle of work, five times: every request gets its one answer."""
    cell, total = cell_on(0, PARTITIONS), 1500
    async with SqliteLog(path) as log:
        site, server = Site(log), worker(path, tmp_path)
        try:
            server.start()
            await site.ask(policy(cell))
            await until(lambda: len(site.replies) == 3, site)
            await site.observe([inventory(cell, "n1", 8)])
            await site.ask(
                submit(cell, f"r{number}", ask={"mode": "share", "gpu_milli": 50})
                for number in range(total)
            )
            for stage in range(1, 6):
                await until(reached(site, stage * total // 6), site)
                server.kill()
                server.start()
            await until(reached(site, total), site)
            assert 0 == server.stop()
        finally:
            server.kill()
        assert {1} == {len(each) for each in site.final.values()}
        codes = await effective(log)
        assert total == codes.count("granted") + codes.count("queued")
        assert (path.parent / "ledger.sqlite-snapshots").is_dir()


def reached(site: Site, number: int) -> Callable[[], bool]:
    """Return whether so many requests have their final answer."""
    return lambda: len(site.final) >= number


def test_exit_status_of_what_cannot_be_served(tmp_path: Path) -> None:
    """4: not a ledger. 2: no topics. 3: no such log, which is not made by being named."""
    (tmp_path / "text.sqlite").write_text("not a database, but long enough to be read" * 50)
    (tmp_path / "empty.sqlite").touch()
    for path, status, said in (
        (tmp_path / "text.sqlite", 4, "damaged"),
        (tmp_path / "empty.sqlite", 2, "topic is missing"),
        (tmp_path / "such.sqlite", 3, "there is no log"),
        (tmp_path / "no" / "such.sqlite", 3, "there is no log"),
    ):
        server = worker(path, tmp_path)
        server.start()
        assert status == server.running.wait(30)
        assert said in server.output()
    assert not (tmp_path / "such.sqlite").exists()


def test_a_worker_ends_when_asked(path: Path, tmp_path: Path) -> None:
    """Ctrl-C is an orderly end too."""
    server = worker(path, tmp_path)
    server.start()
    deadline = time.monotonic() + 30
    while "partition claimed" not in server.output():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    server.signal(signal.SIGINT)
    assert 0 == server.running.wait(30)
    assert f'"{TEAM}' not in server.output()


class Unwritable(MemoryLog):
    """Takes nothing: its file may only be read."""

    tried = 0

    async def append(
        self, topic: str, partition: int | None, entries: Sequence[Entry]
    ) -> list[int]:
        """See `Log.append`."""
        return (await self.append_all({(topic, partition or 0): entries}))[topic, partition or 0]

    async def append_all(
        self, batches: Mapping[TopicPartition, Sequence[Entry]]
    ) -> dict[TopicPartition, list[int]]:
        """Say that it cannot be written to now."""
        self.tried += 1
        raise LogUnavailable(f"{len(batches)} batches cannot be written")


async def test_a_worker_that_cannot_claim_ends_when_asked() -> None:
    """It tries for as long as it is not told to stop."""
    log, stop = Unwritable(), asyncio.Event()
    await apply(log, "gpuledger", 1)
    asyncio.get_running_loop().call_later(0.2, stop.set)
    async with asyncio.timeout(60):
        await run(log, settings(), stop)
    assert log.tried
