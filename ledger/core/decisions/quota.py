"""What operators set of quotas, and what is asked for and approved by a second person."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

from ledger.core.evicting.entitlement import quota_of
from ledger.core.limits import MAX_DUE, MAX_QUOTA_DEPTH
from ledger.core.quotas.quota import GPU, Limit, Quota, amount, available, chain, quota_name
from ledger.core.quotas.tree import nominal_below
from ledger.core.state import WHOLE_MILLI

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.core.decisions.turn import Answer, Input, Turn
    from ledger.core.state import State
    from schemas.requests import QuotaAnswer, QuotaApply, QuotaAsk

__all__ = ["QUOTAS"]

_US = 1_000_000
_HOUR_US = 3_600 * _US


def _apply(turn: Turn, given: Input) -> Answer:
    """Set a quota. A lowered one grants nothing new; it takes away only when told to (Q1)."""
    asked: QuotaApply = given.data
    name = quota_name(asked.tenant, asked.project)
    refusal = _refused(turn.state, asked, name)
    if refusal is not None:
        return refusal
    turn.emit(_applied(asked))
    quota = turn.state.quotas[name]
    stopped = _evict_over(turn, name) if asked.evict else 0
    numbers: dict[str, int | str | None] = {
        "held_milli": quota.used.get(GPU, 0),
        "nominal_milli": asked.nominal_gpu_milli,
    }
    return "applied", numbers | ({"stopped": stopped} if stopped else {})


def _refused(state: State, asked: QuotaApply, name: str) -> Answer | None:
    """Refuse what would not be a tree, or one whose parts are more than the whole (Q3)."""
    parent = asked.tenant if asked.project is not None else asked.parent
    if parent is not None:
        if parent not in state.quotas:
            return "unknown_parent", {"parent": parent}
        if any(quota.name == name for quota in chain(state, parent)):
            return "quota_cycle", {"quota": name, "parent": parent}
    trial = copy(state)
    limits = {GPU: Limit(asked.nominal_gpu_milli)} | {
        one.resource: Limit(one.nominal) for one in asked.limits
    }
    trial.quotas = state.quotas | {name: Quota(name, parent, limits)}
    if parent is not None:
        depth = max(sum(1 for _ in chain(trial, one)) for one in trial.quotas)
        if depth > MAX_QUOTA_DEPTH:
            return "quota_too_deep", {"quota": name, "depth": depth, "most": MAX_QUOTA_DEPTH}
    for quota in chain(trial, name):
        for resource, limit in quota.limits.items():
            below = nominal_below(trial, quota.name, resource)
            if below > limit.nominal:
                return "exceeds_parent", {
                    "quota": quota.name, "resource": resource, "nominal": limit.nominal,
                    "below": below,
                }  # fmt: skip
    return None


def _applied(asked: QuotaApply) -> dict[str, Any]:
    event: dict[str, Any] = {
        "type": "quota.applied",
        "tenant": asked.tenant,
        "nominal_gpu_milli": asked.nominal_gpu_milli,
        "author": asked.author,
        "reason": asked.reason,
    }
    budget = asked.budget
    more = {
        "project": asked.project,
        "parent": asked.parent if asked.project is None else None,
        "borrowing_gpu_milli": asked.borrowing_gpu_milli,
        "lending_gpu_milli": asked.lending_gpu_milli,
        "limits": [one.model_dump(exclude_none=True) for one in asked.limits] or None,
        "period_us": None if budget is None else budget.period_s * _US,
        "budget_milli_us": (None if budget is None else budget.gpu_hours * _HOUR_US * WHOLE_MILLI),
        "weight": asked.weight if asked.weight != 1 else None,
        "half_life_us": asked.half_life_s * _US if asked.half_life_s != _WEEK_S else None,
    }
    return event | {name: value for name, value in more.items() if value is not None}


_WEEK_S = 604_800


def _evict_over(turn: Turn, name: str) -> int:
    """Stop the leases granted last until what is held is within the quota again."""
    state = turn.state
    short = {
        resource: -left
        for resource in state.quotas[name].governed
        if (left := available(state, name, resource)) is not None and left < 0
    }
    below = [
        lease
        for lease in state.leases.values()
        if any(quota.name == name for quota in chain(state, quota_of(state, lease.id)))
    ]
    for lease in below:
        request = state.requests[lease.request]
        if lease.state == "stopping" and request.charge is not None and not request.evicted:
            # It counts until it has ended; nobody else has to go for what it holds.
            for resource in short:
                short[resource] -= amount(resource, request.charge)
    leases = [lease for lease in below if lease.state != "stopping"]
    leases.sort(key=lambda one: (one.granted_us, one.id), reverse=True)
    stopped = 0
    for lease in leases:
        charge = state.requests[lease.request].charge
        if charge is None or not any(
            left > 0 and amount(resource, charge) for resource, left in short.items()
        ):
            continue
        if len(turn.events) >= MAX_DUE:
            break
        for resource in short:
            short[resource] -= amount(resource, charge)
        turn.stop(lease, "quota-lowered", rule=f"quota {name}")
        stopped += 1
    return stopped


def _ask(turn: Turn, given: Input) -> Answer:
    asked: QuotaAsk = given.data
    name = quota_name(asked.tenant, asked.project)
    if name not in turn.state.quotas:
        return "unknown_tenant", {"tenant": name}
    turn.emit(
        {
            "type": "quota.asked",
            "ask": given.key,
            "tenant": asked.tenant,
            "nominal_gpu_milli": asked.nominal_gpu_milli,
            "author": asked.author,
            "reason": asked.reason,
        }
        | ({} if asked.project is None else {"project": asked.project})
    )
    return "applied", {"ask": given.key}


def _answer(turn: Turn, given: Input) -> Answer:
    """Two persons sign: who asked for more may not approve it (DESIGN 3)."""
    said: QuotaAnswer = given.data
    state = turn.state
    ask = state.quota_asks.get(said.ask)
    if ask is None:
        return "unknown_ask", {"ask": said.ask}
    if said.author == ask.author:
        return "same_person", {"author": said.author}
    answered = {
        "type": "quota.answered",
        "ask": ask.id,
        "approve": said.approve,
        "author": said.author,
        "reason": said.reason,
    }
    if not said.approve:
        turn.emit(answered)
        return "applied", {"approve": 0}
    name = quota_name(ask.tenant, ask.project)
    quota = state.quotas[name]
    if quota.parent is not None:
        limit = state.quotas[quota.parent].limits[GPU]
        below = nominal_below(state, quota.parent, GPU) - quota.limits[GPU].nominal
        if below + ask.nominal_milli > limit.nominal:
            return "exceeds_parent", {
                "quota": quota.parent, "nominal": limit.nominal, "below": below + ask.nominal_milli,
            }  # fmt: skip
    below = nominal_below(state, name, GPU)
    if ask.nominal_milli < below:
        return "exceeds_parent", {"quota": name, "nominal": ask.nominal_milli, "below": below}
    turn.emit(answered)
    return "applied", {"nominal_milli": ask.nominal_milli}


QUOTAS: dict[str, Callable[[Turn, Input], Answer]] = {
    "quota.apply": _apply,
    "quota.ask": _ask,
    "quota.answer": _answer,
}
