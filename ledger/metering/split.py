"""How a device's capacity is split at one instant: whose each piece is, or why it is nobody's.

The pieces of a present device always sum to 1000 thousandths. A lease has what it holds,
a MIG slice what it is charged (C15); where the charges of a whole layout are rounded up
beyond the device, the last of its slices counts as what is left: seven slices of a
seventh are six times 143 and 142. Memory overcommit makes no capacity.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ledger.core.derived.places import part_milli
from ledger.core.state import WHOLE_MILLI

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ledger.core.state import Device, Node, Slice, State

__all__ = ["Piece", "split"]

#: Node state -> that state and cause of what is not held there. A node that is not heard
#: comes before everything else: what was known of its devices is no longer.
_NODE_GONE = {
    "lost": ("unavailable", "node-lost"),
    "silent": ("unavailable", "node-silent"),
    "registering": ("unavailable", "registering"),
}
_NODE_OUT = {
    "maintenance": ("unavailable", "maintenance"),
    "draining": ("unavailable", "draining"),
}
_HEALTH = {
    "unhealthy": ("unavailable", "unhealthy"),
    "unknown": ("unknown", "health-unknown"),
}


class Piece(NamedTuple):
    """A piece of a device.

    ``owner`` is the lease that has it, or had it until it is clean, or the request that it
    is kept for; empty for nobody.
    """

    unit: str
    state: str
    cause: str
    milli: int
    owner: str = ""


def split(state: State, device: Device) -> list[Piece]:
    """Return the pieces of the device as the state has it."""
    node = state.nodes[device.node]
    if device.health == "gone":
        return list(_absent(device))
    out = _out_of_use(node, device)
    pieces = []
    left = WHOLE_MILLI
    for lease, hold in device.holds.items():
        if hold.cleaning:
            found = out or ("unavailable", "cleaning")
        else:
            found = ("allocated", _held_cause(state, device, lease, device.uuid, out))
        left -= hold.milli
        if hold.milli:
            pieces.append(Piece(device.uuid, *found, hold.milli, lease))
    if device.slices:
        for piece in _slices(state, device, out):
            milli = min(piece.milli, left)
            left -= milli
            if milli:
                pieces.append(piece if milli == piece.milli else piece._replace(milli=milli))
    if left:
        pieces.append(_rest(device, left, out))
    return pieces


def _absent(device: Device) -> Iterator[Piece]:
    left = WHOLE_MILLI
    for lease, hold in device.holds.items():
        if not hold.cleaning:
            left -= hold.milli
            yield Piece(device.uuid, "absent", "held", hold.milli, lease)
    if left:
        yield Piece(device.uuid, "absent", "missing", left)


def _out_of_use(node: Node, device: Device) -> tuple[str, str] | None:
    """Return state and cause of whatever nobody holds there; None where it is in use."""
    if node.state in _NODE_GONE:
        return _NODE_GONE[node.state]
    if device.quarantine is not None:
        return "unavailable", "quarantined"
    if device.health in _HEALTH:
        return _HEALTH[device.health]
    if node.unsettled is not None:
        return "unavailable", "settling"
    return _NODE_OUT.get(node.state)


def _slices(state: State, device: Device, out: tuple[str, str] | None) -> Iterator[Piece]:
    """What is there comes first, in its order on the device; then what is only ordered."""
    items = [state.slices[name] for name in device.slices]
    for item in sorted(items, key=lambda one: (not one.mig_uuid, one.start, one.id)):
        milli = part_milli(device.compute_slices, item.compute_slices)
        if item.lease is not None and not item.cleaning:
            cause = _held_cause(state, device, item.lease, item.id, out)
            yield Piece(item.id, "allocated", cause, milli, item.lease)
        else:
            found = out or _slice_state(item)
            yield Piece(item.id, *found, milli, item.lease or item.kept_for or "")


def _slice_state(item: Slice) -> tuple[str, str]:
    if item.quarantine is not None:
        return "unavailable", "quarantined"
    if item.lease is not None:
        return "unavailable", "cleaning"
    if item.order is not None:
        return "unavailable", "repartition"
    return "idle", "free" if item.kept_for is None else "kept"


def _rest(device: Device, milli: int, out: tuple[str, str] | None) -> Piece:
    if out is None and device.kept_for is None:
        parted = device.mig_enabled or device.slices
        return Piece(device.uuid, "idle", "unpartitioned" if parted else "free", milli)
    return Piece(device.uuid, *(out or ("idle", "kept")), milli, device.kept_for or "")


#: What is wrong with a device or its node -> cause of the time that is held meanwhile.
_WRONG: dict[tuple[str, str] | None, str] = {
    ("unavailable", "node-lost"): "node-lost",
    ("unavailable", "node-silent"): "node-silent",
    ("unavailable", "quarantined"): "quarantined",
    ("unavailable", "unhealthy"): "unhealthy",
    ("unknown", "health-unknown"): "health-unknown",
}
_PART = {"granted": "starting", "ended": "over"}


def _held_cause(
    state: State, device: Device, name: str, unit: str, out: tuple[str, str] | None
) -> str:
    """Return how a lease has its unit: what is wrong there, else idle, else as its task is."""
    if out in _WRONG:
        return _WRONG[out]
    lease = state.leases[name]
    if lease.idle_since_us is not None:
        return "idle"
    part = lease.parts.get(device.node)
    if part is None or unit not in part.units:
        # The device has moved since it was leased.
        part = lease.parts[lease.node_of(unit)]
    return _PART.get(part.state, "running")
