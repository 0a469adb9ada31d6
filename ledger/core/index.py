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

    from ledger.core.state import Device, Need, Node, Request, Slice, State

__all__ = ["Cards", "ClassKey", "Index", "Slices", "Unindexed", "rebuild", "usable"]

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
        self._enter(node, len(free))

    def resize(self, node: str, before: int) -> None:
        """Follow a change of the node's free devices, of which there were ``before``."""
        count = len(self.free[node])
        if count != before:
            _discard(self.buckets[before], node)
            self._enter(node, count)

    def _enter(self, node: str, count: int) -> None:
        while len(self.buckets) <= count:
            self.buckets.append([])
        insort(self.buckets[count], node)

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

    def take_out(self, name: str) -> None:
        """Take a slice out, if it is in."""
        place = self.where.pop(name, None)
        if place is not None:
            _discard(self.free, place)


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
        if self.freed:
            self.freed.clear()
        if self.relieved:
            self.relieved.clear()
        if self.loosened_queues:
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

    def queued(self, state: State, request: Request) -> None:
        """Put a request in line, with its longest wait."""
        self.waiting.add(request, self.matches(state, request.need))
        self.deadlines.push(state, request.wait_due_us, "wait", request.id)

    def unqueued(self, request: Request) -> None:
        """Take a request out of the line: those behind it in a strict queue may go."""
        self.waiting.discard(request)
        self.loosened_queues.add(request.queue)

    def due(self, state: State, due_us: int | None, kind: str, name: str) -> None:
        """Remember that something falls due."""
        self.deadlines.push(state, due_us, kind, name)

    def refresh_node(self, state: State, node: Node) -> None:
        """Bring everything on the node up to date, after its own state changed."""
        self._leave_other_pools(state, node)
        self.refresh(state, node, node.devices)

    def _leave_other_pools(self, state: State, node: Node) -> None:
        for key, cards in self.cards.items():
            if node.name in cards.free and key[0] != node.pool:
                cards.move(node.name, None)
                for uuid in node.devices:
                    cards.set_room(uuid, None)
        for key, slices in self.slices.items():
            if key[0] != node.pool:
                for uuid in node.devices:
                    for name in state.devices[uuid].slices:
                        slices.take_out(name)

    def refresh(self, state: State, node: Node, uuids: Iterable[str]) -> None:
        """Bring the node's named devices and their slices up to date."""
        name = node.name
        touched: dict[ClassKey, int] = {}
        for uuid in uuids:
            device = state.devices[uuid]
            key = (node.pool, device.model, device.memory_mib, "")
            cards = self.cards.get(key) or self.cards_of(state, key)
            free = cards.free.get(name)
            if free is None:
                cards.move(name, [])
                free = cards.free[name]
            if key not in touched:
                touched[key] = len(free)
            able = usable(node, device) and not device.mig_enabled
            if able and not device.holds:
                at = bisect_left(free, uuid)
                if at == len(free) or free[at] != uuid:
                    free.insert(at, uuid)
                    self.freed.add(key)
            else:
                _discard(free, uuid)
            if cards.room or device.holds:
                self._refresh_room(cards, key, device, able=able)
            for item in device.slices:
                self.refresh_slice(state, node, device, state.slices[item])
        for key, before in touched.items():
            self.cards[key].resize(name, before)

    def _refresh_room(self, cards: Cards, key: ClassKey, device: Device, *, able: bool) -> None:
        """Follow the room on a device that shares hold in part."""
        uuid = device.uuid
        milli = free_milli(device) if able and device.holds else 0
        if milli > 0:
            if milli >= cards.room.get(uuid, 0):
                self.freed.add(key)
            cards.set_room(uuid, milli)
        elif uuid in cards.room:
            cards.set_room(uuid, None)

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
            slices.take_out(item.id)

    def forget_slice(self, item: Slice) -> None:
        """Take a slice that is gone out of every class."""
        for slices in self.slices.values():
            slices.take_out(item.id)

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


class Unindexed(Index):
    """An index that follows nothing: for reading a long log, before `rebuild`."""

    __slots__ = ()

    def classes_changed(self, state: State) -> None:
        """Follow nothing."""

    def queued(self, state: State, request: Request) -> None:
        """Follow nothing."""

    def unqueued(self, request: Request) -> None:
        """Follow nothing."""

    def due(self, state: State, due_us: int | None, kind: str, name: str) -> None:
        """Follow nothing."""

    def refresh_node(self, state: State, node: Node) -> None:
        """Follow nothing."""

    def refresh(self, state: State, node: Node, uuids: Iterable[str]) -> None:
        """Follow nothing."""

    def forget_slice(self, item: Slice) -> None:
        """Follow nothing."""

    def free_class(self, state: State, node: Node) -> None:
        """Follow nothing."""


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
