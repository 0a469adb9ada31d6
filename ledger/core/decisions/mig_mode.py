"""A device's MIG mode, ordered by an operator on a node that is drained.

The change may reset the device, so nothing of it may be in use or kept for anybody, and
nothing may come to be while the order is open: its node takes no lease until the operator
puts it online again, and that is refused meanwhile. What the mode is then is believed when
the node reports it (DESIGN 1.5).

The field calls it the MIG mode, and so do the commands (``gpuledger node mig-mode``,
``gpuledger collector --mig-mode``). The request's type ``device.mode`` and the order's kind
``mode`` are short for that: a device has no other mode. They are not named anew, because
records with them are read for ever (CONTRIBUTING, Contracts).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.core.state import NO_POOL

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.core.decisions.turn import Answer, Input, Numbers, Turn
    from ledger.core.state import Device, Node, State
    from schemas.requests import DeviceMode

__all__ = ["MODES", "mode_order"]


def mode_order(state: State, node: Node) -> str | None:
    """Return the open order that changes the MIG mode of a device of the node, if there is one."""
    return next(
        (one.id for one in state.orders.values() if one.kind == "mode" and one.node == node.name),
        None,
    )


def _mode(turn: Turn, given: Input) -> Answer:
    asked: DeviceMode = given.data
    state = turn.state
    device = state.devices.get(asked.device)
    if device is None or device.health == "gone":
        return "unknown_device", {"device": asked.device}
    node = state.nodes[device.node]
    if device.mig_pending:
        return "partition_pending", {"device": device.uuid}
    if device.mig_enabled == asked.enabled:
        return "unchanged", {}
    if node.state in ("silent", "lost", "registering") or node.unsettled is not None:
        return "not_partitionable", {"device": device.uuid, "node": node.name}
    if node.state == "online":
        return "not_drained", {"node": node.name, "state": node.state}
    held = _in_use(state, device)
    if held:
        return "device_busy", {"device": device.uuid, **held}
    if device.slices:
        return "slices_left", {"device": device.uuid, "slices": len(device.slices)}
    order = turn.new_id("o")
    pool = state.pools.get(node.pool, NO_POOL)
    turn.emit(
        {
            "type": "order.issued",
            "order": order,
            "kind": "mode",
            "node": node.name,
            "units": [device.uuid],
            "due_us": turn.now_us + pool.order_timeout_us,
            "enabled": asked.enabled,
        }
    )
    return "applied", {"order": order}


def _in_use(state: State, device: Device) -> Numbers:
    """Say who has something of the device, or for whom, or which order is about it."""
    for lease in device.holds:
        return {"lease": lease}
    if device.kept_for is not None:
        return {"kept_for": device.kept_for}
    for name in device.slices:
        item = state.slices[name]
        holder = {"lease": item.lease, "kept_for": item.kept_for, "order": item.order}
        found = {key: value for key, value in holder.items() if value is not None}
        if found:
            return {"slice": name, **found}
    orders = (one.id for one in state.orders.values() if device.uuid in one.units)
    return next(({"order": one} for one in orders), {})


MODES: dict[str, Callable[[Turn, Input], Answer]] = {"device.mode": _mode}
