"""SQL over the ledger: answers are right, described, and held to their limits."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from ledger.audit.auditor import Room, load
from ledger.audit.loading import Known, Unreadable, Verdicts, take_rows
from ledger.audit.raw import raw_rows
from ledger.audit.sql import AtLimit, BadQuery, Ledger, Limits
from ledger.audit.sql_texts import REPORTS, TEXTS, VIEWS, parse
from ledger.audit.tables import TABLES
from ledger.core.fold import Fold, LogDamaged
from ledger.log.memory import MemoryLog
from ledger.log.port import Entry, TopicState
from ledger.reading import Damaged, Upto
from ledger.testing import CoreDriver, device
from schemas.events import EVENT_MODELS
from schemas.limits import RECORD_VERSION
from tests.audit_support import fill, room_with
from tests.ledgers import PREFIX, TEAM, Site
from tests.metering_logs import random_log, with_void_records
from tests.replay_support import drawn, folds_of, put

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def room() -> Iterator[Room]:
    """Return a room with a small ledger in it."""

    async def make() -> Room:
        site = Site(MemoryLog())
        await fill(site)
        limits = Limits(rows=100, seconds=1.0, memory_mib=256)
        return (await load(site.log, PREFIX, limits))[0]

    with asyncio.run(make()) as found:
        yield found


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        (
            "SELECT request, state, last_no, leases FROM requests ORDER BY request",
            [
                (f"{TEAM}#a", "completed", None, 1),
                (f"{TEAM}#b", "granted", None, 1),
                (f"{TEAM}#c", "queued", "no_capacity", 0),
                (f"{TEAM}#d", "rejected", "no_capacity", 0),
            ],
        ),
        (
            (
                "SELECT lease, who, tenant, quota, charge_milli, reason, held_us > 0 FROM leases"
                " ORDER BY lease"
            ),
            [
                (f"{TEAM}#a/1", TEAM, "t", "t", 2000, "completed", True),
                (f"{TEAM}#b/1", TEAM, "t", "t", 3000, None, None),
            ],
        ),
        (
            (
                f"SELECT unit, node, cleaned IS NOT NULL FROM holdings"
                f" WHERE lease = '{TEAM}#a/1' ORDER BY unit"
            ),
            [("GPU-0", "n1", True), ("GPU-1", "n1", True)],
        ),
        (
            "SELECT request, tenant, code, answer, numbers->>'free_gpus' FROM denials",
            [(f"{TEAM}#d", "t", "no_capacity", "transient", "1")],
        ),
        ("SELECT type, about, author FROM policy_changes ORDER BY 1 LIMIT 1",
         [("pool.applied", "main", "ops")]),
        ("SELECT kind, verdict, count(*) FROM records GROUP BY ALL ORDER BY 1 LIMIT 1",
         [("claim", "claim", 1)]),
        ("SELECT count(*) FROM decisions", [(10,)]),
        ("SELECT data->>'model' FROM events WHERE device = 'GPU-0' LIMIT 1", [("H100",)]),
        ("FROM events SELECT count(*) WHERE type = 'lease.granted'", [(2,)]),
        ("WITH x AS (SELECT 1 AS a) SELECT a FROM x;", [(1,)]),
        ("SELECT quota, nominal_milli, author FROM quotas", [("t", 100_000, "ops")]),
        ("SELECT utc('2026-03-29T02:30:00+02:00')", [("2026-03-29 00:30:00",)]),
        ("SELECT [1, NULL], {'a': 1.5::DOUBLE}, 1.5::DECIMAL(9, 2), 'x'::BLOB, 'inf'::DOUBLE",
         [([1, None], {"a": 1.5}, "1.50", "78", "inf")]),
        ("SELECT TIMESTAMPTZ '2026-03-29T02:30:00+02:00', now() > TIMESTAMPTZ '2026-01-01'",
         [("2026-03-29 00:30:00+00:00", True)]),
        ("SELECT 170141183460469231731687303715884105727::HUGEINT",
         [(170_141_183_460_469_231_731_687_303_715_884_105_727,)]),
    ],
)  # fmt: skip
def test_answers(room: Room, query: str, rows: list[tuple[object, ...]]) -> None:
    """Tables and views say what the ledger says; values are those of JSON."""
    assert rows == room.ask(query).rows


def test_every_described_column_is_there(room: Room) -> None:
    """Tables, views and macros have the columns that their description names, of those types."""
    for table in TABLES:
        result = room.ask(f"SELECT * FROM {table.name}")
        assert [(name, kind) for name, kind, _ in table.columns] == list(
            zip(result.columns, result.types, strict=True)
        )
    for text in (one for one in TEXTS if one.kind == "view" or not one.scalar):
        call = f"{text.name}({', '.join(['NULL'] * len(text.arguments))})"
        result = room.ask(f"SELECT * FROM {call if text.kind == 'macro' else text.name}")
        assert [(one.name, one.type) for one in text.columns] == list(
            zip(result.columns, result.types, strict=True)
        ), text.name


HEADERS = {
    "no header": "SELECT 1",
    "no description": "-- view: x\nSELECT 1",
    "no query": "-- view: x\n-- one row",
    "not a name": "-- view: X Y\n-- one row\nSELECT 1",
}


@pytest.mark.parametrize("text", HEADERS.values(), ids=HEADERS.keys())
def test_a_text_without_a_description_is_refused(text: str) -> None:
    """A view that says nothing of itself cannot be added."""
    with pytest.raises(ValueError, match=r"header|description"):
        parse(text)


async def test_at_a_record() -> None:
    """Only what was there at that place."""
    site = Site(MemoryLog())
    await fill(site)
    room, ends = await load(site.log, PREFIX, None, Upto(offsets={0: 3}))
    with room:
        assert [(3,)] == room.ask("SELECT count(*) FROM records").rows
    assert (3,) == ends


@pytest.mark.parametrize(
    "query",
    ["", "   ", "-- nothing", "SELEC 1", "SELECT * FROM nowhere", "SELECT 1 +", "SELECT \x00",
     "SELECT '\ud800'"],
)  # fmt: skip
def test_wrong_queries_are_explained(room: Room, query: str) -> None:
    """A mistake is one message, and the room stays usable."""
    with pytest.raises(BadQuery):
        room.ask(query)
    assert [(1,)] == room.ask("SELECT 1").rows


def test_rows_are_limited(room: Room) -> None:
    """More rows than the limit are cut, and it is said."""
    result = room.ask("SELECT * FROM range(101)")
    assert 100 == len(result.rows)
    assert "rows" == result.cut
    assert not room.ask("SELECT * FROM range(100)").cut


async def test_the_size_of_an_answer_is_limited() -> None:
    """Few rows can be large too: what does not fit is cut, and it is said."""
    async with room_with([], limits=Limits(result_mib=1, seconds=5.0)) as room:
        result = room.ask("SELECT repeat('x', 100000) FROM range(50)")
        assert "bytes" == result.cut
        assert 10 == len(result.rows)
        assert (0, "bytes") == _count(room.ask("SELECT repeat('x', 2000000)"))
        names = ", ".join(f'1 AS "{at}{"x" * 900}"' for at in range(5000))
        with pytest.raises(AtLimit, match="larger than 2 MiB"):
            room.ask(f"SELECT {names}")


def _count(result: Any) -> tuple[int, str]:
    return len(result.rows), result.cut


def test_time_is_limited(room: Room) -> None:
    """A query without an end is stopped, and the room stays usable."""
    started = time.monotonic()
    with pytest.raises(AtLimit, match="stopped after 1 s"):
        room.ask(
            "SELECT count(*) FROM range(10000000) a, range(100000) b WHERE a.range + b.range < 0"
        )
    assert time.monotonic() - started < 20
    assert [(1,)] == room.ask("SELECT 1").rows


def test_memory_is_limited(room: Room) -> None:
    """A query that needs more memory than it may have fails; it does not spill into files."""
    for query in (
        "SELECT list(range) FROM range(1000000000)",
        "SELECT length(repeat('x', 4000000000))",
    ):
        with pytest.raises(AtLimit, match="more memory than 256 MiB"):
            room.ask(query)
    assert [(1,)] == room.ask("SELECT 1").rows


async def test_a_ledger_that_does_not_fit_is_said() -> None:
    """Loading is limited too."""
    log = MemoryLog()
    await put(log, PREFIX, random_log(3, 400))
    with pytest.raises(AtLimit, match="does not fit into 2 MiB"):
        await load(log, PREFIX, Limits(memory_mib=2))


# -- what is believed of a record -------------------------------------------------


@pytest.mark.parametrize("seed", range(2))
async def test_s2_verdicts_are_those_of_the_fold(seed: int) -> None:
    """S2, S3, L3, L6: the SQL believes of each record what every other reader does."""
    values = with_void_records(drawn(seed, 60), Random(seed))
    fold = Fold()
    wanted = [fold.apply(offset, value)[0] for offset, value in enumerate(values)]
    async with room_with(values) as room:
        found = room.ask('SELECT verdict FROM records ORDER BY "offset"').rows
        assert wanted == [verdict for (verdict,) in found]
        assert "void" in wanted
        counts = room.ask(
            "SELECT (SELECT count(*) FROM claims), (SELECT count(*) FROM decisions),"
            " (SELECT count(*) FROM voids)"
        ).rows[0]
        # S5: what was read is what had an effect, and what is said to have had none.
        assert (fold.head.claims, fold.head.decisions, fold.head.void) == counts
        assert sum(counts) == len(values)
        why = dict(room.ask("SELECT why, count(*) FROM voids GROUP BY why").rows)
        assert sum(why.values()) == fold.head.void
        assert set(why) <= {"token", "seq", "source"}


async def test_s3_void_records_change_no_view() -> None:
    """S3: what others wrote into the log without effect is no part of any answer."""
    clean = drawn(2, 60)
    dirty = with_void_records(clean, Random(1))
    answers = []
    for values in (clean, dirty):
        async with room_with(values) as room:
            answers.append(
                {
                    name: _without_places(room, name)
                    for name in ("requests", "leases", "holdings", "waits", "quotas", "orders",
                                 "nodes", "devices", "slices", "interruptions", "quota_use")
                }
            )  # fmt: skip
    assert answers[0] == answers[1]
    assert answers[0]["leases"]


def _without_places(room: Room, view: str) -> list[tuple[Any, ...]]:
    left = [one.name for one in next(each for each in VIEWS if each.name == view).columns]
    kept = [f'"{one}"' for one in left if "offset" not in one and one != "position"]
    return room.ask(f"SELECT {', '.join(kept)} FROM {view} ORDER BY ALL").rows


def _changed(change: Any) -> list[bytes]:
    values = list(drawn(1, 20))
    record = orjson.loads(values[9])
    values[9] = change(record)
    return values


def _with(**more: Any) -> Any:
    return lambda record: orjson.dumps({**record, **more})


def _event_of(kind: str | None) -> Any:
    return lambda record: orjson.dumps({**record, "events": [{"type": kind}]})


DAMAGE: dict[str, tuple[Any, str]] = {
    "not JSON": (lambda _: b"{", "not_json"),
    "half a line (C53)": (lambda record: orjson.dumps(record)[:-9], "not_json"),
    "a trailer (C53)": (lambda record: orjson.dumps(record) + b"TRAILER", "not_json"),
    "not text": (lambda _: b'{"v":1,"kind":"\xff"}', "not_json"),
    "empty": (lambda _: b"", "empty_value"),
    "a list": (lambda _: b"[1]", "not_an_object"),
    "a later version (L7)": (_with(v=2), "unknown_version"),
    "another kind (L7)": (_with(kind="other"), "unknown_type"),
    "an unknown event (L7)": (_event_of("lease.invented"), "bad_field"),
    "an event without a type": (_event_of(None), "bad_field"),
    "no source": (_with(source=None), "bad_field"),
    "no cell": (_with(cell=None), "bad_field"),
    "no events": (_with(events=None), "bad_field"),
}


@pytest.mark.parametrize(("change", "code"), DAMAGE.values(), ids=DAMAGE.keys())
async def test_c53_l7_what_no_reader_can_take_stops_the_load(change: Any, code: str) -> None:
    """C53, L7: nothing is skipped; the place is named, with the code that the fold gives."""
    values = _changed(change)
    with pytest.raises(LogDamaged) as stopped:
        folds_of(values, len(values))
    log = MemoryLog()
    await log.create_topics({f"{PREFIX}.events": TopicState(1)})
    await log.append(f"{PREFIX}.events", 0, [Entry(b"c", value) for value in values])
    assert (9, code) == await _stopped(log)
    assert (9, code) == (stopped.value.offset, stopped.value.code)


async def _stopped(log: MemoryLog) -> tuple[int, str] | None:
    """Return where loading stops, and with which code; as the room loads, without its process."""
    ledger = Ledger(Limits(), TABLES)
    known = Known(RECORD_VERSION, list(EVENT_MODELS))
    try:
        async for rows in raw_rows(log, PREFIX, 0):
            take_rows(ledger.db, rows, Verdicts(), known)
    except (Unreadable, Damaged) as fault:
        return fault.offset, fault.code
    finally:
        ledger.close()
    return None


async def test_what_no_reader_can_take_stops_the_room() -> None:
    """The process with the copy says where, and the one that asks raises it as every reader."""
    log = MemoryLog()
    await log.create_topics({f"{PREFIX}.events": TopicState(2)})
    await log.append(f"{PREFIX}.events", 0, [Entry(b"c", drawn(1, 20)[0]), Entry(b"c", b"{")])
    await log.append(f"{PREFIX}.events", 1, [Entry(b"c", drawn(1, 20)[0])])
    with pytest.raises(Damaged, match=r"gpuledger.events/0@1: not_json"):
        await load(log, PREFIX)


def _views_in_documents() -> Iterator[str]:
    text = (Path(__file__).parent.parent / "docs" / "audit.md").read_text()
    yield from re.findall(r"(?m)^\| `([a-z_]+)` \|", text)


def test_the_document_lists_every_view() -> None:
    """docs/audit.md names each table and view once."""
    names = [one.name for one in TABLES] + [one.name for one in VIEWS]
    found = [name for name in _views_in_documents() if name in names]
    assert sorted(names) == sorted(found)


def test_a_value_that_python_has_not_is_told_as_that(room: Room) -> None:
    """Not as a lack of memory; as text there is an answer."""
    with pytest.raises(BadQuery, match="CAST it to VARCHAR") as told:
        room.ask("SELECT INTERVAL '10000000 years'")
    assert not isinstance(told.value, AtLimit)
    found = room.ask("SELECT CAST(INTERVAL '10000000 years' AS VARCHAR)")
    assert [("10000000 years",)] == found.rows


HOUR_US = 3_600_000_000


def site_of_two() -> CoreDriver:
    """Return a cell with two devices, two tenants, and a queue whose requests evict."""
    cell = CoreDriver()
    cell.pool(silent_grace_s=500_000_000), cell.queue(), cell.quota(), cell.quota("u")
    cell.queue("urgent", preemption="any-tenant")
    cell.node("n1", [device("GPU-a"), device("GPU-b")])
    return cell


def forget(cell: CoreDriver) -> None:
    """Let 34 days pass: ids of what has ended may be used again."""
    for _ in range(34):
        # A day, and a record of it: what is old is forgotten with the records.
        cell.quota("other", nominal_gpu_milli=cell.now_us % 1_000)
        cell.now_us += 24 * HOUR_US


async def test_an_id_that_is_used_again_once_it_is_forgotten_is_another_lease() -> None:
    """After 32 days a source may use one again: each of both leases has its own time."""
    cell, ask = site_of_two(), {"mode": "whole", "count": 2}
    for held_us in (HOUR_US, HOUR_US // 2):
        assert "granted" == cell.submit("r", ask).code
        cell.release(cell.lease("r").id, at_us=cell.now_us + held_us)
        cell.answer_all_orders()
        forget(cell)
    async with room_with(cell.records) as room:
        assert [(HOUR_US, True), (HOUR_US // 2, True)] == room.ask(
            "SELECT held_us, epoch_us(ended) - epoch_us(granted) = held_us FROM leases"
            " ORDER BY granted"
        ).rows
        assert [(4, 4000, True)] == room.ask(
            "SELECT count(*), CAST(sum(charge_milli) AS BIGINT), bool_and(cleaned > ended"
            " AND cleaned < ended + INTERVAL 1 HOUR) FROM holdings"
        ).rows
        assert [("10800.000000000",)] == room.ask(
            "SELECT gpu_seconds('t', '1970-01-01', '1980-01-01')"
        ).rows


def lives_twice() -> CoreDriver:
    """Return a cell in which tenant t's requests have lived, and then u's of the same ids.

    ``victim`` is idle and evicted for ``urgent`` while ``waits`` waits in vain. Only t's is
    granted again, an hour later, and an operator takes it back.
    """
    cell, ask = site_of_two(), {"mode": "whole", "count": 2}
    for tenant in ("t", "u"):
        assert "granted" == cell.submit("victim", ask, tenant=tenant, preemptible=True).code
        lease = cell.lease("victim").id
        cell.task_started(lease, "n1")
        cell.says("task.use", "n1", lease=lease, idle=True)
        cell.submit("waits", tenant=tenant, max_wait_s=60)
        cell.submit("urgent", ask, tenant=tenant, queue="urgent", priority=100)
        cell.task_ended(lease, "n1"), cell.answer_all_orders()
        if tenant == "u":
            cell.cancel("victim")
        cell.release(cell.lease("urgent").id, at_us=cell.now_us + HOUR_US)
        cell.answer_all_orders()
        if tenant == "t":
            again = cell.lease("victim").id
            cell.reclaim(again), cell.task_ended(again, "n1"), cell.answer_all_orders()
        assert not cell.state.requests
        forget(cell)
    return cell


#: What is asked of the cell whose ids have lived twice, and what is so of each life.
LIVES: dict[str, tuple[str, list[tuple[Any, ...]]]] = {
    "requests": (
        "SELECT request, tenant, state, leases, ended - received < INTERVAL 1 DAY FROM requests",
        [
            ("urgent", "t", "completed", 1, True), ("urgent", "u", "completed", 1, True),
            ("victim", "t", "reclaimed", 2, True), ("victim", "u", "cancelled", 1, True),
            ("waits", "t", "expired", 0, True), ("waits", "u", "expired", 0, True),
        ],
    ),
    "waits": (
        "SELECT request, tenant, queue, code FROM waits WHERE request LIKE '%waits'",
        [("waits", "t", "q", "no_capacity"), ("waits", "u", "q", "no_capacity")],
    ),
    "interruptions": (
        "SELECT request, tenant, reason, request_state, again IS NOT NULL FROM interruptions",
        [
            ("victim", "t", "preempted", "reclaimed", True),
            ("victim", "t", "reclaimed", "reclaimed", False),
            ("victim", "u", "preempted", "cancelled", False),
        ],
    ),
    "preemptions": (
        ("SELECT by_request, tenant, by_tenant, by_priority, ended - time < INTERVAL 1 DAY"
        " FROM preemptions"),
        [("urgent", "t", "t", 100, True), ("urgent", "u", "u", 100, True)],
    ),
    "idles": (
        'SELECT lease, tenant, charge_milli, "then" FROM idles',
        [("victim/1", "t", 2000, "preempted"), ("victim/1", "u", 2000, "preempted")],
    ),
    "denials": (
        "SELECT request, tenant, code FROM denials",
        [("waits", "t", "wait_expired"), ("waits", "u", "wait_expired")],
    ),
    "what there was at an instant of the second life": (
        ("SELECT a.id, a.kind, a.tenant, a.state FROM as_of("
        "(SELECT max(since) FROM idles)) a WHERE a.kind IN ('request', 'lease')"),
        [("victim", "request", "u", "granted"), ("victim/1", "lease", "u", "running")],
    ),
}  # fmt: skip

REPORTS_OF_LIVES: dict[str, tuple[tuple[str, ...], list[tuple[Any, ...]]]] = {
    "longest-waits": (
        ("request", "tenant", "state"),
        [("urgent", "t", "completed"), ("urgent", "u", "completed"),
         ("victim", "t", "reclaimed"), ("victim", "u", "cancelled"),
         ("waits", "t", "expired"), ("waits", "u", "expired")],
    ),
    "ordered-by": (("tenant", "requests", "leases"), [("t", 3, 3), ("u", 3, 2)]),
    "taken-back": (("lease", "tenant"), [("victim/2", "t")]),
    "not-clean": (("lease",), []),
}  # fmt: skip


async def test_ids_that_are_used_again_are_kept_apart() -> None:
    """What an id did in its second life is not told of its first, nor the other way round."""
    async with room_with(lives_twice().records) as room:

        def ask(query: str, **parameters: str | None) -> list[tuple[Any, ...]]:
            rows = room.ask(query, parameters).rows
            return sorted((row[0].removeprefix(f"{TEAM}#"), *row[1:]) for row in rows)

        for name, (query, wanted) in LIVES.items():
            assert wanted == ask(query), name
        for name, (columns, wanted) in REPORTS_OF_LIVES.items():
            report = REPORTS[name]
            given = {one.name: None for one in report.parameters}
            query = f"SELECT {', '.join(columns)} FROM ({report.query})"
            assert wanted == ask(query, **given), name


def test_columns_of_one_name_are_told_apart(room: Room) -> None:
    """A row as a JSON object keeps all values; a name that is there already is not taken."""
    found = room.ask("SELECT 1 AS n, 2 AS n, 3 AS n, 4 AS n_2, 5 AS m")
    assert (("n", "n_3", "n_4", "n_2", "m"), [(1, 2, 3, 4, 5)]) == (found.columns, found.rows)
