"""Where a need could be met if some leases ended, and which ones: as few as can be.

Device by device and node by node: what is free, or will be when what already ends
has ended, costs nothing; of the rest, the fewest leases that make enough room, then
the least by their order (reclaimed before preempted, lower priorities first, the
latest granted first). What turns out not to be needed is dropped again (Q6).
"""

from __future__ import annotations

from heapq import heapify, heappop
from itertools import chain
from typing import TYPE_CHECKING

from ledger.core.evicting.candidates import Room, host_would_fit
from ledger.core.evicting.slices import slices_for
from ledger.core.placing.constraints import narrowed
from ledger.core.placing.picking import Apart
from ledger.core.placing.placement import Placement
from ledger.core.placing.room import share_memory
from ledger.core.placing.vgpu import vgpu_fits
from ledger.core.state import WHOLE_MILLI

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ledger.core.derived.places import ClassKey
    from ledger.core.evicting.candidates import Candidate
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
    found = set(_ending_on(state))
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


def _ending_on(state: State) -> dict[str, int]:
    """Return the nodes where something is being cleaned, or held by a lease that stops; how much.

    A part of a gang that has ended holds its devices until the last one has, without an
    order of its own; and a device may have been moved since.
    """
    units: dict[str, None] = {}
    for order in state.orders.values():
        units.update(dict.fromkeys(order.units))
        lease = state.leases.get(order.lease)
        for part in lease.parts.values() if lease is not None else ():
            units.update(dict.fromkeys(part.units))
    found: dict[str, int] = {}
    for unit in units:
        node = state.whereabouts(unit)
        if node is not None:
            found[node] = found.get(node, 0) + 1
    return found


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
    known = set(nearby)
    ending = _ending_on(state)
    free = state.index.cards[key].free
    least = need.count if need.mode == "whole" else 0

    def enough(node: str, more: int) -> bool:
        """Say whether the node could do with so many devices more; a yes is no promise."""
        return len(free[node]) + ending.get(node, 0) + more >= least

    there = [node for node in nearby if free[node] and enough(node, 0)]
    there += [node for node in sorted(known.intersection(ending)) if enough(node, 0)]
    for room in _FINDERS[need.mode](state, need, key, {}, there):
        return room
    heap = [(one.order, one.lease) for one in candidates.values()]
    heapify(heap)
    while heap:
        _, name = heappop(heap)
        parts = state.leases[name].parts.values()
        nodes = [
            one.node for one in parts if one.node in known and enough(one.node, len(one.units))
        ]
        if not nodes:
            continue
        for room in _FINDERS[need.mode](state, need, key, {name: candidates[name]}, sorted(nodes)):
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
    """Return the open node's devices of the class that could be leased once nothing holds them."""
    return [
        device
        for device in map(state.devices.__getitem__, node.devices)
        if device.kept_for is None
        and device.quarantine is None
        and device.health == "healthy"
        and device.model == key[1]
        and device.memory_mib == key[2]
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
        free, by_lease = _held_on(state, node, key, candidates)
        units = free[: need.count]
        lacks = need.count - len(units)
        if lacks > sum(map(len, by_lease.values())):
            continue
        victims: dict[str, None] = {}
        for going, uuids in _groups(by_lease, candidates) if lacks else ():
            if len(units) >= need.count:
                break
            victims.update(dict.fromkeys(going))
            units += uuids[: need.count - len(units)]
        needed = _without_needless(victims, units, by_lease, free, need.count)
        if host_would_fit(state, node, need, needed[0]):
            yield Room(needed[0], ((node.name, needed[1]),))


def _held_on(
    state: State, node: Node, key: ClassKey, candidates: Mapping[str, Candidate]
) -> tuple[list[str], dict[tuple[str, ...], list[str]]]:
    """Return the node's whole devices that are or become free, and those that candidates hold."""
    free = []
    by_lease: dict[tuple[str, ...], list[str]] = {}
    for device in _devices(state, node, key):
        if device.mig_enabled or device.slices:
            continue
        holders = _holders(state, device, candidates) if device.holds else []
        if holders:
            by_lease.setdefault(tuple(sorted(holders)), []).append(device.uuid)
        elif holders is not None:
            free.append(device.uuid)
    return free, by_lease


def _groups(
    by_lease: Mapping[tuple[str, ...], list[str]], candidates: Mapping[str, Candidate]
) -> list[tuple[tuple[str, ...], list[str]]]:
    """Order devices by who holds them: few holders, many devices, the least dear first."""
    return sorted(
        by_lease.items(),
        key=lambda one: (len(one[0]), -len(one[1]), _worst(one[0], candidates)),
    )


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
    ending = [name for name, hold in device.holds.items() if hold.cleaning
              or state.leases[name].state == "stopping"]  # fmt: skip
    if not vgpu_fits(device, need, ending):
        # Beside a vGPU there are only others of its type: whoever is there has to go.
        rest = tuple(sorted(name for name in device.holds if name not in ending))
        may = share_memory(state, device) >= need.memory_mib
        return rest if may and all(name in candidates for name in rest) else None
    milli, mib = WHOLE_MILLI, share_memory(state, device)
    able = []
    for name, hold in device.holds.items():
        if name in ending:
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


_FINDERS = {"whole": _whole, "share": _share, "mig": slices_for}
