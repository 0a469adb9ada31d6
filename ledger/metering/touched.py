"""Which devices and requests an event is about, by type of the event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ledger.core.state import State

__all__ = ["Touched"]

Event = dict[str, Any]


class Touched:
    """What the events of one record are about; what earlier records said of slices and orders.

    An event of an order that is closed, or of a slice that is gone, names only that: what it
    was about is remembered from when it was issued, or seen.
    """

    def __init__(self) -> None:
        """Know of nothing."""
        #: In order: the rows of a record always come in the same one.
        self.devices: dict[str, None] = {}
        self.requests: dict[str, None] = {}
        #: Lease -> since when it is idle, of those that were reported so.
        self.idle: dict[str, int] = {}
        #: The node that was found silent.
        self.silent: str | None = None
        self._slices: dict[str, str] = {}
        self._orders: dict[str, list[str]] = {}
        #: Lease -> its request, and its devices by node.
        self._leases: dict[str, tuple[str, dict[str, list[str]]]] = {}
        self._kept: dict[str, list[str]] = {}

    def __bool__(self) -> bool:
        """Say whether there is anything to look at."""
        return bool(self.devices or self.requests)

    def add(self, state: State, event: Event) -> None:
        """Note what an event is about; ``state`` is that after the whole record."""
        rule = _RULES.get(event["type"])
        if rule is not None:
            rule(self, state, event)

    def clear(self) -> None:
        """Forget what this record was about."""
        self.devices.clear()
        self.requests.clear()
        self.idle.clear()
        self.silent = None

    def device_of(self, unit: str) -> str:
        """Return the device that a unit is, or is on."""
        return self._slices.get(unit, unit)

    # -- rules -----------------------------------------------------------------

    def node(self, state: State, event: Event) -> None:
        """A node changed: all its devices may have."""
        self.devices.update(dict.fromkeys(state.nodes[event["node"]].devices))

    def node_changed(self, state: State, event: Event) -> None:
        """A node moved along its lifecycle."""
        self.node(state, event)
        if event["state"] == "silent" and state.nodes[event["node"]].state == "silent":
            self.silent = event["node"]

    def device(self, _state: State, event: Event) -> None:
        """A device was seen, or is otherwise than it was."""
        self.devices[event["device"]] = None

    def unit(self, _state: State, event: Event) -> None:
        """A device or slice is out of use."""
        self.devices[self.device_of(event["unit"])] = None

    def slice_seen(self, _state: State, event: Event) -> None:
        """A slice was ordered, or is there."""
        self._slices[event["slice"]] = event["device"]
        self.devices[event["device"]] = None

    def slice_gone(self, _state: State, event: Event) -> None:
        """A slice is no longer there."""
        self.devices[self._slices.pop(event["slice"])] = None

    def granted(self, _state: State, event: Event) -> None:
        """A lease begins, on devices that may have been kept for it."""
        parts = {one["node"]: self._units([one]) for one in event["parts"]}
        self._leases[event["lease"]] = (event["request"], parts)
        for units in parts.values():
            self.devices.update(dict.fromkeys(units))
        self.request(_state, event)

    def part(self, _state: State, event: Event) -> None:
        """A lease's task was seen, or has ended, on one of its nodes."""
        self.devices.update(dict.fromkeys(self._leases[event["lease"]][1][event["node"]]))

    def idle_changed(self, _state: State, event: Event) -> None:
        """A lease's task has become idle or busy, wherever it runs."""
        for units in self._leases[event["lease"]][1].values():
            self.devices.update(dict.fromkeys(units))
        if event.get("since_us") is not None:
            self.idle[event["lease"]] = event["since_us"]

    def ended(self, _state: State, event: Event) -> None:
        """A lease is over."""
        request, parts = self._leases.pop(event["lease"])
        for units in parts.values():
            self.devices.update(dict.fromkeys(units))
        self.requests[request] = None

    def reserved(self, _state: State, event: Event) -> None:
        """A place is kept for a request."""
        units = self._kept[event["request"]] = self._units(event["parts"])
        self.devices.update(dict.fromkeys(units))
        self.requests[event["request"]] = None

    def request(self, _state: State, event: Event) -> None:
        """A request has its place kept no longer."""
        self.devices.update(dict.fromkeys(self._kept.pop(event["request"], ())))
        self.requests[event["request"]] = None

    def order(self, _state: State, event: Event) -> None:
        """A node is told to do something to devices."""
        units = self._orders[event["order"]] = [self.device_of(unit) for unit in event["units"]]
        if event["kind"] == "partition":
            self.devices.update(dict.fromkeys(units))

    def order_closed(self, _state: State, event: Event) -> None:
        """An order was answered or given up."""
        self.devices.update(dict.fromkeys(self._orders.pop(event["order"])))

    def _units(self, parts: Iterable[dict[str, Any]]) -> list[str]:
        return [self.device_of(unit) for part in parts for unit in part["units"]]


_RULES: dict[str, Callable[[Touched, State, Event], None]] = {
    "node.registered": Touched.node,
    "node.changed": Touched.node_changed,
    "node.unsettled": Touched.node,
    "node.settled": Touched.node,
    "device.discovered": Touched.device,
    "device.health": Touched.device,
    "device.quarantined": Touched.unit,
    "slice.quarantined": Touched.unit,
    "device.cleared": Touched.device,
    "slice.ordered": Touched.slice_seen,
    "slice.present": Touched.slice_seen,
    "slice.gone": Touched.slice_gone,
    "lease.granted": Touched.granted,
    "lease.started": Touched.part,
    "lease.idle": Touched.idle_changed,
    "part.ended": Touched.part,
    "lease.ended": Touched.ended,
    "request.reserved": Touched.reserved,
    "request.unreserved": Touched.request,
    "request.ended": Touched.request,
    "order.issued": Touched.order,
    "order.done": Touched.order_closed,
    "order.failed": Touched.order_closed,
    "order.timed-out": Touched.order_closed,
    "order.superseded": Touched.order_closed,
}
