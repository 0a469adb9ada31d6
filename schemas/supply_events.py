"""The events of what there is: nodes, devices and slices."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from schemas.base import (
    Count,
    Counter,
    Milli,
    Model,
    Name,
    Reference,
    Text,
    TimeUs,
    Version,
    WholeMib,
)
from schemas.observations import Ends, Evidence, Health, Incarnation, ProfileReport, VgpuReport

__all__ = [
    "DeviceCleared",
    "DeviceDiscovered",
    "DeviceFaulted",
    "DeviceHealthChanged",
    "DeviceReopened",
    "LinkMeasured",
    "NodeChanged",
    "NodeRegistered",
    "NodeSettled",
    "NodeUnsettled",
    "Quarantined",
    "SliceGone",
    "SliceOrdered",
    "SlicePresent",
]


class NodeRegistered(Model):
    """A node, or a new incarnation of it, told what it is."""

    type: Literal["node.registered"]
    node: Name
    incarnation: Incarnation
    epoch: Counter
    agent: Text
    pool: Name
    cpu_milli: Milli | None
    memory_mib: WholeMib | None
    driver: Text | None = None
    cuda: Version | None = None
    labels: dict[Name, Text] = Field(default_factory=dict)


class NodeChanged(Model):
    """A node moved along its lifecycle."""

    type: Literal["node.changed"]
    node: Name
    state: Literal["registering", "online", "draining", "maintenance", "silent", "lost"]
    reason: Text
    mode: Literal["online", "draining", "maintenance"] | None = None
    author: Name | None = None


class NodeUnsettled(Model):
    """More is to be ended or cleaned on the node than one record takes: the next goes on.

    Until it is settled nothing is leased there, and nothing ordered.
    """

    type: Literal["node.unsettled"]
    node: Name
    reason: Literal["node-lost", "node-restarted", "unclean", "device-gone"]


class NodeSettled(Model):
    """What was on the node before is ended, and being cleaned where the node is there."""

    type: Literal["node.settled"]
    node: Name


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
    profiles: tuple[ProfileReport, ...] = ()
    mig_pending: bool = False
    capability: Version | None = None
    nvlink_domain: Text | None = None
    encoder_sessions: Count | None = None
    decoder_sessions: Count | None = None
    iommu_group: Text | None = None
    pci_address: Text | None = None
    vgpu_types: Annotated[tuple[VgpuReport, ...], Field(max_length=64)] = ()


class LinkMeasured(Model):
    """The link from one node to another was measured; admissions refer to it by its id."""

    type: Literal["link.measured"]
    evidence: Reference
    from_node: Name
    to_node: Name
    p99_us: int
    bandwidth_mbps: int
    tool: Text
    version: Text
    valid_until_us: TimeUs


class DeviceHealthChanged(Model):
    """A device's health, as its node sees it."""

    type: Literal["device.health"]
    device: Reference
    health: Health
    reason: Text
    evidence: Evidence


class DeviceFaulted(Model):
    """Something went wrong on a device; ``units`` are it, or its slices in the fault's scope.

    Which leases do not survive it (``ends``, as `schemas.observations.FaultReport` has it) is
    told by the events that end them, in the same record.
    """

    type: Literal["device.fault"]
    device: Reference
    code: Name
    ends: Ends
    units: tuple[Reference, ...]
    reason: Text
    evidence: Evidence
    xid: Count | None = None
    gi: Count | None = None
    ci: Count | None = None


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


class DeviceReopened(Model):
    """A change of the device's partitions failed, and its node finds it whole and well since.

    It may be partitioned again. ``failures`` in a row so far, the last at ``failed_us``;
    the evidence says by what reading, and what is on the device.
    """

    type: Literal["device.reopened"]
    device: Reference
    failures: Count
    failed_us: TimeUs
    evidence: Evidence


class SliceOrdered(Model):
    """A place on a device is promised to a slice that the order is to create (A2)."""

    type: Literal["slice.ordered"]
    slice: Reference
    order: Reference
    device: Reference
    profile: Text
    start: Count
    size: Count
    compute_slices: Count
    memory_mib: WholeMib


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
