"""What the events about later do to the state: nodes to settle, repair of gangs, reservations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ledger.core.promises.repair import Repair, let_repair_go
from ledger.core.promises.reservations import SHORT, Reservation

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.core.state import State

__all__ = ["PROMISES"]

Event = dict[str, Any]


def _node_unsettled(state: State, event: Event, now: int) -> None:
    node = state.nodes[event["node"]]
    node.unsettled, node.unsettled_us = event["reason"], now
    state.index.due(state, now, "settle", node.name)
    state.index.refresh_node(state, node)


def _node_settled(state: State, event: Event, _now: int) -> None:
    node = state.nodes[event["node"]]
    node.unsettled, node.unsettled_us = None, 0
    state.index.refresh_node(state, node)


def _repairing(state: State, event: Event, _now: int) -> None:
    request = state.requests[event["request"]]
    let_repair_go(state, request)
    parts = {part["node"]: list(part["units"]) for part in event["parts"]}
    request.repair = Repair(parts, event["until_us"])
    state.index.repairing(request)
    state.index.due(state, event["until_us"], "repair", request.id)


def _repair_over(state: State, event: Event, _now: int) -> None:
    let_repair_go(state, state.requests[event["request"]])


def _applied(state: State, event: Event, now: int) -> None:
    name = event["reservation"]
    before = state.reservations.get(name)
    if before is not None:
        state.index.unbooked(before)
    one = state.reservations[name] = Reservation(
        name,
        event["tenant"],
        event.get("pool"),
        list(event.get("models", ())),
        event["count"],
        event["nodes"],
        event["start_us"],
        event["end_us"],
        list(event["chosen"]),
        event["model"],
        event["device_mib"],
        opened=event["start_us"] <= now,
    )
    state.alarms.pop(f"{SHORT} {name}", None)
    state.index.booking(one)
    state.index.due(state, None if one.opened else one.start_us, "opens", name)
    state.index.due(state, one.end_us, "closes", name)
    # How long a request may run matters from now on to whether it has a place.
    state.index.quotas_changed(state, reshaped=True)


def _moved(state: State, event: Event, _now: int) -> None:
    one = state.reservations[event["reservation"]]
    state.index.unbooked(one)
    one.chosen = list(event["chosen"])
    one.model, one.device_mib = event["model"], event["device_mib"]
    state.alarms.pop(f"{SHORT} {one.name}", None)
    state.index.booking(one)
    state.index.quotas_changed(state, reshaped=False)


def _opened(state: State, event: Event, _now: int) -> None:
    one = state.reservations[event["reservation"]]
    one.opened = True
    # From now on those that are open beside it are counted together with it.
    for node in one.chosen:
        state.index.unsure.update(state.index.booked.get(node, ()))
    state.index.quotas_changed(state, reshaped=False)


def _cancelled(state: State, event: Event, now: int) -> None:
    one = state.reservations[event["reservation"]]
    one.cancelled, one.end_us = True, now
    state.index.due(state, now, "closes", one.name)


def _ended(state: State, event: Event, _now: int) -> None:
    one = state.reservations.pop(event["reservation"])
    state.alarms.pop(f"{SHORT} {one.name}", None)
    state.index.unbooked(one)
    state.index.quotas_changed(state, reshaped=True)


PROMISES: dict[str, Callable[[State, Event, int], None]] = {
    "node.unsettled": _node_unsettled,
    "node.settled": _node_settled,
    "request.repairing": _repairing,
    "request.repair-over": _repair_over,
    "reservation.applied": _applied,
    "reservation.moved": _moved,
    "reservation.opened": _opened,
    "reservation.cancelled": _cancelled,
    "reservation.ended": _ended,
}
