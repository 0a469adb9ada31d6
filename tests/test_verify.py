"""Verification: a good ledger has no fault, and each kind of damage is found and named."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from ledger.core.digest import digest
from ledger.log.memory import MemoryLog
from ledger.log.port import Entry, TopicState
from ledger.log.sqlite import SqliteLog
from ledger.reading import Damaged, fold_log
from ledger.shard import Fenced
from ledger.verify import Report, verify_log
from tests.ledgers import PREFIX, Site

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

EVENTS = f"{PREFIX}.events"


async def fill(site: Site) -> None:
    """Give a site some history: requests granted, ended, waiting, refused."""
    await site.start()
    for number in range(6):
        await site.submit(f"r{number}", 2)
    await site.finish("/team/a#r0/1")
    await site.submit("too-large", 64, max_wait_s=0)


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """Return a SQLite log with some history."""
    path = tmp_path / "log.sqlite"
    async with SqliteLog(path) as log:
        await fill(Site(log))
    return path


async def report_of(path: Path) -> Report:
    """Verify a SQLite log."""
    async with SqliteLog(path, read_only=True) as log:
        return await verify_log(log, PREFIX)


def damage(path: Path, *statements: str, **values: object) -> None:
    """Change the file behind the log's back."""
    with closing(sqlite3.connect(path)) as db, db:
        for statement in statements:
            db.execute(statement, values)


def edit(path: Path, offset: int, change: Callable[[dict[str, Any]], None]) -> None:
    """Change one record's JSON behind the log's back."""
    with closing(sqlite3.connect(path)) as db, db:
        where = "topic = ? AND offset = ?"
        (value,) = db.execute(
            f"SELECT value FROM records WHERE {where}", (EVENTS, offset)
        ).fetchone()
        record = orjson.loads(value)
        change(record)
        db.execute(
            f"UPDATE records SET value = ? WHERE {where}", (orjson.dumps(record), EVENTS, offset)
        )


async def test_a_good_ledger_has_no_fault() -> None:
    """Counts and the digest are those of the shard that wrote it."""
    site = Site(MemoryLog())
    await fill(site)
    report = await verify_log(site.log, PREFIX)
    assert report.ok, report.faults
    head = site.shard.fold.head
    assert report.counts == {
        "partitions": 1,
        "records": head.offset,
        "claims": 1,
        "decisions": head.decisions,
        "void": 0,
        "cells": 1,
        "faults": 0,
    }
    assert report.digest == digest(site.shard.fold.cells)


async def test_a_fenced_writers_records_are_void_and_no_fault() -> None:
    """Two writers at once leave void records; that is what the log is for."""
    site = Site(MemoryLog())
    await fill(site)
    other = Site(site.log)
    await other.shard.load()
    with pytest.raises(Fenced):
        await site.submit("late")
    await other.shard.load()
    await other.pump()
    report = await verify_log(site.log, PREFIX)
    assert report.ok, report.faults
    assert report.counts["void"] == 1
    assert report.counts["claims"] == 3


async def test_an_empty_ledger_is_good() -> None:
    """Topics without a record have no fault."""
    log = MemoryLog()
    await log.create_topics({EVENTS: TopicState(3)})
    report = await verify_log(log, PREFIX)
    assert report.ok
    assert report.counts["partitions"] == 3


async def test_c53_dropped_rows_are_a_hole_with_its_range(path: Path) -> None:
    """C53a: what is missing is named as a range, never passed over."""
    damage(path, f"DELETE FROM records WHERE topic = '{EVENTS}' AND offset BETWEEN 5 AND 7")
    report = await report_of(path)
    (fault,) = report.faults
    assert (fault.kind, fault.partition, fault.offset) == ("hole", 0, 5)
    assert fault.detail == "3 entries missing: 5 to 7"
    assert report.partitions[0].folded == 5
    async with SqliteLog(path, read_only=True) as log:
        with pytest.raises(Damaged, match=r"gpuledger\.events/0@5: gap"):
            await fold_log(log, PREFIX)


async def test_a_missing_beginning_is_a_hole(path: Path) -> None:
    """The ledger is kept for ever: what a retention took is missing."""
    damage(path, f"DELETE FROM records WHERE topic = '{EVENTS}' AND offset = 0")
    (fault,) = (await report_of(path)).faults
    assert (fault.kind, fault.offset, fault.detail) == ("hole", 0, "1 entry missing: 0")


async def test_swapped_rows_are_out_of_order(path: Path) -> None:
    """Two records that changed places are both still there, and yet it shows."""
    damage(
        path,
        f"UPDATE records SET offset = -1 WHERE topic = '{EVENTS}' AND offset = 6",
        f"UPDATE records SET offset = 6 WHERE topic = '{EVENTS}' AND offset = 7",
        f"UPDATE records SET offset = 7 WHERE topic = '{EVENTS}' AND offset = -1",
    )
    (fault,) = (await report_of(path)).faults
    assert (fault.kind, fault.offset) == ("out_of_order", 6)
    assert "decision 7 follows decision 5" in fault.detail


async def test_a_record_put_in_twice_is_out_of_order(path: Path) -> None:
    """A copy at the end of the log is no decision."""
    async with SqliteLog(path) as log:
        (record,) = await log.read(EVENTS, 0, 6, 1)
        await log.append(EVENTS, 0, [Entry(record.key, record.value, record.headers)])
    (fault,) = (await report_of(path)).faults
    assert fault.kind == "out_of_order"


@pytest.mark.parametrize("offset", [0, 4, 8])
async def test_every_flipped_bit_is_found(path: Path, offset: int) -> None:
    """Each byte of a record, one bit flipped: found, unless it is a text that nothing repeats."""
    with closing(sqlite3.connect(path)) as db:
        (value,) = db.execute(
            "SELECT value FROM records WHERE topic = ? AND offset = ?", (EVENTS, offset)
        ).fetchone()
    missed = []
    log = MemoryLog()
    async with SqliteLog(path, read_only=True) as stored:
        kept = await stored.read(EVENTS, 0, 0, 1000)
    await log.create_topics({EVENTS: TopicState(1)})
    await log.append(EVENTS, 0, [Entry(one.key, one.value, one.headers) for one in kept])
    records = log._store.topics[EVENTS][0]
    good = records[offset]
    for at in range(len(value)):
        flipped = bytes([*value[:at], value[at] ^ 1, *value[at + 1 :]])
        records[offset] = type(good)(
            good.topic, 0, offset, good.time_us, good.key, flipped, good.headers
        )
        if (await verify_log(log, PREFIX)).ok:
            missed.append(at)
    changed = {bytes(value[at : at + 1]) for at in missed}
    # Without a hash over the record itself (the archive has one) some claims cannot be held
    # against anything: free text, numbers that nothing follows from. Never its structure.
    assert not changed & set(b'{}[]":,'), [value[max(0, at - 20) : at + 5] for at in missed]
    assert len(missed) < len(value) * (0.6 if offset == 0 else 0.4)


DAMAGE: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "unknown version": (lambda record: record.update(v=2), "unknown_version"),
    "unknown kind": (lambda record: record.update(kind="note"), "bad_field"),
    "unknown field": (lambda record: record.update(extra=1), "bad_field"),
    "wrong type": (lambda record: record.update(seq="7"), "bad_field"),
    "unknown event": (lambda record: record["events"].append({"type": "x"}), "bad_field"),
    "changed input": (lambda record: record["input"]["data"].update(queue="q2"), "fingerprint"),
    "other cell": (lambda record: record.update(cell="d"), "bad_envelope"),
    "time goes back": (lambda record: record.update(time_us=5), "L5"),
    "skipped seq": (lambda record: record.update(seq=99), "out_of_order"),
    "decided twice": (lambda record: record.update(source=["requests", 0]), "out_of_order"),
    "lease too many": (
        lambda record: record["events"].append(dict(record["events"][-1], lease="x#y/1")),
        "A4",
    ),
    "unknown request": (
        lambda record: record["events"].insert(
            0, {"type": "request.ended", "request": "x#y", "how": "completed"}
        ),
        "bad_field",
    ),
}


@pytest.mark.parametrize(("change", "kind"), DAMAGE.values(), ids=DAMAGE.keys())
async def test_a_changed_record_is_found(
    path: Path, change: Callable[[dict[str, Any]], Any], kind: str
) -> None:
    """Every rule that a record can break is checked, and named with its place."""
    edit(path, 5, change)
    report = await report_of(path)
    fault = report.faults[0]
    assert (fault.kind, fault.topic, fault.partition, fault.offset) == (kind, EVENTS, 0, 5)


async def test_the_first_of_each_kind_is_named(path: Path) -> None:
    """A fault stops the fold, not the search: later ones of other kinds are found too."""
    edit(path, 5, lambda record: record.update(extra=1))
    edit(path, 6, lambda record: record.update(extra=1))
    edit(path, 8, lambda record: record.update(v=9))
    damage(path, f"DELETE FROM records WHERE topic = '{EVENTS}' AND offset = 10")
    report = await report_of(path)
    found = {fault.kind: (fault.offset, fault.more) for fault in report.faults}
    assert found == {"bad_field": (5, 1), "unknown_version": (8, 0), "hole": (10, 0)}


async def test_values_that_are_no_records(path: Path) -> None:
    """Empty, cut and repeated-name values are named by their kind."""
    damage(path, f"UPDATE records SET value = NULL WHERE topic = '{EVENTS}' AND offset = 5")
    damage(path, f"UPDATE records SET value = x'7b22' WHERE topic = '{EVENTS}' AND offset = 6")
    twice = b'{"v":1,"v":1,"kind":"claim"}'
    damage(
        path,
        f"UPDATE records SET value = :value WHERE topic = '{EVENTS}' AND offset = 7",
        value=twice,
    )
    kinds = {fault.kind: fault.offset for fault in (await report_of(path)).faults}
    assert kinds == {"empty_value": 5, "not_json": 6, "duplicate_key": 7}


async def test_a_cell_in_two_partitions_is_a_fault() -> None:
    """Two partitions that decide one cell would not see each other's leases."""
    site = Site(MemoryLog())
    await fill(site)
    log = MemoryLog()
    await log.create_topics({EVENTS: TopicState(2)})
    records = await site.log.read(EVENTS, 0, 0, 1000)
    entries = [Entry(one.key, one.value, one.headers) for one in records]
    for partition in (0, 1):
        await log.append(EVENTS, partition, entries)
    (fault,) = (await verify_log(log, PREFIX)).faults
    assert (fault.kind, fault.partition) == ("cell_twice", 1)
