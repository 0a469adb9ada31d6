"""The smallest changes that would let a request run now, each of them tried out.

Every change is made on a copy of what it concerns, and the request is then asked
for by the same functions that decide; what does not let it run is not told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.amounts import time_text
from ledger.answers.asked import asked_otherwise
from ledger.answers.holders import OF_QUOTA
from ledger.answers.partitions import policy_change
from ledger.answers.trials import (
    Change,
    in_queue,
    refused_at_once,
    runs,
    with_nominal,
    with_priority,
    with_queue,
)
from ledger.core.evicting.candidates import Candidate
from ledger.core.evicting.entitlement import spare_replicas
from ledger.core.evicting.preemption import plan_among, plan_eviction
from ledger.core.line.asking import over_quota
from ledger.core.line.estimate import with_own_quotas
from ledger.core.placing.placement import shortfall
from ledger.core.quotas.quota import chain
from ledger.wording import listed, quantity_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ledger.answers.rules import Asking, Numbers
    from ledger.core.line.estimate import Estimate
    from ledger.core.state import State

__all__ = ["changes_of"]

#: How often a quota's raise is corrected, and how many of its resources may be short.
_MOST_RAISES = 6

#: Other queues that are tried.
_MOST_QUEUES = 20


def changes_of(state: State, asking: Asking, code: str, estimate: Estimate) -> Iterator[Change]:
    """Yield what would let the request run now; nothing for one that could run as it is."""
    if runs(state, asking) is not None:
        return
    yield from asked_otherwise(state, asking)
    yield from _queues(state, asking)
    if refused_at_once(state, asking):
        return
    raised = _raised_quota(state, asking) if code in OF_QUOTA else None
    if raised is not None and runs(raised[0], asking) is not None:
        yield raised[1]
        raised = None
    evicting = list(_evictions(state, asking))
    yield from evicting
    if raised is not None and not evicting:
        # The quota alone would not do: what is held has to become free as well.
        for other in _evictions(raised[0], asking):
            text = f"{raised[1].text}, and {other.text}"
            yield Change(f"quota+{other.kind}", "operator", text, raised[1].numbers | other.numbers)
    if over_quota(state, asking.asker.key, state.now_us) is None:
        yield from _supply(state, asking)
    elif raised is not None:
        for other in _supply(raised[0], asking):
            text = f"{raised[1].text}, and {other.text}"
            numbers = raised[1].numbers | other.numbers
            yield Change("quota+supply", "operator", text, numbers, tried=False)
    if estimate.start_us is not None and estimate.basis != "kept":
        yield _wait(estimate)


def _wait(estimate: Estimate) -> Change:
    assert estimate.start_us is not None
    of = {
        "plan": "its plan",
        "period": "a new period of the budget",
        "max_run": "longest runs",
        "expected_run": "expected runs",
    }[estimate.basis]
    ending = f": {listed(estimate.leases[-3:])} and those before" if estimate.leases else ""
    if len(estimate.leases) == 1:
        ending = f": {estimate.leases[0]}"
    text = f"wait until {time_text(estimate.start_us)}, as {of} tell{ending}"
    numbers: Numbers = {"start_us": estimate.start_us, "leases": len(estimate.leases)}
    return Change("wait", "nobody", text, numbers)


def _queues(state: State, asking: Asking) -> Iterator[Change]:
    """Try the queue's order, a higher priority in it, and other queues."""
    name = asking.asker.key.queue
    queue = state.queues[name]
    for ordering in ("backfill", "best-effort"):
        if queue.ordering == "strict" and runs(with_queue(state, name, ordering=ordering), asking):
            text = f"queue {name} has the ordering {ordering} instead of strict"
            yield Change("ordering", "operator", text, {"queue": name, "ordering": ordering})
            break
    if queue.ordering != "best-effort":
        ahead = {-shape.head[0][0] for shape in state.index.waiting.in_queue(name)}
        higher = max(ahead, default=0) + 1
        if higher > -asking.asker.rank[0] and runs(state, with_priority(asking, higher)):
            text = f"the request has priority {higher} or more"
            yield Change("priority", "requester", text, {"priority": higher})
    for other in list(state.queues)[:_MOST_QUEUES]:
        if other != name and runs(state, in_queue(state, asking, other)):
            yield Change("queue", "requester", f"queue {other} instead of {name}", {"queue": other})
            break


# -- quotas ---------------------------------------------------------------------------


def _raised_quota(state: State, asking: Asking) -> tuple[State, Change] | None:
    """Find the least raise, as low in the tree as possible, that the request fits under."""
    names = [quota.name for quota in chain(state, asking.holder)]
    sets = [(name,) for name in names] + [tuple(names[:at]) for at in range(2, len(names) + 1)]
    for chosen in sets:
        found = _raise(state, asking, chosen)
        if found is not None:
            return found
    return None


def _raise(state: State, asking: Asking, names: tuple[str, ...]) -> tuple[State, Change] | None:
    """Raise the quotas named by what is short, resource by resource."""
    more: dict[tuple[str, str], int] = {}
    budgets: dict[str, int] = {}
    trial = state
    for _ in range(_MOST_RAISES):
        short = over_quota(trial, asking.asker.key, state.now_us)
        if short is None:
            return trial, _raise_change(more, budgets)
        missing = short.asked - short.available
        if short.resource == "gpu_time":
            budgets[short.quota] = budgets.get(short.quota, 0) + missing
        else:
            for name in names:
                key = (name, short.resource)
                more[key] = more.get(key, 0) + missing
        raised = with_nominal(state, more)
        if raised is None:
            return None
        trial = raised
        for name, milli_us in budgets.items():
            trial.quotas[name].budget_milli_us += milli_us
    return None


def _raise_change(more: dict[tuple[str, str], int], budgets: dict[str, int]) -> Change:
    parts = [
        f"quota {name} has {quantity_text(resource, amount)} more"
        for (name, resource), amount in more.items()
    ]
    parts += [
        f"the budget of quota {name} has {quantity_text('gpu_time', amount)} more"
        for name, amount in budgets.items()
    ]
    numbers: Numbers = {f"{name} {resource}": amount for (name, resource), amount in more.items()}
    numbers |= {f"{name} gpu_time": amount for name, amount in budgets.items()}
    return Change("quota", "operator", " and ".join(parts), numbers)


# -- evictions ---------------------------------------------------------------------------


def _evictions(state: State, asking: Asking) -> Iterator[Change]:
    """Try who would have to go: on an operator's word, by other rules, by a higher priority."""
    trial = with_own_quotas(state)
    plan = plan_among(trial, asking.asker, _everybody(state), state.now_us)
    if plan is None:
        return
    names = [name for name, _ in plan.victims]
    text = f"an operator takes back {listed(names)} (gpuledger release --reclaim)"
    yield Change("reclaim", "operator", text, {"leases": len(names), "first": names[0]})
    name = asking.asker.key.queue
    queue = state.queues[name]
    for rule, values in _RULE_CHANGES.items():
        now = getattr(queue, rule)
        for value in values[values.index(now) + 1 :]:
            changed = with_queue(state, name, **{rule: value})
            plan = plan_eviction(changed, asking.asker, state.now_us)
            if plan is not None:
                victims = listed([victim for victim, _ in plan.victims])
                text = f"queue {name} has {rule} {value} instead of {now}; then {victims} would end"
                yield Change("rule", "operator", text, {"rule": rule, "value": value})
                break
    higher = _least_priority(trial, asking)
    if higher is not None:
        text = f"the request has priority {higher} or more; leases of a lower one would end"
        yield Change("priority", "requester", text, {"priority": higher})


#: Rules of a queue that evict, from the mildest value on.
_RULE_CHANGES = {
    "preemption": ("never", "same-tenant", "any-tenant"),
    "reclaim": ("never", "lower-priority", "any"),
}


def _least_priority(state: State, asking: Asking) -> int | None:
    """Return the least priority with which the rules, as they are, would let it evict."""
    queue = state.queues[asking.asker.key.queue]
    if queue.preemption == "never" and queue.reclaim != "lower-priority":
        return None
    mine = -asking.asker.rank[0]
    held = {state.requests[lease.request].priority for lease in state.leases.values()}
    tries = sorted({one + 1 for one in held if one >= mine})
    low, high = 0, len(tries)
    while low < high:
        middle = (low + high) // 2
        raised = with_priority(asking, tries[middle])
        if plan_eviction(state, raised.asker, state.now_us) is None:
            low = middle + 1
        else:
            high = middle
    return tries[low] if low < len(tries) else None


def _everybody(state: State) -> dict[str, Candidate]:
    """Return every lease that runs, but for the replicas that a task keeps (C25)."""
    found = {}
    for lease in state.leases.values():
        request = state.requests[lease.request]
        group, spare = spare_replicas(state, request)
        if lease.state != "stopping" and (group is None or spare > 0):
            order = (True, request.priority, -lease.granted_us, lease.id)
            found[lease.id] = Candidate(lease.id, "operator", order, group, spare)
    return found


def _supply(state: State, asking: Asking) -> Iterator[Change]:
    """Say what supply is missing, where places are counted, and where slices could be made."""
    made = policy_change(state, asking.need)
    if made is not None:
        yield made
    short = shortfall(state, asking.need)
    needs, places = short.numbers.get("needs_places"), short.numbers.get("places")
    each = short.numbers.get("gpus_per_place")
    if isinstance(needs, int) and isinstance(places, int) and needs > places:
        missing = needs - places
        nodes = "1 more node has" if missing == 1 else f"{missing} more nodes have"
        text = f"{nodes} {each} free devices"
        numbers: Numbers = {"places": missing, "gpus_per_place": each}
        yield Change("supply", "operator", text, numbers, tried=False)
