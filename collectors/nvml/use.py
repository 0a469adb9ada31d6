"""One sample of how a device is used: cheap enough for every second.

What a device does not tell is missing and stays so: in MIG mode NVML has no utilisation,
and a sample without it is not a sample of an idle device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from collectors.nvml.calls import read
from collectors.nvml.codes import Code, word
from collectors.nvml.readings import DeviceUse, InstanceUse, Memory, ProcessUse

if TYPE_CHECKING:
    from collectors.nvml.session import Session

__all__ = ["read_use"]

_NOT_FOUND = word(Code.NOT_FOUND)

#: Field of `DeviceUse` -> the call that gives it, and which part of what the call gives.
_FIELDS: dict[str, tuple[str, int | None]] = {
    "gpu_percent": ("utilization", 0),
    "memory_percent": ("utilization", 1),
    "encoder_percent": ("encoder", 0),
    "decoder_percent": ("decoder", 0),
    "power_mw": ("power", None),
    "energy_mj": ("energy", None),
    "temperature_c": ("temperature", None),
    "memory_temperature_c": ("memory_temperature", None),
    "graphics_mhz": ("graphics_clock", None),
    "sm_mhz": ("sm_clock", None),
    "memory_mhz": ("memory_clock", None),
    "video_mhz": ("video_clock", None),
    "clock_reasons": ("clock_reasons", None),
    "pcie_sent_kb_s": ("pcie_sent", None),
    "pcie_received_kb_s": ("pcie_received", None),
    "pcie_replays": ("pcie_replays", None),
}


def read_use(
    session: Session, uuid: str, *, instances: bool = False, since_us: int | None = None
) -> DeviceUse:
    """Sample a device. ``instances``: also memory of each GPU instance, by the walk.

    ``since_us`` asks for use by process since that stamp of the driver; None leaves it out.
    Clocks, power and temperature come within some milliseconds of each other, not at once;
    PCIe throughput is measured by the driver over 20 ms, which the call takes.
    """
    handle = session.handle(uuid)
    if handle.why:
        return DeviceUse(uuid, handle.why)
    missing: dict[str, str] = {}
    values: dict[str, Any] = {}
    for call in dict.fromkeys(call for call, _ in _FIELDS.values()):
        found = read(call, handle.value, about=uuid)
        values[call] = found.value
        if found.why:
            missing[call] = found.why
            if found.gone:
                return DeviceUse(uuid, found.why, missing=missing)
    memory = read("memory", handle.value, about=uuid)
    if memory.why:
        missing["memory"] = memory.why
    fields: dict[str, Any] = {
        field: _part(values[call], at) for field, (call, at) in _FIELDS.items()
    }
    return DeviceUse(
        uuid,
        memory=None if memory.value is None else Memory(**memory.value),
        **fields,
        instances=_instances(handle.value, uuid) if instances else (),
        processes=_processes(handle.value, uuid, since_us, missing),
        missing=missing,
    )


def _part(value: Any, at: int | None) -> int | None:
    whole: int | None = value if at is None or value is None else value[at]
    return whole


def _processes(
    handle: Any,
    uuid: str,
    since_us: int | None,
    missing: dict[str, str],
) -> tuple[ProcessUse, ...] | None:
    if since_us is None:
        return None
    found = read("process_utilization", handle, since_us, about=uuid)
    if found.why:
        missing["process_utilization"] = found.why
        return None
    return tuple(ProcessUse(**one) for one in found.value)


def _instances(handle: Any, uuid: str) -> tuple[InstanceUse, ...]:
    """Return memory by GPU instance: all compute instances of one show the same numbers."""
    found: dict[int, InstanceUse] = {}
    for index in range(read("most_mig_devices", handle, about=uuid).value or 0):
        device = read("mig_device", handle, index, about=uuid)
        if device.why == _NOT_FOUND:
            continue
        gi = read("mig_gi", device.value, about=uuid) if not device.why else device
        if gi.why or gi.value in found:
            continue
        memory = read("memory", device.value, about=uuid).value
        if memory is not None:
            found[gi.value] = InstanceUse(gi.value, memory["used_mib"], memory["total_mib"])
    return tuple(found.values())
