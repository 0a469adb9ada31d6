"""Where something is free: devices, shares and slices by class and node, as they change.

A *class* is what is alike for every request (`ledger.core.derived.places`). Free is counted
per node and device, never as a sum (DESIGN 1.11).
"""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING

from ledger.core.derived.loosened import Loosened
from ledger.core.derived.makers import offer
from ledger.core.derived.places import (
    NO_DEVICE,
    Cards,
    Slices,
    bare_class,
    labelled,
    slice_class,
    smallest,
)
from ledger.core.placing.constraints import class_serves, pool_serves
from ledger.core.state import WHOLE_MILLI

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ledger.core.derived.places import ClassKey
    from ledger.core.state import Device, Need, Node, Slice, State

__all__ = ["SupplyIndex", "usable"]

_MOST_MATCHES = 4096


def usable(node: Node, device: Device) -> bool:
    """Say whether anything on the device may be leased now (A6)."""
    return node.open and device.health == "healthy" and device.quarantine is None


class SupplyIndex(Loosened):
    """Follows what nodes report and what leases take of it."""

    __slots__ = ()

    def classes_changed(self, state: State) -> None:
        """Forget which classes a need matches: one came or went, or a pool's labels changed."""
        self._matches.clear()
        self._constrained = False
        self.waiting.reclassify(lambda need: self.matches(state, need))
        self.freed.update(self.cards)
        self.freed.update(self.slices)
        self.shaken.update(self.plans.values())

    def facts_changed(self, state: State) -> None:
        """Note that a node or a device may have or lack now what terms ask for."""
        if self._constrained:
            self.classes_changed(state)

    def matches(self, state: State, need: Need) -> tuple[ClassKey, ...]:
        """Return the classes that could serve the need, least memory first."""
        wanted = need.profile
        memory = 0 if wanted else need.memory_mib
        bare = need.count == 0
        any_mig = not wanted and need.mode == "mig"
        limits = (need.mode, need.tenant) if state.pools_limited else None
        key = (need.pool, need.labels, need.models, memory, wanted, bare, any_mig,
               need.compute_slices, need.terms and (need.terms, need.count), limits)  # fmt: skip
        found = self._matches.get(key)
        if found is None:
            kept: Iterable[ClassKey] = self.slices if wanted else self.cards
            if any_mig:
                kept, memory = smallest(self.slices, memory, need.compute_slices), 0
            found = tuple(
                sorted(
                    (
                        one
                        for one in kept
                        if (one[3] == wanted or any_mig or (bare and one[3] == NO_DEVICE))
                        and one[2] >= memory
                        and (need.pool is None or one[0] == need.pool)
                        and (not need.models or one[1] in need.models)
                        and labelled(state, one[0], need)
                        and (limits is None or pool_serves(state, one[0], need))
                        and (need.terms is None or class_serves(state, one, need))
                    ),
                    key=lambda one: (one[2], one[0], one[1], one[4]),
                )
            )
            self._constrained = self._constrained or need.terms is not None
            if len(self._matches) >= _MOST_MATCHES:
                self._matches.clear()
            self._matches[key] = found
        return found

    def refresh_node(self, state: State, node: Node) -> None:
        """Bring everything on the node up to date, after its own state or size changed."""
        self.refresh(state, node, node.devices)
        self.refresh_bare(state, node)
        self.free_class(state, node)

    def refresh_bare(self, state: State, node: Node) -> None:
        """Keep a node without devices in the class of its pool's such nodes."""
        name = f"node {node.name}"
        home = (bare_class(node), node.name) if not node.devices else None
        if self._homes.get(name) != home:
            self._leave_cards(state, name)
            if home is not None:
                self._enter_cards(state, name, home)

    def refresh(self, state: State, node: Node, uuids: Iterable[str]) -> None:
        """Bring the node's named devices and their slices up to date."""
        name = node.name
        makers = self.makers
        before: dict[ClassKey, tuple[Cards, int]] = {}
        for uuid in uuids:
            device = state.devices[uuid]
            key = (node.pool, device.model, device.memory_mib, "", WHOLE_MILLI)
            home = self._homes.get(uuid)
            if home is None or home[1] != name or home[0] != key:
                self._leave_cards(state, uuid)
                self._enter_cards(state, uuid, (key, name))
            cards = self.cards[key]
            if key not in before:
                before[key] = (cards, len(cards.free[name]))
            able = (
                node.open
                and device.health == "healthy"
                and device.quarantine is None
                and not device.mig_enabled
                and not device.slices
                and device.kept_for is None
            )
            if not able:
                self._not_to_be_had(node, device, key)
            if cards.set_free(name, uuid, free=able and not device.holds):
                self.freed.add(key)
            if device.holds or uuid in cards.room:
                self._refresh_room(cards, key, device, able=able)
            for item in device.slices:
                self.refresh_slice(state, node, device, state.slices[item])
            planned = uuid in makers.offers or uuid in makers.pending
            if planned or device.geometry is not None or device.mig_pending:
                self._refresh_maker(state, node, device)
        for key, (cards, count) in before.items():
            cards.resize(name, count)
            if name in self.booked:
                # What is held there for a while only, and in use again, leaves more for others.
                self.freed.add(key)
        self.scores.touch(name)

    def _not_to_be_had(self, node: Node, device: Device, key: ClassKey) -> None:
        """Note whom it concerns that the device is kept, out of use, or in MIG mode."""
        self._shaken(node.name)
        if device.kept_for is not None:
            self.ripe_for(device.kept_for, device.uuid)
        if device.holds and not usable(node, device):
            # Whoever waited for it to be clean has to look for another, or evict.
            self.freed.add(key)
            self.relieved.update(shape.root for shape in self.waiting.shapes.values())

    def _refresh_room(self, cards: Cards, key: ClassKey, device: Device, *, able: bool) -> None:
        """Follow the room on a device that shares hold in part."""
        uuid = device.uuid
        room = WHOLE_MILLI if able and device.holds else 0
        for one in device.holds.values():
            room -= one.milli
            if one.vgpu_type:
                # There is room for its own kind at most, which is looked for device by device.
                room = -WHOLE_MILLI
                self.freed.add(key)
        if room > 0:
            if room >= cards.room.get(uuid, 0):
                self.freed.add(key)
            cards.set_room(uuid, room)
        elif uuid in cards.room:
            cards.set_room(uuid, None)

    def refresh_slice(self, state: State, node: Node, device: Device, item: Slice) -> None:
        """Bring one slice up to date."""
        home = (slice_class(node, device, item), node.name)
        size = (item.memory_mib, item.compute_slices)
        known = self._homes.get(item.id) == home
        if not known or self.slices[home[0]].members[item.id] != size:
            self.forget_slice(state, item)
            self._homes[item.id] = home
            self._enter_slices(state, home[0], item.id, size)
        slices = self.slices[home[0]]
        if item.kept_for is not None:
            self.ripe_for(item.kept_for, item.id)
        free = (
            item.lease is None
            and item.quarantine is None
            and item.kept_for is None
            and item.order is None
            and not device.holds
            and usable(node, device)
        )
        if item.quarantine is not None or not usable(node, device):
            self.freed.add(home[0])
        place = slices.where.get(item.id)
        if free and place is None:
            place = (node.name, device.uuid, item.start, item.id)
            slices.where[item.id] = place
            insort(slices.free, place)
            self.freed.add(home[0])
        elif place is not None and not free:
            slices.take_out(item.id)

    def forget_slice(self, state: State, item: Slice) -> None:
        """Take a slice that is gone, or of another class by now, out of its class."""
        home = self._homes.pop(item.id, None)
        if home is None:
            return
        self.slices[home[0]].take_out(item.id)
        self._leave_slices(state, home[0], item.id)

    def _enter_slices(self, state: State, key: ClassKey, name: str, size: tuple[int, int]) -> None:
        if self.slices.setdefault(key, Slices()).enter(name, size):
            self.classes_changed(state)

    def _leave_slices(self, state: State, key: ClassKey, name: str) -> None:
        slices = self.slices[key]
        last = slices.leave(name)
        if not slices.members:
            del self.slices[key]
        if last:
            self.classes_changed(state)

    def _refresh_maker(self, state: State, node: Node, device: Device) -> None:
        """Follow what slices the device could be made into, and what stands on it."""
        offers = self.makers.offers
        before, after = offers.get(device.uuid, {}), offer(state, node, device)
        for key, size in before.items():
            if after.get(key) != size:
                self._leave_slices(state, key, device.uuid)
        for key, size in after.items():
            if before.get(key) != size:
                self._enter_slices(state, key, device.uuid, size)
        if after:
            offers[device.uuid] = after
        else:
            offers.pop(device.uuid, None)
        self.makers.follow(state, node, device, in_use=usable(node, device))
        self.freed.update(after)

    def _enter_cards(self, state: State, name: str, home: tuple[ClassKey, str]) -> None:
        key, node = self._homes[name] = home
        cards = self.cards.get(key)
        if cards is None:
            cards = self.cards[key] = Cards()
            self.classes_changed(state)
        if node not in cards.members:
            cards.members[node] = 0
            cards.move(node, [])
            self.freed.add(key)
        cards.members[node] += 1
        self.scores.touch(node)

    def _leave_cards(self, state: State, name: str) -> None:
        """Leave nothing behind: what is kept must not depend on what was there before."""
        home = self._homes.pop(name, None)
        if home is None:
            return
        key, node = home
        self._shaken(node)
        self.scores.touch(node)
        cards = self.cards[key]
        cards.set_room(name, None)
        cards.members[node] -= 1
        if cards.members[node]:
            cards.move(node, [uuid for uuid in cards.free[node] if uuid != name])
            return
        del cards.members[node]
        cards.move(node, None)
        if not cards.members:
            del self.cards[key]
            self.classes_changed(state)

    def free_class(self, state: State, node: Node) -> None:
        """Note that the node's CPU or memory has more room."""
        self.scores.touch(node.name)
        self.ripen()
        if not node.devices:
            self.freed.add(bare_class(node))
        for uuid in node.devices:
            device = state.devices[uuid]
            self.freed.add((node.pool, device.model, device.memory_mib, "", WHOLE_MILLI))
            for name in device.slices:
                self.freed.add(slice_class(node, device, state.slices[name]))
            self.freed.update(self.makers.offers.get(uuid, ()))
