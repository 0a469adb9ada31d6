"""The same answers from every kind of log, by the functions and by the command."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from typer.testing import CliRunner

from ledger.archive.follow import Follower, Options
from ledger.cli import app
from ledger.core.digest import digest
from ledger.log.kafka import KafkaLog
from ledger.log.sqlite import SqliteLog
from ledger.replay.bisect import Bisection, Turn
from ledger.replay.diff import diff
from ledger.replay.position import find, parse
from ledger.replay.records import follow
from ledger.replay.sql import StateTables, state_room
from ledger.replay.states import fold_at
from ledger.replay.timeline import Timeline
from ledger.replay.trace import Filters, trace
from tests.ledgers import PREFIX
from tests.replay_support import KINDS, drawn, folds_of, log_of, put

if TYPE_CHECKING:
    from pathlib import Path

    from ledger.log.port import Log

EXPRESSION = "SELECT arrivals >= 10 FROM cells"


async def answers(log: Log, prefix: str) -> dict[str, Any]:
    """Return what each of the questions is answered from a log, as JSON has it."""
    old, new = await find(log, prefix, parse("40"), parse("end"))
    folds = await fold_at(log, prefix, {0: 0})
    found, lines = Timeline("t"), list[Any]()
    async for seen, names in follow(log, prefix, new, folds):
        lines += [line.plain() for line in trace(seen, names, Filters())]
    folds = await fold_at(log, prefix, old)
    state = digest(folds[0].cells)
    async for seen, names in follow(log, prefix, new, folds):
        found.take(seen, names)
    with state_room() as room:
        tables = StateTables(EXPRESSION, room)
        turns = [
            await Bisection(log, prefix, 0, tables=tables).run(0, new[0], scan=scan)
            for scan in (False, True)
        ]
    assert isinstance(turns[0], Turn)
    return {
        "state": state,
        "places": [old, new],
        "diff": asdict(await diff(log, prefix, (old, new))),
        "trace": lines,
        "timeline": found.plain(),
        "bisect": [
            (one.position, one.held, [asdict(each) for each in one.changes])
            for one in turns
            if isinstance(one, Turn)
        ],
    }


async def in_memory(folder: Path) -> dict[str, Any]:
    """Return the answers that the others must give."""
    async with await log_of("memory", folder, drawn()) as log:
        return await answers(log, PREFIX)


@pytest.mark.parametrize("kind", KINDS)
async def test_every_kind_of_log_gives_the_same_answers(kind: str, tmp_path: Path) -> None:
    """State, difference, trace, timeline and bisection."""
    async with await log_of(kind, tmp_path, drawn()) as log:
        found = await answers(log, PREFIX)
    assert found == await in_memory(tmp_path)
    assert found["state"] == digest(folds_of(drawn(), 41).cells)
    assert len(found["bisect"]) == 2
    assert all(found.values())


@pytest.mark.kafka
async def test_kafka_gives_the_same_answers(kafka: str, kafka_prefix: str, tmp_path: Path) -> None:
    """From a real broker."""
    async with KafkaLog(kafka) as log:
        await put(log, kafka_prefix, drawn())
        found = await answers(log, kafka_prefix)
    assert found == await in_memory(tmp_path)


COMMANDS: dict[str, list[str]] = {
    "diff": ["diff", "40", "end"],
    "diff by node, with all": ["diff", "0@40", "events/0@80", "--by", "node", "--all"],
    "diff by time": ["diff", "begin", "1970-01-01T00:00:30Z"],
    "state at an offset": ["state", "--at", "40"],
    "state at the beginning": ["state", "--at", "begin"],
    "replay": ["replay", "--to", "80"],
    "trace": ["replay", "--to", "80", "--trace"],
    "trace of a tenant": ["replay", "--from", "40", "--trace", "--tenant", "t", "--cell", "c"],
    "bisect": ["bisect", "--expr", EXPRESSION],
    "bisect by a scan": ["bisect", "--expr", EXPRESSION, "--scan"],
    "bisect --tables": ["bisect", "--tables"],
    "timeline": ["timeline", "n1"],
    "timeline from a place": ["timeline", "t", "--from", "40", "--to", "80"],
}


def call(url: str, *arguments: str, status: int = 0) -> str:
    """Run one command in this process; return what it prints."""
    done = CliRunner().invoke(app, ["--log", url, *arguments], catch_exceptions=False)
    assert done.exit_code == status, done.stderr
    return done.stdout if status == 0 else done.stderr


@pytest.fixture
def logs(tmp_path: Path) -> tuple[str, str]:
    """Return the URLs of a SQLite log and of its archive."""

    async def write() -> None:
        async with SqliteLog(tmp_path / "log.sqlite") as log:
            await put(log, PREFIX, drawn())
            await Follower(log, PREFIX, tmp_path / "archive", Options(("events",), every=50)).once()

    asyncio.run(write())
    return f"sqlite:{tmp_path / 'log.sqlite'}", f"archive:{tmp_path / 'archive'}"


def test_every_command_says_the_same_of_both(logs: tuple[str, str]) -> None:
    """As text and as JSON, with snapshots beside the log and without."""
    made = call(logs[0], "snapshots", "make", "--every", "30").splitlines()
    assert len(made) == len(drawn()) // 30
    for arguments in COMMANDS.values():
        for more in ([], ["--json"]):
            text = call(logs[0], *arguments, *more)
            assert text == call(logs[1], *arguments, *more)
            assert text == call(logs[0], *arguments, *more, "--no-snapshots")
            assert "\x1b" not in text
    assert call(logs[0], "state", "--at", "begin") == ""
    assert call(logs[0], "snapshots", "make", "--every", "30") == ""


def test_what_is_printed(logs: tuple[str, str]) -> None:
    """The digest ends the replay; a found record has its cause and what it changed."""
    lines = call(logs[0], "replay", "--trace", "--json").splitlines()
    last = orjson.loads(lines[-1])
    assert last["digest"] == digest(folds_of(drawn(), len(drawn())).cells)
    assert last["lines"] == len(lines) - 1
    found = orjson.loads(call(logs[0], "bisect", "--expr", EXPRESSION, "--json"))
    assert (found["turn"], found["events"][0]["code"]) == ("holds", "R+")
    assert found["input"]["type"] == "request.submit"
    assert found["assumed"] == "that it changes once between the positions"
    assert orjson.loads(call(logs[0], "bisect", "--expr", EXPRESSION, "--scan", "--json"))[
        "assumed"
    ] is None  # fmt: skip
    assert "  by halves, assuming that it changes once" in call(
        logs[0], "bisect", "--expr", EXPRESSION
    )


NOES: dict[str, tuple[int, list[str], str]] = {
    "no such record": (1, ["diff", "0", "99999"], "there is no record events/0@99999"),
    "no such partition": (1, ["state", "--at", "7@0"], "there is no partition 7"),
    "no position": (2, ["diff", "yesterday", "end"], "a position is"),
    "a bad --at": (2, ["state", "--at", "yesterday"], "--at: a position is"),
    "the wrong way round": (2, ["diff", "9", "3"], "give the earlier position first"),
    "backwards": (2, ["replay", "--from", "9", "--to", "3"], "9 is after 3"),
    "no group": (2, ["diff", "0", "3", "--by", "moon"], "--by is one of"),
    "filters without a trace": (2, ["replay", "--tenant", "t"], "--trace"),
    "nothing asked": (2, ["bisect"], "either --expr or --invariant"),
    "both asked": (2, ["bisect", "--expr", "SELECT true", "--invariant", "A1"], "either"),
    "no invariant": (2, ["bisect", "--invariant", "Z9"], "--invariant is one of A1"),
    "no change": (1, ["bisect", "--invariant", "A1"], "A1 holds at both ends; --scan"),
    "no change at all": (
        1,
        ["bisect", "--expr", "SELECT false", "--scan"],
        "does not hold after every record",
    ),
    "no boolean": (1, ["bisect", "--expr", "SELECT 1"], "one SELECT that returns one boolean"),
    "no select": (1, ["bisect", "--expr", "DELETE FROM leases"], "a query is a SELECT"),
    "nothing of that name": (1, ["timeline", "nobody"], "nothing called nobody"),
}


def test_a_no_says_what_is_wrong(logs: tuple[str, str]) -> None:
    """Exit 1 for what is not there, 2 for what cannot be meant."""
    for status, arguments, text in NOES.values():
        assert text in call(logs[0], *arguments, status=status)


def test_of_several_partitions_bisect_wants_one(tmp_path: Path) -> None:
    """They have no common order; a record names one of them."""

    async def write() -> None:
        async with SqliteLog(tmp_path / "log.sqlite") as log:
            await put(log, PREFIX, drawn(1), drawn(2))

    asyncio.run(write())
    url = f"sqlite:{tmp_path / 'log.sqlite'}"
    assert "name one, as --to 0@17" in call(url, "bisect", "--expr", EXPRESSION, status=2)
    at = f"1@{len(drawn(2)) - 1}"
    assert "holds with events/1@" in call(url, "bisect", "--expr", EXPRESSION, "--to", at)
    lines = call(url, "replay", "--trace", "--json").splitlines()
    times = [orjson.loads(one)["time_us"] for one in lines[:-1]]
    assert times == sorted(times)
    assert {orjson.loads(one)["position"][:9] for one in lines[:-1]} == {"events/0@", "events/1@"}
