"""Defragmentation: what an operator could move so that a blocked profile has a place.

A plan only: nothing here is done by the ledger by itself. Only the work of preemptible
requests is moved (C09), and idle slices are in nobody's way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ledger.core.derived.index import usable
from ledger.core.derived.makers import Kind, instance_of, standing, weights_of
from ledger.core.mig.fleet import Fleet
from ledger.core.mig.moves import plan_moves

if TYPE_CHECKING:
    from ledger.core.mig.layouts import Instance
    from ledger.core.mig.moves import MovePlan
    from ledger.core.state import Device, State

__all__ = ["Defragmentation", "LayoutOrder", "defragment"]


@dataclass(frozen=True, slots=True)
class LayoutOrder:
    """What an operator orders, and whose work then has to go over to the new slice.

    ``layout`` is in the form of `schemas.requests.DevicePartition`; ``leases`` are those
    of the slices at ``from_device``, none for the last order, which makes the place.
    """

    device: str
    layout: tuple[str, ...]
    leases: tuple[str, ...] = ()
    from_device: str = ""


@dataclass(frozen=True, slots=True)
class Defragmentation:
    """The moves, and the same as orders, each to be given when the one before is done."""

    profile: str
    moves: MovePlan
    orders: tuple[LayoutOrder, ...]


def defragment(state: State, profile: str, pool: str | None = None) -> Defragmentation | None:
    """Return the plan with the fewest moves, or None when no moves make a place.

    Devices that are not in use, or whose layout is being changed, are left alone.
    """
    best: Defragmentation | None = None
    for kind, fleet in _fleets(state, pool).items():
        plan = plan_moves(
            fleet, profile, weights_of(kind), lambda uuid, one: bool(_leases(state, uuid, one))
        )
        if plan is not None and (best is None or len(plan.moves) < len(best.moves.moves)):
            best = Defragmentation(profile, plan, _orders(state, plan))
    return best


def _fleets(state: State, pool: str | None) -> dict[Kind, Fleet]:
    found: dict[Kind, Fleet] = {}
    for _, device in sorted(state.devices.items()):
        node = state.nodes[device.node]
        if pool not in (None, node.pool) or not _steady(state, device):
            continue
        geometry = device.geometry
        assert geometry is not None
        kind = Kind(node.pool, device.model, device.memory_mib, device.compute_slices, geometry)
        fleet = found.setdefault(kind, Fleet(geometry))
        fleet.put(device.uuid, standing(state, device)[1])
    return found


def _steady(state: State, device: Device) -> bool:
    return (
        device.geometry is not None
        and device.mig_enabled
        and not device.mig_pending
        and not device.holds
        and device.kept_for is None
        and usable(state.nodes[device.node], device)
        and all(state.slices[name].order is None for name in device.slices)
    )


def _leases(state: State, uuid: str, one: Instance) -> tuple[str, ...]:
    """Return the leases that may be moved from the instance; none if it has to stay."""
    found = []
    for name in state.devices[uuid].slices:
        item = state.slices[name]
        if instance_of(item) != one:
            continue
        lease = state.leases.get(item.lease or "")
        movable = (
            lease is not None
            and item.quarantine is None
            and lease.state != "stopping"
            and state.requests[lease.request].preemptible
        )
        if lease is None or not movable:
            return ()
        found.append(lease.id)
    return tuple(dict.fromkeys(found))


def _orders(state: State, plan: MovePlan) -> tuple[LayoutOrder, ...]:
    """Write the moves as layouts: create beside the old one, and destroy it with what follows."""
    standings = {
        uuid: standing(state, state.devices[uuid])[1]
        for uuid in (plan.device, *(move.to_device for move in plan.moves))
    }
    orders = []
    for move in plan.moves:
        there = standings[move.to_device]
        there.add(move.to)
        leases = _leases(state, move.device, move.instance)
        orders.append(LayoutOrder(move.to_device, _layout(there), leases, move.device))
        standings[move.device].discard(move.instance)
    last = standings[plan.device] | {plan.place}
    return (*orders, LayoutOrder(plan.device, _layout(last)))


def _layout(instances: set[Instance]) -> tuple[str, ...]:
    return tuple(f"{one.profile}@{one.start}" for one in sorted(instances))
