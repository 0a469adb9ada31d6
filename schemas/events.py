"""The events inside a decision: what changed, and nothing that can be derived.

The ledger keeps these for ever. A breaking change of any of them raises the
record's version and adds an upcaster (`schemas.upcast`).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from schemas.base import Count, Milli, Model, Name, Reference, Text, TimeUs, WholeMib
from schemas.observations import Evidence, Health, Incarnation

__all__ = ["EVENT_MODELS", "Event", "Numbers"]

#: The numbers that were compared, by name.
Numbers = dict[Name, int | Text | None]
CodeName = Annotated[str, Field(pattern=r"^[a-z0-9_]{1,40}$")]
EndReason = Literal[
    "completed",
    "failed",
    "cancelled",
    "max-run",
    "reclaimed",
    "node-lost",
    "node-restarted",
    "device-gone",
    "slice-gone",
    "stop-timed-out",
]


class PoolApplied(Model):
    """A pool was created or changed."""

    type: Literal["pool.applied"]
    pool: Name
    labels: dict[Name, Text]
    silent_grace_us: TimeUs
    order_timeout_us: TimeUs
    author: Name
    reason: Text


class QueueApplied(Model):
    """A queue was created or changed."""

    type: Literal["queue.applied"]
    queue: Name
    ordering: Literal["strict", "best-effort"]
    max_gpus: Count | None
    max_wait_us: TimeUs | None
    author: Name
    reason: Text


class QuotaApplied(Model):
    """A tenant's nominal quota was set."""

    type: Literal["quota.applied"]
    tenant: Name
    nominal_gpu_milli: Milli
    author: Name
    reason: Text


class NodeRegistered(Model):
    """A node, or a new incarnation of it, told what it is."""

    type: Literal["node.registered"]
    node: Name
    incarnation: Incarnation
    epoch: Count
    agent: Text
    pool: Name
    cpu_milli: Milli | None
    memory_mib: WholeMib | None


class NodeChanged(Model):
    """A node moved along its lifecycle."""

    type: Literal["node.changed"]
    node: Name
    state: Literal["registering", "online", "draining", "maintenance", "silent", "lost"]
    reason: Text
    mode: Literal["online", "draining", "maintenance"] | None = None
    author: Name | None = None


class DeviceDiscovered(Model):
    """A device was reported for the first time, again after absence, or with new facts."""

    type: Literal["device.discovered"]
    device: Reference
    node: Name
    model: Text
    memory_mib: WholeMib
    architecture: Text | None
    compute_slices: Count
    mig_enabled: bool
    index: Count | None


class DeviceHealthChanged(Model):
    """A device's health, as its node sees it."""

    type: Literal["device.health"]
    device: Reference
    health: Health
    reason: Text
    evidence: Evidence


class Quarantined(Model):
    """A device or slice was not proved clean: out of use until an operator's word."""

    type: Literal["device.quarantined", "slice.quarantined"]
    unit: Reference
    reason: Text
    evidence: Evidence


class DeviceCleared(Model):
    """An operator gave a word that the device and its slices are clean."""

    type: Literal["device.cleared"]
    device: Reference
    author: Name
    reason: Text


class SlicePresent(Model):
    """A MIG slice was seen. Its id is the ledger's own: MIG UUIDs come back."""

    type: Literal["slice.present"]
    slice: Reference
    device: Reference
    mig_uuid: Reference
    profile: Text
    gi: Count
    ci: Count | None
    start: Count
    size: Count
    compute_slices: Count
    memory_mib: WholeMib


class SliceGone(Model):
    """A slice is no longer there."""

    type: Literal["slice.gone"]
    slice: Reference
    reason: Text


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


class RequestRejected(Model):
    """The final answer is no."""

    type: Literal["request.rejected"]
    request: Reference
    tenant: Name
    code: CodeName
    numbers: Numbers


class RequestQueued(Model):
    """The request waits, for this reason. ``again``: it had a lease that was interrupted."""

    type: Literal["request.queued"]
    request: Reference
    code: CodeName
    numbers: Numbers
    again: bool


class RequestEnded(Model):
    """Nothing more will happen for the request."""

    type: Literal["request.ended"]
    request: Reference
    how: EndReason | Literal["expired"]


class LeasePart(Model):
    """What a lease holds on one node: whole devices or shares by UUID, or slices by id."""

    node: Name
    units: tuple[Reference, ...]


class LeaseGranted(Model):
    """Devices were leased, all or none. Charged ``charge_milli`` while it lasts."""

    type: Literal["lease.granted"]
    lease: Reference
    request: Reference
    attempt: Count
    charge_milli: Milli
    due_us: TimeUs | None = None
    parts: tuple[LeasePart, ...]
    why: Numbers


class LeaseStarted(Model):
    """The task was seen running on this node of the lease."""

    type: Literal["lease.started"]
    lease: Reference
    node: Name


class LeaseStopping(Model):
    """The lease is to end for this reason; it wins over the task's exit code (C25)."""

    type: Literal["lease.stopping"]
    lease: Reference
    reason: EndReason
    due_us: TimeUs | None = None
    author: Name | None = None


class PartEnded(Model):
    """The task no longer runs on this node of the lease."""

    type: Literal["part.ended"]
    lease: Reference
    node: Name
    how: Text
    exit_code: int | None = None
    took_us: TimeUs | None = None


class LeaseEnded(Model):
    """The lease is over. Held from its grant for ``held_us``, half-open."""

    type: Literal["lease.ended"]
    lease: Reference
    reason: EndReason
    held_us: TimeUs


class OrderIssued(Model):
    """A node was told to do something; sent again until it answers or the time is up."""

    type: Literal["order.issued"]
    order: Reference
    kind: Literal["clean", "stop"]
    node: Name
    lease: Reference
    units: tuple[Reference, ...]
    due_us: TimeUs


class OrderClosed(Model):
    """An order was answered or given up."""

    type: Literal["order.done", "order.failed", "order.timed-out", "order.superseded"]
    order: Reference
    reason: Text = ""
    took_us: TimeUs | None = None
    evidence: Evidence = Field(default_factory=dict)


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
    | QueueApplied
    | QuotaApplied
    | NodeRegistered
    | NodeChanged
    | DeviceDiscovered
    | DeviceHealthChanged
    | Quarantined
    | DeviceCleared
    | SlicePresent
    | SliceGone
    | RequestReceived
    | RequestRejected
    | RequestQueued
    | RequestEnded
    | LeaseGranted
    | LeaseStarted
    | LeaseStopping
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
