"""Who gets what became free: a pass over the waiting line (C17, C19).

A request waits because its quota is in use, because an earlier one of its strict
queue waits for the same kind of device, because what is free is planned for an
earlier one, or because there is no place. After every decision no waiting request
could be placed; so a pass looks only at shapes that need something which the
decision has loosened, in order of turn, and ends when nothing more fits. Freeing
and giving are one decision: nothing can come between them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ledger.core.admitting.licences import licences_short
from ledger.core.decisions.partition import partition_for
from ledger.core.evicting.preemption import evict_for
from ledger.core.limits import EVENT_WEIGHT, LEASE_WEIGHT, MAX_GIVEN
from ledger.core.line.asking import class_over, memory_of, over_quota, quota_fits
from ledger.core.line.order_of_turn import Turns
from ledger.core.placing.isolation import given_by, isolation_of
from ledger.core.placing.links import evidence_of, link_numbers, over_links
from ledger.core.placing.placement import Placement, Shortfall, charge_of, place, shortfall
from ledger.core.promises.kept_place import settle_reserved
from ledger.core.promises.plans import allowed_nodes, drop_broken, drop_plan, plan_for
from ledger.core.promises.reservations import reserved_class, within_time
from ledger.core.quotas.quota import GPU, available, most_ever

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.core.decisions.turn import Turn
    from ledger.core.derived.places import ClassKey
    from ledger.core.derived.waiting import ShapeKey
    from ledger.core.line.asking import Asker
    from ledger.core.quotas.quota import Over
    from ledger.core.state import Request, State

__all__ = [
    "MAKES_ROOM",
    "examine",
    "grant",
    "holds_back",
    "make_room",
    "quota_numbers",
    "reason_to_wait",
    "run_pass",
]


#: Codes of requests for which slices are made, or others evicted. Where slices are free of a
#: class only that the quota has no room for, another's can be made.
MAKES_ROOM = ("no_capacity", "planned_for_another", "quota_in_use")


def examine(state: State, asker: Asker, now_us: int) -> Placement | str:
    """Return a place for the need, or the code of the first rule that holds it back."""
    key = asker.key
    terms = key.need.terms
    if key.reservation is not None and not within_time(state, key, now_us):
        return "reservation_not_open"
    if terms is not None and licences_short(state, key.need) is not None:
        return "licences_in_use"
    short = over_quota(state, key, now_us)
    if short is not None:
        return "budget_spent" if short.resource == "gpu_time" else "quota_in_use"
    if state.queues[key.queue].ordering == "strict" and _behind(state, asker, now_us):
        return "behind_in_queue"
    allowed = allowed_nodes(state, asker, now_us)
    reserved = None if key.reservation is None else reserved_class(state, key)
    fits = quota_fits(state, key, now_us)
    if reserved is not None:
        fits = _both(fits, reserved)
    reached = allowed if terms is None else over_links(state, key.need, allowed, now_us)
    found = place(state, key.need, fits, reached)
    if found is None:
        if key.need.delivery == "remote" and place(state, key.need, fits, allowed) is not None:
            return "no_fresh_evidence"
        if fits is not None and place(state, key.need, reserved, allowed) is not None:
            # There is a place, of a class that the quota has no room for: others may have it.
            return "quota_in_use"
        planned = allowed is not None and place(state, key.need) is not None
        return "planned_for_another" if planned else "no_capacity"
    return found


def _both(
    one: Callable[[ClassKey], bool] | None, other: Callable[[ClassKey], bool]
) -> Callable[[ClassKey], bool]:
    return other if one is None else lambda key: one(key) and other(key)


def reason_to_wait(state: State, key: ShapeKey, code: str, now_us: int) -> Shortfall:
    """Give the numbers that belong to the code that `examine` returned."""
    if code == "no_fresh_evidence":
        return Shortfall(code, link_numbers(state, key.need, now_us))
    if code == "licences_in_use":
        return Shortfall(code, licences_short(state, key.need) or {})
    if code in ("quota_in_use", "budget_spent"):
        short = over_quota(state, key, now_us) or class_over(state, key, now_us)
        return Shortfall(code, quota_numbers(state, key, short))
    if code == "reservation_not_open":
        one = state.reservations[key.reservation or ""]
        return Shortfall(code, {"reservation": one.name, "start_us": one.start_us})
    if code in ("behind_in_queue", "planned_for_another"):
        return Shortfall(code, {})
    return shortfall(state, key.need)


def quota_numbers(state: State, key: ShapeKey, short: Over | None) -> dict[str, int | str | None]:
    """Give what was compared; what is only worth saying of a tree or another resource, if so.

    ``short`` is the limit that holds the need back, if one does (C21).
    """
    quota, charge = state.quotas[key.holder], charge_of(state, key.need)
    held, nominal = quota.used.get(GPU, 0), quota.limits[GPU].nominal
    numbers: dict[str, int | str | None] = {
        "asked_milli": charge,
        "held_milli": held,
        "nominal_milli": nominal,
    }
    left = available(state, key.holder, GPU)
    if left != nominal - held:
        numbers["available_milli"] = left
    if short is not None and (short.resource != GPU or short.asked != charge):
        numbers |= {"resource": short.resource, "asked": short.asked, "available": short.available}
        if short.quota != key.holder:
            numbers["quota"] = short.quota
    return numbers


def _behind(state: State, asker: Asker, now_us: int) -> bool:
    mine = frozenset(state.index.matches(state, asker.key.need))
    return any(
        shape.head[0] < asker.rank
        and not mine.isdisjoint(shape.classes)
        and shape.key.reservation == asker.key.reservation
        and holds_back(state, shape.key, asker.key.holder, now_us)
        for shape in state.index.waiting.in_queue(asker.key.queue)
    )


def holds_back(state: State, earlier: ShapeKey, holder: str, now_us: int) -> bool:
    """One that waits for its own quota holds back its own quota's later ones, and nobody else's.

    One that its quota could never hold, as it now is, holds back nobody.
    """
    if earlier.holder != holder:
        return over_quota(state, earlier, now_us) is None
    most = most_ever(state, holder, GPU)
    return most is None or charge_of(state, earlier.need) <= most


def grant(turn: Turn, request: Request, found: Placement, rule: str = "") -> None:
    """Lease the place to the request."""
    state, need, terms = turn.state, request.need, request.need.terms
    attempt = request.attempt + 1
    event: dict[str, Any] = {
        "type": "lease.granted",
        "lease": f"{request.id}/{attempt}",
        "request": request.id,
        "attempt": attempt,
        "charge_milli": found.charge_milli,
        "parts": [{"node": node, "units": list(units)} for node, units in found.parts],
        "model": found.of_class[1],
        "memory_mib": memory_of(state, found, need),
        "why": {
            "rule": rule or found.rule,
            "pool": found.of_class[0],
            "model": found.of_class[1],
            "waited_us": turn.now_us - request.received_us,
        },
    }
    if terms is not None:
        event |= evidence_of(state, need, [node for node, _ in found.parts])
        for part in event["parts"]:
            part.update(given_by(state, need, part["units"]))
        if terms.route:
            event["why"]["route"] = terms.route
    if need.mode == "share":
        event |= isolation_of(state, need, found.parts[0][0])
    if request.max_run_us is not None:
        # Time held over all attempts counts, waiting between them does not (C31).
        event["due_us"] = turn.now_us + max(0, request.max_run_us - request.used_us)
    within = state.reservations.get(request.reservation) if request.reservation else None
    if within is not None:
        event["due_us"] = min(within.end_us, event.get("due_us", within.end_us))
    turn.emit(event)


def make_room(turn: Turn, asker: Asker, code: str) -> bool:
    """Do what the queue's rules allow for one that cannot be placed now.

    Have slices made for it, or evict for it, which keeps a place for it, and is then
    true; or plan a place.
    """
    if code in MAKES_ROOM:
        if asker.key.need.mode == "mig" and partition_for(turn, asker):
            return True
        if evict_for(turn, asker):
            return True
    if code in ("no_capacity", "planned_for_another"):
        plan_for(turn, asker)
    else:
        # It could not run even on what is planned for it: that is there for others.
        drop_plan(turn, asker.request)
    return False


def run_pass(turn: Turn) -> None:
    """Give what the decision has loosened to those who wait for it."""
    state = turn.state
    index = state.index
    if index.booked:
        # What is clean, and waits for its quota, may run into a reservation by time alone.
        index.ripen()
    if state.pass_cut:
        # What the cut pass had not looked at is not on record: look at everything.
        index.loosen_all(state)
    elif not index.waiting.shapes and not index.ripe:
        return
    given = 0
    drop_broken(turn)
    while index.ripe or index.freed or index.relieved or index.loosened_queues:
        given += _settle_ripe(turn)
        given += _serve_line(turn, MAX_GIVEN - given)
        if given > MAX_GIVEN:
            if not state.pass_cut:
                turn.emit({"type": "pass.cut"})
            return
    if state.pass_cut:
        turn.emit({"type": "pass.done"})


def _serve_line(turn: Turn, most: int) -> int:
    """Serve those for whom something was loosened, in order of turn; return how much was given."""
    turns = Turns(turn.state, turn.now_us)
    turn.state.index.settle()
    given = weight = 0
    while given <= most and (one := turns.next(served=weight > 0)) is not None:
        asker, may = one
        weight = _serve(turn, asker, turns, may=may)
        given += weight
    return given


def _serve(turn: Turn, asker: Asker, turns: Turns, *, may: bool) -> int:
    """Grant the request a place, or make room for it if it may; return the weight of that."""
    request = turn.state.requests[asker.request]
    found = examine(turn.state, asker, turn.now_us)
    if isinstance(found, str):
        if found == "no_capacity" and asker.key.need.mode != "mig":
            # A slice may be made for one of shorter run, or of more quota, where none is free.
            turns.no_place(asker.key.need)
        before = len(turn.events)
        if (may or asker.key.need.mode == "mig") and make_room(turn, asker, found):
            units = sum(len(units) for units in request.kept.values())
            return LEASE_WEIGHT + units + EVENT_WEIGHT * (len(turn.events) - before)
        return 0
    grant(turn, request, found)
    return LEASE_WEIGHT + sum(len(units) for _, units in found.parts)


def _settle_ripe(turn: Turn) -> int:
    """Grant what was kept and is free by now; let go what cannot be had any more."""
    index = turn.state.index
    given = 0
    while index.ripe:
        name = min(index.ripe)
        changed = index.ripe.pop(name)
        request = turn.state.requests.get(name)
        if request is None or request.state != "reserved":
            continue
        found = settle_reserved(turn, request, changed)
        if found is not None:
            grant(turn, request, found, "reserved")
            given += LEASE_WEIGHT + sum(len(units) for _, units in found.parts)
    return given
