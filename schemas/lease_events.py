"""The events of leases, and what they share with those of requests."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from schemas.base import Count, Milli, Model, Name, Reference, Text, TimeUs, WholeMib
from schemas.terms import Isolation

__all__ = [
    "CodeName",
    "EndReason",
    "LeaseEnded",
    "LeaseExtended",
    "LeaseGranted",
    "LeaseIdle",
    "LeasePart",
    "LeaseReminded",
    "LeaseStarted",
    "LeaseStopping",
    "Numbers",
    "PartEnded",
    "TaskBegun",
]

#: The numbers that were compared, by name.
Numbers = dict[Name, int | Text | None]
CodeName = Annotated[str, Field(pattern=r"^[a-z0-9_]{1,40}$")]
EndReason = Literal[
    "completed",
    "failed",
    "cancelled",
    "max-run",
    "reclaimed",
    "preempted",
    "quota-lowered",
    "idle",
    "node-lost",
    "node-restarted",
    "device-gone",
    "device-fault",
    "slice-gone",
    "stop-timed-out",
]


class LeasePart(Model):
    """What a lease holds on one node: whole devices or shares by UUID, or slices by id.

    Of devices that are passed through the PCI addresses too, in the same order.
    """

    node: Name
    units: tuple[Reference, ...]
    pci_addresses: tuple[Text, ...] = ()
    vgpu_type: Text = ""


class LeaseGranted(Model):
    """Devices were leased, all or none. Charged ``charge_milli`` while it lasts.

    ``memory_mib`` is the device memory kept for it, which may be more than was
    asked for: the rest is fragmentation cost (M8). Above 1000
    ``memory_overcommit_permille`` others may take memory that was asked for: the task
    can run out of it. ``evidence`` is that of the links by which remote devices are used.
    """

    type: Literal["lease.granted"]
    lease: Reference
    request: Reference
    attempt: Count
    charge_milli: Milli
    due_us: TimeUs | None = None
    parts: tuple[LeasePart, ...]
    why: Numbers
    model: Text = ""
    memory_mib: WholeMib = 0
    isolation: Isolation = "hardware"
    memory_overcommit_permille: Count = 1000
    evidence: tuple[Reference, ...] = ()


class LeaseStarted(Model):
    """The task was seen running on this node of the lease."""

    type: Literal["lease.started"]
    lease: Reference
    node: Name


class TaskBegun(Model):
    """The requester's command was started under the lease, as the requester says.

    When it was on record is the decision's time; ``said_us`` is the requester's own clock, a
    claim, and ``after_us`` how long after it heard the grant, from a steady clock.
    """

    type: Literal["task.begun"]
    lease: Reference
    node: Name
    said_us: TimeUs
    after_us: TimeUs


class LeaseStopping(Model):
    """The lease is to end for this reason; it wins over the task's exit code (C25)."""

    type: Literal["lease.stopping"]
    lease: Reference
    reason: EndReason
    due_us: TimeUs | None = None
    author: Name | None = None
    by: Reference | None = None
    rests_until_us: TimeUs | None = None
    rule: Text | None = None


class LeaseExtended(Model):
    """The lease may run until ``due_us``."""

    type: Literal["lease.extended"]
    lease: Reference
    due_us: TimeUs


class LeaseIdle(Model):
    """The lease was reported idle since, or busy again (``since_us`` None)."""

    type: Literal["lease.idle"]
    lease: Reference
    since_us: TimeUs | None = None


class LeaseReminded(Model):
    """The lease's holder was told that it is idle, and when it will be reclaimed."""

    type: Literal["lease.reminded"]
    lease: Reference
    idle_us: TimeUs
    reclaim_us: TimeUs | None = None


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
