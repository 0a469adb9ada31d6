"""The ready questions: each answer against one worked out in plain Python from the records."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from ledger.audit.auditor import Room, load
from ledger.audit.sql import Limits
from ledger.audit.sql_texts import REPORTS
from ledger.log.memory import MemoryLog
from ledger.testing import CoreDriver, device
from tests.audit_support import time_text
from tests.ledgers import PREFIX
from tests.metering_logs import random_log
from tests.replay_support import put
from tests.report_oracle import Oracle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Row = tuple[Any, ...]

#: Instants that the questions are asked about: within the drawn log, and of the site's.
FIRST, LAST = 300_000_000, 1_500_000_000
AT = 900_000_000


def site() -> tuple[bytes, ...]:
    """Return the records of a cell in which operators act and ids are used twice."""
    cell = CoreDriver("d")
    cell.pool()
    cell.queue()
    cell.quota(nominal_gpu_milli=4000)
    cell.node("n1", [device(f"GPU-d{at}") for at in range(4)])
    cell.submit("r1", {"mode": "whole", "count": 2})
    cell.submit("r1", {"mode": "whole", "count": 3})
    cell.submit("r2", {"mode": "whole", "count": 1}, max_run_s=2)
    more = {"author": "first", "reason": "more work"}
    ask = {"tenant": "t", "nominal_gpu_milli": 5000, **more}
    cell.feed("quota.ask", ask, source="/operator", id="ask")
    cell.now_us += 5_000_000
    answer = {"ask": "/operator#ask", "approve": True, "author": "second", "reason": "agreed"}
    cell.feed("quota.answer", answer, source="/operator")
    cell.queue(max_gpus=3, ordering="strict")
    cell.quota(nominal_gpu_milli=1000)
    cell.now_us += 60_000_000
    cell.reclaim(cell.lease("r1").id)
    cell.answer_all_orders()
    cell.submit("r3", {"mode": "whole", "count": 9})
    cell.now_us += 60_000_000
    cell.feed("tick", {}, source="/tick")
    return tuple(cell.records)


def broken() -> tuple[bytes, ...]:
    """Return records as no ledger writes them: a card is given to two, and not cleaned between."""
    cell = CoreDriver("e")
    cell.pool()
    cell.queue()
    cell.quota()
    cell.node("n1", [device("GPU-e")])
    for name in ("a", "b", "c"):
        cell.submit(name)
    records = [orjson.loads(one) for one in cell.records]
    grant = next(
        one for record in records[1:] for one in record["events"] if one["type"] == "lease.granted"
    )

    def say(*events: dict[str, Any]) -> None:
        last = records[-1]
        source = [last["source"][0], last["source"][1] + 1]
        records.append({**last, "seq": last["seq"] + 1, "source": source, "events": list(events),
                        "time_us": last["time_us"] + 1_000_000})  # fmt: skip

    def granted(name: str) -> dict[str, Any]:
        return {**grant, "lease": f"/team/a#{name}/1", "request": f"/team/a#{name}"}

    ended = {"type": "lease.ended", "lease": "/team/a#a/1", "reason": "completed", "held_us": 1}
    say(granted("b"))
    say(ended)
    say({**ended, "lease": "/team/a#b/1"}, granted("c"))
    return tuple(orjson.dumps(one) for one in records)


PARTITIONS = (random_log(3, 400), site(), broken())
ORACLE = Oracle(*PARTITIONS)


@pytest.fixture(scope="module")
def room() -> Iterator[Room]:
    """Return a room with the three cells in it."""

    async def make() -> Room:
        log = MemoryLog()
        await put(log, PREFIX, *PARTITIONS)
        return (await load(log, PREFIX, Limits(rows=100_000)))[0]

    with asyncio.run(make()) as found:
        yield found


SHARE = next(
    lease.id
    for lease in ORACLE.leases.values()
    if ORACLE.mode(lease) == "share" and ORACLE.neighbours(lease.id)
)
WAITED = max(ORACLE.longest_waits(), key=lambda row: row[4])[0]
DEVICE = "GPU-a"
WINDOW: dict[str, int | str] = {"from": FIRST, "to": LAST}

#: Report -> (parameters, times in µs; the right answer).
ANSWERS: dict[str, tuple[dict[str, int | str], Callable[[], list[Row]]]] = {
    "who-held": ({"at": AT}, lambda: ORACLE.who_held(AT)),
    "device-history": ({"device": DEVICE}, lambda: ORACLE.device_history(DEVICE)),
    "lease-life": ({"lease": SHARE}, lambda: ORACLE.lease_life(SHARE)),
    "neighbours": ({"lease": SHARE}, lambda: ORACLE.neighbours(SHARE)),
    "held-and-idle": (WINDOW, lambda: ORACLE.held_and_idle(FIRST, LAST)),
    "overdue": ({}, ORACLE.overdue),
    "held-twice": ({}, ORACLE.held_twice),
    "not-clean": ({}, ORACLE.not_clean),
    "over-quota": (WINDOW, lambda: ORACLE.over_quota(FIRST, LAST)),
    "quota-history": ({}, ORACLE.quota_history),
    "quota-raises": ({}, ORACLE.quota_raises),
    "gpu-seconds": (WINDOW, lambda: ORACLE.gpu_time(FIRST, LAST)),
    "ordered-by": ({}, ORACLE.ordered_by),
    "preemptions": ({}, ORACLE.preemptions),
    "interrupted": ({}, ORACLE.interrupted),
    "taken-back": ({}, ORACLE.taken_back),
    "layout-changes": ({}, ORACLE.layout_changes),
    "denials": ({}, ORACLE.denials),
    "waits-of": ({"request": WAITED}, lambda: ORACLE.waits_of(WAITED)),
    "longest-waits": ({}, ORACLE.longest_waits),
    "unanswered": ({}, ORACLE.unanswered),
    "conflicts": ({}, ORACLE.conflicts),
    "operator-acts": ({}, ORACLE.operator_acts),
    "policy-diff": (WINDOW, lambda: ORACLE.policy_diff(FIRST, LAST)),
    "writers": ({}, ORACLE.writers),
}


def ask(room: Room, name: str, given: dict[str, int | str]) -> Any:
    """Ask a ready question; times are told as text, what is left out is any."""
    values = {
        key: time_text(value) if isinstance(value, int) else value for key, value in given.items()
    }
    parameters = {one.name: values.get(one.name) for one in REPORTS[name].parameters}
    assert set(given) <= set(parameters)
    return room.ask(REPORTS[name].query, parameters)


def test_there_are_25_questions() -> None:
    """Each has an answer here, and the names of the operations' reports are free."""
    assert 25 == len(REPORTS)
    assert set(REPORTS) == set(ANSWERS)
    assert not {"ops", "acceptance", "capacity", "weekly", "list"} & set(REPORTS)


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_what_the_records_say(room: Room, name: str) -> None:
    """The rows are those of the oracle, there are some, and the columns are as described."""
    given, wanted = ANSWERS[name]
    found = ask(room, name, given)
    described = [(one.name, one.type) for one in REPORTS[name].columns]
    assert described == list(zip(found.columns, found.types, strict=True))
    assert sorted(wanted(), key=repr) == sorted(found.rows, key=repr)
    assert found.rows, "the made log has no case of it"


def _same(rows: list[Row], at: int, value: str) -> list[Row]:
    return [row for row in rows if row[at] == value]


#: Report, parameter that narrows it -> its value, and the rows of the whole that are left.
NARROWED: dict[tuple[str, str], tuple[str, Callable[[], list[Row]]]] = {
    ("who-held", "device"): (DEVICE, lambda: _same(ORACLE.who_held(AT), 1, DEVICE)),
    ("who-held", "tenant"): ("u", lambda: _same(ORACLE.who_held(AT), 3, "u")),
    ("who-held", "node"): ("n4", lambda: _same(ORACLE.who_held(AT), 2, "n4")),
    ("held-and-idle", "tenant"): (
        "t", lambda: _same(ORACLE.held_and_idle(None, None), 0, "t")),
    ("over-quota", "tenant"): ("t", lambda: _same(ORACLE.over_quota(None, None), 0, "t")),
    ("quota-history", "tenant"): (
        "t", lambda: [row for row in ORACLE.quota_history() if row[0].split("/")[0] == "t"]),
    ("ordered-by", "who"): ("/team/b", lambda: _same(ORACLE.ordered_by(), 0, "/team/b")),
    ("preemptions", "tenant"): (
        "v", lambda: [row for row in ORACLE.preemptions() if "v" in (row[1], row[4])]),
    ("interrupted", "node"): ("n2", lambda: _same(ORACLE.interrupted(), 3, "n2")),
    ("layout-changes", "node"): ("n2", lambda: _same(ORACLE.layout_changes(), 1, "n2")),
    ("denials", "tenant"): ("v", lambda: _same(ORACLE.denials(), 0, "v")),
    ("longest-waits", "tenant"): ("t", lambda: _same(ORACLE.longest_waits(), 1, "t")),
    ("unanswered", "tenant"): ("u", lambda: _same(ORACLE.unanswered(), 1, "u")),
    ("operator-acts", "who"): ("second", lambda: _same(ORACLE.operator_acts(), 1, "second")),
}  # fmt: skip


@pytest.mark.parametrize(("name", "parameter"), NARROWED)
def test_a_question_is_narrowed(room: Room, name: str, parameter: str) -> None:
    """An option leaves the rows that it names, and no others."""
    value, wanted = NARROWED[name, parameter]
    given: dict[str, int | str] = {parameter: value} | ({"at": AT} if name == "who-held" else {})
    assert sorted(wanted(), key=repr) == sorted(ask(room, name, given).rows, key=repr)


def _half_open(rows: list[Row], at: int) -> list[Row]:
    first, last = time_text(FIRST), time_text(LAST)
    assert first is not None
    assert last is not None
    return [row for row in rows if first <= row[at] < last]


#: Report -> what of the whole lies in the window, by the column of its time.
IN_TIME: dict[str, Callable[[], list[Row]]] = {
    "preemptions": lambda: _half_open(ORACLE.preemptions(), 0),
    "interrupted": lambda: _half_open(ORACLE.interrupted(), 0),
    "taken-back": lambda: _half_open(ORACLE.taken_back(), 0),
    "layout-changes": lambda: _half_open(ORACLE.layout_changes(), 0),
    "quota-raises": lambda: _half_open(ORACLE.quota_raises(), 0),
    "overdue": lambda: _half_open(ORACLE.overdue(), 2),
    "operator-acts": lambda: _half_open(ORACLE.operator_acts(), 0),
}


@pytest.mark.parametrize("name", IN_TIME)
def test_a_question_has_a_window(room: Room, name: str) -> None:
    """From an instant until before another (M2)."""
    found = ask(room, name, WINDOW).rows
    assert sorted(IN_TIME[name](), key=repr) == sorted(found, key=repr)
