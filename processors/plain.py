"""Kafka workers without Faust: a consumer group for membership, own readers for the data.

One consumer joins the group, subscribed to the requests alone and with every
partition paused: it tells which partitions are this process's, and nothing more.
Whoever holds partition p of the requests reads p of both inputs and writes p of
the ledger, so the two inputs cannot come apart, whatever the assignor does.
The group's offsets say how far the requests are answered: for lag monitors only.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.errors import InconsistentGroupProtocolError, KafkaError

from ledger.log.port import LogUnavailable
from ledger.log.wakeup import wall_clock_us
from ledger.loops import run_until
from processors.engine import Engine
from processors.pump import Pumps, find_overlooked, keep_time
from processors.setup import check_topics, mixed_group, snapshot_store
from schemas.topics import full_name

if TYPE_CHECKING:
    from collections.abc import Collection

    from ledger.log.port import Log
    from processors.metrics import Metrics
    from processors.settings import Settings

__all__ = ["run"]

_log = structlog.get_logger(__name__)
_MS = 1000

#: How often offsets are committed, in seconds.
_COMMIT_S = 1.0

#: How long the first connection may take, in seconds.
_START_S = 30.0


class _Member(ConsumerRebalanceListener):  # type: ignore[misc]
    """The process as a member of the group, and what it holds because of it."""

    def __init__(self, engine: Engine, pumps: Pumps) -> None:
        settings = engine.settings
        self._engine = engine
        self._pumps = pumps
        self._group = settings.prefix
        self._requests = full_name(settings.prefix, "requests")
        self._assignments = 0
        self._committed: dict[TopicPartition, int] = {}
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=settings.log.removeprefix("kafka://").rstrip("/"),
            group_id=settings.prefix,
            client_id=settings.worker,
            enable_auto_commit=False,
            # Both do nothing to what is read, which is not read here.
            auto_offset_reset="earliest",
            partition_assignment_strategy=(RoundRobinPartitionAssignor,),
            session_timeout_ms=int(settings.session_timeout_s * _MS),
            heartbeat_interval_ms=int(settings.group_heartbeat_s * _MS),
            rebalance_timeout_ms=int(settings.rebalance_timeout_s * _MS),
        )

    async def start(self) -> None:
        """Join the group; raise `LogUnavailable`, and `Refused` among workers of Faust."""
        self._consumer.subscribe([self._requests], listener=self)
        try:
            async with asyncio.timeout(_START_S):
                await self._consumer.start()
        except InconsistentGroupProtocolError:
            raise mixed_group(self._group, "plain") from None
        except (KafkaError, OSError, TimeoutError) as error:
            raise LogUnavailable(f"cannot join the group: {error}") from error

    async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        """Finish what is under way and let go, before anybody else is told to begin."""
        partitions = [each.partition for each in revoked]
        if partitions:
            _log.info("partitions revoked", partitions=sorted(partitions))
        await self._engine.revoke(partitions)
        await self._pumps.stop()

    async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        """Hold what the group gives; loading is left to the readers, the group does not wait."""
        # Paused before the first fetch: the records are read by the pumps.
        self._consumer.pause(*assigned)
        self._committed.clear()
        self._assignments += 1
        await self._engine.assign([each.partition for each in assigned], self._assignments)
        self._pumps.start()

    async def commit_for_ever(self) -> None:
        """Stay in the group and commit how far the requests are answered.

        Asking for records (there are none, all is paused) is what tells the
        client that this member is alive, and where it raises. Raise `LogUnavailable`, and
        `Refused` when workers of Faust have taken the group meanwhile.
        """
        while True:
            try:
                await self._consumer.getmany(timeout_ms=int(_COMMIT_S * _MS))
            except InconsistentGroupProtocolError:
                raise mixed_group(self._group, "plain") from None
            except KafkaError as error:
                raise LogUnavailable(f"membership of the group is lost: {error}") from error
            await self.commit()

    async def commit(self) -> None:
        """Commit how far all is answered, where that has moved since the last time."""
        offsets: dict[TopicPartition, int] = {}
        for partition in self._engine.partitions:
            where = TopicPartition(self._requests, partition)
            answered = self._engine.answered("requests", partition)
            if answered is not None and self._committed.get(where) != answered:
                offsets[where] = answered
        if not offsets:
            return
        try:
            await self._consumer.commit(offsets)
        except KafkaError as error:
            # A rebalance under way, or no broker: nothing depends on it.
            _log.debug("offsets not committed", error=str(error))
        else:
            self._committed.update(offsets)

    async def stop(self) -> None:
        """Leave the group, so that others take over at once."""
        await self._consumer.stop()


async def run(
    log: Log, settings: Settings, stop: asyncio.Event, metrics: Metrics | None = None
) -> None:
    """Serve what the group gives until ``stop`` is set.

    Raise `Refused`, `LogUnavailable` when the group cannot be joined, and what
    `Engine.take` raises; no offset is committed after such an error.
    """
    await check_topics(log, settings)
    engine = Engine(log, settings, snapshot_store(settings), metrics=metrics)
    pumps = Pumps(engine)
    member = _Member(engine, pumps)
    try:
        await member.start()
        await run_until(
            stop,
            pumps.failed,
            member.commit_for_ever(),
            keep_time(engine, wall_clock_us),
            find_overlooked(engine, wall_clock_us),
        )
        await member.commit()
    finally:
        await engine.close()
        await pumps.stop()
        await member.stop()
