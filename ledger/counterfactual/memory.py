"""On which devices the recorded peaks of memory would have passed what the device has.

A share is promised its memory, not given it: where a pool overcommits, the tasks of one
device may together want more than there is. Peaks of shares that were on a device at one
time are added, as if all of them came at once: that is the worst case. What was never
measured is unknown, and is counted as such, never as zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ledger.core.state import WHOLE_MILLI

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ledger.core.state import State

__all__ = ["Memory"]

Event = dict[str, Any]


class Memory:
    """Follows the leases on shared devices; ``peaks`` is the most MiB by request."""

    def __init__(self, peaks: Mapping[str, int], start_us: int) -> None:
        """Begin with no lease."""
        self.peaks = peaks
        #: Device -> the most that the peaks of its leases came to at once, beyond what it has.
        self.over_mib: dict[str, int] = {}
        self.over_us = 0
        self.shares = 0
        self.unmeasured = 0
        self._now_us = start_us
        self._over: set[str] = set()
        self._devices: dict[str, tuple[str, ...]] = {}

    def begin(self, state: State) -> None:
        """Take over the leases that are there."""
        for lease in state.leases.values():
            self._granted(state, lease.id)

    def take(self, state: State, events: list[Event], now_us: int) -> None:
        """Follow a decision; the state is after it."""
        self._pass_time(now_us)
        touched: dict[str, None] = {}
        for event in events:
            if event["type"] == "lease.granted":
                touched.update(dict.fromkeys(self._granted(state, event["lease"])))
            elif event["type"] == "lease.ended":
                touched.update(dict.fromkeys(self._devices.pop(event["lease"], ())))
        for device in touched:
            self._look(state, device)

    def finish(self, end_us: int) -> None:
        """Count up to the end."""
        self._pass_time(end_us)

    def _pass_time(self, now_us: int) -> None:
        if now_us > self._now_us:
            self.over_us += len(self._over) * (now_us - self._now_us)
            self._now_us = now_us

    def _granted(self, state: State, name: str) -> tuple[str, ...]:
        lease = state.leases.get(name)
        if lease is None or state.requests[lease.request].need.mode != "share":
            return ()
        self.shares += 1
        self.unmeasured += lease.request not in self.peaks
        devices = tuple(unit for part in lease.parts.values() for unit in part.units)
        self._devices[name] = devices
        return devices

    def _look(self, state: State, uuid: str) -> None:
        device = state.devices[uuid]
        total = 0
        for name, hold in device.holds.items():
            lease = state.leases.get(name)
            if lease is not None and not hold.cleaning and hold.milli <= WHOLE_MILLI:
                total += self.peaks.get(lease.request, 0)
        over = total - device.memory_mib
        if over > 0:
            self._over.add(uuid)
            self.over_mib[uuid] = max(self.over_mib.get(uuid, 0), over)
        else:
            self._over.discard(uuid)
