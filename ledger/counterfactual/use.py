"""GPU time: what leases held and what was in service, as it passes.

A lease holds what it counts against its quota, from its grant to its end. In service is a
device that its node reports healthy, out of quarantine, while the node is online: what is
drained or in maintenance is not, though a lease may still hold it there.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from ledger.core.state import WHOLE_MILLI

if TYPE_CHECKING:
    from ledger.core.state import State

__all__ = ["Use"]

Event = dict[str, Any]


class Use:
    """Sums in thousandths of devices times microseconds, from a state on."""

    def __init__(self, state: State, start_us: int) -> None:
        """Begin with what is there."""
        self.held: Counter[str] = Counter()
        self.in_service_milli_us = 0
        self._since_us = start_us
        #: Lease -> tenant, thousandths, and from when it counts.
        self._open: dict[str, tuple[str, int, int]] = {}
        self._count: dict[str, int] = {}
        self._total = 0
        for lease in state.leases.values():
            self._open[lease.id] = (lease.tenant, lease.charge_milli, start_us)
        for name in state.nodes:
            self._look(state, name)

    @property
    def held_milli_us(self) -> int:
        """Return what all tenants held."""
        return self.held.total()

    def take(self, state: State, events: list[Event], now_us: int) -> None:
        """Follow a decision; the state is after it."""
        nodes: set[str] = set()
        for event in events:
            kind = event["type"]
            if kind == "lease.granted":
                request = state.requests.get(event["request"])
                # One that has ended in the same record has held nothing.
                tenant = "" if request is None else request.tenant
                self._open[event["lease"]] = (tenant, event["charge_milli"], now_us)
            elif kind == "lease.ended":
                self._over(event["lease"], now_us)
            elif kind in _OF_NODE:
                nodes.add(event["node"])
            elif kind in _OF_DEVICE:
                device = state.devices.get(event[_OF_DEVICE[kind]])
                if device is not None:
                    nodes.add(device.node)
        if nodes:
            self._pass_time(now_us)
            for one in nodes:
                self._look(state, one)

    def finish(self, end_us: int) -> None:
        """Count up to the end what still lasts."""
        self._pass_time(end_us)
        for name in list(self._open):
            self._over(name, end_us)

    def _over(self, lease: str, now_us: int) -> None:
        tenant, milli, since_us = self._open.pop(lease)
        self.held[tenant] += milli * (now_us - since_us)

    def _pass_time(self, now_us: int) -> None:
        if now_us > self._since_us:
            self.in_service_milli_us += self._total * WHOLE_MILLI * (now_us - self._since_us)
            self._since_us = now_us

    def _look(self, state: State, name: str) -> None:
        node = state.nodes[name]
        count = 0
        if node.state == "online":
            devices = (state.devices[uuid] for uuid in node.devices)
            count = sum(one.health == "healthy" and one.quarantine is None for one in devices)
        self._total += count - self._count.get(name, 0)
        self._count[name] = count


_OF_NODE = frozenset({"node.registered", "node.changed", "device.discovered"})
_OF_DEVICE = {
    "device.health": "device", "device.quarantined": "unit", "device.cleared": "device",
}  # fmt: skip
