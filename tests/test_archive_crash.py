"""An archive survives a death at every step: no hole, no overlap, no half file, nothing lost.

A run over a growing log, with stops and a compaction between, takes a fixed
sequence of steps at the file system. For each of them the run is ended just before
it (a write: half-way), by the death of the process or of the machine; then the
folder is looked at, the run is begun again, and its files are compared, byte for
byte, with those of a run that nothing has disturbed.
"""

from __future__ import annotations

import asyncio
import shutil
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from ledger.archive.check import check_archive
from ledger.archive.compact import compact
from ledger.archive.disk import Disk
from ledger.archive.follow import Follower, Options
from ledger.log.archive import ArchiveLog
from ledger.log.memory import MemoryLog
from ledger.log.port import Entry, LogUnavailable, TopicState

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ledger.log.port import Record

PREFIX = "p"
EVENTS, USAGE = f"{PREFIX}.events", f"{PREFIX}.usage"
EVERY, LARGE = 5, 10

#: How many records of (events/0, usage/0, usage/1) there are before each phase of the run.
PHASES = ((7, 3, 0), (16, 3, 0), (20, 10, 2), (23, 11, 2))

#: What a crash undoes of what was not synced: bytes, new names (renames, new files), removals.
CRASHES: dict[str, frozenset[str]] = {
    "the process": frozenset(),
    "the machine, bytes lost": frozenset({"bytes"}),
    "the machine, names lost": frozenset({"bytes", "names"}),
    "the machine, names lost but not removals": frozenset({"names"}),
    "the machine, all lost": frozenset({"bytes", "names", "removals"}),
}


class Killed(BaseException):
    """The process is dead; no handler of an error may see it."""


@dataclass
class DyingDisk(Disk):
    """Ends at its step number ``dies_at`` (from 1), and knows what is not on disk yet."""

    dies_at: int | None = None
    steps: list[str] = field(default_factory=list)
    unsynced: set[Path] = field(default_factory=set)
    #: Folder, what was done to a name in it, and how to undo it; until the folder is synced.
    names: list[tuple[Path, str, Callable[[], object]]] = field(default_factory=list)

    def write(self, path: Path, data: memoryview | bytes) -> None:
        """Write the file; die with half of it written."""
        self._changed(path.parent, "names", lambda: path.unlink(missing_ok=True))
        if self.dies_at == len(self.steps) + 1:
            super().write(path, data[: len(data) // 2])
        self.step("write")
        super().write(path, data)
        self.unsynced.add(path)

    def sync(self, path: Path) -> None:
        """Nothing of the file or folder can be lost any more (here that is all it takes)."""
        self.step("sync")
        self.unsynced.discard(path)
        self.names = [one for one in self.names if one[0] != path]

    def rename(self, path: Path, target: Path) -> None:
        """Rename; bytes that are not synced stay so."""
        self.step("rename")
        assert not target.exists(), "what is there is never replaced"
        super().rename(path, target)
        if path in self.unsynced:
            self.unsynced.remove(path)
            self.unsynced.add(target)
        self._changed(target.parent, "names", lambda: target.rename(path))

    def remove(self, path: Path) -> None:
        """Remove; it may come back."""
        self.step("remove")
        if not path.exists():
            return
        kept = path.read_bytes()
        super().remove(path)
        self._changed(path.parent, "removals", lambda: path.write_bytes(kept))

    def make_folder(self, path: Path) -> None:
        """Make a folder; it may vanish."""
        self.step("make folder")
        existed = path.exists()
        super().make_folder(path)
        if not existed:
            self._changed(path.parent, "names", lambda: shutil.rmtree(path))

    def step(self, what: str) -> None:
        """Count a step, and die at the one that was asked for."""
        self.steps.append(what)
        if len(self.steps) == self.dies_at:
            raise Killed

    def crash(self, lost: frozenset[str]) -> None:
        """Undo what is not on disk, of the kinds that this crash loses."""
        if "bytes" in lost:
            for path in self.unsynced:
                if path.exists():
                    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        for _, kind, back in reversed(self.names):
            if kind in lost:
                back()

    def _changed(self, folder: Path, kind: str, undo: Callable[[], object]) -> None:
        self.names.append((folder, kind, undo))


def record(number: int) -> Entry:
    """Return an entry that no other number has."""
    return Entry(b"cell", b'{"kind":"claim","seq":%d}' % number, (("ce_type", b"t"),))


async def phase(number: int, folder: Path, disk: Disk) -> None:
    """Let the log grow to what it is in a phase, and archive it; compact after the last but one."""
    log = await log_of(number)
    await Follower(log, PREFIX, folder, Options(every=EVERY), disk).once()
    if number >= len(PHASES) - 2:
        compact(folder, LARGE, disk)


async def log_of(number: int) -> MemoryLog:
    """Return the log as it is in a phase: each record at a time of its own."""
    clock = iter(range(1, 10_000))
    log = MemoryLog(lambda: next(clock))
    await log.create_topics({EVENTS: TopicState(1), USAGE: TopicState(2)})
    places = ((EVENTS, 0), (USAGE, 0), (USAGE, 1))
    for (topic, partition), count in zip(places, PHASES[number], strict=True):
        clock = iter(range(1, 10_000))
        for each in range(count):
            await log.append(topic, partition, [record(each)])
    return log


async def records(folder: Path) -> dict[tuple[str, int], list[Record]]:
    """Return all that a reader finds in a folder; none where there is no archive yet."""
    found: dict[tuple[str, int], list[Record]] = {}
    try:
        log = ArchiveLog(folder)
    except LogUnavailable:
        return {}
    async with log:
        for topic, count in ((EVENTS, 1), (USAGE, 2)):
            if topic not in await log.describe_topics([topic]):
                continue
            assert await log.partitions(topic) == count
            for number in range(count):
                mine: list[Record] = []
                while more := await log.read(topic, number, len(mine)):
                    mine += more
                assert len(mine) == await log.end(topic, number)
                found[topic, number] = mine
    return found


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file below the folder; the lock is none of it."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


@dataclass(frozen=True)
class Undisturbed:
    """What a run does that nothing disturbs: its steps, and the folder before each phase."""

    steps: list[str]
    #: How many steps had been taken at the beginning of each phase.
    starts: list[int]
    before: list[Path]
    left: dict[str, bytes]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """Run all phases."""
    folder = tmp_path_factory.mktemp("whole")
    disk = DyingDisk()
    starts, before = [], []
    for number in range(len(PHASES)):
        starts.append(len(disk.steps))
        before.append(folder / f"before-{number}")
        shutil.copytree(folder / "archive", before[-1]) if number else before[-1].mkdir()
        asyncio.run(phase(number, folder / "archive", disk))
    return Undisturbed(disk.steps, starts, before, contents(folder / "archive"))


def test_an_undisturbed_run(whole: Undisturbed) -> None:
    """The run has every kind of step, and leaves the files that its cuts call for."""
    assert {"make folder", "write", "sync", "rename", "remove"} == set(whole.steps)
    assert [
        f"{topic}/{partition}/{first:020d}-{last:020d}.parquet"
        for topic, partition, first, last in (
            (EVENTS, 0, 0, 9), (EVENTS, 0, 10, 19), (EVENTS, 0, 20, 22),
            (USAGE, 0, 0, 9), (USAGE, 0, 10, 10), (USAGE, 1, 0, 1),
        )
    ] == sorted(whole.left)  # fmt: skip


@pytest.mark.parametrize("crash", CRASHES)
def test_a_death_at_every_step(crash: str, whole: Undisturbed, tmp_path: Path) -> None:
    """After each: readable, nothing lost that was archived, and the same files in the end.

    The run goes on with the phase in which it has died, or when the log has grown to its
    end: in turn, so that every step has both.
    """
    turn = list(CRASHES).index(crash)
    for dies_at, what in enumerate(whole.steps, 1):
        at = bisect_left(whole.starts, dies_at) - 1
        folder = tmp_path / f"{dies_at}"
        shutil.copytree(whole.before[at], folder)
        disk = DyingDisk(dies_at=dies_at - whole.starts[at])
        with pytest.raises(Killed):
            asyncio.run(phase(at, folder, disk))
        assert what == disk.steps[-1]
        disk.crash(CRASHES[crash])
        asyncio.run(look(folder, at))
        for number in range(at if (dies_at + turn) % 2 else len(PHASES) - 1, len(PHASES)):
            asyncio.run(phase(number, folder, DyingDisk()))
        assert whole.left == contents(folder), f"step {dies_at}, {what}"


async def look(folder: Path, at: int) -> None:
    """See that what was archived before a phase is there, and that all there is, is the log's."""
    truth = await log_of(at)
    found = await records(folder)
    for place, mine in found.items():
        theirs = await truth.read(*place, 0)
        assert mine == theirs[: len(mine)]
    if at:
        before = PHASES[at - 1]
        sizes = [len(found[place]) for place in ((EVENTS, 0), (USAGE, 0), (USAGE, 1))]
        assert all(size >= count for size, count in zip(sizes, before, strict=True))
    if found:
        assert check_archive(folder).wrong == ()


def test_dying_again_and_again(whole: Undisturbed, tmp_path: Path) -> None:
    """A run that dies every few steps comes to the same end, whatever the rhythm."""
    for rhythm in range(14, 22, 2):
        folder = tmp_path / f"{rhythm}"
        deaths = 0
        at = 0
        while at < len(PHASES):
            disk = DyingDisk(dies_at=rhythm)
            try:
                asyncio.run(phase(at, folder, disk))
                at += 1
            except Killed:
                disk.crash(CRASHES["the machine, all lost"] if deaths % 2 else frozenset())
                deaths += 1
                assert deaths < 200, "it gets nowhere"
        assert deaths
        assert whole.left == contents(folder)
