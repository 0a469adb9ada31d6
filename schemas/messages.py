"""What leaves the ledger after an append: orders to nodes, replies to requesters."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from schemas.base import Count, Counter, Model, Name, Reference, Text, TimeUs
from schemas.events import PartitionStep
from schemas.lease_events import CodeName, Numbers
from schemas.terms import Isolation

__all__ = ["DeadLetter", "Order", "Position", "Reply", "ReplyPart"]

#: Where the record stands that this message follows from: ``events/PARTITION@OFFSET``.
Position = Annotated[str, Field(pattern=r"^events/[0-9]+@[0-9]+$")]


class Order(Model):
    """A node is told to do something.

    ``prepare`` makes a lease ready and starts its task; ``stop`` ends the task;
    ``clean`` ends what is left of it and proves the units clean; ``partition``
    changes the layout of the one device in ``units``, step by step, and has no
    lease; nor has ``mode``, which turns its MIG mode on or off as ``enabled`` says.
    Idempotent by
    ``order``; a node with another incarnation refuses it.
    """

    order: Reference
    kind: Literal["prepare", "clean", "stop", "partition", "mode"]
    node: Name
    incarnation: Text
    cell: Name
    lease: Reference | Literal[""] = ""
    request: Reference | None = None
    task: Name | None = None
    units: tuple[Reference, ...]
    gpu_milli: Count = 1000
    delivery: Text = ""
    pci_addresses: tuple[Text, ...] = ()
    vgpu_type: Text = ""
    expected_run_us: TimeUs | None = None
    due_us: TimeUs | None = None
    steps: tuple[PartitionStep, ...] = ()
    enabled: bool | None = None


class ReplyPart(Model):
    """What was granted on one node, how a process gets at it, and what keeps others off.

    Above 1000 ``memory_overcommit_permille`` the task can run out of device memory.
    """

    node: Name
    units: tuple[Reference, ...]
    environment: dict[str, str]
    cdi: tuple[Text, ...]
    pci_addresses: tuple[Text, ...] = ()
    vgpu_type: Text = ""
    isolation: Isolation = "hardware"
    memory_overcommit_permille: Count = 1000


class Reply(Model):
    """An answer to a request or a notice about it.

    ``final`` is true once for each request: granted, rejected, expired or
    cancelled. ``queued`` and what follows a grant are notices.
    """

    request: Reference
    input: Text
    answer: Literal[
        "granted",
        "queued",
        "reserved",
        "reminded",
        "rejected",
        "expired",
        "cancelled",
        "applied",
        "released",
        "stopping",
        "ended",
        "refused",
        "malformed",
    ]
    final: bool
    code: CodeName
    numbers: Numbers = Field(default_factory=dict)
    lease: Reference | None = None
    attempt: Count | None = None
    parts: tuple[ReplyPart, ...] = ()
    position: Position | None = None


class DeadLetter(Model):
    """Why a record was put aside: the headers beside the original bytes, as one object."""

    topic: Text
    partition: Count
    offset: Counter
    code: CodeName
    detail: Text
    time_us: TimeUs
