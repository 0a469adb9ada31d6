"""What can be computed from the state and must not be computed twice.

Free devices by class and node, room on shared devices, free slices, the waiting
line and the deadlines. All of it is derived: `rebuild` makes it from the state
alone, `ledger.core.invariants` holds the kept one against a rebuilt one, and
every choice made from it depends on its content only, never on its history.

A *class* is ``(pool, model, memory_mib)``: devices that are alike for every
request. Free is counted per node and device, never as a sum (DESIGN 1.11).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Any

from ledger.core.deadlines import Deadlines
from ledger.core.state import WHOLE_MILLI, free_milli
from ledger.core.waiting import Waiting

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ledger.core.state import Device, Need, Node, Slice, State

__all__ = ["Cards", "ClassKey", "Index", "Slices", "rebuild", "usable"]

#: (pool, model, memory_mib, profile); the profile is empty for whole cards and shares.
ClassKey = tuple[str, str, int, str]


def usable(node: Node, device: Device) -> bool:
    """Say whether anything on the device may be leased now (A6)."""
    return node.state == "online" and device.health == "healthy" and device.quarantine is None


def _discard(items: list[Any], item: object) -> None:
    at = bisect_left(items, item)  # type: ignore[type-var]
    if at < len(items) and items[at] == item:
        del items[at]


class Cards:
    """The free whole devices and the shared ones of one class."""

    __slots__ = ("buckets", "free", "partial", "room")

    def __init__(self) -> None:
        """Start empty."""
        #: node -> its free devices, sorted.
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
            _discard(self.buckets[len(old)], node)
        if free is None:
            self.free.pop(node, None)
            return
        self.free[node] = free
        while len(self.buckets) <= len(free):
            self.buckets.append([])
        insort(self.buckets[len(free)], node)

    def set_room(self, uuid: str, room: int | None) -> None:
        """Set a shared device's free thousandths; None takes it out."""
        old = self.room.pop(uuid, None)
        if old is not None:
            _discard(self.partial, (old, uuid))
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

    __slots__ = ("charge_milli", "free", "where")

    def __init__(self, charge_milli: int) -> None:
        """Start empty; ``charge_milli`` is what one slice counts against a quota."""
        self.charge_milli = charge_milli
        #: (node, device, start, slice id), sorted: neighbours fill up first.
        self.free: list[tuple[str, str, int, str]] = []
        self.where: dict[str, tuple[str, str, int, str]] = {}


class Index:
    """Everything derived. ``freed`` and the like say what a decision has loosened."""

    __slots__ = (
        "cards",
        "deadlines",
        "freed",
        "loosened_queues",
        "relieved",
        "slices",
        "waiting",
        "_matches",
    )

    def __init__(self) -> None:
        """Start empty."""
        self.cards: dict[ClassKey, Cards] = {}
        self.slices: dict[ClassKey, Slices] = {}
        self.waiting = Waiting()
        self.deadlines = Deadlines()
        #: Classes in which something became free since the last pass.
        self.freed: set[ClassKey] = set()
        #: Tenants whose quota has more room since the last pass.
        self.relieved: set[str] = set()
        #: Strict queues whose head may have gone since the last pass.
        self.loosened_queues: set[str] = set()
        self._matches: dict[tuple[object, ...], tuple[ClassKey, ...]] = {}

    def settle(self) -> None:
        """Forget what has been loosened: a pass has looked at it, or the record did."""
        self.freed.clear()
        self.relieved.clear()
        self.loosened_queues.clear()

    # -- classes ---------------------------------------------------------

    def classes_changed(self, state: State) -> None:
        """Forget which classes a need matches; called for a new class or pool labels."""
        self._matches.clear()
        self.waiting.reclassify(lambda need: self.matches(state, need))
        self.freed.update(self.cards)
        self.freed.update(self.slices)

    def matches(self, state: State, need: Need) -> tuple[ClassKey, ...]:
        """Return the classes that could serve the need, least memory first."""
        wanted = need.profile
        memory = 0 if wanted else need.memory_mib
        key = (need.pool, need.labels, need.models, memory, wanted)
        found = self._matches.get(key)
        if found is None:
            kept: Iterable[ClassKey] = self.slices if wanted else self.cards
            found = tuple(
                sorted(
                    (
                        one
                        for one in kept
                        if one[3] == wanted
                        and one[2] >= memory
                        and (need.pool is None or one[0] == need.pool)
                        and (not need.models or one[1] in need.models)
                        and _labelled(state, one[0], need)
                    ),
                    key=lambda one: (one[2], one[0], one[1]),
                )
            )
            self._matches[key] = found
        return found

    def cards_of(self, state: State, key: ClassKey) -> Cards:
        """Return the class, made on first sight."""
        found = self.cards.get(key)
        if found is None:
            found = self.cards[key] = Cards()
            self.classes_changed(state)
        return found

    def slices_of(self, state: State, key: ClassKey, charge_milli: int) -> Slices:
        """Return the slice class, made on first sight."""
        found = self.slices.get(key)
        if found is None:
            found = self.slices[key] = Slices(charge_milli)
            self.classes_changed(state)
        return found

    # -- following the state ---------------------------------------------

    def refresh_node(self, state: State, node: Node) -> None:
        """Bring everything on the node up to date, after its own state changed."""
        for name, cards in self.cards.items():
            if node.name in cards.free and name[0] != node.pool:
                cards.move(node.name, None)
        self.refresh(state, node, node.devices)

    def refresh(self, state: State, node: Node, uuids: Iterable[str]) -> None:
        """Bring the node's named devices and their slices up to date."""
        moved: dict[ClassKey, list[str]] = {}
        for uuid in uuids:
            device = state.devices[uuid]
            key = (node.pool, device.model, device.memory_mib, "")
            cards = self.cards_of(state, key)
            free = moved.get(key)
            if free is None:
                free = moved[key] = list(cards.free.get(node.name, ()))
            able = usable(node, device) and not device.mig_enabled
            milli = free_milli(device) if able else 0
            whole = milli == WHOLE_MILLI
            at = bisect_left(free, uuid)
            listed = at < len(free) and free[at] == uuid
            if whole and not listed:
                free.insert(at, uuid)
                self.freed.add(key)
            elif listed and not whole:
                del free[at]
            room = milli if able and not whole and milli > 0 and _shared(device) else None
            if room is not None or uuid in cards.room:
                if room is not None and room >= cards.room.get(uuid, 0):
                    self.freed.add(key)
                cards.set_room(uuid, room)
            for item in device.slices:
                self.refresh_slice(state, node, device, state.slices[item])
        for key, free in moved.items():
            self.cards[key].move(node.name, free)

    def refresh_slice(self, state: State, node: Node, device: Device, item: Slice) -> None:
        """Bring one slice up to date."""
        key = (node.pool, device.model, device.memory_mib, item.profile)
        charge = -(-WHOLE_MILLI * item.compute_slices // max(1, device.compute_slices))
        slices = self.slices_of(state, key, min(charge, WHOLE_MILLI))
        free = (
            item.lease is None
            and item.quarantine is None
            and not device.holds
            and usable(node, device)
        )
        place = slices.where.get(item.id)
        if free and place is None:
            place = (node.name, device.uuid, item.start, item.id)
            slices.where[item.id] = place
            insort(slices.free, place)
            self.freed.add(key)
        elif place is not None and not free:
            del slices.where[item.id]
            _discard(slices.free, place)

    def forget_slice(self, item: Slice) -> None:
        """Take a slice that is gone out of every class."""
        for slices in self.slices.values():
            place = slices.where.pop(item.id, None)
            if place is not None:
                _discard(slices.free, place)

    def free_class(self, state: State, node: Node) -> None:
        """Note that the node's CPU or memory has more room."""
        for uuid in node.devices:
            device = state.devices[uuid]
            self.freed.add((node.pool, device.model, device.memory_mib, ""))
            for item in device.slices:
                profile = state.slices[item].profile
                self.freed.add((node.pool, device.model, device.memory_mib, profile))


def _labelled(state: State, pool: str, need: Need) -> bool:
    found = state.pools.get(pool)
    if found is None:
        return False
    return all(found.labels.get(name) == value for name, value in need.labels)


def _shared(device: Device) -> bool:
    """Say whether only shares hold the device: a whole lease fills all of it."""
    return all(hold.milli < WHOLE_MILLI or hold.cleaning for hold in device.holds.values())


def rebuild(state: State) -> Index:
    """Make the index from the state alone and put it in place."""
    index = state.index = Index()
    for node in state.nodes.values():
        index.refresh_node(state, node)
    for request in state.requests.values():
        if request.state == "queued":
            index.waiting.add(request, index.matches(state, request.need))
    index.deadlines.rebuild(state)
    index.settle()
    return index
