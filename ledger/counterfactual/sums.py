"""What the decisions of one cell come to, from a state on: waits, ends, GPU time, what is free.

The recorded decisions and those of a replay are counted by the same rules, from their
events and the state that they leave.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ledger.billing.seconds import TILES
from ledger.counterfactual.free import Samples
from ledger.counterfactual.memory import Memory
from ledger.counterfactual.use import Use
from ledger.metering.meter import Meter
from ledger.metering.rows import OUTCOMES, Ended, Row

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ledger.core.state import State

__all__ = ["Asked", "Sums"]

Event = dict[str, Any]


@dataclass(slots=True)
class Asked:
    """One request: whose, since when, when it had its first lease, and how it ended.

    ``granted_us`` None: it never had one. ``over_us`` None: it waits or runs. ``early``: it
    had a lease before the first decision, so its wait is no part of this.
    """

    tenant: str
    type: str
    received_us: int
    granted_us: int | None = None
    over_us: int | None = None
    how: str = ""
    early: bool = False

    @property
    def rejected(self) -> bool:
        """Say whether it was refused when it came: then it never waited."""
        return self.how.startswith("refused ")

    def wait_us(self, end_us: int) -> int:
        """Return how long it waited for a lease: until then, until it was over, or until now."""
        until_us = self.over_us if self.granted_us is None else self.granted_us
        return (end_us if until_us is None else until_us) - self.received_us


class Sums:
    """Counts one world. Each decision that changes something is given to `take`.

    ``rows`` keeps the metered rows by device: they are what a bill is made of. ``peaks``
    are the most memory that leases' tasks had, in MiB by request.
    """

    def __init__(
        self,
        state: State,
        start_us: int,
        step_us: int,
        *,
        rows: bool = False,
        peaks: Mapping[str, int] | None = None,
    ) -> None:
        """Begin with the state before the first decision."""
        self.state = state
        self.start_us = start_us
        self.end_us = start_us
        self.asked: dict[str, Asked] = {}
        self.ends: Counter[str] = Counter()
        self.interrupted: Counter[tuple[str, str]] = Counter()
        self.lost_milli_us: Counter[str] = Counter()
        self.granted = 0
        self.use = Use(state, start_us)
        self.rows: dict[str, list[Row]] = {}
        self.free = Samples(start_us, step_us)
        self.memory = Memory(peaks or {}, start_us)
        self._measured = peaks is not None
        self._charges: dict[str, tuple[str, int]] = {}
        self._meter = Meter(state.cell) if rows else None
        self._prime(state)

    def _prime(self, state: State) -> None:
        """Take over what is there, as if it had all happened at once."""
        for request in state.requests.values():
            one = Asked(request.tenant, request.task_type, request.received_us)
            if request.attempt:
                one.granted_us, one.early = request.received_us, True
            self.asked[request.id] = one
        for lease in state.leases.values():
            self._charges[lease.id] = (lease.tenant, lease.charge_milli)
        if self._measured:
            self.memory.begin(state)
        if state.devices:
            there = _there(state)
            self.free.take(state, there, self.start_us)
            self._metered(self.start_us, "", {}, there)

    def take(self, now_us: int, kind: str, data: dict[str, Any], events: list[Event]) -> None:
        """Count a decision that was made at a time on an input of a kind; the state is after it."""
        state = self.state
        self.end_us = max(self.end_us, now_us)
        for event in events:
            rule = _RULES.get(event["type"])
            if rule is not None:
                rule(self, event, now_us, data)
        if self._measured:
            self.memory.take(state, events, now_us)
        self.use.take(state, events, now_us)
        self.free.take(state, events, now_us)
        self._metered(now_us, kind, data, events)

    def finish(self, end_us: int) -> None:
        """Count up to a time after the last decision what has not ended."""
        self.end_us = end_us
        self.free.finish(end_us)
        self.memory.finish(end_us)
        self.use.finish(end_us)
        if self._meter is not None:
            self._meter.cut(end_us)
            self._keep(self._meter)

    def _metered(self, now_us: int, kind: str, data: dict[str, Any], events: list[Event]) -> None:
        if self._meter is not None:
            given = {"type": kind, "data": data}
            record = {"time_us": now_us, "events": events, "input": given}
            self._meter.take(self.state, record)
            self._keep(self._meter)

    def _keep(self, meter: Meter) -> None:
        for one in meter.drain():
            if not isinstance(one, Ended) and one.state in TILES:
                self.rows.setdefault(one.device, []).append(one)

    # -- events ------------------------------------------------------------------------

    def received(self, event: Event, now_us: int, _data: dict[str, Any]) -> None:
        """Count a request that was let in."""
        self.asked[event["request"]] = Asked(event["tenant"], event["task_type"], now_us)

    def rejected(self, event: Event, now_us: int, data: dict[str, Any]) -> None:
        """Count a request that was refused."""
        kind = data["task"].get("type", "training") if "task" in data else ""
        one = Asked(event["tenant"], kind, now_us, None, now_us, f"refused {event['code']}")
        self.asked[event["request"]] = one

    def request_ended(self, event: Event, now_us: int, _data: dict[str, Any]) -> None:
        """Count the end of a request."""
        one = self.asked[event["request"]]
        one.over_us, one.how = now_us, event["how"]

    def lease_granted(self, event: Event, now_us: int, _data: dict[str, Any]) -> None:
        """Count a grant; the first of a request ends its wait."""
        one = self.asked[event["request"]]
        self.granted += 1
        if one.granted_us is None:
            one.granted_us = now_us
        self._charges[event["lease"]] = (one.tenant, event["charge_milli"])

    def lease_ended(self, event: Event, _now_us: int, _data: dict[str, Any]) -> None:
        """Count the end of a lease; what was interrupted has lost its time."""
        tenant, milli = self._charges.pop(event["lease"])
        reason = event["reason"]
        self.ends[reason] += 1
        if OUTCOMES[reason] == "interrupted":
            self.interrupted[tenant, reason] += 1
            self.lost_milli_us[tenant] += milli * event["held_us"]


_RULES = {
    "request.received": Sums.received,
    "request.rejected": Sums.rejected,
    "request.ended": Sums.request_ended,
    "lease.granted": Sums.lease_granted,
    "lease.ended": Sums.lease_ended,
}


def _there(state: State) -> list[Event]:
    """Return events that tell a meter of everything that is there."""
    found: list[Event] = [{"type": "device.discovered", "device": uuid} for uuid in state.devices]
    found += [
        {"type": "slice.present", "slice": one.id, "device": one.device}
        for one in state.slices.values()
    ]
    for lease in state.leases.values():
        parts = [{"node": one.node, "units": one.units} for one in lease.parts.values()]
        found.append(
            {"type": "lease.granted", "lease": lease.id, "request": lease.request, "parts": parts}
        )
    for request in state.requests.values():
        if request.kept:
            parts = [{"node": node, "units": units} for node, units in request.kept.items()]
            found.append({"type": "request.reserved", "request": request.id, "parts": parts})
    found += [
        {"type": "order.issued", "order": one.id, "kind": one.kind, "units": one.units}
        for one in state.orders.values()
    ]
    return found
