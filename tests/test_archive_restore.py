"""An archive becomes a log again: same records, same offsets, same digest, and it lives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ledger.archive.follow import Follower, Options
from ledger.archive.restore import NotEmpty, restore
from ledger.log.archive import ArchiveLog
from ledger.log.kafka import KafkaLog
from ledger.log.memory import MemoryLog
from ledger.log.port import Entry, LogUnavailable, Record, TopicState
from ledger.log.sqlite import SqliteLog
from ledger.log.topics import check
from ledger.reading import Damaged
from ledger.verify import verify_log
from schemas.topics import full_name
from tests.ledgers import PREFIX, Site

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from ledger.log.port import Log

EVENTS = f"{PREFIX}.events"


def clock() -> Callable[[], int]:
    """Return a clock that counts milliseconds, in microseconds, from a day in 2025."""
    times = iter(range(1_750_000_000_000_000, 1_760_000_000_000_000, 1000))
    return lambda: next(times)


async def lived_in(log: Log) -> Site:
    """Return a site where something has happened."""
    site = Site(log)
    await site.start()
    for number in range(6):
        await site.submit(f"r{number}", 1)
    await site.finish("/team/a#r0/1")
    return site


async def all_of(log: Log, topic: str, partition: int = 0) -> list[Record]:
    """Return every record of a partition."""
    found: list[Record] = []
    while more := await log.read(topic, partition, len(found)):
        found += more
    return found


@pytest.fixture(params=["memory", "sqlite"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Log]:
    """Return a function that opens the empty log of one kind."""
    if request.param == "sqlite":
        return lambda: SqliteLog(tmp_path / "restored.sqlite")
    memory = MemoryLog()
    return memory.another


async def test_the_same_log_again(target: Callable[[], Log], tmp_path: Path) -> None:
    """Records, offsets, times and the digest are those of the log that was archived."""
    site = await lived_in(MemoryLog(clock()))
    await Follower(site.log, PREFIX, tmp_path / "a", Options(every=7)).once()
    wanted = await all_of(site.log, EVENTS)
    async with ArchiveLog(tmp_path / "a") as source, target() as log:
        done = await restore(source, log, PREFIX)
        assert (done.records, done.before) == (len(wanted), 0)
        assert await all_of(log, EVENTS) == wanted
        report = await verify_log(log, PREFIX)
    assert report.ok
    assert done.digest == report.digest == (await verify_log(site.log, PREFIX)).digest


async def test_the_ledger_goes_on(target: Callable[[], Log], tmp_path: Path) -> None:
    """A worker decides new inputs: they come behind the offsets that have been decided."""
    site = await lived_in(MemoryLog())
    await Follower(site.log, PREFIX, tmp_path / "a").once()
    async with ArchiveLog(tmp_path / "a") as source, target() as log:
        done = await restore(source, log, PREFIX)
        assert done.filled == sum(
            [await site.log.end(full_name(PREFIX, one), 0) for one in ("requests", "observations")]
        )
        again = Site(log)
        await again.shard.load()
        await again.submit("later", 1)
        assert "/team/a#later" in again.state.requests
        known = await again.submit("r1", 1)
        assert (await verify_log(log, PREFIX)).ok
        assert known in again.state.requests
        # And what has come since is archived behind what was.
        follower = Follower(log, PREFIX, tmp_path / "a")
        await follower.once()
        assert await source.end(EVENTS, 0) == await log.end(EVENTS, 0)


async def test_all_topics(target: Callable[[], Log], tmp_path: Path) -> None:
    """Others come back at their offsets; what a retention had removed is filled up."""
    site = await lived_in(MemoryLog(clock()))
    suffixes = ("events", "requests", "usage", "replies")
    await Follower(site.log, PREFIX, tmp_path / "a", Options(suffixes, 2)).once()
    first = tmp_path / "a" / f"{PREFIX}.requests" / "0" / f"{0:020d}-{1:020d}.parquet"
    first.unlink()
    async with ArchiveLog(tmp_path / "a") as source, target() as log:
        await restore(source, log, PREFIX, suffixes)
        requests = await all_of(log, f"{PREFIX}.requests")
        assert [one.value for one in requests[:2]] == [None, None]
        assert requests[2:] == (await all_of(site.log, f"{PREFIX}.requests"))[2:]
        for number in range(4):
            name = f"{PREFIX}.replies"
            assert await all_of(log, name, number) == await all_of(site.log, name, number)


class Breaking(MemoryLog):
    """A log that goes away after some restored batches."""

    batches = 2

    async def restore(self, topic: str, partition: int, records: Sequence[Record]) -> list[int]:
        """See `Log.restore`; fails when its batches are used up."""
        if not self.batches:
            raise LogUnavailable("gone")
        self.batches -= 1
        return await super().restore(topic, partition, records)


async def test_a_restore_that_was_broken_off_goes_on(tmp_path: Path) -> None:
    """Run again it does the rest; the result is the same."""
    site = await lived_in(MemoryLog(clock()))
    await Follower(site.log, PREFIX, tmp_path, Options(every=4)).once()
    log = Breaking()
    async with ArchiveLog(tmp_path) as source:
        with pytest.raises(LogUnavailable):
            await restore(source, log, PREFIX)
        assert await log.end(EVENTS, 0) == 8
        log.batches = 1000
        done = await restore(source, log, PREFIX)
    assert done.before == 8
    assert await all_of(log, EVENTS) == await all_of(site.log, EVENTS)
    async with ArchiveLog(tmp_path) as source:
        again = await restore(source, log, PREFIX)
    assert (again.records, again.filled, again.digest) == (0, 0, done.digest)


async def test_a_log_with_something_else_is_left_alone(
    target: Callable[[], Log], tmp_path: Path
) -> None:
    """Other records, more records or another partition count: refused, and nothing changed."""
    site = await lived_in(MemoryLog())
    await Follower(site.log, PREFIX, tmp_path / "a").once()
    end = await site.log.end(EVENTS, 0)
    async with ArchiveLog(tmp_path / "a") as source, target() as log:
        await log.create_topics({EVENTS: TopicState(1)})
        await log.append(EVENTS, 0, [Entry(b"c", b"x")] * 3)
        with pytest.raises(NotEmpty, match="holds 3 records there"):
            await restore(source, log, PREFIX)
        await log.append(EVENTS, 0, [Entry(b"c", b"x")] * end)
        with pytest.raises(NotEmpty, match="not the archive's"):
            await restore(source, log, PREFIX)
        assert await log.describe_topics([f"{PREFIX}.requests"]) == {}
        assert await log.end(EVENTS, 0) == end + 3
    wider = MemoryLog()
    await wider.create_topics({EVENTS: TopicState(2)})
    async with ArchiveLog(tmp_path / "a") as source:
        with pytest.raises(NotEmpty, match="has 2 partitions there, 1 in the archive"):
            await restore(source, wider, PREFIX)


async def test_what_differs_before_the_last_record_is_found(tmp_path: Path) -> None:
    """A log that begins otherwise but ends alike passes the first look, not the last."""
    site = await lived_in(MemoryLog(clock()))
    await Follower(site.log, PREFIX, tmp_path).once()
    log = MemoryLog()
    await log.create_topics({EVENTS: TopicState(1)})
    records = await all_of(site.log, EVENTS)
    await log.restore(EVENTS, 0, [records[0]._replace(value=b"{}"), *records[1:]])
    async with ArchiveLog(tmp_path) as source:
        with pytest.raises(Damaged, match=r"events/0@0: restore: the log does not hold"):
            await restore(source, log, PREFIX)


async def test_an_archive_without_its_beginning_is_not_restored(tmp_path: Path) -> None:
    """No ledger without its first records; a hole stops the restore where it is."""
    site = await lived_in(MemoryLog())
    await Follower(site.log, PREFIX, tmp_path, Options(every=3)).once()
    files = sorted((tmp_path / EVENTS / "0").iterdir())
    files[1].unlink()
    log = MemoryLog()
    async with ArchiveLog(tmp_path) as source:
        with pytest.raises(LogUnavailable, match="3 entries missing: 3 to 5"):
            await restore(source, log, PREFIX)
        files[0].unlink()
        with pytest.raises(Damaged, match="lacks the beginning"):
            await restore(source, MemoryLog(), PREFIX)


@pytest.mark.kafka
async def test_kafka_topic_again(kafka: str, kafka_prefix: str, tmp_path: Path) -> None:
    """On a broker: same offsets, times and digest, topics as declared; archived again: same files.

    A restore that is not complete leaves the topic as no worker takes it.
    """
    site = await lived_in(MemoryLog(clock()))
    events = f"{kafka_prefix}.events"
    log = MemoryLog()
    await log.create_topics({events: TopicState(1)})
    wanted = [one._replace(topic=events) for one in await all_of(site.log, EVENTS)]
    await log.restore(events, 0, wanted)
    await Follower(log, kafka_prefix, tmp_path / "a", Options(every=7)).once()
    async with ArchiveLog(tmp_path / "a") as source, KafkaLog(kafka) as broker:
        done = await restore(source, broker, kafka_prefix)
        assert await all_of(broker, events) == wanted
        assert done.digest == (await verify_log(broker, kafka_prefix)).digest
        assert await check(broker, kafka_prefix, 1) == []
        assert (await restore(source, broker, kafka_prefix)).records == 0
        await Follower(broker, kafka_prefix, tmp_path / "b", Options(("events",), 7)).once()
        given = {events: TopicState(1, config={"message.timestamp.type": "CreateTime"})}
        assert await broker.configure_topics(given) == [events]
        assert "message.timestamp.type" in {
            one.setting for one in await check(broker, kafka_prefix, 1)
        }
    one, other = (
        {path.name: path.read_bytes() for path in (tmp_path / name / events / "0").iterdir()}
        for name in ("a", "b")
    )
    assert one == other
