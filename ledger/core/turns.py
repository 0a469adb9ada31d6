"""Whose turn it is: which of those that wait a pass looks at, and for whom it may evict.

A pass would be as long as the line if it looked at everybody for whom something was
loosened. Shapes of one tree of quotas that need the same are a *family*: when what
the tree has left is less than they ask, or no place for it is free, none of them can
be served, and none is looked at. Evictions are looked for when something of the
request's own quota has changed, and for the first in line of a tree in which there is
more room; so who is entitled to more than that waits for its turn.
"""

from __future__ import annotations

from heapq import nsmallest
from typing import TYPE_CHECKING

from ledger.core.placement import charge_of, place
from ledger.core.quota import GPU

if TYPE_CHECKING:
    from ledger.core.state import Need, State
    from ledger.core.waiting import Shape, ShapeKey

__all__ = ["FIRST_TO_EVICT", "look_at"]

#: For so many of a tree of quotas, first in line, a pass looks for leases to evict.
FIRST_TO_EVICT = 8


def look_at(state: State) -> tuple[list[Shape], set[ShapeKey]]:
    """Return the shapes that a pass looks at, and for which of them it may evict or plan."""
    index = state.index
    waiting = index.waiting
    found: dict[ShapeKey, Shape] = {}
    for queue in index.loosened_queues:
        for shape in waiting.in_queue(queue):
            found[shape.key] = shape
    for holder in index.changed:
        for shape in waiting.of_holder(holder):
            found[shape.key] = shape
    if any(
        queue.preemption != "never" or queue.reclaim != "never" for queue in state.queues.values()
    ):
        for root in index.relieved:
            first = nsmallest(FIRST_TO_EVICT, waiting.in_tree(root), key=_place_in_line)
            for shape in first:
                found[shape.key] = shape
    may_evict = set(found)
    placeable: dict[Need, bool] = {}
    for (root, need), shapes in waiting.families(index.freed, index.relieved):
        if _could_serve(state, root, need, placeable):
            found.update(shapes)
    return list(found.values()), may_evict


def _place_in_line(shape: Shape) -> tuple[object, str]:
    return shape.line[0]


def _could_serve(state: State, root: str, need: Need, placeable: dict[Need, bool]) -> bool:
    """Say quickly whether one of a family may be served; a yes is no promise."""
    if need.mode == "mig":
        return True
    quota = state.quotas[root]
    capacity = quota.capacity.get(GPU)
    if capacity is not None and not quota.keeps_below:
        left = capacity - quota.used.get(GPU, 0)
        if charge_of(state, need) > left:
            return False
    if need not in placeable:
        placeable[need] = place(state, need) is not None
    return placeable[need]
