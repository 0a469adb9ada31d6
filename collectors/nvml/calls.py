"""The one place where NVML is called: what each call gives, in which unit, and why not.

`CALLS` is the table. `read` makes a call and never raises for what a device, a driver or a
right lacks: the value is then missing, with the reason, and never 0. `act` makes a call
that changes something, or that nothing goes on without, and raises `Refused`.

A call that hangs cannot be interrupted: before each one its function and the device are
written to the watch file, so that whoever waits can say which call it was.

Handles are opaque and good in this process only; UUIDs are what leaves it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from mmap import mmap
from typing import TYPE_CHECKING, Any, NamedTuple

from collectors.nvml import units
from collectors.nvml.bindings import Refused, invoke, library, use_library
from collectors.nvml.codes import ABSENT, GONE, Code, word

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "CALLS",
    "WATCH_BYTES",
    "Call",
    "Reading",
    "Refused",
    "act",
    "asleep",
    "library",
    "read",
    "use_library",
    "watch",
]

#: How much of the watch file is the name of the call that is being made.
WATCH_BYTES = 128


class Reading(NamedTuple):
    """A value, or the code that says why there is none."""

    value: Any
    code: Code = Code.SUCCESS

    @property
    def why(self) -> str:
        """Why there is no value; empty when there is one."""
        return "" if self.code is Code.SUCCESS else word(self.code)

    @property
    def absent(self) -> bool:
        """Whether the device or driver has no such thing, which is no fault."""
        return self.code in ABSENT

    @property
    def denied(self) -> bool:
        """Whether a right is missing."""
        return self.code == Code.NO_PERMISSION

    @property
    def gone(self) -> bool:
        """Whether the device is not there any more."""
        return self.code in GONE


@dataclass(frozen=True, slots=True)
class Call:
    """One call. ``functions`` are one or two: the second where a driver lacks the first.

    ``fixed`` are arguments after the caller's own. ``unit`` is of the value, empty for a
    name or number. ``right`` is what a process needs for it beside opening the device.
    """

    functions: tuple[str, ...]
    unit: str = ""
    convert: Callable[[Any], Any] | None = None
    fixed: tuple[Any, ...] = ()
    right: str = ""


def _call(
    function: str,
    unit: str = "",
    convert: Callable[[Any], Any] | None = None,
    *fixed: Any,
    older: str = "",
    right: str = "",
) -> Call:
    return Call((function, older) if older else (function,), unit, convert, fixed, right)


_NUMBER, _PAIR = units.whole, units.whole_pair
_ADMIN, _CONFIG = "admin", "mig-config"

#: Name -> call. The first argument is a handle, unless it says otherwise.
CALLS: dict[str, Call] = {
    # The node.
    "init": _call("nvmlInit"),
    "shutdown": _call("nvmlShutdown"),
    "driver": _call("nvmlSystemGetDriverVersion"),
    "library": _call("nvmlSystemGetNVMLVersion"),
    "cuda": _call("nvmlSystemGetCudaDriverVersion_v2", "1000 x major + 10 x minor", _NUMBER),
    "device_count": _call("nvmlDeviceGetCount", "devices", _NUMBER),
    # By index, and by UUID.
    "by_index": _call("nvmlDeviceGetHandleByIndex"),
    "by_uuid": _call("nvmlDeviceGetHandleByUUID"),
    # What a device is.
    "uuid": _call("nvmlDeviceGetUUID"),
    "name": _call("nvmlDeviceGetName"),
    "serial": _call("nvmlDeviceGetSerial"),
    "vbios": _call("nvmlDeviceGetVbiosVersion"),
    "minor": _call("nvmlDeviceGetMinorNumber", "", _NUMBER),
    "architecture": _call("nvmlDeviceGetArchitecture", "", _NUMBER),
    "capability": _call("nvmlDeviceGetCudaComputeCapability", "major, minor", _PAIR),
    "memory": _call(
        "nvmlDeviceGetMemoryInfo_v2", "MiB", units.memory, older="nvmlDeviceGetMemoryInfo"
    ),
    "pci": _call("nvmlDeviceGetPciInfo", "", units.pci),
    "pcie_generation": _call("nvmlDeviceGetCurrPcieLinkGeneration", "", _NUMBER),
    "pcie_width": _call("nvmlDeviceGetCurrPcieLinkWidth", "lanes", _NUMBER),
    "numa": _call("nvmlDeviceGetNumaNodeId", "", units.known),
    "persistence": _call("nvmlDeviceGetPersistenceMode", "0 or 1", _NUMBER),
    "compute_mode": _call("nvmlDeviceGetComputeMode", "", _NUMBER),
    "virtualization": _call("nvmlDeviceGetVirtualizationMode", "", _NUMBER),
    # MIG: what could be.
    "mig_mode": _call("nvmlDeviceGetMigMode", "current, pending: 0 or 1", _PAIR),
    "resetless_mig": _call("nvmlDeviceGetFieldValues", "0 or 1", _NUMBER, 184),
    # (handle, enum), (handle, profile id), (handle, profile id)
    "gi_profile": _call(
        "nvmlDeviceGetGpuInstanceProfileInfo",
        "MiB",
        units.gi_profile,
        older="nvmlDeviceGetGpuInstanceProfileInfo_v1",
    ),
    "gi_placements": _call("nvmlDeviceGetGpuInstancePossiblePlacements", "placement units"),
    # MIG: what is. (handle, profile id, most); (handle, gi); then handles of instances.
    "gi_list": _call("nvmlDeviceGetGpuInstances", right=_CONFIG),
    "gi_by_id": _call("nvmlDeviceGetGpuInstanceById", right=_CONFIG),
    "gi_info": _call("nvmlGpuInstanceGetInfo", "", units.gi_info, right=_CONFIG),
    "ci_profile": _call(
        "nvmlGpuInstanceGetComputeInstanceProfileInfo",
        "",
        units.ci_profile,
        older="nvmlGpuInstanceGetComputeInstanceProfileInfo_v1",
        right=_CONFIG,
    ),
    "ci_list": _call("nvmlGpuInstanceGetComputeInstances", right=_CONFIG),
    "ci_by_id": _call("nvmlGpuInstanceGetComputeInstanceById", right=_CONFIG),
    "ci_info": _call("nvmlComputeInstanceGetInfo", "", units.ci_info, right=_CONFIG),
    "most_mig_devices": _call("nvmlDeviceGetMaxMigDeviceCount", "devices", _NUMBER),
    # (handle, index): not-found is an empty slot (C03)
    "mig_device": _call("nvmlDeviceGetMigDeviceHandleByIndex"),
    "mig_attributes": _call("nvmlDeviceGetAttributes", "MiB", units.mig_attributes),
    "mig_gi": _call("nvmlDeviceGetGpuInstanceId", "", _NUMBER),
    "mig_ci": _call("nvmlDeviceGetComputeInstanceId", "", _NUMBER),
    # MIG: changes. (handle, mode) -> the activation status, which is not the call's code;
    # (handle, profile id, start, size); (GPU instance, profile id, start, size).
    "set_mig_mode": _call("nvmlDeviceSetMigMode", "code", _NUMBER, right=_ADMIN),
    "create_gi": _call("nvmlDeviceCreateGpuInstanceWithPlacement", right=_CONFIG),
    "destroy_gi": _call("nvmlGpuInstanceDestroy", right=_CONFIG),
    "create_ci": _call("nvmlGpuInstanceCreateComputeInstanceWithPlacement", right=_CONFIG),
    "destroy_ci": _call("nvmlComputeInstanceDestroy", right=_CONFIG),
    # Who is on it. A list without the right is empty, not refused.
    "compute_processes": _call(
        "nvmlDeviceGetComputeRunningProcesses", "MiB", units.processes, right="processes"
    ),
    "graphics_processes": _call(
        "nvmlDeviceGetGraphicsRunningProcesses", "MiB", units.processes, right="processes"
    ),
    "mps_processes": _call(
        "nvmlDeviceGetMPSComputeRunningProcesses", "MiB", units.processes, right="processes"
    ),
    # Health.
    "ecc_mode": _call("nvmlDeviceGetEccMode", "current, pending: 0 or 1", _PAIR),
    "ecc_corrected": _call("nvmlDeviceGetTotalEccErrors", "errors", _NUMBER, 0, 0),
    "ecc_uncorrected": _call("nvmlDeviceGetTotalEccErrors", "errors", _NUMBER, 1, 0),
    "ecc_corrected_ever": _call("nvmlDeviceGetTotalEccErrors", "errors", _NUMBER, 0, 1),
    "ecc_uncorrected_ever": _call("nvmlDeviceGetTotalEccErrors", "errors", _NUMBER, 1, 1),
    "remapped_rows": _call(
        "nvmlDeviceGetRemappedRows", "corrected, uncorrected, pending, failed", _PAIR
    ),
    "recovery_action": _call("nvmlDeviceGetFieldValues", "", _NUMBER, 230),
    # Links. (handle, link)
    "nvlink_count": _call("nvmlDeviceGetFieldValues", "links", _NUMBER, 91),
    "nvlink_state": _call("nvmlDeviceGetNvLinkState", "0 or 1", _NUMBER),
    "nvlink_remote_kind": _call("nvmlDeviceGetNvLinkRemoteDeviceType", "", _NUMBER),
    "nvlink_remote_pci": _call("nvmlDeviceGetNvLinkRemotePciInfo", "", units.pci),
    "fabric": _call("nvmlDeviceGetGpuFabricInfoV", "", units.fabric),
    # vGPU. (handle), (handle), (type), (handle, type), (type), (type)
    "vgpu_supported": _call("nvmlDeviceGetSupportedVgpus", "", _PAIR),
    "vgpu_creatable": _call("nvmlDeviceGetCreatableVgpus", "", _PAIR),
    "vgpu_name": _call("nvmlVgpuTypeGetName"),
    "vgpu_most": _call("nvmlVgpuTypeGetMaxInstances", "instances", _NUMBER),
    "vgpu_memory": _call("nvmlVgpuTypeGetFramebufferSize", "MiB", units.mib_down),
    "vgpu_gi_profile": _call("nvmlVgpuTypeGetGpuInstanceProfileId", "", units.known),
    # Use.
    "utilization": _call(
        "nvmlDeviceGetUtilizationRates", "percent", lambda one: (int(one.gpu), int(one.memory))
    ),
    # (handle, since us)
    "process_utilization": _call(
        "nvmlDeviceGetProcessUtilization", "percent", units.process_use, right="processes"
    ),
    "encoder": _call("nvmlDeviceGetEncoderUtilization", "percent, period us", _PAIR),
    "decoder": _call("nvmlDeviceGetDecoderUtilization", "percent, period us", _PAIR),
    "encoder_capacity": _call("nvmlDeviceGetEncoderCapacity", "percent", _NUMBER, 0),
    "encoder_stats": _call("nvmlDeviceGetEncoderStats", "sessions, frames/s, us", _PAIR),
    "power": _call("nvmlDeviceGetPowerUsage", "mW", _NUMBER),
    "power_limit": _call("nvmlDeviceGetPowerManagementLimit", "mW", _NUMBER),
    "energy": _call("nvmlDeviceGetTotalEnergyConsumption", "mJ", _NUMBER),
    "temperature": _call("nvmlDeviceGetTemperature", "degrees Celsius", _NUMBER, 0),
    "slowdown": _call("nvmlDeviceGetTemperatureThreshold", "degrees Celsius", _NUMBER, 1),
    "memory_temperature": _call("nvmlDeviceGetFieldValues", "degrees Celsius", _NUMBER, 82),
    "graphics_clock": _call("nvmlDeviceGetClockInfo", "MHz", _NUMBER, 0),
    "sm_clock": _call("nvmlDeviceGetClockInfo", "MHz", _NUMBER, 1),
    "memory_clock": _call("nvmlDeviceGetClockInfo", "MHz", _NUMBER, 2),
    "video_clock": _call("nvmlDeviceGetClockInfo", "MHz", _NUMBER, 3),
    "clock_reasons": _call(
        "nvmlDeviceGetCurrentClocksEventReasons",
        "bits",
        _NUMBER,
        older="nvmlDeviceGetCurrentClocksThrottleReasons",
    ),
    "pcie_sent": _call("nvmlDeviceGetPcieThroughput", "KB/s", _NUMBER, 0),
    "pcie_received": _call("nvmlDeviceGetPcieThroughput", "KB/s", _NUMBER, 1),
    "pcie_replays": _call("nvmlDeviceGetPcieReplayCounter", "replays", _NUMBER),
    # One call for what a sample of use takes from fields: memory's temperature, energy (mJ),
    # PCIe replays, power now (mW), bytes sent and received over PCIe since the driver's start.
    "use_fields": _call(
        "nvmlDeviceGetFieldValues", "", units.whole_or_none, (82, 83, 94, 186, 197, 198)
    ),
    # GPM: counters of Hopper and later. (handle, sample), (handle, gi, sample), (s1, s2, ids)
    "gpm_support": _call(
        "nvmlGpmQueryDeviceSupport", "0 or 1", lambda one: int(one.isSupportedDevice)
    ),
    "gpm_alloc": _call("nvmlGpmSampleAlloc"),
    "gpm_free": _call("nvmlGpmSampleFree"),
    "gpm_sample": _call("nvmlGpmSampleGet"),
    "gpm_mig_sample": _call("nvmlGpmMigSampleGet"),
    "gpm_metrics": _call("nvmlGpmMetricsGet", "permille", units.permille),
    # Events. (handle), (handle, types, set), (set, wait ms)
    "event_types": _call("nvmlDeviceGetSupportedEventTypes", "bits", _NUMBER),
    "event_set": _call("nvmlEventSetCreate"),
    "event_register": _call("nvmlDeviceRegisterEvents", right="processes"),
    "event_wait": _call("nvmlEventSetWait", "", units.event),
    "event_free": _call("nvmlEventSetFree"),
}

#: Codes on which the older function of a call is tried.
_TRY_OLDER = frozenset({Code.FUNCTION_NOT_FOUND, Code.ARGUMENT_VERSION_MISMATCH})

#: The watch file as memory: it says what is called without a call of its own, and what was
#: written is there for whoever reads the file also when this process is killed.
_watched: mmap | None = None


def watch(fd: int | None) -> None:
    """Write the name of each call to this file before it is made; None: do not."""
    global _watched  # noqa: PLW0603 - a process has one library, and one who watches it
    if fd is None:
        _watched = None
        return
    os.ftruncate(fd, WATCH_BYTES)
    _watched = mmap(fd, WATCH_BYTES)


def asleep(number: int) -> None:
    """Write into the watch file that no call is being made.

    ``number`` differs from pause to pause, so that several looks are not taken for one call
    that hangs.
    """
    if _watched is not None:
        _watched[:] = _label("asleep", str(number))


@lru_cache(maxsize=4096)
def _label(function: str, about: str) -> bytes:
    """Return what the watch file says of a call: a round makes the same ones every second."""
    return f"{function} {about}".encode()[:WATCH_BYTES].ljust(WATCH_BYTES)


def read(name: str, *arguments: Any, about: str = "") -> Reading:
    """Make a call of the table; ``about`` is the device's UUID, for the watch file.

    Never raises `Refused`: what is not there has a reason instead of a value.
    """
    try:
        return Reading(act(name, *arguments, about=about))
    except Refused as refused:
        return Reading(None, refused.code)


def act(name: str, *arguments: Any, about: str = "") -> Any:
    """Make a call of the table and return its value; raise `Refused`."""
    call = CALLS[name]
    if _watched is not None:
        _watched[:] = _label(call.functions[0], about)
    first, *older = call.functions
    given = (*arguments, *call.fixed) if call.fixed else arguments
    try:
        value = invoke(first, given)
    except Refused as refused:
        if not older or refused.code not in _TRY_OLDER:
            raise
        value = invoke(older[0], given)
    return value if call.convert is None else call.convert(value)
