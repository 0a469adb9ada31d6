"""The declaration of the topics, its application and its check."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ledger.log import topics
from ledger.log.kafka import KafkaLog
from ledger.log.memory import MemoryLog
from ledger.log.port import MAX_RECORD_BYTES, LogError, TopicState
from ledger.log.sqlite import SqliteLog
from schemas.topics import CELL_GROUP, MAX_MESSAGE_BYTES, TOPICS, full_name, topic_config

if TYPE_CHECKING:
    from pathlib import Path

SUFFIXES = {topic.suffix: topic for topic in TOPICS}


def test_the_declaration() -> None:
    """What the design relies on."""
    assert set(SUFFIXES) == {
        *("requests", "observations", "events", "orders"),
        *("replies", "heartbeats", "usage", "dead-letters", "audit"),
    }
    group = [topic for topic in TOPICS if topic.same_partitions_as == CELL_GROUP]
    assert {topic.suffix for topic in group} == {"requests", "observations", "events"}
    assert {topic.key for topic in group} == {"cell"}
    assert len({topic.partitions for topic in group}) == 1
    events = topic_config(SUFFIXES["events"], 3)
    assert events["retention.ms"] == "-1"
    assert events["cleanup.policy"] == "delete"
    assert events["min.insync.replicas"] == "2"
    assert topic_config(SUFFIXES["events"], 1)["min.insync.replicas"] == "1"
    assert topic_config(SUFFIXES["requests"], 1)["retention.ms"] == "604800000"
    assert all(
        topic_config(topic, 1)["message.timestamp.type"] == "LogAppendTime" for topic in TOPICS
    )
    assert MAX_MESSAGE_BYTES > MAX_RECORD_BYTES


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_apply_and_check_on_one_machine(kind: str, tmp_path: Path) -> None:
    """All topics are made once; nothing differs; what is missing is found."""
    log = MemoryLog() if kind == "memory" else SqliteLog(tmp_path / "log")
    async with log:
        missing = await topics.check(log, "site")
        assert [str(finding) for finding in missing] == [
            f"{full_name('site', topic.suffix)}: topic is missing, wanted present"
            for topic in TOPICS
        ]
        assert len(await topics.apply(log, "site", partitions=2)) == len(TOPICS)
        assert await topics.apply(log, "site", partitions=2) == []
        assert await topics.check(log, "site", partitions=2, replication=3) == []
        assert await log.partitions("site.events") == 2
        assert await log.partitions("site.orders") == SUFFIXES["orders"].partitions


async def test_partition_counts_must_agree() -> None:
    """Against each other when no count is asked for, else against that count."""
    async with MemoryLog() as log:
        await log.create_topics({"site.observations": TopicState(4)})
        await topics.apply(log, "site", partitions=8)
        assert [str(finding) for finding in await topics.check(log, "site")] == [
            "site.observations: partitions is 4, wanted 8 as site.events has"
        ]
        assert [str(finding) for finding in await topics.check(log, "site", partitions=4)] == [
            "site.requests: partitions is 8, wanted 4",
            "site.events: partitions is 8, wanted 4",
        ]


@pytest.mark.kafka
async def test_apply_and_check_on_kafka(kafka: str, kafka_prefix: str) -> None:
    """The broker takes the declaration, and what it reports then is what was declared."""
    async with KafkaLog(kafka) as log:
        created = await topics.apply(log, kafka_prefix, partitions=3)
        assert created == sorted(full_name(kafka_prefix, topic.suffix) for topic in TOPICS)
        assert await topics.apply(log, kafka_prefix, partitions=3) == []
        assert await topics.check(log, kafka_prefix, partitions=3, replication=1) == []
        assert await topics.check(log, kafka_prefix) == []
        copies = await topics.check(log, kafka_prefix, replication=3)
        assert {(finding.setting, finding.found, finding.wanted) for finding in copies} == {
            ("replication factor", "1", "3")
        }
        assert len(copies) == len(TOPICS)


@pytest.mark.kafka
async def test_wrong_topics_on_kafka_are_named(kafka: str, kafka_prefix: str) -> None:
    """Each wrong setting is one finding, that says what was found and what is wanted."""
    events, requests, usage = (
        full_name(kafka_prefix, suffix) for suffix in ("events", "requests", "usage")
    )
    async with KafkaLog(kafka) as log:
        good = topics.declared(kafka_prefix, partitions=4)
        compacted = {**(good[events].config or {}), "cleanup.policy": "compact"}
        client_time = {
            **(good[requests].config or {}),
            "message.timestamp.type": "CreateTime",
            "max.message.bytes": "50000000",
        }
        await log.create_topics(
            {
                events: TopicState(4, 1, compacted),
                requests: TopicState(2, 1, client_time),
                # As a broker makes a topic that nobody declared.
                usage: TopicState(1),
            }
        )
        await topics.apply(log, kafka_prefix, partitions=4)
        found = [str(finding) for finding in await topics.check(log, kafka_prefix, partitions=4)]
        assert found[:3] == [
            f"{requests}: partitions is 2, wanted 4",
            f"{requests}: message.timestamp.type is CreateTime, wanted LogAppendTime",
            f"{events}: cleanup.policy is compact, wanted delete",
        ]
        assert f"{usage}: retention.ms is 604800000, wanted 2592000000" in found
        assert f"{usage}: message.timestamp.type is CreateTime, wanted LogAppendTime" in found
        assert all(line.startswith(f"{usage}: ") for line in found[3:])


@pytest.mark.kafka
async def test_more_copies_than_brokers(kafka: str, kafka_prefix: str) -> None:
    """The broker's refusal is told with the topic's name."""
    async with KafkaLog(kafka) as log:
        with pytest.raises(LogError, match=rf"refuse to create topic {kafka_prefix}\."):
            await topics.apply(log, kafka_prefix, replication=30)
