"""One long session with NVML: handles by UUID, and what need not be asked twice.

Costs were seen by others: finding a device by UUID can take ten seconds under load, so
handles are kept; and handles do not outlive a reset or a change of MIG mode. What a device
is (its name, its profiles and their placements), which calls it lacks and the handles of
its MIG devices are kept as long; a change of partitions forgets what it has touched.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from collectors.nvml.calls import Reading, read
from collectors.nvml.codes import Code
from collectors.nvml.events import Registered
from collectors.nvml.readings import Host, Sighting

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

__all__ = ["Kept", "Session", "Unit"]

#: The most entries of a listing that are asked for.
MOST_DEVICES = 256


class Unit(NamedTuple):
    """A MIG device as it was last seen: its GPU and compute instance, its UUID, its handle."""

    gi: int
    ci: int
    uuid: str | None
    handle: Any


@dataclass(slots=True)
class Kept:
    """What a session keeps of one device.

    ``readings`` do not change while the device is in one MIG ``mode``; ``units`` are its MIG
    devices, None: not looked for yet; ``vital`` is what the last watched reading saw of what
    makes another due, None: another is due. ``samples`` are GPM's, the last one first.
    """

    readings: dict[Hashable, Reading] = field(default_factory=dict)
    mode: Reading | None = None
    units: tuple[Unit, ...] | None = None
    vital: tuple[Reading, ...] | None = None
    samples: dict[Hashable, tuple[Any, Any]] = field(default_factory=dict)

    def once(self, key: Hashable, name: str, *arguments: Any, about: str) -> Reading:
        """Make a call whose answer stays the same, unless it was made before."""
        found = self.readings.get(key)
        if found is None:
            found = read(name, *arguments, about=about)
            # A right may be given and a fault may pass; what is not there stays away.
            if not found.why or found.absent:
                self.readings[key] = found
        return found

    def unless_absent(self, name: str, *arguments: Any, about: str) -> Reading:
        """Make a call, unless the device is known to lack it."""
        found = self.readings.get(name)
        if found is None:
            found = read(name, *arguments, about=about)
            if found.code is not Code.SUCCESS and found.absent:
                self.readings[name] = found
        return found

    def touched(self) -> None:
        """Forget what a change of the device's partitions may have changed."""
        self.units = self.vital = None
        for pair in self.samples.values():
            for one in pair:
                if one is not None:
                    read("gpm_free", one)
        self.samples.clear()


class Session:
    """NVML, opened at the first use. Not for more than one thread."""

    def __init__(
        self,
        *,
        pause: Callable[[float], bool] = lambda _: True,
        steady_us: Callable[[], int] = lambda: time.monotonic_ns() // 1000,
    ) -> None:
        """Open nothing yet.

        ``pause`` waits so many seconds for another question, and says whether there is one: in
        the process that asks nothing is waited for, since it could not ask meanwhile.
        ``steady_us`` is a clock that never goes back, the same one for all processes.
        """
        self.pause = pause
        self.steady_us = steady_us
        self._open = False
        self._handles: dict[str, Any] = {}
        #: The event set, made at the first question for events.
        self.events = Registered()
        self._kept: dict[str, Kept] = {}
        self._listed = 0
        #: Handles that were seen to be good within the question that is being answered.
        self._good: set[str] | None = None

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
            self.drop_events()
            read("shutdown")
        self._open, self._listed = False, 0
        self._drop_handles()
        self._kept.clear()

    def forget(self, uuid: str) -> None:
        """Take all of the device anew at the next use: after a reset or a change of mode."""
        self._handles.pop(uuid, None)
        self._kept.pop(uuid, None)
        if self._good is not None:
            self._good.discard(uuid)
        self.events.forget(uuid)

    def drop_events(self) -> None:
        """Let go of the event set; what waits in it is lost."""
        if self.events.handle is not None:
            read("event_free", self.events.handle)
        self.events = Registered()

    def kept(self, uuid: str) -> Kept:
        """Return what is kept of a device."""
        found = self._kept.get(uuid)
        if found is None:
            found = self._kept[uuid] = Kept()
        return found

    def host(self) -> Host:
        """Read the driver and the listing. An entry that fails costs the others nothing."""
        count = self._fresh("device_count")
        if count.why:
            return Host(count.why)
        self._drop_handles()
        self._listed = count.value
        listed = tuple(self._sight(index) for index in range(min(count.value, MOST_DEVICES)))
        names = {name: read(name).value for name in ("driver", "library", "cuda")}
        return Host("", **names, listed=listed)

    def same_listing(self) -> bool:
        """Say whether NVML lists as many devices as `host` has seen last."""
        count = self._fresh("device_count")
        return not count.why and count.value == self._listed

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

    def _drop_handles(self) -> None:
        self._handles.clear()
        if self._good is not None:
            self._good.clear()

    @contextmanager
    def one_question(self) -> Iterator[None]:
        """Look once whether a device's handle is good, however much is asked of it here."""
        self._good = set()
        try:
            yield
        finally:
            self._good = None

    def handle(self, uuid: str) -> Reading:
        """Return the device's handle, or why there is none; a stale one is taken anew."""
        known = self._handles.get(uuid)
        if known is not None:
            if self._good is not None and uuid in self._good:
                return Reading(known)
            if read("uuid", known, about=uuid).value == uuid:
                if self._good is not None:
                    self._good.add(uuid)
                return Reading(known)
            self.forget(uuid)
        found = self._fresh("by_uuid", uuid)
        if not found.why:
            self._handles[uuid] = found.value
        return found
