"""The engine against a log that breaks at every call, and against other writers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from ledger.core.digest import digest
from ledger.core.fold import LogDamaged
from ledger.core.invariants import check
from ledger.log.memory import MemoryLog
from ledger.log.port import Entry, Log, LogUnavailable, Record
from ledger.log.topics import apply
from ledger.shard import Fenced
from ledger.snapshots import SnapshotStore
from ledger.wire import input_entry
from processors import engine as engine_module
from processors.embedded import EmbeddedLoop
from processors.engine import Engine
from schemas.topics import full_name
from tests.faulty_log import FaultyLog, Killed
from tests.processor_support import (
    OPERATOR,
    POLICY,
    TEAM,
    events,
    heartbeat,
    inventory,
    policy,
    release,
    replay,
    settings,
    submit,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from processors.settings import Settings

NOW_US = 1_700_000_000_000_000
REQUESTS = "gpuledger.requests"
OBSERVATIONS = "gpuledger.observations"


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let lost partitions be claimed again at once."""
    monkeypatch.setattr(engine_module, "_FENCED_S", 0.0)
    monkeypatch.setattr(engine_module, "_UNAVAILABLE_S", 0.0)


@pytest.fixture
async def log() -> AsyncIterator[MemoryLog]:
    """Return a log with the topics of one partition, whose time stands still."""
    made = MemoryLog(lambda: NOW_US)
    await apply(made, "gpuledger", 1)
    yield made
    await made.close()


# -- every crash point ---------------------------------------------------------


def script() -> list[list[tuple[str, Entry]]]:
    """Return inputs of every kind of answer, in phases: what must be decided before the next."""
    node = {"node": "n1", "incarnation": "boot1"}

    def done(order: str) -> Entry:
        data = {**node, "order": order}
        return input_entry("c1", "order.done", "/nodes/n1", f"done-{order}", data)

    def operator(name: str, event_id: str, data: dict[str, Any]) -> Entry:
        return input_entry("c1", name, OPERATOR, event_id, {**data, **POLICY})

    late = input_entry("c1", "task.started", "/nodes/n1", "late", {**node, "lease": f"{TEAM}#r0/1"})
    bad = Entry(b"c1", b"{", submit("c1", "bad").headers)
    asked = [
        *(submit("c1", f"r{number}") for number in range(4)),
        submit("nowhere", "lost"),
        submit("c1", "r0"),
        bad,
        submit("c1", "later", max_wait_s=0),
        submit("c1", "stranger", tenant="nobody"),
        operator("node.set", "same-mode", {"node": "n1", "mode": "online"}),
        submit("c1", "r1", priority=5),
        submit("nowhere", "lost-too"),
        input_entry("c1", "request.cancel", TEAM, "cancel-r3", {"request": f"{TEAM}#r3"}),
    ]
    return [
        [(REQUESTS, each) for each in policy("c1")],
        [(OBSERVATIONS, inventory("c1", "n1", 2))],
        [(REQUESTS, each) for each in asked],
        [(REQUESTS, release("c1", f"{TEAM}#{name}/1")) for name in ("r0", "r1")],
        [(OBSERVATIONS, late)],
        [(OBSERVATIONS, done("c1-o1")), (OBSERVATIONS, done("c1-o2"))],
        [(REQUESTS, submit("c1", "last"))],
    ]


@dataclass
class Told:
    """What came out: the state's digest, the final answers, all answers, dead letters, orders."""

    digest: str = ""
    decided: list[Any] = field(default_factory=list)
    final: dict[str, set[str]] = field(default_factory=dict)
    answers: set[str] = field(default_factory=set)
    dead: set[int] = field(default_factory=set)
    orders: set[str] = field(default_factory=set)


async def told(log: Log) -> Told:
    """Read everything that the ledger has written."""
    fold, effective = replay(await events(log, 0))
    assert [found for state in fold.cells.values() for found in check(state)] == []
    found = Told(digest(fold.cells), [(one["source"], one["outcome"]) for one in effective])
    for partition in range(await log.partitions("gpuledger.replies")):
        for record in await log.read("gpuledger.replies", partition, 0, 10_000):
            reply = orjson.loads(record.value or b"")
            name = dict(record.headers)["ce_id"].decode()
            found.answers.add(name)
            if reply["final"]:
                found.final.setdefault(reply["input"], set()).add(name)
    for record in await log.read("gpuledger.dead-letters", 0, 0, 10_000):
        found.dead.add(int(dict(record.headers)["__gpuledger.errors.offset"]))
    for partition in range(await log.partitions("gpuledger.orders")):
        for record in await log.read("gpuledger.orders", partition, 0, 10_000):
            found.orders.add(orjson.loads(record.value or b"")["order"])
    return found


async def play(
    log: Log, make: Callable[[Log], FaultyLog], batch: int, store: Any = None
) -> FaultyLog:
    """Run the script; the log that ``make`` returns is used until it has killed its user."""
    broken = make(log)
    loop = await started(broken, batch, store)
    for phase in script():
        for topic, entry in phase:
            await log.append(topic, 0, [entry])
        decided = False
        while not decided:
            try:
                loop = loop or await started(log, batch, store)
                decided = loop is not None and await loop.step() >= 0
            except LogUnavailable:
                continue  # a read of the step's own: it is made again
            except Killed:
                loop = None
    return broken


async def started(log: Log, batch: int, store: Any) -> EmbeddedLoop | None:
    """Return a loop that holds the partition; None when it was killed at the start."""
    loop = EmbeddedLoop(log, settings(batch=batch, snapshot_every=3 if store else 0))
    loop.engine.snapshots = store
    try:
        await loop.start()
    except Killed:
        return None
    except LogUnavailable:
        return await started(log, batch, store)
    return loop


@pytest.mark.parametrize("batch", [1, 1000])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("error", [LogUnavailable, Killed])
@pytest.mark.parametrize("snapshots", [False, True], ids=["replayed", "snapshots"])
async def test_nothing_is_lost_or_doubled_wherever_it_breaks(
    batch: int, after: bool, error: type[BaseException], snapshots: bool, tmp_path: Any
) -> None:
    """Break at every call to the log in turn; what comes out is what came out unbroken."""

    async def run(at: int | None) -> tuple[Told, FaultyLog]:
        log = MemoryLog(lambda: NOW_US)
        await apply(log, "gpuledger", 1)
        store = SnapshotStore(tmp_path / f"{at}", "gpuledger.events") if snapshots else None
        broken = await play(
            log, lambda below: FaultyLog(below, at, after=after, error=error), batch, store
        )
        found = await told(log)
        await log.close()
        return found, broken

    whole, counted = await run(None)
    assert {f"{TEAM}#r0", f"{TEAM}#lost", f"{TEAM}#bad", f"{TEAM}#last"} <= whole.final.keys()
    for at in range(counted.calls):
        found, broken = await run(at)
        where = f"call {at}, {broken.names[at]}"
        assert found.digest == whole.digest, where
        assert found.decided == whole.decided, where
        assert found.final == whole.final, where
        assert found.dead == whole.dead, where
        assert found.orders >= {"c1-o1", "c1-o2"}, where
        # Notices of a state that has passed may be missing; none is made up.
        assert found.answers <= whole.answers, where
        assert {each for each in whole.answers if ":queued:" not in each} <= found.answers, where


# -- other writers -----------------------------------------------------------


async def feed(log: Log, engine: Engine, topic: str, entries: list[Entry]) -> None:
    """Append inputs and hand them over as a runner does."""
    name = full_name("gpuledger", topic)
    offsets = await log.append(name, 0, entries)
    records = await log.read(name, 0, offsets[0], len(offsets))
    await engine.take(topic, 0, records)


async def held(log: Log, chosen: Settings | None = None, **more: Any) -> Engine:
    """Return an engine that holds partition 0."""
    engine = Engine(log, chosen or settings(), **more)
    await engine.assign([0], 1)
    await engine.ready()
    return engine


async def test_the_older_of_two_engines_is_fenced(log: MemoryLog) -> None:
    """Its records are void, it claims again only while assigned, and nothing is doubled."""
    first = await held(log)
    await feed(log, first, "requests", policy("c1"))
    await feed(log, first, "observations", [inventory("c1", "n1", 1)])
    second = await held(log.another())
    await feed(log, second, "requests", [submit("c1", "r1")])
    # The zombie is handed the same and one more.
    zombie = asyncio.create_task(feed(log, first, "requests", [submit("c1", "r2")]))
    await zombie
    fold, effective = replay(await events(log, 0))
    assert (1, 3) == (fold.head.void, fold.head.claims)
    codes = [one["outcome"]["code"] for one in effective]
    assert codes == ["applied", "applied", "applied", "observed", "granted", "queued"]
    assert first.shard(0) is not None


async def test_void_records_of_another_are_stepped_over(log: MemoryLog) -> None:
    """The one who holds the partition goes on, and says where its records really are."""
    first = await held(log)
    await feed(log, first, "requests", policy("c1"))
    stale = (await events(log, 0))[-1]
    void = Entry(stale.key, stale.value, stale.headers)
    second = await held(log.another())
    await log.append("gpuledger.events", 0, [void, void])
    await feed(log, second, "requests", [submit("c1", "r1")])
    await log.append("gpuledger.events", 0, [void])
    await feed(log, second, "requests", [submit("nowhere", "r2")])
    await feed(log, second, "requests", [submit("c1", "r3")])
    records = await events(log, 0)
    fold, _ = replay(records)
    assert (2, 3) == (fold.head.claims, fold.head.void)
    shard = second.shard(0)
    assert shard is not None
    assert fold.head == shard.fold.head
    positions = [
        orjson.loads(record.value or b"").get("position")
        for partition in range(4)
        for record in await log.read("gpuledger.replies", partition, 0)
        if b"#r" in (record.value or b"")
    ]
    assert ["events/0@7", None, "events/0@9"] == positions


async def test_a_fenced_engine_without_the_partition_stays_out(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the group has taken the partition away, the loss is not answered by a claim."""
    monkeypatch.setattr(engine_module, "_FENCED_S", 60.0)
    first = await held(log)
    await feed(log, first, "requests", policy("c1"))
    await held(log.another())
    taking = asyncio.create_task(feed(log, first, "requests", [submit("c1", "r1")]))
    await asyncio.sleep(0.05)
    assert not taking.done()
    await first.revoke([0])
    await taking
    fold, _ = replay(await events(log, 0))
    assert 2 == fold.head.claims
    assert not await first.take("requests", 0, await log.read(REQUESTS, 0, 0))


async def test_an_engine_that_gives_up_says_so(log: MemoryLog) -> None:
    """Where no group says who is right the older one ends."""
    first = await held(log, give_up=True)
    await feed(log, first, "requests", policy("c1"))
    await held(log.another())
    with pytest.raises(Fenced):
        await feed(log, first, "requests", [submit("c1", "r1")])


async def test_answers_without_a_record_need_the_partition_too(log: MemoryLog) -> None:
    """A stale writer that has only to say what it believes sees that another has written."""
    first = await held(log, give_up=True)
    await feed(log, first, "requests", policy("c1"))
    await feed(log, first, "requests", [submit("c1", "r1", max_wait_s=0)])
    second = await held(log.another())
    await feed(log, second, "requests", policy("c2"))
    with pytest.raises(Fenced):
        await feed(log, first, "requests", [submit("c2", "r2")])
    found = await told(log)
    assert f"{TEAM}#r2" not in found.final


async def test_every_assignment_claims_anew(log: MemoryLog) -> None:
    """A partition that was held before is loaded again, with the new generation."""
    engine = await held(log)
    await engine.assign([0], 2)
    assert engine.shard(0) is None
    await engine.ready()
    claims = [orjson.loads(record.value or b"") for record in await events(log, 0)]
    assert [1, 2] == [claim["generation"] for claim in claims]


async def test_what_is_not_assigned_is_not_taken(log: MemoryLog) -> None:
    """The answer is no, and the log is not touched."""
    engine = Engine(log, settings())
    await log.append(REQUESTS, 0, policy("c1"))
    assert not await engine.take("requests", 0, await log.read(REQUESTS, 0, 0))
    assert await engine.position("requests", 0) is None
    assert [] == await events(log, 0)


async def test_answers_of_a_whole_batch_survive_void_records(log: MemoryLog) -> None:
    """The batch to be answered again is counted in decisions, whatever lies after it."""
    engine = await held(log)
    await feed(log, engine, "requests", policy("c1"))
    await log.append(REQUESTS, 0, [submit("c1", f"r{number}") for number in range(1000)])
    inputs = await log.read(REQUESTS, 0, 3, 1000)
    dying = FaultyLog(log, error=Killed)
    writer = Engine(dying, settings())
    await writer.assign([0], 2)
    await writer.ready()
    # The append of the records takes place, and that is the last of it.
    dying.break_after("append")
    with pytest.raises(Killed):
        await writer.take("requests", 0, inputs)
    # A thousand void records of somebody who was here long ago, and claims that came to nothing.
    stale = (await events(log, 0))[4]
    await log.append("gpuledger.events", 0, [Entry(stale.key, stale.value, stale.headers)] * 1000)
    await held(log.another())
    assert 1000 == sum("queued" in each for each in (await told(log)).answers)


# -- faults that are not the log's ------------------------------------------------


async def test_damage_is_raised_and_nothing_goes_past_it(log: MemoryLog) -> None:
    """A record that cannot be folded stops its partition."""
    await log.append("gpuledger.events", 0, [Entry(None, b"{}")])
    engine = Engine(log, settings())
    await engine.assign([0], 1)
    with pytest.raises(LogDamaged):
        await engine.ready()
    await log.append(REQUESTS, 0, policy("c1"))
    with pytest.raises(LogDamaged):
        await engine.take("requests", 0, await log.read(REQUESTS, 0, 0))


async def test_a_bug_is_raised_and_the_state_dropped(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was decided halfway is not built upon."""
    engine = await held(log)
    monkeypatch.setattr("ledger.shard.decide", lambda *_: 1 / 0)
    await feed_nothing(engine)
    with pytest.raises(ZeroDivisionError):
        await feed(log, engine, "requests", policy("c1"))
    assert engine.shard(0) is None


async def feed_nothing(engine: Engine) -> None:
    """Hand over an empty batch: nothing happens."""
    assert await engine.take("requests", 0, [])


# -- time -----------------------------------------------------------------------


async def test_a_tick_is_written_only_where_something_is_due(log: MemoryLog) -> None:
    """One for the cell and not again before it has had its time."""
    engine = await held(log)
    await feed(log, engine, "requests", [*policy("c1"), *policy("c2")])
    await feed(log, engine, "requests", [submit("c1", "r1", max_wait_s=10)])
    due_us = NOW_US + 10_000_000
    assert engine.next_due_us() == due_us
    assert 0 == await engine.tick(due_us - 1)
    assert 1 == await engine.tick(due_us)
    assert 0 == await engine.tick(due_us + 1)
    assert 1 == await engine.tick(due_us + 1_000_000)
    # Set back, but past the due time, the clock keeps no tick.
    assert 1 == await engine.tick(due_us + 2)
    first, again, _ = await log.read(OBSERVATIONS, 0, 0)
    assert (b"c1", b"{}") == (first.key, first.value)
    assert first.headers != again.headers


async def test_silence_and_return_are_written_from_heartbeats(log: MemoryLog) -> None:
    """The node falls silent after the limit and is back with its next heartbeat."""
    clock = [NOW_US]
    log._clock = lambda: clock[0]
    loop = EmbeddedLoop(log, settings(heartbeat_limit_s=15), lambda: clock[0])
    await loop.start()
    await log.append(REQUESTS, 0, policy("c1"))
    await loop.step()
    await log.append(OBSERVATIONS, 0, [inventory("c1", "n1", 1)])

    async def at(second: int, *beats: Entry) -> str:
        clock[0] = NOW_US + second * 1_000_000
        if beats:
            await log.append("gpuledger.heartbeats", None, beats)
        await loop.tick()
        await loop.step()
        shard = loop.engine.shard(0)
        assert shard is not None
        return shard.fold.cells["c1"].nodes["n1"].state

    await loop.step()
    assert "online" == await at(0)
    assert "online" == await at(10, heartbeat("c1", "n1", 1))
    assert "online" == await at(24)
    assert "silent" == await at(25)
    # Another node's record in this one's name, and garbage, change nothing.
    spoofed = heartbeat("c1", "n1", 9)
    await log.append("gpuledger.heartbeats", 0, [Entry(b"n2", spoofed.value, spoofed.headers)])
    await log.append("gpuledger.heartbeats", 0, [Entry(b"n1", b"?", spoofed.headers)])
    assert "silent" == await at(26)
    assert "online" == await at(27, heartbeat("c1", "n1", 2))
    assert "silent" == await at(42)


async def test_a_log_that_cannot_be_read_is_no_silence(log: MemoryLog) -> None:
    """After it the nodes get their whole limit again."""
    broken = FaultyLog(log)
    engine = await held(broken, settings(heartbeat_limit_s=15))
    await feed(log, engine, "requests", policy("c1"))
    await feed(log, engine, "observations", [inventory("c1", "n1", 1)])
    assert 0 == await engine.tick(NOW_US)
    broken._at = broken.calls
    assert 0 == await engine.tick(NOW_US + 60_000_000)
    assert 0 == await engine.tick(NOW_US + 61_000_000)
    assert 0 == await engine.tick(NOW_US + 75_000_000)
    assert 1 == await engine.tick(NOW_US + 76_000_000)


async def test_inputs_that_the_runner_passed_over_are_found(log: MemoryLog) -> None:
    """What lies still for a while is read from the log, and no sooner."""
    engine = await held(log)
    await log.append(REQUESTS, 0, policy("c1"))
    for second in (0, 4):
        await engine.catch_up(NOW_US + second * 1_000_000)
        assert 1 == len(await events(log, 0))
    await engine.catch_up(NOW_US + 5_000_000)
    assert 4 == len(await events(log, 0))
    assert 3 == engine.answered("requests", 0)


async def test_a_gap_before_the_first_record_is_read_from_the_log(log: MemoryLog) -> None:
    """The runner's offsets are not trusted."""
    engine = await held(log)
    await log.append(REQUESTS, 0, [*policy("c1"), submit("c1", "r1")])
    (last,) = await log.read(REQUESTS, 0, 3)
    assert await engine.take("requests", 0, [last])
    fold, _ = replay(await events(log, 0))
    assert 4 == fold.head.seq


async def test_a_clean_stop_leaves_a_snapshot_to_start_from(log: MemoryLog, tmp_path: Any) -> None:
    """The next load reads what came after it, and the state is the same."""
    store = SnapshotStore(tmp_path, "gpuledger.events")
    engine = await held(log, settings(snapshot_every=1000), snapshots=store)
    await feed(log, engine, "requests", policy("c1"))
    await engine.close()
    assert [] == engine.partitions
    reads: list[Record] = []
    counted = FaultyLog(log)
    again = await held(counted, settings(snapshot_every=1000), snapshots=store)
    assert store.set_aside == []
    shard = again.shard(0)
    assert shard is not None
    fold, _ = replay(await events(log, 0))
    assert digest(shard.fold.cells) == digest(fold.cells)
    assert not reads


async def test_a_full_disk_stops_nobody(log: MemoryLog, tmp_path: Any) -> None:
    """A snapshot that cannot be written is told, and the work goes on."""
    (tmp_path / "file").write_text("")
    store = SnapshotStore(tmp_path / "file", "gpuledger.events")
    engine = await held(log, settings(snapshot_every=1), snapshots=store)
    await feed(log, engine, "requests", policy("c1"))
    await feed(log, engine, "requests", [submit("c1", "r1")])
    await engine.close()
    fold, _ = replay(await events(log, 0))
    assert 4 == fold.head.seq
