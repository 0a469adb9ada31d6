"""A request tried out on a state that differs in one point; the state itself is untouched.

What a trial may change is copied first (quotas, queues); all else is shared with
the state, and only read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ledger.core.derived.waiting import run_limit
from ledger.core.line.estimate import with_own_quotas
from ledger.core.line.schedule import examine
from ledger.core.placing.placement import Placement, charge_of
from ledger.core.quotas.tree import nominal_below, rebuild
from ledger.core.state import WHOLE_MILLI

if TYPE_CHECKING:
    from ledger.answers.rules import Asking, Numbers
    from ledger.core.state import Need, State

__all__ = [
    "Change",
    "in_queue",
    "refused_at_once",
    "runs",
    "with_need",
    "with_nominal",
    "with_priority",
    "with_queue",
    "with_run",
]


@dataclass(frozen=True, slots=True)
class Change:
    """One change after which the request would run, and whose decision it is.

    ``who`` is ``requester``, ``operator`` or ``nobody`` (time alone). ``tried``: the
    request was placed with the change made; else it follows from the numbers.
    """

    kind: str
    who: str
    text: str
    numbers: Numbers
    tried: bool = True


def runs(state: State, asking: Asking) -> Placement | None:
    """Return the place that the request would be given now, or None."""
    if refused_at_once(state, asking):
        return None
    found = examine(state, asking.asker, state.now_us)
    return found if isinstance(found, Placement) else None


def refused_at_once(state: State, asking: Asking) -> bool:
    """Say whether the request would be refused at once; one that waits was let in before."""
    if asking.asker.request in state.requests:
        return False
    queue, need = state.queues[asking.asker.key.queue], asking.need
    charge = charge_of(state, need)
    return (
        (need.pool is not None and need.pool not in state.pools)
        or (bool(queue.tenants) and asking.tenant not in queue.tenants)
        or (queue.max_gpus is not None and charge > queue.max_gpus * WHOLE_MILLI)
        or (queue.max_run_us is not None and (asking.run_us or 0) > queue.max_run_us)
        or (asking.run_us is None and state.quotas[asking.holder].budgeted)
    )


def with_need(asking: Asking, **change: object) -> Asking:
    """Return the same request with another need."""
    need: Need = replace(asking.need, **change)  # type: ignore[arg-type]
    key = asking.asker.key._replace(need=need)
    return replace(asking, asker=asking.asker._replace(key=key))


def with_run(asking: Asking, run_us: int) -> Asking:
    """Return the same request with another longest run."""
    key = asking.asker.key._replace(run_us=run_us)
    return replace(asking, asker=asking.asker._replace(key=key), run_us=run_us)


def with_priority(asking: Asking, priority: int) -> Asking:
    """Return the same request with another priority."""
    asker = asking.asker
    return replace(asking, asker=asker._replace(rank=(-priority, *asker.rank[1:])))


def in_queue(state: State, asking: Asking, name: str) -> Asking:
    """Return the same request in another queue."""
    key = asking.asker.key
    run_us = run_limit(state, key.holder, name, asking.run_us)
    key = key._replace(queue=name, run_us=run_us)
    return replace(asking, asker=asking.asker._replace(key=key))


def with_queue(state: State, name: str, **rules: object) -> State:
    """Return the state with other rules of a queue."""
    queue = replace(state.queues[name], **rules)  # type: ignore[arg-type]
    return replace(with_own_quotas(state), queues=state.queues | {name: queue})


def with_nominal(state: State, more: dict[tuple[str, str], int]) -> State | None:
    """Return the state with larger quotas: (quota, resource) -> how much more.

    None when the quotas below one would then have more than it (Q3), or when a
    quota says nothing of the resource. Borrowing and lending limits stay.
    """
    trial = with_own_quotas(state)
    for (name, resource), amount in more.items():
        limit = trial.quotas[name].limits.get(resource)
        if limit is None:
            return None
        limit.nominal += amount
    rebuild(trial)
    for name, resource in more:
        parent = trial.quotas[name].parent
        above = None if parent is None else trial.quotas[parent].limits.get(resource)
        if (
            parent is not None
            and above is not None
            and nominal_below(trial, parent, resource) > above.nominal
        ):
            return None
    return trial
