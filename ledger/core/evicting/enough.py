"""Whether there could be room at all if some leases ended: what is counted before a search.

Most who look for leases to evict cannot have enough, whoever went: their quota, or
the nodes, lack more than the leases in reach hold. A count says so at a small part of
the price of a search. It may say yes where the search finds nothing. What an ended part
of a gang still holds is not counted: when the gang has ended it is looked at again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.core.evicting.entitlement import quota_of
from ledger.core.line.asking import over_quota
from ledger.core.quotas.quota import GPU, root_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from ledger.core.derived.places import Cards
    from ledger.core.line.asking import Asker
    from ledger.core.state import Need, State

__all__ = ["enough"]

#: Among more leases than this there is mostly a place: counting first does not pay.
_FEW = 512


def enough(state: State, asker: Asker, leases: Collection[str], now_us: int) -> bool:
    """Say quickly whether there could be room if all of them ended; a yes is no promise."""
    short = over_quota(state, asker.key, now_us)
    if short is not None and short.resource == GPU:
        lacks = short.asked - short.available
        root = root_of(state, asker.key.holder)
        for name in leases:
            if root_of(state, quota_of(state, name)) == root:
                lacks -= state.leases[name].charge_milli
                if lacks <= 0:
                    break
        if lacks > 0:
            return False
    return _could_place(state, asker.key.need, leases)


def _could_place(state: State, need: Need, candidates: Collection[str]) -> bool:
    """Count, node by node, what is free, ends already, or is held by the candidates."""
    if need.mode != "whole" or len(candidates) > _FEW:
        return True
    return any(
        _enough_nodes(state, need, state.index.cards[key], candidates)
        for key in state.index.matches(state, need)
    )


def _enough_nodes(state: State, need: Need, cards: Cards, candidates: Collection[str]) -> bool:
    lacks = need.nodes - sum(map(len, cards.buckets[need.count :]))
    if lacks <= 0:
        return True
    free: dict[str, int] = {}
    for name, gain in _gains(state, candidates):
        before = free[name] if name in free else len(cards.free.get(name, ()))
        after = free[name] = before + gain
        if before < need.count <= after:
            lacks -= 1
            if lacks == 0:
                return True
    return False


def _gains(state: State, candidates: Collection[str]) -> Iterator[tuple[str, int]]:
    """Yield on which nodes how many devices become free: what ends already, then the candidates."""
    for order in state.orders.values():
        yield order.node, _not_kept(state, order.units)
    for name in candidates:
        for part in state.leases[name].parts.values():
            yield part.node, len(part.units)


def _not_kept(state: State, units: list[str]) -> int:
    """Count the devices of which nobody has been promised what becomes free."""
    found = 0
    for unit in units:
        device = state.devices.get(unit)
        found += device is not None and device.kept_for is None
    return found
