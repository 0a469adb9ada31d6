"""What became of the time of what was there: work, free, or lost for a named cause.

Every part row of the meter is in exactly one kind of time, or in two where a lease has more
than it asked for; so the kinds of a window sum to present time x capacity, to the microsecond.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ledger.metering.rows import PARTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ledger.metering.rows import Row

__all__ = ["CAUSES", "FREE", "KINDS", "USED", "WASTE", "Cause", "divide"]


class Cause(NamedTuple):
    """A kind of time: its name, what people call it, and what it is made of."""

    name: str
    title: str
    formula: str


USED, FREE = "used", "free"

_ALL = (
    Cause(USED, "used", "allocated and seen running, as much as was asked"),
    Cause(FREE, "free", "idle, held by nobody, ready to be leased"),
    Cause("starting", "starting", "granted, the task not yet seen on its node"),
    Cause(
        "idle-held",
        "idle but held",
        "allocated and reported idle, or over on this node while the gang goes on",
    ),
    Cause(
        "fragmentation",
        "fragmentation",
        "delivered to a lease beyond what it asked for",
    ),
    Cause(
        "unpartitioned",
        "in no slice",
        "idle compute of a MIG device that is in no slice; a pool that partitions can make one",
    ),
    Cause("kept", "kept for a request", "idle, kept until the rest of a request's place is free"),
    Cause(
        "unhealthy",
        "unhealthy",
        "unhealthy or in quarantine, held or not",
    ),
    Cause("cleaning", "cleaning", "from a lease's end to the proof that it left nothing behind"),
    Cause("repartition", "repartitioning", "slices being made or removed, a node being settled"),
    Cause("maintenance", "maintenance", "draining, in maintenance, or registering"),
    Cause("node-away", "node away", "on a node that was silent or lost"),
    Cause(
        "unknown",
        "not known",
        "nothing was heard of it: not used, not free, and not 0",
    ),
)

#: All kinds of time by name, in the order in which reports have them.
KINDS: dict[str, Cause] = {one.name: one for one in _ALL}
#: The kinds that are neither used nor free.
WASTE = tuple(name for name in KINDS if name not in (USED, FREE))

#: State and cause of a part row -> its kind of time.
CAUSES: dict[tuple[str, str], str] = {
    ("allocated", "running"): USED,
    ("allocated", "starting"): "starting",
    ("allocated", "idle"): "idle-held",
    ("allocated", "over"): "idle-held",
    # It may have run all the while: nobody heard.
    ("allocated", "node-silent"): "unknown",
    ("allocated", "health-unknown"): "unknown",
    ("allocated", "node-lost"): "node-away",
    ("allocated", "unhealthy"): "unhealthy",
    ("allocated", "quarantined"): "unhealthy",
    ("idle", "free"): FREE,
    ("idle", "kept"): "kept",
    ("idle", "unpartitioned"): "unpartitioned",
    ("unavailable", "cleaning"): "cleaning",
    ("unavailable", "quarantined"): "unhealthy",
    ("unavailable", "unhealthy"): "unhealthy",
    ("unavailable", "maintenance"): "maintenance",
    ("unavailable", "draining"): "maintenance",
    ("unavailable", "registering"): "maintenance",
    ("unavailable", "settling"): "repartition",
    ("unavailable", "repartition"): "repartition",
    ("unavailable", "node-silent"): "node-away",
    ("unavailable", "node-lost"): "node-away",
}


def divide(row: Row) -> Iterator[tuple[str, int]]:
    """Yield kinds of time and the thousandths of the device that each has; nothing for memos.

    Below 0 where the row takes back what an earlier one said.
    """
    if row.state not in PARTS:
        return
    kind = CAUSES.get((row.state, row.cause), "unknown")
    held = row.holding
    asked = None if held is None else held.requested_milli
    if kind != USED or asked is None:
        yield kind, row.milli
        return
    sign = 1 if row.milli > 0 else -1
    used = sign * min(asked, abs(row.milli))
    yield USED, used
    if used != row.milli:
        yield "fragmentation", row.milli - used
