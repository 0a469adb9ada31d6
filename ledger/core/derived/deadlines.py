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
    from ledger.core.state import Lease, State

__all__ = ["Deadline", "Deadlines", "due_time", "expected_end"]

#: (due µs, kind, id). Kinds: ``node`` lost, ``order`` timed out, ``run`` and
#: ``wait`` limits, ``remind`` and ``idle`` of leases that are not used,
#: ``budget`` of a period that ends, ``settle`` of a node on which more is to be
#: ended than one record takes, ``repair`` of a place kept for a gang, ``opens`` and
#: ``closes`` of reservations.
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
    if kind in ("remind", "idle"):
        return _idle_due(state, kind, name)
    if kind == "order":
        order = state.orders.get(name)
        return order.due_us if order else None
    if kind == "rest":
        request = state.requests.get(name)
        return request.rests_until_us if request and request.state == "queued" else None
    if kind == "budget":
        quota = state.quotas[name]
        if quota.period_us is None or not quota.spent_milli_us:
            return None
        return (quota.spent_period + 1) * quota.period_us
    if kind == "repair":
        request = state.requests.get(name)
        return request.repair.until_us if request and request.repair else None
    if kind in ("opens", "closes"):
        return _window_due(state, kind, name)
    node = state.nodes[name]
    if kind == "settle":
        return node.unsettled_us if node.unsettled is not None else None
    pool = state.pools.get(node.pool, NO_POOL)
    if node.state != "silent" or node.silent_since_us is None:
        return None
    return node.silent_since_us + pool.silent_grace_us


def _window_due(state: State, kind: str, name: str) -> int | None:
    one = state.reservations.get(name)
    if one is None:
        return None
    if kind == "closes":
        return one.end_us
    return None if one.opened or one.cancelled else one.start_us


def _idle_due(state: State, kind: str, name: str) -> int | None:
    """An idle lease is reminded once, and reclaimed while it stays idle."""
    lease = state.leases.get(name)
    if lease is None or lease.idle_since_us is None or lease.state == "stopping":
        return None
    queue = state.queues[state.requests[lease.request].queue]
    if kind == "remind":
        wait = None if lease.reminded else queue.idle_remind_us
    else:
        wait = queue.idle_reclaim_us
    return None if wait is None else lease.idle_since_us + wait


def expected_end(state: State, lease: Lease) -> int | None:
    """Return when the lease should end: its longest run, or sooner if its request expects so."""
    request = state.requests[lease.request]
    if request.expected_run_us is None:
        return lease.due_us
    expected = lease.granted_us + max(0, request.expected_run_us - request.used_us)
    return expected if lease.due_us is None else min(expected, lease.due_us)


class Deadlines:
    """A heap of what falls due, and one of when leases should end, which fires nothing."""

    __slots__ = ("_ends", "_heap")

    def __init__(self) -> None:
        """Start empty."""
        self._heap: list[Deadline] = []
        self._ends: list[tuple[int, str]] = []

    def push(self, state: State, due_us: int | None, kind: str, name: str) -> None:
        """Remember a due time; None is no deadline."""
        if kind == "run":
            self._push_end(state, name)
        if due_us is None:
            return
        heappush(self._heap, (due_us, kind, name))
        live = len(state.requests) + len(state.leases) + len(state.orders) + len(state.nodes)
        if len(self._heap) > _SLACK + 4 * live:
            self.rebuild(state)

    def _push_end(self, state: State, name: str) -> None:
        end_us = expected_end(state, state.leases[name])
        if end_us is not None:
            heappush(self._ends, (end_us, name))
            if len(self._ends) > _SLACK + 4 * len(state.leases):
                self._rebuild_ends(state)

    def next_ends(self, state: State, now_us: int, most: int) -> list[tuple[int, str]]:
        """Return the ``most`` leases that should end soonest, and when, soonest first.

        A lease that has run longer than was expected ends at its longest run, or never.
        """
        heap = self._ends
        found: list[tuple[int, str]] = []
        while heap and len(found) < most:
            entry = heappop(heap)
            end_us, name = entry
            lease = state.leases.get(name)
            if lease is None or lease.state == "stopping" or found[-1:] == [entry]:
                continue
            if end_us not in (expected_end(state, lease), lease.due_us):
                continue
            if end_us >= now_us:
                found.append(entry)
            elif lease.due_us is not None and lease.due_us > end_us:
                heappush(heap, (lease.due_us, name))
        for entry in found:
            heappush(heap, entry)
        return found

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
            + [(kind, name) for name in state.leases for kind in ("run", "remind", "idle")]
            + [("order", name) for name in state.orders]
            + [("node", name) for name in state.nodes]
            + [("rest", name) for name in state.requests]
            + [("budget", name) for name in state.quotas]
            + [("settle", name) for name in state.nodes]
            + [("repair", name) for name in state.requests]
            + [(kind, name) for name in state.reservations for kind in ("opens", "closes")]
        )
        found = [(due_time(state, kind, name), kind, name) for kind, name in named]
        self._heap = [(due, kind, name) for due, kind, name in found if due is not None]
        heapify(self._heap)
        self._rebuild_ends(state)

    def _rebuild_ends(self, state: State) -> None:
        ends = [(expected_end(state, lease), name) for name, lease in state.leases.items()]
        self._ends = [(end_us, name) for end_us, name in ends if end_us is not None]
        heapify(self._ends)
