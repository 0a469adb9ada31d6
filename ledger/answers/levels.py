"""A request's quota at each level of its tree: what is held, kept back, borrowed, and of whom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ledger.core.line.asking import over_quota
from ledger.core.placing.placement import charge_of
from ledger.core.quotas.quota import GPU, available, budget_left, chain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ledger.answers.rules import Asking
    from ledger.core.quotas.quota import Quota
    from ledger.core.state import State

__all__ = ["Level", "levels_of"]

#: How many lenders are named.
_MOST_LENDERS = 10


@dataclass(frozen=True, slots=True)
class Level:
    """One resource of one quota, in the resource's own unit (`ledger.core.quotas.quota`).

    ``available`` is what this level lets the request have now, what it could borrow
    included (None: no limit), ``kept_back`` what it lends to nobody, ``borrowed`` how
    much it uses beyond its own, and ``lenders`` which quotas beside it have not used
    theirs. A budget of GPU time is the resource ``gpu_time``, in thousandths of a
    device times µs, whole again at ``renews_us``.
    """

    quota: str
    resource: str
    asked: int
    nominal: int | None
    used: int
    available: int | None
    kept_back: int = 0
    leaving: int = 0
    borrowed: int = 0
    borrowing_limit: int | None = None
    lenders: tuple[str, ...] = ()
    renews_us: int | None = None


def levels_of(state: State, asking: Asking) -> Iterator[Level]:
    """Yield the levels from the quota that is charged up to the topmost."""
    key, now_us = asking.asker.key, state.now_us
    over = over_quota(state, key, now_us)
    asked = {GPU: charge_of(state, key.need)}
    if over is not None:
        asked[over.resource] = over.asked
    for quota in chain(state, key.holder):
        for resource in quota.capacity:
            if resource in asked or resource in quota.limits:
                yield _level(state, quota, resource, asked.get(resource, 0))
        left = budget_left(quota, now_us)
        if left is not None and quota.period_us is not None:
            yield Level(
                quota.name,
                "gpu_time",
                asked[GPU] * (key.run_us or 0),
                quota.budget_milli_us,
                quota.budget_milli_us - left,
                left,
                renews_us=(now_us // quota.period_us + 1) * quota.period_us,
            )


def _level(state: State, quota: Quota, resource: str, asked: int) -> Level:
    limit = quota.limits.get(resource)
    used = quota.used.get(resource, 0)
    borrowed = max(0, used - quota.capacity.get(resource, 0)) if quota.parent is not None else 0
    return Level(
        quota.name,
        resource,
        asked,
        None if limit is None else limit.nominal,
        used,
        available(state, quota.name, resource),
        quota.kept.get(resource, 0),
        quota.leaving.get(resource, 0),
        borrowed,
        None if limit is None else limit.borrowing,
        _lenders(state, quota, resource) if borrowed else (),
    )


def _lenders(state: State, quota: Quota, resource: str) -> tuple[str, ...]:
    """Name the quotas beside this one that have lent: what is theirs is not used by them."""
    found = sorted(
        other.name
        for other in state.quotas.values()
        if other.parent == quota.parent
        and other.name != quota.name
        and other.capacity.get(resource, 0) - other.kept.get(resource, 0)
        > max(0, other.used.get(resource, 0) - other.kept.get(resource, 0))
    )
    # What the one above has beyond its children's is lent as well.
    return tuple(found[:_MOST_LENDERS]) or ((quota.parent,) if quota.parent else ())
