"""Who asks for a place, and what it would count against their quota."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ledger.core.derived.waiting import shape_key
from ledger.core.placing.placement import charge_of
from ledger.core.quotas.fair_share import shares
from ledger.core.quotas.quota import Charge, over, over_gpu
from ledger.core.state import WHOLE_MILLI

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.core.derived.places import ClassKey
    from ledger.core.derived.waiting import Rank, ShapeKey
    from ledger.core.placing.placement import Placement
    from ledger.core.quotas.quota import Over
    from ledger.core.state import Need, Request, State

__all__ = [
    "Asker",
    "Turnorder",
    "asker_of",
    "charge_for",
    "class_over",
    "memory_of",
    "over_quota",
    "quota_fits",
    "turn_order",
]

#: Priority, then who had least lately where the queue wants that, then age, then arrival.
Turnorder = tuple[int, tuple[int, ...], int, int]


class Asker(NamedTuple):
    """The shape of a request, its place in line, and its id."""

    key: ShapeKey
    rank: Rank
    request: str


def asker_of(state: State, request: Request) -> Asker:
    """Return the request as one that asks now."""
    return Asker(shape_key(state, request), request.rank, request.id)


def turn_order(state: State, key: ShapeKey, rank: Rank, now_us: int) -> Turnorder:
    """Return when it is the asker's turn among others: the least goes first."""
    had = shares(state, key.holder, now_us) if state.queues[key.queue].fair_share else ()
    return (rank[0], had, rank[1], rank[2])


def over_quota(state: State, key: ShapeKey, now_us: int) -> Over | None:
    """Return the limit that every kind of device would break which could serve the need.

    None when one of them fits, or when there is none at all.
    """
    quota = state.quotas[key.holder]
    if quota.simple:
        return over_gpu(quota, charge_of(state, key.need))
    if len(quota.governed) == 1:
        charge = Charge(charge_of(state, key.need), time_us=key.run_us or 0)
        return over(state, key.holder, charge, now_us)
    first = None
    for one in state.index.matches(state, key.need):
        short = over(state, key.holder, _charge_in(state, key, one), now_us)
        if short is None:
            return None
        first = first or short
    return first


def class_over(state: State, key: ShapeKey, now_us: int) -> Over | None:
    """Return the limit that the first kind of device would break of which the quota has no room."""
    found = (over(state, key.holder, _charge_in(state, key, one), now_us)
             for one in state.index.matches(state, key.need))  # fmt: skip
    return next((short for short in found if short is not None), None)


def quota_fits(state: State, key: ShapeKey, now_us: int) -> Callable[[ClassKey], bool] | None:
    """Return what says of a kind of device whether the quota has room; None when all are alike."""
    if key.need.mode != "mig" and len(state.quotas[key.holder].governed) == 1:
        return None

    def fits(one: ClassKey) -> bool:
        return over(state, key.holder, _charge_in(state, key, one), now_us) is None

    return fits


def _charge_in(state: State, key: ShapeKey, one: ClassKey) -> Charge:
    """Return what the need counts for in a class, before the place is known."""
    need = key.need
    units = need.count * need.nodes
    run_us = key.run_us or 0
    if need.mode == "share":
        return Charge(need.gpu_milli, one[1], "", 1, need.memory_mib, run_us)
    if need.mode == "whole":
        return Charge(WHOLE_MILLI * units, one[1], "", units, one[2] * units, run_us)
    memory_mib = 0
    if "memory_mib" in state.quotas[key.holder].governed:
        # Slices of one class have one size, or nearly so; the largest will do for each.
        memory_mib = max(state.index.slices[one].sizes)[0]
    return Charge(one[4] * units, one[1], one[3], units, memory_mib * units, run_us)


def memory_of(state: State, found: Placement, need: Need) -> int:
    """Return the device memory that the place keeps for the need, in MiB."""
    if need.mode == "share":
        return need.memory_mib
    if need.mode == "whole":
        return found.of_class[2] * need.count * need.nodes
    return sum(state.slices[unit].memory_mib for _, part in found.parts for unit in part)


def charge_for(state: State, found: Placement, key: ShapeKey) -> Charge:
    """Return what the place would count for."""
    need = key.need
    units = need.count * need.nodes
    memory_mib = memory_of(state, found, need)
    model, profile = found.of_class[1], found.of_class[3] if need.mode == "mig" else ""
    return Charge(found.charge_milli, model, profile, units, memory_mib, key.run_us or 0)
