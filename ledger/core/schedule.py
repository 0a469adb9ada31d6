"""Who gets what became free: a pass over the waiting line (C17, C19).

A request waits because its tenant's quota is in use, because an earlier one of
its strict queue waits for the same kind of device, or because there is no
place. After every decision no waiting request could be placed; so a pass looks
only at shapes that need something which the decision has loosened, least rank
first, and ends when nothing more fits. Freeing and giving are one decision:
nothing can come between them.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any

from ledger.core.limits import LEASE_WEIGHT, MAX_GIVEN
from ledger.core.placement import Placement, Shortfall, charge_of, place, shortfall

if TYPE_CHECKING:
    from ledger.core.state import Need, Request, State
    from ledger.core.turn import Turn
    from ledger.core.waiting import Rank

__all__ = ["examine", "grant", "reason_to_wait", "run_pass"]


def examine(state: State, tenant: str, queue: str, need: Need, rank: Rank) -> Placement | str:
    """Return a place for the need, or the code of the first rule that holds it back."""
    holder = state.tenants[tenant]
    room = holder.nominal_milli - holder.held_milli
    if charge_of(state, need) > room:
        return "quota_in_use"
    if state.queues[queue].ordering == "strict" and _behind(state, queue, need, rank):
        return "behind_in_queue"
    found = place(state, need, room)
    if found is None:
        return "no_capacity"
    return found if found.charge_milli <= room else "quota_in_use"


def reason_to_wait(state: State, tenant: str, need: Need, code: str) -> Shortfall:
    """Give the numbers that belong to the code that `examine` returned."""
    if code == "quota_in_use":
        holder = state.tenants[tenant]
        return Shortfall(
            code,
            {
                "asked_milli": charge_of(state, need),
                "held_milli": holder.held_milli,
                "nominal_milli": holder.nominal_milli,
            },
        )
    if code == "behind_in_queue":
        return Shortfall(code, {})
    return shortfall(state, need)


def _behind(state: State, queue: str, need: Need, rank: Rank) -> bool:
    mine = frozenset(state.index.matches(state, need))
    for shape in state.index.waiting.in_queue(queue):
        if shape.head[0] < rank and not mine.isdisjoint(shape.classes):
            other = state.tenants[shape.key[0]]
            if charge_of(state, shape.key[2]) <= other.nominal_milli - other.held_milli:
                return True
    return False


def grant(turn: Turn, request: Request, found: Placement) -> None:
    """Lease the place to the request."""
    attempt = request.attempt + 1
    event: dict[str, Any] = {
        "type": "lease.granted",
        "lease": f"{request.id}/{attempt}",
        "request": request.id,
        "attempt": attempt,
        "charge_milli": found.charge_milli,
        "parts": [{"node": node, "units": list(units)} for node, units in found.parts],
        "why": {
            "rule": "best-fit",
            "pool": found.of_class[0],
            "model": found.of_class[1],
            "waited_us": turn.now_us - request.received_us,
        },
    }
    if request.max_run_us is not None:
        # Time held over all attempts counts, waiting between them does not (C31).
        event["due_us"] = turn.now_us + max(0, request.max_run_us - request.used_us)
    turn.emit(event)


def run_pass(turn: Turn) -> None:
    """Give what the decision has loosened to those who wait for it."""
    state = turn.state
    index = state.index
    if state.pass_cut:
        # What the cut pass had not looked at is not on record: look at everything.
        index.loosen_all(state)
    elif not index.waiting.shapes:
        return
    given = 0
    while index.freed or index.relieved or index.loosened_queues:
        shapes = index.waiting.touched(index.freed, index.relieved, index.loosened_queues)
        index.settle()
        heads = [(*shape.head, at) for at, shape in enumerate(shapes)]
        heapify(heads)
        while heads:
            rank, name, at = heappop(heads)
            shape = shapes[at]
            tenant, queue, need = shape.key
            found = examine(state, tenant, queue, need, rank)
            if isinstance(found, str):
                continue
            grant(turn, state.requests[name], found)
            given += LEASE_WEIGHT + sum(len(units) for _, units in found.parts)
            if given > MAX_GIVEN:
                if not state.pass_cut:
                    turn.emit({"type": "pass.cut"})
                return
            if shape.line:
                heappush(heads, (*shape.head, at))
    if state.pass_cut:
        turn.emit({"type": "pass.done"})
