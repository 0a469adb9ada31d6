"""Create the declared topics in a log, and find where a log differs from the declaration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ledger.log.port import TopicState
from schemas.topics import TOPICS, Topic, full_name, topic_config

if TYPE_CHECKING:
    from ledger.log.port import Log

__all__ = ["Finding", "apply", "check", "declared"]

#: Settings where more than declared is as good.
_AT_LEAST = frozenset({"max.message.bytes"})


@dataclass(frozen=True, slots=True)
class Finding:
    """One setting of one topic that is not as declared."""

    topic: str
    setting: str
    found: str
    wanted: str

    def __str__(self) -> str:
        """Return for example ``gpuledger.events: cleanup.policy is compact, wanted delete``."""
        return f"{self.topic}: {self.setting} is {self.found}, wanted {self.wanted}"


def declared(
    prefix: str, partitions: int | None = None, replication: int = 1
) -> dict[str, TopicState]:
    """Return each topic, by full name, as it is to be.

    ``partitions`` replaces the declared count of the topics that must have the
    same one (requests, observations, events); the others keep theirs.
    """
    return {
        full_name(prefix, topic.suffix): TopicState(
            partitions=_wanted_partitions(topic, partitions),
            replication=replication,
            config=topic_config(topic, replication),
        )
        for topic in TOPICS
    }


async def apply(
    log: Log, prefix: str, partitions: int | None = None, replication: int = 1
) -> list[str]:
    """Create what is missing and return its names; leave what exists as it is.

    Raise what `Log.create_topics` raises. Call `check` to see whether what
    existed before is right.
    """
    return await log.create_topics(declared(prefix, partitions, replication))


async def check(
    log: Log, prefix: str, partitions: int | None = None, replication: int | None = None
) -> list[Finding]:
    """Return every difference between the log and the declaration, in the order declared.

    With ``partitions`` None the topics that must have the same count may have
    any. With ``replication`` None any replication is right, and
    ``min.insync.replicas`` is judged by the one found. Settings that a log does
    not have (memory, SQLite) are not compared.
    """
    names = [full_name(prefix, topic.suffix) for topic in TOPICS]
    states = await log.describe_topics(names)
    findings: list[Finding] = []
    for topic, name in zip(TOPICS, names, strict=True):
        state = states.get(name)
        if state is None:
            findings.append(Finding(name, "topic", "missing", "present"))
            continue
        findings += _wrong_count(topic, name, states, partitions)
        findings += _wrong_copies(name, state, replication)
        findings += _wrong_settings(topic, name, state)
    return findings


def _wanted_partitions(topic: Topic, partitions: int | None) -> int:
    if topic.same_partitions_as is None or partitions is None:
        return topic.partitions
    return partitions


def _wrong_count(
    topic: Topic, name: str, states: dict[str, TopicState], partitions: int | None
) -> list[Finding]:
    """Compare within the group; the last of it, events, is the one that cannot be made anew."""
    if topic.same_partitions_as is None:
        return []
    found = states[name].partitions
    wanted = f"{partitions}"
    if partitions is None:
        prefix = name.removesuffix(topic.suffix)
        group = [
            prefix + other.suffix
            for other in TOPICS
            if other.same_partitions_as == topic.same_partitions_as
        ]
        model = next((each for each in reversed(group) if each in states), name)
        partitions = states[model].partitions
        wanted = f"{partitions} as {model} has"
    if found == partitions:
        return []
    return [Finding(name, "partitions", f"{found}", wanted)]


def _wrong_copies(name: str, state: TopicState, replication: int | None) -> list[Finding]:
    found = state.replication
    if found is None or replication is None or found >= replication:
        return []
    return [Finding(name, "replication factor", f"{found}", f"{replication}")]


def _wrong_settings(topic: Topic, name: str, state: TopicState) -> list[Finding]:
    if state.config is None:
        return []
    findings: list[Finding] = []
    for setting, wanted in topic_config(topic, state.replication or 1).items():
        found = state.config.get(setting, "absent")
        enough = setting in _AT_LEAST and found.isdigit() and int(found) >= int(wanted)
        if found != wanted and not enough:
            findings.append(Finding(name, setting, found, wanted))
    return findings
