"""Advance reservations: applied, cancelled, opened, closed, and moved when a node fails.

The nodes are chosen when it is applied and are on record. If one of them goes out of use
before the start, others are chosen if there are any; else, or later, an alarm says that
it is short, and it is looked at again with every decision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.core.limits import MAX_DUE, MAX_MOVED, MAX_RESERVATIONS
from ledger.core.promises.reservations import (
    SHORT,
    Reservation,
    choose_nodes,
    stands,
    stretch_clash,
)
from schemas.limits import MAX_LISTED_TEXT

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.core.decisions.turn import Answer, Input, Numbers, Turn
    from ledger.core.state import Lease, Need, State
    from schemas.reservations import ReservationApply, ReservationCancel

__all__ = [
    "RESERVATIONS",
    "close_reservation",
    "mend_reservations",
    "not_within",
    "open_reservation",
    "too_long",
]


def _apply(turn: Turn, given: Input) -> Answer:
    asked: ReservationApply = given.data
    state = turn.state
    if asked.tenant not in state.quotas:
        return "unknown_tenant", {"tenant": asked.tenant}
    if asked.pool is not None and asked.pool not in state.pools:
        return "unknown_pool", {"pool": asked.pool}
    before = state.reservations.get(asked.reservation)
    if before is not None and before.tenant != asked.tenant:
        # Those of the other who wait within it would run in this one's.
        return "not_reserved_for", {"reservation": before.name, "tenant": asked.tenant}
    if asked.end_us <= turn.now_us:
        return "window_past", {"end_us": asked.end_us, "now_us": turn.now_us}
    if before is None and len(state.reservations) >= MAX_RESERVATIONS:
        return "too_many_reservations", {"most": MAX_RESERVATIONS}
    wanted = Reservation(
        asked.reservation, asked.tenant, asked.pool, list(asked.models), asked.count, asked.nodes,
        asked.start_us, asked.end_us, [] if before is None else before.chosen,
    )  # fmt: skip
    found, most = choose_nodes(state, wanted, turn.now_us)
    if found is None:
        return "no_capacity", {
            "needs_places": asked.nodes,
            "gpus_per_place": asked.count,
            "places": most,
            "start_us": asked.start_us,
        }
    key, chosen = found
    event = {
        "type": "reservation.applied",
        "reservation": asked.reservation,
        "tenant": asked.tenant,
        "count": asked.count,
        "nodes": asked.nodes,
        "start_us": asked.start_us,
        "end_us": asked.end_us,
        "chosen": chosen,
        "model": key[1],
        "device_mib": key[2],
        "author": asked.author,
        "reason": asked.reason,
    }
    more = {"pool": asked.pool, "models": list(asked.models)}
    turn.emit(event | {name: value for name, value in more.items() if value})
    return "applied", {"nodes": ", ".join(chosen)[:MAX_LISTED_TEXT], "model": key[1]}


def _cancel(turn: Turn, given: Input) -> Answer:
    asked: ReservationCancel = given.data
    one = turn.state.reservations.get(asked.reservation)
    if one is None:
        return "unknown_reservation", {"reservation": asked.reservation}
    if one.cancelled:
        return "unchanged", {}
    turn.emit(
        {
            "type": "reservation.cancelled",
            "reservation": one.name,
            "author": asked.author,
            "reason": asked.reason,
        }
    )
    close_reservation(turn, one.name)
    return "cancelled", {}


def not_within(state: State, tenant: str, name: str | None, need: Need) -> Answer | None:
    """Say why the tenant's request could never run within the reservation it names, if any."""
    if name is None:
        return None
    one = state.reservations.get(name)
    if one is None:
        return "unknown_reservation", {"reservation": name}
    if one.tenant != tenant:
        return "not_reserved_for", {"reservation": name, "tenant": tenant}
    if need.mode == "mig" or need.count > one.count or need.nodes > one.nodes:
        return "exceeds_reservation", {
            "mode": need.mode,
            "asked_nodes": need.nodes,
            "asked_per_node": need.count,
            "nodes": one.nodes,
            "per_node": one.count,
        }
    return None


def too_long(state: State, lease: Lease, due_us: int, now_us: int) -> Answer | None:
    """Say which reservation forbids that the lease ends only at ``due_us``: its own or another."""
    own = state.reservations.get(state.requests[lease.request].reservation or "")
    if own is not None and due_us > own.end_us:
        return "exceeds_reservation", {"due_us": due_us, "end_us": own.end_us}
    other = stretch_clash(state, lease, due_us, now_us)
    if other is not None:
        return "planned_for_another", {"reservation": other.name, "start_us": other.start_us}
    return None


def open_reservation(turn: Turn, name: str) -> None:
    """Begin the reservation's time: who waits within it may run."""
    turn.emit({"type": "reservation.opened", "reservation": name})


def close_reservation(turn: Turn, name: str) -> None:
    """End the reservation, after the requests that wait within it: they can never run there.

    What runs has its own end, which is no later than the reservation's was.
    """
    state = turn.state
    one = state.reservations[name]
    shapes = [each for key, each in state.index.waiting.shapes.items() if key.reservation == name]
    for _, request in sorted(entry for shape in shapes for entry in shape.line):
        if len(turn.events) >= MAX_DUE:
            # It is still due: the next decision goes on.
            state.index.due(state, one.end_us, "closes", name)
            return
        turn.emit({"type": "request.ended", "request": request, "how": "reservation-over"})
    how = "cancelled" if one.cancelled else "over"
    turn.emit({"type": "reservation.ended", "reservation": name, "how": how})


def mend_reservations(turn: Turn) -> None:
    """See whether the reservations whose nodes have changed still stand; move those that do not.

    Those that are not moved because a record has no room for more are short, and are looked
    at again with the next decision.
    """
    state = turn.state
    unsure = state.index.unsure
    short = [name for name in state.reservations if f"{SHORT} {name}" in state.alarms]
    named = 0
    for name in sorted({*unsure, *short}):
        one = state.reservations.get(name)
        if one is not None and not one.cancelled:
            named += one.nodes * _mend(turn, state, one, may_move=named < MAX_MOVED)
    unsure.clear()


def _mend(turn: Turn, state: State, one: Reservation, *, may_move: bool) -> bool:
    """See to one; return whether it was moved."""
    standing = stands(state, one, turn.now_us)
    alarmed = f"{SHORT} {one.name}" in state.alarms
    if standing:
        if alarmed and may_move:
            here = (one.model, one.device_mib)
            _move(turn, one, one.chosen, here, "its nodes can serve it again")
        return alarmed and may_move
    numbers: Numbers = {"needs_places": one.nodes, "gpus_per_place": one.count}
    if may_move:
        found, most = choose_nodes(state, one, turn.now_us)
        if found is not None and turn.now_us < one.start_us:
            key, chosen = found
            _move(turn, one, chosen, (key[1], key[2]), "a node went out of use")
            return True
        numbers["places"] = most
    turn.alarm(SHORT, one.name, numbers)
    return False


def _move(
    turn: Turn, one: Reservation, chosen: list[str], kind: tuple[str, int], reason: str
) -> None:
    turn.emit(
        {
            "type": "reservation.moved",
            "reservation": one.name,
            "chosen": list(chosen),
            "model": kind[0],
            "device_mib": kind[1],
            "reason": reason,
        }
    )


RESERVATIONS: dict[str, Callable[[Turn, Input], Answer]] = {
    "reservation.apply": _apply,
    "reservation.cancel": _cancel,
}
