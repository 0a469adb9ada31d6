"""The state of one cell: what the fold of its events has made so far.

Only `ledger.core.evolve` writes to it. Everything that can be computed from it
(free places, the waiting line, deadlines) is kept beside it in ``index`` and is
no part of the digest.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ledger.core.admitting.compatibility import Compatibility
    from ledger.core.admitting.licences import Licence
    from ledger.core.admitting.templates import Template
    from ledger.core.derived.index import Index
    from ledger.core.mig.layouts import Geometry
    from ledger.core.placing.links import Link
    from ledger.core.policies.workload import Workload
    from ledger.core.prices import PriceBook
    from ledger.core.promises.repair import Repair
    from ledger.core.promises.reservations import Reservation
    from ledger.core.quotas.quota import Charge, Quota, QuotaAsk
    from ledger.core.terms import Facts, Terms

__all__ = [
    "NO_POOL",
    "WHOLE_MILLI",
    "Device",
    "Hold",
    "Lease",
    "Need",
    "Node",
    "Order",
    "Part",
    "Plan",
    "Pool",
    "Queue",
    "Request",
    "Slice",
    "State",
    "device_state",
    "slice_state",
]

#: A whole device, in thousandths.
WHOLE_MILLI = 1000


@dataclass(slots=True)
class Pool:
    """A named set of nodes with labels and the patience it has with them (µs)."""

    name: str
    labels: dict[str, str]
    silent_grace_us: int
    order_timeout_us: int
    placement: str = "best-fit"
    partition: str = "never"
    slices_warning: int = 4
    #: Delivery modes and tenants that may use it; all when empty.
    allowed_modes: list[str] = field(default_factory=list)
    allowed_tenants: list[str] = field(default_factory=list)
    memory_overcommit_permille: int = 1000
    #: Service class -> delivery mode.
    routing: dict[str, str] = field(default_factory=dict)


#: The patience with a node whose pool nobody has applied.
NO_POOL = Pool("", {}, 60_000_000, 300_000_000)


@dataclass(slots=True)
class Queue:
    """A waiting line and its rules (`schemas.requests.QueueApply` says what they mean)."""

    name: str
    ordering: str
    max_gpus: int | None
    max_wait_us: int | None
    tenants: list[str] = field(default_factory=list)
    max_run_us: int | None = None
    fair_share: bool = False
    preemption: str = "never"
    reclaim: str = "never"
    idle_remind_us: int | None = None
    idle_reclaim_us: int | None = None
    repair_hold_us: int | None = 600_000_000


@dataclass(slots=True)
class Plan:
    """Nodes promised to a waiting request from a time on, or from whenever they are free."""

    nodes: list[str]
    start_us: int | None


@dataclass(slots=True)
class Node:
    """A node in its present incarnation. ``mode`` is what the operator wants of it."""

    name: str
    pool: str
    incarnation: str
    epoch: int
    agent: str
    state: str
    cpu_milli: int | None
    memory_mib: int | None
    mode: str = "online"
    silent_since_us: int | None = None
    cpu_used: int = 0
    memory_used: int = 0
    devices: list[str] = field(default_factory=list)
    past_incarnations: list[str] = field(default_factory=list)
    #: Why what was there before has to be ended or cleaned, while that goes on; and since when.
    unsettled: str | None = None
    unsettled_us: int = 0
    driver: str = ""
    cuda: str = ""
    labels: dict[str, str] = field(default_factory=dict)

    @property
    def open(self) -> bool:
        """Say whether anything on the node may be leased now (A6)."""
        return self.state == "online" and self.unsettled is None


@dataclass(slots=True)
class Hold:
    """What one lease has of one device. ``cleaning``: the lease is over, the proof is not in.

    ``permille`` is the factor of memory overcommit under which it was granted.
    """

    milli: int
    mib: int
    cleaning: bool = False
    permille: int = 1000
    encoder_sessions: int = 0
    decoder_sessions: int = 0
    vgpu_type: str = ""


@dataclass(slots=True)
class Device:
    """A physical device, named by its UUID (A8). ``holds`` is keyed by lease id."""

    uuid: str
    node: str
    model: str
    memory_mib: int
    compute_slices: int
    mig_enabled: bool
    architecture: str | None
    index: int | None
    health: str = "healthy"
    quarantine: str | None = None
    #: The request for which the device is kept until it is free and clean.
    kept_for: str | None = None
    holds: dict[str, Hold] = field(default_factory=dict)
    slices: list[str] = field(default_factory=list)
    #: What the device says can be made of it; None: nothing is planned on it.
    geometry: Geometry | None = None
    mig_pending: bool = False
    facts: Facts | None = None


@dataclass(slots=True)
class Slice:
    """A MIG slice in one lifetime; without ``mig_uuid`` its place is promised and it is not there.

    ``order`` is to create or to destroy it. One that is to be destroyed is nobody's until
    its node has said what became of it, whatever became of the order.
    """

    id: str
    device: str
    mig_uuid: str
    profile: str
    gi: int
    ci: int | None
    start: int
    size: int
    compute_slices: int
    memory_mib: int
    quarantine: str | None = None
    kept_for: str | None = None
    lease: str | None = None
    cleaning: bool = False
    order: str | None = None


@dataclass(slots=True, unsafe_hash=True)
class Need:
    """What a request asks for, normalised. Two requests of one need are one shape.

    Made for every submission, so not frozen, which costs three times as much as the rest
    of it; nobody changes one.
    """

    mode: str
    pool: str | None = None
    labels: tuple[tuple[str, str], ...] = ()
    models: tuple[str, ...] = ()
    count: int = 1
    nodes: int = 1
    gpu_milli: int = WHOLE_MILLI
    memory_mib: int = 0
    profile: str = ""
    cpu_milli: int = 0
    host_memory_mib: int = 0
    compute_slices: int = 0
    #: Who asks, where a pool is not for everybody; no part of the plain form.
    tenant: str = ""
    terms: Terms | None = None

    @property
    def delivery(self) -> str:
        """How devices are given: the mode, or another way that is counted like it."""
        return self.mode if self.terms is None else self.terms.delivery or self.mode

    @property
    def tags(self) -> tuple[str, ...]:
        """What it may wait for beside devices and quota."""
        return () if self.terms is None else self.terms.tags


@dataclass(slots=True)
class Request:
    """A request that has not ended. ``rank`` orders the waiting line: least first."""

    id: str
    fp: str
    tenant: str
    project: str | None
    queue: str
    task: str
    task_type: str
    need: Need
    priority: int
    preemptible: bool
    received_us: int
    arrival: int
    wait_due_us: int | None
    max_run_us: int | None
    expected_run_us: int | None
    retries: int
    replicas_min: int = 0
    recovery: str | None = None
    template: str | None = None
    state: str = "received"
    code: str = ""
    attempt: int = 0
    used_us: int = 0
    lease: str | None = None
    #: What counts against the quota: set while a place is kept or leased (Q2).
    charge: Charge | None = None
    #: Its lease was told to stop for another: it no longer counts, but where it was held.
    evicted: bool = False
    #: Until then it has nobody evicted, because it was evicted itself (Q5).
    rests_until_us: int | None = None
    #: Where a place is kept for it: node -> units.
    kept: dict[str, list[str]] = field(default_factory=dict)
    plan: Plan | None = None
    reservation: str | None = None
    #: What of its former place is kept for it while that is repaired (A10).
    repair: Repair | None = None

    @property
    def rank(self) -> tuple[int, int, int]:
        """Priority first, then age, then arrival: an interrupted request keeps its place."""
        return (-self.priority, self.received_us, self.arrival)


@dataclass(slots=True)
class Part:
    """A lease's part on one node: device UUIDs, or slice ids for MIG."""

    node: str
    units: list[str]
    state: str = "granted"
    stop_order: str | None = None


@dataclass(slots=True)
class Lease:
    """A lease that has not ended. ``charge_milli`` is what its end gives back, exactly (C11)."""

    id: str
    request: str
    tenant: str
    charge_milli: int
    granted_us: int
    due_us: int | None
    parts: dict[str, Part]
    state: str = "granted"
    started_us: int | None = None
    reason: str | None = None
    idle_since_us: int | None = None
    reminded: bool = False

    def node_of(self, unit: str) -> str:
        """Return the node on which the lease was given the unit."""
        return next(part.node for part in self.parts.values() if unit in part.units)


@dataclass(slots=True)
class Order:
    """An order that no node has answered yet. ``lease`` is empty for one about partitions."""

    id: str
    kind: str
    node: str
    lease: str
    units: list[str]
    due_us: int
    issued_us: int = 0
    request: str | None = None
    steps: list[dict[str, Any]] = field(default_factory=list)
    enabled: bool | None = None


@dataclass(slots=True)
class State:
    """One cell. ``seen`` remembers ids for the published window (L1)."""

    cell: str
    index: Index
    now_us: int = 0
    swept_us: int = 0
    next_id: int = 1
    arrivals: int = 0
    #: A pass over the waiting line was cut short; the next decision goes on with it.
    pass_cut: bool = False
    #: Some pool is not for every mode and tenant: worked out when a pool is applied.
    pools_limited: bool = False
    pools: dict[str, Pool] = field(default_factory=dict)
    workloads: dict[str, Workload] = field(default_factory=dict)
    queues: dict[str, Queue] = field(default_factory=dict)
    quotas: dict[str, Quota] = field(default_factory=dict)
    quota_asks: dict[str, QuotaAsk] = field(default_factory=dict)
    templates: dict[str, Template] = field(default_factory=dict)
    reservations: dict[str, Reservation] = field(default_factory=dict)
    compatibilities: dict[str, Compatibility] = field(default_factory=dict)
    licences: dict[str, Licence] = field(default_factory=dict)
    #: ``from to`` -> the latest measurement of the link.
    links: dict[str, Link] = field(default_factory=dict)
    price_books: dict[str, PriceBook] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    devices: dict[str, Device] = field(default_factory=dict)
    slices: dict[str, Slice] = field(default_factory=dict)
    requests: dict[str, Request] = field(default_factory=dict)
    leases: dict[str, Lease] = field(default_factory=dict)
    orders: dict[str, Order] = field(default_factory=dict)
    #: ``code about`` of an alarm that stands -> since when (µs). Raised once while it stands.
    alarms: dict[str, int] = field(default_factory=dict)
    #: Device -> [changes of its partitions that failed in a row, when the last did (µs)].
    partition_failures: dict[str, list[int]] = field(default_factory=dict)
    #: ``source#id`` of an input -> [fingerprint, code, time in µs], oldest first;
    #: for a request that has ended also [.., how it ended, leases it had].
    seen: dict[str, list[Any]] = field(default_factory=dict)

    def whereabouts(self, unit: str) -> str | None:
        """Return the node on which a device or slice is present, or None."""
        item = self.slices.get(unit)
        device = self.devices.get(unit if item is None else item.device)
        return None if device is None or device.health == "gone" else device.node


def device_state(device: Device) -> str:
    """Derive the state that `ledger.core.lifecycles.DEVICE` speaks of."""
    if device.health == "gone":
        return "missing"
    if device.quarantine is not None:
        return "quarantined"
    if device.health != "healthy":
        return "unhealthy"
    if device.holds:
        leased = 0
        for hold in device.holds.values():
            if not hold.cleaning:
                leased += hold.milli
        if leased == 0:
            return "cleaning"
        return "leased" if leased >= WHOLE_MILLI else "partly-leased"
    return "sliced" if device.mig_enabled else "available"


def slice_state(item: Slice) -> str:
    """Derive the state that `ledger.core.lifecycles.SLICE` speaks of."""
    if item.quarantine is not None:
        return "quarantined"
    if item.order is not None:
        return "destroying" if item.mig_uuid else "ordered"
    if item.lease is None:
        return "present"
    return "cleaning" if item.cleaning else "leased"
