"""Whose turn it is: which of those that wait a pass looks at, and for whom it may evict.

A pass would be as long as the line if it looked at everybody for whom something was
loosened. Shapes of one tree of quotas that need the same are a *family*: when what
the tree has left is less than they ask, or no place for it is free, none of them can
be served, and none is looked at. Evictions are looked for when something of the
request's own quota has changed, and for the first in line of a tree in which there is
more room; so who is entitled to more than that waits for its turn.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from ledger.core.derived.waiting import Family
from ledger.core.line.asking import Asker, turn_order
from ledger.core.placing.placement import charge_of, place
from ledger.core.quotas.quota import GPU

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ledger.core.derived.waiting import Head, Shape
    from ledger.core.line.asking import Turnorder
    from ledger.core.state import Need, State

__all__ = ["FIRST_TO_EVICT", "Turns"]

#: For so many of a tree of quotas, first in line, a pass looks for leases to evict.
FIRST_TO_EVICT = 8


class Turns:
    """Those that a pass looks at, one after the other, in order of turn.

    Of a family only the first is in the heap: the one behind it comes when the first
    has had its turn, and not at all once none of them can be served any more.
    """

    __slots__ = ("_had", "_heap", "_last", "_may", "_now_us", "_placeless", "_state")

    def __init__(self, state: State, now_us: int) -> None:
        """Find those for whom something was loosened; it may be forgotten then."""
        self._state = state
        self._now_us = now_us
        #: Who may evict or plan: these shapes have a turn by themselves.
        self._may = _may_evict(state)
        #: Family -> the head of it that had its turn.
        self._had: dict[Family, Head] = {}
        #: Needs that no place is free for; in a pass none becomes free.
        self._placeless: set[Need] = set()
        self._heap: list[tuple[Turnorder, str, Shape | Family]] = []
        self._last: Shape | Family | None = None
        alone = list(self._may)
        for family in self._servable():
            self._push_next(family)
            alone += [shape for shape in family.fair if shape not in self._may]
        self._heap += [self._turn_of(shape) for shape in alone]
        heapify(self._heap)

    def next(self, *, served: bool) -> tuple[Asker, bool] | None:
        """Return whose turn it is and whether it may evict or plan; None: nobody is left.

        ``served``: the one before was given something, so the next of its shape has a turn.
        """
        last, self._last = self._last, None
        if isinstance(last, Family):
            self._push_next(last)
        elif last is not None and served and last.line:
            heappush(self._heap, self._turn_of(last))
        while self._heap:
            order, name, at = heappop(self._heap)
            found = self._in_family(at) if isinstance(at, Family) else at
            if found is None or (found not in self._may and found.key.need in self._placeless):
                continue
            now = self._turn_of(found)
            if (order, name) < now[:2]:
                # Somebody of its quota was served in this pass: others come first now.
                heappush(self._heap, (*now[:2], at))
                continue
            self._last = at
            if isinstance(at, Family):
                self._had[at] = found.head
            return Asker(found.key, found.head[0], found.head[1]), found in self._may
        return None

    def no_place(self, need: Need) -> None:
        """Note that no place is free for a need."""
        self._placeless.add(need)

    def _turn_of(self, shape: Shape) -> tuple[Turnorder, str, Shape]:
        rank, name = shape.head
        return turn_order(self._state, shape.key, rank, self._now_us), name, shape

    def _in_family(self, family: Family) -> Shape | None:
        """Return the shape of the family whose turn is next, if any of it can still be served."""
        if family.need in self._placeless or not _has_quota(self._state, family):
            return None
        waiting = self._state.index.waiting
        for _, name in family.after(self._had.get(family)):
            shape = waiting.shape_of(name)
            if shape not in self._may:
                return shape
        return None

    def _push_next(self, family: Family) -> None:
        shape = self._in_family(family)
        if shape is not None:
            order, name, _ = self._turn_of(shape)
            heappush(self._heap, (order, name, family))

    def _servable(self) -> Iterator[Family]:
        """Yield the families of which something was loosened and one may be served."""
        state, index = self._state, self._state.index
        for need, families in index.waiting.families(index.freed, index.relieved):
            able = [one for one in families if _has_quota(state, one)]
            if able and (need.mode == "mig" or place(state, need) is not None):
                yield from able


def _may_evict(state: State) -> dict[Shape, None]:
    """Return the shapes of whose own quota something has changed, or who are first of a tree."""
    index = state.index
    waiting = index.waiting
    found: dict[Shape, None] = {}
    for queue in index.loosened_queues:
        found.update(dict.fromkeys(waiting.in_queue(queue)))
    for holder in index.changed:
        found.update(dict.fromkeys(waiting.of_holder(holder)))
    if index.relieved and any(
        queue.preemption != "never" or queue.reclaim != "never" for queue in state.queues.values()
    ):
        for root in index.relieved:
            found.update(dict.fromkeys(waiting.first(root, FIRST_TO_EVICT)))
    return found


def _has_quota(state: State, family: Family) -> bool:
    """Say quickly whether the tree has room for one of the family; a yes is no promise."""
    if family.need.mode == "mig":
        return True
    quota = state.quotas[family.root]
    capacity = quota.capacity.get(GPU)
    if capacity is None or quota.keeps_below:
        return True
    return charge_of(state, family.need) <= capacity - quota.used.get(GPU, 0)
