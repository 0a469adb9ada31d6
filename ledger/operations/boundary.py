"""Who is on which card, from the events alone: a second account that shares nothing with the core.

Each grant is held against what this account has of its devices. Who has left is on a card
until it is proved clean, so one look says both: nobody else is there, and nobody's remains.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ledger.operations.measure import Window
    from ledger.reading import Seen

__all__ = ["RULES", "Boundary", "Peak"]

_WHOLE_MILLI = 1000
_PLACES = 3

#: Rule -> what must hold of every grant.
RULES = {
    "observed": "every device and slice that is granted was reported by its node before",
    "healthy": "nothing is granted on a device that is unhealthy, away or in quarantine",
    "online": "nothing is granted on a node that is not online",
    "alone": "a whole card has one holder, and slices that are leased do not overlap",
    "shares": "the shares of a card sum to no more than the card",
    "memory": "the memory promised on a shared card is no more than its pool lets it be",
    "clean": "nothing is granted where what was there before is not proved clean",
    "once": "a request has one lease at a time",
    "quota": "a tenant with nobody to borrow from never has more than its quota",
}


class _On(NamedTuple):
    """Who is on a card: how much of it, its memory slices (size 0: no slice), its memory."""

    lease: str
    unit: str
    milli: int
    first: int
    size: int
    memory_mib: int


class Peak(NamedTuple):
    """The most holders that one card had at once."""

    device: str = ""
    time_us: int = 0
    place: str = ""
    holders: tuple[dict[str, Any], ...] = ()


class Boundary:
    """Follows one window; what was before it is followed too, and not counted."""

    def __init__(self, window: Window) -> None:
        """Begin with nothing."""
        self.window = window
        self.held: Counter[str] = Counter()
        self.broken: Counter[str] = Counter()
        self.places: dict[str, list[str]] = {}
        self.peak = Peak()
        self.modes: Counter[str] = Counter()
        self.devices: dict[str, dict[str, Any]] = {}
        self.slices: dict[str, dict[str, Any]] = {}
        self.returned: Counter[str] = Counter()
        self._health: dict[str, str] = {}
        self._nodes: dict[str, str] = {}
        self._modes: dict[str, str] = {}
        self._pools: set[str] = set()
        self._on: dict[str, dict[tuple[str, str], _On]] = {}
        #: Leases that are over, and of each lease how many units are not clean yet.
        self._over: set[str] = set()
        self._left: Counter[str] = Counter()
        self._leases: dict[str, tuple[str, str, int]] = {}
        self._tenants: dict[str, str] = {}
        self._live: Counter[str] = Counter()
        self._used: Counter[str] = Counter()
        self._nominal: dict[str, int | None] = {}
        self._asks: dict[str, dict[str, Any]] = {}
        self._cleans: dict[str, tuple[str, tuple[str, ...]]] = {}
        self._within = False
        self._place = ""
        self._now_us = 0

    def take(self, seen: Seen) -> None:
        """Follow one effective record."""
        self._now_us, self._place = seen.data["time_us"], seen.position
        if self._now_us >= self.window.end_us:
            return
        self._within = self.window.holds(self._now_us)
        for event in seen.data["events"]:
            rule = _EVENTS.get(event["type"])
            if rule is not None:
                rule(self, event)

    # -- what there is -----------------------------------------------------------

    def discovered(self, event: dict[str, Any]) -> None:
        """Note a device; one that was gone is back under the same UUID."""
        uuid = event["device"]
        if self._health.get(uuid) == "gone" and self._within:
            self.returned[uuid] += 1
            self._keep("returned")
        self.devices[uuid] = event
        self._health[uuid] = "healthy"

    def health(self, event: dict[str, Any]) -> None:
        """Note a device's health."""
        self._health[event["device"]] = event["health"]

    def quarantined(self, event: dict[str, Any]) -> None:
        """Note that a unit is out of use until an operator's word."""
        self._health[f"quarantine {event['unit']}"] = "quarantined"

    def cleared(self, event: dict[str, Any]) -> None:
        """An operator's word: the device is clean, and its slices are."""
        units = {event["device"], *self._slices_of(event["device"])}
        for unit in units:
            self._health.pop(f"quarantine {unit}", None)
        there = self._on.get(event["device"], {})
        self._leave(event["device"], [key for key in there if key[0] in self._over])

    def node(self, event: dict[str, Any]) -> None:
        """Note the state of a node, and the mode that an operator has put it in."""
        self._nodes[event["node"]] = event["state"]
        if event.get("mode") is not None:
            self._modes[event["node"]] = event["mode"]

    def registered(self, event: dict[str, Any]) -> None:
        """Note a node that told what it is; what an operator said of it goes on."""
        node = event["node"]
        known = event["pool"] in self._pools
        self._nodes[node] = self._modes.get(node, "online") if known else "registering"

    def pool(self, event: dict[str, Any]) -> None:
        """Note a pool: nodes of others are not in service."""
        self._pools.add(event["pool"])

    def present(self, event: dict[str, Any]) -> None:
        """Note a slice."""
        self.slices[event["slice"]] = event

    def gone(self, event: dict[str, Any]) -> None:
        """Forget a slice, and who was on it."""
        item = self.slices.pop(event["slice"], None)
        if item is not None:
            there = self._on.get(item["device"], {})
            self._leave(item["device"], [key for key in there if key[1] == event["slice"]])

    def _leave(self, device: str, keys: Iterable[tuple[str, str]]) -> None:
        """Forget who is not on a card any more, and leases of which nothing is left."""
        on = self._on.get(device, {})
        for key in keys:
            if on.pop(key, None) is None:
                continue
            self._left[key[0]] -= 1
            if not self._left[key[0]]:
                del self._left[key[0]]
                self._over.discard(key[0])

    def _slices_of(self, device: str) -> list[str]:
        return [name for name, item in self.slices.items() if item["device"] == device]

    # -- who is there ------------------------------------------------------------

    def received(self, event: dict[str, Any]) -> None:
        """Note whose a request is."""
        self._tenants[event["request"]] = event["tenant"]

    def quota(self, event: dict[str, Any]) -> None:
        """Note a tenant's quota; None where it may borrow from others."""
        if event.get("project") is None:
            alone = event.get("parent") is None
            self._nominal[event["tenant"]] = event["nominal_gpu_milli"] if alone else None

    def asked(self, event: dict[str, Any]) -> None:
        """Note a larger quota that was asked for."""
        self._asks[event["ask"]] = event

    def answered(self, event: dict[str, Any]) -> None:
        """A larger quota that is approved is in force."""
        asked = self._asks.pop(event["ask"], None)
        if asked is None or not event["approve"] or asked.get("project") is not None:
            return
        if self._nominal.get(asked["tenant"]) is not None:
            self._nominal[asked["tenant"]] = asked["nominal_gpu_milli"]

    def granted(self, event: dict[str, Any]) -> None:
        """Hold a grant against the account, and enter it."""
        lease, request = event["lease"], event["request"]
        tenant = self._tenants.get(request, "")
        self._leases[lease] = (request, tenant, event["charge_milli"])
        self._live[request] += 1
        self._used[tenant] += event["charge_milli"]
        self._judge("once", self._live[request] == 1)
        nominal = self._nominal.get(tenant)
        if nominal is not None:
            self._judge("quota", self._used[tenant] <= nominal)
        units = [(part["node"], unit) for part in event["parts"] for unit in part["units"]]
        self._judge("observed", all(u in self.devices or u in self.slices for _, u in units))
        for node, unit in units:
            self._judge("online", self._nodes.get(node) == "online")
            self._enter(event, unit, len(units))

    def _enter(self, event: dict[str, Any], unit: str, count: int) -> None:
        item = self.slices.get(unit)
        device = unit if item is None else item["device"]
        marks = (self._health.get(device), *(
            self._health.get(f"quarantine {one}") for one in (device, unit)
        ))  # fmt: skip
        self._judge("healthy", marks == ("healthy", None, None))
        milli = event["charge_milli"] // count
        first, size = (0, 0) if item is None else (item["start"], item["size"])
        new = _On(event["lease"], unit, milli, first, size, event.get("memory_mib", 0) // count)
        on = self._on.setdefault(device, {})
        others = list(on.values())
        self._judge("clean", not any(_clash(one, new) for one in others if one.lease in self._over))
        self._judge("alone", not any(
            _clash(one, new) for one in others if one.lease not in self._over
        ))  # fmt: skip
        on[event["lease"], unit] = new
        self._left[event["lease"]] += 1
        mode = "slice" if size else "whole" if milli == _WHOLE_MILLI else "share"
        if self._within:
            self.modes[mode] += 1
        if mode == "share":
            self._judge("shares", sum(one.milli for one in on.values()) <= _WHOLE_MILLI)
            memory_mib = self.devices.get(device, {}).get("memory_mib", 0)
            most_mib = memory_mib * event.get("memory_overcommit_permille", 1000) // 1000
            self._judge("memory", sum(one.memory_mib for one in on.values()) <= most_mib)
        self._look_at_peak(device, on)

    def _look_at_peak(self, device: str, on: dict[tuple[str, str], _On]) -> None:
        there = [one for one in on.values() if one.lease not in self._over]
        if self._within and len(there) > len(self.peak.holders):
            holders = tuple(
                {
                    "lease": one.lease,
                    "tenant": self._leases[one.lease][1],
                    "unit": one.unit,
                    "gpu_milli": one.milli,
                    "memory_mib": one.memory_mib,
                    "memory_slices": f"{one.first}-{one.first + one.size - 1}"
                    if one.size
                    else None,
                }
                for one in there
            )
            self.peak = Peak(device, self._now_us, self._place, holders)

    def ended(self, event: dict[str, Any]) -> None:
        """Who had the lease is over, and on its cards until they are proved clean."""
        request, tenant, milli = self._leases.pop(event["lease"])
        self._live[request] -= 1
        if not self._live[request]:
            del self._live[request]
        self._used[tenant] -= milli
        if event["lease"] in self._left:
            self._over.add(event["lease"])

    def request_ended(self, event: dict[str, Any]) -> None:
        """Forget whose a request was."""
        self._tenants.pop(event["request"], None)

    def ordered(self, event: dict[str, Any]) -> None:
        """Note what is to be cleaned of whom."""
        if event["kind"] == "clean":
            self._cleans[event["order"]] = (event["lease"], tuple(event["units"]))

    def done(self, event: dict[str, Any]) -> None:
        """Clean: who was there is not any more."""
        lease, units = self._cleans.pop(event["order"], ("", ()))
        for unit in units:
            item = self.slices.get(unit)
            device = unit if item is None else item["device"]
            self._leave(device, [(lease, unit)])

    def _judge(self, rule: str, good: bool) -> None:  # noqa: FBT001 - the answer to the rule
        if not self._within:
            return
        self.held[rule] += good
        self.broken[rule] += not good
        self._keep(rule if good else f"broken {rule}")

    def _keep(self, name: str) -> None:
        """Keep the place of a record, if it is among the first of its kind."""
        kept = self.places.setdefault(name, [])
        if len(kept) < _PLACES and self._place not in kept:
            kept.append(self._place)


def _clash(one: _On, new: _On) -> bool:
    """Say whether two cannot be on one card: by slices that overlap, or as one has it whole."""
    if one.size and new.size:
        return one.first < new.first + new.size and new.first < one.first + one.size
    if one.size or new.size:
        return True
    return _WHOLE_MILLI in (one.milli, new.milli)


_EVENTS: dict[str, Callable[[Boundary, dict[str, Any]], None]] = {
    "device.discovered": Boundary.discovered,
    "device.health": Boundary.health,
    "device.quarantined": Boundary.quarantined,
    "slice.quarantined": Boundary.quarantined,
    "device.cleared": Boundary.cleared,
    "pool.applied": Boundary.pool,
    "node.registered": Boundary.registered,
    "node.changed": Boundary.node,
    "slice.present": Boundary.present,
    "slice.gone": Boundary.gone,
    "request.received": Boundary.received,
    "quota.applied": Boundary.quota,
    "quota.asked": Boundary.asked,
    "quota.answered": Boundary.answered,
    "lease.granted": Boundary.granted,
    "lease.ended": Boundary.ended,
    "request.ended": Boundary.request_ended,
    "order.issued": Boundary.ordered,
    "order.done": Boundary.done,
}
