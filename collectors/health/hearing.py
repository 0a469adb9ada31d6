"""What a node's agent hears of its devices: XIDs from NVML, and from the kernel's log the rest.

A line of the log waits a little for NVML, which knows the instance; what both tell is one
XID. The same XID again, with the same leases there, is counted and told with the next.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

import structlog

from collectors.agent.baselines import slices_of
from collectors.health.kernel_log import KernelLog
from collectors.health.rules import Limits, Struck

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from collectors.agent.journal import Journal
    from collectors.nvml.reader import NvmlReader
    from collectors.nvml.readings import Device

__all__ = ["Hearing", "WatchOptions"]

_log = structlog.get_logger(__name__)
_US = 1_000_000

#: (device, XID, GPU instance, compute instance)
_Key = tuple[str, int, int | None, int | None]


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """How often devices are asked, in microseconds, and where the kernel's log is.

    A line of the log waits ``grace_us`` for NVML; the same XID from both within ``same_us`` is
    one. The same XID again within ``repeat_us``, with the same leases there, is only counted.
    """

    listen_us: int = _US
    signs_us: int = 10 * _US
    grace_us: int = 2 * _US
    same_us: int = 10 * _US
    repeat_us: int = 60 * _US
    kernel_log: Path | None = None
    limits: Limits = field(default_factory=Limits)


class Hearing:
    """Call `open` once, `listen` every so often, and `take` what was heard."""

    def __init__(self, reader: NvmlReader, journal: Journal, options: WatchOptions) -> None:
        """Have heard nothing yet."""
        self._reader = reader
        self._journal = journal
        self._options = options
        self._kernel: KernelLog | None = None
        self._struck: dict[str, list[Struck]] = {}
        #: Lines of the kernel's log that wait for NVML, and since when.
        self._lines: list[tuple[str, Struck, int]] = []
        self._before_lines: list[int] | None = None
        #: (device, XID, source) -> when it was heard last.
        self._heard: dict[tuple[str, int, str], int] = {}
        #: When an XID was told, and with which leases there; how often it was heard since.
        self._told: dict[_Key, tuple[int, frozenset[str]]] = {}
        self._again: dict[_Key, int] = {}
        self._noted: set[str] = set()
        #: Devices of which NVML has nothing to tell: it is not asked about them.
        self._gone: set[str] = set()

    def open(self, position: list[int] | None) -> None:
        """Open the kernel's log where it was left; without it NVML is all there is."""
        path = self._options.kernel_log
        if path is None or self._kernel is not None:
            return
        try:
            self._kernel = KernelLog(path, position)
        except OSError as error:
            _log.warning("XIDs are taken from NVML alone", kernel_log=str(path), error=str(error))

    def close(self) -> None:
        """Let go of the kernel's log."""
        if self._kernel is not None:
            self._kernel.close()
            self._kernel = None

    @property
    def position(self) -> list[int] | None:
        """How far the kernel's log was read, less the lines that still wait."""
        if self._kernel is None or self._lines:
            return self._before_lines
        return self._kernel.position

    @property
    def struck(self) -> Mapping[str, list[Struck]]:
        """What was heard and not taken yet, by device."""
        return self._struck

    @property
    def at_ease(self) -> bool:
        """Whether nothing waits to be told, and nothing stands unread in the kernel's log."""
        unread = self._kernel is not None and self._kernel.has_more()
        return not (self._lines or self._struck or unread)

    @contextmanager
    def waking(self, wake: asyncio.Event) -> Iterator[None]:
        """Set the event in the block when the kernel's log has something to read."""
        if self._kernel is None:
            yield
            return
        loop, fd = asyncio.get_running_loop(), self._kernel.fd

        def tell() -> None:
            # Once: it stays there to be read, and the block may last as long as a call that hangs.
            loop.remove_reader(fd)
            wake.set()

        loop.add_reader(fd, tell)
        try:
            yield
        finally:
            loop.remove_reader(fd)

    def heeded(self, known: Mapping[str, Device]) -> list[str]:
        """Return the devices of which `listen` asks what has happened."""
        return [uuid for uuid in known if uuid not in self._gone]

    async def listen(self, known: Mapping[str, Device]) -> bool:
        """Hear what has happened to devices; say whether they are to be looked at now."""
        now_us = self._journal.clock.steady_us()
        found = await self._reader.events(self.heeded(known))
        news = found.lost
        self._forget(now_us)
        for one in found.events:
            device = known.get(one.uuid or "")
            if one.xid is None or device is None:
                news = True
            else:
                self._hear(device, Struck(one.xid, one.gi, one.ci), now_us)
        for text in (found.why, *(f"{uuid}: {why}" for uuid, why in found.missing.items())):
            if text and text not in self._noted:
                self._noted.add(text)
                _log.warning("events are not delivered", why=text)
        self._read_log(known, now_us)
        return news or bool(self._struck)

    def take(self, uuid: str, *, gone: bool = False) -> tuple[Struck, ...]:
        """Return what has struck a device; of one that is gone NVML tells nothing any more."""
        found = self._struck.pop(uuid, [])
        self._gone.discard(uuid)
        if gone:
            self._gone.add(uuid)
            found += [one for about, one, _ in self._lines if about == uuid]
            self._lines = [one for one in self._lines if one[0] != uuid]
        return tuple(found)

    def _read_log(self, known: Mapping[str, Device], now_us: int) -> None:
        """Let lines of the kernel's log wait for NVML, and take those that have waited."""
        if self._kernel is None:
            return
        if not self._lines:
            self._before_lines = self._kernel.position
        places = {
            one.pci.address.rpartition(".")[0]: uuid
            for uuid, one in known.items()
            if one.pci is not None
        }
        for line in self._kernel.read():
            uuid = places.get(line.address)
            if uuid is None:
                _log.warning("an XID of a device that is not known", **asdict(line))
                continue
            struck = Struck(line.xid, line.gi, line.ci, "kernel-log", line.pid)
            self._lines.append((uuid, struck, now_us))
        waiting = []
        for uuid, struck, since_us in self._lines:
            if now_us - since_us < self._options.grace_us:
                waiting.append((uuid, struck, since_us))
            else:
                self._hear(known[uuid], struck, now_us)
        self._lines = waiting

    def _hear(self, device: Device, one: Struck, now_us: int) -> None:
        """Keep an XID, unless the other source has told of it, or it was told before."""
        uuid = device.uuid
        other = "kernel-log" if one.source == "nvml" else "nvml"
        self._heard[uuid, one.xid, one.source] = now_us
        if (uuid, one.xid, other) in self._heard:
            return
        key = (uuid, one.xid, one.gi, one.ci)
        units = [uuid, *slices_of(device)]
        leases = frozenset(each.lease for unit in units for each in self._journal.bound(unit=unit))
        before = self._told.get(key)
        if before is not None and before[1] == leases:
            self._again[key] = self._again.get(key, 0) + 1
            return
        self._told[key] = (now_us, leases)
        times = 1 + self._again.pop(key, 0)
        self._struck.setdefault(uuid, []).append(replace(one, times=times))

    def _forget(self, now_us: int) -> None:
        """Forget what is too long ago to be the same."""
        for key, at_us in list(self._heard.items()):
            if now_us - at_us >= self._options.same_us:
                del self._heard[key]
        for about, (at_us, _) in list(self._told.items()):
            if now_us - at_us >= self._options.repeat_us:
                del self._told[about]
