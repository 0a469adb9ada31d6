"""The archive from the command line: every reading command takes it; kill -9 costs nothing."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from typer.testing import CliRunner

from ledger.cli import app
from ledger.log.sqlite import SqliteLog
from tests.ledgers import PREFIX, Site
from tests.test_cli import COMMAND, Cli

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

EVENTS = f"{PREFIX}.events"


async def live(log: SqliteLog, requests: int = 8) -> None:
    """Let a site have some requests, one of them run to its end, one malformed."""
    site = Site(log)
    await site.start()
    for number in range(requests):
        await site.submit(f"r{number}", 1)
    await site.finish("/team/a#r0/1")


@dataclass(frozen=True)
class Done:
    """What a command has said, and its exit status."""

    returncode: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Inside:
    """Runs the command in this process, on one log, as `Cli` does in another."""

    folder: Path

    def __call__(self, *arguments: str) -> Done:
        """Run one command to its end, in a thread of its own: it starts an event loop."""
        given = [*arguments] if "--log" in arguments else [*arguments, "--log", self.log]
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(CliRunner().invoke, app, given).result()
        assert "Traceback" not in done.stderr
        return Done(done.exit_code, done.stdout, done.stderr)

    @property
    def log(self) -> str:
        """Return the URL of the log."""
        return f"sqlite:{self.folder / 'log.sqlite'}"

    def json(self, *arguments: str) -> dict[str, Any]:
        """Run a command with ``--json``; return the one object that it prints."""
        done = self(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = orjson.loads(done.stdout)
        return found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a log of 15 records, and an archive of it, ``a``, in small files."""
    folder = tmp_path_factory.mktemp("made")

    async def make() -> None:
        async with SqliteLog(folder / "log.sqlite") as log:
            await live(log)

    asyncio.run(make())
    inside = Inside(folder)
    done = inside.json(
        "archive", "--to", str(folder / "a"), "--once", "--every", "5", "--all-topics"
    )
    assert done["files"] > 3
    return folder


@pytest.fixture
def cli(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Inside:
    """Return the command in a copy of that folder."""
    for name in ("GPULEDGER_LOG", "GPULEDGER_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GPULEDGER_SNAPSHOTS", str(tmp_path / "snapshots"))
    folder = tmp_path / "site"
    shutil.copytree(made, folder)
    monkeypatch.chdir(folder)
    return Inside(folder)


#: Every command that reads a ledger, with a question that this one has an answer to.
READING = {
    "verify": ["verify"],
    "verify as JSON": ["verify", "--json"],
    "show": ["show", "/team/a#r1"],
    "why": ["why", "/team/a#r7"],
    "state": ["state"],
    "state as JSON": ["state", "--json"],
    "state at a record": ["state", "--at", "events/0@7"],
    "state at a time": ["state", "--at", "2100-01-01T00:00:00Z"],
    "state before everything": ["state", "--at", "2000-01-01T00:00:00Z"],
    "estimates": ["estimates"],
    "sql": ["sql", "SELECT request, state FROM requests ORDER BY request", "--csv"],
    "sql at a record": ["sql", "SELECT count(*) FROM records", "--at", "events/0@7"],
    "quota show": ["quota", "show"],
    "dead letters": ["dead-letters", "list"],
    "topics check": ["topics", "check"],
}


@pytest.mark.parametrize("arguments", READING.values(), ids=READING.keys())
async def test_a_reading_command_takes_an_archive(arguments: list[str], cli: Inside) -> None:
    """It says the same as on the log itself, and changes nothing there."""
    before = contents(cli.folder / "a")
    wanted = cli(*arguments)
    found = cli(*arguments, "--log", "archive:a")
    assert wanted.returncode == found.returncode, found.stderr
    assert wanted.stdout == found.stdout
    assert before == contents(cli.folder / "a")


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder, but for the lock."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


WRITING = {
    "submit": ["submit", "--tenant", "t", "--queue", "q", "--gpus", "1"],
    "pool apply": ["pool", "apply", "p", "--reason", "x"],
    "topics apply": ["topics", "apply"],
    "restore into itself": ["archive", "restore", "a"],
}


@pytest.mark.parametrize("arguments", WRITING.values(), ids=WRITING.keys())
async def test_a_writing_command_refuses_it(arguments: list[str], cli: Inside) -> None:
    """Exit 2, and what to do instead."""
    done = cli(*arguments, "--log", "archive:a")
    assert (done.returncode, done.stdout) == (2, "")
    assert "archive restore" in done.stderr or "--log is the log to write" in done.stderr


async def test_list_check_compact_restore(cli: Inside) -> None:
    """What each command says, as text and as JSON, and that the log stays the same all along."""
    digest = cli.json("verify")["digest"]
    listed = [
        orjson.loads(line) for line in cli("archive", "list", "a", "--json").stdout.splitlines()
    ]
    mine = [(one["first"], one["last"]) for one in listed if one["topic"] == EVENTS]
    assert mine == [(0, 4), (5, 9), (10, 14)]
    checked = cli.json("archive", "check", "a")
    assert (checked["ok"], checked["wrong"], checked["left_over"]) == (True, [], 0)
    merged = cli("archive", "compact", "a", "--every", "10")
    assert merged.returncode == 0
    assert f"{0:020d}-{9:020d}.parquet: 2 files in one" in merged.stdout
    assert "nothing to compact" in cli("archive", "compact", "a", "--every", "10").stderr
    assert cli.json("verify", "--log", "archive:a")["digest"] == digest
    restored = cli.json("archive", "restore", "a", "--log", "sqlite:again.sqlite")
    assert (restored["records"], restored["digest"]) == (15, digest)
    assert cli.json("verify", "--log", "sqlite:again.sqlite")["digest"] == digest
    again = cli.json("archive", "restore", "a", "--log", "sqlite:again.sqlite")
    assert (again["records"], again["before"]) == (0, 15)
    other = cli("archive", "restore", "a", "--log", "sqlite:again.sqlite", "--prefix", "other")
    assert other.returncode == 3
    more = cli.json("archive", "--to", "a", "--once")
    assert (more["records"], more["files"]) == (0, 0)


async def test_damage_is_named_and_mended(cli: Inside) -> None:
    """C53: a damaged or missing file is exit 4 with its name, and what to do; doing it helps."""
    path = cli.folder / "a" / EVENTS / "0" / f"{5:020d}-{9:020d}.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    for arguments in (["archive", "check", "a"], ["verify", "--log", "archive:a"]):
        done = cli(*arguments)
        assert done.returncode == 4
        assert "gpuledger.events/0@5" in done.stdout
        assert path.name in done.stdout
        assert "move" in done.stdout
    done = cli("state", "--log", "archive:a")
    assert done.returncode == 4
    assert path.name in done.stderr
    path.unlink()
    assert "5 entries missing: 5 to 9" in cli("verify", "--log", "archive:a").stdout
    mended = cli.json("archive", "--to", "a", "--once", "--every", "5")
    assert (mended["records"], mended["files"]) == (5, 1)
    assert path.read_bytes() == whole


async def test_what_is_refused(cli: Inside) -> None:
    """Wrong use is exit 2, no archive is exit 3, another log is exit 4 and changes nothing."""
    for arguments, says in (
        (["archive", "--to", "b", "--every", "0"], "--every"),
        (["archive", "--to", "b", "--topic", "x"], "--topic is one of requests"),
        (["archive", "--to", "b", "--topic", "usage", "--all-topics"], "one of them"),
        (["archive", "--once"], "--to"),
        (["archive", "compact", "a", "--every", "0"], "--every"),
    ):
        done = cli(*arguments)
        assert done.returncode == 2, arguments
        assert says in done.stderr
    for arguments in (["archive", "check", "no"], ["archive", "list", "no"],
                      ["archive", "compact", "no"], ["archive", "restore", "no"],
                      ["state", "--log", "archive:no"]):  # fmt: skip
        done = cli(*arguments)
        assert done.returncode == 3, arguments
        assert "no archive in no" in done.stderr
        assert "is that the folder?" in done.stderr
        assert "log up" not in done.stderr
    before = contents(cli.folder / "a")
    async with SqliteLog(cli.folder / "other.sqlite") as log:
        await live(log, 20)
    done = cli("archive", "--log", "sqlite:other.sqlite", "--to", "a", "--once")
    assert done.returncode == 4
    assert "another record than the archive" in done.stderr
    assert before == contents(cli.folder / "a")


async def until(what: Callable[[], bool]) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_a_follower_that_is_killed_and_one_that_is_ended(cli: Inside) -> None:
    """After kill -9 the next one goes on, SIGTERM writes the tail; the same files as at once."""
    folder = cli.folder / "f"
    command = [*COMMAND, "archive", "--to", "f", "--every", "4", "--flush-s", "0.2", "--json"]
    environment = Cli(cli.log, cli.folder).environment
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            command,
            cwd=cli.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        started.append(process)
        return process

    def end() -> int:
        names = [path.name for path in (folder / EVENTS / "0").glob("*.parquet")]
        return max((int(name[21:41]) + 1 for name in names), default=0)

    try:
        async with SqliteLog(cli.folder / "log.sqlite") as log:
            follower = start()
            await until(lambda: end() == 15)
            follower.kill()
            await asyncio.to_thread(follower.communicate)
            site = Site(log)
            await site.shard.load()
            for number in range(5):
                await site.submit(f"more-{number}", 1)
            follower = start()
            behind = await log.end(EVENTS, 0)
            await until(lambda: end() == behind)
            await site.submit("last", 1)
            follower.send_signal(signal.SIGTERM)
            said, _ = await asyncio.to_thread(follower.communicate)
            assert follower.returncode == 0
    finally:
        for process in started:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
    lines = [orjson.loads(line) for line in said.splitlines()]
    assert max(one["last"] for one in lines) == behind
    assert cli("archive", "--to", "once", "--once", "--every", "4").returncode == 0
    assert contents(folder) == contents(cli.folder / "once")


async def test_files_are_read_by_other_tools(cli: Inside) -> None:
    """DuckDB reads them as they are: nothing of ours is needed."""
    query = (
        'import duckdb; print(duckdb.sql("SELECT count(*), max(seq), list_sort(list(DISTINCT kind))'
        f" FROM 'a/{EVENTS}/*/*.parquet'\").fetchall())"
    )
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", query],
        cwd=cli.folder,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[(15, 14, ['claim', 'decision'])]"


NOT_THERE: dict[str, list[str]] = {
    "why": ["why", "r1", "--at"],
    "meter": ["meter", "--at"],
    "prices": ["prices", "list", "--at"],
    "bill": ["bill", "--period", "2026-10", "--at"],
    "sql": ["sql", "SELECT 1", "--at"],
    "a ready question": ["report", "unanswered", "--log-at"],
    "a report": ["report", "ops", "--log-at"],
}


@pytest.mark.parametrize("case", NOT_THERE)
def test_a_record_that_is_not_there_is_no_position(cli: Inside, case: str) -> None:
    """An answer about the end, when a later record was asked about, would be a wrong one."""
    done = cli(*NOT_THERE[case], "events/0@999999")
    assert (1, True) == (
        done.returncode, "no record events/0@999999; its last is" in done.stderr
    )  # fmt: skip
    assert 2 == cli(*NOT_THERE[case], "yesterday").returncode


def test_what_nobody_knows_is_told(cli: Inside) -> None:
    """A price book, a cell, a time; and a trace in which nothing is about what was asked for."""
    book = cli("prices", "list", "--book", "other")
    assert (1, True) == (book.returncode, "no price book other; on record: none" in book.stderr)
    cell = cli("quota", "show", "--cell", "elsewhere")
    assert (1, True) == (cell.returncode, "no cell elsewhere; the ledger has" in cell.stderr)
    late = cli("meter", "--from", "2999-01")
    assert (2, True) == (late.returncode, "2999-01 is after the last record" in late.stderr)
    trace = cli("replay", "--trace", "--tenant", "nobody")
    assert (0, True) == (trace.returncode, "nothing is about all" in trace.stderr)


def test_an_option_that_would_do_nothing_is_wrong_usage(cli: Inside) -> None:
    """What is about this host does not go with simulated nodes, nor the other way round."""
    for options in (
        ("--simulate", "fleet.toml", "--dry-run"),
        ("--dry-run", "--faults", "faults.toml"),
        ("--dry-run", "--node", "a", "--node", "b"),
    ):
        assert 2 == cli("collector", *options).returncode
