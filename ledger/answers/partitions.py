"""What is on a device in MIG mode, what would fit, and how a blocked profile gets a place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ledger.core.derived.makers import standing
from ledger.core.mig.layouts import legal_starts
from ledger.core.state import slice_state

if TYPE_CHECKING:
    from ledger.core.mig.defragment import Defragmentation
    from ledger.core.state import Device, State

__all__ = ["device_layout", "moves_plain", "moves_text"]


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
