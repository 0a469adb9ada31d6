"""Evictions: the least set of leases whose end lets an entitled request run (Q5, Q6, C23).

The plan is complete before the first lease is told to stop: which leases, under
which rule, and which place becomes free for whom; all in one decision. If the
request could not run even afterwards, nothing is evicted. Two rules exist:

*priority*: a preemptible lease of a lower priority gives way, in the same quota or
in any, as the queue says. *reclaim*: a lease of a quota that borrows gives way to a
request within what is nominally its own, in the same tree of quotas. Both go one
way only, so two requests never evict each other in turn (Q5).

An eviction never leaves fewer replicas of a task than its ``replicas_min`` (C25).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ledger.core.asking import charge_for
from ledger.core.backfill import unpromised_nodes
from ledger.core.quota import add, borrowing, chain, entitled, holder_of, over, remove, root_of
from ledger.core.victims import Candidate, choose_place

if TYPE_CHECKING:
    from ledger.core.asking import Asker
    from ledger.core.placement import Placement
    from ledger.core.quota import Charge
    from ledger.core.state import Queue, Request, State
    from ledger.core.turn import Turn

__all__ = [
    "Eviction",
    "candidates_for",
    "evict_for",
    "plan_among",
    "plan_eviction",
    "replica_group",
]


@dataclass(frozen=True, slots=True)
class Eviction:
    """A place, and the leases that have to end for it, each with the rule it falls under."""

    place: Placement
    charge: Charge
    victims: tuple[tuple[str, str], ...]


def evict_for(turn: Turn, asker: Asker) -> bool:
    """Evict what the request is entitled to have evicted, and keep the place for it."""
    request = turn.state.requests.get(asker.request)
    if request is None or request.state not in ("received", "queued"):
        return False
    plan = plan_eviction(turn.state, asker, turn.now_us)
    if plan is None:
        return False
    for name, rule in plan.victims:
        turn.stop(turn.state.leases[name], "preempted", by=request.id, rule=rule)
    turn.emit(
        {
            "type": "request.reserved",
            "request": request.id,
            "charge_milli": plan.charge.milli,
            "memory_mib": plan.charge.memory_mib,
            "parts": [{"node": node, "units": list(units)} for node, units in plan.place.parts],
            "evicted": [name for name, _ in plan.victims],
            "why": {
                "rule": plan.victims[0][1],
                "model": plan.place.of_class[1],
                "evicted": len(plan.victims),
            },
        }
    )
    return True


def plan_eviction(state: State, asker: Asker, now_us: int) -> Eviction | None:
    """Return the least eviction that lets the request run, or None when none would."""
    queue = state.queues[asker.key.queue]
    if queue.preemption == "never" and queue.reclaim == "never":
        return None
    candidates = candidates_for(state, asker, queue)
    return plan_among(state, asker, candidates, now_us) if candidates else None


def plan_among(
    state: State, asker: Asker, candidates: dict[str, Candidate], now_us: int
) -> Eviction | None:
    """Return the least eviction of these leases that lets the request run, or None."""
    if _plan(state, asker, {}, now_us) is not None:
        # What ends already is enough: it is waited for.
        return None
    plan = _plan(state, asker, candidates, now_us)
    for name, _ in plan.victims if plan is not None else ():
        # One that the place needed may be needless beside those that the quota needs (Q6).
        assert plan is not None
        rest = {one: candidates[one] for one, _ in plan.victims if one != name}
        plan = _plan(state, asker, rest, now_us) or plan
    return plan


def _plan(
    state: State, asker: Asker, candidates: dict[str, Candidate], now_us: int
) -> Eviction | None:
    """Return a place, and those of the candidates that have to end for it, perhaps none."""
    unpromised = unpromised_nodes(state, asker)
    for key in state.index.matches(state, asker.key.need):
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


# -- who may be evicted -------------------------------------------------------------


def candidates_for(state: State, asker: Asker, queue: Queue) -> dict[str, Candidate]:
    """Return the leases that a rule of the queue lets the request have evicted."""
    rules = _Rules(state, asker, queue)
    live: Counter[tuple[str, str]] = Counter()
    floor: Counter[tuple[str, str]] = Counter()
    for lease in state.leases.values():
        if lease.state != "stopping":
            request = state.requests[lease.request]
            group = replica_group(request)
            live[group] += 1
            floor[group] = max(floor[group], request.replicas_min)
    found = {}
    for lease in state.leases.values():
        if lease.state == "stopping":
            continue
        request = state.requests[lease.request]
        group = replica_group(request)
        spare = live[group] - floor[group]
        if floor[group] and spare <= 0:
            continue
        rule = rules.rule_for(request)
        if rule is not None:
            order = (rule != "reclaim", request.priority, -lease.granted_us, lease.id)
            kept = group if floor[group] else None
            found[lease.id] = Candidate(lease.id, rule, order, kept, spare)
    return found


def replica_group(request: Request) -> tuple[str, str]:
    """Replicas of a task are the requests of one source with one task id (C25)."""
    return request.id.partition("#")[0], request.task


@dataclass(slots=True)
class _Rules:
    """What the request is entitled to, worked out once for each quota it meets."""

    state: State
    asker: Asker
    queue: Queue
    reclaimable: dict[str, bool] = field(default_factory=dict)

    def rule_for(self, request: Request) -> str | None:
        """Return the rule under which the request's lease may be evicted, or None."""
        lower = request.priority < -self.asker.rank[0]
        holder = holder_of(self.state, request.tenant, request.project)
        if self.queue.reclaim == "any" or (self.queue.reclaim == "lower-priority" and lower):
            if holder not in self.reclaimable:
                self.reclaimable[holder] = self._may_reclaim(holder)
            if self.reclaimable[holder]:
                return "reclaim"
        same = holder == self.asker.key.holder
        if lower and request.preemptible and self.queue.preemption != "never":
            return "priority" if same or self.queue.preemption == "any-tenant" else None
        return None

    def _may_reclaim(self, holder: str) -> bool:
        mine = self.asker.key.holder
        if holder == mine or root_of(self.state, holder) != root_of(self.state, mine):
            return False
        shared = _shared(self.state, mine, holder)
        return borrowing(self.state, holder, shared)


def _shared(state: State, mine: str, other: str) -> frozenset[str]:
    """Return the quotas that are above both."""
    above = {quota.name for quota in chain(state, mine)}
    return frozenset(quota.name for quota in chain(state, other) if quota.name in above)


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
    trial = _Trial(state)
    try:
        for name in victims:
            trial.take(name)
        needed = set(victims)
        extra = []
        for one in sorted(candidates.values(), key=lambda one: one.order):
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
        if not _entitled(state, asker, charge, chosen, candidates):
            return None
    finally:
        trial.undo()
    return Eviction(place, charge, tuple((name, candidates[name].rule) for name in chosen))


def _still_borrowing(
    state: State, asker: Asker, victims: list[str], candidates: dict[str, Candidate]
) -> dict[str, Candidate] | None:
    """Return fewer candidates if a quota would lose more than it borrows, else None.

    The smallest are taken first, so that only the last may be more than what is
    borrowed; what was taken while its quota still borrowed remains a candidate.
    """
    reclaimed = [name for name in victims if candidates[name].rule == "reclaim"]
    reclaimed.sort(key=lambda name: (state.leases[name].charge_milli, name))
    trial = _Trial(state)
    try:
        for at, name in enumerate(reclaimed):
            holder = _holder(state, name)
            if not borrowing(state, holder, _shared(state, asker.key.holder, holder)):
                taken = set(reclaimed[:at])
                return {
                    one: candidate
                    for one, candidate in candidates.items()
                    if candidate.rule != "reclaim" or one in taken or _holder(state, one) != holder
                }
            trial.take(name)
    finally:
        trial.undo()
    return None


def _holder(state: State, lease: str) -> str:
    request = state.requests[state.leases[lease].request]
    return holder_of(state, request.tenant, request.project)


def _helps(state: State, asker: Asker, one: Candidate, trial: _Trial) -> bool:
    """A lease of the same tree gives its quota back to it; and borrowing ends when it is over."""
    holder = _holder(state, one.lease)
    if root_of(state, holder) != root_of(state, asker.key.holder):
        return False
    spare = one.spare - trial.taken_of(one.group)
    if one.group is not None and spare <= 0:
        return False
    return one.rule != "reclaim" or borrowing(
        state, holder, _shared(state, asker.key.holder, holder)
    )


def _entitled(
    state: State,
    asker: Asker,
    charge: Charge,
    chosen: list[str],
    candidates: dict[str, Candidate],
) -> bool:
    """What is reclaimed must be nominally the asker's own, up to what it shares with the victim."""
    for name in chosen:
        if candidates[name].rule == "reclaim":
            shared = _shared(state, asker.key.holder, _holder(state, name))
            if not entitled(state, asker.key.holder, charge, shared):
                return False
    return True


class _Trial:
    """Leases taken off the tree of quotas to see what would be left, and put back."""

    def __init__(self, state: State) -> None:
        """Begin with nothing taken."""
        self._state = state
        self._kept = {
            name: (dict(quota.used), dict(quota.leaving)) for name, quota in state.quotas.items()
        }
        self._taken: dict[str, tuple[str, Charge]] = {}

    def take(self, name: str) -> None:
        """Count the lease no longer."""
        request = self._state.requests[self._state.leases[name].request]
        assert request.charge is not None
        holder = holder_of(self._state, request.tenant, request.project)
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
        for name, (used, leaving) in self._kept.items():
            self._state.quotas[name].used = used
            self._state.quotas[name].leaving = leaving
