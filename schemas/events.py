"""The events inside a decision: what changed, and nothing that can be derived.

The ledger keeps these for ever. A breaking change of any of them raises the
record's version and adds an upcaster (`schemas.upcast`).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from schemas.asks import ServiceClass
from schemas.base import Count, Milli, Model, Name, Reference, Text, TimeUs, WholeMib
from schemas.lease_events import (
    CodeName,
    EndReason,
    LeaseEnded,
    LeaseExtended,
    LeaseGranted,
    LeaseIdle,
    LeasePart,
    LeaseReminded,
    LeaseStarted,
    LeaseStopping,
    Numbers,
    PartEnded,
    TaskBegun,
)
from schemas.observations import Evidence
from schemas.policy_events import (
    CompatibilityApplied,
    LicenceApplied,
    PlacementApplied,
    PoolApplied,
    PricesApplied,
    QueueApplied,
    QuotaAnswered,
    QuotaApplied,
    QuotaAsked,
    QuotaRenewed,
    TemplateApplied,
)
from schemas.requests import Runtime
from schemas.reservations import (
    ReservationApplied,
    ReservationCancelled,
    ReservationEnded,
    ReservationMoved,
    ReservationOpened,
)
from schemas.supply_events import (
    DeviceCleared,
    DeviceDiscovered,
    DeviceFaulted,
    DeviceHealthChanged,
    DeviceReopened,
    LinkMeasured,
    NodeChanged,
    NodeRegistered,
    NodeSettled,
    NodeUnsettled,
    Quarantined,
    SliceGone,
    SliceOrdered,
    SlicePresent,
)
from schemas.terms import Terms

__all__ = ["EVENT_MODELS", "Event", "PartitionStep"]


class Need(Model):
    """A request's ask, normalised; what stands at its default is left out."""

    mode: Literal["whole", "mig", "share"]
    pool: Name | None = None
    labels: dict[Name, Text] = Field(default_factory=dict)
    models: tuple[Text, ...] = ()
    count: Count = 1
    nodes: Count = 1
    gpu_milli: Milli = 1000
    memory_mib: WholeMib = 0
    profile: Text = ""
    cpu_milli: Milli = 0
    host_memory_mib: WholeMib = 0
    compute_slices: Count = 0
    terms: Terms | None = None


class RequestReceived(Model):
    """A request was let in."""

    type: Literal["request.received"]
    request: Reference
    tenant: Name
    project: Name | None = None
    queue: Name
    task: Name
    task_type: Text
    need: Need
    priority: int = 0
    preemptible: bool = False
    wait_due_us: TimeUs | None = None
    max_run_us: TimeUs | None = None
    expected_run_us: TimeUs | None = None
    retries: Count = 0
    replicas_min: Count = 0
    recovery: Literal["requeue", "end"] | None = None
    template: Name | None = None
    reservation: Name | None = None
    checkpoint: Text | None = None
    rollback: Text | None = None
    image: Text | None = None
    environment: Text | None = None
    runtime: Runtime | None = None
    service_class: ServiceClass | None = None


class RequestRejected(Model):
    """The final answer is no."""

    type: Literal["request.rejected"]
    request: Reference
    tenant: Name
    code: CodeName
    numbers: Numbers


class RequestQueued(Model):
    """The request waits, for this reason. ``again``: it had a lease that was interrupted.

    ``estimate_us`` is when it should start, where that could be told at little cost,
    and ``estimate_basis`` what that rests on (`ledger.core.line.estimate`).
    """

    type: Literal["request.queued"]
    request: Reference
    code: CodeName
    numbers: Numbers
    again: bool
    estimate_us: TimeUs | None = None
    estimate_basis: CodeName | None = None


class RequestEnded(Model):
    """Nothing more will happen for the request."""

    type: Literal["request.ended"]
    request: Reference
    how: EndReason | Literal["expired", "reservation-over"]


class RequestReserved(Model):
    """A place is kept for the request until everything of it is free and clean.

    It counts against the quota from here on (Q2). ``evicted`` are the leases that
    stop for it: the least set that makes room (Q6), complete before the first stops.
    """

    type: Literal["request.reserved"]
    request: Reference
    charge_milli: Milli
    model: Text = ""
    memory_mib: WholeMib = 0
    parts: tuple[LeasePart, ...]
    evicted: tuple[Reference, ...] = ()
    why: Numbers


class RequestUnreserved(Model):
    """The place that was kept for the request cannot be had any more; it waits again."""

    type: Literal["request.unreserved"]
    request: Reference
    reason: Text


class RequestRested(Model):
    """It was evicted some time ago and may have others evicted again (Q5)."""

    type: Literal["request.rested"]
    request: Reference


class RequestPlanned(Model):
    """The first of a back-filled queue has these nodes promised, from ``start_us`` on.

    None: no time is known at which they are all free. Recorded, so that what was
    estimated can be held against what happened.
    """

    type: Literal["request.planned"]
    request: Reference
    nodes: tuple[Name, ...]
    start_us: TimeUs | None


class RequestRepairing(Model):
    """The gang was interrupted: as many units as it had on each node are kept for it (A10).

    What is out of use now is kept as soon as it is back.
    """

    type: Literal["request.repairing"]
    request: Reference
    parts: tuple[LeasePart, ...]
    until_us: TimeUs


class RequestRepairOver(Model):
    """The time is over for which the gang's place was kept; the request waits as others do."""

    type: Literal["request.repair-over"]
    request: Reference


class PartitionStep(Model):
    """One thing to do to a device; an instance that is there is named by its MIG UUID too."""

    do: Literal["create", "destroy"]
    profile: Text
    start: Count
    mig_uuid: Reference | None = None


class OrderIssued(Model):
    """A node was told to do something; sent again until it answers or the time is up.

    ``partition``: change the layout of the one device in ``units`` by these ``steps``, in
    this order, for ``request`` or for an operator (None). ``mode``: turn its MIG mode on or
    off, as ``enabled`` says.
    """

    type: Literal["order.issued"]
    order: Reference
    kind: Literal["clean", "stop", "partition", "mode"]
    node: Name
    lease: Reference | Literal[""] = ""
    units: tuple[Reference, ...]
    due_us: TimeUs
    request: Reference | None = None
    steps: tuple[PartitionStep, ...] = ()
    enabled: bool | None = None


class OrderClosed(Model):
    """An order was answered or given up."""

    type: Literal["order.done", "order.failed", "order.timed-out", "order.superseded"]
    order: Reference
    reason: Text = ""
    took_us: TimeUs | None = None
    evidence: Evidence = Field(default_factory=dict)
    clean_us: TimeUs | None = None


class PassCut(Model):
    """A pass over the waiting line gave as much as one record holds, or has now looked at all."""

    type: Literal["pass.cut", "pass.done"]


class AlarmRaised(Model):
    """Something that a person should look at; it changes no lease."""

    type: Literal["alarm.raised"]
    code: CodeName
    about: Reference
    numbers: Numbers


Event = Annotated[
    PoolApplied
    | PlacementApplied
    | QueueApplied
    | QuotaApplied
    | QuotaAsked
    | QuotaAnswered
    | QuotaRenewed
    | TemplateApplied
    | CompatibilityApplied
    | LicenceApplied
    | PricesApplied
    | NodeRegistered
    | NodeChanged
    | NodeUnsettled
    | NodeSettled
    | DeviceDiscovered
    | DeviceHealthChanged
    | DeviceFaulted
    | LinkMeasured
    | Quarantined
    | DeviceCleared
    | DeviceReopened
    | SliceOrdered
    | SlicePresent
    | SliceGone
    | RequestReceived
    | RequestRejected
    | RequestQueued
    | RequestEnded
    | RequestReserved
    | RequestUnreserved
    | RequestRested
    | RequestPlanned
    | RequestRepairing
    | RequestRepairOver
    | ReservationApplied
    | ReservationMoved
    | ReservationOpened
    | ReservationCancelled
    | ReservationEnded
    | LeaseGranted
    | LeaseStarted
    | TaskBegun
    | LeaseStopping
    | LeaseExtended
    | LeaseIdle
    | LeaseReminded
    | PartEnded
    | LeaseEnded
    | OrderIssued
    | OrderClosed
    | PassCut
    | AlarmRaised,
    Field(discriminator="type"),
]

#: Event models by event type.
EVENT_MODELS: dict[str, type[Model]] = {
    name: model
    for model in Event.__origin__.__args__  # type: ignore[attr-defined]
    for name in model.model_fields["type"].annotation.__args__
}
