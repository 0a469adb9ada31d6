"""What is on a device in MIG mode, what would fit, and how a blocked profile gets a place.

And of a request that waits for slices: whether its pool only has to be let make them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ledger.answers.trials import Change
from ledger.core.derived.makers import FAILED, standing
from ledger.core.derived.places import labelled, part_milli
from ledger.core.mig.layouts import Instance, legal_starts, smallest_profile
from ledger.core.placing.constraints import eligible, pool_serves
from ledger.core.placing.placement import shortfall
from ledger.core.state import NO_POOL, slice_state

if TYPE_CHECKING:
    from collections.abc import Collection

    from ledger.answers.rules import Numbers
    from ledger.core.mig.defragment import Defragmentation
    from ledger.core.mig.layouts import Geometry, Profile
    from ledger.core.state import Device, Need, State

__all__ = ["device_layout", "moves_plain", "moves_text", "policy_change"]


def device_layout(state: State, device: Device) -> dict[str, Any]:
    """Return the layout, what fits beside it, and what would if idle slices went.

    Starts are memory slices; a promised slice is there with the order that creates it.
    """
    items = sorted((state.slices[name] for name in device.slices), key=lambda one: one.start)
    present, staying = standing(state, device)
    geometry = device.geometry
    names = [one.name for one in geometry.profiles] if geometry is not None else []
    fits: dict[str, dict[str, list[int]]] = {"now": {}, "with_new_layout": {}}
    for key, occupied in (("now", present), ("with_new_layout", staying)):
        for name in names:
            assert geometry is not None
            fits[key][name] = list(legal_starts(geometry, occupied, name))
    return {
        "device": device.uuid,
        "node": device.node,
        "model": device.model,
        "mig_enabled": device.mig_enabled,
        "mig_pending": device.mig_pending,
        "slices": [
            {
                "slice": one.id,
                "profile": one.profile,
                "start": one.start,
                "size": one.size,
                "state": slice_state(one),
                "lease": one.lease,
                "kept_for": one.kept_for,
                "order": one.order,
            }
            for one in items
        ],
        "fits": fits,
    }


def moves_plain(found: Defragmentation) -> dict[str, Any]:
    """Return a plan of moves as a record: what to order, one after the other."""
    return {
        "profile": found.profile,
        "device": found.moves.device,
        "start": found.moves.place.start,
        "moves": len(found.moves.moves),
        "cost_ms": found.moves.cost_ms,
        "orders": [
            {
                "device": one.device,
                "layout": list(one.layout),
                "then_move": list(one.leases),
                "from": one.from_device or None,
            }
            for one in found.orders
        ],
    }


def moves_text(found: Defragmentation) -> str:
    """Return a plan of moves in words, with the command of each order."""
    place = f"{found.profile} at {found.moves.place.start} of {found.moves.device}"
    lines = [f"{place} is free after {len(found.moves.moves)} moves; in this order:"]
    for one in found.orders:
        lines.append(f"  gpuledger node partition {one.device} {' '.join(one.layout)}")
        if one.leases:
            lines.append(f"    then move {', '.join(one.leases)} there from {one.from_device}")
    return "\n".join(lines)


def policy_change(state: State, need: Need) -> Change | None:
    """Return the pool whose devices have room for what is asked, and may not be partitioned.

    Told by the numbers: the CPU and memory beside the devices are not looked at.
    """
    if need.mode != "mig":
        return None
    free = shortfall(state, need).numbers.get("free_slices")
    missing = need.count - (free if isinstance(free, int) else 0)
    for name, pool in sorted(state.pools.items()):
        if pool.partition != "never" or need.pool not in (None, name):
            continue
        if not labelled(state, name, need) or not pool_serves(state, name, need):
            continue
        for policy, at in (("create", 0), ("relayout", 1)):
            room = sum(
                _room(state, device, need, standing(state, device)[at])
                for device in state.devices.values()
                if state.nodes[device.node].pool == name
            )
            if room >= missing:
                return _let(state, name, policy, room)
    return None


def _let(state: State, name: str, policy: str, room: int) -> Change:
    pool = state.pools[name]
    same = (*[getattr(pool, one) for one in _REPEATED],)
    bare = same == (*[getattr(NO_POOL, one) for one in _REPEATED],)
    # A record is whole: what it leaves out is as by default.
    whole = "" if bare else ", said together with what else the pool has"
    text = (
        f"pool {name} makes slices: gpuledger pool apply {name} --partition {policy}{whole};"
        f" its devices in MIG mode have room for {room} of them"
    )
    numbers: Numbers = {"pool": name, "partition": policy, "room": room}
    return Change("partition", "operator", text, numbers, tried=False)


#: What a pool may have been given that another record of it would take away again.
_REPEATED = (
    "labels", "silent_grace_us", "order_timeout_us", "placement", "slices_warning",
    "allowed_modes", "allowed_tenants", "memory_overcommit_permille", "routing",
)  # fmt: skip


def _room(state: State, device: Device, need: Need, occupied: Collection[Instance]) -> int:
    """Return how many slices as asked could be made beside what is on a device."""
    node, geometry = state.nodes[device.node], device.geometry
    out = device.health != "healthy" or device.quarantine is not None or node.state != "online"
    taken = device.holds or device.kept_for is not None or f"{FAILED} {device.uuid}" in state.alarms
    if out or taken or geometry is None or not device.mig_enabled or device.mig_pending:
        return 0
    kind = _profile_for(geometry, need)
    if kind is None or (need.models and device.model not in need.models):
        return 0
    milli = part_milli(device.compute_slices, kind.compute_slices)
    key = (node.pool, device.model, device.memory_mib, kind.name, milli)
    if not eligible(state, key, node, need):
        return 0
    made = list(occupied)
    while starts := legal_starts(geometry, made, kind.name):
        made.append(Instance(starts[0], kind.size, kind.name))
    return len(made) - len(occupied)


def _profile_for(geometry: Geometry, need: Need) -> Profile | None:
    if need.profile:
        return geometry.profile(need.profile)
    return smallest_profile(geometry, need.memory_mib, need.compute_slices)
