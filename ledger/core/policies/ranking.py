"""Scores that are kept: for each shape the places of a class, best first.

A score depends on what is free on one node alone. So a node is scored again for
a shape only if it has changed since the shape was last placed, and what a spot is
worth is worked out once. Nothing that is kept ever decides anything: it is what
the state as it is would give (`ledger.core.invariants` makes it anew and compares).
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from ledger.core.placing.room import free_memory
from ledger.core.policies.spot import NO_LIMIT, Spot, after
from ledger.core.state import WHOLE_MILLI

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ledger.core.derived.places import Cards, ClassKey
    from ledger.core.policies.spot import Ask, Measure
    from ledger.core.state import State

__all__ = ["Changes", "Found", "KeptScores", "Scores"]

#: How many shapes are kept for a class; the one not used for longest goes first.
_MOST_SHAPES = 512
#: How many times as many places as nodes a ranking may hold before it is cleared of those
#: that no longer are.
_MOST_STALE = 4
#: Of how many spots the worth is remembered before all are forgotten.
_MOST_SPOTS = 50_000


class Changes:
    """Which nodes have changed, in order of their last change."""

    __slots__ = ("count", "last")

    def __init__(self) -> None:
        #: How many changes there have been.
        self.count = 0
        #: node -> the number of its last change, ascending.
        self.last: dict[str, int] = {}

    def since(self, count: int) -> Iterator[str]:
        """Yield the nodes that have changed since there were ``count`` changes."""
        last = self.last
        for name in reversed(last):
            if last[name] <= count:
                return
            yield name

    def note(self, node: str) -> None:
        """Note that what is free on the node may have changed."""
        self.count += 1
        self.last.pop(node, None)
        self.last[node] = self.count


class Found(NamedTuple):
    """A place: ``room`` is that of the device a share goes to, 0 for whole devices."""

    score: int
    node: str
    room: int


#: (- score, node, room, the node's change as of which this is so). The least is the best:
#: of equal scores that of the least name.
_Place = tuple[int, str, int, int]
#: (- score, room), or None where there is no place.
_Best = tuple[int, int] | None


class Scores:
    """What is free by node, of one class of devices, and the rankings under one measure."""

    __slots__ = ("_rankings", "_seen", "_worth", "cards", "changes", "measure", "spots")

    def __init__(self, cards: Cards, measure: Measure) -> None:
        self.cards = cards
        self.measure = measure
        self.changes = Changes()
        #: node -> what is free there and what that is worth, as of the last call of `best`.
        self.spots: dict[str, tuple[Spot, int]] = {}
        self._seen = -1
        self._worth: dict[Spot, int] = {}
        self._rankings: dict[Ask, _Ranking] = {}

    def best(
        self,
        state: State,
        ask: Ask,
        allowed: Callable[[str], bool] | None = None,
        beat: Found | None = None,
    ) -> Found | None:
        """Return the best place for the ask, or None when there is none better than ``beat``.

        Nodes for which ``allowed`` says no are passed over.
        """
        self._follow(state)
        ranking = self._rankings.pop(ask, None)
        if ranking is None:
            if len(self._rankings) >= _MOST_SHAPES:
                del self._rankings[next(iter(self._rankings))]
            ranking = _Ranking(self, ask)
        self._rankings[ask] = ranking
        ranking.follow(state)
        return ranking.best(allowed, beat)

    def units(self, state: State, ask: Ask, found: Found) -> tuple[str, ...]:
        """Return the devices of a place that was found: the least UUIDs that will do."""
        if ask.milli and found.room < WHOLE_MILLI:
            roomy = self.roomy(state, found.node, ask)
            return (min(uuid for room, uuid in roomy if room == found.room),)
        return tuple(self.cards.free[found.node][: 1 if ask.milli else ask.devices])

    def asks(self) -> list[Ask]:
        """Return the shapes that are kept."""
        return list(self._rankings)

    def worth(self, spot: Spot) -> int:
        """Return what the spot is worth."""
        found = self._worth.get(spot)
        if found is None:
            if len(self._worth) >= _MOST_SPOTS:
                self._worth.clear()
            found = self._worth[spot] = self.measure.worth(spot)
        return found

    def roomy(self, state: State, name: str, ask: Ask) -> Iterator[tuple[int, str]]:
        """Yield room and UUID of the node's devices held in part that could take the share."""
        room_of = self.cards.room
        for uuid in state.nodes[name].devices:
            room = room_of.get(uuid, 0)
            if room >= ask.milli and free_memory(state, state.devices[uuid]) >= ask.device_mib:
                yield room, uuid

    def _follow(self, state: State) -> None:
        """Look again at the nodes that have changed."""
        changes = self.changes
        if self._seen != changes.count:
            names = self.cards.free if self._seen < 0 else changes.since(self._seen)
            for name in names:
                spot = self._look(state, name)
                if spot is None:
                    self.spots.pop(name, None)
                else:
                    self.spots[name] = (spot, self.worth(spot))
            self._seen = changes.count

    def _look(self, state: State, name: str) -> Spot | None:
        free = self.cards.free.get(name)
        node = state.nodes[name]
        if free is None or not node.open:
            return None
        room_of = self.cards.room
        rooms = sorted([room_of[uuid] for uuid in node.devices if uuid in room_of])
        cpu, memory = node.cpu_milli, node.memory_mib
        # What is kept beside kept devices is not there for others.
        kept_cpu, kept_memory = state.index.beside.get(name, (0, 0))
        return Spot(
            NO_LIMIT if cpu is None else max(0, cpu - node.cpu_used - kept_cpu),
            NO_LIMIT if memory is None else max(0, memory - node.memory_used - kept_memory),
            len(free),
            tuple(rooms),
        )


class KeptScores(dict["ClassKey", Scores]):
    """What is kept of each class that was placed in under a policy of its pool."""

    def touch(self, node: str) -> None:
        """Let the node be scored again: what is free there may have changed."""
        for scores in self.values():
            if node in scores.cards.members:
                scores.changes.note(node)


class _Ranking:
    """The places for one shape, the best on each node, best first."""

    __slots__ = ("_ask", "_heap", "_known", "_scores", "_seen", "_toll")

    def __init__(self, scores: Scores, ask: Ask) -> None:
        self._scores = scores
        self._ask = ask
        self._toll = scores.measure.toll(ask)
        self._heap: list[_Place] = []
        #: node -> its change as of which its place is in the heap.
        self._known: dict[str, int] = {}
        #: How many changes have been followed; below zero, none.
        self._seen = -1

    def follow(self, state: State) -> None:
        """Score again what has changed."""
        scores = self._scores
        changes = scores.changes
        if self._seen == changes.count:
            return
        if self._seen < 0:
            # Many nodes are alike when a shape comes for the first time: each kind once.
            alike: dict[Spot, _Best] = {}
            self._heap = [*filter(None, [self._place(state, one, alike) for one in scores.spots])]
            heapify(self._heap)
        else:
            for name in changes.since(self._seen):
                place = self._place(state, name, {})
                if place is not None:
                    heappush(self._heap, place)
            if len(self._heap) > _MOST_STALE * len(scores.spots):
                self._heap = [one for one in self._heap if self._known.get(one[1]) == one[3]]
                heapify(self._heap)
        self._seen = changes.count

    def _place(self, state: State, name: str, alike: dict[Spot, _Best]) -> _Place | None:
        """Return the best place on the node; ``alike`` has what was found on nodes like it."""
        scores = self._scores
        known = scores.spots.get(name)
        best: _Best = None
        if known is not None:
            spot, now = known
            if self._ask.device_mib and spot.rooms:
                # Which rooms will do depends on the devices' memory too.
                roomy = sorted({room for room, _ in scores.roomy(state, name, self._ask)})
                best = self._best(spot, now, roomy)
            elif spot in alike:
                best = alike[spot]
            else:
                best = alike[spot] = self._best(spot, now, spot.rooms)
        if best is None:
            self._known.pop(name, None)
            return None
        change = self._known[name] = scores.changes.last.get(name, 0)
        return (best[0], name, best[1], change)

    def _best(self, spot: Spot, now: int, rooms: Sequence[int]) -> _Best:
        """Return the least loss on a spot that is worth ``now``, and the least room that has it."""
        ask, scores = self._ask, self._scores
        devices, milli, cpu_milli, memory_mib, _ = ask
        cpu, memory, full, _ = spot
        if cpu_milli > cpu or memory_mib > memory:
            return None
        left, at = None, 0
        if milli:
            last = 0
            for room in rooms:
                if room >= milli and room != last:
                    last = room
                    then = scores.worth(after(spot, ask, room))
                    if left is None or then > left:
                        left, at = then, room
            if full:
                then = scores.worth(after(spot, ask, WHOLE_MILLI))
                if left is None or then > left:
                    left, at = then, WHOLE_MILLI
        elif devices <= full:
            left = scores.worth(after(spot, ask, 0))
        if left is None:
            return None
        return -scores.measure.grade(left - now - self._toll), at

    def best(self, allowed: Callable[[str], bool] | None, beat: Found | None) -> Found | None:
        """Return the best place that is allowed; it stays in the ranking."""
        heap = self._heap
        aside: list[_Place] = []
        found = None
        while heap:
            least, name, room, change = heap[0]
            if beat is not None and (least, name) >= (-beat.score, beat.node):
                break
            if self._known.get(name) != change:
                heappop(heap)
            elif allowed is not None and not allowed(name):
                aside.append(heappop(heap))
            else:
                found = Found(-least, name, room)
                break
        for place in aside:
            heappush(heap, place)
        return found
