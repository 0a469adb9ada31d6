"""The watch over how a node's devices are used: samples, windows, and idle leases.

A sample a second is cheap; a record of a window is what crosses the topic, and what is idle is
told to the ledger when it begins and when it ends. What a sample does not have is missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from collectors.agent.telling import Teller
from collectors.said import Said
from collectors.use.idleness import AFTER_US, Idleness
from collectors.use.window import Window, busy_of, has_no_engines, work_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from collectors.agent.journal import Journal
    from collectors.agent.processes import Processes
    from collectors.nvml.reader import NvmlReader
    from collectors.nvml.readings import DeviceUse

__all__ = ["UseOptions", "UseWatch"]

_US = 1_000_000
_IDLE = "idle-leases"


@dataclass(frozen=True, slots=True)
class UseOptions:
    """How often a sample is taken, how long a window is, and what is idle, in microseconds.

    GPM's counters, which are all that tells of a MIG slice, are read every ``counters_us``:
    they are of all the time since the last reading, so no work goes unseen between two.
    """

    sample_us: int = _US
    counters_us: int = 10 * _US
    window_us: int = 10 * _US
    idle_after_us: int = AFTER_US


class _Spans(NamedTuple):
    """What a sample stands for, by what is sampled (us); 0: it has nothing of that."""

    devices_us: int
    slices_us: int
    shared_us: int


class UseWatch:
    """Samples one node. ``devices`` gives the UUIDs that are there now."""

    def __init__(
        self,
        reader: NvmlReader,
        journal: Journal,
        processes: Processes,
        about: tuple[str, str],
        devices: Callable[[], Iterable[str]],
        options: UseOptions | None = None,
    ) -> None:
        """Watch for a node and its incarnation, which are ``about``."""
        self.options = options or UseOptions()
        self._node, self._incarnation = about
        self._reader = reader
        self._journal = journal
        self._processes = processes
        self._devices = devices
        self._teller = Teller(journal, *about)
        self._idleness = Idleness(journal.fact(_IDLE) or (), after_us=self.options.idle_after_us)
        self._window = Window()
        self._began_us = self._sampled_us = journal.clock.steady_us()
        #: When the next sample is due, by the steady clock (us).
        self.due_us = self._began_us
        self._planned: dict[str, Any] | None = None
        # The first sample reads them, so that the next has something to compare with.
        self._counted_us = self._began_us - self.options.counters_us
        self._stamps: dict[str, int] = {}
        self._number = 0
        #: Devices of which a sample tells no more each second than one that reads counters does.
        self._still: frozenset[str] = frozenset()

    @property
    def more_us(self) -> int:
        """When the next sample is due that asks for more than what differs each second."""
        return min(self._soon(self._counted_us + self.options.counters_us), self._ends_us)

    @property
    def _ends_us(self) -> int:
        return self._soon(self._began_us + self.options.window_us)

    def _soon(self, due_us: int) -> int:
        # A sample that comes a little early ends a window rather than one that comes late.
        return due_us - self.options.sample_us // 2

    @property
    def at_ease(self) -> bool:
        """Whether nobody waits for a sample: a lease that is idle may be used again at any."""
        return not self._idleness.told

    def differing(self) -> list[str]:
        """Return the devices that are sampled each second."""
        return [uuid for uuid in self._devices() if uuid not in self._still]

    def _next(self, now_us: int) -> None:
        # What was late is not caught up: two samples at once would say nothing more.
        missed = (now_us - self.due_us) // self.options.sample_us
        self.due_us += (1 + missed) * self.options.sample_us

    def plan(self) -> dict[str, Any]:
        """Return what the sample that is due now will ask of `NvmlReader.uses`."""
        now_us = self._journal.clock.steady_us()
        self._next(now_us)
        wide, counted = now_us >= self._ends_us, now_us >= self.more_us
        uuids = list(self._devices()) if counted else self.differing()
        since = {uuid: self._since_us(uuid) for uuid in uuids} if wide else None
        self._planned = {"uuids": uuids, "wide": wide, "counted": counted, "since_us": since}
        return self._planned

    def _since_us(self, uuid: str) -> int:
        """Return from when on processes' use is new, by the driver's stamps; 0: all there is.

        They are of the wall clock: once that was set back, what is new is older than they are.
        """
        stamp_us = self._stamps.get(uuid, 0)
        return stamp_us if stamp_us <= self._journal.clock.wall_us() else 0

    async def sample(self) -> Said | None:
        """Take a sample, as it was planned if it was; return the window's record if it is over."""
        planned, self._planned = self._planned or self.plan(), None
        uses = await self._reader.uses(**planned)
        now_us = self._journal.clock.steady_us()
        self._take(now_us, uses, wide=planned["wide"], counted=planned["counted"])
        return self._close(now_us, uses) if planned["wide"] else None

    def take(self, at_us: int, uses: list[DeviceUse]) -> None:
        """Take a sample that was made at that time, of what differs each second."""
        self._next(at_us)
        self._take(at_us, uses, wide=False, counted=False)

    def _take(self, now_us: int, uses: list[DeviceUse], *, wide: bool, counted: bool) -> None:
        # A sample that did not come is nobody's: the next one does not stand for its time.
        span_us = min(now_us - self._sampled_us, 2 * self.options.sample_us)
        self._sampled_us = now_us
        counted_us = now_us - max(self._counted_us, self._began_us) if counted else 0
        if counted:
            self._counted_us = now_us
            self._still = frozenset(use.uuid for use in uses if has_no_engines(use))
        self._window.add(span_us, uses, counted_us)
        spans = _Spans(span_us, counted_us, now_us - self._began_us if wide else 0)
        self._follow(now_us, spans, uses)

    # -- leases -----------------------------------------------------------------------

    def _follow(self, now_us: int, spans: _Spans, uses: list[DeviceUse]) -> None:
        """Say how busy the leases' units were; shared ones once a window, by their processes."""
        held = self._journal.held()
        self._idleness.keep({lease for lease, _, _ in held})
        if not held:
            return
        busy = {unit: value for use in uses for unit, value in busy_of(use).items()}
        work = {unit: value for use in uses for unit, value in work_of(use).items()}
        by_device = {use.uuid: use for use in uses}
        #: Time that is sampled -> lease -> its units.
        seen: dict[int, dict[str, list[int | None]]] = {}
        for lease, unit, exclusive in held:
            if exclusive:
                span_us = spans.slices_us if unit.startswith("MIG-") else spans.devices_us
                part, did = busy.get(unit), work.get(unit)
            else:
                span_us = spans.shared_us
                part, did = self._part(by_device.get(unit), lease) if span_us else (None, None)
            if span_us:
                seen.setdefault(span_us, {}).setdefault(lease, []).append(did)
                self._window.add_lease(lease, unit, span_us, part)
        edges = [
            edge
            for span_us, busy_of_leases in seen.items()
            for edge in self._idleness.see(now_us, span_us, busy_of_leases)
        ]
        if edges:
            # What was sampled while the agent rested is told later, and idle for so much longer.
            late_s = (self._journal.clock.steady_us() - now_us) // _US
            with self._journal.transaction():
                for edge in edges:
                    idle_s = edge.idle_s + late_s * edge.idle
                    self._teller.say("task.use", **edge._replace(idle_s=idle_s)._asdict())
                self._journal.keep(_IDLE, self._idleness.told)

    def _part(self, use: DeviceUse | None, lease: str) -> tuple[int | None, int | None]:
        """Return what a lease's processes used of a device that it shares, and of anything.

        In thousandths. A process that does not say whose it is might be its own: then nothing
        is known.
        """
        if use is None or use.processes is None:
            return None, None
        whose = {one.pid: self._processes.lease(one.pid) for one in use.processes}
        if None in whose.values():
            return None, None
        mine = [one for one in use.processes if whose[one.pid] == lease]
        engines = ("sm_percent", "memory_percent", "encoder_percent", "decoder_percent")
        did = max((getattr(one, name) for one in mine for name in engines), default=0)
        return 10 * sum(one.sm_percent for one in mine), 10 * did

    # -- windows ----------------------------------------------------------------------

    def _close(self, now_us: int, uses: list[DeviceUse]) -> Said:
        self._number += 1
        window_us, self._began_us = now_us - self._began_us, now_us
        for use in uses:
            stamps = [one.at_us for one in use.processes or ()]
            self._stamps[use.uuid] = max([self._stamps.get(use.uuid, 0), *stamps])
        data = {
            "node": self._node,
            "incarnation": self._incarnation,
            "node_time_us": self._journal.clock.wall_us(),
            "window_us": window_us,
            **self._window.close({use.uuid: self._listed(use) for use in uses}),
        }
        epoch = self._journal.fact("epoch")
        return Said("node.usage", f"{self._incarnation}.{epoch}-use-{self._number}", data)

    def _listed(self, use: DeviceUse) -> list[dict[str, Any]]:
        """Return who is on a device, as the record has it."""
        worked = {one.pid: one for one in use.processes or ()}
        found = []
        for one in use.holders or ():
            work = worked.get(one.pid)
            plain: dict[str, Any] = {
                "pid": one.pid,
                "lease": self._processes.lease(one.pid),
                "gi": one.gi,
                "memory_mib": one.used_mib,
            }
            if work is not None:
                plain |= {
                    "sm_permille": 10 * work.sm_percent,
                    "encoder_permille": 10 * work.encoder_percent,
                    "decoder_permille": 10 * work.decoder_percent,
                }
            found.append({name: value for name, value in plain.items() if value is not None})
        return found
