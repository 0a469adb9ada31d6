"""The topics: who writes what, keyed by what, kept for how long (DESIGN section 2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = [
    "CELL_GROUP",
    "DEFAULT_PREFIX",
    "MAX_MESSAGE_BYTES",
    "TOPICS",
    "Topic",
    "full_name",
    "topic_config",
]

DEFAULT_PREFIX = "gpuledger"

#: The topics of which whoever holds partition p of one holds p of all.
CELL_GROUP = "cell"

#: The largest record batch a broker takes: the log port's limit of 8 MiB for
#: one record, and 4 KiB for Kafka's framing of it.
MAX_MESSAGE_BYTES = 8 * 1_048_576 + 4_096

#: Copies that must have a record before it counts as written, where there are that many.
MIN_INSYNC_REPLICAS = 2

_DAY_MS = 24 * 3_600 * 1_000

#: Kafka's word for "never removed".
FOR_EVER = -1


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic. Its name is the prefix, a dot and ``suffix``."""

    suffix: str
    #: What the record's key is; all records of one key are in one partition, in order.
    key: Literal["cell", "node", "requester", "as it was"]
    #: What a record is.
    value: str
    #: Who may write to it; everybody else may only read.
    written_by: str
    #: How long records are kept, in milliseconds; `FOR_EVER` is for ever.
    retention_ms: int
    #: How many partitions `ledger.log.topics.apply` makes unless told otherwise.
    partitions: int = 4
    #: Topics of one group have the same partition count, fixed for life.
    same_partitions_as: str | None = None


TOPICS: tuple[Topic, ...] = (
    Topic(
        suffix="requests",
        key="cell",
        value="a request, cancellation or policy change",
        written_by="services and operators; the only topic they may write",
        retention_ms=7 * _DAY_MS,
        partitions=8,
        same_partitions_as=CELL_GROUP,
    ),
    Topic(
        suffix="observations",
        key="cell",
        value="what a node reports: inventory, health, partition and clean results; and ticks",
        written_by="collectors, the liveness processor, the runner's tick",
        retention_ms=7 * _DAY_MS,
        partitions=8,
        same_partitions_as=CELL_GROUP,
    ),
    Topic(
        suffix="events",
        key="cell",
        value="claims and decisions: the ledger itself",
        written_by="processors, never in a Kafka transaction",
        retention_ms=FOR_EVER,
        partitions=8,
        same_partitions_as=CELL_GROUP,
    ),
    Topic(
        suffix="orders",
        key="node",
        value="what a node is to do: create or destroy a partition, clean, stop",
        written_by="processors, after the append",
        retention_ms=7 * _DAY_MS,
    ),
    Topic(
        suffix="replies",
        key="requester",
        value="answers to requests, and notices",
        written_by="processors, after the append",
        retention_ms=7 * _DAY_MS,
    ),
    Topic(
        suffix="heartbeats",
        key="node",
        value="a sign of life",
        written_by="collectors",
        retention_ms=_DAY_MS,
    ),
    Topic(
        suffix="usage",
        key="node",
        value="samples of use; never on the decision path",
        written_by="collectors",
        retention_ms=30 * _DAY_MS,
    ),
    Topic(
        suffix="dead-letters",
        key="as it was",
        value="what could not be read: original key, value and headers, and why",
        written_by="processors",
        retention_ms=30 * _DAY_MS,
        partitions=1,
    ),
    Topic(
        suffix="audit",
        key="requester",
        value="what somebody asked of the ledger in SQL, and how much was shown",
        written_by="gpuledger sql and report, before they show a row",
        retention_ms=FOR_EVER,
        partitions=1,
    ),
)


def full_name(prefix: str, suffix: str) -> str:
    """Return a topic's name in the log, for example ``gpuledger.events``."""
    return f"{prefix}.{suffix}"


def topic_config(topic: Topic, replication: int) -> dict[str, str]:
    """Return the Kafka settings declared for ``topic`` kept in ``replication`` copies."""
    return {
        # Never compacted: the newest record of a key does not replace the older ones.
        "cleanup.policy": "delete",
        "retention.ms": str(topic.retention_ms),
        # Time alone decides: a broker's default size limit would remove events.
        "retention.bytes": "-1",
        # An input's time is the broker's, never a client's clock (DESIGN 2.2).
        "message.timestamp.type": "LogAppendTime",
        "min.insync.replicas": str(min(MIN_INSYNC_REPLICAS, replication)),
        "max.message.bytes": str(MAX_MESSAGE_BYTES),
        # A replica that lacks acknowledged records must not become the leader.
        "unclean.leader.election.enable": "false",
    }
