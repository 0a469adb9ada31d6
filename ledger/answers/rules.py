"""Every rule a request passes, in order, with the numbers it compared.

The rules are asked by the same functions that decide, each by itself, so that a
request sees all that holds it back and not only the first.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ledger.core.admitting.licences import licences_short, never_licensed
from ledger.core.line.asking import Asker, asker_of, class_over, over_quota
from ledger.core.line.schedule import examine, holds_back, quota_numbers
from ledger.core.placing.constraints import pool_serves
from ledger.core.placing.links import link_numbers, over_links
from ledger.core.placing.placement import charge_of, place, shortfall
from ledger.core.promises.plans import allowed_nodes
from ledger.core.promises.reservations import reserved_class, within_time
from ledger.core.quotas.quota import GPU, most_ever
from schemas.codes import CODES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ledger.core.state import Need, Request, State

__all__ = [
    "ADVICE",
    "RULES",
    "Asking",
    "Numbers",
    "Rule",
    "asking_of",
    "live_rules",
    "up_to",
]

Numbers = dict[str, int | str | None]

#: Every rule a submission passes, in the order in which they are asked (`schemas.codes`).
RULES = {
    "unknown_tenant": "the tenant has a quota",
    "unknown_template": "the template that it names exists",
    "unknown_queue": "the queue exists",
    "unknown_pool": "the pool asked for exists",
    "not_admitted": "the queue takes requests of the tenant",
    "pool_refuses": "the pool asked for serves the tenant and the delivery mode",
    "template_requires": "it says itself what its template wants said",
    "template_forbids": "it asks for no more than its template allows",
    "exceeds_queue_limit": "it is no larger than the queue's largest request",
    "exceeds_quota": "it is no larger than the whole quota, with all that could be borrowed",
    "exceeds_max_run": "it runs no longer than the queue allows",
    "needs_max_run": "it states a longest run, if its quota has a budget of time",
    "unknown_licence": "the licences that it names exist",
    "no_route": "the pool says how it serves the service class",
    "unknown_vgpu_type": "a device offers the vGPUs that it asks for",
    "exceeds_licences": "it needs no more of a licence than there is",
    "incompatible": "what it runs runs on such devices, drivers and frameworks",
    "reservation_not_open": "the reservation that it names has begun",
    "licences_in_use": "the licences it needs are not in use",
    "quota_in_use": "the quota has room beside its other leases",
    "budget_spent": "the quota's budget of time covers its longest run",
    "behind_in_queue": "no earlier request of a strict queue waits for the same kind",
    "partition_pending": "no change of a device's MIG mode waits for a reboot",
    "no_such_hardware": "the cell has devices of that kind",
    "no_capacity": "enough of them are free, counted place by place",
    "planned_for_another": "what is free is not planned or kept for another, or reserved",
    "no_fresh_evidence": "fresh evidence says that a node with room is reached well enough",
    "constraints_unmet": "what is free meets what it asks beside how much",
    "no_beside": "their nodes have the CPU and memory asked beside them",
}

ADVICE = {
    "unknown_tenant": "an operator gives the tenant a quota: gpuledger quota apply",
    "unknown_template": "name an existing template, or an operator makes it",
    "unknown_queue": "name an existing queue, or an operator makes it: gpuledger queue apply",
    "unknown_pool": "name an existing pool, or an operator makes it: gpuledger pool apply",
    "pool_refuses": "ask for another pool or mode, or an operator opens it: gpuledger pool apply",
    "not_admitted": "use a queue that admits the tenant, or an operator lets it in",
    "template_requires": "say it in the request",
    "template_forbids": "ask for less, or name another template",
    "exceeds_queue_limit": "ask for less, or use a queue with a larger limit",
    "exceeds_quota": "ask for less, or an operator raises the quota: gpuledger quota apply",
    "exceeds_max_run": "state a shorter longest run, or use another queue",
    "needs_max_run": "state a longest run (max_run_s)",
    "unknown_licence": "name an existing licence, or an operator makes it (licence.apply)",
    "no_route": "ask for a mode, or an operator gives the pool a route: gpuledger pool apply",
    "unknown_vgpu_type": "a node with such devices joins, or another type is asked for",
    "exceeds_licences": "use fewer, or an operator raises the count (licence.apply)",
    "incompatible": "ask for other devices, or use another version or framework",
    "reservation_not_open": "the reservation's time begins",
    "licences_in_use": "a lease that uses the licence ends, or its count is raised",
    "quota_in_use": "a lease that counts against the quota ends, or the quota is raised",
    "budget_spent": "the next period begins, or the run is shorter, or the budget is raised",
    "behind_in_queue": "the requests ahead in the queue are served or withdrawn",
    "partition_pending": "the node is rebooted and reports the slices",
    "no_such_hardware": "a node with such devices joins, or other models are asked for",
    "no_capacity": "a lease on such devices ends and they are proved clean",
    "planned_for_another": "the other starts or its time ends, or this one states a run before it",
    "no_fresh_evidence": "the link is measured (link.evidence), or less is asked of it",
    "constraints_unmet": "a lease where they are met ends, or less is asked of the devices",
    "no_beside": "a lease on those nodes ends, or less CPU or memory is asked",
}


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: ``verdict`` is ``met``, ``not met`` or ``not reached``; with what it compared."""

    code: str
    text: str
    verdict: str
    numbers: Numbers


@dataclass(frozen=True, slots=True)
class Asking:
    """Who asks: a request that waits, or one that nobody has made yet.

    ``run_us`` is its longest run, its queue's where it states none.
    """

    asker: Asker
    tenant: str
    run_us: int | None

    @property
    def need(self) -> Need:
        """What it asks for."""
        return self.asker.key.need

    @property
    def holder(self) -> str:
        """The quota that it counts against."""
        return self.asker.key.holder


def asking_of(state: State, request: Request) -> Asking:
    """Return a request of the cell as one that asks now."""
    return Asking(asker_of(state, request), request.tenant, request.max_run_us)


def up_to(code: str, numbers: Numbers) -> tuple[Rule, ...]:
    """Return the rules as they were asked up to the one that said no, and its numbers."""
    if code not in RULES:
        return (Rule(code, CODES[code].meaning, "not met", numbers),) if code in CODES else ()
    found = []
    verdict = "met"
    for name, text in RULES.items():
        if name == code:
            found.append(Rule(name, text, "not met", numbers))
            verdict = "not reached"
        else:
            found.append(Rule(name, text, verdict, {}))
    return tuple(found)


def live_rules(state: State, asking: Asking) -> Iterator[Rule]:
    """Ask every rule on the state as it is; the tenant and the queue must be known."""
    asked = {one[0]: one[1:] for one in (*_policy(state, asking), *_supply(state, asking))}
    for code, text in RULES.items():
        found = asked.get(code)
        if found is None:
            # Without devices of the kind there is nothing to count.
            yield Rule(code, text, "not reached", {})
        else:
            yield Rule(code, text, "met" if found[0] else "not met", found[1])


_Asked = tuple[str, bool, Numbers]


def _policy(state: State, asking: Asking) -> Iterator[_Asked]:
    """Ask what queues and quotas say."""
    key, now_us = asking.asker.key, state.now_us
    queue, quota = state.queues[key.queue], state.quotas[key.holder]
    charge, most = charge_of(state, key.need), most_ever(state, key.holder, GPU)
    limit, run_us = queue.max_gpus, asking.run_us
    over = over_quota(state, key, now_us)
    if over is None and examine(state, asking.asker, now_us) == "quota_in_use":
        # What is free is of a kind that the quota has no room for.
        over = class_over(state, key, now_us)
    yield "unknown_tenant", True, {"tenant": asking.tenant, "quota": key.holder}
    yield "unknown_queue", True, {"queue": queue.name}
    for passed in ("unknown_template", "template_requires", "template_forbids"):
        yield passed, True, {}
    admitted = not queue.tenants or asking.tenant in queue.tenants
    yield "not_admitted", admitted, {"tenant": asking.tenant, "queue": queue.name}
    within = limit is None or charge <= limit * 1000
    yield "exceeds_queue_limit", within, {"asked_milli": charge, "max_gpus": limit}
    within = most is None or charge <= most
    yield "exceeds_quota", within, {"asked_milli": charge, "nominal_milli": most}
    within = queue.max_run_us is None or run_us is None or run_us <= queue.max_run_us
    yield "exceeds_max_run", within, {"max_run_us": run_us, "queue_max_run_us": queue.max_run_us}
    yield "needs_max_run", run_us is not None or not quota.budgeted, {"quota": key.holder}
    never = never_licensed(state, key.need)
    for code in ("unknown_licence", "exceeds_licences"):
        lacks = never is not None and never[0] == code
        yield code, not lacks, never[1] if never is not None and lacks else {}
    yield "incompatible", True, {}
    yield "no_route", True, {}
    yield "unknown_vgpu_type", True, {}
    used = licences_short(state, key.need) if never is None else None
    opens = within_time(state, key, now_us)
    yield "reservation_not_open", opens, {"reservation": key.reservation} if not opens else {}
    yield "licences_in_use", used is None, used or {}
    spent = over is not None and over.resource == "gpu_time"
    held: Numbers = {
        "asked_milli": charge,
        "held_milli": quota.used.get(GPU, 0),
        "nominal_milli": quota.limits[GPU].nominal,
    }
    if not spent:
        held |= quota_numbers(state, key, over)
    yield "quota_in_use", over is None or spent, held
    budget: Numbers = {}
    if over is not None and spent:
        budget = {
            "quota": over.quota,
            "asked_milli_us": over.asked,
            "available_milli_us": over.available,
        }
    yield "budget_spent", not spent, budget
    ahead = _strictly_ahead(state, asking)
    yield "behind_in_queue", not ahead, {"ordering": queue.ordering, "ahead": ahead}


def _supply(state: State, asking: Asking) -> Iterator[_Asked]:
    """Ask what is free where."""
    need = asking.need
    classes = state.index.matches(state, need)
    yield "unknown_pool", need.pool is None or need.pool in state.pools, {"pool": need.pool}
    serves = need.pool is None or pool_serves(state, need.pool, need)
    yield "pool_refuses", serves, {"pool": need.pool, "mode": need.mode}
    short = shortfall(state, need)
    fits = place(state, need) is not None
    pending = short.code == "partition_pending" and not fits
    yield "partition_pending", not pending, short.numbers if pending else {}
    yield "no_such_hardware", bool(classes), {"kinds": len(classes)} if classes else short.numbers
    if not classes:
        return
    yield "no_capacity", fits or short.code != "no_capacity", short.numbers
    yield "constraints_unmet", fits or short.code != "constraints_unmet", short.numbers
    yield _planned(state, asking, fits=fits)
    linked = over_links(state, need, None, state.now_us)
    fresh = linked is None or not fits or place(state, need, None, linked) is not None
    yield "no_fresh_evidence", fresh, link_numbers(state, need, state.now_us)
    beside: Numbers = {}
    if need.cpu_milli or need.host_memory_mib:
        beside = {"cpu_milli": need.cpu_milli, "memory_mib": need.host_memory_mib}
    yield "no_beside", fits or short.code != "no_beside", beside


def _planned(state: State, asking: Asking, *, fits: bool) -> _Asked:
    allowed = allowed_nodes(state, asking.asker, state.now_us) if fits else None
    of_class = reserved_class(state, asking.asker.key)
    met = allowed is None or place(state, asking.need, of_class, allowed) is not None
    numbers: Numbers = {}
    if allowed is not None and not met:
        index = state.index
        nodes = {*index.plans, *index.repairs, *index.booked}
        barred = [node for node in sorted(nodes) if not allowed(node)]
        owners = sorted({index.plans[node] for node in barred if node in index.plans})
        reserved = sorted({name for node in barred for name in index.booked.get(node, ())})
        gangs = {name for node in barred for name in index.repairs.get(node, ())}
        others = [
            *owners,
            *sorted(gangs.difference(owners)),
            *map("reservation {}".format, reserved),
        ]
        numbers = {"planned_nodes": len(barred), "planned_for": ", ".join(others)[:500]}
        plan = state.requests[owners[0]].plan if owners else None
        if plan is not None and plan.start_us is not None:
            numbers["start_us"] = plan.start_us
        elif reserved and not owners:
            numbers["start_us"] = min(state.reservations[name].start_us for name in reserved)
    return "planned_for_another", met, numbers


def _strictly_ahead(state: State, asking: Asking) -> int:
    """Count who waits before it in its strict queue for the same kind of device."""
    key = asking.asker.key
    if state.queues[key.queue].ordering != "strict":
        return 0
    mine = frozenset(state.index.matches(state, key.need))
    return sum(
        bisect_left(shape.line, (asking.asker.rank, ""))
        for shape in state.index.waiting.in_queue(key.queue)
        if shape.head[0] < asking.asker.rank
        and not mine.isdisjoint(shape.classes)
        and shape.key.reservation == key.reservation
        and holds_back(state, shape.key, key.holder, state.now_us)
    )
