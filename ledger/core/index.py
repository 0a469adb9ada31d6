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
from typing import TYPE_CHECKING

from ledger.core.constraints import class_serves, pool_serves, pools_limited
from ledger.core.deadlines import Deadlines
from ledger.core.makers import Makers, offer
from ledger.core.places import (
    NO_DEVICE,
    Cards,
    Slices,
    bare_class,
    discard,
    labelled,
    slice_class,
    smallest,
)
from ledger.core.policies.ranking import KeptScores
from ledger.core.quota import holder_of, root_of
from ledger.core.room import free_milli
from ledger.core.state import WHOLE_MILLI
from ledger.core.waiting import Waiting, replica_group

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ledger.core.advance import Reservation
    from ledger.core.places import ClassKey
    from ledger.core.state import Device, Need, Node, Request, Slice, State

__all__ = ["Index", "rebuild", "usable"]

_MOST_MATCHES = 4096


def usable(node: Node, device: Device) -> bool:
    """Say whether anything on the device may be leased now (A6)."""
    return node.open and device.health == "healthy" and device.quarantine is None


class Index:
    """Everything derived. ``freed`` and the like say what a decision has loosened."""

    __slots__ = (
        "_constrained",
        "_homes",
        "_limited",
        "_matches",
        "apart",
        "beside",
        "booked",
        "cards",
        "changed",
        "deadlines",
        "floored",
        "freed",
        "held_back",
        "held_by",
        "loosened_queues",
        "makers",
        "plans",
        "relieved",
        "repairs",
        "replicas",
        "ripe",
        "scores",
        "shaken",
        "slices",
        "unsure",
        "waiting",
        "waits_on",
    )

    def __init__(self) -> None:
        """Start empty."""
        self.cards: dict[ClassKey, Cards] = {}
        self.slices: dict[ClassKey, Slices] = {}
        self.waiting = Waiting()
        self.deadlines = Deadlines()
        #: Classes in which something became free since the last pass.
        self.freed: set[ClassKey] = set()
        #: Trees of quotas, by their topmost, in which there is more room since the last pass.
        self.relieved: set[str] = set()
        #: Quotas of which something has ended since the last pass.
        self.changed: set[str] = set()
        #: Requests of whose kept place something has changed since the last pass.
        #: -> the units concerned; an empty name stands for all of them.
        self.ripe: dict[str, set[str]] = {}
        #: Request -> the unit of its kept place that was last seen not free: looked at first.
        self.waits_on: dict[str, str] = {}
        #: Requests whose planned nodes have changed since the last pass.
        self.shaken: set[str] = set()
        #: Requests whose kept place is clean, but not yet their quota or their node's CPU.
        self.held_back: set[str] = set()
        #: Node -> CPU and memory beside the devices that are kept there for requests.
        self.beside: dict[str, tuple[int, int]] = {}
        #: Node -> the waiting request for which it is planned.
        self.plans: dict[str, str] = {}
        #: Node -> the waiting gangs that had a part there, which is kept for them (A10).
        self.repairs: dict[str, dict[str, None]] = {}
        #: Node -> its reservations; and the reservations whose nodes have changed.
        self.booked: dict[str, dict[str, None]] = {}
        self.unsure: set[str] = set()
        #: Queues in which somebody may no longer be behind another since the last pass.
        self.loosened_queues: set[str] = set()
        #: Quota -> the leases that count against it; and replicas of a task -> their leases.
        self.held_by: dict[str, dict[str, None]] = {}
        self.replicas: dict[tuple[str, str], dict[str, None]] = {}
        #: Replicas of which some must stay -> how many of their leases say so (C25).
        self.floored: dict[tuple[str, str], int] = {}
        #: Device, slice or bare node -> the class and the node under which it is kept.
        self._homes: dict[str, tuple[ClassKey, str]] = {}
        self._matches: dict[tuple[object, ...], tuple[ClassKey, ...]] = {}
        #: Whether a need with terms was matched; whether a pool is not for all; None: not known.
        self._constrained = False
        self._limited: bool | None = None
        #: Task whose replicas are to be apart -> those of its requests that have a place kept.
        self.apart: dict[str, dict[str, None]] = {}
        #: Devices on which slices could be made.
        self.makers = Makers()
        #: What placement policies keep of a class.
        self.scores = KeptScores()

    def settle(self) -> None:
        """Forget what has been loosened: a pass has looked at it, or the record did."""
        if self.freed:
            self.freed.clear()
        if self.relieved:
            self.relieved.clear()
            self.changed.clear()
        if self.loosened_queues:
            self.loosened_queues.clear()

    def quotas_changed(self, state: State, *, reshaped: bool) -> None:
        """Note that quotas were set; ``reshaped``: requests may count against another now."""
        self.relieved.update(root_of(state, name) for name in state.quotas)
        self.loosened_queues.update(state.queues)
        if reshaped:
            self._file_again(state)
            self.hold_again(state)

    def queue_changed(self, state: State, name: str) -> None:
        """Note that a queue's rules were set."""
        self.loosened_queues.add(name)
        self._file_again(state)

    def needs_changed(self, state: State) -> None:
        """Note that requests ask as another now; `classes_changed` comes next."""
        self._limited = None
        self._matches.clear()
        self._file_again(state)

    def hold_again(self, state: State) -> None:
        """Make what is kept of leases from the state alone."""
        self.held_by, self.replicas, self.floored = {}, {}, {}
        for lease in state.leases.values():
            self.leased(state, state.requests[lease.request], lease.id)

    def _file_again(self, state: State) -> None:
        self.waiting = Waiting()
        for request in state.requests.values():
            if request.state == "queued":
                self.waiting.add(state, request, self.matches(state, request.need))

    def loosen_all(self, state: State) -> None:
        """Let the next pass look at everything that waits."""
        self.freed.update(self.cards)
        self.freed.update(self.slices)
        self.relieved.update(root_of(state, name) for name in state.quotas)
        self.loosened_queues.update(state.queues)

    # -- classes ---------------------------------------------------------

    def classes_changed(self, state: State) -> None:
        """Forget which classes a need matches: one came or went, or a pool's labels changed."""
        self._matches.clear()
        self._constrained, self._limited = False, None
        self.waiting.reclassify(lambda need: self.matches(state, need))
        self.freed.update(self.cards)
        self.freed.update(self.slices)
        self.shaken.update(self.plans.values())

    def facts_changed(self, state: State) -> None:
        """Note that a node or a device may have or lack now what terms ask for."""
        if self._constrained:
            self.classes_changed(state)

    def loosen(self, tag: str) -> None:
        """Let those be looked at again who wait for something beside devices and quota."""
        for shape in self.waiting.tagged(tag):
            self.freed.update(shape.classes)

    def matches(self, state: State, need: Need) -> tuple[ClassKey, ...]:
        """Return the classes that could serve the need, least memory first."""
        wanted = need.profile
        memory = 0 if wanted else need.memory_mib
        bare = need.count == 0
        any_mig = not wanted and need.mode == "mig"
        if self._limited is None:
            self._limited = pools_limited(state)
        limits = (need.mode, need.tenant) if self._limited else None
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

    # -- following the state ---------------------------------------------

    def queued(self, state: State, request: Request) -> None:
        """Put a request in line, with its longest wait."""
        self.waiting.add(state, request, self.matches(state, request.need))
        self.deadlines.push(state, request.wait_due_us, "wait", request.id)

    def unqueued(self, state: State, request: Request) -> None:
        """Take a request out of the line: those behind it may go."""
        self.waiting.discard(request)
        if state.queues[request.queue].ordering != "best-effort":
            self.loosened_queues.add(request.queue)

    def planned(self, request: Request) -> None:
        """Keep a request's plan by node."""
        if request.plan is not None:
            for node in request.plan.nodes:
                self.plans[node] = request.id

    def unplanned(self, state: State, request: Request) -> None:
        """Drop a request's plan: its nodes are there for others again."""
        plan, request.plan = request.plan, None
        if plan is None:
            return
        for name in plan.nodes:
            if self.plans.get(name) == request.id:
                del self.plans[name]
                self.free_class(state, state.nodes[name])

    def repairing(self, request: Request) -> None:
        """Keep the former place of an interrupted gang by node."""
        for node in request.repair.parts if request.repair is not None else ():
            self.repairs.setdefault(node, {})[request.id] = None

    def booking(self, one: Reservation) -> None:
        """Keep a reservation by node; plans there may not stand beside it."""
        self.unsure.add(one.name)
        for node in one.chosen:
            self.booked.setdefault(node, {})[one.name] = None
            self._shaken(node)

    def unbooked(self, one: Reservation) -> None:
        """Keep it no longer."""
        for node in one.chosen:
            names = self.booked.get(node, {})
            names.pop(one.name, None)
            if not names:
                self.booked.pop(node, None)

    def kept(self, request: Request, sign: int) -> None:
        """Keep what the request needs beside its devices (+1), or let it go (-1)."""
        need = request.need
        if need.terms is not None and need.terms.apart:
            self._kept_apart(need.terms.apart, request.id, sign)
        if need.cpu_milli or need.host_memory_mib:
            for node in request.kept:
                cpu, memory = self.beside.pop(node, (0, 0))
                cpu += sign * need.cpu_milli
                memory += sign * need.host_memory_mib
                if cpu or memory:
                    self.beside[node] = (cpu, memory)
                self.scores.touch(node)

    def _kept_apart(self, task: str, request: str, sign: int) -> None:
        if sign > 0:
            self.apart.setdefault(task, {})[request] = None
            return
        kept = self.apart[task]
        del kept[request]
        if not kept:
            del self.apart[task]
        self.loosen(f"apart {task}")

    def ripen(self) -> None:
        """Let those be looked at again who waited for more than their place."""
        for name in self.held_back:
            self.ripe_for(name)
        self.held_back.clear()

    def leased(self, state: State, request: Request, lease: str) -> None:
        """Keep a lease by its quota, and by the task that it is a replica of."""
        holder = holder_of(state, request.tenant, request.project)
        self.held_by.setdefault(holder, {})[lease] = None
        group = replica_group(request)
        self.replicas.setdefault(group, {})[lease] = None
        if request.replicas_min:
            self.floored[group] = self.floored.get(group, 0) + 1

    def unleased(self, state: State, request: Request, lease: str) -> None:
        """Keep it no longer."""
        holder = holder_of(state, request.tenant, request.project)
        for kept, name in ((self.held_by, holder), (self.replicas, replica_group(request))):
            leases = kept[name]  # type: ignore[index]
            del leases[lease]
            if not leases:
                del kept[name]  # type: ignore[arg-type]
        if request.replicas_min:
            group = replica_group(request)
            self.floored[group] -= 1
            if not self.floored[group]:
                del self.floored[group]
        self.loosen("apart " + "#".join(replica_group(request)))

    def ripe_for(self, request: str, unit: str = "") -> None:
        """Note that something of a kept place has changed: one unit, or perhaps any of them."""
        self.ripe.setdefault(request, set()).add(unit)

    def relieve(self, state: State, holder: str) -> None:
        """Note that there is more room in the tree of a quota."""
        self.relieved.add(root_of(state, holder))
        self.changed.add(holder)

    def tightened(self, state: State, holder: str) -> None:
        """Note that there is less room in a tree: what cannot be had any more blocks nobody."""
        for queue in self.waiting.queues_of(root_of(state, holder)):
            if state.queues[queue].ordering == "strict":
                self.loosened_queues.add(queue)

    def due(self, state: State, due_us: int | None, kind: str, name: str) -> None:
        """Remember that something falls due."""
        self.deadlines.push(state, due_us, kind, name)

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
        before: dict[ClassKey, int] = {}
        for uuid in uuids:
            device = state.devices[uuid]
            key = (node.pool, device.model, device.memory_mib, "", WHOLE_MILLI)
            if self._homes.get(uuid) != (key, name):
                self._leave_cards(state, uuid)
                self._enter_cards(state, uuid, (key, name))
            cards = self.cards[key]
            free = cards.free[name]
            if key not in before:
                before[key] = len(free)
            able = (
                usable(node, device)
                and not device.mig_enabled
                and not device.slices
                and device.kept_for is None
            )
            if not able:
                self._not_to_be_had(node, device, key)
            if able and not device.holds:
                at = bisect_left(free, uuid)
                if at == len(free) or free[at] != uuid:
                    free.insert(at, uuid)
                    self.freed.add(key)
            else:
                discard(free, uuid)
            if device.holds or uuid in cards.room:
                self._refresh_room(cards, key, device, able=able)
            for item in device.slices:
                self.refresh_slice(state, node, device, state.slices[item])
            if device.geometry is not None or device.mig_pending or uuid in self.makers.offers:
                self._refresh_maker(state, node, device)
        for key, count in before.items():
            self.cards[key].resize(name, count)
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
        room = free_milli(device) if able and device.holds else 0
        if any(hold.vgpu_type for hold in device.holds.values()):
            # There is room for its own kind at most, which is looked for device by device.
            room = 0
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

    def _shaken(self, node: str) -> None:
        """Note that what is planned on the node may not stand any more."""
        owner = self.plans.get(node)
        if owner is not None:
            self.shaken.add(owner)
        if node in self.booked or node in self.repairs:
            # Of what is kept there something is gone: more, or less, is left for others.
            self.unsure.update(self.booked.get(node, ()))
            self.freed.update(self.cards)
            self.freed.update(self.slices)

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


def rebuild(state: State) -> Index:
    """Make the index from the state alone and put it in place."""
    index = state.index = Index()
    for node in state.nodes.values():
        index.refresh_node(state, node)
    for request in state.requests.values():
        if request.state == "queued":
            index.waiting.add(state, request, index.matches(state, request.need))
            index.planned(request)
            index.repairing(request)
            if request.plan is not None:
                index.shaken.add(request.id)
        if request.kept:
            index.ripe_for(request.id)
            index.kept(request, 1)
    for one in state.reservations.values():
        index.booking(one)
    index.hold_again(state)
    index.deadlines.rebuild(state)
    index.settle()
    return index
