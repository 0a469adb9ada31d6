"""What services and operators may put on ``gpuledger.requests``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from schemas.base import Count, Milli, Model, Name, Reference, Seconds, Text, WholeMib

__all__ = [
    "Ask",
    "Beside",
    "DeviceClear",
    "LeaseReclaim",
    "LeaseRelease",
    "MigAsk",
    "NodeSet",
    "PoolApply",
    "QueueApply",
    "QuotaApply",
    "RequestCancel",
    "RequestSubmit",
    "ShareAsk",
    "Task",
    "WholeAsk",
]

TaskType = Literal[
    "training",
    "online-inference",
    "batch-inference",
    "evaluation",
    "data-processing",
    "interactive",
]

Labels = Annotated[dict[Name, Text], Field(max_length=32)]
Models = Annotated[tuple[Text, ...], Field(max_length=32)]


class Where(Model):
    """Constraints that every delivery mode shares; empty means any.

    ``labels`` must all be carried by the pool; ``models`` are exact device
    model names.
    """

    pool: Name | None = None
    labels: Labels = Field(default_factory=dict)
    models: Models = ()


class WholeAsk(Where):
    """``count`` whole devices on each of ``nodes`` distinct nodes, all or nothing.

    ``count`` 0 asks for no device at all (a CPU-only task beside the others).
    ``memory_mib`` is the least device memory that will do.
    """

    mode: Literal["whole"] = "whole"
    count: Annotated[int, Field(ge=0, le=16)] = 1
    nodes: Annotated[int, Field(ge=1, le=1024)] = 1
    memory_mib: WholeMib = 0


class MigAsk(Where):
    """``count`` MIG slices of one profile that a node has reported present."""

    mode: Literal["mig"]
    profile: Annotated[str, Field(pattern=r"^[0-9]+[gc]\.[0-9a-z.+]{1,40}$")]
    count: Annotated[int, Field(ge=1, le=64)] = 1


class ShareAsk(Where):
    """A share of one device: thousandths of its compute, and memory in MiB."""

    mode: Literal["share"]
    gpu_milli: Annotated[int, Field(ge=1, le=1000)]
    memory_mib: WholeMib = 0


Ask = Annotated[WholeAsk | MigAsk | ShareAsk, Field(discriminator="mode")]


class Task(Model):
    """What will run: the requester's own id for it and its type."""

    id: Name
    type: TaskType = "training"


class Beside(Model):
    """What the request needs on each node beside the devices."""

    cpu_milli: Milli = 0
    memory_mib: WholeMib = 0


class RequestSubmit(Model):
    """Ask for devices. Answered once: granted, rejected, expired or cancelled.

    ``max_wait_s`` None waits for ever and 0 answers at once; ``max_run_s``
    counts time held over all attempts (C31); ``retries`` is how many times an
    interrupted request goes back to its old place in the queue.
    """

    tenant: Name
    project: Name | None = None
    queue: Name
    task: Task
    ask: Ask
    beside: Beside = Beside()
    priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000)] = 0
    preemptible: bool = False
    max_wait_s: Seconds | None = None
    max_run_s: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    expected_run_s: Seconds | None = None
    retries: Annotated[int, Field(ge=0, le=1000)] = 0


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


class PoolApply(Policy):
    """Create or change a pool.

    ``silent_grace_s`` is how long a node may stay silent before its leases end.
    ``order_timeout_s`` is how long a node may take to answer an order.
    """

    pool: Name
    labels: Labels = Field(default_factory=dict)
    silent_grace_s: Seconds = 60
    order_timeout_s: Seconds = 300


class QueueApply(Policy):
    """Create or change a queue.

    ``ordering``: under ``strict`` a request that waits for devices holds back
    later ones of the same queue that need the same kind of device; under
    ``best-effort`` whatever fits may start (C17). ``max_gpus`` is the largest
    request let in.
    """

    queue: Name
    ordering: Literal["strict", "best-effort"] = "best-effort"
    max_gpus: Count | None = None
    max_wait_s: Seconds | None = None


class QuotaApply(Policy):
    """Set a tenant's nominal quota, in thousandths of a device held at once.

    A whole device counts 1000, a share its ``gpu_milli``, a MIG slice its part
    of the device's compute slices, rounded up (C15).
    """

    tenant: Name
    nominal_gpu_milli: Milli


class NodeSet(Policy):
    """Put a node in or out of service: ``draining`` and ``maintenance`` get no new lease."""

    node: Name
    mode: Literal["online", "draining", "maintenance"]


class DeviceClear(Policy):
    """An operator's word that a quarantined device is clean."""

    device: Reference
