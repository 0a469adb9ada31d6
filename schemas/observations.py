"""What nodes, the liveness processor and the runner put on ``gpuledger.observations``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from schemas.base import (
    Count,
    Counter,
    Exact,
    Milli,
    Model,
    Name,
    Reference,
    Seconds,
    Text,
    TimeUs,
    Version,
    WholeMib,
)

__all__ = [
    "MAX_VGPU_TYPES",
    "DeviceHealth",
    "DeviceReport",
    "FaultReport",
    "Heartbeat",
    "LinkEvidence",
    "NodeBack",
    "NodeInventory",
    "NodeSilent",
    "OrderDone",
    "OrderFailed",
    "ProfileReport",
    "SliceReport",
    "TaskEnded",
    "TaskStarted",
    "TaskUse",
    "Tick",
    "VgpuReport",
]

#: A device's or MIG instance's UUID. NVML's have 40 characters, and its buffer 96; a grant of
#: 16,384 has to fit into one reply, which names each of them four times.
Uuid = Annotated[str, Field(pattern=r"^[!-~]{1,96}$")]
#: A device's name: NVML's buffer for it has 96 characters. Each grant says it twice.
DeviceName = Annotated[str, Field(pattern=r"^[ -~]{0,96}$")]
PciAddress = Annotated[str, Field(pattern=r"^[!-~]{0,64}$")]
#: A boot of the node: a new incarnation means that nothing survived.
Incarnation = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,63}$")]
Evidence = Annotated[dict[Name, Exact | Text | None], Field(max_length=64)]
Health = Literal["healthy", "unhealthy", "unknown", "gone"]
Ends = Literal["none", "scope", "device", "linked"]

#: The most types of vGPU that a device is reported with.
MAX_VGPU_TYPES = 64


class NodeFact(Model):
    """Said by a node about itself. ``node_time_us`` is its own clock: a claim, never used."""

    node: Name
    incarnation: Incarnation
    node_time_us: TimeUs | None = None


Profile = Annotated[str, Field(pattern=r"^[0-9]{1,4}[gc]\.[0-9a-z.+-]{1,40}$")]


class SliceReport(Model):
    """A MIG instance that the node sees: its ids, and its place on the device."""

    mig_uuid: Uuid
    profile: Profile
    gi: Count
    ci: Count | None = None
    start: Annotated[int, Field(ge=0, le=63)]
    size: Annotated[int, Field(ge=1, le=64)]
    compute_slices: Annotated[int, Field(ge=1, le=64)]
    memory_mib: WholeMib


class ProfileReport(Model):
    """A kind of MIG instance that the device offers, and at which memory slices it may start.

    ``most`` is how many of it the device takes at once; 0: as many as fit.
    """

    profile: Profile
    size: Annotated[int, Field(ge=1, le=64)]
    compute_slices: Annotated[int, Field(ge=0, le=64)]
    memory_mib: WholeMib
    starts: Annotated[tuple[Annotated[int, Field(ge=0, le=63)], ...], Field(max_length=64)]
    most: Annotated[int, Field(ge=0, le=64)] = 0


class VgpuReport(Model):
    """A type of vGPU that the device offers: how many of it at once, with how much memory."""

    type: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}$")]
    most: Annotated[int, Field(ge=1, le=1000)]
    memory_mib: WholeMib


class DeviceReport(Model):
    """One device as the node sees it. ``index`` is a sighting, not an identity (C01).

    ``profiles`` is what can be made of it; without them the ledger plans nothing on it.
    ``mig_pending``: a change of its MIG mode takes effect after a reboot (C09).
    ``nvlink_domain`` names the devices that reach each other over NVLink.
    ``encoder_sessions`` and ``decoder_sessions`` are how many it runs at once. Devices
    of one ``iommu_group`` of the node can be passed through together only.
    """

    uuid: Uuid
    model: DeviceName
    memory_mib: WholeMib
    health: Literal["healthy", "unhealthy", "unknown"] = "healthy"
    index: Count | None = None
    architecture: Text | None = None
    compute_slices: Annotated[int, Field(ge=0, le=64)] = 0
    mig_enabled: bool = False
    slices: Annotated[tuple[SliceReport, ...], Field(max_length=16)] = ()
    profiles: Annotated[tuple[ProfileReport, ...], Field(max_length=32)] = ()
    mig_pending: bool = False
    capability: Version | None = None
    nvlink_domain: Text | None = None
    encoder_sessions: Count | None = None
    decoder_sessions: Count | None = None
    iommu_group: Text | None = None
    pci_address: PciAddress | None = None
    vgpu_types: Annotated[tuple[VgpuReport, ...], Field(max_length=MAX_VGPU_TYPES)] = ()


class NodeInventory(NodeFact):
    """Everything the node has, whole. ``epoch`` counts the agent's starts.

    ``cuda`` is the newest version of CUDA that the driver serves. ``labels`` say where it
    is: its rack, its power feed.
    """

    epoch: Counter
    pool: Name
    cpu_milli: Milli | None = None
    memory_mib: WholeMib | None = None
    driver: Text | None = None
    cuda: Version | None = None
    labels: Annotated[dict[Name, Text], Field(max_length=32)] = Field(default_factory=dict)
    devices: Annotated[tuple[DeviceReport, ...], Field(max_length=256)]


class Heartbeat(NodeFact):
    """Liveness, on ``gpuledger.heartbeats``: never on the decision path."""

    cell: Name
    beat: Counter


class NodeSilent(NodeFact):
    """The liveness processor has not heard the node for its limit."""

    last_heartbeat_us: TimeUs


class NodeBack(NodeFact):
    """The liveness processor hears the node again."""


class FaultReport(Model):
    """Something that went wrong on a device, and what of the work there does not survive it.

    ``code`` names it: ``xid-94``. It was seen in a compute instance (``gi``, ``ci``), in a GPU
    instance (``gi`` alone), or in the whole device. ``ends`` is ``scope`` for the work where it
    was seen, ``device`` for all on the device, ``linked`` for what uses other devices too.
    """

    code: Name
    ends: Ends = "none"
    xid: Count | None = None
    gi: Count | None = None
    ci: Count | None = None


class DeviceHealth(NodeFact):
    """A device's health changed, or something went wrong on it (``fault``) and it did not."""

    device: Reference
    health: Health
    reason: Text = ""
    evidence: Evidence = Field(default_factory=dict)
    fault: FaultReport | None = None


class TaskStarted(NodeFact):
    """The lease's task runs on this node."""

    lease: Reference


class TaskEnded(NodeFact):
    """The lease's task no longer runs on this node. ``took_us`` is from a steady clock."""

    lease: Reference
    how: Literal["completed", "failed", "cancelled", "stopped", "never-started"]
    exit_code: Annotated[int, Field(ge=-1024, le=1024)] | None = None
    took_us: TimeUs | None = None


class TaskUse(NodeFact):
    """The lease's devices on this node have become idle, or busy. Said on the change only.

    ``idle_s`` is how long they had been idle by then, from a steady clock.
    """

    lease: Reference
    idle: bool
    idle_s: Seconds = 0


class LinkEvidence(NodeFact):
    """The node measured its link to another, with this tool; it holds for ``valid_s``.

    Latencies are half of a round trip; the median is told and not judged.
    """

    to_node: Name
    p50_us: Annotated[int, Field(ge=0, le=1_000_000_000)] | None = None
    p99_us: Annotated[int, Field(ge=0, le=1_000_000_000)]
    bandwidth_mbps: Annotated[int, Field(ge=0, le=1_000_000_000)]
    tool: Text
    version: Text
    valid_s: Seconds


class OrderDone(NodeFact):
    """The node has carried an order out, with its evidence; ``slices`` are those created."""

    order: Reference
    took_us: TimeUs | None = None
    evidence: Evidence = Field(default_factory=dict)
    slices: Annotated[tuple[SliceReport, ...], Field(max_length=16)] = ()


class OrderFailed(NodeFact):
    """The node could not carry an order out."""

    order: Reference
    reason: Text
    evidence: Evidence = Field(default_factory=dict)


class Tick(Model):
    """Time passes. Written by the runner; its append time is what counts."""
