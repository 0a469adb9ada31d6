"""From what was read of a node to what the ledger is told: pure.

The ledger leases what is reported present and healthy, and plans partitions on what is
reported possible. So what is not known is not reported as there, and what cannot be made
now is not reported as possible. `Note` says to people what was left out, and why.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, TypeVar

from pydantic import ValidationError

from collectors.nvml.codes import GONE, word
from schemas.base import Model
from schemas.faults import first_fault
from schemas.observations import (
    MAX_VGPU_TYPES,
    DeviceReport,
    NodeInventory,
    ProfileReport,
    SliceReport,
    VgpuReport,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from collectors.nvml.host_facts import HostFacts
    from collectors.nvml.reader import Inventory
    from collectors.nvml.readings import Device, GpuInstance, MigProfile

__all__ = ["Note", "Standing", "device_report", "health_of", "links_of", "node_inventory"]

#: NVML's numbers of architectures -> their names.
ARCHITECTURES = {
    5: "volta",
    6: "turing",
    7: "ampere",
    8: "ada",
    9: "hopper",
    10: "blackwell",
    13: "rubin",
}

#: NVML's numbers of recovery actions -> what is to be done.
RECOVERY = {
    1: "reset the GPU",
    2: "reboot the node",
    3: "drain peer-to-peer traffic",
    4: "drain and reset the GPU",
    5: "recover the IMEX domain",
    6: "reset the bus",
    7: "reboot the system",
}

Health = Literal["healthy", "unhealthy", "unknown"]

M = TypeVar("M", bound=Model)

_GONE = frozenset(map(word, GONE))


@dataclass(frozen=True, slots=True)
class Note:
    """Something about a device that the observation cannot say; for people."""

    device: str
    text: str


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a node stands, as its site says: what NVML does not know.

    ``media_sessions`` is how many encoder and decoder sessions a model runs at once: NVML
    tells their number now, and no limit.
    """

    node: str
    pool: str
    labels: Mapping[str, str] = field(default_factory=dict)
    media_sessions: Mapping[str, tuple[int, int]] = field(default_factory=dict)


def health_of(device: Device) -> tuple[Health, str]:
    """Return ``healthy``, ``unhealthy`` or ``unknown``, and why.

    The driver's own verdict comes before what can be concluded. XIDs, temperature and
    flapping need memory of what was before, and are not judged here.
    """
    if device.why in _GONE:
        return "unhealthy", "the GPU is lost"
    if device.why:
        return "unknown", device.why
    if device.model is None or device.memory is None:
        lacking = device.missing.get("name") or device.missing.get("memory") or "not told"
        return "unknown", f"name or memory cannot be read: {lacking}"
    if device.recovery_action:
        action = RECOVERY.get(device.recovery_action, f"action {device.recovery_action}")
        return "unhealthy", f"the driver asks to {action}"
    if device.remapped is not None and device.remapped.failed:
        return "unhealthy", "a row of memory could not be remapped"
    if device.mig and device.instances_why:
        # A list that is not whole must not pass for a device with room.
        return "unknown", f"MIG instances cannot be listed: {device.instances_why}"
    return "healthy", ""


def links_of(devices: Iterable[Device], node: str) -> dict[str, str]:
    """Return the NVLink domain of each device that is in one.

    A fabric's cluster and clique reach over nodes; switches without a fabric, and links
    from GPU to GPU, make domains within the node.
    """
    found: dict[str, str] = {}
    groups: dict[str, str] = {}
    by_address = {one.pci.address: one for one in devices if one.pci is not None}

    def root(address: str) -> str:
        while groups.get(address, address) != address:
            address = groups[address]
        return address

    for address, one in by_address.items():
        active = [link for link in one.nvlinks or () if link.active]
        if one.fabric is not None:
            found[one.uuid] = f"{one.fabric.cluster}.{one.fabric.clique}"
        elif any(link.remote is None for link in active):
            found[one.uuid] = f"{node}.switch"
        for link in active:
            if link.remote in by_address:
                first, second = sorted((root(address), root(link.remote)))
                groups[second] = first
    for address, one in by_address.items():
        joined = address in groups or address in groups.values()
        if joined and one.uuid not in found:
            found[one.uuid] = f"{node}.{root(address)}"
    return found


def _bare(device: Device) -> list[GpuInstance]:
    """Return GPU instances without a compute instance: they take their place, for nobody."""
    return [one for one in device.instances if not one.compute]


def _told(notes: list[Note], uuid: str, kind: type[M], /, **values: object) -> list[M]:
    """Return what the observation says of something, nothing where it cannot be said.

    A number or a name that no observation has room for costs that and not the whole node.
    """
    try:
        return [kind(**values)]
    except ValidationError as error:
        place, message = first_fault(error)
        what = ".".join(map(str, place))
        notes.append(Note(uuid, f"{kind.__name__} left out: {what}: {message}"))
        return []


def _profiles(device: Device, notes: list[Note]) -> list[ProfileReport]:
    """Return what can be made of a device, less what bare GPU instances stand in the way of.

    They are no slices, so the ledger could not see that their places are taken.
    """
    bare = [one for one in _bare(device) if one.start is not None]
    taken = {unit for one in bare for unit in range(one.start or 0, _end(one))}
    found: dict[str, ProfileReport] = {}
    for one in device.profiles:
        if one.name is None or one.name in found:
            continue
        there = sum(each.profile == one.id for each in bare)
        starts = [at for at in one.starts if taken.isdisjoint(range(at, at + one.size))]
        if there and there >= one.most:
            starts = []
        said = _told(
            notes,
            device.uuid,
            ProfileReport,
            profile=one.name,
            size=one.size,
            compute_slices=one.slices,
            memory_mib=one.memory_mib,
            starts=tuple(starts),
            most=max(1, one.most - there),
        )
        found |= {each.profile: each for each in said}
    return list(found.values())


def _end(one: GpuInstance) -> int:
    return (one.start or 0) + (one.size or 0)


def _slices(device: Device, notes: list[Note]) -> list[SliceReport]:
    """Return the compute instances whose place and name are known.

    Memory is the profile's, which all instances of it have: the driver's own total differs
    by place by a few MiB.
    """
    kinds: dict[int, MigProfile] = {one.id: one for one in device.profiles}
    found = []
    for one in device.instances:
        kind = kinds.get(one.profile if one.profile is not None else -1)
        if kind is None or one.start is None or one.size is None:
            continue
        for each in one.compute:
            if each.uuid is None or each.name is None:
                continue
            found += _told(
                notes,
                device.uuid,
                SliceReport,
                mig_uuid=each.uuid,
                profile=each.name,
                gi=one.gi,
                ci=each.ci,
                start=one.start,
                size=one.size,
                compute_slices=each.slices,
                memory_mib=kind.memory_mib,
            )
    return found


def _vgpus(device: Device, notes: list[Note]) -> list[VgpuReport]:
    found = []
    for one in device.vgpus or ():
        if one.most:
            name = one.name.removeprefix("NVIDIA ")
            more = {"most": one.most, "memory_mib": one.memory_mib}
            found += _told(notes, device.uuid, VgpuReport, type=name, **more)
    if len(found) > MAX_VGPU_TYPES:
        lost = len(found) - MAX_VGPU_TYPES
        notes.append(Note(device.uuid, f"{lost} types of vGPU left out: there are too many"))
    return found[:MAX_VGPU_TYPES]


def device_report(
    device: Device,
    standing: Standing,
    *,
    index: int | None = None,
    nvlink_domain: str | None = None,
    iommu_group: str | None = None,
) -> tuple[DeviceReport | None, list[Note]]:
    """Return one device as the inventory has it; None when nobody knows what it is.

    A device whose name and memory cannot be read, or cannot be what is told of them, is left
    to `device.health`: an inventory with made-up ones would be believed.
    """
    health, reason = health_of(device)
    notes = [Note(device.uuid, f"{health}: {reason}")] if reason else []
    for one in _bare(device):
        place = "at an unknown place" if one.start is None else f"at {one.start}:{one.size}"
        text = f"GPU instance {one.gi} {place} has no compute instance: its place is lost"
        notes.append(Note(device.uuid, text))
    if device.model is None or device.memory is None:
        return None, notes
    encoders, decoders = standing.media_sessions.get(device.model, (None, None))
    capability = None if device.capability is None else "{}.{}".format(*device.capability)
    reports = _told(
        notes,
        device.uuid,
        DeviceReport,
        uuid=device.uuid,
        model=device.model,
        memory_mib=device.memory.total_mib,
        health=health,
        index=index,
        architecture=ARCHITECTURES.get(device.architecture or 0),
        compute_slices=max((one.slices for one in device.profiles), default=0),
        mig_enabled=bool(device.mig),
        slices=tuple(_slices(device, notes)),
        profiles=tuple(_profiles(device, notes)),
        mig_pending=device.mig != device.mig_pending,
        capability=capability,
        nvlink_domain=nvlink_domain,
        encoder_sessions=encoders,
        decoder_sessions=decoders,
        iommu_group=iommu_group,
        pci_address=None if device.pci is None else device.pci.address,
        vgpu_types=tuple(_vgpus(device, notes)),
    )
    return (reports[0] if reports else None), notes


def _as_known(device: Device, known: Mapping[str, Device]) -> Device:
    """Return what was last known of a device that cannot be read, with why it cannot."""
    if not device.why or device.uuid not in known:
        return device
    return replace(known[device.uuid], why=device.why)


def _cuda(number: int | None) -> str | None:
    """Return CUDA's version as people write it: 13010 is 13.1."""
    return None if number is None else f"{number // 1000}.{number % 1000 // 10}"


def node_inventory(
    inventory: Inventory,
    standing: Standing,
    facts: HostFacts,
    *,
    epoch: int,
    node_time_us: int | None = None,
    known: Mapping[str, Device] = MappingProxyType({}),
    group_of: Callable[[str], str | None] = lambda _: None,
) -> tuple[NodeInventory | None, list[Note]]:
    """Return the node's inventory observation, and what it cannot say.

    None when NVML itself does not work: an inventory is whole, so one without devices
    would end every lease on them. For the same reason a listed device that cannot be read
    now is reported as it was ``known`` last, with its health. One that is not listed any
    more is left out, which is how the ledger is told that it is gone (C01).
    ``group_of`` gives the IOMMU group of a PCI address (`host_facts.iommu_group`).
    """
    host = inventory.host
    if host.why:
        return None, [Note("", f"NVML: {host.why}")]
    devices = [_as_known(one, known) for one in inventory.devices]
    domains = links_of(devices, standing.node)
    indexes = {one.uuid: one.index for one in host.listed}
    notes = [
        Note("", f"entry {one.index} of the listing: {one.why}")
        for one in host.listed
        if one.uuid is None
    ]
    reports = []
    for device in devices:
        report, more = device_report(
            device,
            standing,
            index=indexes.get(device.uuid),
            nvlink_domain=domains.get(device.uuid),
            iommu_group=None if device.pci is None else group_of(device.pci.address),
        )
        notes += more
        if report is not None:
            reports.append(report)
    return (
        NodeInventory(
            node=standing.node,
            incarnation=facts.incarnation,
            epoch=epoch,
            pool=standing.pool,
            cpu_milli=facts.cpu_milli,
            memory_mib=facts.memory_mib,
            driver=host.driver,
            cuda=_cuda(host.cuda),
            labels=dict(standing.labels),
            devices=tuple(reports),
            node_time_us=node_time_us,
        ),
        notes,
    )
