"""A place that is kept: when it can be given to the request it is kept for, and when not.

A reserved request counts against its quota, and its devices are given to nobody
else, from the decision that reserved them. It is granted in the decision that
makes the last of them free and clean; when one of them goes out of use, or its
quota was lowered, the place is let go and the request waits again, on record (C23).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.core.index import usable
from ledger.core.placement import Placement, host_fits
from ledger.core.quota import add, holder_of, over, remove
from ledger.core.state import WHOLE_MILLI, free_memory, free_milli

if TYPE_CHECKING:
    from ledger.core.places import ClassKey
    from ledger.core.state import Device, Node, Request, State
    from ledger.core.turn import Turn

__all__ = ["settle_reserved"]


def settle_reserved(turn: Turn, request: Request) -> Placement | None:
    """Return the kept place if all of it is free; let it go if some of it is out of use."""
    state = turn.state
    waits = False
    for name, units in request.kept.items():
        node = state.nodes[name]
        for unit in units:
            fault, free = _look(state, request, node, unit)
            if fault is not None:
                turn.emit({"type": "request.unreserved", "request": request.id, "reason": fault})
                return None
            waits = waits or not free
    if waits:
        return None
    fault = _still_allowed(state, request, turn.now_us)
    if fault is not None:
        turn.emit({"type": "request.unreserved", "request": request.id, "reason": fault})
        return None
    assert request.charge is not None
    parts = tuple((node, tuple(units)) for node, units in request.kept.items())
    return Placement(parts, request.charge.milli, _class_of(state, request))


def _look(state: State, request: Request, node: Node, unit: str) -> tuple[str | None, bool]:
    """Say why the unit cannot be had any more, or whether it is free now."""
    item = state.slices.get(unit)
    device = state.devices.get(unit if item is None else item.device)
    if device is None or device.node != node.name:
        return f"{unit} is gone", False
    if not usable(node, device):
        return f"{unit} is out of use", False
    if item is not None:
        if item.quarantine is not None:
            return f"{unit} is in quarantine", False
        return None, item.lease is None
    if device.mig_enabled or device.slices:
        return f"{unit} is in MIG mode", False
    return None, _has_room(request, device)


def _has_room(request: Request, device: Device) -> bool:
    need = request.need
    if need.mode == "whole":
        return not device.holds
    return free_milli(device) >= need.gpu_milli and free_memory(device) >= need.memory_mib


def _still_allowed(state: State, request: Request, now_us: int) -> str | None:
    """Ask again what may have changed meanwhile: the host's room, and the quota (Q1)."""
    for name in request.kept:
        if not host_fits(state.nodes[name], request.need):
            return f"{name} has no CPU or memory left beside its devices"
    assert request.charge is not None
    holder = holder_of(state, request.tenant, request.project)
    remove(state, holder, request.charge)
    short = over(state, holder, request.charge, now_us)
    add(state, holder, request.charge)
    return None if short is None else f"quota {short.quota} was lowered"


def _class_of(state: State, request: Request) -> ClassKey:
    node, units = next(iter(request.kept.items()))
    item = state.slices.get(units[0]) if units else None
    device = state.devices[units[0] if item is None else item.device]
    profile = "" if item is None else item.profile
    return (state.nodes[node].pool, device.model, device.memory_mib, profile, WHOLE_MILLI)
