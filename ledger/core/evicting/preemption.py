"""Evictions: the least set of leases whose end lets an entitled request run (Q5, Q6, C23).

The plan is complete before the first lease is told to stop: which leases, under
which rule, and which place becomes free for whom; all in one decision. If the
request could not run even afterwards, nothing is evicted. Two rules exist:

*priority*: a preemptible lease of a lower priority gives way, in the same quota or
in any, as the queue says. *reclaim*: a lease of a quota that borrows gives way to a
request within what is nominally its own, in the same tree of quotas. Both go one
way only; and who was evicted has nobody evicted for a while, so that no chain of
evictions, however long, comes back to where it began (Q5).

An eviction never leaves fewer replicas of a task than its ``replicas_min`` (C25).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from heapq import heapify, heappop
from typing import TYPE_CHECKING

from ledger.core.derived.waiting import replica_group
from ledger.core.evicting.enough import enough
from ledger.core.evicting.entitlement import (
    all_owed,
    candidates_for,
    quota_of,
    rules_for,
    still_borrowed,
)
from ledger.core.evicting.victims import choose_place
from ledger.core.limits import EVICTION_REST_US, MAX_EVICTED_BYTES
from ledger.core.line.asking import charge_for, over_quota, quota_fits
from ledger.core.promises.plans import unpromised_nodes
from ledger.core.promises.reservations import reserved_class
from ledger.core.quotas.quota import (
    add,
    chain,
    holder_of,
    over,
    remove,
    root_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ledger.core.decisions.turn import Turn
    from ledger.core.evicting.candidates import Candidate
    from ledger.core.line.asking import Asker
    from ledger.core.placing.placement import Placement
    from ledger.core.quotas.quota import Charge
    from ledger.core.state import State

__all__ = [
    "Eviction",
    "evict_for",
    "plan_among",
    "plan_eviction",
]


@dataclass(frozen=True, slots=True)
class Eviction:
    """A place, and the leases that have to end for it, each with the rule it falls under."""

    place: Placement
    charge: Charge
    victims: tuple[tuple[str, str], ...]
    #: Some of them end for the quota alone, or might where the place is of another class.
    for_quota: bool = False


def evict_for(turn: Turn, asker: Asker) -> bool:
    """Evict what the request is entitled to have evicted, and keep the place for it."""
    request = turn.state.requests.get(asker.request)
    if request is None or request.state not in ("received", "queued"):
        return False
    if request.rests_until_us is not None and turn.now_us < request.rests_until_us:
        # It was evicted itself: it may wait for a place, and not take it back by force (Q5).
        return False
    plan = plan_eviction(turn.state, asker, turn.now_us)
    if plan is None or _bytes_of(turn.state, plan, request.id) > MAX_EVICTED_BYTES:
        return False
    for name, rule in plan.victims:
        rests_us = turn.now_us + EVICTION_REST_US
        turn.stop(
            turn.state.leases[name],
            "preempted",
            by=request.id,
            rule=rule,
            rests_until_us=rests_us,
        )
    turn.emit(
        {
            "type": "request.reserved",
            "request": request.id,
            "charge_milli": plan.charge.milli,
            "model": plan.charge.model,
            "memory_mib": plan.charge.memory_mib,
            "parts": [{"node": node, "units": list(units)} for node, units in plan.place.parts],
            "evicted": [name for name, _ in plan.victims],
            "why": {
                "rule": plan.victims[0][1],
                "evicted": len(plan.victims),
            },
        }
    )
    return True


def _bytes_of(state: State, plan: Eviction, request: str) -> int:
    """Return about how long the events of the eviction are in the log.

    A lease is named when it is told to stop, in the order to each of its nodes and with
    the place; the rest of such an event is some 130 bytes, whatever it is about.
    """
    found = sum(len(unit) + 3 for _, units in plan.place.parts for unit in units)
    for name, _ in plan.victims:
        found += 130 + len(request) + 2 * len(name)
        for part in state.leases[name].parts.values():
            found += 130 + len(name) + len(part.node) + sum(len(one) + 3 for one in part.units)
    return found


def plan_eviction(state: State, asker: Asker, now_us: int) -> Eviction | None:
    """Return the least eviction that lets the request run, or None when none would."""
    queue = state.queues[asker.key.queue]
    if queue.preemption == "never" and queue.reclaim == "never":
        return None
    rules = rules_for(state, asker, queue)
    reach = rules.reach()
    # Most who look for victims cannot have enough, whoever they are; or need only wait.
    if not reach or not enough(state, asker, reach, now_us) or _ends_already(state, asker, now_us):
        return None
    candidates = rules.candidates(reach)
    plan = _least(state, asker, candidates, now_us)
    if plan is None and queue.preemption == "any-tenant" and queue.reclaim != "never":
        # Whom it may not reclaim may still be of a lower priority.
        candidates = candidates_for(state, asker, replace(queue, reclaim="never"))
        plan = _least(state, asker, candidates, now_us)
    return plan


def plan_among(
    state: State, asker: Asker, candidates: dict[str, Candidate], now_us: int
) -> Eviction | None:
    """Return the least eviction of these leases that lets the request run, or None."""
    if _ends_already(state, asker, now_us):
        return None
    return _least(state, asker, candidates, now_us)


def _ends_already(state: State, asker: Asker, now_us: int) -> bool:
    """Say whether what ends already is enough: it is waited for."""
    if not state.orders:
        return False
    if not quota_fits(state, asker.key, now_us) and over_quota(state, asker.key, now_us):
        # One amount of one resource is asked, wherever the place is, and it is not left.
        return False
    return _plan(state, asker, {}, now_us) is not None


def _least(
    state: State, asker: Asker, candidates: dict[str, Candidate], now_us: int
) -> Eviction | None:
    if not candidates or not enough(state, asker, candidates, now_us):
        return None
    plan = _plan(state, asker, candidates, now_us)
    if plan is None:
        free = {name: one for name, one in candidates.items() if not one.owed}
        plan = _plan(state, asker, free, now_us) if free else None
    for name, _ in _doubtful(state, plan):
        assert plan is not None
        rest = {one: candidates[one] for one, _ in plan.victims if one != name}
        plan = _plan(state, asker, rest, now_us) or plan
    # A place that needs nobody to go is found again when it is free.
    return plan if plan is not None and plan.victims else None


def _doubtful(state: State, plan: Eviction | None) -> tuple[tuple[str, str], ...]:
    """Return the victims that may be needless beside the others (Q6).

    Where each is on one node and only the place needs them there is none. Who gives room
    to the quota besides may make enough of it for a free place of another class.
    """
    if plan is None:
        return ()
    spread = any(len(state.leases[name].parts) > 1 for name, _ in plan.victims)
    return plan.victims if spread or plan.for_quota else ()


def _plan(
    state: State, asker: Asker, candidates: dict[str, Candidate], now_us: int
) -> Eviction | None:
    """Return a place, and those of the candidates that have to end for it, perhaps none."""
    unpromised = unpromised_nodes(state, asker, now_us, ended=not candidates)
    reserved = reserved_class(state, asker.key)
    for key in state.index.matches(state, asker.key.need):
        if reserved is not None and not reserved(key):
            continue
        able = candidates
        while True:
            found = choose_place(state, asker.key.need, key, able, unpromised)
            if found is None:
                break
            place, victims = found
            fewer = _still_borrowing(state, asker, victims, able)
            if fewer is None:
                plan = _within_quota(state, asker, place, victims, able, now_us)
                if plan is not None:
                    return plan
                break
            able = fewer
    return None


# -- what the quotas say ------------------------------------------------------------


def _within_quota(
    state: State,
    asker: Asker,
    place: Placement,
    victims: list[str],
    candidates: dict[str, Candidate],
    now_us: int,
) -> Eviction | None:
    """Add the victims that the quota needs beside the place, and drop those nobody needs.

    Usage is tried out on the tree itself and put back as it was.
    """
    charge = charge_for(state, place, asker.key)
    several = len(state.index.matches(state, asker.key.need)) > 1
    for_quota = several and over(state, asker.key.holder, charge, now_us) is not None
    trial = _Trial(state)
    try:
        for name in victims:
            trial.take(name)
        needed = set(victims)
        extra = []
        lacks = over(state, asker.key.holder, charge, now_us) is not None
        for one in _in_order(candidates) if lacks else ():
            if over(state, asker.key.holder, charge, now_us) is None:
                break
            if one.lease not in needed and _helps(state, asker, one, trial):
                trial.take(one.lease)
                extra.append(one.lease)
        if over(state, asker.key.holder, charge, now_us) is not None:
            return None
        for name in list(extra):
            # Largest first was not the order: what the later ones made needless stays.
            trial.give_back(name)
            if over(state, asker.key.holder, charge, now_us) is not None:
                trial.take(name)
            else:
                extra.remove(name)
        chosen = [*victims, *extra]
        if not all_owed(state, asker, charge, chosen, candidates):
            return None
    finally:
        trial.undo()
    ruled = tuple((name, candidates[name].rule) for name in chosen)
    return Eviction(place, charge, ruled, for_quota or bool(extra))


def _in_order(candidates: dict[str, Candidate]) -> Iterator[Candidate]:
    """Yield the candidates, the first to go first: mostly a few of many are wanted."""
    heap = [(one.order, one.lease) for one in candidates.values()]
    heapify(heap)
    while heap:
        yield candidates[heappop(heap)[1]]


def _still_borrowing(
    state: State, asker: Asker, victims: list[str], candidates: dict[str, Candidate]
) -> dict[str, Candidate] | None:
    """Return fewer candidates if a quota would lose more than it borrows, else None.

    The smallest are taken first, so that only the last may be more than what is
    borrowed; what was taken while its quota still borrowed remains a candidate. What a
    quota borrows of one above it is borrowed also when that one borrows no more: so an
    order with those of the quotas above first will do, too.
    """
    reclaimed = [name for name in victims if candidates[name].rule == "reclaim"]
    reclaimed.sort(key=lambda name: (state.leases[name].charge_milli, name))
    fewer = _beyond(state, asker, reclaimed, candidates)
    if fewer is not None:
        depth = {name: sum(1 for _ in chain(state, quota_of(state, name))) for name in reclaimed}
        above_first = sorted(reclaimed, key=lambda name: depth[name])
        if above_first != reclaimed and _beyond(state, asker, above_first, candidates) is None:
            return None
    return fewer


def _beyond(
    state: State, asker: Asker, reclaimed: list[str], candidates: dict[str, Candidate]
) -> dict[str, Candidate] | None:
    """Take the leases in this order; return fewer candidates where one borrows no more."""
    trial = _Trial(state)
    try:
        for at, name in enumerate(reclaimed):
            holder = quota_of(state, name)
            if not still_borrowed(state, asker.key.holder, name):
                taken = set(reclaimed[:at])
                return {
                    one: candidate
                    for one, candidate in candidates.items()
                    if candidate.rule != "reclaim" or one in taken or quota_of(state, one) != holder
                }
            trial.take(name)
    finally:
        trial.undo()
    return None


def _helps(state: State, asker: Asker, one: Candidate, trial: _Trial) -> bool:
    """A lease of the same tree gives its quota back to it; and borrowing ends when it is over."""
    holder = quota_of(state, one.lease)
    if root_of(state, holder) != root_of(state, asker.key.holder):
        return False
    spare = one.spare - trial.taken_of(one.group)
    if one.group is not None and spare <= 0:
        return False
    return one.rule != "reclaim" or still_borrowed(state, asker.key.holder, one.lease)


class _Trial:
    """Leases taken off the tree of quotas to see what would be left, and put back."""

    def __init__(self, state: State) -> None:
        """Begin with nothing taken."""
        self._state = state
        self._kept: dict[str, dict[str, int]] = {}
        self._taken: dict[str, tuple[str, Charge]] = {}

    def take(self, name: str) -> None:
        """Count the lease no longer."""
        request = self._state.requests[self._state.leases[name].request]
        assert request.charge is not None
        holder = holder_of(self._state, request.tenant, request.project)
        for quota in chain(self._state, holder):
            if quota.name not in self._kept:
                self._kept[quota.name] = dict(quota.used)
        remove(self._state, holder, request.charge)
        self._taken[name] = (holder, request.charge)

    def give_back(self, name: str) -> None:
        """Count it again."""
        holder, charge = self._taken.pop(name)
        add(self._state, holder, charge)

    def taken_of(self, group: tuple[str, str] | None) -> int:
        """Return how many replicas of a task are taken."""
        return sum(
            replica_group(self._state.requests[self._state.leases[name].request]) == group
            for name in self._taken
        )

    def undo(self) -> None:
        """Put the tree back as it was."""
        for name, used in self._kept.items():
            self._state.quotas[name].used = used
