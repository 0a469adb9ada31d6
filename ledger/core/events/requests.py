"""What the events about requests do to the state: in line, with a place kept, ended.

The rules that no ledger may break are checked here again, on every fold: a log
that breaks one is damaged, whoever wrote it (`RuleBroken`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ledger.core.admitting.licences import count_licences, licences_short
from ledger.core.lifecycles import step
from ledger.core.need import need_from_plain
from ledger.core.placing.constraints import for_tenant
from ledger.core.promises.repair import let_repair_go
from ledger.core.quotas.quota import Charge, holder_of, leave, remove, take
from ledger.core.state import Plan, Request, State

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "REQUEST_EVENTS",
    "RuleBroken",
    "charge_of_event",
    "count",
    "let_reservation_go",
    "uncount",
]

Event = dict[str, Any]


class RuleBroken(ValueError):
    """An event breaks an invariant; names it and the numbers."""

    def __init__(self, invariant: str, text: str) -> None:
        """Remember which invariant."""
        super().__init__(f"{invariant}: {text}")
        self.invariant = invariant


def _request_received(state: State, event: Event, now: int) -> None:
    name = event["request"]
    if name in state.requests:
        raise RuleBroken("L1", f"request {name} is received a second time")
    if event["tenant"] not in state.quotas or event["queue"] not in state.queues:
        raise RuleBroken("Q2", f"request {name} names a quota or queue that does not exist")
    state.arrivals += 1
    get = event.get
    need = need_from_plain(event["need"])
    state.requests[name] = Request(
        name,
        "",
        event["tenant"],
        get("project"),
        event["queue"],
        event["task"],
        event["task_type"],
        for_tenant(state, need, event["tenant"]) if state.pools_limited else need,
        get("priority", 0),
        get("preemptible", False),
        now,
        state.arrivals,
        get("wait_due_us"),
        get("max_run_us"),
        get("expected_run_us"),
        get("retries", 0),
        get("replicas_min", 0),
        get("recovery"),
        get("template"),
        reservation=get("reservation"),
    )


def _request_rejected(state: State, event: Event, now: int) -> None:
    name = event["request"]
    if name in state.requests:
        raise RuleBroken("A5", f"request {name} is rejected after it was let in")
    state.seen[name] = ["", event["code"], now, "rejected", 0]


def _request_queued(state: State, event: Event, now: int) -> None:
    request = state.requests[event["request"]]
    request.state = step("request", request.id, request.state, "queued")
    if event["again"]:
        # Who was evicted has not failed: it costs no retry.
        request.retries -= request.code != "preempted"
        if request.retries < 0:
            raise RuleBroken("A5", f"request {request.id} is queued again with no retry left")
        request.wait_due_us = None
    request.code = event["code"]
    request.lease = None
    state.index.queued(state, request)
    _rest(state, request, now)


def _rest(state: State, request: Request, now: int) -> None:
    """Let one that was evicted and waits rest for what is left of its time, if anything is."""
    if request.rests_until_us is not None and request.rests_until_us <= now:
        request.rests_until_us = None
        state.index.loosened_queues.add(request.queue)
    state.index.due(state, request.rests_until_us, "rest", request.id)


def _request_ended(state: State, event: Event, now: int) -> None:
    request = state.requests.pop(event["request"])
    step("request", request.id, request.state, "ended")
    if request.lease is not None and request.lease in state.leases:
        raise RuleBroken("A5", f"request {request.id} ends while lease {request.lease} lasts")
    if request.state == "queued":
        state.index.unqueued(state, request)
    if request.kept:
        let_reservation_go(state, request)
    if request.plan is not None:
        state.index.unplanned(state, request)
    if request.repair is not None:
        let_repair_go(state, request)
    state.seen.pop(request.id, None)
    state.seen[request.id] = [request.fp, request.code, now, event["how"], request.attempt]


def _request_rested(state: State, event: Event, _now: int) -> None:
    request = state.requests[event["request"]]
    request.rests_until_us = None
    state.index.loosened_queues.add(request.queue)


def _request_reserved(state: State, event: Event, _now: int) -> None:
    """A place is kept: it counts from now on, and nobody else is given it (Q2)."""
    request = state.requests[event["request"]]
    if request.state == "queued":
        state.index.unqueued(state, request)
    state.index.unplanned(state, request)
    let_repair_go(state, request)
    request.state = step("request", request.id, request.state, "reserved")
    request.code = "reserved"
    units = sum(len(part["units"]) for part in event["parts"])
    request.charge = charge_of_event(state, request, event, units)
    count(state, request, event["request"])
    request.kept = {part["node"]: list(part["units"]) for part in event["parts"]}
    state.index.kept(request, 1)
    for node, kept in request.kept.items():
        for unit in kept:
            thing = state.slices.get(unit) or state.devices[unit]
            if thing.kept_for is not None:
                raise RuleBroken("A1", f"{unit} is kept for {thing.kept_for} already")
            thing.kept_for = request.id
        _refresh(state, node, kept)


def _request_unreserved(state: State, event: Event, now: int) -> None:
    request = state.requests[event["request"]]
    request.state = step("request", request.id, request.state, "queued")
    let_reservation_go(state, request)
    state.index.queued(state, request)
    _rest(state, request, now)


def let_reservation_go(state: State, request: Request) -> None:
    """Give free what was kept for the request; it no longer counts."""
    if not request.kept:
        return
    state.index.kept(request, -1)
    kept, request.kept = request.kept, {}
    state.index.waits_on.pop(request.id, None)
    for node, units in kept.items():
        for unit in units:
            thing = state.slices.get(unit) or state.devices.get(unit)
            if thing is not None and thing.kept_for == request.id:
                thing.kept_for = None
        _refresh(state, node, units)
        if request.need.cpu_milli or request.need.host_memory_mib:
            # There is more room beside the devices, also where what was kept is not free yet.
            state.index.free_class(state, state.nodes[node])
    uncount(state, request)


def _request_planned(state: State, event: Event, _now: int) -> None:
    request = state.requests[event["request"]]
    state.index.unplanned(state, request)
    request.plan = Plan(list(event["nodes"]), event["start_us"]) if event["nodes"] else None
    state.index.planned(request)


def _refresh(state: State, node: str, units: list[str]) -> None:
    uuids = [state.slices[unit].device if unit in state.slices else unit for unit in units]
    here = [uuid for uuid in uuids if uuid in state.devices and state.devices[uuid].node == node]
    state.index.refresh(state, state.nodes[node], here)


def charge_of_event(state: State, request: Request, event: Event, units: int) -> Charge:
    """Return what the event's place counts for."""
    profile = request.need.profile
    if not profile and request.need.mode == "mig":
        profile = state.slices[event["parts"][0]["units"][0]].profile
    left = (request.max_run_us or 0) - request.used_us
    return Charge(
        event["charge_milli"],
        event.get("model", ""),
        profile,
        units,
        event.get("memory_mib", 0),
        max(0, left),
    )


def count(state: State, request: Request, what: str) -> str:
    """Count the request's charge; a quota that it does not fit under is a broken log (Q1).

    Return the name of the quota.
    """
    charge = request.charge
    assert charge is not None
    holder = holder_of(state, request.tenant, request.project)
    if request.need.terms is not None:
        short = licences_short(state, request.need)
        if short is not None:
            raise RuleBroken(
                "Q2", f"{what}: {short['asked']} of licence {short['licence']} are lacking"
            )
        count_licences(state, request.need, 1)
    over = take(state, holder, charge)
    if over is not None:
        asked, resource, left = over.asked, over.resource, over.available
        raise RuleBroken("Q1", f"{what}: {holder} asks {asked} of {resource}, {left} is left")
    state.index.tightened(state, holder)
    return holder


def uncount(state: State, request: Request) -> None:
    """Let the request count against its quota no longer."""
    if request.charge is None:
        return
    holder = holder_of(state, request.tenant, request.project)
    if request.evicted:
        leave(state.quotas[holder], request.charge, -1)
    else:
        remove(state, holder, request.charge)
    count_licences(state, request.need, -1)
    request.charge = None
    request.evicted = False
    state.index.relieve(state, holder)


REQUEST_EVENTS: dict[str, Callable[[State, Event, int], None]] = {
    "request.received": _request_received,
    "request.rejected": _request_rejected,
    "request.queued": _request_queued,
    "request.ended": _request_ended,
    "request.rested": _request_rested,
    "request.reserved": _request_reserved,
    "request.unreserved": _request_unreserved,
    "request.planned": _request_planned,
}
