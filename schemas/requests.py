"""What services and operators may put on ``gpuledger.requests``."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from schemas.asks import Ask, Labels, Licences, Mode, PlacedProfile, ServiceClass, WholeAsk
from schemas.base import Count, Milli, Model, Name, Reference, Seconds, Text, TimeUs, WholeMib

__all__ = [
    "Beside",
    "Budget",
    "DeviceClear",
    "DeviceMode",
    "DevicePartition",
    "LeaseExtend",
    "LeaseReclaim",
    "LeaseRelease",
    "LimitSet",
    "NodeSet",
    "Partition",
    "Placement",
    "Policy",
    "PoolApply",
    "QueueApply",
    "QuotaAnswer",
    "QuotaApply",
    "QuotaAsk",
    "RequestCancel",
    "RequestSubmit",
    "Route",
    "Runtime",
    "Task",
    "TaskBegin",
    "TaskType",
]

TaskType = Literal[
    "training",
    "online-inference",
    "batch-inference",
    "evaluation",
    "data-processing",
    "interactive",
]

Placement = Literal["best-fit", "first-fit", "fgd", "least-waste"]

#: How far a pool's devices are partitioned for a request (`ledger.core.mig.partition`).
Partition = Literal["never", "create", "relayout"]


class Task(Model):
    """What will run: the requester's own id for it and its type."""

    id: Name
    type: TaskType = "training"


class Runtime(Model):
    """What the task runs: a version of a model, in a framework (`schemas.compatibility`)."""

    model: Text | None = None
    framework: Text | None = None


class Beside(Model):
    """What the request needs on each node beside the devices."""

    cpu_milli: Milli = 0
    memory_mib: WholeMib = 0


class RequestSubmit(Model):
    """Ask for devices. Answered once: granted, rejected, expired or cancelled.

    ``max_wait_s`` None waits for ever and 0 answers at once; ``max_run_s``
    counts time held over all attempts (C31); ``retries`` is how many times an
    interrupted request goes back to its old place in the queue. Requests of one
    source with one task id are replicas of it: an eviction never leaves fewer than
    ``replicas_min`` of them (C25), by default 1 for online inference. ``recovery``
    is what becomes of the request when its lease is evicted: by default ``end`` for
    evaluation and interactive tasks and ``requeue`` for all others.

    ``template``, or else the default template of the task's type, fills in what the
    request leaves out (`schemas.templates`): without one ``queue`` must be named, and
    who asks for nothing gets one whole device. ``checkpoint`` is where the task's
    checkpoint is, ``rollback`` the model or version to go back to, ``environment`` what
    it runs in: for the record, the ledger does nothing with them. ``licences`` is how many
    of each it uses, as long as it has a place; where ``runtime`` can run is asked of the
    compatibility rules when it comes.

    ``reservation`` is an advance reservation of its tenant: the request runs within it,
    there and then, or not at all; its lease ends with the reservation at the latest.
    """

    tenant: Name
    project: Name | None = None
    queue: Name = ""
    task: Task
    ask: Ask = WholeAsk()
    beside: Beside = Beside()
    licences: Licences = Field(default_factory=dict)
    runtime: Runtime | None = None
    service_class: ServiceClass | None = None
    priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000)] = 0
    preemptible: bool = False
    max_wait_s: Seconds | None = None
    max_run_s: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    expected_run_s: Seconds | None = None
    retries: Annotated[int, Field(ge=0, le=1000)] = 0
    replicas_min: Annotated[int, Field(ge=0, le=10_000)] | None = None
    recovery: Literal["requeue", "end"] | None = None
    template: Name | None = None
    reservation: Name | None = None
    checkpoint: Text | None = None
    rollback: Text | None = None
    image: Text | None = None
    environment: Text | None = None


class RequestCancel(Model):
    """Withdraw one's own request, waiting or running."""

    request: Reference
    reason: Text = ""


class LeaseRelease(Model):
    """Give back one's own lease. Names the lease, never a device (C27)."""

    lease: Reference
    how: Literal["completed", "failed"] = "completed"


class Policy(Model):
    """An operator's act: on record with who and why."""

    author: Name
    reason: Text


class LeaseReclaim(Policy):
    """An operator takes a lease back."""

    lease: Reference


class Route(Model):
    """How a pool serves requests of a service class that leave the mode to it."""

    when: ServiceClass
    mode: Literal["whole", "mig", "share"]


class PoolApply(Policy):
    """Create or change a pool.

    ``silent_grace_s`` is how long a node may stay silent before its leases end.
    ``order_timeout_s`` is how long a node may take to answer an order.
    ``placement`` is how a place is chosen where several would do
    (`ledger.core.policies`). ``partition`` is what is done for a request that no free
    slice serves: nothing, ``create`` one in a free placement, or also ``relayout`` an
    idle part of a device. More than ``slices_warning`` slices on a device raise an
    alarm; 0: never. ``allowed_modes`` and ``allowed_tenants`` say which delivery modes
    it serves and whom, all when empty; who holds something keeps it. The memory that
    shares of a device ask for may sum to ``memory_overcommit_permille`` of what it has:
    above 1000 one share's task can run out of memory because of another's. ``routing``
    says how requests are served that leave the mode to the pool, by service class:
    by default online inference and interactive tasks are latency-sensitive.
    """

    pool: Name
    labels: Labels = Field(default_factory=dict)
    silent_grace_s: Seconds = 60
    order_timeout_s: Seconds = 300
    placement: Placement = "best-fit"
    partition: Partition = "never"
    slices_warning: Annotated[int, Field(ge=0, le=64)] = 4
    allowed_modes: Annotated[tuple[Mode, ...], Field(max_length=8)] = ()
    allowed_tenants: Annotated[tuple[Name, ...], Field(max_length=256)] = ()
    memory_overcommit_permille: Annotated[int, Field(ge=1000, le=10_000)] = 1000
    routing: Annotated[tuple[Route, ...], Field(max_length=2)] = ()


class QueueApply(Policy):
    """Create or change a queue.

    ``ordering``: under ``strict`` a request that waits for devices holds back
    later ones of the same queue that need the same kind of device; under
    ``best-effort`` whatever fits may start (C17); under ``backfill`` the first
    that waits has a planned place, and later ones may start where they do not
    delay it. ``tenants`` who may submit, everybody when empty; ``max_gpus`` the
    largest request let in; ``max_run_s`` the longest run, also for requests that
    state none. ``fair_share`` lets those go first, at equal priority, whose quota
    has had least lately.

    ``preemption``: whose preemptible leases of a lower priority a request of this
    queue may have evicted. ``reclaim``: whether it may have evicted what borrows
    from the quota that it is entitled to (``lower-priority``: only such).
    A lease that its node reports idle is reminded after ``idle_remind_s`` and
    reclaimed after ``idle_reclaim_s``. When a gang loses a node or device, what is
    left of its place is kept for it for ``repair_hold_s``; None: not at all (A10).
    """

    queue: Name
    ordering: Literal["strict", "best-effort", "backfill"] = "best-effort"
    tenants: Annotated[tuple[Name, ...], Field(max_length=256)] = ()
    max_gpus: Count | None = None
    max_wait_s: Seconds | None = None
    max_run_s: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    fair_share: bool = False
    preemption: Literal["never", "same-tenant", "any-tenant"] = "never"
    reclaim: Literal["never", "lower-priority", "any"] = "never"
    idle_remind_s: Seconds | None = None
    idle_reclaim_s: Seconds | None = None
    repair_hold_s: Seconds | None = 600

    @model_validator(mode="after")
    def _one_order(self) -> Self:
        """Who is first by age cannot be held back by one who is first by fair share."""
        if self.fair_share and self.ordering == "strict":
            raise ValueError("fair_share needs the ordering best-effort or backfill")
        return self


#: One model, one MIG profile, or device memory.
Resource = Annotated[str, Field(pattern=r"^(memory_mib|(model|profile):[ -~]{1,200})$")]


class LimitSet(Model):
    """What a quota says of one resource beside ``gpu`` (units: `ledger.core.quotas.quota`).

    None: no limit on borrowing from siblings, or on lending to them.
    """

    resource: Resource
    nominal: Milli
    borrowing: Milli | None = None
    lending: Milli | None = None


class Budget(Model):
    """GPU-hours that may be granted in each period of ``period_s``, counted from the epoch."""

    gpu_hours: Annotated[int, Field(ge=0, le=1_000_000)]
    period_s: Annotated[int, Field(ge=60, le=1_000_000_000)]


class QuotaApply(Policy):
    """Set a quota: of a tenant, of one of its projects, or of an organisation above them.

    ``nominal_gpu_milli`` is in thousandths of a device held at once: a whole
    device counts 1000, a share its ``gpu_milli``, a MIG slice its part of the
    device's compute slices, rounded up (C15). A project's parent is its tenant;
    ``parent`` names another's, from which it may borrow, and to which it lends. A
    parent's nominal is the total of its own: never less than its children's (Q3).
    ``weight`` counts in fair share, in which past use counts half after each
    ``half_life_s``. ``evict``: stop leases, the last granted first, until what is
    held is within the quota; otherwise a lowered quota takes nothing away (Q1).
    """

    tenant: Name
    project: Name | None = None
    parent: Name | None = None
    nominal_gpu_milli: Milli
    borrowing_gpu_milli: Milli | None = None
    lending_gpu_milli: Milli | None = None
    limits: Annotated[tuple[LimitSet, ...], Field(max_length=64)] = ()
    budget: Budget | None = None
    weight: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    half_life_s: Annotated[int, Field(ge=60, le=1_000_000_000)] = 604_800
    evict: bool = False


class QuotaAsk(Policy):
    """Ask for a larger nominal quota; somebody else approves or refuses it."""

    tenant: Name
    project: Name | None = None
    nominal_gpu_milli: Milli


class QuotaAnswer(Policy):
    """Approve or refuse a quota asked for, by its id. Not by who asked: two persons sign."""

    ask: Reference
    approve: bool


class LeaseExtend(Model):
    """Ask for a longer maximum run time of one's own lease, within its queue's longest."""

    lease: Reference
    more_s: Annotated[int, Field(ge=1, le=1_000_000_000)]


class TaskBegin(Model):
    """The requester has started its command under its own lease, on this node.

    ``said_us`` is the requester's own clock (UTC): a claim, kept beside the log's time.
    ``after_us`` is how long after the grant was heard, from a steady clock.
    """

    lease: Reference
    node: Name
    said_us: TimeUs
    after_us: TimeUs


class NodeSet(Policy):
    """Put a node in or out of service: ``draining`` and ``maintenance`` get no new lease."""

    node: Name
    mode: Literal["online", "draining", "maintenance"]


class DeviceClear(Policy):
    """An operator's word that a quarantined device is clean."""

    device: Reference


class DeviceMode(Policy):
    """Turn a device's MIG mode on or off.

    Its node must be draining or in maintenance, and nothing may be left of the device that
    anybody has: the change may reset it. Without slices, which an empty layout takes away.
    """

    device: Reference
    enabled: bool


class DevicePartition(Policy):
    """Order a whole layout of a device: these profiles, and nothing else.

    ``PROFILE@START`` names the memory slice at which it is to be. What is in use stays;
    where the layout has no place for it the order is refused and nothing is destroyed (C09).
    """

    device: Reference
    layout: Annotated[tuple[PlacedProfile, ...], Field(max_length=16)]
