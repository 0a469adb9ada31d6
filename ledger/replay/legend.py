"""Short codes of what a record can do: two characters, the thing and what became of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["ANSWER", "CLAIM", "LEGEND", "VOID", "code_of", "legend"]

#: A decision without an event: an input was answered, and nothing changed.
ANSWER = "--"
CLAIM = "=="
VOID = "xx"
_UNKNOWN = "??"

#: Event type -> its code and what it says. Capitals: R request, L lease, O order, N node,
#: D device, S slice, Q quota, P pool, W queue (waiting line), T template, V reservation,
#: C compatibility, F licence, K link, M prices (money), A alarm.
LEGEND: dict[str, tuple[str, str]] = {
    "request.received": ("R+", "request let in"),
    "request.rejected": ("R!", "request refused"),
    "request.queued": ("R?", "request waits"),
    "request.planned": ("Rp", "start of a waiting request planned, or no longer"),
    "request.reserved": ("Rk", "place kept for a request"),
    "request.unreserved": ("Ru", "place no longer kept"),
    "request.repairing": ("Rr", "place kept through a repair"),
    "request.repair-over": ("Ro", "place no longer kept through a repair"),
    "request.rested": ("Rz", "request may have others evicted again"),
    "request.ended": ("R-", "request over"),
    "lease.granted": ("L+", "lease granted"),
    "lease.started": ("L>", "lease runs on a node"),
    "lease.extended": ("Lx", "lease may run longer"),
    "task.begun": ("T+", "command started under a lease"),
    "lease.idle": ("Li", "lease idle, or used again"),
    "lease.reminded": ("Lr", "owner of an idle lease reminded"),
    "lease.stopping": ("L~", "lease told to end"),
    "part.ended": ("L/", "lease ended on one node"),
    "lease.ended": ("L-", "lease over"),
    "order.issued": ("O+", "node ordered to do something"),
    "order.done": ("O-", "order done"),
    "order.failed": ("O!", "order failed"),
    "order.timed-out": ("Ot", "order not answered in time"),
    "order.superseded": ("Os", "order overtaken by what happened"),
    "node.registered": ("N+", "node registered"),
    "node.changed": ("N~", "state of a node changed"),
    "node.unsettled": ("Nu", "node has more to end than one record takes"),
    "node.settled": ("Ns", "nothing is left there of what was before"),
    "device.discovered": ("D+", "device seen"),
    "device.health": ("Dh", "health of a device changed"),
    "device.fault": ("D!", "something went wrong on a device"),
    "device.quarantined": ("Dq", "device put in quarantine"),
    "device.cleared": ("Dc", "device cleared"),
    "device.reopened": ("Do", "device may be partitioned again"),
    "slice.ordered": ("S?", "slice to be created"),
    "slice.present": ("S+", "slice present"),
    "slice.gone": ("S-", "slice gone"),
    "slice.quarantined": ("Sq", "slice put in quarantine"),
    "quota.applied": ("Q=", "quota set"),
    "quota.asked": ("Q?", "larger quota asked for"),
    "quota.answered": ("Qa", "larger quota approved or refused"),
    "quota.renewed": ("Qr", "a new period's GPU-hours"),
    "pool.applied": ("P=", "pool set"),
    "placement.applied": ("Pw", "pool told what requests come"),
    "queue.applied": ("W=", "queue set"),
    "template.applied": ("T=", "template set"),
    "compatibility.applied": ("C=", "what a model version runs on set"),
    "licence.applied": ("F=", "licence set"),
    "prices.applied": ("M=", "price book set"),
    "link.measured": ("K=", "link between two nodes measured"),
    "reservation.applied": ("V+", "reservation made"),
    "reservation.moved": ("V~", "reservation on other nodes"),
    "reservation.opened": ("V>", "reservation has begun"),
    "reservation.cancelled": ("Vx", "reservation given up"),
    "reservation.ended": ("V-", "reservation over"),
    "alarm.raised": ("A!", "alarm"),
    "pass.cut": ("..", "more was given than one record holds"),
    "pass.done": ("./", "everything that waits has been looked at"),
}

_RECORDS = {
    ANSWER: "an input answered, nothing changed",
    CLAIM: "a writer claimed the partition",
    VOID: "a record of a writer that had lost the partition: no effect",
    _UNKNOWN: "an event that this version does not know",
}


def code_of(event_type: str) -> str:
    """Return the code of an event's type."""
    return LEGEND.get(event_type, (_UNKNOWN, ""))[0]


def legend(codes: Iterable[str] | None = None) -> dict[str, str]:
    """Return what codes mean, in the order of the legend; all of them, when None."""
    every = {**dict(LEGEND.values()), **_RECORDS}
    if codes is None:
        return every
    wanted = set(codes)
    return {code: meaning for code, meaning in every.items() if code in wanted}
