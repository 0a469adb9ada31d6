"""What a node's devices were used for in a window: samples added up. Pure.

A sample stands for the time since the one before; where that one is missing, for no more than
the samples are apart. A mean is over the time that was sampled, and says how long that was.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from collectors.nvml.codes import ABSENT, IMPLAUSIBLE, word
from schemas.usage import DeviceUsage, ProcessUsage, SliceUsage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from collectors.nvml.readings import DeviceUse, InstanceUse
    from schemas.base import Model

__all__ = ["Window", "busy_of", "has_no_engines", "work_of"]

#: Means of a device: field of the record -> what a sample has of it.
_MEANS: dict[str, Callable[[DeviceUse], int | None]] = {
    "busy_permille": lambda one: _permille(one.gpu_percent),
    "encoder_permille": lambda one: _permille(one.encoder_percent),
    "decoder_permille": lambda one: _permille(one.decoder_percent),
}
#: Means, by the same name in both, of what only samples have which read counters.
_COUNTED = ("sm_permille", "dram_permille", "sm_mhz")
#: What the last sample says, of those that are asked for everything.
_LAST = ("memory_temperature_c", "memory_mhz", "video_mhz", "power_mw")
#: Counters: the record has by how much they went up in the window.
_COUNTERS = {
    "energy_mj": "energy_mj",
    "pcie_sent_bytes": "pcie_sent_bytes",
    "pcie_received_bytes": "pcie_received_bytes",
    "pcie_replays": "pcie_replays",
}


#: Calls that tell of an engine, and why one may tell nothing without anything being wrong.
_ENGINES = ("utilization", "encoder", "decoder")
_ABSENT = [word(one) for one in ABSENT]


def _permille(percent: int | None) -> int | None:
    return None if percent is None else 10 * percent


def busy_of(use: DeviceUse) -> dict[str, int | None]:
    """Return how busy each unit of a device is (thousandths), by UUID; None: not measured.

    The counters of a GPU instance are those of a compute instance that is alone in it.
    """
    found = {use.uuid: None if use.why else _permille(use.gpu_percent)}
    for one in use.instances:
        alone = len(one.units) == 1
        found |= dict.fromkeys(one.units, one.busy_permille if alone else None)
    return found


def has_no_engines(use: DeviceUse) -> bool:
    """Say whether a device has no engine whose use it tells, as none has in MIG mode."""
    return all(use.missing.get(call) in _ABSENT for call in _ENGINES)


def work_of(use: DeviceUse) -> dict[str, int | None]:
    """Return how much of anything each unit did (thousandths), by UUID; None: not measured.

    An encoder or decoder that works leaves the rest of a device alone, and no lease that uses
    it is idle; in a GPU instance only the memory that it moves tells.
    """
    engines = (use.gpu_percent, use.memory_percent, use.encoder_percent, use.decoder_percent)
    found = busy_of(use)
    if any(use.missing.get(call, _ABSENT[0]) not in _ABSENT for call in _ENGINES):
        found[use.uuid] = None
    elif found[use.uuid] is not None:
        found[use.uuid] = 10 * max(one for one in engines if one is not None)
    for one in use.instances:
        counted = (one.busy_permille, one.sm_permille, one.dram_permille)
        for unit in one.units:
            if found[unit] is not None:
                found[unit] = max(value for value in counted if value is not None)
    return found


@dataclass(slots=True)
class _Mean:
    total: int = 0
    us: int = 0

    def add(self, value: int | None, span_us: int) -> None:
        if value is not None:
            self.total += value * span_us
            self.us += span_us

    @property
    def value(self) -> int | None:
        return self.total // self.us if self.us else None


@dataclass(slots=True)
class _Device:
    samples: int = 0
    means: dict[str, _Mean] = field(default_factory=dict)
    slices: dict[tuple[int, tuple[str, ...]], dict[str, _Mean]] = field(default_factory=dict)
    temperature_c: int | None = None
    clock_reasons: int | None = None
    last: DeviceUse | None = None


class Window:
    """Adds samples up; `close` gives what was seen and begins the next window."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._devices: dict[str, _Device] = {}
        self._leases: dict[tuple[str, str], _Mean] = {}
        self._counted: dict[str, DeviceUse] = {}

    def add(self, span_us: int, uses: Iterable[DeviceUse], counted_us: int) -> None:
        """Add a sample of devices that stands for so much time, and its counters for so much."""
        for use in uses:
            device = self._devices.setdefault(use.uuid, _Device())
            device.last = use
            if not use.why:
                _add(device, span_us, use, counted_us)

    def add_lease(self, lease: str, unit: str, span_us: int, busy_permille: int | None) -> None:
        """Add how busy a unit was for a lease."""
        self._leases.setdefault((lease, unit), _Mean()).add(busy_permille, span_us)

    def close(self, processes: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
        """Return the window's devices and leases; the last sample of each device is a wide one.

        ``processes`` are those of each device, as the record has them.
        """
        devices = [
            told
            for uuid, one in self._devices.items()
            if (told := _told(self._device(uuid, one, processes.get(uuid, [])))) is not None
        ]
        leases = [
            {"lease": lease, "unit": unit, "busy_permille": one.value, "measured_us": one.us}
            for (lease, unit), one in self._leases.items()
            if one.us
        ]
        self._counted = {
            uuid: one.last for uuid, one in self._devices.items() if one.last is not None
        }
        self._devices, self._leases = {}, {}
        return {"devices": devices, "leases": leases}

    def _device(self, uuid: str, one: _Device, processes: list[dict[str, Any]]) -> dict[str, Any]:
        last = one.last
        assert last is not None, "a device is there by its first sample"
        memory = last.memory
        before = self._counted.get(uuid)
        return {
            "uuid": uuid,
            "samples": one.samples,
            **{name: mean.value for name, mean in one.means.items()},
            "measured_us": one.means["busy_permille"].us if one.means else 0,
            **{name: getattr(last, name) for name in _LAST},
            "memory_used_mib": None if memory is None else memory.used_mib,
            "memory_total_mib": None if memory is None else memory.total_mib,
            **{name: _rise(before, last, counter) for name, counter in _COUNTERS.items()},
            "temperature_c": one.temperature_c,
            "clock_reasons": one.clock_reasons,
            "slices": [_slice(key, means, last) for key, means in one.slices.items()],
            "processes": processes,
            "missing": {"device": last.why} if last.why else dict(last.missing),
        }


def _add(device: _Device, span_us: int, use: DeviceUse, counted_us: int) -> None:
    device.samples += 1
    if not device.means:
        device.means = {name: _Mean() for name in (*_MEANS, *_COUNTED)}
    for name, read in _MEANS.items():
        device.means[name].add(read(use), span_us)
    if counted_us:
        for name in _COUNTED:
            device.means[name].add(getattr(use, name), counted_us)
    if use.temperature_c is not None:
        device.temperature_c = max(use.temperature_c, device.temperature_c or use.temperature_c)
    if use.clock_reasons is not None:
        device.clock_reasons = use.clock_reasons | (device.clock_reasons or 0)
    for one in use.instances:
        means = device.slices.get((one.gi, one.units))
        if means is None:
            means = device.slices[one.gi, one.units] = {name: _Mean() for name in _SLICE_MEANS}
        for name in _SLICE_MEANS:
            means[name].add(getattr(one, name), counted_us)


_SLICE_MEANS = ("busy_permille", "sm_permille", "dram_permille")


def _slice(
    key: tuple[int, tuple[str, ...]], means: dict[str, _Mean], last: DeviceUse
) -> dict[str, Any]:
    gi, units = key
    now: InstanceUse | None = next(
        (one for one in last.instances if (one.gi, one.units) == key), None
    )
    return _without_none(
        {
            "gi": gi,
            "mig_uuids": list(units),
            **{name: mean.value for name, mean in means.items()},
            "measured_us": means["busy_permille"].us,
            "memory_used_mib": None if now is None else now.used_mib,
            "memory_total_mib": None if now is None else now.total_mib,
        }
    )


def _rise(before: DeviceUse | None, now: DeviceUse, counter: str) -> int | None:
    """Return by how much a counter went up; one that went down was begun anew or wrapped."""
    old = None if before is None else getattr(before, counter)
    new = getattr(now, counter)
    return new - old if old is not None and new is not None and new >= old else None


def _told(plain: dict[str, Any]) -> dict[str, Any] | None:
    """Return what the record says of a device, less the values that it has no room for.

    A number that cannot be costs that, and not the node's whole window. None: there is no
    device without it.
    """
    found = _without_none(plain)
    if not _out_of_room(DeviceUsage, found):
        return found
    found["slices"] = _all_told(SliceUsage, found["slices"])
    found["processes"] = _all_told(ProcessUsage, found["processes"])
    lost = _out_of_room(DeviceUsage, found)
    if not lost:
        return found
    missing = dict(list(found["missing"].items())[: _MOST_MISSING - len(lost)])
    kept = {name: value for name, value in found.items() if name not in lost}
    kept["missing"] = missing | dict.fromkeys(sorted(lost), IMPLAUSIBLE)
    return None if _out_of_room(DeviceUsage, kept) else kept


#: As many reasons as a record has room for.
_MOST_MISSING = 64


def _all_told(kind: type[Model], plains: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return those that the record has room for, each less the values that it has none for."""
    found = []
    for plain in plains:
        lost = _out_of_room(kind, plain)
        kept = {name: value for name, value in plain.items() if name not in lost}
        if not lost or not _out_of_room(kind, kept):
            found.append(kept)
    return found


def _out_of_room(kind: type[Model], plain: dict[str, Any]) -> frozenset[str]:
    """Return the fields whose values the record has no room for."""
    try:
        kind.model_validate(plain, strict=False)
    except ValidationError as error:
        return frozenset(str(one["loc"][0]) for one in error.errors(include_url=False))
    return frozenset()


def _without_none(plain: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in plain.items() if value is not None}
