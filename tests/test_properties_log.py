"""L1 to L7 as properties: on logs to which everything happens, disturbed at drawn places."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from ledger.archive.check import check_archive
from ledger.archive.folder import list_partition
from ledger.archive.follow import Follower, Options
from ledger.core.digest import digest
from ledger.core.fold import Fold, LogDamaged
from ledger.log.archive import ArchiveLog
from ledger.log.kafka import KafkaLog
from ledger.log.memory import MemoryLog
from ledger.log.partition import partition_of
from ledger.log.port import Entry, Log, Record, TopicState
from ledger.log.sqlite import SqliteLog
from ledger.reading import Damaged, fold_log, read_events
from ledger.shard import Fenced, Shard, ShardOptions
from ledger.testing import CoreDriver, device
from ledger.verify import verify_log
from ledger.wire import input_entry
from schemas.limits import RECORD_VERSION
from schemas.records import LedgerRecord
from schemas.topics import TOPICS, full_name
from schemas.upcast import UPCASTERS, UnknownVersion, upcast
from tests.ledgers import PREFIX, Site
from tests.metering_logs import metered, with_void_records
from tests.property_support import (
    KINDS,
    chances,
    decisions,
    driver_at,
    few,
    folded,
    histories,
    history,
    new_log,
    redecide,
    submission,
)
from tests.replay_support import EVENTS, put
from tests.test_metering import booked

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

PARTITIONS = 3


@asynccontextmanager
async def opened(
    kind: str, clock: Callable[[], int] | None = None
) -> AsyncIterator[tuple[Log, Path]]:
    """Open an empty log with a topic of events, and a folder beside it."""
    with TemporaryDirectory() as folder:
        async with new_log(kind, Path(folder), clock) as log:
            await log.create_topics({EVENTS: TopicState(PARTITIONS)})
            yield log, Path(folder)


async def everything(log: Log, topic: str = EVENTS) -> list[list[Record]]:
    """Return all records of a topic, by partition."""
    found: list[list[Record]] = []
    for number in range(await log.partitions(topic)):
        mine: list[Record] = []
        while more := await log.read(topic, number, len(mine), 10_000):
            mine += more
        found.append(mine)
    return found


# -- L1 ------------------------------------------------------------------------


def known(cell: CoreDriver) -> list[dict[str, Any]]:
    """Return the inputs that a cell still knows by their ids, as their records have them."""
    found = {}
    for at in decisions(cell.records):
        record = orjson.loads(cell.records[at])
        one = record["input"]
        key = f"{one['source']}#{one['id']}"
        request, entry = cell.state.requests.get(key), cell.state.seen.get(key)
        first = request.fp if request is not None else entry[0] if entry is not None else ""
        if record["source"][0] == "requests" and first == one["fp"]:
            found[key] = one
    return list(found.values())


def repeat(cell: CoreDriver, one: dict[str, Any], other: dict[str, Any]) -> Any:
    """Feed the content of ``other`` under the id of ``one``, without time passing."""
    return cell.feed(
        other["type"], other["data"], source=one["source"], id=one["id"],
        at_us=cell.state.now_us,
    )  # fmt: skip


@few
@given(histories, chances)
def test_l1_the_same_again_changes_nothing(values: tuple[bytes, ...], chance: Random) -> None:
    """Repeated at any places: not one record more, and the rest of the history as it was."""
    cell = driver_at(values, chance.randint(len(values) // 2, len(values)))
    for value in values[len(cell.records) :]:
        if chance.random() < 0.3:
            one = chance.choice(known(cell))
            before = len(cell.records), cell.digest()
            assert "duplicate" == repeat(cell, one, one).code
            assert before == (len(cell.records), cell.digest())
        redecide(cell, value)
    assert list(values) == cell.records


@few
@given(histories, chances)
def test_l1_other_content_is_a_recorded_conflict(values: tuple[bytes, ...], chance: Random) -> None:
    """It is on record with both contents, changes nothing, and the first content stays."""
    cell = driver_at(values, chance.randint(len(values) // 2, len(values)))
    before = cell.digest()
    for _ in range(3):
        one, other = chance.choice(known(cell)), chance.choice(known(cell))
        if one["fp"] == other["fp"]:
            continue
        count = len(cell.records)
        said = repeat(cell, one, other)
        assert ("id_conflict", []) == (said.code, said.events)
        record = orjson.loads(cell.records[count])
        assert {"first": one["fp"], "now": other["fp"]} == record["outcome"]["numbers"]
        assert (one["source"], one["id"]) == (record["input"]["source"], record["input"]["id"])
        assert before == cell.digest() == digest(cell.replayed().cells)
        assert "duplicate" == repeat(cell, one, one).code


# -- L2 ------------------------------------------------------------------------


def drawn_entries(chance: Random, tag: int) -> list[Entry]:
    """Return up to six entries that no other call returns."""
    return [
        Entry(b"cell-%d" % chance.randrange(9), b"%d-%d" % (tag, number))
        for number in range(chance.randrange(7))
    ]


@pytest.mark.parametrize("kind", KINDS)
@few
@given(chance=chances)
def test_l2_offsets_are_dense(kind: str, chance: Random) -> None:
    """However it was appended and however it is read: from 0, one after the other, in order."""

    async def run() -> None:
        written: list[list[Entry]] = [[] for _ in range(PARTITIONS)]
        async with opened(kind) as (log, _):
            for tag in range(chance.randrange(10)):
                partition = chance.choice([None, *range(PARTITIONS)])
                new = drawn_entries(chance, tag)
                offsets = await log.append(EVENTS, partition, new)
                for entry, offset in zip(new, offsets, strict=True):
                    place = partition_of(entry.key, PARTITIONS) if partition is None else partition
                    assert offset == len(written[place])
                    written[place].append(entry)
            for number, wanted in enumerate(written):
                found: list[Record] = []
                while more := await log.read(EVENTS, number, len(found), chance.randint(1, 9)):
                    found += more
                assert list(range(len(wanted))) == [one.offset for one in found]
                assert wanted == [Entry(one.key, one.value, one.headers) for one in found]
                assert (0, len(wanted)) == (
                    await log.begin(EVENTS, number), await log.end(EVENTS, number),
                )  # fmt: skip

    asyncio.run(run())


@few
@given(histories, chances)
def test_l2_a_hole_is_named(values: tuple[bytes, ...], chance: Random) -> None:
    """Records that are missing anywhere stop the reader at the first of them."""
    first = chance.randrange(len(values) - 1)
    end = chance.randint(first + 1, len(values) - 1)

    async def run() -> None:
        log = MemoryLog()
        await put(log, PREFIX, values)
        del log._store.topics[EVENTS][0][first:end]
        with pytest.raises(Damaged) as stopped:
            await fold_log(log, PREFIX)
        assert (EVENTS, 0, first, "gap") == (
            stopped.value.topic, stopped.value.partition, stopped.value.offset, stopped.value.code,
        )  # fmt: skip

    asyncio.run(run())


@pytest.mark.parametrize("seed", range(6))
def test_l2_files_tile_the_log(seed: int) -> None:
    """Followed at any times into files of any length; one that is missing leaves its range."""
    values, chance = history(seed), Random(seed)

    async def run() -> None:
        options = Options(("events",), every=chance.randint(5, 60))
        async with opened("memory") as (log, folder):
            at = 0
            while at < len(values):
                count = chance.randint(1, 60)
                await log.append(EVENTS, 1, [Entry(b"c", one) for one in values[at : at + count]])
                at += count
                if chance.random() < 0.6 or at >= len(values):
                    await Follower(log, PREFIX, folder / "archive", options).once()
            files = list_partition(folder / "archive", EVENTS, 1).files
            assert (0, len(values) - 1) == (files[0].first, files[-1].last)
            assert all(one.last + 1 == two.first for one, two in pairwise(files))
            assert not check_archive(folder / "archive").wrong
            async with ArchiveLog(folder / "archive") as archive:
                assert await everything(log) == await everything(archive)
            if len(files) > 2:
                gone = chance.choice(files[1:-1])
                gone.path.unlink()
                holes = list_partition(folder / "archive", EVENTS, 1).holes
                assert [(gone.first, gone.last + 1)] == holes

    asyncio.run(run())


# -- L3 ------------------------------------------------------------------------


@few
@given(histories, chances)
def test_l3_of_two_decisions_on_one_sequence_one_counts(
    values: tuple[bytes, ...], chance: Random
) -> None:
    """Two that decided on the same state, at any place: the first counts, the other is void."""
    at = chance.randint(len(values) // 4, len(values))
    owners = [driver_at(values, at), driver_at(values, at)]
    for number, owner in enumerate(owners):
        # The sequence alone has to tell: by its source the later one would count.
        owner._offsets["requests"] += number
        owner.submit(f"new-{number}", source=f"/team/{number}", tenant="t")
    chance.shuffle(owners)
    first, second = owners
    fold = folded(values[:at])
    assert "effective" == fold.apply(at, first.records[at])[0]
    assert "void" == fold.apply(at + 1, second.records[at])[0]
    assert first.digest() == digest(fold.cells) != second.digest()
    assert first.fold.head.seq == fold.head.seq


@few
@given(histories, chances)
def test_l3_what_was_decided_on_a_state_that_never_was_is_void(
    values: tuple[bytes, ...], chance: Random
) -> None:
    """Without one decision none of the later ones counts; with all of them they are dense."""
    taken = chance.choice(decisions(values))
    fold = Fold()
    for number, at in enumerate(decisions(values), 1):
        assert number == orjson.loads(values[at])["seq"]
    for at, value in enumerate([*values[:taken], *values[taken + 1 :]]):
        verdict, _ = fold.apply(at, value)
        assert at < taken or verdict != "effective"
    assert digest(folded(values[:taken]).cells) == digest(fold.cells)


async def contended(chance: Random, watch: Callable[[Log], Awaitable[None]]) -> Site:
    """Let two workers, each sure of itself, decide what comes; ``watch`` after each act."""
    log = MemoryLog()
    site = Site(log)
    await site.start()
    workers = [site.shard, Shard(log, 0, ShardOptions(snapshot_every=0))]
    await workers[1].load()
    for step in range(20):
        new = [submission(10 * step + one, chance) for one in range(chance.randrange(4))]
        if chance.random() < 0.3:
            # Late: an earlier request again, or the end of a lease that may be long over.
            about = f"r{10 * chance.randrange(step + 1)}"
            late = {"lease": f"/team/a#{about}/1"}
            new.append(input_entry("c", "lease.release", "/team/a", f"late-{step}", late))
            new.append(submission(int(about[1:]), chance))
        await log.append(full_name(PREFIX, "requests"), 0, new)
        which = chance.randrange(2)
        try:
            position = workers[which].position["requests"]
            records = await log.read(full_name(PREFIX, "requests"), 0, position, 5)
            await workers[which].take("requests", records)
        except Fenced:
            workers[which] = Shard(log, 0, ShardOptions(snapshot_every=0))
            await workers[which].load()
        await watch(log)
    site.shard = Shard(log, 0, ShardOptions(snapshot_every=0))
    await site.shard.load()
    await site.pump()
    return site


async def unwatched(_: Log) -> None:
    """Look at nothing."""


async def test_l3_of_two_owners_one_counts() -> None:
    """However two workers take turns: decisions are dense, and each input has one at most."""
    void = 0
    for seed in range(5):
        site = await contended(Random(seed), unwatched)
        fold, sources = Fold(), Counter[tuple[str, int]]()
        async for seen in read_events(site.log, PREFIX, 0, fold):
            if seen.verdict == "effective":
                topic, offset = seen.data["source"]
                sources[topic, offset] += 1
                assert sources.total() == seen.data["seq"]
        assert 1 == max(sources.values())
        asked = [one.headers for one in (await everything(site.log, f"{PREFIX}.requests"))[0]]
        ids = {dict(headers)["ce_id"].decode() for headers in asked}
        wanted = {one for one in ids if one.startswith("r")}
        assert {f"/team/a#{one}" for one in wanted} <= site.state.seen.keys()
        assert digest(fold.cells) == digest(site.shard.fold.cells)
        void += fold.head.void
    assert void > 5, "the two did get in each other's way"


# -- L4 ------------------------------------------------------------------------

#: Operations that append, and those that only look or make a topic.
APPENDS = {"append", "append_all", "restore"}
OTHERS = {"begin", "end", "partitions", "read", "values", "describe_topics", "close"}
OTHERS |= {"create_topics", "configure_topics"}


@pytest.mark.parametrize("adapter", [Log, MemoryLog, SqliteLog, KafkaLog, ArchiveLog])
def test_l4_no_operation_changes_a_record(adapter: type[Log]) -> None:
    """No log can be asked to change or remove; a new operation has to be thought of here."""
    public = {
        name for name, one in inspect.getmembers(adapter, inspect.isroutine) if name[0] != "_"
    }
    assert public - {"another", "columns"} == APPENDS | OTHERS


@pytest.mark.parametrize("kind", KINDS)
@few
@given(chance=chances)
def test_l4_what_is_appended_stays_byte_for_byte(kind: str, chance: Random) -> None:
    """After whatever is asked of a log, all that it had before is there as it was."""

    async def act(log: Log, tag: int, had: list[list[Record]]) -> None:
        name = chance.choice(sorted(APPENDS | OTHERS - {"close"}))
        place = EVENTS, chance.randrange(PARTITIONS)
        new = drawn_entries(chance, tag)
        if name == "append":
            await log.append(*place, new)
        elif name == "append_all":
            await log.append_all({place: new})
        elif name == "restore":
            # The offsets of records that are there already.
            await log.restore(*place, [one._replace(value=b"x") for one in had[place[1]][:3]])
        elif name in ("create_topics", "configure_topics"):
            await getattr(log, name)({EVENTS: TopicState(1)})
        elif name == "describe_topics":
            await log.describe_topics([EVENTS])
        elif name == "partitions":
            await log.partitions(EVENTS)
        else:
            more = (chance.randrange(9),) if name in ("read", "values") else ()
            await getattr(log, name)(*place, *more)

    async def run() -> None:
        async with opened(kind) as (log, _):
            had = await everything(log)
            for tag in range(20):
                await act(log, tag, had)
                has = await everything(log)
                assert [one[: len(two)] for one, two in zip(has, had, strict=True)] == had
                had = has

    asyncio.run(run())


async def test_l4_no_topic_of_a_ledger_loses_or_changes_anything() -> None:
    """Two workers, late words and repetitions: every topic only ever grows."""
    names = [full_name(PREFIX, one.suffix) for one in TOPICS]
    for seed in range(2):
        had: dict[str, list[list[Record]]] = {}

        async def watch(log: Log, had: dict[str, list[list[Record]]] = had) -> None:
            for name in names:
                has = await everything(log, name)
                for one, two in zip(has, had.get(name, has), strict=True):
                    assert one[: len(two)] == two
                had[name] = has

        await contended(Random(seed), watch)
        assert sum(map(len, had[EVENTS])) > 20


def test_l4_a_correction_is_a_new_line_that_names_what_it_corrects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At every length of a log: what was closed stays; one correction at most for each line."""
    # Periods so short, and so soon closed, that facts do come late.
    monkeypatch.setattr("tests.test_metering.LENGTH_US", 60_000_000)
    monkeypatch.setattr("tests.test_metering.GRACE_US", 1_000_000)
    corrections = 0
    for seed in range(6):
        values, chance = history(seed), Random(seed)
        last_us = metered(values)[1].known_us
        lengths = sorted(chance.sample(range(1, len(values)), 3))
        closed: dict[str, Any] = {}
        for length in (*lengths, len(values)):
            periods = {one.period.name: one for one in booked(values[:length], last_us).periods}
            for name, one in closed.items():
                assert (one.digest, one.lines) == (periods[name].digest, periods[name].lines)
            for name, one in periods.items():
                if one.state == "closed":
                    closed[name] = one
                late = [line for line in one.lines if line.corrects is not None]
                about = Counter((line.corrects, *_about(line)) for line in late)
                assert max(about.values(), default=1) == 1
                for line in late:
                    named = periods[line.corrects or ""]
                    assert (named.state, name != line.corrects) == ("closed", True)
                    assert named.period.end_us <= one.period.start_us
                corrections += len(late)
    assert corrections > 0


def _about(line: Any) -> tuple[Any, ...]:
    holder = line.holding
    return line.cell, line.device, line.unit, line.state, line.cause, line.milli, holder


# -- L5 ------------------------------------------------------------------------

clocks = st.lists(st.integers(0, 10**15), min_size=1, max_size=12)
RECORD: TypeAdapter[Any] = TypeAdapter(LedgerRecord)


@pytest.mark.parametrize("kind", KINDS)
@few
@given(times=clocks)
def test_l5_the_time_of_a_log_never_goes_back(kind: str, times: list[int]) -> None:
    """Whatever its clock says; where the clock is ahead of the last record it is taken."""

    async def run() -> None:
        left = iter(times)
        async with opened(kind, lambda: next(left)) as (log, _):
            for _ in times:
                await log.append(EVENTS, 0, [Entry(b"c", b"x")])
            found = [one.time_us for one in (await everything(log))[0]]
            assert [max(times[: at + 1]) for at in range(len(times))] == found

    asyncio.run(run())


@few
@given(times=clocks)
def test_l5_the_time_of_a_cell_never_goes_back(times: list[int]) -> None:
    """Whatever the inputs' clocks say; and every record says what, whose and of which claim."""
    cell = CoreDriver(check=True)
    cell.pool(), cell.queue(), cell.quota()
    cell.node("n1", [device("GPU-a"), device("GPU-b")])
    for number, at_us in enumerate(times):
        cell.submit(f"r{number}", max_run_s=60, at_us=at_us)
        if number % 4 == 3:
            cell.claim()
    records = [RECORD.validate_json(value) for value in cell.records]
    told = [one.time_us for one in records if one.kind == "decision"]
    assert sorted(told) == told
    token = ""
    for one in records:
        token = one.token if one.kind == "claim" else token
        assert (1, token) == (one.v, one.token)
        if one.kind == "decision":
            assert all((one.input.source, one.input.id, one.input.type, one.input.version))


@few
@given(histories, chances)
def test_l5_a_record_that_goes_back_stops_every_reader(
    values: tuple[bytes, ...], chance: Random
) -> None:
    """At any place, by any time: the offset and the rule are named."""
    at = chance.choice(decisions(values)[1:])
    fold = folded(values[:at])
    record = orjson.loads(values[at])
    record["events"] = []
    record["time_us"] = chance.randrange(fold.cell("c").now_us)
    with pytest.raises(LogDamaged) as stopped:
        fold.apply(at, orjson.dumps(record))
    assert (at, "L5") == (stopped.value.offset, stopped.value.code)


# -- L6 ------------------------------------------------------------------------


def mixed(chance: Random, mine: Sequence[bytes], others: Sequence[bytes]) -> list[bytes]:
    """Return two sequences as one, each in its order."""
    places = set(chance.sample(range(len(mine) + len(others)), len(others)))
    one, two = iter(mine), iter(others)
    return [next(two if at in places else one) for at in range(len(mine) + len(others))]


@few
@given(histories, chances)
def test_l6_what_a_fenced_owner_writes_has_no_effect(
    values: tuple[bytes, ...], chance: Random
) -> None:
    """It goes on for any while, and its records lie anywhere among those of the new owner."""
    at = chance.randint(len(values) // 4, len(values) - 1)
    zombie, owner = driver_at(values, at), driver_at(values, at)
    owner.claim()
    for value in values[at:]:
        redecide(owner, value)
    for number in range(chance.randint(1, 8)):
        zombie.submit(f"zombie-{number}", source="/team/zombie", tenant="t")
    # Its first has the sequence number that is next: only its claim tells that it is void.
    log = [*owner.records[: at + 1], zombie.records[at]]
    log += mixed(chance, owner.records[at + 1 :], zombie.records[at + 1 :])
    fold = folded(log)
    assert owner.digest() == digest(fold.cells)
    assert len(zombie.records) - at == fold.head.void
    assert owner.fold.head.seq == fold.head.seq
    assert not any("zombie" in one for one in fold.cell("c").requests)


@few
@given(histories, chances)
def test_l6_the_same_records_again_have_no_effect(
    values: tuple[bytes, ...], chance: Random
) -> None:
    """Decisions written again at any later place, by whatever claim they were made under."""
    disturbed = with_void_records(values, chance)
    fold = folded(disturbed)
    assert digest(folded(values).cells) == digest(fold.cells)
    assert len(disturbed) - len(values) == fold.head.void


# -- L7 ------------------------------------------------------------------------

words = st.text(max_size=12)
#: What may stand in a record's fields that nobody knows, by the code that it stops with.
versions = st.one_of(st.none(), words, st.integers().filter(lambda v: v != RECORD_VERSION))
FOREIGN = st.one_of(
    st.tuples(st.just("unknown_version"), versions.map(lambda v: {"v": v})),
    st.tuples(
        st.just("unknown_type"),
        words.filter(lambda k: k not in ("claim", "decision")).map(lambda k: {"kind": k}),
    ),
    st.tuples(
        st.just("bad_field"), words.map(lambda t: {"events": [{"type": f"{t}.not-an-event"}]})
    ),
)


@few
@given(histories, histories, FOREIGN, chances)
def test_l7_what_nobody_knows_stops_the_reader(
    values: tuple[bytes, ...],
    beside: tuple[bytes, ...],
    foreign: tuple[str, dict[str, Any]],
    chance: Random,
) -> None:
    """At any place of any partition: topic, partition and offset are named, nothing is skipped."""
    at, partition = chance.choice(decisions(values)), chance.randrange(2)
    code, changes = foreign
    damaged = [*values[:at], orjson.dumps(orjson.loads(values[at]) | changes), *values[at + 1 :]]
    logs = [beside, damaged] if partition else [damaged, beside]

    async def run() -> None:
        log = MemoryLog()
        await put(log, PREFIX, *logs)
        fold = Fold()

        async def read() -> None:
            async for _ in read_events(log, PREFIX, partition, fold):
                pass

        with pytest.raises(Damaged) as stopped:
            await read()
        assert at == fold.head.offset
        assert (EVENTS, partition, at, code) == (
            stopped.value.topic, stopped.value.partition, stopped.value.offset, stopped.value.code,
        )  # fmt: skip
        assert f"{EVENTS}/{partition}@{at}" in str(stopped.value)
        with pytest.raises(Damaged, match=f"/{partition}@{at}: {code}"):
            await fold_log(log, PREFIX)
        faults = (await verify_log(log, PREFIX)).faults
        assert (partition, at) in {(one.partition, one.offset) for one in faults}

    asyncio.run(run())


@given(st.integers(1, 6), st.data())
def test_l7_every_known_version_is_read_as_the_current_one(
    current: int, data: st.DataObject
) -> None:
    """Step by step from each version on; without one of the steps the reader stops."""
    assert set(range(1, RECORD_VERSION)) <= UPCASTERS.keys()

    def step(record: dict[str, Any]) -> dict[str, Any]:
        return {"v": record["v"] + 1, "through": [*record["through"], record["v"]]}

    steps = dict.fromkeys(range(1, current), step)
    version = data.draw(st.integers(1, current))
    record = {"v": version, "through": []}
    wanted = {"v": current, "through": list(range(version, current))}
    assert wanted == upcast(record, upcasters=steps, current=current)
    if version < current:
        del steps[data.draw(st.integers(version, current - 1))]
        with pytest.raises(UnknownVersion):
            upcast(record, upcasters=steps, current=current)
