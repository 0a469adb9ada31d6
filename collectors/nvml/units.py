"""From what ``pynvml`` returns to plain values in the units that reports have. Pure."""

from __future__ import annotations

from ctypes import c_void_p, cast
from typing import Any
from uuid import UUID

from collectors.nvml.codes import NO_VALUE

__all__ = [
    "address",
    "ci_info",
    "ci_profile",
    "event",
    "fabric",
    "gi_info",
    "gi_profile",
    "known",
    "memory",
    "mib_down",
    "mig_attributes",
    "pci",
    "permille",
    "process_use",
    "processes",
    "profile_name",
    "whole",
    "whole_or_none",
    "whole_pair",
]

_MIB = 1_048_576
#: What NVML's own structures print before a profile: ``MIG 1g.10gb``.
_PREFIX = "MIG "
#: A fabric that has come up; before, its cluster and clique say nothing.
_COMPLETED = 3


def whole(value: Any) -> int:
    """Return an integer."""
    return int(getattr(value, "value", value))


def whole_pair(value: Any) -> tuple[int, ...]:
    """Return a tuple of integers."""
    return tuple(map(whole, value))


def whole_or_none(values: Any) -> tuple[int | None, ...]:
    """Return integers, and what is missing as missing."""
    return tuple(None if one is None else int(one) for one in values)


def known(value: Any) -> int | None:
    """Return an id; None for the number by which NVML says that there is none."""
    number = whole(value)
    return None if number == NO_VALUE else number


def mib_down(size: Any) -> int:
    """Return bytes as whole MiB, less a rest: what there is is never made larger."""
    return int(size) // _MIB


def _mib_up(size: int) -> int:
    """Return bytes as MiB, a rest as one more: what is used is never made smaller (C15)."""
    return -(-int(size) // _MIB)


def memory(info: Any) -> dict[str, int | None]:
    """Return MiB of memory. ``reserved_mib`` is None where the driver counts it as used."""
    reserved = getattr(info, "reserved", None)
    return {
        "total_mib": mib_down(info.total),
        "reserved_mib": None if reserved is None else _mib_up(reserved),
        "used_mib": _mib_up(info.used),
        "free_mib": mib_down(info.free),
    }


def pci(info: Any) -> dict[str, int | str]:
    """Return the address as sysfs writes it (``0000:01:00.0``), and the ids."""
    domain, _, rest = info.busId.partition(":")
    return {
        "address": f"{int(domain, 16):04x}:{rest.lower()}",
        "device_id": int(info.pciDeviceId),
        "subsystem_id": int(info.pciSubSystemId),
    }


def profile_name(name: str) -> str | None:
    """Return a profile's name without NVML's prefix; None where it is empty."""
    return name.removeprefix(_PREFIX) or None


def gi_profile(info: Any) -> dict[str, Any]:
    """Return a GPU instance profile; ``name`` is None where the old call gave it."""
    return {
        "id": int(info.id),
        "name": profile_name(getattr(info, "name", "")),
        "slices": int(info.sliceCount),
        "most": int(info.instanceCount),
        "memory_mib": int(info.memorySizeMB),
        "sms": int(info.multiprocessorCount),
        "copy_engines": int(info.copyEngineCount),
        "decoders": int(info.decoderCount),
        "encoders": int(info.encoderCount),
        "jpegs": int(info.jpegCount),
        "ofas": int(info.ofaCount),
    }


def ci_profile(info: Any) -> dict[str, Any]:
    """Return a compute instance profile."""
    return {
        "id": int(info.id),
        "name": profile_name(getattr(info, "name", "")),
        "slices": int(info.sliceCount),
        "most": int(info.instanceCount),
        "sms": int(info.multiprocessorCount),
    }


def gi_info(info: Any) -> dict[str, int]:
    """Return a GPU instance: its id, the id of its profile, and its place."""
    return {
        "gi": int(info.id),
        "profile": int(info.profileId),
        "start": int(info.placement.start),
        "size": int(info.placement.size),
    }


def ci_info(info: Any) -> dict[str, Any]:
    """Return a compute instance. ``device`` is the handle of its MIG device."""
    return {
        "ci": int(info.id),
        "profile": int(info.profileId),
        "start": int(info.placement.start),
        "size": int(info.placement.size),
        "device": info.device,
    }


def mig_attributes(info: Any) -> dict[str, int]:
    """Return what a MIG device has."""
    return {
        "sms": int(info.multiprocessorCount),
        "gi_slices": int(info.gpuInstanceSliceCount),
        "ci_slices": int(info.computeInstanceSliceCount),
        "memory_mib": int(info.memorySizeMB),
    }


def processes(listed: Any) -> list[dict[str, int | None]]:
    """Return processes; memory in MiB, None where it is not told."""
    return [
        {
            "pid": int(one.pid),
            "used_mib": None if one.usedGpuMemory is None else _mib_up(one.usedGpuMemory),
            "gi": known(one.gpuInstanceId),
            "ci": known(one.computeInstanceId),
        }
        for one in listed
    ]


def process_use(listed: Any) -> list[dict[str, int]]:
    """Return the use by process: percent, and the driver's stamp (us)."""
    return [
        {
            "pid": int(one.pid),
            "at_us": int(one.timeStamp),
            "sm_percent": int(one.smUtil),
            "memory_percent": int(one.memUtil),
            "encoder_percent": int(one.encUtil),
            "decoder_percent": int(one.decUtil),
        }
        for one in listed
    ]


def fabric(info: Any) -> dict[str, Any] | None:
    """Return the NVLink fabric's cluster and clique, None for a device that is in none."""
    cluster = UUID(bytes=bytes(info.clusterUuid))
    if info.state != _COMPLETED or not cluster.int:
        return None
    return {"cluster": str(cluster), "clique": int(info.cliqueId)}


def event(data: Any) -> dict[str, Any]:
    """Return an event. ``device`` is a handle; gi and ci None: the whole of what is above."""
    return {
        "device": data.device,
        "type": int(data.eventType),
        "data": int(data.eventData),
        "gi": known(data.gpuInstanceId),
        "ci": known(data.computeInstanceId),
    }


def address(handle: Any) -> int:
    """Return where a handle points, by which two handles of one device are known as one."""
    return cast(handle, c_void_p).value or 0


def permille(values: Any) -> list[int | None]:
    """Return percentages as thousandths, and what is missing as missing."""
    return [None if one is None else round(one * 10) for one in values]
