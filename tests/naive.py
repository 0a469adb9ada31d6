"""A second ledger, written to be obviously right: sets of who holds what, sums of quota.

It knows nothing of lifecycles, indexes or schedules. It is told what nodes said
and what was decided, and refuses any decision that a careful clerk with pencil
and paper would refuse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ledger.core.decide import Decision
    from ledger.core.state import State


class Naive:
    """Who holds what, who was promised what, and what is not clean."""

    def __init__(self) -> None:
        self.modes: dict[str, str] = {}
        self.silent: set[str] = set()
        self.home: dict[str, str] = {}
        self.health: dict[str, str] = {}
        self.slice_of: dict[str, str] = {}
        self.shut: set[str] = set()
        self.nominal: dict[str, int] = {}
        self.asked: dict[str, dict[str, Any]] = {}
        self.waiting: set[str] = set()
        self.over: set[str] = set()
        self.held: dict[str, dict[str, int]] = {}
        self.charged: dict[str, tuple[str, int]] = {}
        self.since: dict[str, int] = {}
        self.dirty: dict[str, dict[str, int]] = {}
        self.cleaning: dict[str, dict[str, Any]] = {}

    def learn(self, decision: Decision) -> None:
        """Follow a decision, event by event."""
        given = decision.input
        if given.type == "request.submit":
            self.asked.setdefault(given.key, given.data.model_dump())
        for event in decision.events:
            follow = getattr(self, "_" + event["type"].replace(".", "_").replace("-", "_"), None)
            if follow is not None:
                follow(event, decision.time_us)

    # -- supply -------------------------------------------------------------

    def _node_registered(self, event: dict[str, Any], _now: int) -> None:
        self.modes.setdefault(event["node"], "online")
        self.silent.discard(event["node"])

    def _node_changed(self, event: dict[str, Any], _now: int) -> None:
        self.modes[event["node"]] = event.get("mode") or self.modes[event["node"]]
        away = event["state"] in ("silent", "lost", "registering")
        (self.silent.add if away else self.silent.discard)(event["node"])

    def _device_discovered(self, event: dict[str, Any], _now: int) -> None:
        known = self.health.get(event["device"])
        assert known in (None, "gone") or self.home[event["device"]] == event["node"], event
        self.home[event["device"]] = event["node"]
        if known in (None, "gone"):
            self.health[event["device"]] = "unknown" if known else "healthy"

    def _device_health(self, event: dict[str, Any], _now: int) -> None:
        self.health[event["device"]] = event["health"]

    def _device_quarantined(self, event: dict[str, Any], _now: int) -> None:
        self.shut.add(event["unit"])

    _slice_quarantined = _device_quarantined

    def _device_cleared(self, event: dict[str, Any], _now: int) -> None:
        uuid = event["device"]
        self.shut -= {uuid, *(name for name, of in self.slice_of.items() if of == uuid)}

    def _slice_present(self, event: dict[str, Any], _now: int) -> None:
        assert event["slice"] not in self.slice_of
        self.slice_of[event["slice"]] = event["device"]

    def _slice_gone(self, event: dict[str, Any], _now: int) -> None:
        del self.slice_of[event["slice"]]

    # -- demand ---------------------------------------------------------------

    def _quota_applied(self, event: dict[str, Any], _now: int) -> None:
        self.nominal[event["tenant"]] = event["nominal_gpu_milli"]

    def _request_rejected(self, event: dict[str, Any], _now: int) -> None:
        assert event["request"] not in self.over | self.waiting
        self.over.add(event["request"])

    def _request_queued(self, event: dict[str, Any], _now: int) -> None:
        assert event["request"] not in self.over | self.waiting
        self.waiting.add(event["request"])

    def _request_ended(self, event: dict[str, Any], _now: int) -> None:
        assert event["request"] not in self.over
        self.over.add(event["request"])
        self.waiting.discard(event["request"])

    def _lease_granted(self, event: dict[str, Any], now: int) -> None:
        lease, request = event["lease"], event["request"]
        assert lease not in self.since, "a lease is granted once"
        assert request not in self.over
        self.waiting.discard(request)
        asked = self.asked[request]
        tenant, ask = asked["tenant"], asked["ask"]
        milli = ask.get("gpu_milli", 1000)
        units = [(part["node"], unit) for part in event["parts"] for unit in part["units"]]
        assert len(units) == ask.get("count", 1) * ask.get("nodes", 1), "all or nothing"
        for node, unit in units:
            self._may_take(node, unit, milli, mig=ask["mode"] == "mig")
        self.held[lease] = {unit: milli for _, unit in units}
        self.since[lease] = now
        self.charged[lease] = (tenant, event["charge_milli"])
        assert self.usage(tenant) <= self.nominal[tenant], "more than the quota"

    def _may_take(self, node: str, unit: str, milli: int, *, mig: bool) -> None:
        device = self.slice_of[unit] if mig else unit
        assert self.home[device] == node
        assert self.health[device] == "healthy"
        assert device not in self.shut
        assert unit not in self.shut
        assert node not in self.silent
        assert self.modes[node] == "online"
        if mig:
            assert not self.holders(unit), "one holder of a slice"
            assert not self.holders(device), "not sliced and held whole"
            return
        assert device not in self.slice_of.values(), "not whole while it is sliced"
        assert sum(self.holders(unit).values()) + milli <= 1000, "more than the device"

    def holders(self, unit: str) -> dict[str, int]:
        """Return the leases that hold a unit, and those that it is not clean after."""
        live = {lease: units[unit] for lease, units in self.held.items() if unit in units}
        return self.dirty.get(unit, {}) | live

    def usage(self, tenant: str) -> int:
        """Return what the tenant is charged now."""
        return sum(milli for name, milli in self.charged.values() if name == tenant)

    def _lease_ended(self, event: dict[str, Any], now: int) -> None:
        lease = event["lease"]
        assert event["held_us"] == now - self.since[lease]
        del self.charged[lease]
        for unit, milli in self.held.pop(lease).items():
            self.dirty.setdefault(unit, {})[lease] = milli

    def _order_issued(self, event: dict[str, Any], _now: int) -> None:
        if event["kind"] == "clean":
            self.cleaning[event["order"]] = event

    def _cleaned(self, name: str) -> list[str]:
        """Take an order off the list; return its units that are still where it was sent."""
        order = self.cleaning.pop(name, {"units": (), "lease": ""})
        there = [
            unit
            for unit in order["units"]
            if self.home.get(self.slice_of.get(unit, unit)) == order["node"]
        ]
        for unit in there:
            self.dirty.get(unit, {}).pop(order["lease"], None)
        return there

    def _order_done(self, event: dict[str, Any], _now: int) -> None:
        self._cleaned(event["order"])

    def _order_superseded(self, event: dict[str, Any], _now: int) -> None:
        self.cleaning.pop(event["order"], None)

    def _order_failed(self, event: dict[str, Any], _now: int) -> None:
        units = self._cleaned(event["order"])
        assert self.shut.issuperset(units), "what is not proved clean is shut away"

    _order_timed_out = _order_failed

    # -- side by side -----------------------------------------------------------

    def compare(self, state: State) -> None:
        """Hold the pencil's sums against the ledger's."""
        leases = {
            lease.id: {unit for part in lease.parts.values() for unit in part.units}
            for lease in state.leases.values()
        }
        assert leases == {lease: set(units) for lease, units in self.held.items()}
        for tenant in state.tenants.values():
            assert tenant.held_milli == self.usage(tenant.name)
        assert {one.id for one in state.requests.values() if one.state == "queued"} == self.waiting
        assert not self.over & set(state.requests)
