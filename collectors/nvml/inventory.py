"""Read a device, whole, by its UUID: what it is, what is on it, and how it is.

GPU instances are listed profile by profile as well as found by the walk over MIG devices:
one without a compute instance is no MIG device, so the walk alone would not see what takes
its place; the walk alone is what is left where the right to list is missing.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

from collectors.nvml.calls import Reading, read
from collectors.nvml.codes import GONE, Code, word
from collectors.nvml.readings import (
    ComputeInstance,
    Device,
    Ecc,
    Fabric,
    GpuInstance,
    Memory,
    MigProfile,
    NvLink,
    Pci,
    Process,
    Remapped,
    Vgpu,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from collectors.nvml.session import Session

__all__ = ["DeviceReader", "read_device", "read_processes"]

#: NVML's numbers of GPU instance and compute instance profiles end before these.
_MOST_GI_PROFILES, _MOST_CI_PROFILES = 32, 16
#: The most NVLinks of a device.
_MOST_LINKS = 36
#: NVML's number of a GPU at the other end of an NVLink; another end is a switch.
_GPU_END = 0
_KINDS = ("compute", "graphics", "mps")

_NOT_SUPPORTED = word(Code.NOT_SUPPORTED)
_NOT_FOUND = word(Code.NOT_FOUND)
_GONE = frozenset(map(word, GONE))
_END_OF_LIST = word(Code.INVALID_ARGUMENT)

#: Fields of `Device` that are one call each.
_PLAIN = {
    "model": "name",
    "serial": "serial",
    "vbios": "vbios",
    "minor": "minor",
    "architecture": "architecture",
    "capability": "capability",
    "numa": "numa",
    "persistence": "persistence",
    "compute_mode": "compute_mode",
    "virtualization": "virtualization",
    "recovery_action": "recovery_action",
    "encoder_capacity_percent": "encoder_capacity",
}


def read_device(session: Session, uuid: str) -> Device:
    """Read everything of a device. One that cannot be reached has ``why`` and little else."""
    handle = session.handle(uuid)
    if handle.why:
        return Device(uuid, handle.why)
    return DeviceReader(uuid, handle.value).device()


def read_processes(session: Session, uuid: str) -> tuple[Process, ...] | None:
    """Return who is on a device, from all three lists; None when any could not be read.

    A list that is missing must not look like nobody: a release rests on it.
    """
    handle = session.handle(uuid)
    return None if handle.why else DeviceReader(uuid, handle.value).processes()


class DeviceReader:
    """Reads one device and notes what was missing, and why."""

    def __init__(self, uuid: str, handle: Any) -> None:
        """Read through this handle."""
        self.uuid = uuid
        self.missing: dict[str, str] = {}
        self._handle = handle

    def device(self) -> Device:
        """Read everything. Losing the device on the way is ``why``, and ends it there."""
        found: dict[str, Any] = {}
        for field, call in _PLAIN.items():
            found[field] = self._value(call)
            if self._lost:
                return Device(self.uuid, self._lost, missing=self.missing)
        if found["persistence"] is not None:
            found["persistence"] = bool(found["persistence"])
        memory = self._value("memory")
        stats = self._value("encoder_stats")
        device = Device(
            self.uuid,
            **found,
            memory=None if memory is None else Memory(**memory),
            pci=self._pci(),
            processes=self.processes(),
            ecc=self._ecc(),
            remapped=self._remapped(),
            nvlinks=self._nvlinks(),
            fabric=self._fabric(),
            vgpus=self._vgpus(),
            encoder_sessions=None if stats is None else stats[0],
            missing=self.missing,
        )
        device = self._with_mig(device)
        return replace(device, why=self._lost)

    @property
    def _lost(self) -> str:
        return next((why for why in self.missing.values() if why in _GONE), "")

    def _read(self, call: str, *more: Any) -> Reading:
        return read(call, self._handle, *more, about=self.uuid)

    def _value(self, call: str, *more: Any) -> Any:
        """Return what a call of the device gives; note why it gives nothing."""
        found = self._read(call, *more)
        if found.why:
            self.missing[call] = found.why
        return found.value

    # -- what it is ----------------------------------------------------------------

    def _pci(self) -> Pci | None:
        plain = self._value("pci")
        if plain is None:
            return None
        generation, width = self._value("pcie_generation"), self._value("pcie_width")
        return Pci(**plain, generation=generation, width=width)

    def _ecc(self) -> Ecc | None:
        mode = self._value("ecc_mode")
        if mode is None:
            return None
        names = ("corrected", "uncorrected", "corrected_ever", "uncorrected_ever")
        counts = {name: self._value(f"ecc_{name}") for name in names}
        return Ecc(bool(mode[0]), bool(mode[1]), **counts)

    def _remapped(self) -> Remapped | None:
        rows = self._value("remapped_rows")
        if rows is None:
            return None
        corrected, uncorrected, pending, failed = rows
        return Remapped(corrected, uncorrected, bool(pending), bool(failed))

    def _fabric(self) -> Fabric | None:
        plain = self._value("fabric")
        return None if plain is None else Fabric(**plain)

    def _nvlinks(self) -> tuple[NvLink, ...] | None:
        """Return the links that are there; None where the device does not say (MIG mode)."""
        count = self._value("nvlink_count")
        if count is None:
            return None
        found = []
        for link in range(min(count, _MOST_LINKS)):
            state = self._read("nvlink_state", link)
            if state.why:
                continue
            remote = None
            if self._read("nvlink_remote_kind", link).value == _GPU_END:
                end = self._read("nvlink_remote_pci", link).value
                remote = None if end is None else end["address"]
            found.append(NvLink(link, bool(state.value), remote))
        return tuple(found)

    def _vgpus(self) -> tuple[Vgpu, ...] | None:
        """Return the types of vGPU; None on a host that has none."""
        supported = self._value("vgpu_supported")
        if supported is None:
            return None
        creatable = self._value("vgpu_creatable") or ()
        found = []
        for number in supported:
            name, memory = read("vgpu_name", number).value, read("vgpu_memory", number).value
            most = self._read("vgpu_most", number).value
            if None in (name, memory, most):
                continue
            profile = read("vgpu_gi_profile", number).value
            found.append(Vgpu(number, name, most, memory, number in creatable, profile))
        return tuple(found)

    def processes(self) -> tuple[Process, ...] | None:
        """Return who is on the device, by all lists; None when one of them is missing.

        In MIG mode the device's own list is empty, not refused, for who may not see it;
        each MIG device's is for everybody, so both are read.
        """
        found: dict[tuple[int, str, int | None, int | None], Process] = {}
        handles = [self._handle, *self._mig_devices().values()]
        for handle, kind in product(handles, _KINDS):
            listed = read(f"{kind}_processes", handle, about=self.uuid)
            if listed.why:
                if listed.why == _NOT_FOUND:
                    continue  # a MIG device that went while this was read
                self.missing[f"{kind}_processes"] = listed.why
                return None
            for one in listed.value:
                found[one["pid"], kind, one["gi"], one["ci"]] = Process(kind=kind, **one)
        return tuple(found.values())

    # -- MIG -----------------------------------------------------------------------

    def _with_mig(self, device: Device) -> Device:
        mode = self._value("mig_mode")
        if mode is None:
            return device
        profiles = self._profiles()
        device = replace(device, mig=bool(mode[0]), mig_pending=bool(mode[1]), profiles=profiles)
        if not device.mig:
            return device
        listed, why = self._listed(profiles)
        walked = self._walked()
        merged = _merge(listed, walked)
        # A profile that could not be read is one whose instances were not listed.
        why = why or self.missing.get("gi_profile", "") or self.missing.get("gi_placements", "")
        walked_only = [one for one in merged if None in {one.start, *_profiles_of(one)}]
        if walked_only and not why:
            why = "the walk sees instances that no profile lists"
        return replace(device, instances=merged, instances_why=why)

    def _profiles(self) -> tuple[MigProfile, ...]:
        """Return what can be made of the device, with the places where it may stand."""
        found = []
        for enum in range(_MOST_GI_PROFILES):
            info = self._read("gi_profile", enum)
            if info.why == _END_OF_LIST:
                break
            if info.why:
                if info.why != _NOT_SUPPORTED:
                    self.missing["gi_profile"] = info.why
                continue
            places = self._value("gi_placements", info.value["id"])
            if not places:
                continue
            remaining = self._read("gi_capacity", info.value["id"]).value
            found.append(
                MigProfile(
                    enum,
                    **info.value,
                    size=places[0][1],
                    starts=tuple(sorted(start for start, _ in places)),
                    remaining=remaining,
                )
            )
        return tuple(found)

    def _listed(self, profiles: Iterable[MigProfile]) -> tuple[list[GpuInstance], str]:
        """List instances by profile; return why that list is not whole, or an empty text."""
        found: list[GpuInstance] = []
        trouble = ""
        for profile in profiles:
            handles = self._read("gi_list", profile.id, profile.most)
            trouble = trouble or handles.why
            for handle in handles.value or ():
                info = read("gi_info", handle, about=self.uuid)
                if info.why:
                    trouble = trouble or info.why
                    continue
                compute, why = self._compute(handle, profile)
                trouble = trouble or why
                found.append(GpuInstance(**info.value, compute=compute))
        if trouble:
            self.missing["gi_list"] = trouble
        return found, trouble

    def _compute(
        self,
        instance: Any,
        profile: MigProfile,
    ) -> tuple[tuple[ComputeInstance, ...], str]:
        """List the compute instances of a GPU instance, by profile; and what went wrong."""
        found: list[ComputeInstance] = []
        trouble = ""
        for enum in range(_MOST_CI_PROFILES):
            kind = read("ci_profile", instance, enum, about=self.uuid)
            if kind.why == _END_OF_LIST:
                break
            if kind.why:
                trouble = trouble or ("" if kind.why == _NOT_SUPPORTED else kind.why)
                continue
            handles = read("ci_list", instance, kind.value["id"], profile.slices, about=self.uuid)
            trouble = trouble or handles.why
            for handle in handles.value or ():
                info = read("ci_info", handle, about=self.uuid)
                if info.why:
                    trouble = trouble or info.why
                    continue
                one, why = self._described(info.value, kind.value["slices"], profile)
                trouble = trouble or why
                found.append(one)
        return tuple(sorted(found, key=lambda one: one.ci)), trouble

    def _described(
        self, info: dict[str, Any], slices: int, profile: MigProfile
    ) -> tuple[ComputeInstance, str]:
        """Return a compute instance with what its MIG device says, and why that has no UUID.

        The device's handle is in the instance's own answer, so no walk is needed for it.
        """
        uuid = read("uuid", info["device"], about=self.uuid)
        memory = read("memory", info["device"], about=self.uuid).value
        name = profile.name
        if name is not None and slices < profile.slices:
            name = f"{slices}c.{name}"
        used_mib = None if memory is None else memory["used_mib"]
        return ComputeInstance(
            info["ci"], slices, uuid.value, info["profile"], info["start"], name, used_mib
        ), uuid.why

    def _mig_devices(self) -> dict[int, Any]:
        """Return the MIG devices by index: a slot without one is empty, no error (C03)."""
        found = {}
        for index in range(self._read("most_mig_devices").value or 0):
            handle = self._read("mig_device", index)
            if not handle.why:
                found[index] = handle.value
            elif handle.why not in (_NOT_FOUND, _NOT_SUPPORTED):
                self.missing[f"mig_device {index}"] = handle.why
        return found

    def _walked(self) -> dict[tuple[int, int], ComputeInstance]:
        """Return what a walk over the MIG devices sees, by GPU and compute instance."""
        found: dict[tuple[int, int], ComputeInstance] = {}
        for handle in self._mig_devices().values():
            names = ("mig_gi", "mig_ci", "mig_attributes", "uuid", "memory")
            got = {name: read(name, handle, about=self.uuid).value for name in names}
            if got["mig_gi"] is None or got["mig_ci"] is None:
                continue
            attributes, memory = got["mig_attributes"] or {}, got["memory"] or {}
            found[got["mig_gi"], got["mig_ci"]] = ComputeInstance(
                got["mig_ci"],
                attributes.get("ci_slices", 0),
                got["uuid"],
                used_mib=memory.get("used_mib"),
            )
        return found


def _profiles_of(instance: GpuInstance) -> set[int | None]:
    """Return the profiles of its compute instances; None for one that was not listed."""
    return {one.profile for one in instance.compute}


def _merge(
    listed: Iterable[GpuInstance], walked: dict[tuple[int, int], ComputeInstance]
) -> tuple[GpuInstance, ...]:
    """Put what only the walk has seen beside what was listed."""
    by_gi = {one.gi: one for one in listed}
    for (gi, ci), compute in walked.items():
        one = by_gi.get(gi, GpuInstance(gi, None, None, None))
        if all(each.ci != ci for each in one.compute):
            one = replace(one, compute=(*one.compute, compute))
        by_gi[gi] = one
    return tuple(by_gi[gi] for gi in sorted(by_gi))
