"""Where a need could be met if some leases ended, and which ones: as few as can be.

Device by device and node by node: what is free, or will be when what already ends
has ended, costs nothing; of the rest, the fewest leases that make enough room, then
the least by their order (reclaimed before preempted, lower priorities first, the
latest granted first). What turns out not to be needed is dropped again (Q6).
"""

from __future__ import annotations

from collections import defaultdict
from heapq import heapify, heappop
from itertools import chain
from typing import TYPE_CHECKING

from ledger.core.constraints import narrowed
from ledger.core.index import usable
from ledger.core.picking import Apart
from ledger.core.placement import Placement
from ledger.core.places import slice_class
from ledger.core.room import share_memory
from ledger.core.rooms import Room, host_would_fit
from ledger.core.state import WHOLE_MILLI
from ledger.core.vgpu import vgpu_fits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ledger.core.places import ClassKey
    from ledger.core.rooms import Candidate
    from ledger.core.state import Device, Need, Node, State

__all__ = ["choose_place"]


def choose_place(
    state: State,
    need: Need,
    key: ClassKey,
    candidates: Mapping[str, Candidate],
    allowed: Callable[[str], bool],
) -> tuple[Placement, list[str]] | None:
    """Return a place in the class and the leases that have to end for it, or None.

    Only nodes that are ``allowed`` are looked at. None also where devices of a class
    are not alike for the need: nobody is evicted for that.
    """
    if need.mode == "whole" and need.count == 0:
        return None
    if need.terms is not None and need.terms.by_device:
        return None
    allowed = narrowed(state, need, key, allowed) or allowed
    apart = Apart(state, need)
    nearby = _nearby(state, need, key, candidates, allowed)
    if need.nodes == 1 and need.mode != "mig" and len(candidates) > _MANY:
        room = _one_victim(state, need, key, candidates, nearby)
        if room is not None:
            place = Placement(room.parts, _charge(need, key), key)
            return place, list(room.victims)
    rooms = sorted(
        _FINDERS[need.mode](state, need, key, candidates, nearby),
        key=lambda room: (len(room.victims), _worst(room.victims, candidates), room.parts),
    )
    wanted = need.nodes if need.mode == "whole" else 1
    chosen: list[Room] = []
    victims: dict[str, None] = {}
    for room in rooms:
        fresh = [name for name in room.victims if name not in victims]
        if not _spared(fresh, victims, candidates):
            continue
        if not apart.takes(node for node, _ in room.parts):
            continue
        chosen.append(room)
        victims.update(dict.fromkeys(fresh))
        if len(chosen) == wanted:
            parts = tuple(part for one in chosen for part in one.parts)
            milli = _charge(need, key)
            return Placement(parts, milli, key), list(victims)
    return None


#: With more candidates than this it pays to look at them one by one before all together.
_MANY = 64


def _nearby(
    state: State,
    need: Need,
    key: ClassKey,
    candidates: Mapping[str, Candidate],
    allowed: Callable[[str], bool],
) -> list[str]:
    """Return the nodes where something may be had, of those allowed.

    Where candidates are, where something already ends or is cleaned, and, of those
    that have enough free as it is, as many as are needed.
    """
    if need.mode == "mig":
        members = {node.name for node in state.nodes.values() if node.pool == key[0]}
        return [name for name in members if allowed(name)]
    cards = state.index.cards[key]
    found = _ending_on(state)
    for name in candidates:
        found.update(state.leases[name].parts)
    free = 0
    least = need.count if need.mode == "whole" else 1
    for node in chain.from_iterable(cards.buckets[least:]):
        if free == need.nodes:
            break
        if allowed(node):
            found.add(node)
            free += 1
    if need.mode == "share":
        found.update(state.devices[uuid].node for _, uuid in cards.partial)
    return [name for name in sorted(found) if name in cards.members and allowed(name)]


def _ending_on(state: State) -> set[str]:
    """Return the nodes where something is being cleaned, or is held by a lease that stops.

    A part of a gang that has ended holds its devices until the last one has, without an
    order of its own; and a device may have been moved since.
    """
    found: set[str | None] = set()
    for order in state.orders.values():
        lease = state.leases.get(order.lease)
        parts = lease.parts.values() if lease is not None else ()
        units = [*order.units, *(unit for part in parts for unit in part.units)]
        found.update(state.whereabouts(unit) for unit in units)
    return {node for node in found if node is not None}


def _one_victim(
    state: State,
    need: Need,
    key: ClassKey,
    candidates: Mapping[str, Candidate],
    nearby: list[str],
) -> Room | None:
    """Return a place that needs nobody to go, or that the least candidate alone would make.

    Looking at them in order ends at the first, where a look at every node would not.
    """
    ending_on = sorted(_ending_on(state) & set(nearby))
    free = [node for node in nearby if state.index.cards[key].free[node]]
    for room in _FINDERS[need.mode](state, need, key, {}, [*free, *ending_on]):
        return room
    heap = [(one.order, one.lease) for one in candidates.values()]
    heapify(heap)
    known = set(nearby)
    while heap:
        _, name = heappop(heap)
        nodes = sorted(node for node in state.leases[name].parts if node in known)
        for room in _FINDERS[need.mode](state, need, key, {name: candidates[name]}, nodes):
            if room.victims:
                return room
    return None


def _charge(need: Need, key: ClassKey) -> int:
    if need.mode == "share":
        return need.gpu_milli
    return key[4] * need.count * need.nodes


def _worst(victims: Iterable[str], candidates: Mapping[str, Candidate]) -> list[object]:
    """Compare sets of victims by their dearest member."""
    return [max((candidates[name].order for name in victims), default=())]


def _spared(
    fresh: list[str], taken: Mapping[str, None], candidates: Mapping[str, Candidate]
) -> bool:
    """Say whether every group keeps the replicas it must keep (C25)."""
    for name in fresh:
        one = candidates[name]
        if one.group is not None:
            gone = sum(candidates[other].group == one.group for other in (*taken, *fresh))
            if gone > one.spare:
                return False
    return True


def _usable_nodes(state: State, key: ClassKey, members: Iterable[str]) -> list[Node]:
    return [node for name in members if (node := state.nodes[name]).open and node.pool == key[0]]


def _devices(state: State, node: Node, key: ClassKey) -> list[Device]:
    """Return the node's devices of the class that could be leased once nothing holds them."""
    return [
        device
        for uuid in node.devices
        if (device := state.devices[uuid]).model == key[1]
        and device.memory_mib == key[2]
        and usable(node, device)
        and device.kept_for is None
    ]


def _holders(state: State, device: Device, candidates: Mapping[str, Candidate]) -> list[str] | None:
    """Return who has to go for the device to be free; None when somebody may not.

    What already ends, or is being cleaned, costs nothing.
    """
    found = []
    for name, hold in device.holds.items():
        if hold.cleaning or state.leases[name].state == "stopping":
            continue
        if name not in candidates:
            return None
        found.append(name)
    return found


def _whole(
    state: State,
    need: Need,
    key: ClassKey,
    candidates: Mapping[str, Candidate],
    names: Iterable[str],
) -> Iterable[Room]:
    for node in _usable_nodes(state, key, names):
        by_lease: dict[tuple[str, ...], list[str]] = defaultdict(list)
        for device in _devices(state, node, key):
            if device.mig_enabled or device.slices:
                continue
            holders = _holders(state, device, candidates)
            if holders is not None:
                by_lease[tuple(sorted(holders))].append(device.uuid)
        free = by_lease.pop((), [])
        groups = sorted(
            by_lease.items(),
            key=lambda one: (len(one[0]), -len(one[1]), _worst(one[0], candidates)),
        )
        victims: dict[str, None] = {}
        units = free[: need.count]
        for going, uuids in groups:
            if len(units) >= need.count:
                break
            victims.update(dict.fromkeys(going))
            units += uuids[: need.count - len(units)]
        if len(units) < need.count:
            continue
        needed = _without_needless(victims, units, by_lease, free, need.count)
        if host_would_fit(state, node, need, needed[0]):
            yield Room(needed[0], ((node.name, needed[1]),))


def _without_needless(
    victims: Mapping[str, None],
    units: list[str],
    by_lease: Mapping[tuple[str, ...], list[str]],
    free: list[str],
    count: int,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Drop every victim without which there is still enough; return victims and units."""
    kept = dict.fromkeys(victims)
    for name in list(kept):
        rest = {one: None for one in kept if one != name}
        able = [*free]
        for names, uuids in by_lease.items():
            if all(one in rest for one in names):
                able += uuids
        if len(able) >= count:
            kept = rest
            units = able[:count]
    return tuple(kept), tuple(sorted(units))


def _share(
    state: State,
    need: Need,
    key: ClassKey,
    candidates: Mapping[str, Candidate],
    names: Iterable[str],
) -> Iterable[Room]:
    for node in _usable_nodes(state, key, names):
        for device in _devices(state, node, key):
            if device.mig_enabled or device.slices:
                continue
            victims = _make_share(state, device, need, candidates)
            if victims is not None and host_would_fit(state, node, need, victims):
                yield Room(victims, ((node.name, (device.uuid,)),))


def _make_share(
    state: State, device: Device, need: Need, candidates: Mapping[str, Candidate]
) -> tuple[str, ...] | None:
    """Return the fewest holders of the device whose end leaves room for the share."""
    if not vgpu_fits(device, need):
        # Whatever went first, the others would still be there beside it.
        return None
    milli, mib = WHOLE_MILLI, share_memory(state, device)
    able = []
    for name, hold in device.holds.items():
        if hold.cleaning or state.leases[name].state == "stopping":
            continue
        milli -= hold.milli
        mib -= hold.mib
        if name in candidates:
            able.append((-hold.milli, -hold.mib, candidates[name].order, name, hold))
    victims: list[tuple[str, int, int]] = []
    for _, _, _, name, hold in sorted(able, key=lambda one: one[:3]):
        if milli >= need.gpu_milli and mib >= need.memory_mib:
            break
        milli += hold.milli
        mib += hold.mib
        victims.append((name, hold.milli, hold.mib))
    if milli < need.gpu_milli or mib < need.memory_mib:
        return None
    for one in list(victims):
        if milli - one[1] >= need.gpu_milli and mib - one[2] >= need.memory_mib:
            victims.remove(one)
            milli -= one[1]
            mib -= one[2]
    return tuple(name for name, _, _ in victims)


def _mig(
    state: State,
    need: Need,
    key: ClassKey,
    candidates: Mapping[str, Candidate],
    names: Iterable[str],
) -> Iterable[Room]:
    """Look at each node alone, and at all together: the slices there are, and who has them."""
    looked_at = frozenset(names)
    by_node: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for item in state.slices.values():
        device = state.devices[item.device]
        node = state.nodes[device.node]
        if (
            node.name not in looked_at
            or slice_class(node, device, item) != key
            or not usable(node, device)
            or item.quarantine is not None
            or item.order is not None
        ):
            continue
        if item.kept_for is not None or device.holds:
            continue
        ending = item.lease is None or item.cleaning or state.leases[item.lease].state == "stopping"
        holder = "" if ending else item.lease or ""
        if not holder or holder in candidates:
            by_node[node.name][holder].append(item.id)
    together: dict[str, list[str]] = defaultdict(list)
    for name, held in sorted(by_node.items()):
        for units in held.values():
            # The order in which they came is not the one in which a snapshot gives them.
            units.sort()
        room = _slices_of(state, held, need, candidates)
        if room is not None and host_would_fit(state, state.nodes[name], need, room.victims):
            yield room
        if host_would_fit(state, state.nodes[name], need, ()):
            for holder, units in held.items():
                together[holder] += units
    room = _slices_of(state, together, need, candidates)
    if room is not None and len(room.parts) > 1:
        yield room


def _slices_of(
    state: State,
    held: Mapping[str, list[str]],
    need: Need,
    candidates: Mapping[str, Candidate],
) -> Room | None:
    """Choose slices by their holders, nobody's first, then whoever has most of them."""
    units = held.get("", [])[: need.count]
    victims = []
    for holder in sorted(
        (name for name in held if name), key=lambda one: (-len(held[one]), candidates[one].order)
    ):
        if len(units) >= need.count:
            break
        victims.append(holder)
        units += held[holder][: need.count - len(units)]
    if len(units) < need.count:
        return None
    parts: dict[str, list[str]] = {}
    for unit in units:
        parts.setdefault(state.devices[state.slices[unit].device].node, []).append(unit)
    return Room(tuple(victims), tuple((node, tuple(names)) for node, names in parts.items()))


_FINDERS = {"whole": _whole, "share": _share, "mig": _mig}
