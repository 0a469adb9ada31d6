"""Which recorded event says that a deadline has fired, by kind of the deadline.

Time is known to a cell only by its inputs, so a deadline fires somewhat after it is due. In
a replay one that fires in the next record as well is left to it; only what the log has no
input for is brought about by a tick of the replay's own, at the time at which it is due.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["fires"]

_BY_KIND = {
    "wait": (("request.ended",), "request"),
    "run": (("lease.stopping",), "lease"),
    "idle": (("lease.stopping",), "lease"),
    "remind": (("lease.reminded",), "lease"),
    "order": (("order.timed-out",), "order"),
    "node": (("node.changed",), "node"),
    "settle": (("node.settled", "node.unsettled"), "node"),
    "budget": (("quota.renewed",), "quota"),
    "rest": (("request.rested",), "request"),
    "repair": (("request.repair-over",), "request"),
    "opens": (("reservation.opened",), "reservation"),
    "closes": (("reservation.ended",), "reservation"),
}


def fires(events: Iterable[dict[str, Any]], kind: str, name: str) -> bool:
    """Say whether a record's events have the deadline ``kind`` of ``name`` among them."""
    types, field = _BY_KIND.get(kind, ((), ""))
    return any(event["type"] in types and event[field] == name for event in events)
