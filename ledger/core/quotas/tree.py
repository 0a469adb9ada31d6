"""The shape of the quota tree: what each quota has to give, worked out when the tree changes.

A quota's *capacity* is its own amount less what its children keep for themselves; what
it *keeps* is the part of that beyond its lending limit. Both, and all usage, are made
from the quotas and the requests alone (`ledger.core.quotas.quota` says what they mean).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.core.quotas.quota import GPU, add, holder_of, leave, total

if TYPE_CHECKING:
    from ledger.core.quotas.quota import Quota
    from ledger.core.state import State

__all__ = ["nominal_below", "rebuild"]


def rebuild(state: State) -> None:
    """Work out capacities, and count all usage again, after the tree has changed."""
    children: dict[str | None, list[Quota]] = {}
    for quota in state.quotas.values():
        children.setdefault(quota.parent, []).append(quota)
        quota.used, quota.leaving = {}, {}
    for root in children.get(None, []):
        _govern(children, root, (), budgeted=False)
        _capacities(children, root)
    for request in state.requests.values():
        if request.charge is not None:
            holder = holder_of(state, request.tenant, request.project)
            if request.evicted:
                leave(state.quotas[holder], request.charge, 1)
            else:
                add(state, holder, request.charge)


def _govern(
    children: dict[str | None, list[Quota]], quota: Quota, above: tuple[str, ...], *, budgeted: bool
) -> None:
    quota.governed = [*dict.fromkeys((*above, *quota.limits))]
    quota.budgeted = budgeted or quota.period_us is not None
    quota.inner = quota.name in children
    quota.simple = quota.parent is None and quota.governed == [GPU] and not quota.budgeted
    for child in children.get(quota.name, []):
        _govern(children, child, tuple(quota.governed), budgeted=quota.budgeted)


def _capacities(children: dict[str | None, list[Quota]], quota: Quota) -> None:
    """Work from the leaves up: what a child keeps back is not there for its siblings."""
    own = children.get(quota.name, [])
    for child in own:
        _capacities(children, child)
    quota.capacity, quota.kept = {}, {}
    for resource in dict.fromkeys(
        (*quota.limits, *(name for child in own for name in child.capacity))
    ):
        lent = sum(one.capacity.get(resource, 0) - one.kept.get(resource, 0) for one in own)
        nominal = total(quota, resource)
        below = sum(_total_below(children, one, resource) for one in own)
        capacity = lent if nominal is None else nominal - below + lent
        quota.capacity[resource] = capacity
        limit = quota.limits.get(resource)
        if limit is not None and limit.lending is not None and quota.parent is not None:
            quota.kept[resource] = max(0, capacity - limit.lending)
    quota.keeps_below = bool(quota.kept) or any(one.keeps_below for one in own)


def _total_below(children: dict[str | None, list[Quota]], quota: Quota, resource: str) -> int:
    nominal = total(quota, resource)
    if nominal is not None:
        return nominal
    return sum(_total_below(children, one, resource) for one in children.get(quota.name, []))


def nominal_below(state: State, name: str, resource: str) -> int:
    """Return the sum of what the quota's children have as their own (Q3)."""
    children: dict[str | None, list[Quota]] = {}
    for quota in state.quotas.values():
        children.setdefault(quota.parent, []).append(quota)
    return sum(_total_below(children, one, resource) for one in children.get(name, []))
