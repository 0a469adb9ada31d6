"""One turn: an input, the events it leads to, and the state they are applied to at once.

A turn is how `decide` writes: `emit` applies the event by `evolve` and keeps
it, so a later step of the same decision sees what an earlier one did, and the
state after the turn is by construction the fold of the events it returns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ledger.core.evolve import evolve
from ledger.core.limits import MAX_COPIED_TEXT
from ledger.core.line.asking import asker_of
from ledger.core.line.estimate import expectation
from ledger.core.promises.repair import keep_for_repair
from ledger.core.state import NO_POOL

if TYPE_CHECKING:
    import orjson

    from ledger.core.state import Device, Lease, Node, Order, Request, State

__all__ = ["Answer", "Input", "Numbers", "Turn"]

Numbers = dict[str, int | str | None]
#: A code and the numbers that were compared.
Answer = tuple[str, Numbers]

#: A sender's clock further off than this is flagged on the record.
SKEW_FLAG_US = 60_000_000


@dataclass(slots=True)
class Input:
    """One well-formed record of an input topic. Not frozen for the reason `Need` is not.

    ``data`` is the validated model, ``plain`` the same as it was read (or its JSON
    text), for the record. ``time_us`` is the log's append time; ``claimed_us`` the sender's.
    """

    topic: str
    type: str
    version: int
    source: str
    id: str
    time_us: int
    data: Any
    plain: dict[str, Any] | orjson.Fragment
    fingerprint: str
    claimed_us: int | None = None

    @property
    def key(self) -> str:
        """``source#id``: what makes it one input for ever (L1)."""
        return f"{self.source}#{self.id}"


@dataclass(slots=True)
class Turn:
    """The working place of one decision."""

    state: State
    now_us: int
    events: list[dict[str, Any]] = field(default_factory=list)

    def emit(self, event: dict[str, Any]) -> None:
        """Apply an event and keep it."""
        evolve(self.state, event, self.now_us)
        self.events.append(event)

    def new_id(self, letter: str) -> str:
        """Return the next id of the cell; the event that uses it counts it."""
        return f"{self.state.cell}-{letter}{self.state.next_id}"

    # -- what several causes have in common --------------------------------

    def alarm(self, code: str, about: str, numbers: Numbers) -> None:
        """Raise an alarm: a person should look, no lease changes. Once, while it stands."""
        if f"{code} {about}" in self.state.alarms:
            return
        self.emit({"type": "alarm.raised", "code": code, "about": about, "numbers": numbers})

    def order(self, kind: str, lease: str, node: str, units: list[str]) -> None:
        """Order something of a node; it has the pool's time to answer."""
        pool = self.state.pools.get(self.state.nodes[node].pool, NO_POOL)
        self.emit(
            {
                "type": "order.issued",
                "order": self.new_id("o"),
                "kind": kind,
                "node": node,
                "lease": lease,
                "units": units,
                "due_us": self.now_us + pool.order_timeout_us,
            }
        )

    def clean(self, lease: str, units: list[str]) -> None:
        """Order the proof of clean from every node that has some of these units now.

        What is gone, or on a lost node, is asked for when it is back.
        """
        there: dict[str, list[str]] = {}
        for unit in units:
            node = self.state.whereabouts(unit)
            if node is not None and not _deaf(self.state.nodes[node]):
                there.setdefault(node, []).append(unit)
        for node, kept in there.items():
            self.order("clean", lease, node, kept)

    def stop(self, lease: Lease, reason: str, **more: int | str | None) -> None:
        """Begin to end a lease: its nodes stop the task, its reason is set (C25)."""
        if lease.state == "stopping":
            return
        self.emit({"type": "lease.stopping", "lease": lease.id, "reason": reason, **more})
        for part in list(lease.parts.values()):
            if part.state != "ended":
                node = self.state.nodes[part.node]
                if _deaf(node):
                    self.end_part(lease, part.node, node.unsettled or "node-lost")
                else:
                    self.order("stop", lease.id, part.node, part.units)
        self.end_if_over(lease, reason)

    def change_reason(self, lease: Lease, reason: str, **more: str) -> bool:
        """Stop the lease for a person's reason; False when it already stops for such a one.

        One that stops because it was interrupted gets the new reason: its request
        must not be tried again against the word of who cancelled it.
        """
        if lease.state != "stopping":
            self.stop(lease, reason, **more)
        elif lease.reason in INTERRUPTIONS or lease.reason == "preempted":
            self.emit({"type": "lease.stopping", "lease": lease.id, "reason": reason, **more})
        else:
            return False
        return True

    def end_part(self, lease: Lease, node: str, how: str, **more: int | None) -> None:
        """Record that the task no longer runs on the node, and close its stop order."""
        if lease.parts[node].state == "ended":
            return
        event = {"type": "part.ended", "lease": lease.id, "node": node, "how": how}
        self.emit(event | {name: value for name, value in more.items() if value is not None})
        order = lease.parts[node].stop_order
        if order is not None:
            self.emit({"type": "order.done", "order": order, "reason": how})

    def end_if_over(self, lease: Lease, reason: str) -> None:
        """End the lease when no part of it runs any more."""
        if lease.id in self.state.leases and all(
            part.state == "ended" for part in lease.parts.values()
        ):
            self.end_lease(lease, lease.reason or reason)

    def end_lease(self, lease: Lease, reason: str) -> None:
        """End the lease now, order the cleaning, and say what becomes of the request."""
        request = self.state.requests[lease.request]
        held = self.now_us - lease.granted_us
        for part in lease.parts.values():
            if part.stop_order is not None:
                self.emit(
                    {"type": "order.superseded", "order": part.stop_order, "reason": "lease ended"}
                )
        self.emit({"type": "lease.ended", "lease": lease.id, "reason": reason, "held_us": held})
        self.clean(lease.id, [unit for part in lease.parts.values() for unit in part.units])
        self._after_lease(request, reason)
        if request.state == "queued" and reason in INTERRUPTIONS:
            keep_for_repair(self, lease, request)

    def _after_lease(self, request: Request, reason: str) -> None:
        """An interrupted request with a retry left, or an evicted one, goes back to its place."""
        spent = request.max_run_us is not None and request.used_us >= request.max_run_us
        evicted = reason == "preempted" and request.recovery != "end"
        if (evicted or (reason in INTERRUPTIONS and request.retries > 0)) and not spent:
            self.emit(
                {
                    "type": "request.queued",
                    "request": request.id,
                    "code": "no_capacity",
                    "numbers": {"interrupted_by": reason},
                    "again": True,
                    **expectation(self.state, asker_of(self.state, request), self.now_us),
                }
            )
        else:
            self.emit({"type": "request.ended", "request": request.id, "how": reason})

    def shut_away(self, order: Order, reason: str, evidence: Numbers) -> None:
        """Put away what an order was about, as far as it is still on the order's node.

        Evidence that is long stands once in the record, with the order (`MAX_COPIED_TEXT`).
        """
        length = sum(len(one) for one in evidence.values() if isinstance(one, str))
        if length * len(order.units) > MAX_COPIED_TEXT:
            evidence = {"order": order.id}
        for unit in order.units:
            item = self.state.slices.get(unit)
            device = self.state.devices.get(unit if item is None else item.device)
            if device is not None and device.node == order.node:
                self.quarantine(unit, reason, evidence)

    def quarantine(self, unit: str, reason: str, evidence: Numbers) -> None:
        """Put a device or slice out of use until an operator's word."""
        known = self.state.devices.get(unit)
        kind = "device" if known is not None else "slice"
        if known is None and unit not in self.state.slices:
            return
        if _already(known, self.state, unit):
            return
        self.emit(
            {
                "type": f"{kind}.quarantined",
                "unit": unit,
                "reason": reason,
                "evidence": evidence,
            }
        )


def _deaf(node: Node) -> bool:
    """Nothing is ordered of a node that is lost, or while what was there before is ended."""
    return node.state == "lost" or node.unsettled is not None


def _already(device: Device | None, state: State, unit: str) -> bool:
    if device is not None:
        return device.quarantine is not None
    return state.slices[unit].quarantine is not None


#: Ends that are not the request's own doing: it may be tried again.
INTERRUPTIONS = frozenset(
    {"node-lost", "node-restarted", "device-gone", "device-fault", "slice-gone", "stop-timed-out"}
)
