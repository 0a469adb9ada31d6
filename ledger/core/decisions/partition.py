"""Partition changes: ordered with their complete plan, believed when a node reports them.

The places of a plan are promised from the decision that orders it: they are slices that
are not there yet, kept for their request. What was ordered for a request that has ended
meanwhile is removed as soon as it is there (C29); what was ordered for one that waits
again is free capacity. A device on which an order failed is not planned again until its
node has read it whole and found it well (`reopen`), something about it changes, or an operator
clears it: its alarm stands that long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ledger.core.derived.makers import FAILED, instance_of
from ledger.core.events.slices import instances
from ledger.core.line.asking import charge_for
from ledger.core.mig.layouts import DESTROY_MS, Change, Refusal, Step, occupation_fault
from ledger.core.mig.partition import plan_layout, plan_partition
from ledger.core.placing.layout import layout_fault
from ledger.core.placing.placement import Placement
from ledger.core.state import NO_POOL, slice_state
from schemas.limits import MAX_LISTED_TEXT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ledger.core.decisions.turn import Answer, Input, Numbers, Turn
    from ledger.core.line.asking import Asker
    from ledger.core.mig.layouts import Geometry, Instance
    from ledger.core.state import Device, Order, Slice, State
    from schemas.observations import OrderDone, SliceReport
    from schemas.requests import DevicePartition

__all__ = [
    "PARTITIONS",
    "close_partition",
    "drop_impossible",
    "partition_done",
    "partition_failed",
    "partition_for",
    "present_event",
    "remove_unwanted",
    "reopen",
    "warn_many",
]


def partition_for(turn: Turn, asker: Asker) -> bool:
    """Have slices made for the request and keep them for it; false when none can be made."""
    state = turn.state
    request = state.requests.get(asker.request)
    if request is None or request.state not in ("received", "queued"):
        return False
    plan = plan_partition(state, asker, turn.now_us)
    if plan is None:
        return False
    parts: dict[str, list[str]] = {}
    for node, name in plan.free:
        parts.setdefault(node, []).append(name)
    for one in plan.changes:
        made = _order(turn, state.devices[one.device], one.change, request.id)
        parts.setdefault(one.node, []).extend(made)
    place = Placement(
        tuple((node, tuple(units)) for node, units in parts.items()),
        plan.of_class[4] * request.need.count,
        plan.of_class,
    )
    charge = charge_for(state, place, asker.key)
    steps = [step.kind for one in plan.changes for step in one.change.steps]
    turn.emit(
        {
            "type": "request.reserved",
            "request": request.id,
            "charge_milli": charge.milli,
            "model": charge.model,
            "memory_mib": charge.memory_mib,
            "parts": [{"node": node, "units": units} for node, units in parts.items()],
            "evicted": [],
            "why": {
                "rule": "partition",
                "created": steps.count("create"),
                "destroyed": steps.count("destroy"),
                "cost_ms": plan.cost_ms,
            },
        }
    )
    for one in plan.changes:
        warn_many(turn, state.devices[one.device])
    return True


def _order(turn: Turn, device: Device, change: Change, request: str | None) -> list[str]:
    """Order the change; return the ids of the slices that it is to create."""
    geometry = device.geometry
    assert geometry is not None
    pool = turn.state.pools.get(turn.state.nodes[device.node].pool, NO_POOL)
    order = turn.new_id("o")
    event: dict[str, Any] = {
        "type": "order.issued",
        "order": order,
        "kind": "partition",
        "node": device.node,
        "units": [device.uuid],
        "due_us": turn.now_us + pool.order_timeout_us,
        "steps": [_step(turn.state, device, one) for one in change.steps],
    }
    if request is not None:
        event["request"] = request
    turn.emit(event)
    created = []
    for step in change.steps:
        if step.kind == "create":
            created.append(turn.new_id("s"))
            turn.emit(_ordered(device, geometry, step.instance, order, created[-1]))
    return created


def _step(state: State, device: Device, step: Step) -> dict[str, Any]:
    one = step.instance
    plain: dict[str, Any] = {"do": step.kind, "profile": one.profile, "start": one.start}
    if step.kind == "destroy":
        items = (state.slices[name] for name in device.slices)
        plain["mig_uuid"] = next(item.mig_uuid for item in items if item.start == one.start)
    return plain


def _ordered(
    device: Device, geometry: Geometry, one: Instance, order: str, name: str
) -> dict[str, Any]:
    kind = geometry.profile(one.profile)
    assert kind is not None
    return {
        "type": "slice.ordered",
        "slice": name,
        "order": order,
        "device": device.uuid,
        "profile": one.profile,
        "start": one.start,
        "size": one.size,
        "compute_slices": kind.compute_slices,
        "memory_mib": kind.memory_mib,
    }


def warn_many(turn: Turn, device: Device) -> None:
    """Raise an alarm when the device has more slices than its pool finds reasonable."""
    most = turn.state.pools.get(turn.state.nodes[device.node].pool, NO_POOL).slices_warning
    count = instances(turn.state, device)
    if most and count > most:
        turn.alarm("many_slices", device.uuid, {"slices": count, "most": most})


#: After the second failure in a row a device is left alone for so long, doubled with each more.
_ALONE_US, _LONGEST_ALONE_US = 60_000_000, 3_600_000_000


def reopen(turn: Turn, device: Device, reading: str) -> None:
    """Plan the device again, on a reading later than the failure that shows it whole and well.

    A call that hung or failed for a moment is no reason to wait for a person. What could not
    be taken back keeps the device unhealthy, so it is not opened here. After a second failure
    in a row it is left alone for a while: a node that always fails is not asked as fast as
    it answers.
    """
    state, uuid = turn.state, device.uuid
    since_us = state.alarms.get(f"{FAILED} {uuid}")
    if since_us is None or device.health != "healthy" or device.quarantine is not None:
        return
    failures, failed_us = state.partition_failures.get(uuid, (1, since_us))
    alone_us = min(_ALONE_US << max(0, failures - 2), _LONGEST_ALONE_US) if failures > 1 else 0
    if turn.now_us < failed_us + alone_us:
        return
    items = sorted((state.slices[name] for name in device.slices), key=lambda one: one.start)
    layout = ", ".join(f"{one.profile}@{one.start}" for one in items)
    turn.emit(
        {
            "type": "device.reopened",
            "device": uuid,
            "failures": failures,
            "failed_us": failed_us,
            "evidence": {
                "reading": reading,
                "slices": len(items),
                "layout": layout[:MAX_LISTED_TEXT],
            },
        }
    )


# -- what a node answers ---------------------------------------------------------------


def present_event(name: str, device: str, one: SliceReport) -> dict[str, Any]:
    """Return the event that says of a slice that its node reports it."""
    return {
        "type": "slice.present",
        "slice": name,
        "device": device,
        "mig_uuid": one.mig_uuid,
        "profile": one.profile,
        "gi": one.gi,
        "ci": one.ci,
        "start": one.start,
        "size": one.size,
        "compute_slices": one.compute_slices,
        "memory_mib": one.memory_mib,
    }


def partition_done(turn: Turn, order: Order, fact: OrderDone) -> None:
    """Believe what was created; what was not reported is not there, whatever the order says."""
    state = turn.state
    device = state.devices[order.units[0]]
    reported = {(one.profile, one.start, one.size): one for one in fact.slices}
    mine = list(_of_order(state, device, order.id))
    for item in mine:
        if item.mig_uuid:
            turn.emit({"type": "slice.gone", "slice": item.id, "reason": "destroyed by order"})
    missing = 0
    for item in mine:
        seen = reported.get((item.profile, item.start, item.size))
        if not item.mig_uuid and seen is not None:
            turn.emit(present_event(item.id, device.uuid, seen))
        missing += not item.mig_uuid and seen is None
    closing: dict[str, Any] = {"type": "order.done", "order": order.id}
    if fact.took_us is not None:
        closing["took_us"] = fact.took_us
    if fact.evidence:
        closing["evidence"] = dict(fact.evidence)
    reason = "its node did not report it"
    close_partition(turn, order, closing, reason)
    if missing:
        turn.alarm(FAILED, device.uuid, {"order": order.id, "missing": missing})
    fault = layout_fault(state, device)
    if fault is not None:
        turn.quarantine(device.uuid, fault, {})
    remove_unwanted(turn, device, order, [item.id for item in mine])


def remove_unwanted(turn: Turn, device: Device, order: Order, names: list[str]) -> None:
    """Destroy what was made for a request that has ended meanwhile (C29)."""
    state = turn.state
    if order.request is None or order.request in state.requests:
        return
    items = [one for name in names if (one := state.slices.get(name)) is not None]
    steps = tuple(
        Step("destroy", instance_of(one)) for one in items if slice_state(one) == "present"
    )
    if steps and device.quarantine is None and device.geometry is not None:
        _order(turn, device, Change(steps, DESTROY_MS * len(steps)), order.request)


def partition_failed(turn: Turn, order: Order, closing: dict[str, Any], reason: str) -> None:
    """Give the places up; what was to be destroyed is nobody's until its node reports it."""
    close_partition(turn, order, closing, reason)
    turn.alarm(FAILED, order.units[0], {"order": order.id, "reason": reason})


def close_partition(turn: Turn, order: Order, closing: dict[str, Any], reason: str) -> None:
    """Close the order; what it has not created is promised to nobody any more."""
    device = turn.state.devices[order.units[0]]
    turn.emit(closing)
    for item in list(_of_order(turn.state, device, order.id)):
        if not item.mig_uuid:
            turn.emit({"type": "slice.gone", "slice": item.id, "reason": reason})


def _of_order(state: State, device: Device, order: str) -> Iterable[Slice]:
    return [one for name in device.slices if (one := state.slices[name]).order == order]


def drop_impossible(turn: Turn, device: Device, *, gone: str = "") -> None:
    """Give up the orders whose plan is void: the device is ``gone``, or is not as planned."""
    state = turn.state
    for _, order in sorted(state.orders.items()):
        if order.kind == "mode" and gone and device.uuid in order.units:
            turn.emit({"type": "order.superseded", "order": order.id, "reason": gone})
        if order.kind != "partition" or order.units[0] != device.uuid:
            continue
        reason = gone or ("something else is in the place" if _in_place(state, order) else "")
        if reason:
            closing = {"type": "order.superseded", "order": order.id, "reason": reason}
            close_partition(turn, order, closing, reason)


def _in_place(state: State, order: Order) -> bool:
    """Say whether what the order is still to create has no place beside what is there."""
    device = state.devices[order.units[0]]
    items = [state.slices[name] for name in device.slices]
    if all(one.order != order.id or one.mig_uuid for one in items):
        return False
    there = {instance_of(one) for one in items if slice_state(one) != "destroying"}
    return device.geometry is None or occupation_fault(device.geometry, there) is not None


# -- what an operator orders -----------------------------------------------------------


def _layout(turn: Turn, given: Input) -> Answer:
    """Order a whole layout: refused where something in use has no place in it (C09)."""
    asked: DevicePartition = given.data
    device = turn.state.devices.get(asked.device)
    if device is None or device.health == "gone":
        return "unknown_device", {"device": asked.device}
    geometry = device.geometry
    if device.mig_pending:
        return "partition_pending", {"device": device.uuid}
    node = turn.state.nodes[device.node]
    if not device.mig_enabled or geometry is None or node.state in ("silent", "lost"):
        return "not_partitionable", {"device": device.uuid, "node": node.name}
    held = _in_use(turn.state, device)
    if held:
        return "instance_busy", {"device": device.uuid, **held}
    change = plan_layout(turn.state, device, geometry, asked.layout)
    if change is None:
        return "not_a_layout", {"device": device.uuid, "profiles": len(asked.layout)}
    if isinstance(change, Refusal):
        return change.code, {"device": device.uuid, **_in_the_way(turn.state, device, change)}
    if not change.steps:
        return "unchanged", {}
    order = turn.new_id("o")
    _order(turn, device, change, None)
    warn_many(turn, device)
    return "applied", {
        "order": order,
        "destroyed": sum(step.kind == "destroy" for step in change.steps),
        "created": sum(step.kind == "create" for step in change.steps),
        "cost_ms": change.cost_ms,
    }


def _in_use(state: State, device: Device) -> Numbers:
    """Say by whom all of the device is in use, or by which order something of it is changed."""
    for lease in device.holds:
        return {"lease": lease}
    orders = [state.slices[name].order for name in device.slices]
    orders += [
        one.id for one in state.orders.values() if one.kind == "mode" and device.uuid in one.units
    ]
    return next(({"order": one} for one in orders if one is not None), {})


def _in_the_way(state: State, device: Device, refusal: Refusal) -> Numbers:
    """Name the first instance that is in use, and by whom."""
    numbers: Numbers = {"fault": refusal.detail, "busy": len(refusal.busy)}
    places = {one.start for one in refusal.busy}
    for name in device.slices:
        item = state.slices[name]
        if item.start in places:
            holder = {"lease": item.lease, "kept_for": item.kept_for, "order": item.order}
            found = {key: value for key, value in holder.items() if value is not None}
            return numbers | {"slice": item.id, "profile": item.profile, **found}
    return numbers


PARTITIONS: dict[str, Callable[[Turn, Input], Answer]] = {"device.partition": _layout}
