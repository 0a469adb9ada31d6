"""Where something is free: devices and slices that are alike, counted by node.

A *class* holds what is the same for every request. What is kept of it depends on
the state alone, never on how the state came about: a class that nothing belongs
to any more is gone.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from typing import TYPE_CHECKING, Any

from ledger.core.state import WHOLE_MILLI

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ledger.core.state import Device, Need, Node, Slice, State

__all__ = [
    "NO_DEVICE",
    "Cards",
    "ClassKey",
    "Slices",
    "bare_class",
    "discard",
    "labelled",
    "part_milli",
    "slice_class",
    "smallest",
]

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

    def set_free(self, node: str, uuid: str, *, free: bool) -> bool:
        """Enter or take out a device of the node; say whether it became free. `resize` follows."""
        listed = self.free[node]
        at = bisect_left(listed, uuid)
        known = at < len(listed) and listed[at] == uuid
        if free and not known:
            listed.insert(at, uuid)
            return True
        if known and not free:
            del listed[at]
        return False

    def resize(self, node: str, before: int) -> None:
        """Follow a change of the node's free devices, of which there were ``before``."""
        count = len(self.free[node])
        if count != before:
            discard(self.buckets[before], node)
            self._enter(node, count)

    def _enter(self, node: str, count: int) -> None:
        buckets = self.buckets
        while len(buckets) <= count:
            buckets.append([])
        insort(buckets[count], node)

    def set_room(self, uuid: str, room: int | None) -> None:
        """Set a shared device's free thousandths; None takes it out."""
        old = self.room.pop(uuid, None)
        if old is not None:
            discard(self.partial, (old, uuid))
        if room is not None:
            self.room[uuid] = room
            insort(self.partial, (room, uuid))

    def most_room(self) -> int:
        """Return the most free thousandths of a device that shares hold in part, or 0."""
        return self.partial[-1][0] if self.partial else 0

    def all_free(self) -> int:
        """Return the number of free devices."""
        return sum([count * len(nodes) for count, nodes in enumerate(self.buckets)])

    def most_free(self) -> int:
        """Return the largest number of free devices on one node."""
        for count in range(len(self.buckets) - 1, -1, -1):
            if self.buckets[count]:
                return count
        return 0


class Slices:
    """The free MIG slices of one class and profile."""

    __slots__ = ("free", "members", "sizes", "where")

    def __init__(self) -> None:
        """Start empty."""
        #: What is of this class, free or not, or could make it -> MiB and compute slices.
        self.members: dict[str, tuple[int, int]] = {}
        #: How many of the members have which size; most classes have one.
        self.sizes: Counter[tuple[int, int]] = Counter()
        #: (node, device, start, slice id), sorted: neighbours fill up first.
        self.free: list[tuple[str, str, int, str]] = []
        self.where: dict[str, tuple[str, str, int, str]] = {}

    def enter(self, name: str, size: tuple[int, int]) -> bool:
        """Add a member; return whether it is the first of its size."""
        self.members[name] = size
        self.sizes[size] += 1
        return self.sizes[size] == 1

    def leave(self, name: str) -> bool:
        """Take a member out; return whether it was the last of its size."""
        size = self.members.pop(name)
        self.sizes[size] -= 1
        if self.sizes[size]:
            return False
        del self.sizes[size]
        return True

    def gives(self, memory_mib: int, compute_slices: int) -> bool:
        """Say whether every slice of the class has at least so much."""
        return all(mib >= memory_mib and part >= compute_slices for mib, part in self.sizes)

    def take_out(self, name: str) -> None:
        """Take a slice out, if it is in."""
        place = self.where.pop(name, None)
        if place is not None:
            discard(self.free, place)


def bare_class(node: Node) -> ClassKey:
    """Return the class of the pool's nodes that have no device."""
    return (node.pool, "", 0, NO_DEVICE, 0)


def slice_class(node: Node, device: Device, item: Slice) -> ClassKey:
    """Return a slice's class; it is charged as its part of the compute slices, rounded up (C15)."""
    milli = part_milli(device.compute_slices, item.compute_slices)
    return (node.pool, device.model, device.memory_mib, item.profile, milli)


def part_milli(of_slices: int, compute_slices: int) -> int:
    """Return compute slices as thousandths of the device that has ``of_slices``, rounded up."""
    return min(-(-WHOLE_MILLI * compute_slices // max(1, of_slices)), WHOLE_MILLI)


def labelled(state: State, pool: str, need: Need) -> bool:
    """Say whether the pool has all labels that the need asks for."""
    found = state.pools.get(pool)
    if found is None:
        return False
    return all(found.labels.get(name) == value for name, value in need.labels)


def smallest(
    kept: Mapping[ClassKey, Slices], memory_mib: int, compute_slices: int
) -> list[ClassKey]:
    """Return of each kind of device the class of the smallest slices that give so much."""
    found: dict[tuple[str, str, int], ClassKey] = {}
    for key, slices in kept.items():
        if slices.gives(memory_mib, compute_slices):
            size = (key[4], max(slices.sizes), key[3])
            other = found.get(key[:3])
            if other is None or size < (other[4], max(kept[other].sizes), other[3]):
                found[key[:3]] = key
    return list(found.values())
