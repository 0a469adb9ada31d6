"""Where something is free: devices and slices that are alike, counted by node.

A *class* holds what is the same for every request. What is kept of it depends on
the state alone, never on how the state came about: a class that nothing belongs
to any more is gone.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Any

__all__ = ["NO_DEVICE", "Cards", "ClassKey", "Slices", "discard"]

#: (pool, model, memory_mib, profile, charge): what a unit of the class is and what it counts
#: against a quota. The profile is empty for whole cards and shares.
ClassKey = tuple[str, str, int, str, int]

#: Stands for the profile in the class of nodes that have no device: CPU-only tasks run there.
NO_DEVICE = "none"


def discard(items: list[Any], item: object) -> None:
    """Take an item out of a sorted list, if it is in."""
    at = bisect_left(items, item)
    if at < len(items) and items[at] == item:
        del items[at]


class Cards:
    """The free whole devices and the shared ones of one class."""

    __slots__ = ("buckets", "free", "members", "partial", "room")

    def __init__(self) -> None:
        """Start empty."""
        #: node -> how many of its devices are of this class, free or not.
        self.members: dict[str, int] = {}
        #: node -> its free devices, sorted; every node in ``members`` is here.
        self.free: dict[str, list[str]] = {}
        #: number of free devices -> the nodes that have exactly so many, sorted.
        self.buckets: list[list[str]] = [[]]
        #: (free thousandths, UUID) of devices that shares hold in part, sorted.
        self.partial: list[tuple[int, str]] = []
        #: UUID -> its free thousandths, for those in ``partial``.
        self.room: dict[str, int] = {}

    def move(self, node: str, free: list[str] | None) -> None:
        """Set the node's free devices; None takes the node out."""
        old = self.free.get(node)
        if old is not None:
            discard(self.buckets[len(old)], node)
        if free is None:
            self.free.pop(node, None)
            return
        self.free[node] = free
        self._enter(node, len(free))

    def resize(self, node: str, before: int) -> None:
        """Follow a change of the node's free devices, of which there were ``before``."""
        count = len(self.free[node])
        if count != before:
            discard(self.buckets[before], node)
            self._enter(node, count)

    def _enter(self, node: str, count: int) -> None:
        while len(self.buckets) <= count:
            self.buckets.append([])
        insort(self.buckets[count], node)

    def set_room(self, uuid: str, room: int | None) -> None:
        """Set a shared device's free thousandths; None takes it out."""
        old = self.room.pop(uuid, None)
        if old is not None:
            discard(self.partial, (old, uuid))
        if room is not None:
            self.room[uuid] = room
            insort(self.partial, (room, uuid))

    def most_free(self) -> int:
        """Return the largest number of free devices on one node."""
        for count in range(len(self.buckets) - 1, -1, -1):
            if self.buckets[count]:
                return count
        return 0


class Slices:
    """The free MIG slices of one class and profile."""

    __slots__ = ("free", "members", "where")

    def __init__(self) -> None:
        """Start empty."""
        #: How many slices are of this class, free or not.
        self.members = 0
        #: (node, device, start, slice id), sorted: neighbours fill up first.
        self.free: list[tuple[str, str, int, str]] = []
        self.where: dict[str, tuple[str, str, int, str]] = {}

    def take_out(self, name: str) -> None:
        """Take a slice out, if it is in."""
        place = self.where.pop(name, None)
        if place is not None:
            discard(self.free, place)
