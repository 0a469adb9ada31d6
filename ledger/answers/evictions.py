"""Whether somebody could be evicted for a request, and if not, why not (C23, C25)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ledger.core.evicting.entitlement import candidates_for, spare_replicas
from ledger.core.evicting.preemption import plan_eviction
from ledger.core.quotas.quota import holder_of

if TYPE_CHECKING:
    from ledger.answers.rules import Asking
    from ledger.core.state import Queue, Request, State

__all__ = ["Evictions", "Spared", "evictions_of"]

#: Leases named for each reason.
_NAMED = 3


@dataclass(frozen=True, slots=True)
class Spared:
    """Leases that may not be evicted for the request, for one reason; some are named."""

    reason: str
    count: int
    leases: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Evictions:
    """What was looked at, and what came of it.

    ``outcome`` is ``possible``, ``forbidden`` by the queue's rules, ``nobody`` may be
    evicted, ``not_enough`` even if all who may be were, or ``no_hardware``. ``victims``
    are the least set, each with its rule, where it is possible.
    """

    outcome: str
    text: str
    candidates: int
    victims: tuple[tuple[str, str], ...] = ()
    spared: tuple[Spared, ...] = ()


def evictions_of(state: State, asking: Asking) -> Evictions:
    """Look at every lease as the decision does, and say what came of it."""
    asker = asking.asker
    queue = state.queues[asker.key.queue]
    if not state.index.matches(state, asking.need):
        return Evictions(
            "no_hardware", "no device is of that kind: no set of victims would be enough", 0
        )
    if queue.preemption == "never" and queue.reclaim == "never":
        return Evictions(
            "forbidden",
            f"queue {queue.name} evicts for nobody (preemption: never, reclaim: never)",
            0,
        )
    candidates = candidates_for(state, asker, queue)
    spared = _spared(state, asking, queue, frozenset(candidates))
    if not candidates:
        text = f"no lease may be evicted under the rules of queue {queue.name}"
        return Evictions("nobody", f"{text} (preemption: {queue.preemption}, reclaim:"
                         f" {queue.reclaim})", 0, (), spared)  # fmt: skip
    plan = plan_eviction(state, asker, state.now_us)
    if plan is None:
        text = f"{len(candidates)} may be evicted, but no set of victims would be enough"
        return Evictions("not_enough", text, len(candidates), (), spared)
    names = ", ".join(name for name, _ in plan.victims)
    return Evictions(
        "possible", f"would be evicted: {names}", len(candidates), plan.victims, spared
    )


def _spared(
    state: State, asking: Asking, queue: Queue, candidates: frozenset[str]
) -> tuple[Spared, ...]:
    """Count the leases that are no candidates by the first reason that protects them."""
    found: dict[str, list[str]] = {}
    for lease in state.leases.values():
        if lease.id in candidates:
            continue
        request = state.requests[lease.request]
        reason = (
            "they are being stopped already"
            if lease.state == "stopping"
            else _protected(state, asking, queue, request)
        )
        found.setdefault(reason, []).append(lease.id)
    return tuple(
        Spared(reason, len(names), tuple(names[:_NAMED])) for reason, names in found.items()
    )


def _protected(state: State, asking: Asking, queue: Queue, request: Request) -> str:
    group, spare = spare_replicas(state, request)
    if group is not None and spare <= 0:
        return f"task {request.task} runs as few replicas as it has to keep"
    if request.priority >= -asking.asker.rank[0]:
        return "their priority is not lower, and they do not borrow what is the request's own"
    if not request.preemptible:
        return "they are not preemptible"
    if queue.preemption == "never":
        return f"queue {queue.name} has preemption: never"
    if holder_of(state, request.tenant, request.project) != asking.holder:
        return f"they are another quota's, and queue {queue.name} has preemption: same-tenant"
    return "no rule of the queue lets them be evicted"
