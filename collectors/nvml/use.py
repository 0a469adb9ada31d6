"""Samples of how devices are used: all devices of a node at one question, every second.

What a device does not tell is missing and stays so: in MIG mode NVML has no utilisation,
and a sample without it is not a sample of an idle device. There GPM has it for each GPU
instance, on boards that have GPM: a counter's value is of the time between two samples, so
the first one of an instance has none. What a device lacks is asked for once in a MIG mode.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from collectors.nvml.calls import read
from collectors.nvml.codes import IMPLAUSIBLE
from collectors.nvml.gpm import Counters, counters
from collectors.nvml.readings import DeviceUse, InstanceUse, Memory, Process, ProcessUse
from collectors.nvml.session import Unit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from collectors.nvml.calls import Reading
    from collectors.nvml.session import Kept, Session

__all__ = ["read_use", "read_uses"]

#: Field of `DeviceUse` -> the call that gives it, and which part of what the call gives: what
#: every sample has, and what one has beside it that reads counters too, or is a wide one.
_Fields = dict[str, tuple[str, int | None]]
_ALWAYS: _Fields = {
    "gpu_percent": ("utilization", 0),
    "memory_percent": ("utilization", 1),
    "encoder_percent": ("encoder", 0),
    "decoder_percent": ("decoder", 0),
    "clock_reasons": ("clock_reasons", None),
}
_COUNTED: _Fields = {
    "temperature_c": ("temperature", None),
    "sm_mhz": ("sm_clock", None),
}
_WIDE: _Fields = {
    "memory_mhz": ("memory_clock", None),
    "video_mhz": ("video_clock", None),
    "memory_temperature_c": ("use_fields", 0),
    "energy_mj": ("use_fields", 1),
    "pcie_replays": ("use_fields", 2),
    "power_mw": ("use_fields", 3),
    "pcie_sent_bytes": ("use_fields", 4),
    "pcie_received_bytes": ("use_fields", 5),
}
#: Asked where the field was missing, as older drivers have it; and what takes long: PCIe
#: throughput is measured by the driver over 20 ms for each direction, in which it is waited for.
_INSTEAD = {
    "power_mw": "power",
    "energy_mj": "energy",
    "memory_temperature_c": "memory_temperature",
    "pcie_replays": "pcie_replays",
}
_SLOW = {
    "graphics_mhz": "graphics_clock",
    "pcie_sent_kb_s": "pcie_sent",
    "pcie_received_kb_s": "pcie_received",
}

_PERCENT, _WHOLE_PERCENT = "_percent", 100
_PARTS = ("sm_percent", "memory_percent", "encoder_percent", "decoder_percent")


def read_uses(
    session: Session,
    uuids: Iterable[str],
    *,
    wide: bool = True,
    counted: bool = True,
    since_us: Mapping[str, int] | None = None,
) -> list[DeviceUse]:
    """Sample devices. ``since_us`` asks who used them since that stamp of the driver, by UUID."""
    since = since_us or {}
    return [
        read_use(session, uuid, wide=wide, counted=counted, since_us=since.get(uuid))
        for uuid in uuids
    ]


def read_use(
    session: Session,
    uuid: str,
    *,
    wide: bool = True,
    counted: bool = True,
    slow: bool = False,
    since_us: int | None = None,
) -> DeviceUse:
    """Sample a device. ``wide``: also memory and what changes slowly or only goes up.

    ``counted``: also GPM's counters, of all the time since they were read last, and what
    changes within seconds: temperature and clock.
    ``slow``: also what takes the driver tens of milliseconds. ``since_us`` asks for use by
    process since that stamp of the driver; None leaves it out. Clocks, power and temperature
    come within some milliseconds of each other, not at once.
    """
    handle = session.handle(uuid)
    if handle.why:
        return DeviceUse(uuid, handle.why)
    kept = session.kept(uuid)
    found = _Sample(handle.value, uuid, kept)
    fields = found.fields(_ALWAYS)
    if counted:
        fields |= found.fields(_COUNTED)
    if wide:
        fields |= found.fields(_WIDE)
        for field, call in _INSTEAD.items():
            if fields[field] is None:
                fields[field] = found.value(call)
    if slow:
        fields |= {field: found.value(call) for field, call in _SLOW.items()}
    memory = found.value("memory") if wide else None
    if found.lost:
        return DeviceUse(uuid, found.lost, missing=found.missing)
    whole = counters(kept, handle.value, uuid, None) if counted else Counters()
    # In MIG mode the whole device's counters are nobody's: each instance has its own.
    units = _units(kept, handle.value, uuid)
    return DeviceUse(
        uuid,
        memory=None if memory is None else Memory(**memory),
        **fields,
        sm_permille=whole.sm,
        dram_permille=whole.dram,
        instances=_instances(kept, handle.value, uuid, units, wide=wide) if counted else (),
        processes=None if since_us is None else found.processes(since_us),
        holders=None if since_us is None else found.holders(units),
        missing=found.missing,
    )


def _part(value: Any, at: int | None) -> int | None:
    whole: int | None = value if at is None or value is None else value[at]
    return whole


class _Sample:
    """Asks one device, and notes what is missing and why."""

    def __init__(self, handle: Any, uuid: str, kept: Kept) -> None:
        self.missing: dict[str, str] = {}
        self.lost = ""
        self._handle = handle
        self._uuid = uuid
        self._kept = kept

    def value(self, call: str) -> Any:
        return self._noted(call, self._kept.unless_absent(call, self._handle, about=self._uuid))

    def fields(self, wanted: _Fields) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for call, _ in wanted.values():
            if call not in values:
                values[call] = self.value(call)
        return {
            field: self._plausible(field, call, _part(values[call], at))
            for field, (call, at) in wanted.items()
        }

    def _plausible(self, field: str, call: str, value: int | None) -> int | None:
        """Return the value; of a part of a hundred more than that is no reading, and missing."""
        if value is None or not field.endswith(_PERCENT) or 0 <= value <= _WHOLE_PERCENT:
            return value
        self.missing[call] = IMPLAUSIBLE
        return None

    def _noted(self, call: str, found: Reading) -> Any:
        if found.why:
            self.missing[call] = found.why
            if found.gone:
                self.lost = found.why
        return found.value

    def processes(self, since_us: int) -> tuple[ProcessUse, ...] | None:
        call = "process_utilization"
        found = self._kept.readings.get(call)
        if found is None:
            found = read(call, self._handle, since_us, about=self._uuid)
            if found.absent:
                self._kept.readings[call] = found
        listed = self._noted(call, found)
        if listed is None:
            return None
        parts = [self._plausible(name, call, one[name]) for one in listed for name in _PARTS]
        # Some drivers tell such numbers of a process: whose part is whose is then not known.
        return None if None in parts else tuple([ProcessUse(**one) for one in listed])

    def holders(self, units: tuple[Unit, ...]) -> tuple[Process, ...] | None:
        """Return who has memory of the device or of its MIG devices; None: it cannot be said."""
        found: dict[int, Process] = {}
        for handle in (self._handle, *(one.handle for one in units)):
            listed = self._noted(
                "compute_processes", read("compute_processes", handle, about=self._uuid)
            )
            if listed is None:
                return None
            found |= {one["pid"]: Process(kind="compute", **one) for one in listed}
        return tuple(found.values())


def _units(kept: Kept, handle: Any, uuid: str) -> tuple[Unit, ...]:
    """Return the device's MIG devices, by a walk where nobody has gone it since a change."""
    if kept.units is None:
        found = []
        most = kept.once("most_mig_devices", "most_mig_devices", handle, about=uuid).value or 0
        for index in range(most):
            device = read("mig_device", handle, index, about=uuid).value
            if device is None:
                continue
            names = ("mig_gi", "mig_ci", "uuid")
            gi, ci, name = (read(call, device, about=uuid).value for call in names)
            if gi is not None and ci is not None:
                found.append(Unit(gi, ci, name, device))
        kept.units = tuple(found)
    return kept.units


def _instances(
    kept: Kept, handle: Any, uuid: str, units: tuple[Unit, ...], *, wide: bool
) -> tuple[InstanceUse, ...]:
    """Return counters, and memory if ``wide``, by GPU instance: all inside it share them."""
    by_gi: dict[int, list[Unit]] = {}
    for one in units:
        by_gi.setdefault(one.gi, []).append(one)
    found = []
    for gi, inside in by_gi.items():
        memory = None
        if wide:
            memory = read("memory", inside[0].handle, about=uuid).value
            if memory is None:
                # Somebody else has changed the partitions: look for them anew the next time.
                kept.touched()
                return ()
        now = counters(kept, handle, uuid, gi)
        found.append(
            InstanceUse(
                gi,
                memory and memory["used_mib"],
                memory and memory["total_mib"],
                tuple([one.uuid for one in inside if one.uuid is not None]),
                now.busy,
                now.sm,
                now.dram,
            )
        )
    return tuple(found)
