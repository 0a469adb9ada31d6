"""U5: more than 500 attempts to write, read elsewhere, escape or exhaust; none gets through.

Every row of the lock-down table, and more. They are asked as ``gpuledger sql`` asks.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from typing import TYPE_CHECKING

import duckdb
import pytest

from ledger.audit.auditor import Room, audit, load
from ledger.audit.sql import AtLimit, BadQuery, Limits
from ledger.log.sqlite import SqliteLog
from tests.audit_support import fill
from tests.ledgers import PREFIX, Site
from tests.sql_attempts import EXHAUSTING, REFUSED

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: How long an exhausting query may run. Beyond it comes the kernel's grace.
SECONDS = 0.15
SECRET = "the-secret-of-this-test"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a log and a secret in it."""
    folder = tmp_path_factory.mktemp("site")

    async def make() -> None:
        async with SqliteLog(folder / "log.sqlite") as log:
            await fill(Site(log))

    asyncio.run(make())
    (folder / "secret").write_text(f"a,b\n{SECRET},2\n")
    return folder


@pytest.fixture(scope="module")
def room(site: Path) -> Iterator[Room]:
    """Return a room with the log in it."""

    async def make() -> Room:
        async with SqliteLog(site / "log.sqlite", read_only=True) as log:
            limits = Limits(100, result_mib=1, seconds=SECONDS, memory_mib=128, threads=1)
            return (await load(log, PREFIX, limits))[0]

    with asyncio.run(make()) as found:
        yield found


def fingerprints(folder: Path) -> dict[str, str]:
    """Return what is in the folder, byte for byte."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.endswith("-shm")
    }


def test_there_are_as_many_attempts_as_are_promised() -> None:
    """More than 500, and no two are the same."""
    every = [one for family in REFUSED.values() for one in family] + list(EXHAUSTING.values())
    assert len(every) == len(set(every))
    assert len(every) > 500


@pytest.mark.parametrize("family", REFUSED)
def test_u5_every_attempt_is_refused(room: Room, site: Path, family: str) -> None:
    """None is answered, and neither the log, nor its folder, nor the copy has changed."""
    outside = duckdb.sql(f"SELECT '{SECRET}' AS secret")  # a name that Python knows
    before = fingerprints(site)
    rows = room.ask("SELECT count(*), sum(hash(data)) FROM events").rows
    got_through: list[tuple[str, object]] = []
    places = {"folder": site, "log": site / "log.sqlite", "secret": site / "secret"}
    for text in REFUSED[family]:
        for name, path in places.items():
            text = text.replace(f"{{{name}}}", str(path))  # noqa: PLW2901 - the same, filled in
        try:
            result = room.ask(text)
        except BadQuery as refused:
            if SECRET in str(refused):
                got_through.append((text, str(refused)))
        else:
            got_through.append((text, result.rows[:1]))
    assert [] == got_through
    assert before == fingerprints(site)
    assert rows == room.ask("SELECT count(*), sum(hash(data)) FROM events").rows
    assert outside is not None


@pytest.mark.parametrize("text", EXHAUSTING.values(), ids=EXHAUSTING.keys())
def test_u5_what_exhausts_is_bounded(room: Room, site: Path, text: str) -> None:
    """Within a second it is over: answered in bounds, or stopped with a clear message."""
    before = fingerprints(site)
    started = time.monotonic()
    try:
        result = room.ask(text)
    except BadQuery as stopped:
        message = str(stopped) if isinstance(stopped, AtLimit) else "ask for less"
    else:
        message = "ask for less"
        assert len(result.rows) <= 100
        assert sum(len(str(row)) for row in result.rows) < 2 * 1_048_576
    assert "ask for less" in message
    # The kernel's limit is 0.7 s; the rest is for a machine that is busy.
    assert time.monotonic() - started < 10
    assert before == fingerprints(site)
    assert [(1,)] == room.ask("SELECT 1").rows


async def test_u5_every_question_is_on_record_and_the_events_stay(site: Path) -> None:
    """What is answered, refused and stopped is on the log; its events are as before."""
    url = f"sqlite:{site / 'log.sqlite'}"

    async def events() -> list[object]:
        async with SqliteLog(site / "log.sqlite", read_only=True) as log:
            return list(await log.read(f"{PREFIX}.events", 0, 0, 10_000))

    before = await events()
    asked = [
        ("SELECT count(*) FROM leases", "answered"),
        ("DROP TABLE records", "refused"),
        ("SELECT content FROM read_text('/etc/passwd')", "refused"),
        ("SELECT count(*) FROM range(10000000) a, range(100000) b WHERE a.range + b.range < 0",
         "stopped"),
    ]  # fmt: skip
    async with audit(url, who="/team/audit", limits=Limits(seconds=SECONDS)) as ledger:
        for text, _ in asked:
            try:
                await ledger.ask(text)
            except BadQuery:
                continue
        assert f"audit/0@{len(asked) - 1}" == ledger.kept
    assert before == await events()
    async with audit(url, who="/team/audit") as ledger:
        found = await ledger.ask(
            "SELECT text, outcome, who, kind, rows, text_sha256, upto->>'$[0]' FROM queries"
            ' ORDER BY "offset"'
        )
    hashes = [hashlib.sha256(text.encode()).hexdigest() for text, _ in asked]
    assert [
        (text, outcome, "/team/audit", "sql", int(outcome == "answered"), one, str(len(before)))
        for (text, outcome), one in zip(asked, hashes, strict=True)
    ] == found.rows
