"""Whose leases a request may have evicted: by priority, or because they are borrowed from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ledger.core.derived.waiting import replica_group
from ledger.core.evicting.candidates import Candidate
from ledger.core.placing.placement import charge_of
from ledger.core.quotas.quota import (
    GPU,
    amount,
    borrowing,
    chain,
    entitled,
    holder_of,
    root_of,
)
from ledger.core.quotas.tree import nominal_below

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from ledger.core.line.asking import Asker
    from ledger.core.quotas.quota import Charge
    from ledger.core.state import Queue, Request, State

__all__ = [
    "Rules",
    "all_owed",
    "candidates_for",
    "quota_of",
    "rules_for",
    "shared_above",
    "spare_replicas",
    "still_borrowed",
    "takes_any",
]


def candidates_for(state: State, asker: Asker, queue: Queue) -> dict[str, Candidate]:
    """Return the leases that a rule of the queue lets the request have evicted."""
    rules = rules_for(state, asker, queue)
    return rules.candidates(rules.reach())


def rules_for(state: State, asker: Asker, queue: Queue) -> Rules:
    """Return what the request is entitled to under the rules of the queue."""
    above = [quota.name for quota in chain(state, asker.key.holder)]
    return Rules(state, asker, queue, frozenset(above), above[-1])


def _kind(request: Request) -> tuple[object, ...]:
    """Return what of a request the rules look at."""
    charge = request.charge
    assert charge is not None
    return (
        request.tenant,
        request.project,
        request.priority,
        request.preemptible,
        charge.milli > 0,
        charge.model,
        charge.profile,
        charge.memory_mib > 0,
    )


def spare_replicas(state: State, request: Request) -> tuple[tuple[str, str] | None, int]:
    """Return the replicas that the request is one of, and how many may go; None: it is alone."""
    group = replica_group(request)
    if group not in state.index.floored:
        return None, 0
    leases = [state.leases[name] for name in state.index.replicas_of(state, group)]
    floor = max(state.requests[one.request].replicas_min for one in leases)
    return group, sum(one.state != "stopping" for one in leases) - floor


@dataclass(slots=True)
class Rules:
    """What the request is entitled to, worked out once for each quota it meets."""

    state: State
    asker: Asker
    queue: Queue
    #: The asker's quota and those above it, and the topmost of them.
    above: frozenset[str]
    root: str
    borrowers: dict[str, frozenset[str] | None] = field(default_factory=dict)

    def reach(self) -> Collection[str]:
        """Return leases beside which there is no candidate; not all of them need be one."""
        if self.queue.preemption == "any-tenant":
            return self.state.leases
        found = []
        if self.queue.preemption != "never":
            found += self._lower_of_its_own()
        if self.queue.reclaim != "never" and self._has_room_of_its_own():
            index = self.state.index
            for holder in index.held_in.get(self.root, ()):
                if self._borrows(holder):
                    found += index.held_by[holder]
        return found

    def candidates(self, reach: Iterable[str]) -> dict[str, Candidate]:
        """Return those of the leases that may be evicted, each with its rule."""
        state = self.state
        leases, requests, floored = state.leases, state.requests, state.index.floored
        spared: dict[tuple[str, str], tuple[tuple[str, str] | None, int]] = {}
        #: Leases that are alike for every rule: thousands are, and are judged once.
        judged: dict[tuple[object, ...], tuple[str | None, bool]] = {}
        found = {}
        for name in reach:
            lease = leases[name]
            if lease.state == "stopping":
                continue
            request = requests[lease.request]
            kind = _kind(request)
            if kind not in judged:
                ruled = self._rule_for(request)
                judged[kind] = (ruled, ruled is not None and self._owed(ruled, request))
            rule, owed = judged[kind]
            if rule is None:
                continue
            group, spare = None, 0
            if floored:
                replicas = replica_group(request)
                if replicas not in spared:
                    spared[replicas] = spare_replicas(state, request)
                group, spare = spared[replicas]
            if group is None or spare > 0:
                order = (rule != "reclaim", request.priority, -lease.granted_us, name)
                found[name] = Candidate(name, rule, order, group, spare, owed)
        return found

    def _lower_of_its_own(self) -> list[str]:
        """Return the preemptible leases of lower priority that its own quota holds."""
        leases, requests = self.state.leases, self.state.requests
        priority = -self.asker.rank[0]
        found = []
        for name in self.state.index.held_by.get(self.asker.key.holder, ()):
            lease = leases[name]
            request = requests[lease.request]
            if request.priority < priority and request.preemptible and lease.state != "stopping":
                found.append(name)
        return found

    def _has_room_of_its_own(self) -> bool:
        """Say whether the least charge is within the quota's own; if not, nothing is owed to it."""
        quota = self.state.quotas[self.asker.key.holder]
        if quota.inner:
            # What those below it borrow is counted here too: it is looked at lease by lease.
            return True
        asked = charge_of(self.state, self.asker.key.need)
        return quota.used.get(GPU, 0) + asked <= quota.limits[GPU].nominal

    def _rule_for(self, request: Request) -> str | None:
        """Return the rule under which the request's lease may be evicted, or None."""
        lower = request.priority < -self.asker.rank[0]
        holder = holder_of(self.state, request.tenant, request.project)
        reclaims = self.queue.reclaim == "any" or (self.queue.reclaim == "lower-priority" and lower)
        if reclaims and self._takes_what_is_borrowed(request, holder):
            return "reclaim"
        same = holder == self.asker.key.holder
        if lower and request.preemptible and self.queue.preemption != "never":
            return "priority" if same or self.queue.preemption == "any-tenant" else None
        return None

    def _owed(self, rule: str, request: Request) -> bool:
        """Say whether only a request within what is nominally its own may have it evicted.

        If one that borrows could take by priority what is nominally another's, the
        other would reclaim it: the two would evict each other in turn (Q5).
        """
        holder = holder_of(self.state, request.tenant, request.project)
        related = self._borrows(holder) is not None
        return rule == "reclaim" or (related and not self._takes_what_is_borrowed(request, holder))

    def _takes_what_is_borrowed(self, request: Request, holder: str) -> bool:
        return takes_any(request, self._borrows(holder) or frozenset())

    def _borrows(self, holder: str) -> frozenset[str] | None:
        """Return of what the quota has more than what is its own; None: it is in another tree."""
        if holder not in self.borrowers:
            found = None
            if holder != self.asker.key.holder and root_of(self.state, holder) == self.root:
                found = borrowing(self.state, holder, self.above)
            self.borrowers[holder] = found
        return self.borrowers[holder]


def takes_any(request: Request, resources: frozenset[str]) -> bool:
    """Say whether the request's lease counts for any of the resources."""
    charge = request.charge
    return charge is not None and any(amount(resource, charge) for resource in resources)


def still_borrowed(state: State, mine: str, lease: str) -> bool:
    """Say whether the lease counts for something that its quota has of others, seen from mine."""
    holder = quota_of(state, lease)
    resources = borrowing(state, holder, shared_above(state, mine, holder))
    return takes_any(state.requests[state.leases[lease].request], resources)


def shared_above(state: State, mine: str, other: str) -> frozenset[str]:
    """Return the quotas that are above both."""
    above = {quota.name for quota in chain(state, mine)}
    return frozenset(quota.name for quota in chain(state, other) if quota.name in above)


def quota_of(state: State, lease: str) -> str:
    """Return the name of the quota that a lease counts against."""
    request = state.requests[state.leases[lease].request]
    return holder_of(state, request.tenant, request.project)


def all_owed(
    state: State,
    asker: Asker,
    charge: Charge,
    chosen: list[str],
    candidates: dict[str, Candidate],
) -> bool:
    """What is reclaimed must be nominally the asker's own, up to what it shares with the victim."""
    for name in chosen:
        if candidates[name].owed:
            shared = shared_above(state, asker.key.holder, quota_of(state, name))
            if asker.key.holder in shared:
                if not _has_by_itself(state, asker.key.holder, charge):
                    return False
            elif not entitled(state, asker.key.holder, charge, shared):
                return False
    return True


def _has_by_itself(state: State, name: str, charge: Charge) -> bool:
    """Say whether the charge is within what the quota has beside those below it."""
    quota = state.quotas[name]
    for resource, limit in quota.limits.items():
        direct = quota.used.get(resource, 0)
        for other in state.quotas.values():
            if other.parent == name:
                direct -= max(0, other.used.get(resource, 0) - other.kept.get(resource, 0))
        own = limit.nominal - nominal_below(state, name, resource)
        asked = amount(resource, charge)
        if asked and direct + asked > own:
            return False
    return True
