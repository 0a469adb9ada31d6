"""Whose leases a request may have evicted: by priority, or because they are borrowed from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ledger.core.placement import charge_of
from ledger.core.quota import (
    GPU,
    amount,
    borrowing,
    chain,
    entitled,
    holder_of,
    root_of,
)
from ledger.core.quota_tree import nominal_below
from ledger.core.rooms import Candidate
from ledger.core.waiting import replica_group

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ledger.core.asking import Asker
    from ledger.core.quota import Charge
    from ledger.core.state import Queue, Request, State

__all__ = [
    "all_owed",
    "candidates_for",
    "quota_of",
    "shared_above",
    "spare_replicas",
    "still_borrowed",
    "takes_any",
]


def candidates_for(state: State, asker: Asker, queue: Queue) -> dict[str, Candidate]:
    """Return the leases that a rule of the queue lets the request have evicted."""
    rules = _Rules(state, asker, queue)
    spared: dict[tuple[str, str], tuple[tuple[str, str] | None, int]] = {}
    #: Leases that are alike for every rule: thousands are, and are judged once.
    judged: dict[tuple[object, ...], tuple[str | None, bool]] = {}
    found = {}
    for name in rules.whose():
        lease = state.leases[name]
        if lease.state == "stopping":
            continue
        request = state.requests[lease.request]
        kind = _kind(request)
        if kind not in judged:
            ruled = rules.rule_for(request)
            judged[kind] = (ruled, ruled is not None and rules.owed(ruled, request))
        rule, owed = judged[kind]
        if rule is None:
            continue
        group, spare = None, 0
        if state.index.floored:
            replicas = replica_group(request)
            if replicas not in spared:
                spared[replicas] = spare_replicas(state, request)
            group, spare = spared[replicas]
        if group is None or spare > 0:
            order = (rule != "reclaim", request.priority, -lease.granted_us, lease.id)
            found[name] = Candidate(name, rule, order, group, spare, owed)
    return found


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
    leases = [state.leases[name] for name in state.index.replicas.get(group, ())]
    floor = max(state.requests[one.request].replicas_min for one in leases)
    return group, sum(one.state != "stopping" for one in leases) - floor


@dataclass(slots=True)
class _Rules:
    """What the request is entitled to, worked out once for each quota it meets."""

    state: State
    asker: Asker
    queue: Queue
    borrowers: dict[str, frozenset[str] | None] = field(default_factory=dict)

    def whose(self) -> Iterator[str]:
        """Yield the leases of the quotas that a rule of the queue reaches at all."""
        mine = self.asker.key.holder
        if self.queue.preemption == "any-tenant":
            yield from self.state.leases
            return
        held_by = self.state.index.held_by
        if self.queue.preemption != "never":
            yield from held_by.get(mine, ())
        if self.queue.reclaim != "never" and self._has_room_of_its_own():
            for holder in self.state.index.held_in.get(root_of(self.state, mine), ()):
                if self._borrows(holder):
                    yield from held_by[holder]

    def _has_room_of_its_own(self) -> bool:
        """Say whether the least charge is within the quota's own; if not, nothing is owed to it."""
        quota = self.state.quotas[self.asker.key.holder]
        if quota.inner:
            # What those below it borrow is counted here too: it is looked at lease by lease.
            return True
        asked = charge_of(self.state, self.asker.key.need)
        return quota.used.get(GPU, 0) + asked <= quota.limits[GPU].nominal

    def rule_for(self, request: Request) -> str | None:
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

    def owed(self, rule: str, request: Request) -> bool:
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
            mine = self.asker.key.holder
            found = None
            if holder != mine and root_of(self.state, holder) == root_of(self.state, mine):
                found = borrowing(self.state, holder, shared_above(self.state, mine, holder))
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
