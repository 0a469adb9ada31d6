"""Kafka's topics: list, create, describe; groups. And how Kafka's errors become the port's."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, NoReturn

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, NoError, TopicAlreadyExistsError, for_code

from ledger.log.port import LogError, LogUnavailable, TopicState

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

__all__ = ["FAILURES", "KafkaTopics", "unavailable"]

#: What aiokafka raises when the broker, or the way to it, is at fault.
FAILURES = (KafkaError, OSError, TimeoutError)

#: How often to look whether a new topic has its leaders.
_LEADER_POLL_S = 0.05


def unavailable(doing: str, error: BaseException | str) -> NoReturn:
    """Raise `LogUnavailable` with what was being done, where, and the cause."""
    if isinstance(error, LogUnavailable):
        raise error
    if isinstance(error, str):
        raise LogUnavailable(f"cannot {doing}: {error}")
    cause = str(error) or "no answer in time"
    raise LogUnavailable(f"cannot {doing}: {type(error).__name__}: {cause}") from error


class KafkaTopics:
    """Questions about topics, each asked through an admin client of its own.

    They are rare (at start, and by the operator), so no connection is kept.
    ``options`` go to the client; ``timeout_s`` bounds each call.
    """

    def __init__(self, options: Mapping[str, Any], timeout_s: float) -> None:
        self._options = dict(options)
        self._timeout_s = timeout_s

    async def partitions(self) -> dict[str, list[dict[str, Any]]]:
        """Return each topic's partitions with ``leader`` and ``replicas`` (broker ids).

        All topics are listed: to ask for one by name creates it on many brokers.
        """
        async with self._admin("list topics") as admin:
            found = await admin.describe_topics()
        return {topic["topic"]: topic["partitions"] for topic in found}

    async def create(self, topics: Mapping[str, TopicState]) -> list[str]:
        """Create what is missing; return when each partition of it has a leader.

        Raise `LogError` when the brokers refuse (too few for the replication, say).
        """
        missing = sorted(set(topics) - set(await self.partitions()))
        if not missing:
            return []
        wanted = [
            NewTopic(
                name=name,
                num_partitions=topics[name].partitions,
                replication_factor=topics[name].replication or 1,
                topic_configs=dict(topics[name].config or {}),
            )
            for name in missing
        ]
        async with self._admin("create topics") as admin:
            response = await admin.create_topics(wanted)
        created: list[str] = []
        for name, code, *detail in response.topic_errors:
            kind = for_code(code)
            if kind is NoError:
                created.append(name)
            elif kind is not TopicAlreadyExistsError:
                reason = detail[0] if detail and detail[0] else kind.__name__
                raise LogError(f"the brokers refuse to create topic {name}: {reason}")
        await self._wait_for_leaders(missing)
        return created

    async def configure(self, topics: Mapping[str, TopicState]) -> list[str]:
        """Give topics the settings of ``config``, and the broker's defaults for all others."""
        resources = [
            ConfigResource(ConfigResourceType.TOPIC, name, dict(state.config or {}))
            for name, state in topics.items()
        ]
        async with self._admin("configure topics") as admin:
            responses = await admin.alter_configs(resources)
        for response in responses:
            for code, message, _kind, name in response.resources:
                if code:
                    raise LogError(f"the brokers refuse the settings of topic {name}: {message}")
        return sorted(topics)

    async def describe(self, names: Sequence[str]) -> dict[str, TopicState]:
        """Return the state of those that exist; the settings include broker defaults."""
        existing = await self.partitions()
        found = [name for name in names if name in existing]
        if not found:
            return {}
        resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in found]
        async with self._admin("describe topics") as admin:
            responses = await admin.describe_configs(resources)
        settings: dict[str, dict[str, str]] = {}
        for response in responses:
            for code, message, _kind, name, entries in response.resources:
                if code:
                    raise LogError(f"cannot read the settings of topic {name}: {message}")
                settings[name] = {entry[0]: entry[1] or "" for entry in entries}
        return {
            name: TopicState(
                partitions=len(existing[name]),
                replication=min(len(each["replicas"]) for each in existing[name]),
                config=settings[name],
            )
            for name in found
        }

    async def assignor_of(self, group: str) -> str:
        """Return the assignor of a consumer group's members; empty where none is told.

        That is so without members, in a rebalance, and for who may not ask.
        """
        async with self._admin(f"describe group {group}") as admin:
            answers = await admin.describe_consumer_groups([group])
        # One row a group: error code, name, state, kind of protocol, assignor, members.
        rows = [row for answer in answers for row in answer.groups if row[5]]
        return str(rows[0][4]) if rows else ""

    @contextlib.asynccontextmanager
    async def _admin(self, doing: str) -> AsyncIterator[Any]:
        """Lend an admin client for one question; its errors become `LogUnavailable`."""
        admin = AIOKafkaAdminClient(**self._options)
        try:
            async with asyncio.timeout(self._timeout_s):
                await admin.start()
                yield admin
        except FAILURES as error:
            unavailable(f"{doing} on {self._options['bootstrap_servers']}", error)
        finally:
            await admin.close()

    async def _wait_for_leaders(self, names: Sequence[str]) -> None:
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._timeout_s
        while True:
            known = await self.partitions()
            leaders = [each["leader"] for name in names for each in known.get(name, [])]
            if all(name in known for name in names) and min(leaders, default=-1) >= 0:
                return
            if clock() > deadline:
                unavailable(f"create {', '.join(names)}", "no leader was chosen in time")
            await asyncio.sleep(_LEADER_POLL_S)
