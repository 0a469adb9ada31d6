"""One long session with NVML: handles by UUID, kept and taken anew when they went stale.

Costs were seen by others: finding a device by UUID can take ten seconds under load, so
handles are kept; and handles do not outlive a reset or a change of MIG mode.
"""

from __future__ import annotations

from typing import Any

from collectors.nvml.calls import Reading, read
from collectors.nvml.codes import Code
from collectors.nvml.readings import Host, Sighting

__all__ = ["Session"]

#: The most entries of a listing that are asked for.
MOST_DEVICES = 256


class Session:
    """NVML, opened at the first use. Not for more than one thread."""

    def __init__(self) -> None:
        """Open nothing yet."""
        self._open = False
        self._handles: dict[str, Any] = {}

    def open(self) -> Reading:
        """Open NVML if it is not; the reading says why that cannot be."""
        if self._open:
            return Reading(None)
        found = read("init")
        self._open = not found.why
        return found

    def close(self) -> None:
        """End the session; the next use opens another."""
        if self._open:
            read("shutdown")
        self._open = False
        self._handles.clear()

    def forget(self, uuid: str) -> None:
        """Take the device's handle anew at the next use: after a reset or a change of mode."""
        self._handles.pop(uuid, None)

    def host(self) -> Host:
        """Read the driver and the listing. An entry that fails costs the others nothing."""
        count = self._fresh("device_count")
        if count.why:
            return Host(count.why)
        self._handles.clear()
        listed = tuple(self._sight(index) for index in range(min(count.value, MOST_DEVICES)))
        names = {name: read(name).value for name in ("driver", "library", "cuda")}
        return Host("", **names, listed=listed)

    def _fresh(self, name: str, *arguments: Any) -> Reading:
        """Make a call; when the driver was loaded anew meanwhile, in a session of now."""
        found = self.open()
        if not found.why:
            found = read(name, *arguments)
        if found.code == Code.UNINITIALIZED:
            self.close()
            found = self.open()
            found = found if found.why else read(name, *arguments)
        return found

    def _sight(self, index: int) -> Sighting:
        handle = read("by_index", index)
        if handle.why:
            return Sighting(index, None, handle.why)
        uuid = read("uuid", handle.value)
        if uuid.why:
            return Sighting(index, None, uuid.why)
        self._handles[uuid.value] = handle.value
        return Sighting(index, uuid.value)

    def handle(self, uuid: str) -> Reading:
        """Return the device's handle, or why there is none; a stale one is taken anew."""
        if uuid in self._handles:
            if read("uuid", self._handles[uuid], about=uuid).value == uuid:
                return Reading(self._handles[uuid])
            self.forget(uuid)
        found = self._fresh("by_uuid", uuid)
        if not found.why:
            self._handles[uuid] = found.value
        return found
