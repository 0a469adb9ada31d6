"""A place that is kept: when it can be given to the request it is kept for, and when not.

A reserved request counts against its quota, and its devices are given to nobody
else, from the decision that reserved them. It is granted in the decision that
makes the last of them free and clean; when one of them goes out of use, or its
quota was lowered, the place is let go and the request waits again, on record (C23).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.core.admitting.licences import licences_short
from ledger.core.derived.index import usable
from ledger.core.derived.places import slice_class
from ledger.core.derived.waiting import shape_key
from ledger.core.evicting.candidates import ending
from ledger.core.line.asking import asker_of, charge_for
from ledger.core.placing.constraints import terms_fault
from ledger.core.placing.placement import Placement, host_fits
from ledger.core.placing.room import free_memory, free_milli
from ledger.core.placing.vgpu import vgpu_fits
from ledger.core.promises.reservations import outside_reservations, reserved_class
from ledger.core.quotas.quota import add, holder_of, over, remove
from ledger.core.state import WHOLE_MILLI, Part

if TYPE_CHECKING:
    from ledger.core.decisions.turn import Turn
    from ledger.core.derived.places import ClassKey
    from ledger.core.state import Device, Node, Request, State

__all__ = ["settle_reserved"]


def settle_reserved(turn: Turn, request: Request, changed: set[str]) -> Placement | None:
    """Return the kept place if all of it is free; let it go if some of it is out of use.

    ``changed`` are the units of it that something has happened to. While one is known
    that is not free only those are looked at: a place of thousands of devices becomes
    free one by one.
    """
    state = turn.state
    if "" not in changed and _still_waits(state, request, changed):
        return None
    waits = False
    for name, units in request.kept.items():
        node = state.nodes[name]
        for unit in units:
            fault, free = _look(state, request, node, unit)
            if fault is not None:
                _let_go(turn, request, fault)
                return None
            if not free:
                state.index.waits_on[request.id] = unit
                waits = True
    found = _place(state, request)
    fault = "its devices are not what they were" if found is None else None
    if found is not None and not waits:
        fault, waits = _still_allowed(state, request, found.of_class, turn.now_us)
        if waits:
            state.index.held_back.add(request.id)
    if fault is not None:
        _let_go(turn, request, fault)
        return None
    return None if waits else found


def _still_waits(state: State, request: Request, changed: set[str]) -> bool:
    """Say whether a unit is known that is not free, and none of these is out of use.

    Which unit a place is let go for must not depend on which of them were looked at (S2),
    so that is for a look at all of them to say.
    """
    known = state.index.waits_on.get(request.id)
    waits = False
    for unit in sorted(changed) if known is None else [*sorted(changed), known]:
        item = state.slices.get(unit)
        device = state.devices.get(unit if item is None else item.device)
        if device is None or unit not in request.kept.get(device.node, ()):
            return False
        fault, free = _look(state, request, state.nodes[device.node], unit)
        if fault is not None:
            return False
        if not free:
            state.index.waits_on[request.id] = unit
            waits = True
    return waits


def _let_go(turn: Turn, request: Request, reason: str) -> None:
    """Let the request wait again; one that has waited for its longest by now is over."""
    turn.emit({"type": "request.unreserved", "request": request.id, "reason": reason})
    if request.wait_due_us is not None and request.wait_due_us <= turn.now_us:
        turn.emit({"type": "request.ended", "request": request.id, "how": "expired"})


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
        return None, item.lease is None and item.order is None
    if device.mig_enabled or device.slices:
        return f"{unit} is in MIG mode", False
    return None, _has_room(state, request, device)


def _has_room(state: State, request: Request, device: Device) -> bool:
    need = request.need
    if need.mode == "whole":
        return not device.holds
    roomy = free_memory(state, device) >= need.memory_mib and vgpu_fits(device, need)
    return roomy and free_milli(device) >= need.gpu_milli


def _still_allowed(
    state: State, request: Request, of_class: ClassKey, now_us: int
) -> tuple[str | None, bool]:
    """Ask again what may have changed meanwhile: the host's room, and the quota (Q1).

    Return what is wrong, or whether it is still in use by leases that end.
    """
    waits = False
    asker = asker_of(state, request)
    reserved = reserved_class(state, asker.key)
    if reserved is not None and not reserved(of_class):
        return f"{request.reservation} is of other devices by now", False
    outside = outside_reservations(state, asker, now_us)
    for name in request.kept:
        node = state.nodes[name]
        if outside is not None and not outside(name):
            return f"{name} is reserved at a time that it would still run", False
        if not host_fits(state, node, request.need, own=True):
            if not host_fits(state, node, request.need, own=True, ended=ending(state)):
                return f"{name} has no CPU or memory left beside its devices", False
            waits = True
    lacks = licences_short(state, request.need, own=True)
    if lacks is not None:
        return f"licence {lacks['licence']} was lowered", False
    assert request.charge is not None
    holder = holder_of(state, request.tenant, request.project)
    quota = state.quotas[holder]
    leaving = quota.leaving
    remove(state, holder, request.charge)
    held = over(state, holder, request.charge, now_us)
    quota.leaving = {}
    short = over(state, holder, request.charge, now_us)
    quota.leaving = leaving
    add(state, holder, request.charge)
    if short is not None:
        return f"quota {short.quota} was lowered", False
    return None, waits or held is not None


def _place(state: State, request: Request) -> Placement | None:
    """Return the kept place if it is of one class that serves the need, at the same charge."""
    classes = set()
    for name, units in request.kept.items():
        node = state.nodes[name]
        for unit in units:
            item = state.slices.get(unit)
            device = state.devices[unit if item is None else item.device]
            if item is None:
                classes.add((node.pool, device.model, device.memory_mib, "", WHOLE_MILLI))
            else:
                classes.add(slice_class(node, device, item))
    key = classes.pop()
    if classes or key not in state.index.matches(state, request.need):
        return None
    kept = [Part(name, units) for name, units in request.kept.items()]
    if request.need.terms and terms_fault(state, request.need, kept, request.id) is not None:
        return None
    then = request.charge
    assert then is not None
    parts = tuple((node, tuple(units)) for node, units in request.kept.items())
    share = request.need.mode == "share"
    found = Placement(parts, then.milli if share else key[4] * then.units, key)
    now = charge_for(state, found, shape_key(state, request))
    same = (then.milli, then.model, then.memory_mib) == (now.milli, now.model, now.memory_mib)
    return found if same else None
