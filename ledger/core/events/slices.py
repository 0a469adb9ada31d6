"""What the events about MIG slices and the orders that make them do to the state.

A place that is promised is a slice without a MIG UUID, and a slice that is to go is
nobody's from the order on: so two plans never have one place, and a slice that is in use
is never destroyed (A2, A3, C09). Both are checked here again, on every fold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ledger.core.derived.makers import FAILED
from ledger.core.events.requests import RuleBroken
from ledger.core.lifecycles import step
from ledger.core.state import NO_POOL, Slice, State, slice_state

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.core.state import Device, Order

__all__ = ["SLICE_EVENTS", "alarm_changed", "begin_partition", "instances", "partition_retried"]

Event = dict[str, Any]


def instances(state: State, device: Device) -> int:
    """Return how many MIG instances are on the device or ordered, without those that go."""
    items = [state.slices[name] for name in device.slices]
    return len({one.start for one in items if slice_state(one) != "destroying"})


def begin_partition(state: State, order: Order) -> None:
    """Take what the order is to destroy out of reach; none of it may be anybody's."""
    device = state.devices[order.units[0]]
    gone = {one["start"] for one in order.steps if one["do"] == "destroy"}
    for name in device.slices:
        item = state.slices[name]
        if item.start in gone and item.mig_uuid:
            if item.kept_for is not None:
                raise RuleBroken("A1", f"{order.id} destroys {name}, kept for {item.kept_for}")
            step("slice", name, slice_state(item), "destroying")
            item.order = order.id
    _refresh(state, device)


def _slice_ordered(state: State, event: Event, _now: int) -> None:
    name, order = event["slice"], event["order"]
    device = state.devices[event["device"]]
    item = Slice(
        name,
        device.uuid,
        "",
        event["profile"],
        0,
        None,
        event["start"],
        event["size"],
        event["compute_slices"],
        event["memory_mib"],
        order=order,
    )
    for other in (state.slices[one] for one in device.slices):
        apart = other.start + other.size <= item.start or item.start + item.size <= other.start
        if not apart and (other.order != order or not other.mig_uuid):
            raise RuleBroken("A2", f"{name} is ordered where {other.id} is, on {device.uuid}")
    state.slices[name] = item
    state.next_id += 1
    step("slice", name, "discovered", "ordered")
    device.slices.append(name)
    _refresh(state, device)


def _slice_present(state: State, event: Event, _now: int) -> None:
    """A slice is there: a new one, one that was ordered, or one that was to go and did not."""
    name = event["slice"]
    device = state.devices[event["device"]]
    known = state.slices.get(name)
    if known is not None and not known.mig_uuid:
        # What was ordered is there: failures before it count no more.
        state.partition_failures.pop(device.uuid, None)
    step("slice", name, "discovered" if known is None else slice_state(known), "present")
    state.slices[name] = Slice(
        name,
        device.uuid,
        event["mig_uuid"],
        event["profile"],
        event["gi"],
        event["ci"],
        event["start"],
        event["size"],
        event["compute_slices"],
        event["memory_mib"],
        kept_for=None if known is None else known.kept_for,
    )
    if known is None:
        state.next_id += 1
        device.slices.append(name)
    _refresh(state, device)


def _slice_gone(state: State, event: Event, _now: int) -> None:
    item = state.slices.pop(event["slice"])
    step("slice", item.id, slice_state(item), "gone")
    device = state.devices[item.device]
    device.slices.remove(item.id)
    if item.kept_for is not None:
        state.index.ripe_for(item.kept_for)
    pool = state.pools.get(state.nodes[device.node].pool, NO_POOL)
    if instances(state, device) <= pool.slices_warning:
        state.alarms.pop(f"many_slices {device.uuid}", None)
    state.index.forget_slice(state, item)
    _refresh(state, device)


def alarm_changed(state: State, event: Event, now: int) -> None:
    """Follow an alarm that keeps a device from being planned."""
    device = state.devices.get(event["about"])
    if event["code"] == FAILED and device is not None:
        failures, _ = state.partition_failures.get(device.uuid, (0, 0))
        state.partition_failures[device.uuid] = [failures + 1, now]
        _refresh(state, device)


def _reopened(state: State, event: Event, _now: int) -> None:
    device = state.devices[event["device"]]
    partition_retried(state, device)
    _refresh(state, device)


def partition_retried(state: State, device: Device, *, forget: bool = False) -> None:
    """Let the device be planned again: something about it has changed. Refresh it after.

    ``forget`` how often changes have failed there: what was there before is over.
    """
    state.alarms.pop(f"{FAILED} {device.uuid}", None)
    if forget:
        state.partition_failures.pop(device.uuid, None)


def _refresh(state: State, device: Device) -> None:
    state.index.refresh(state, state.nodes[device.node], [device.uuid])


SLICE_EVENTS: dict[str, Callable[[State, Event, int], None]] = {
    "slice.ordered": _slice_ordered,
    "slice.present": _slice_present,
    "slice.gone": _slice_gone,
    "device.reopened": _reopened,
}
