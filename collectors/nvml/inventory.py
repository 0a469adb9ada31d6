"""Read a device, whole, by its UUID: what it is, what is on it, and how it is.

GPU instances are listed profile by profile as well as found by the walk over MIG devices:
one without a compute instance is no MIG device, so the walk alone would not see what takes
its place; the walk alone is what is left where the right to list is missing.

What a device is, and what can be made of it, is asked once in a MIG mode
(`session.Kept.once`); what is on it and how it is, at every reading.
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
from collectors.nvml.session import Unit
from collectors.nvml.units import address
from collectors.nvml.vital import begin, vital
from collectors.nvml.walked import merge, profiles_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from collectors.nvml.session import Kept, Session

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

#: Field of `Device` -> the one call that gives it: those that answer the same as long as the
#: device is in one MIG mode, and those that do not. A name does not change, but it is the
#: first thing that a sick device fails to tell.
_SAME = {
    **{one: one for one in ("serial", "vbios", "minor", "architecture", "capability", "numa")},
    "virtualization": "virtualization",
    "encoder_capacity_percent": "encoder_capacity",
}
_NOW = {
    "model": "name",
    **{one: one for one in ("persistence", "compute_mode", "recovery_action")},
}


def read_device(session: Session, uuid: str, *, watched: bool = False) -> Device:
    """Read everything of a device. One that cannot be reached has ``why`` and little else.

    ``watched``: whoever asks goes round the devices, and is told by `pulse` of what differs.
    """
    handle = session.handle(uuid)
    if handle.why:
        return Device(uuid, handle.why)
    kept = session.kept(uuid)
    if watched:
        kept.vital = vital(handle.value, uuid, kept)
    return DeviceReader(uuid, handle.value, kept).device()


def read_processes(session: Session, uuid: str) -> tuple[Process, ...] | None:
    """Return who is on a device, from all three lists; None when any could not be read.

    A list that is missing must not look like nobody: a release rests on it.
    """
    handle = session.handle(uuid)
    if handle.why:
        return None
    return DeviceReader(uuid, handle.value, session.kept(uuid)).processes()


class DeviceReader:
    """Reads one device and notes what was missing, and why."""

    def __init__(self, uuid: str, handle: Any, kept: Kept) -> None:
        """Read through this handle; ``kept`` is what was read before."""
        self.uuid = uuid
        self.missing: dict[str, str] = {}
        self._handle = handle
        self._kept = kept
        self._walk: dict[int, Any] | None = None
        #: Handle of a MIG device that was listed -> its GPU and compute instance.
        self._places: dict[int, tuple[int, int]] = {}

    def device(self) -> Device:
        """Read everything. Losing the device on the way is ``why``, and ends it there."""
        begin(self._handle, self.uuid, self._kept)
        found: dict[str, Any] = {}
        for field, call in (_NOW | _SAME).items():
            found[field] = self._same(call) if field in _SAME else self._value(call)
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

    def _once(self, call: str, *more: Any) -> Reading:
        """Make a call that answers the same every time in this MIG mode, if it was not made."""
        key = (call, *more)
        return self._kept.once(key, call, self._handle, *more, about=self.uuid)

    def _same(self, call: str, *more: Any) -> Any:
        """Return what such a call gives; note why it gives nothing."""
        found = self._once(call, *more)
        if found.why:
            self.missing[call] = found.why
        return found.value

    # -- what it is ----------------------------------------------------------------

    def _pci(self) -> Pci | None:
        plain = self._same("pci")
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
            if self._once("nvlink_remote_kind", link).value == _GPU_END:
                end = self._once("nvlink_remote_pci", link).value
                remote = None if end is None else end["address"]
            found.append(NvLink(link, bool(state.value), remote))
        return tuple(found)

    def _vgpus(self) -> tuple[Vgpu, ...] | None:
        """Return the types of vGPU; None on a host that has none."""
        supported = self._same("vgpu_supported")
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
        walked = self._walked({(one.gi, each.ci): each for one in listed for each in one.compute})
        merged = merge(listed, walked)
        # A profile that could not be read is one whose instances were not listed.
        why = why or self.missing.get("gi_profile", "") or self.missing.get("gi_placements", "")
        walked_only = [one for one in merged if None in {one.start, *profiles_of(one)}]
        if walked_only and not why:
            why = "the walk sees instances that no profile lists"
        return replace(device, instances=merged, instances_why=why)

    def _profiles(self) -> tuple[MigProfile, ...]:
        """Return what can be made of the device, with the places where it may stand."""
        found = []
        for enum in range(_MOST_GI_PROFILES):
            info = self._once("gi_profile", enum)
            if info.why == _END_OF_LIST:
                break
            if info.why:
                if info.why != _NOT_SUPPORTED:
                    self.missing["gi_profile"] = info.why
                continue
            places = self._same("gi_placements", info.value["id"])
            if not places:
                continue
            found.append(
                MigProfile(
                    enum,
                    **info.value,
                    size=places[0][1],
                    starts=tuple(sorted(start for start, _ in places)),
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
                compute, why = self._compute(handle, profile, info.value["gi"])
                trouble = trouble or why
                found.append(GpuInstance(**info.value, compute=compute))
        if trouble:
            self.missing["gi_list"] = trouble
        return found, trouble

    def _compute(
        self,
        instance: Any,
        profile: MigProfile,
        gi: int,
    ) -> tuple[tuple[ComputeInstance, ...], str]:
        """List the compute instances of a GPU instance, by profile; and what went wrong."""
        found: list[ComputeInstance] = []
        trouble = ""
        for enum in range(_MOST_CI_PROFILES):
            key = ("ci_profile", profile.id, enum)
            kind = self._kept.once(key, "ci_profile", instance, enum, about=self.uuid)
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
                self._places[address(info.value["device"])] = (gi, one.ci)
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
        if self._walk is not None:
            return self._walk
        found = {}
        for index in range(self._once("most_mig_devices").value or 0):
            handle = self._read("mig_device", index)
            if not handle.why:
                found[index] = handle.value
            elif handle.why not in (_NOT_FOUND, _NOT_SUPPORTED):
                self.missing[f"mig_device {index}"] = handle.why
        self._walk = found
        return found

    def _walked(
        self, listed: dict[tuple[int, int], ComputeInstance]
    ) -> dict[tuple[int, int], ComputeInstance]:
        """Return what only a walk over the MIG devices sees, by GPU and compute instance."""
        found: dict[tuple[int, int], ComputeInstance] = {}
        units = []
        for handle in self._mig_devices().values():
            gi, ci = self._places.get(address(handle)) or self._place(handle)
            if gi is None or ci is None:
                continue
            one = listed.get((gi, ci)) or self._seen(handle, ci)
            units.append(Unit(gi, ci, one.uuid, handle))
            if (gi, ci) not in listed:
                found[gi, ci] = one
        self._kept.units = tuple(units)
        return found

    def _place(self, handle: Any) -> list[int | None]:
        return [read(name, handle, about=self.uuid).value for name in ("mig_gi", "mig_ci")]

    def _seen(self, handle: Any, ci: int) -> ComputeInstance:
        """Return a compute instance that was not listed, as its MIG device says it is."""
        names = ("mig_attributes", "uuid", "memory")
        got = {name: read(name, handle, about=self.uuid).value for name in names}
        attributes, memory = got["mig_attributes"] or {}, got["memory"] or {}
        slices = attributes.get("ci_slices", 0)
        return ComputeInstance(ci, slices, got["uuid"], used_mib=memory.get("used_mib"))
