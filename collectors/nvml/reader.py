"""A node's devices, typed, from whoever answers: never raises for what a device lacks.

A device that hangs is unknown with that reason, and is left alone for a while, so that one
sick device does not cost the others a restart of the process at every turn.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from collectors.nvml.readings import Device, DeviceUse, Host, Process
from collectors.nvml.watchdog import ChildFailed, Hung

if TYPE_CHECKING:
    from collections.abc import Callable

    from collectors.nvml.watchdog import Asker

__all__ = ["DIED", "HUNG", "Inventory", "NvmlReader"]

#: What ``why`` begins with when a call did not return, and when the process died in it.
HUNG = "hung"
DIED = "nvml-process-died"

#: How long a device that hung is left alone at first, and at most, in seconds.
_REST_S = 30.0
_LONGEST_REST_S = 600.0

_HOST: TypeAdapter[Host] = TypeAdapter(Host)
_DEVICE: TypeAdapter[Device] = TypeAdapter(Device)
_USE: TypeAdapter[DeviceUse] = TypeAdapter(DeviceUse)
_PROCESSES: TypeAdapter[tuple[Process, ...] | None] = TypeAdapter(tuple[Process, ...] | None)


@dataclass(frozen=True, slots=True)
class Inventory:
    """Everything that one reading of the node gave; devices in the order of the listing.

    A device that was listed and then hung or was lost is in it, with ``why``.
    """

    host: Host
    devices: tuple[Device, ...] = ()


@dataclass(slots=True)
class _Rest:
    """A device that hung: why, until when it is left alone, and for how long the last time."""

    why: str
    until_s: float
    for_s: float


class NvmlReader:
    """Asks typed questions. ``clock`` is a steady clock, in seconds."""

    def __init__(self, asker: Asker, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Ask through this; whoever made the asker closes it."""
        self._asker = asker
        self._clock = clock
        self._resting: dict[str, _Rest] = {}

    async def host(self) -> Host:
        """Read driver and listing."""
        try:
            return _HOST.validate_python(await self._asker.ask("host"))
        except Hung as hung:
            return Host(_why(hung))
        except ChildFailed as failed:
            return Host(f"{DIED}: {failed}")

    async def device(self, uuid: str) -> Device:
        """Read one device, whole."""
        found, why = await self._about(uuid, "device")
        return Device(uuid, why) if why else _DEVICE.validate_python(found)

    async def use(self, uuid: str, **more: Any) -> DeviceUse:
        """Sample one device's use; the keywords are those of `use.read_use`."""
        found, why = await self._about(uuid, "use", **more)
        return DeviceUse(uuid, why) if why else _USE.validate_python(found)

    async def processes(self, uuid: str) -> tuple[Process, ...] | None:
        """Read who is on a device; None when that cannot be said, which is not nobody."""
        found, _ = await self._about(uuid, "processes")
        return _PROCESSES.validate_python(found)

    async def survey(self, uuid: str) -> dict[str, str]:
        """Ask which calls work on a device (`survey.survey`); one that hangs fails ``name``."""
        found, why = await self._about(uuid, "survey")
        return {"name": why} if why else dict(found)

    async def inventory(self) -> Inventory:
        """Read the node: the listing, then each device by UUID, one after the other."""
        host = await self.host()
        uuids = [one.uuid for one in host.listed if one.uuid is not None]
        return Inventory(host, tuple([await self.device(uuid) for uuid in uuids]))

    async def _about(self, uuid: str, op: str, **more: Any) -> tuple[Any, str]:
        """Ask about a device; return the answer, or None and why there is none."""
        rest = self._resting.get(uuid)
        if rest is not None and self._clock() < rest.until_s:
            return None, rest.why
        try:
            found = await self._asker.ask(op, uuid=uuid, **more)
        except Hung as hung:
            return None, self._rest(uuid, _why(hung), rest)
        except ChildFailed as failed:
            return None, self._rest(uuid, f"{DIED}: {failed}", rest)
        self._resting.pop(uuid, None)
        return found, ""

    def _rest(self, uuid: str, why: str, before: _Rest | None) -> str:
        """Leave a device alone, twice as long as the last time."""
        for_s = _REST_S if before is None else min(2 * before.for_s, _LONGEST_REST_S)
        self._resting[uuid] = _Rest(why, self._clock() + for_s, for_s)
        return why


def _why(hung: Hung) -> str:
    return f"{HUNG}: {hung}"
