"""Time that was held: off the budgets of a period, and for fair share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.core.quotas.quota import GPU, MOST_MILLI_US, chain

if TYPE_CHECKING:
    from ledger.core.state import State

__all__ = ["shares", "spend", "use_up"]


def spend(state: State, name: str, milli_us: int, granted_us: int) -> None:
    """Take GPU time off the budgets at and above the quota; give it back when negative.

    A budget has at most a million GPU-hours. Live leases under one that is set later may
    count more: what has come to 2.5 million stays so until the period is over.
    """
    if milli_us > 0 and state.quotas[name].budgeted:
        # Who waits for a place, and has no time left for it any more, blocks nobody.
        state.index.tightened(state, name)
    for quota in chain(state, name) if state.quotas[name].budgeted else ():
        if quota.period_us is None:
            continue
        period = granted_us // quota.period_us
        if (period + 1) * quota.period_us <= state.now_us:
            # That period is over: nothing of it counts any more.
            continue
        if period > quota.spent_period:
            quota.spent_period, quota.spent_milli_us = period, 0
        if period == quota.spent_period:
            if quota.spent_milli_us < MOST_MILLI_US:
                quota.spent_milli_us = min(quota.spent_milli_us + milli_us, MOST_MILLI_US)
            state.index.due(state, (period + 1) * quota.period_us, "budget", quota.name)


def use_up(state: State, name: str, milli_us: int, now_us: int) -> None:
    """Remember time that was held, for fair share: it counts half after each half-life.

    Beyond 2.5 million GPU-hours (of one half-life, mostly) no more is remembered.
    """
    at: str | None = name
    while at is not None:
        quota = state.quotas[at]
        at = quota.parent
        window = now_us // quota.half_life_us
        quota.used_milli_us >>= min(window - quota.used_window, 200)
        quota.used_milli_us = min(quota.used_milli_us + milli_us, MOST_MILLI_US)
        quota.used_window = window


def shares(state: State, name: str, now_us: int) -> tuple[int, ...]:
    """Return how much the quota and those above it have had lately, by weight, topmost first.

    What is held now counts as if it had been held for a half-life. Compared as it
    stands: first the organisation that has had least, in it the tenant, then the project.
    """
    found = []
    for quota in chain(state, name):
        past = quota.used_milli_us >> min(now_us // quota.half_life_us - quota.used_window, 200)
        found.append((past + quota.used.get(GPU, 0) * quota.half_life_us) // quota.weight)
    return tuple(reversed(found))
