"""What must hold of promised places and of slices that are to go (A2, A3, A7), as code.

Like `ledger.core.invariants`, which runs this with its own: it trusts nothing kept twice.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from ledger.core.derived.makers import instance_of
from ledger.core.mig.layouts import occupation_fault
from ledger.core.state import slice_state

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ledger.core.state import Device, Order, Slice, State

__all__ = ["partition_faults"]

#: The invariant, what it is about, and how it is broken.
Fault = tuple[str, str, str]


def partition_faults(state: State) -> Iterator[Fault]:
    """Yield what is wrong with plans, in a fixed order."""
    for order in state.orders.values():
        if order.kind == "partition":
            yield from _order(state, order)
    for device in state.devices.values():
        yield from _places(state, device)
    for item in state.slices.values():
        yield from _promise(state, item)


def _order(state: State, order: Order) -> Iterator[Fault]:
    """A7: an order is about one device and has something to do."""
    if order.lease or len(order.units) != 1 or order.units[0] not in state.devices:
        yield "A7", order.id, f"partitions {order.units} after lease {order.lease!r}"
    if not order.steps:
        yield "A7", order.id, "has no steps"


def _places(state: State, device: Device) -> Iterator[Fault]:
    """A2, A3: a promised place overlaps nothing but what its own order destroys."""
    items = [state.slices[name] for name in device.slices]
    ordered = [one for one in items if one.order is not None and not one.mig_uuid]
    if not ordered:
        return
    for one, other in combinations(items, 2):
        if one.mig_uuid and other.mig_uuid:
            continue
        apart = one.start + one.size <= other.start or other.start + other.size <= one.start
        replaced = one.order == other.order and bool(one.mig_uuid) != bool(other.mig_uuid)
        if not apart and not replaced:
            yield "A2", one.id, f"is promised the place of {other.id} on {device.uuid}"
    if device.geometry is None:
        yield "A2", device.uuid, "is planned without profiles"
        return
    staying = {instance_of(one) for one in items if slice_state(one) != "destroying"}
    fault = occupation_fault(device.geometry, staying)
    if fault is not None:
        yield "A2", device.uuid, f"is planned as cannot be: {fault}"


def _promise(state: State, item: Slice) -> Iterator[Fault]:
    """A1, A2: who is ordered has an open order for its place; who is to go is nobody's."""
    if not item.mig_uuid:
        order = state.orders.get(item.order or "")
        place = {"do": "create", "profile": item.profile, "start": item.start}
        if order is None or order.units != [item.device] or place not in order.steps:
            yield "A2", item.id, f"is promised by {item.order}, which does not create it"
        if item.lease is not None:
            yield "A1", item.id, f"is not there and leased to {item.lease}"
    elif item.order is not None and (item.lease is not None or item.kept_for is not None):
        yield "A1", item.id, f"is to go with {item.lease or item.kept_for} on it"
