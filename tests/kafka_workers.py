"""What a worker on a real Kafka must do, whichever runner feeds it. Used by one module each."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from aiokafka import AIOKafkaConsumer, TopicPartition

from ledger.core.invariants import check
from ledger.log.kafka import KafkaLog
from ledger.log.port import Entry, TopicState
from ledger.log.topics import apply, declared
from tests.processor_support import (
    TEAM,
    Site,
    Worker,
    cell_on,
    events,
    inventory,
    policy,
    replay,
    submit,
    until,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from ledger.log.port import Record

PARTITIONS = 4
CELLS = [cell_on(partition, PARTITIONS) for partition in range(PARTITIONS)]
SHARE = {"mode": "share", "gpu_milli": 100}


class Scene:
    """One prefix on a broker, its site, and the workers that were started on it."""

    def __init__(self, runner: str, log: KafkaLog, bootstrap: str, prefix: str, path: Path) -> None:
        self.runner = runner
        self.log = log
        self.bootstrap = bootstrap
        self.prefix = prefix
        self.site = Site(log, prefix)
        self._path = path
        self.workers: list[Worker] = []

    def worker(self, runner: str | None = None) -> Worker:
        """Start a worker, of another runner where one is named."""
        name = f"w{len(self.workers)}"
        env = {
            "GPULEDGER_LOG": f"kafka://{self.bootstrap}",
            "GPULEDGER_PREFIX": self.prefix,
            "GPULEDGER_WORKER": name,
            "GPULEDGER_SNAPSHOTS": str(self._path / "snapshots"),
            "GPULEDGER_SESSION_TIMEOUT_S": "6",
            "GPULEDGER_GROUP_HEARTBEAT_S": "1",
            # Its nodes never beat: on a slow machine they would fall silent in the middle.
            "GPULEDGER_HEARTBEAT_LIMIT_S": "3600",
        }
        made = Worker(runner or self.runner, env, self._path / f"{name}.log")
        self.workers.append(made)
        made.start()
        return made

    async def found_cells(self) -> None:
        """Make one cell on each partition, each with a node of 8 devices."""
        for cell in CELLS:
            await self.site.ask(policy(cell))
        await until(lambda: len(self.site.replies) >= 3 * len(CELLS), self.site)
        await self.site.observe([inventory(cell, "n1", 8) for cell in CELLS])

    async def ask(self, batch: str, number: int) -> None:
        """Put ``number`` requests of each cell on the log, and wait for all final answers."""
        names = [f"{cell}-{batch}-{each}" for cell in CELLS for each in range(number)]
        cells = [cell for cell in CELLS for _ in range(number)]
        await self.site.ask(
            submit(cell, name, ask=SHARE) for cell, name in zip(cells, names, strict=True)
        )
        wanted = {f"{TEAM}#{name}" for name in names}
        await until(lambda: wanted <= self.site.final.keys(), self.site)

    async def check(self) -> None:
        """Every request has one final answer and one record; the states are sound."""
        assert {1} == {len(each) for each in self.site.final.values()}
        decided: list[str] = []
        for partition in range(PARTITIONS):
            fold, effective = replay(await events(self.log, partition, self.prefix))
            assert [each for state in fold.cells.values() for each in check(state)] == []
            decided += [
                f"{one['input']['source']}#{one['input']['id']}"
                for one in effective
                if one["input"]["type"] == "request.submit"
            ]
        assert len(decided) == len(set(decided))
        assert set(self.site.final) == set(decided)

    async def commit(self, offsets: dict[tuple[str, int], int]) -> None:
        """Set the group's offsets, as an operator may; nobody may be in the group."""
        consumer = AIOKafkaConsumer(bootstrap_servers=self.bootstrap, group_id=self.prefix)
        await consumer.start()
        try:
            places = {TopicPartition(*where): offset for where, offset in offsets.items()}
            consumer.assign(list(places))
            await consumer.commit(places)
        finally:
            await consumer.stop()

    def inputs(self) -> list[tuple[str, int]]:
        """Return every partition of both input topics."""
        return [
            (f"{self.prefix}.{topic}", partition)
            for topic in ("requests", "observations")
            for partition in range(PARTITIONS)
        ]


@asynccontextmanager
async def scene(
    runner: str, bootstrap: str, prefix: str, path: Path, *, topics: bool = True
) -> AsyncIterator[Scene]:
    """Make the topics; end every worker afterwards."""
    async with KafkaLog(bootstrap) as log:
        if topics:
            await apply(log, prefix, PARTITIONS)
        found = Scene(runner, log, bootstrap, prefix, path)
        try:
            yield found
        finally:
            for worker in found.workers:
                worker.kill()


async def end_to_end(runner: str, kafka: str, prefix: str, path: Path) -> None:
    """Requests are answered by one worker, by two, and by the other when one ends."""
    async with scene(runner, kafka, prefix, path) as found:
        first = found.worker()
        await found.found_cells()
        await found.ask("alone", 50)
        second = found.worker()
        await until(lambda: "partition claimed" in second.output(), found.site)
        await found.ask("both", 50)
        assert 0 == first.stop()
        await found.ask("other", 50)
        assert 0 == second.stop()
        await found.check()


async def refuses_topics(runner: str, kafka: str, prefix: str, path: Path) -> None:
    """A broker that is not set up as declared is not served; each setting is named."""
    async with scene(runner, kafka, prefix, path, topics=False) as found:
        topics = declared(prefix, PARTITIONS)
        name = f"{prefix}.events"
        config = {**(topics[name].config or {}), "cleanup.policy": "compact"}
        topics[name] = TopicState(PARTITIONS, 1, config)
        topics[f"{prefix}.observations"] = TopicState(
            PARTITIONS + 1, 1, topics[f"{prefix}.observations"].config
        )
        await found.log.create_topics(topics)
        worker = found.worker()
        assert 2 == await asyncio.to_thread(worker.running.wait, 60)
        assert f"{name}: cleanup.policy is compact, wanted delete" in worker.output()
        assert f"{prefix}.observations: partitions is 5, wanted 4" in worker.output()


async def stops_at_damage(runner: str, kafka: str, prefix: str, path: Path) -> None:
    """A record that cannot be folded ends the worker with 4; nothing is acknowledged."""
    async with scene(runner, kafka, prefix, path) as found:
        await found.log.append(f"{prefix}.events", 1, [Entry(None, b"{}")])
        worker = found.worker()
        await found.site.ask(policy(CELLS[1]))
        assert 4 == await asyncio.to_thread(worker.running.wait, 60)
        assert "the log is damaged" in worker.output()
        assert await committed(found, (f"{prefix}.requests", 1)) in (None, 0)


async def committed(found: Scene, where: tuple[str, int]) -> int | None:
    """Return the group's offset of one partition."""
    consumer = AIOKafkaConsumer(bootstrap_servers=found.bootstrap, group_id=found.prefix)
    await consumer.start()
    try:
        place = TopicPartition(*where)
        consumer.assign([place])
        offset: int | None = await consumer.committed(place)
        return offset
    finally:
        await consumer.stop()


async def refuses_another_runner(runner: str, kafka: str, prefix: str, path: Path) -> None:
    """A group of another runner's workers is not joined: the worker says so and ends with 2."""
    other = {"faust": "plain", "plain": "faust"}[runner]
    async with scene(runner, kafka, prefix, path) as found:
        first = found.worker(other)
        await until(lambda: "partition claimed" in first.output(), found.site)
        second = found.worker()
        assert 2 == await asyncio.to_thread(second.running.wait, 30)
        assert f"consumer group {prefix} has workers of another runner" in second.output()
        assert "same --runner" in second.output()
        assert first.running.poll() is None


async def takes_offsets_for_nothing(runner: str, kafka: str, prefix: str, path: Path) -> None:
    """With the group's offsets set back, all is answered again; set ahead, nothing is lost."""
    async with scene(runner, kafka, prefix, path) as found:
        worker = found.worker()
        await found.found_cells()
        await found.ask("before", 20)
        assert 0 == worker.stop()
        await found.commit(dict.fromkeys(found.inputs(), 0))
        worker = found.worker()
        await found.ask("again", 1)
        # The plain runner does not look at the group's offsets at all.
        await until(lambda: runner == "plain" or found.site.copies > 0, found.site)
        assert 0 == worker.stop()
        await found.site.ask(submit(cell, f"{cell}-passed-over", ask=SHARE) for cell in CELLS)
        ends = {where: await found.log.end(*where) for where in found.inputs()}
        await found.commit(ends)
        found.worker()
        wanted = {f"{TEAM}#{cell}-passed-over" for cell in CELLS}
        await until(lambda: wanted <= found.site.final.keys(), found.site)
        await found.check()


async def survives_garbage(runner: str, kafka: str, prefix: str, path: Path) -> None:
    """What cannot be read is put aside with its bytes, answered where possible, and passed."""
    async with scene(runner, kafka, prefix, path) as found:
        found.worker()
        await found.found_cells()
        cell = CELLS[0]
        good = submit(cell, f"{cell}-good")
        bad = [
            Entry(good.key, b"{", submit(cell, "bad").headers),
            Entry(good.key, None, submit(cell, "tombstone").headers),
            Entry(good.key, b"\xff\xfe", ()),
            Entry(None, good.value, submit(cell, "no-key").headers),
            Entry(good.key, good.value, (*good.headers, *good.headers)),
            Entry(b"\xff", b"", (("x", b""),)),
        ]
        await found.log.append(f"{prefix}.requests", 0, bad)
        await found.log.append(f"{prefix}.observations", 0, bad)
        await found.ask("after", 5)
        name = f"{prefix}.dead-letters"
        await until(lambda: "bad" in str(found.site.final), found.site)
        letters: list[Record] = []
        while len(letters) < 2 * len(bad):
            letters = await found.log.read(name, 0, 0, 100, 1.0)
        kept = [(each.key, each.value) for each in letters]
        assert sorted(map(str, kept)) == sorted(str((each.key, each.value)) for each in bad * 2)
        for name in ("bad", "tombstone", "no-key"):
            assert ["malformed"] == found.site.answers(name)
