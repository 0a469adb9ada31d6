"""Bisect: the record it names is one at which the answer changes; a scan names the first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pytest

from ledger.audit.sql import AtLimit, BadQuery, Limits
from ledger.core import digest
from ledger.core.invariants import check
from ledger.reading import Damaged
from ledger.replay.bisect import INVARIANTS, Bisection, Same, Turn
from ledger.replay.sql import _CLASSES, TABLES, StateTables, state_room
from ledger.replay.states import PositionSnapshots, make_snapshots
from ledger.testing import CoreDriver, device
from tests.ledgers import PREFIX
from tests.replay_support import EVENTS, KINDS, drawn, folds_of, log_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from ledger.audit.auditor import Room
    from ledger.core.state import State

#: An expression, and the same in Python over one cell (None before there is one).
EXPRESSIONS: dict[str, Callable[[State | None], bool]] = {
    "SELECT coalesce(max(arrivals), 0) >= 10 FROM cells": lambda one: (
        one is not None and one.arrivals >= 10
    ),
    "SELECT count(*) >= 3 FROM leases": lambda one: one is not None and len(one.leases) >= 3,
    "SELECT bool_and(health = 'healthy') FROM devices": lambda one: (
        one is not None
        and bool(one.devices)
        and all(each.health == "healthy" for each in one.devices.values())
    ),
    "SELECT EXISTS (FROM nodes n JOIN devices d ON d.node = n.id WHERE n.state = 'silent')": (
        lambda one: one is not None and any(each.state == "silent" for each in one.nodes.values())
    ),
    "SELECT count(*) FILTER (state = 'queued') > count(*) FILTER (state = 'granted')"
    " FROM query_table('requests')": lambda one: (
        one is not None
        and sum(each.state == "queued" for each in one.requests.values())
        > sum(each.state == "granted" for each in one.requests.values())
    ),
}


class Rooms:
    """One locked process for all tests of this module."""

    one: Room


ROOMS = Rooms()


@pytest.fixture(scope="module", autouse=True)
def _room() -> Iterator[None]:
    with state_room() as ROOMS.one:
        yield


async def asked(
    values: Sequence[bytes], folder: Path, question: str, *, scan: bool, first: int = 0, **more: Any
) -> Turn | Same:
    """Ask one log in memory; ``question`` is an expression, or an invariant's id."""
    expression = None if question in INVARIANTS else question
    tables = StateTables(expression, ROOMS.one) if expression is not None else None
    invariant = question if tables is None else None
    async with await log_of("memory", folder, values) as log:
        search = Bisection(log, PREFIX, 0, tables=tables, invariant=invariant, **more)
        return await search.run(first, len(values), scan=scan)


def answers(values: Sequence[bytes], holds: Callable[[State | None], bool]) -> list[bool]:
    """Return the answer before the first record, and after each."""
    return [holds(folds_of(values, end).cells.get("c")) for end in range(len(values) + 1)]


@pytest.mark.parametrize("expression", EXPRESSIONS)
@pytest.mark.parametrize("seed", [1, 2])
async def test_it_names_what_evaluating_every_state_names(
    seed: int, expression: str, tmp_path: Path
) -> None:
    """A scan the first change; halving a change, with few states looked at."""
    values = drawn(seed, 50)
    every = answers(values, EXPRESSIONS[expression])
    first = next((at for at, one in enumerate(every) if one != every[0]), None)
    found = await asked(values, tmp_path, expression, scan=True)
    if first is None:
        assert found == Same(every[0])
    else:
        assert isinstance(found, Turn)
        assert (found.position, found.held) == (f"events/0@{first - 1}", every[first])
    halved = await asked(values, tmp_path, expression, scan=False)
    if every[0] == every[-1]:
        assert halved == Same(every[0])
        return
    assert isinstance(halved, Turn)
    at = int(halved.position.partition("@")[2])
    assert (every[at], every[at + 1]) == (every[0], every[-1])
    assert halved.held == every[-1]
    assert halved.evaluated <= 2 + len(values).bit_length()
    assert {one.first for one in halved.changes} == {halved.position}


@pytest.mark.parametrize("scan", [False, True])
async def test_from_a_place_on_and_with_snapshots(scan: bool, tmp_path: Path) -> None:
    """Snapshots change nothing but the time; records before the place are not looked at."""
    values = drawn(1, 80)
    expression = "SELECT arrivals >= 10 FROM cells"
    async with await log_of("memory", tmp_path, values) as log:
        store = PositionSnapshots(tmp_path / "positions", EVENTS)
        async for _ in make_snapshots(log, PREFIX, store, 7):
            pass
    plain = await asked(values, tmp_path, expression, scan=scan)
    quick = await asked(values, tmp_path, expression, scan=scan, stores=[store])
    assert isinstance(plain, Turn)
    assert isinstance(quick, Turn)
    assert (plain.position, plain.changes) == (quick.position, quick.changes)
    at = int(plain.position.partition("@")[2])
    later = await asked(values, tmp_path, expression, scan=scan, first=at + 1, stores=[store])
    assert later == Same(held=True)
    just = await asked(values, tmp_path, expression, scan=scan, first=at)
    assert isinstance(just, Turn)
    assert just.position == plain.position


@pytest.mark.parametrize(
    "expression",
    [
        "SELECT 1",
        "SELECT true, false",
        "SELECT unnest([true, false])",
        "SELECT count(*) FROM leases",
        "SELECT nothing FROM leases",
        "SELECT true; SELECT true",
        "DELETE FROM leases",
        "SET threads = 4",
        "ATTACH ':memory:' AS other",
        "COPY leases TO 'out.csv'",
        "SELECT count(*) > 0 FROM read_csv('/etc/passwd')",
        "SELECT count(*) > 0 FROM '/etc/passwd'",
        "INSTALL httpfs",
    ],
)
def test_an_expression_is_one_select_of_one_boolean_and_reaches_nothing(expression: str) -> None:
    """The lock-down is that of the audit's SQL."""
    with pytest.raises(BadQuery):
        StateTables(expression, ROOMS.one).holds({})


def test_an_expression_is_held_to_its_limits_by_the_kernel() -> None:
    """One that the database itself would not stop ends with its process, and the next is asked."""
    limits = Limits(threads=1, seconds=1.0, memory_mib=256)
    with state_room(limits) as room:
        with pytest.raises(AtLimit):
            StateTables("SELECT length(repeat('x', 4000000000)) > 0", room).holds({})
        assert StateTables("SELECT count(*) = 0 FROM leases", room).holds({})


@pytest.mark.parametrize(
    "expression",
    ["SELECT bool_and(reminded) FROM leases", "SELECT reminded FROM leases WHERE id = 'l'"],
)
def test_null_and_no_row_are_no(expression: str) -> None:
    """What nothing is known of, or is not there yet, does not hold."""
    assert StateTables(expression, ROOMS.one).holds({}) is False


def test_tables_are_those_of_the_state() -> None:
    """Every row of a state of everything fits into its table, and no class is forgotten."""
    assert digest._TABLES == _CLASSES
    cells = folds_of(drawn(2), len(drawn(2))).cells
    counts = [f"(SELECT count(*) FROM {name}) = {_count(cells['c'], name)}" for name in TABLES]
    assert StateTables(f"SELECT {' AND '.join(counts)}", ROOMS.one).holds(cells)


def _count(state: State, table: str) -> int:
    return 1 if table == "cells" else len(getattr(state, table))


# -- invariants ----------------------------------------------------------------


def broken_log() -> tuple[list[bytes], int]:
    """Return a log in which one grant is of fewer devices than were asked for, and where."""
    cell = CoreDriver()
    cell.pool(), cell.queue(), cell.quota()
    cell.node("n1", [device(f"GPU-{which}") for which in "abcdef"])
    cell.submit("r1")
    cell.submit("r2", {"mode": "whole", "count": 2})
    at = len(cell.records) - 1
    cell.submit("r3")
    cell.task_started(cell.lease("r1").id, "n1")
    cell.silent("n1")

    def take_one(event: dict[str, Any]) -> None:
        if event["type"] == "lease.granted":
            event["parts"][0]["units"].pop()

    return [edited(one, take_one) if offset == at else one
            for offset, one in enumerate(cell.records)], at  # fmt: skip


def edited(value: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    """Return a record with each of its events changed."""
    record = orjson.loads(value)
    for event in record["events"]:
        change(event)
    return orjson.dumps(record)


@pytest.mark.parametrize("scan", [False, True])
async def test_the_first_record_that_broke_an_invariant(scan: bool, tmp_path: Path) -> None:
    """Found, with what is broken, what was answered and what it changed."""
    values, at = broken_log()
    found = await asked(values, tmp_path, "A10", scan=scan)
    assert isinstance(found, Turn)
    assert (found.position, found.held) == (f"events/0@{at}", False)
    assert "does not have exactly what was asked" in found.detail
    assert found.seen is not None
    assert found.seen.data["input"]["id"] == "r2"
    assert "leases" in {one.table for one in found.changes}
    assert await asked(values, tmp_path, "A1", scan=scan) == Same(held=True)


@pytest.mark.parametrize("scan", [False, True])
async def test_a_record_that_every_reader_refuses_is_the_answer(scan: bool, tmp_path: Path) -> None:
    """When it is refused for what is asked; else the log is damaged, and said to be."""
    values, at = broken_log()
    good = folds_of(values, at + 1)
    twice = orjson.loads(values[at + 1])
    twice["events"][-1]["parts"] = orjson.loads(values[at - 1])["events"][-1]["parts"]
    values[at + 1] = orjson.dumps(twice)
    assert check(good.cells["c"])
    with pytest.raises(Damaged) as refused:
        await asked(values, tmp_path, "SELECT count(*) > 9 FROM leases", scan=scan)
    code = refused.value.code
    assert code in INVARIANTS
    found = await asked(values, tmp_path, code, scan=scan)
    assert isinstance(found, Turn)
    assert (found.position, found.held, found.seen) == (f"events/0@{at + 1}", False, None)
    assert found.detail == refused.value.detail
    # What broke before is found before, although the log cannot be read to its end.
    before = await asked(values, tmp_path, "A10", scan=scan)
    assert isinstance(before, Turn)
    assert before.position == f"events/0@{at}"


@pytest.mark.parametrize("kind", KINDS)
async def test_no_drawn_history_breaks_an_invariant(kind: str, tmp_path: Path) -> None:
    """After every record, from any kind of log."""
    values = drawn(1, 40)
    async with await log_of(kind, tmp_path, values) as log:
        for name in ("A1", "Q1", "S2"):
            search = Bisection(log, PREFIX, 0, invariant=name)
            assert await search.run(0, len(values), scan=True) == Same(held=True)
