"""Faust workers killed and frozen, on a broker that is killed: nothing lost, nothing twice.

What is random comes from a fixed seed, and each disturbance is due after so many
answers, not at a time. Takes two to four minutes on two cores.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from ledger.core.digest import digest
from ledger.core.fold import Fold
from ledger.core.invariants import check
from ledger.log.kafka import KafkaLog
from ledger.log.port import LogUnavailable
from ledger.log.topics import apply
from ledger.snapshots import SnapshotStore
from tests.processor_support import (
    TEAM,
    Site,
    Worker,
    cell_on,
    inventory,
    policy,
    submit,
    until,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from deploy.kafka_local import LocalKafka
    from ledger.log.port import Entry, Log, Record

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]

SEED = 20_251_129
RUNNER = "faust"
PREFIX = "chaos"
PARTITIONS = 4
CELLS = [cell_on(partition, PARTITIONS) for partition in range(PARTITIONS)]
NODES = [(cell, f"{cell}-n{number}") for cell in CELLS for number in range(4)]
TOTAL = 20_000
#: Requests asked and not yet answered; above this the site waits.
OPEN = 2_000
WORKERS = 2
SESSION_S = 6
#: Longer than the session: the group gives the partitions to others meanwhile.
FROZEN_S = 9.0
#: How long the broker stays away.
AWAY_S = 2.0
DISTURBANCES = ["kill"] * 5 + ["freeze"] * 3 + ["broker"] * 2


def requests(chance: random.Random) -> Iterator[Entry]:
    """Yield requests of every outcome: granted now or later, rejected, ids used again."""
    for number in range(TOTAL):
        cell = CELLS[chance.randrange(len(CELLS))]
        more: dict[str, Any] = {
            "ask": {"mode": "share", "gpu_milli": chance.choice([50, 100, 250])}
        }
        kind = chance.random()
        if kind < 0.2:
            more["ask"] = {"mode": "whole", "count": chance.choice([1, 1, 2])}
        elif kind < 0.4:
            more["max_wait_s"] = 0
        elif kind < 0.6:
            more["tenant"] = "nobody"
        entry = submit(cell, f"r{number}", **more)
        yield entry
        if chance.random() < 0.02:
            yield entry


class Follower:
    """Folds the ledger as it grows, as any reader does, and keeps what it read."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.folds = [Fold() for _ in range(PARTITIONS)]
        self.records: list[list[Record]] = [[] for _ in range(PARTITIONS)]
        self.decided: Counter[str] = Counter()

    async def follow(self) -> None:
        """Read on to the present end."""
        for partition, fold in enumerate(self.folds):
            records = True
            while records:
                try:
                    records = await self._log.read(  # type: ignore[assignment]
                        f"{PREFIX}.events", partition, fold.head.offset, 5000
                    )
                except LogUnavailable:
                    return
                self._take(partition, records)  # type: ignore[arg-type]

    def _take(self, partition: int, records: list[Record]) -> None:
        for record in records:
            verdict, data = self.folds[partition].apply(record.offset, record.value)
            self.records[partition].append(record)
            if verdict == "effective" and data["input"]["type"] == "request.submit":
                self.decided[f"{data['input']['source']}#{data['input']['id']}"] += 1
        if records:
            self.check(partition)

    def check(self, partition: int) -> None:
        """All invariants of the states as they are now."""
        states = self.folds[partition].cells.values()
        assert [found for state in states for found in check(state)] == []

    def quiet(self) -> bool:
        """Say whether nothing is held, ordered or waited for any more."""
        states = [state for fold in self.folds for state in fold.cells.values()]
        return all(not (state.leases or state.orders or state.requests) for state in states)


class Chaos:
    """The workers and what is done to them."""

    def __init__(self, broker: LocalKafka, path: Path, chance: random.Random) -> None:
        self.broker = broker
        self.chance = chance
        self.tally: Counter[str] = Counter()
        env = {
            "GPULEDGER_LOG": f"kafka://{broker.bootstrap}",
            "GPULEDGER_PREFIX": PREFIX,
            "GPULEDGER_SNAPSHOTS": str(path / "snapshots"),
            "GPULEDGER_SNAPSHOT_EVERY": "2000",
            "GPULEDGER_SESSION_TIMEOUT_S": str(SESSION_S),
            "GPULEDGER_GROUP_HEARTBEAT_S": "1.5",
            # The site shares the two cores with everything else: its heartbeats come late.
            "GPULEDGER_HEARTBEAT_LIMIT_S": "60",
        }
        self.workers = [
            Worker(RUNNER, {**env, "GPULEDGER_WORKER": f"w{number}"}, path / f"w{number}.log")
            for number in range(WORKERS)
        ]

    async def supervise(self) -> None:
        """Start the workers, and again whenever one has ended, as a supervisor does."""
        while True:
            for worker in self.workers:
                if worker.process is None or worker.process.poll() is not None:
                    if worker.process is not None:
                        self.tally[f"ended with {worker.process.returncode}"] += 1
                    worker.start()
            await asyncio.sleep(0.2)

    async def disturb(self, site: Site) -> None:
        """Do everything in `DISTURBANCES`, each after its share of the answers."""
        order = DISTURBANCES[:]
        self.chance.shuffle(order)
        for number, kind in enumerate(order, 1):
            await when(site, number * TOTAL // (len(order) + 1))
            await {"kill": self.kill, "freeze": self.freeze, "broker": self.broker_away}[kind]()
            self.tally[kind] += 1

    async def kill(self) -> None:
        """End a worker in the middle of whatever it does."""
        self.chance.choice(self.workers).signal(signal.SIGKILL)

    async def freeze(self) -> None:
        """Stop a worker for longer than its session; it wakes up believing nothing happened."""
        worker = self.chance.choice(self.workers)
        worker.signal(signal.SIGSTOP)
        await asyncio.sleep(FROZEN_S)
        worker.signal(signal.SIGCONT)

    async def broker_away(self) -> None:
        """Kill the broker and start it again on its data."""
        await asyncio.to_thread(self.broker.kill)
        await asyncio.sleep(AWAY_S)
        await asyncio.to_thread(self.broker.start)

    def stop(self) -> None:
        """Let the workers end in good order: the last one holds everything and snapshots it."""
        *others, last = self.workers
        for worker in others:
            assert 0 == worker.stop(60)
        deadline = time.monotonic() + 60
        claims = 0
        while claims < PARTITIONS:
            assert time.monotonic() < deadline
            time.sleep(0.1)
            claims = last.output().rpartition("partitions assigned")[2].count("partition claimed")
        assert 0 == last.stop(60)


async def when(site: Site, answered: int) -> None:
    """Wait until so many requests have their final answer."""
    while len(site.final) < answered:  # noqa: ASYNC110 - the site is polled, it signals nothing
        await asyncio.sleep(0.05)


async def ask_all(site: Site, chance: random.Random) -> None:
    """Put all requests on the log, never more than `OPEN` ahead of the answers."""
    entries = list(requests(chance))
    for start in range(0, len(entries), 200):
        await site.ask(entries[start : start + 200])
        # Some are sent twice, so this many records are fewer requests.
        await when(site, int(start * TOTAL / len(entries)) - OPEN)


async def test_chaos(own_kafka: Callable[[], LocalKafka], tmp_path: Path) -> None:
    """Every request is answered and decided once, and every way to the state agrees."""
    broker = own_kafka()
    chance = random.Random(SEED)
    async with KafkaLog(broker.bootstrap, timeout_s=5.0) as log:
        await apply(log, PREFIX, PARTITIONS)
        chaos, site, follower = Chaos(broker, tmp_path, chance), Site(log, PREFIX), Follower(log)
        supervisor = asyncio.create_task(chaos.supervise())
        beating = asyncio.create_task(site.beat(NODES, 2.0))
        try:
            await found_cells(site)
            started = time.monotonic()
            await asyncio.wait_for(until_all_answered(site, chaos, chance), 400)
            took_s = time.monotonic() - started
            await asyncio.wait_for(until_quiet(site, follower), 60)
        finally:
            supervisor.cancel()
            beating.cancel()
            for worker in chaos.workers:
                if worker.process is not None:
                    worker.signal(signal.SIGCONT)
        await asyncio.to_thread(chaos.stop)
        await follower.follow()
    void = [fold.head.void for fold in follower.folds]
    claims = [fold.head.claims for fold in follower.folds]
    tally = dict(chaos.tally)
    # For whoever runs it by hand with -s: how hard it was this time.
    print(f"{took_s:.0f} s, {tally}, void {void}, claims {claims}, {site.copies} copies")  # noqa: T201
    judge_answers(site, follower)
    await judge_states(follower, tmp_path / "snapshots", chance)


async def found_cells(site: Site) -> None:
    """Make the cells and their nodes."""
    for cell in CELLS:
        await site.ask(policy(cell))
    await until(lambda: len(site.replies) >= 3 * len(CELLS), site)
    await site.observe([inventory(cell, node, 8) for cell, node in NODES])


async def until_all_answered(site: Site, chaos: Chaos, chance: random.Random) -> None:
    """Ask, disturb, answer the ledger's orders, until every request has its final answer."""
    asking = asyncio.create_task(ask_all(site, chance))
    disturbing = asyncio.create_task(chaos.disturb(site))
    try:
        while len(site.final) < TOTAL or not disturbing.done():
            if not await site.work():
                await asyncio.sleep(0.02)
            for task in (asking, disturbing):
                if task.done():
                    task.result()
    finally:
        asking.cancel()
        disturbing.cancel()


async def until_quiet(site: Site, follower: Follower) -> None:
    """Let the site release and clean until nothing is held any more."""
    while not follower.quiet():
        if not await site.work():
            await asyncio.sleep(0.1)
        await follower.follow()


def judge_answers(site: Site, follower: Follower) -> None:
    """One final answer and one effective decision for each request, and none for others."""
    wanted = {f"{TEAM}#r{number}" for number in range(TOTAL)}
    assert wanted == set(site.final)
    assert {1} == {len(ids) for ids in site.final.values()}
    assert wanted == set(follower.decided)
    assert {1} == set(follower.decided.values())


async def judge_states(follower: Follower, folder: Path, chance: random.Random) -> None:
    """Whoever computes the state, and from whatever, gets the same."""
    store = SnapshotStore(folder, f"{PREFIX}.events")
    for partition, fold in enumerate(follower.folds):
        records = follower.records[partition]
        follower.check(partition)
        whole = digest(fold.cells)

        async def value_at(offset: int, records: list[Record] = records) -> bytes | None:
            return records[offset].value

        newest = await store.load(partition, len(records), value_at)
        assert newest is not None
        assert whole == digest(newest.cells), "live"
        # What stands after the last snapshot is what changes nothing: claims, void records.
        after = [
            newest.apply(at, records[at].value)[0] for at in range(newest.head.offset, len(records))
        ]
        assert "effective" not in after
        assert (len(records), whole) == (newest.head.offset, digest(newest.cells)), "live"
        forget_newest(folder, partition)
        older = await store.load(partition, len(records), value_at)
        assert older is not None
        assert older.head.offset < len(records)
        for record in records[older.head.offset :]:
            older.apply(record.offset, record.value)
        assert whole == digest(older.cells), "snapshot and tail"
        noisy, added = with_noise(records, chance)
        assert whole == digest(noisy.cells), "with duplicates and void records"
        assert noisy.head.void == fold.head.void + added
        assert store.set_aside == []


def forget_newest(folder: Path, partition: int) -> None:
    """Remove a partition's newest snapshot."""
    max(folder.glob(f"*-{partition}-*.snapshot")).unlink()


def with_noise(records: list[Record], chance: random.Random) -> tuple[Fold, int]:
    """Fold the log with copies of old records and a zombie's strewn in."""
    fold, added = Fold(), 0
    decisions = [
        record.value for record in records if b'"kind":"decision"' in (record.value or b"")
    ]
    for number, record in enumerate(records):
        fold.apply(fold.head.offset, record.value)
        if number > 10 and chance.random() < 0.1:
            value = chance.choice(decisions[: max(1, number // 2)])
            if chance.random() < 0.5:
                value = (value or b"").replace(fold.head.token.encode(), b"0" * 32)
            verdict, _ = fold.apply(fold.head.offset, value)
            assert verdict == "void"
            added += 1
    return fold, added
