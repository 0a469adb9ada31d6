"""What a log tells of causes: what work and users did by themselves, and how nodes answered.

The inputs of a log are of two kinds. Some would have come whatever the ledger decided:
submissions, policy, nodes that come and go. The others followed from what it decided: that
a task has started and ended follows from its grant, a node's answer from an order. Those
are kept here by what they followed from, and how long after it they came, so that they can
follow from another grant or order as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from ledger.counterfactual.changes import policy_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ledger.core.state import State

__all__ = [
    "ELSEWHERE",
    "ENDS",
    "HERE",
    "MOVED",
    "Answer",
    "Deed",
    "History",
    "OrderKey",
    "Ordered",
    "Run",
    "order_key",
]

Record = dict[str, Any]
Event = dict[str, Any]

#: What becomes of a record in a replay: it has no effect or is of another cell; its input
#: is fed at its own time; its input follows from a grant or order, wherever that is then.
ELSEWHERE, HERE, MOVED = 0, 1, 2

#: Inputs by which a lease's task or user ends it.
ENDS = frozenset({"task.ended", "lease.release", "request.cancel"})

#: Outcomes of an observation that was believed.
_BELIEVED = frozenset({"observed", "unchanged"})

#: How a task ends that was told to; whatever else it does while it is, it does by itself.
_STOPPED = frozenset({"stopped", "never-started"})

#: What an input says about where it comes from, and not about what happened.
_ABOUT = frozenset({"node", "incarnation", "node_time_us", "lease", "order", "request"})

#: What a lease's nodes say of it; all else of a lease its user says.
_OF_NODES = frozenset({"task.started", "task.ended", "task.use"})


class Deed(NamedTuple):
    """Something that a lease's task or its user did by itself, ``after_us`` after the grant.

    ``by`` is (source, id, fingerprint) for what its user said, and ``node`` then empty unless
    it is about what the user did there.
    """

    after_us: int
    offset: int
    type: str
    node: str
    said: dict[str, Any]
    by: tuple[str, str, str] | None = None


class Answer(NamedTuple):
    """What a node answered to an order, ``after_us`` after it was issued."""

    after_us: int
    offset: int
    type: str
    said: dict[str, Any]


@dataclass(slots=True)
class Run:
    """A lease as the log has it. ``cut``: it was ended from outside, not by its own work."""

    lease: str
    request: str
    granted_us: int
    nodes: tuple[str, ...]
    deeds: list[Deed] = field(default_factory=list)
    ended_us: int | None = None
    cut: bool = False

    @property
    def whole(self) -> bool:
        """Say whether the lease ended by its own work: then it is known how long that takes."""
        if self.ended_us is None or self.cut:
            return False
        return any(deed.type in ENDS for deed in self.deeds)

    def held_us(self, until_us: int) -> int:
        """Return how long it was held, as far as is seen until a time."""
        return (until_us if self.ended_us is None else self.ended_us) - self.granted_us


@dataclass(slots=True)
class Ordered:
    """An order as the log has it. ``ignored``: its node never answered, and its time was up."""

    key: OrderKey
    units: tuple[str, ...]
    issued_us: int
    answer: Answer | None = None
    closed_us: int | None = None
    ignored: bool = False


#: What tells an order from others: kind, lease and node; of a partition order the device
#: and what is to be done to it.
OrderKey = tuple[str, ...]


def order_key(event: Mapping[str, Any]) -> OrderKey:
    """Return what an order is about, whatever its id and time are."""
    if event["kind"] == "partition":
        steps = (
            f"{step['do']} {step['profile']} {step['start']} {step.get('mig_uuid') or ''}"
            for step in event["steps"]
        )
        return ("partition", event["units"][0], *steps)
    if event["kind"] == "mode":
        return ("mode", event["units"][0], str(event["enabled"]))
    return (event["kind"], event["lease"], event["node"])


class History:
    """Follows the records of one cell, from a state of it; each is given to `take` in order."""

    def __init__(self, cell: str, first: int) -> None:
        """Begin at the record ``first`` of the cell's partition."""
        self.cell = cell
        self.first = first
        self.fates = bytearray()
        self.runs: dict[str, Run] = {}
        self.attempts: dict[str, list[Run]] = {}
        self.orders: dict[OrderKey, list[Ordered]] = {}
        self.received: dict[str, tuple[str, str]] = {}
        self.checkpointed: set[str] = set()
        #: How long a request had held leases before the first record.
        self.used_us: dict[str, int] = {}
        #: (record type, name) of every policy that is applied.
        self.applied: set[tuple[str, str]] = set()
        #: Record -> the partition order that it answers.
        self.partitions: dict[int, OrderKey] = {}
        self.last_us = 0
        self._live: dict[str, Run] = {}
        self._open: dict[str, Ordered] = {}
        self._stops: dict[tuple[str, str], Ordered] = {}
        #: The lease that the record at hand is about, if it is.
        self._about = ""

    def begin(self, state: State) -> None:
        """Take over what runs and is ordered at the start."""
        for request in state.requests.values():
            self.received[request.id] = (request.tenant, request.task_type)
            self.used_us[request.id] = request.used_us
        for lease in state.leases.values():
            self._begun(lease.id, lease.request, lease.granted_us, tuple(lease.parts))
        for order in state.orders.values():
            event = {
                "order": order.id, "kind": order.kind, "node": order.node, "lease": order.lease,
                "units": order.units, "steps": order.steps, "enabled": order.enabled,
            }  # fmt: skip
            self._issued(event, order.issued_us)

    def skip(self) -> None:
        """Count a record that has no effect, or is of another cell."""
        self.fates.append(ELSEWHERE)

    def take(self, record: Record, offset: int) -> None:
        """Take an effective record of the cell."""
        given, now_us = record["input"], record["time_us"]
        self._about = ""
        rule = _INPUTS.get(given["type"])
        moved = rule is not None and rule(self, record, offset)
        named = policy_name(given["type"], given["data"])
        if named is not None:
            self.applied.add((given["type"], named))
        self.fates.append(MOVED if moved else HERE)
        for event in record["events"]:
            then = _EVENTS.get(event["type"])
            if then is not None:
                then(self, event, now_us)
        self.last_us = now_us

    def fate(self, offset: int) -> int:
        """Return what becomes of a record: `ELSEWHERE`, `HERE` or `MOVED`."""
        return self.fates[offset - self.first]

    def tenant_of(self, request: str) -> tuple[str, str]:
        """Return the tenant and the type of a request's task."""
        return self.received.get(request, ("", ""))

    # -- inputs: whether they follow from a grant or an order ------------------------

    def task(self, record: Record, offset: int) -> bool:
        """Keep what a node says of a lease's task."""
        given = record["input"]
        said = given["data"]
        run = self._live.get(said["lease"])
        if run is None or record["outcome"]["code"] not in _BELIEVED:
            return False
        if said["node"] not in run.nodes:
            return False
        self._about = run.lease
        order = self._stops.get((run.lease, said["node"]))
        if order is not None and said.get("how") in _STOPPED:
            self._answered(order, record, offset)
        else:
            self._did(run, record, offset, said["node"])
        return True

    def order(self, record: Record, offset: int) -> bool:
        """Keep a node's answer to an order."""
        order = self._open.get(record["input"]["data"]["order"])
        if order is None or record["outcome"]["code"] not in _BELIEVED:
            return False
        if order.key[0] == "stop":
            self._about = order.key[1]
        self._answered(order, record, offset)
        return True

    def word(self, record: Record, offset: int) -> bool:
        """Keep what a user says of a lease that is theirs: give it back, extend it."""
        run = self._live.get(record["input"]["data"]["lease"])
        if run is None or record["outcome"]["code"] == "id_conflict":
            return False
        self._about = run.lease
        self._did(run, record, offset, "")
        return True

    def begun(self, record: Record, offset: int) -> bool:
        """Keep that a user has started the command of a lease, on one of its nodes."""
        run = self._live.get(record["input"]["data"]["lease"])
        if run is None or record["outcome"]["code"] == "id_conflict":
            return False
        node = record["input"]["data"]["node"]
        if node not in run.nodes:
            return False
        self._about = run.lease
        self._did(run, record, offset, node)
        return True

    def cancel(self, record: Record, offset: int) -> bool:
        """Keep that a user ends a request that runs; one that waits is given up at its time."""
        attempts = self.attempts.get(record["input"]["data"]["request"])
        run = attempts[-1] if attempts else None
        if run is None or run.lease not in self._live:
            return False
        if record["outcome"]["code"] == "id_conflict":
            return False
        self._about = run.lease
        self._did(run, record, offset, "")
        return True

    def _did(self, run: Run, record: Record, offset: int, node: str) -> None:
        given = record["input"]
        after_us = record["time_us"] - run.granted_us
        said_by_node = given["type"] in _OF_NODES
        by = None if said_by_node else (given["source"], given["id"], given["fp"])
        run.deeds.append(Deed(after_us, offset, given["type"], node, _said(given["data"]), by))

    def _answered(self, order: Ordered, record: Record, offset: int) -> None:
        given = record["input"]
        if order.key[0] == "partition":
            self.partitions[offset] = order.key
        if order.answer is None:
            after_us = record["time_us"] - order.issued_us
            order.answer = Answer(after_us, offset, given["type"], _said(given["data"]))

    # -- events ------------------------------------------------------------------------

    def request_received(self, event: Event, _now_us: int) -> None:
        """Note whose request it is, and whether its work goes on where it was interrupted."""
        self.received[event["request"]] = (event["tenant"], event["task_type"])
        if event.get("checkpoint"):
            self.checkpointed.add(event["request"])

    def lease_granted(self, event: Event, now_us: int) -> None:
        """Begin a lease."""
        nodes = tuple(part["node"] for part in event["parts"])
        self._begun(event["lease"], event["request"], now_us, nodes)

    def _begun(self, lease: str, request: str, granted_us: int, nodes: tuple[str, ...]) -> None:
        run = self.runs[lease] = self._live[lease] = Run(lease, request, granted_us, nodes)
        self.attempts.setdefault(request, []).append(run)

    def lease_touched(self, event: Event, _now_us: int) -> None:
        """Note that a lease is ended from outside: by something that it did not do."""
        run = self._live.get(event["lease"])
        if run is not None and self._about != run.lease:
            run.cut = True

    def lease_ended(self, event: Event, now_us: int) -> None:
        """End a lease."""
        self.lease_touched(event, now_us)
        run = self._live.pop(event["lease"], None)
        if run is not None:
            run.ended_us = now_us

    def order_issued(self, event: Event, now_us: int) -> None:
        """Begin an order."""
        self._issued(event, now_us)

    def _issued(self, event: Event, now_us: int) -> None:
        key = order_key(event)
        one = Ordered(key, tuple(event["units"]), now_us)
        self.orders.setdefault(key, []).append(one)
        self._open[event["order"]] = one
        if key[0] == "stop":
            self._stops[key[1], key[2]] = one

    def order_closed(self, event: Event, now_us: int) -> None:
        """End an order."""
        order = self._open.pop(event["order"], None)
        if order is not None:
            order.closed_us = now_us
            order.ignored = event["type"] == "order.timed-out"
            if order.key[0] == "stop":
                self._stops.pop((order.key[1], order.key[2]), None)


def _said(data: dict[str, Any]) -> dict[str, Any]:
    """Return what an input says beside whom it is about; most say nothing."""
    found = {name: value for name, value in data.items() if name not in _ABOUT}
    return found or _NOTHING


_NOTHING: dict[str, Any] = {}

_INPUTS: dict[str, Callable[[History, Record, int], bool]] = {
    "task.started": History.task,
    "task.ended": History.task,
    "task.use": History.task,
    "order.done": History.order,
    "order.failed": History.order,
    "lease.release": History.word,
    "lease.extend": History.word,
    "task.begin": History.begun,
    "request.cancel": History.cancel,
}

_EVENTS: dict[str, Callable[[History, Event, int], None]] = {
    "request.received": History.request_received,
    "lease.granted": History.lease_granted,
    "lease.stopping": History.lease_touched,
    "part.ended": History.lease_touched,
    "lease.ended": History.lease_ended,
    "order.issued": History.order_issued,
    "order.done": History.order_closed,
    "order.failed": History.order_closed,
    "order.timed-out": History.order_closed,
    "order.superseded": History.order_closed,
}
