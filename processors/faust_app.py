"""The Faust worker: membership, assignment, polling and timers are Faust's, the rest is not.

Nothing that Faust promises about processing is relied on (DESIGN 1.2): its
committed offsets, its tables and its notion of what is newly assigned play no
part. It hands over records; the engine compares them with where the ledger stands.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import tempfile
from typing import TYPE_CHECKING, Any, NoReturn

import faust
import structlog
from aiokafka.errors import KafkaError

from ledger.log.port import LogUnavailable, Record
from ledger.log.wakeup import wall_clock_us
from ledger.loops import run_until
from ledger.wire import INPUTS
from processors.engine import Engine
from processors.exits import exit_status
from processors.membership import check_group, watch_group
from processors.pump import keep_time
from processors.setup import Refused, check_topics, snapshot_store
from schemas.topics import full_name

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable

    from ledger.log.port import Log
    from processors.metrics import Metrics
    from processors.settings import Settings

__all__ = ["build", "run"]

_log = structlog.get_logger(__name__)

#: How long a batch waits to fill after its first record, in seconds. Longer is faster and later.
_WITHIN_S = 0.005

#: Faust's own limit on one request to the broker, in seconds; it must not be below the
#: session time-out.
_REQUEST_S = 30.0

#: The name of Faust's assignor, under which its workers join the group.
_ASSIGNOR = "faust"

#: How long Faust may take to stop while it holds nothing, in seconds.
_STOP_S = 3.0


class _Feed:
    """What Faust calls, each with the same end for an error that the engine does not answer."""

    def __init__(self, app: faust.App, engine: Engine, joined: asyncio.Event | None = None) -> None:
        self._app = app
        self._engine = engine
        self._joined = joined or asyncio.Event()
        prefix = engine.settings.prefix
        self._inputs = {full_name(prefix, topic): topic for topic in INPUTS}

    async def take(self, events: Iterable[Any]) -> None:
        """Hand a batch over: partitions side by side, in order within each topic."""
        batches: dict[int, dict[str, list[Record]]] = {}
        for event in events:
            record = _record(event.message)
            topics = batches.setdefault(record.partition, {})
            topics.setdefault(record.topic, []).append(record)
        async with asyncio.TaskGroup() as group:
            for partition, topics in batches.items():
                group.create_task(self._take(partition, topics))

    async def _take(self, partition: int, topics: dict[str, list[Record]]) -> None:
        for name, records in topics.items():
            await self._guarded(self._engine.take(self._inputs[name], partition, records))

    async def assigned(self, partitions: Iterable[Any]) -> None:
        """Hold what the group gives; refuse inputs that are not kept together."""
        held: dict[str, set[int]] = {name: set() for name in self._inputs}
        for each in partitions:
            held[each.topic].add(each.partition)
        requests, observations = held.values()
        if requests != observations:
            # Two writers of one partition would fence each other for ever.
            _end_process(
                Refused(
                    f"the group gave this worker {sorted(requests)} of the requests and"
                    f" {sorted(observations)} of the observations; both must be the same."
                    " Do all members of the group run this program?"
                )
            )
        generation = self._app.consumer_generation_id
        await self._guarded(self._engine.assign(requests, generation))

    async def revoked(self, partitions: Iterable[Any]) -> None:
        """Finish what is under way and let go, before the group gives it to others."""
        self._joined.clear()
        await self._guarded(self._engine.revoke({each.partition for each in partitions}))

    async def ready(self) -> None:
        """Load before the first record comes: Faust holds the records back until this returns."""
        self._joined.set()
        await self._guarded(self._engine.ready())

    async def keep_time(self) -> None:
        """Write what time brings, for ever."""
        await self._guarded(keep_time(self._engine, wall_clock_us))

    async def catch_up(self) -> None:
        """Read what Faust has passed over."""
        await self._guarded(self._engine.catch_up(wall_clock_us()))

    async def _guarded(self, work: Awaitable[object]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends the process
            _end_process(error)


def _end_process(error: Exception | None) -> NoReturn:
    """End the process at once, with the status for ``error``; without one, as asked.

    Not by raising: an exception that leaves an agent acknowledges the records it
    was raised for, and Faust's orderly stop commits them. So nothing of Faust
    may run any more. What was confirmed is in the log; the next worker reads it there.
    """
    status = 0 if error is None else exit_status(error)
    logging.shutdown()
    sys.stderr.flush()
    os._exit(status)


def _record(message: Any) -> Record:  # noqa: ANN401 - Faust's message, with its loose types
    """Return a record as the log would; Faust gives the broker's milliseconds as seconds."""
    return Record(
        message.topic,
        message.partition,
        message.offset,
        round(message.timestamp * 1000) * 1000,
        message.key,
        message.value,
        tuple([(name, value or b"") for name, value in message.headers or ()]),
    )


def build(
    engine: Engine, partitions: int, folder: str, joined: asyncio.Event | None = None
) -> faust.App:
    """Return the app that feeds ``engine``; ``folder`` is for files that Faust may want to write.

    ``partitions`` is the count of both input topics. ``joined`` is set while this process is a
    member of the group with an assignment, empty or not.
    """
    settings = engine.settings
    servers = _servers(settings).split(",")
    app = faust.App(
        settings.prefix,
        broker=[f"kafka://{server}" for server in servers],
        broker_client_id=settings.worker,
        broker_session_timeout=settings.session_timeout_s,
        broker_heartbeat_interval=settings.group_heartbeat_s,
        broker_rebalance_timeout=settings.rebalance_timeout_s,
        broker_request_timeout=max(_REQUEST_S, settings.session_timeout_s),
        # "exactly_once" promises what it does not keep; the ledger does not need it.
        processing_guarantee="at_least_once",
        # Not for tables, of which there are none: with 0 Faust uses an assignor that does not
        # keep the two inputs together.
        table_standby_replicas=1,
        # A batch that waits for the broker must not hold up a rebalance: `revoked` bounds it.
        stream_wait_empty=False,
        # Topics are made by `gpuledger topics apply` and by nothing else.
        topic_allow_declare=False,
        topic_disable_leader=True,
        consumer_auto_offset_reset="earliest",
        autodiscover=False,
        cython_optimizations=True,
        datadir=folder,
        web_enabled=False,
    )
    feed = _Feed(app, engine, joined)
    names = [full_name(settings.prefix, topic) for topic in INPUTS]
    # Bytes, decoded by us: a fault in Faust's own decoding would acknowledge and lose the record.
    topic = app.topic(
        *names,
        partitions=partitions,
        key_type=bytes,
        value_type=bytes,
        key_serializer="raw",
        value_serializer="raw",
    )
    _connect(app, topic, feed, settings)
    return app


def _servers(settings: Settings) -> str:
    return settings.log.removeprefix("kafka://").rstrip("/")


def _connect(app: faust.App, topic: Any, feed: _Feed, settings: Settings) -> None:  # noqa: ANN401
    # One task: with several, Faust commits past records that are not done.
    @app.agent(topic, name="inputs", concurrency=1)
    async def inputs(stream: Any) -> None:  # noqa: ANN401
        async for events in stream.take_events(settings.batch, within=_WITHIN_S):
            await feed.take(events)

    @app.on_partitions_assigned.connect
    async def assigned(_app: Any, /, *given: Any, **_more: Any) -> None:  # noqa: ANN401
        await feed.assigned(given[0])

    @app.on_partitions_revoked.connect
    async def revoked(_app: Any, /, *given: Any, **_more: Any) -> None:  # noqa: ANN401
        await feed.revoked(given[0])

    @app.on_rebalance_complete.connect
    async def complete(_app: Any, /, *_given: Any, **_more: Any) -> None:  # noqa: ANN401
        await feed.ready()

    # No timer of Faust's: its waits are all alike, and a deadline is due when it is due.
    @app.task
    async def tick() -> None:
        await feed.keep_time()

    # A timer of its own: a read that waits must not hold up the ticks.
    @app.timer(interval=settings.tick_s)
    async def catch_up() -> None:
        await feed.catch_up()


async def run(
    log: Log, settings: Settings, stop: asyncio.Event, metrics: Metrics | None = None
) -> None:
    """Serve what the group gives until ``stop`` is set.

    Raise `Refused`, and `LogUnavailable` when Faust loses the broker for good. An
    error of the engine ends the process.
    """
    partitions = await check_topics(log, settings)
    about_group = (_servers(settings), settings.prefix, _ASSIGNOR)
    await check_group(*about_group)
    engine = Engine(log, settings, snapshot_store(settings), metrics=metrics)
    joined = asyncio.Event()
    failure: Exception | None = None
    with tempfile.TemporaryDirectory(prefix="gpuledger-faust-") as folder:
        app = build(engine, partitions, folder, joined)
        try:
            # Faust's start returns only after it has joined, which may never be.
            await run_until(stop, _serve(app, stop), watch_group(*about_group, joined.is_set))
        except Exception as error:  # noqa: BLE001 - raised below, after all is closed
            failure = error
        stopped = await _stop(app, joined)
        await engine.close()
    if not stopped:
        _end_process(failure)
    if failure is not None:
        raise failure
    if app.crash_reason is not None:
        raise _reason(app.crash_reason)


async def _serve(app: faust.App, stop: asyncio.Event) -> None:
    await app.start()
    await app.wait_for_stopped(stop.wait())


async def _stop(app: faust.App, joined: asyncio.Event) -> bool:
    """Stop Faust; return False when it does not, as while the group does not let it in.

    Where this process holds something it is waited for, and where it holds nothing not long.
    """
    try:
        async with asyncio.timeout(None if joined.is_set() else _STOP_S):
            await app.stop()
    except TimeoutError:
        return False
    return True


def _reason(error: BaseException) -> BaseException:
    if isinstance(error, (KafkaError, OSError)):
        return LogUnavailable(f"Faust has lost the broker: {error}")
    return error
