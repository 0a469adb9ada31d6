"""The Faust app without a broker: how it is set up, and what ends the process."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from ledger.core.fold import LogDamaged
from processors import faust_app
from processors.engine import Engine
from processors.faust_app import build
from tests.processor_support import settings

if TYPE_CHECKING:
    from pathlib import Path

    from ledger.log.memory import MemoryLog
    from ledger.log.port import Record


class Ended(BaseException):
    """Stands for the end of the process, which no handler gets past."""


class FakeEngine:
    """Notes what it is told; raises what it was given instead of taking."""

    def __init__(self, error: Exception | None = None) -> None:
        self.settings = settings(log="kafka://h1:1,h2:2")
        self.error = error
        self.assigned: list[tuple[set[int], int]] = []
        self.taken: list[tuple[str, int, list[Record]]] = []

    async def assign(self, partitions: set[int], generation: int) -> None:
        """See `Engine.assign`."""
        self.assigned.append((partitions, generation))

    async def take(self, topic: str, partition: int, records: list[Record]) -> bool:
        """See `Engine.take`."""
        if self.error is not None:
            raise self.error
        self.taken.append((topic, partition, records))
        return True


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the exit statuses of the processes that would have ended."""
    statuses: list[int] = []

    def end(status: int) -> None:
        statuses.append(status)
        raise Ended

    monkeypatch.setattr(os, "_exit", end)
    return statuses


def feed(engine: Any) -> faust_app._Feed:
    """Return the feed of a fake engine."""
    app: Any = SimpleNamespace(consumer_generation_id=7)
    return faust_app._Feed(app, engine)


def event(topic: str, partition: int, offset: int) -> Any:
    """Return an event with Faust's message of one record."""
    message = SimpleNamespace(
        topic=f"gpuledger.{topic}",
        partition=partition,
        offset=offset,
        timestamp=1_795_979_688.461,
        key=b"c1",
        value=None,
        headers=(("ce_id", b"x"), ("empty", None)),
    )
    return SimpleNamespace(message=message)


def places(topic: str, *partitions: int) -> list[Any]:
    """Return topic partitions as Faust hands them over."""
    return [SimpleNamespace(topic=f"gpuledger.{topic}", partition=each) for each in partitions]


def test_faust_is_trusted_with_nothing(tmp_path: Path) -> None:
    """No table, no topic of its own, no web server, no transaction, and the right assignor."""
    engine: Any = FakeEngine()
    app = build(engine, 4, str(tmp_path))
    conf = app.conf
    assert str(conf.processing_guarantee.value) == "at_least_once"
    assert not conf.web_enabled
    assert not conf.topic_allow_declare
    assert conf.topic_disable_leader
    assert conf.table_standby_replicas == 1
    assert not app.tables
    assert ("gpuledger", 10.0, 3.0) == (
        conf.id,
        conf.broker_session_timeout,
        conf.broker_heartbeat_interval,
    )
    assert ["h1", "h2"] == [url.host for url in conf.broker]
    (agent,) = app.agents.values()
    assert 1 == agent.concurrency
    assert ("gpuledger.requests", "gpuledger.observations") == agent.channel.topics


async def test_records_are_handed_over_in_order() -> None:
    """By partition and topic, with the broker's time, absent values and all headers."""
    engine = FakeEngine()
    given = [
        event("requests", 0, 5),
        event("observations", 0, 1),
        event("requests", 1, 9),
        event("requests", 0, 6),
    ]
    await feed(engine).take(given)
    found = {
        (topic, number): [each.offset for each in kept] for topic, number, kept in engine.taken
    }
    assert {("requests", 0): [5, 6], ("observations", 0): [1], ("requests", 1): [9]} == found
    record = engine.taken[0][2][0]
    assert (1_795_979_688_461_000, b"c1", None) == (record.time_us, record.key, record.value)
    assert (("ce_id", b"x"), ("empty", b"")) == record.headers


async def test_inputs_that_come_apart_are_refused(ends: list[int]) -> None:
    """The same partitions of both topics are held; otherwise the worker ends and says why."""
    engine = FakeEngine()
    both = feed(engine)
    await both.assigned([*places("requests", 0, 2), *places("observations", 2, 0)])
    assert [({0, 2}, 7)] == engine.assigned
    with pytest.raises(Ended):
        await both.assigned([*places("requests", 0, 1), *places("observations", 0)])
    assert [2] == ends
    assert 1 == len(engine.assigned)


@pytest.mark.parametrize(
    ("error", "status"), [(ZeroDivisionError(), 70), (LogDamaged(3, "gap", "lost"), 4)]
)
async def test_an_error_ends_the_process_at_once(
    error: Exception, status: int, ends: list[int]
) -> None:
    """Nothing is raised into the agent, which would acknowledge the records."""
    broken = feed(FakeEngine(error))
    with pytest.raises(BaseExceptionGroup) as group:
        await broken.take([event("requests", 0, 5)])
    assert group.group_contains(Ended)
    assert [status] == ends


def test_the_engine_is_what_the_fake_stands_for(tmp_path: Path) -> None:
    """The real engine fits in the same place."""
    log: MemoryLog | Any = None
    assert build(Engine(log, settings(log="kafka://h:1")), 2, str(tmp_path)).conf.id == "gpuledger"
