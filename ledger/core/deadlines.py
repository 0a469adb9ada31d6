"""What falls due, and when: an index over the state, never a timer.

A deadline fires when an input carries the cell's clock to it or past it
(DESIGN 2.2), and what it does is an event like any other. Entries are pushed
when something gets a due time and looked at again when they come up: one that
the state no longer bears out is dropped.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from ledger.core.state import NO_POOL

if TYPE_CHECKING:
    from ledger.core.state import State

__all__ = ["Deadline", "Deadlines", "due_time"]

#: (due µs, kind, id). Kinds: ``node`` lost, ``order`` timed out, ``run`` and ``wait`` limits.
Deadline = tuple[int, str, str]

_SLACK = 1024


def due_time(state: State, kind: str, name: str) -> int | None:
    """Return when the thing falls due as the state now stands, or None."""
    if kind == "wait":
        request = state.requests.get(name)
        return request.wait_due_us if request and request.state == "queued" else None
    if kind == "run":
        lease = state.leases.get(name)
        return lease.due_us if lease and lease.state != "stopping" else None
    if kind == "order":
        order = state.orders.get(name)
        return order.due_us if order else None
    node = state.nodes[name]
    pool = state.pools.get(node.pool, NO_POOL)
    if node.state != "silent" or node.silent_since_us is None:
        return None
    return node.silent_since_us + pool.silent_grace_us


class Deadlines:
    """A heap of what falls due."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        """Start empty."""
        self._heap: list[Deadline] = []

    def push(self, state: State, due_us: int | None, kind: str, name: str) -> None:
        """Remember a due time; None is no deadline."""
        if due_us is None:
            return
        heappush(self._heap, (due_us, kind, name))
        live = len(state.requests) + len(state.leases) + len(state.orders) + len(state.nodes)
        if len(self._heap) > _SLACK + 4 * live:
            self.rebuild(state)

    def pop_due(self, state: State, now_us: int) -> Deadline | None:
        """Return the next deadline that is due at ``now_us`` and still stands."""
        heap = self._heap
        while heap and heap[0][0] <= now_us:
            entry = heappop(heap)
            if due_time(state, entry[1], entry[2]) == entry[0]:
                return entry
        return None

    def next_due_us(self, state: State) -> int | None:
        """Return when the next deadline falls due, or None when there is none."""
        if state.pass_cut:
            return 0
        heap = self._heap
        while heap:
            if due_time(state, heap[0][1], heap[0][2]) == heap[0][0]:
                return heap[0][0]
            heappop(heap)
        return None

    def standing(self, state: State) -> list[Deadline]:
        """Return every deadline that still stands, earliest first."""
        return sorted({one for one in self._heap if due_time(state, one[1], one[2]) == one[0]})

    def rebuild(self, state: State) -> None:
        """Make the heap from the state alone."""
        named = (
            [("wait", name) for name in state.requests]
            + [("run", name) for name in state.leases]
            + [("order", name) for name in state.orders]
            + [("node", name) for name in state.nodes]
        )
        found = [(due_time(state, kind, name), kind, name) for kind, name in named]
        self._heap = [(due, kind, name) for due, kind, name in found if due is not None]
        heapify(self._heap)
