"""The rounds over a node's devices: what differs every second, and each device whole in turn.

A whole reading of eight devices with MIG takes some 100 calls each, which is too much for
every second. A round asks for all of them at once which are due (`pulse`), reads those whole,
and of the others so many, the oldest first, that each is read whole every so often.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from collectors.nvml.reader import Inventory

if TYPE_CHECKING:
    from collections.abc import Callable

    from collectors.nvml.reader import NvmlReader
    from collectors.nvml.readings import Device, GpuInstance

__all__ = ["Look", "Rounds"]

#: Seconds are no integers: what is missing of a whole turn by less than this is not missing.
_ALMOST = 1e-6


@dataclass(frozen=True, slots=True)
class Look:
    """What one round has seen: the node, and the devices in it that were read just now.

    Without ``news`` nothing is different but what changes all the time: memory in use,
    processes, encoder sessions, the width and generation of a PCIe link.
    """

    inventory: Inventory
    read: tuple[Device, ...]
    news: bool = True


class Rounds:
    """Goes round a node's devices. ``clock`` is a steady clock, in seconds.

    Each device is read whole every ``pass_s`` at least, where rounds are as frequent.
    """

    def __init__(self, reader: NvmlReader, clock: Callable[[], float], pass_s: float) -> None:
        """Have seen nothing yet."""
        self._pass_s = pass_s
        self._reader = reader
        self._clock = clock
        self._last: Inventory | None = None
        self._steady: dict[str, Device] = {}
        self._read_s: dict[str, float] = {}
        self._before_s = 0.0
        #: How many devices' turn it is; what is less than one is kept for the next round.
        self._turn = 0.0
        self._planned: tuple[list[str], list[str]] | None = None

    def distrust(self) -> None:
        """Read everything at the next round: something has happened that only that tells."""
        self._last = self._planned = None

    def plan(self) -> tuple[list[str], list[str]] | None:
        """Return what `next` will ask of `NvmlReader.pulse`; None: it reads everything."""
        last = self._last
        if last is None or last.host.why or None in [one.uuid for one in last.host.listed]:
            return None
        if self._planned is None:
            well = [one.uuid for one in last.devices if not one.why]
            self._planned = (well, self._in_turn(last, self._clock()))
        return self._planned

    def all_well(self) -> list[str] | None:
        """Return the devices, if all that is listed could be read; None: something could not."""
        last = self._last
        if last is None:
            return None
        whys = [last.host.why, *[one.why for one in last.host.listed]]
        whys += [one.why for one in last.devices]
        return None if any(whys) else [one.uuid for one in last.devices]

    async def whole(self) -> Look:
        """Read the listing and every device."""
        self._last, self._before_s = await self._reader.inventory(), self._clock()
        self._planned = None
        devices = self._last.devices
        self._read_s = {one.uuid: self._before_s for one in devices}
        self._steady = {one.uuid: _steady(one) for one in devices}
        return Look(self._last, devices)

    async def next(self) -> Look:
        """Read what is due; of the first round that is everything."""
        last, planned = self._last, self.plan()
        if last is None or planned is None:
            return await self.whole()
        now_s, self._planned = self._clock(), None
        found = await self._reader.pulse(*planned)
        if found is None:
            return await self.whole()
        due = found[0] | {one.uuid for one in last.devices if one.why}
        read = {one.uuid: one for one in found[1]}
        read |= {uuid: await self._reader.device(uuid, watched=True) for uuid in sorted(due)}
        news = False
        for uuid, device in read.items():
            self._read_s[uuid] = now_s
            steady = _steady(device)
            news = news or steady != self._steady[uuid]
            self._steady[uuid] = steady
        devices = tuple([read.get(one.uuid, one) for one in last.devices])
        self._last = Inventory(last.host, devices)
        return Look(self._last, tuple(read.values()), news)

    def _in_turn(self, last: Inventory, now_s: float) -> list[str]:
        """Return the devices whose turn it is: a share of all that is the time's of a pass."""
        self._turn += len(last.devices) * (now_s - self._before_s) / self._pass_s
        self._before_s = now_s
        count = min(int(self._turn + _ALMOST), len(last.devices))
        self._turn -= count
        return sorted(self._read_s, key=lambda uuid: self._read_s[uuid])[:count]


def _steady(device: Device) -> Device:
    """Return a device without what changes all the time."""
    memory, pci = device.memory, device.pci
    return replace(
        device,
        memory=None if memory is None else replace(memory, used_mib=0, free_mib=0),
        pci=None if pci is None else replace(pci, generation=None, width=None),
        instances=tuple([_unused(one) for one in device.instances]),
        processes=None,
        encoder_sessions=None,
    )


def _unused(one: GpuInstance) -> GpuInstance:
    return replace(one, compute=tuple([replace(each, used_mib=None) for each in one.compute]))
