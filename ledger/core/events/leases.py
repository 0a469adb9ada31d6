"""What the events about leases and orders do to the state.

The rules that no ledger may break are checked here again, on every fold: a log
that breaks one is damaged, whoever wrote it (`RuleBroken`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ledger.core.derived.index import usable
from ledger.core.events.requests import (
    RuleBroken,
    charge_of_event,
    count,
    let_reservation_go,
    uncount,
)
from ledger.core.events.slices import begin_partition, partition_retried
from ledger.core.events.supply import push_idle
from ledger.core.lifecycles import step
from ledger.core.placing.constraints import terms_fault
from ledger.core.placing.links import evidence_fault
from ledger.core.placing.media import sessions_fit, sessions_of
from ledger.core.placing.room import free_memory, free_milli
from ledger.core.placing.vgpu import held_milli, vgpu_fits
from ledger.core.promises.repair import let_repair_go
from ledger.core.quotas.fair_share import spend, use_up
from ledger.core.quotas.quota import holder_of, leave, remove
from ledger.core.state import (
    NO_POOL,
    WHOLE_MILLI,
    Device,
    Hold,
    Lease,
    Need,
    Node,
    Order,
    Part,
    Request,
    State,
    device_state,
    slice_state,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LEASE_EVENTS"]

Event = dict[str, Any]


def _lease_granted(state: State, event: Event, now: int) -> None:
    request = state.requests[event["request"]]
    if request.state == "queued":
        state.index.unqueued(state, request)
    if request.kept:
        let_reservation_go(state, request)
    if request.plan is not None:
        state.index.unplanned(state, request)
    if request.repair is not None:
        let_repair_go(state, request)
    request.state = step("request", request.id, request.state, "granted")
    name = event["lease"]
    charge = event["charge_milli"]
    parts, units = {}, 0
    for part in event["parts"]:
        parts[part["node"]] = Part(part["node"], part["units"])
        units += len(part["units"])
    lease = Lease(name, request.id, request.tenant, charge, now, event.get("due_us"), parts)
    if request.need.terms is not None or state.pools_limited:
        _check_terms(state, request, lease, event, now)
    request.charge = charge_of_event(state, request, event, units)
    holder = count(state, request, name)
    for part in parts.values():
        _take(state, request, lease, part)
    request.lease = name
    request.attempt = event["attempt"]
    request.code = "granted"
    if state.quotas[holder].budgeted:
        spend(state, holder, charge * request.charge.time_us, now)
    state.leases[name] = lease
    state.index.leased(state, request, name, holder)
    if lease.due_us is not None or request.expected_run_us is not None:
        state.index.due(state, lease.due_us, "run", name)


def _check_terms(state: State, request: Request, lease: Lease, event: Event, now: int) -> None:
    fault = terms_fault(state, request.need, lease.parts.values())
    if fault is not None:
        raise RuleBroken("A14", f"lease {lease.id}: {fault}")
    fault = evidence_fault(state, request.need, lease.parts, event.get("evidence", ()), now)
    if fault is not None:
        raise RuleBroken("A12", f"lease {lease.id}: {fault}")


def _take(state: State, request: Request, lease: Lease, part: Part) -> None:
    node = state.nodes[part.node]
    need = request.need
    if need.cpu_milli or need.host_memory_mib:
        _take_beside(node, request)
    if need.mode == "mig":
        _take_slices(state, node, lease, part)
        return
    simple = need.mode == "whole" and need.terms is None
    for uuid in part.units:
        device = state.devices[uuid]
        if simple:
            # Nothing but the whole of it is asked: most leases, and the quickest way.
            hold = Hold(WHOLE_MILLI, device.memory_mib)
            _take_device(state, node, device, lease, hold)
            continue
        if not sessions_fit(device, need):
            raise RuleBroken("A13", f"lease {lease.id} takes more sessions than {uuid} has")
        if not vgpu_fits(device, need):
            raise RuleBroken(
                "A9", f"lease {lease.id} takes {uuid}, which has vGPUs of another kind"
            )
        _take_device(state, node, device, lease, _hold(state, node, device, need))
    state.index.refresh(state, node, part.units)


def _hold(state: State, node: Node, device: Device, need: Need) -> Hold:
    encoders, decoders = sessions_of(need)
    if need.mode == "whole":
        hold = Hold(WHOLE_MILLI, device.memory_mib)
    else:
        hold = Hold(held_milli(need), need.memory_mib)
        hold.vgpu_type = need.terms.vgpu_type if need.terms is not None else ""
        hold.permille = state.pools.get(node.pool, NO_POOL).memory_overcommit_permille
    hold.encoder_sessions, hold.decoder_sessions = encoders, decoders
    return hold


def _take_beside(node: Node, request: Request) -> None:
    node.cpu_used += request.need.cpu_milli
    node.memory_used += request.need.host_memory_mib
    over_cpu = node.cpu_milli is not None and node.cpu_used > node.cpu_milli
    over_memory = node.memory_mib is not None and node.memory_used > node.memory_mib
    if over_cpu or over_memory:
        name = node.name
        raise RuleBroken("A2", f"request {request.id} takes more CPU or memory than {name} has")


def _take_device(state: State, node: Node, device: Device, lease: Lease, hold: Hold) -> None:
    if device.node != node.name or not usable(node, device):
        raise RuleBroken("A6", f"lease {lease.id} takes {device.uuid}, which is not usable")
    if device.mig_enabled or device.slices:
        raise RuleBroken("A3", f"lease {lease.id} takes {device.uuid}, which is in MIG mode")
    # Most leases take from a device that nothing holds, and all of that is there.
    bare = not device.holds and hold.milli <= WHOLE_MILLI and hold.mib <= device.memory_mib
    if not bare and (free_milli(device) < hold.milli or free_memory(state, device) < hold.mib):
        raise RuleBroken(
            "A1" if hold.milli == WHOLE_MILLI else "A9",
            f"lease {lease.id} takes {hold.milli} milli and {hold.mib} MiB of {device.uuid},"
            f" which has {free_milli(device)} and {free_memory(state, device)}",
        )
    old = device_state(device) if device.holds else "available"
    device.holds[lease.id] = hold
    _stepped(device, old)


def _stepped(device: Device, old: str) -> None:
    new = device_state(device)
    if new != old:
        step("device", device.uuid, old, new)


def _take_slices(state: State, node: Node, lease: Lease, part: Part) -> None:
    touched = []
    for name in part.units:
        item = state.slices[name]
        device = state.devices[item.device]
        if device.node != node.name or not usable(node, device):
            raise RuleBroken("A6", f"lease {lease.id} takes slice {name}, which is not usable")
        if device.holds:
            raise RuleBroken("A3", f"lease {lease.id} takes slice {name} of a held device")
        step("slice", name, slice_state(item), "leased")
        item.lease = lease.id
        touched.append(device.uuid)
    state.index.refresh(state, node, touched)


def _lease_started(state: State, event: Event, now: int) -> None:
    lease = state.leases[event["lease"]]
    part = lease.parts[event["node"]]
    part.state = "running"
    if lease.state == "granted":
        lease.state = step("lease", lease.id, lease.state, "running")
    if lease.started_us is None:
        lease.started_us = now


def _lease_stopping(state: State, event: Event, _now: int) -> None:
    lease = state.leases[event["lease"]]
    lease.state = step("lease", lease.id, lease.state, "stopping")
    lease.reason = event["reason"]
    _loosen_booked(state, lease)
    request = state.requests[lease.request]
    if event["reason"] == "preempted" and not request.evicted and request.charge is not None:
        # What it holds is another's from now on; its quota has it until it has ended.
        holder = holder_of(state, request.tenant, request.project)
        remove(state, holder, request.charge)
        leave(state.quotas[holder], request.charge, 1)
        request.evicted = True
        request.rests_until_us = event.get("rests_until_us")
        state.index.relieve(state, holder)


def _task_begun(state: State, event: Event, _now: int) -> None:
    """Nothing follows from it; the lease must be there, as of every event of one."""
    assert event["node"] in state.leases[event["lease"]].parts


def _lease_extended(state: State, event: Event, _now: int) -> None:
    lease = state.leases[event["lease"]]
    request = state.requests[lease.request]
    more_us = event["due_us"] - (lease.due_us or event["due_us"])
    request.max_run_us = (request.max_run_us or 0) + more_us
    assert request.charge is not None
    request.charge = replace(request.charge, time_us=request.charge.time_us + more_us)
    holder = holder_of(state, request.tenant, request.project)
    spend(state, holder, lease.charge_milli * more_us, lease.granted_us)
    lease.due_us = event["due_us"]
    state.index.due(state, lease.due_us, "run", lease.id)


def _lease_idle(state: State, event: Event, _now: int) -> None:
    lease = state.leases[event["lease"]]
    lease.idle_since_us = event.get("since_us")
    lease.reminded = False
    push_idle(state, lease)


def _lease_reminded(state: State, event: Event, _now: int) -> None:
    state.leases[event["lease"]].reminded = True


def _part_ended(state: State, event: Event, _now: int) -> None:
    state.leases[event["lease"]].parts[event["node"]].state = "ended"


def _lease_ended(state: State, event: Event, now: int) -> None:
    lease = state.leases.pop(event["lease"])
    step("lease", lease.id, lease.state, "ended")
    if event["held_us"] != now - lease.granted_us:
        raise RuleBroken("M3", f"lease {lease.id} was held {now - lease.granted_us} us")
    request = state.requests[lease.request]
    holder = holder_of(state, request.tenant, request.project)
    held_us = event["held_us"]
    assert request.charge is not None
    if state.quotas[holder].budgeted:
        more_us = held_us - request.charge.time_us
        spend(state, holder, lease.charge_milli * more_us, lease.granted_us)
    use_up(state, holder, lease.charge_milli * held_us, now)
    state.index.unleased(state, request, lease.id, holder)
    uncount(state, request)
    request.used_us += held_us
    request.code = event["reason"]
    for part in lease.parts.values():
        _let_go(state, request, lease, part)
    if state.index.booked:
        _loosen_booked(state, lease)


def _loosen_booked(state: State, lease: Lease) -> None:
    """What ends sooner leaves more beside a reservation, before it is free.

    Where it is not free then, for its node gets nothing new, a reservation may be short.
    """
    for name in lease.parts:
        if name in state.index.booked:
            state.index.unsure.update(state.index.booked[name])
            state.index.free_class(state, state.nodes[name])


def _let_go(state: State, request: Request, lease: Lease, part: Part) -> None:
    """The units stay held, as *cleaning*, until the proof of clean (A11)."""
    node = state.nodes[part.node]
    need = request.need
    if need.cpu_milli or need.host_memory_mib:
        node.cpu_used -= need.cpu_milli
        node.memory_used -= need.host_memory_mib
        state.index.free_class(state, node)
    for unit in part.units:
        item = state.slices.get(unit)
        if item is not None:
            if item.quarantine is None:
                step("slice", unit, slice_state(item), "cleaning")
            item.cleaning = True
        elif unit in state.devices:
            device = state.devices[unit]
            old = device_state(device)
            device.holds[lease.id].cleaning = True
            _stepped(device, old)


def _order_issued(state: State, event: Event, now: int) -> None:
    name = event["order"]
    step("order", name, "new", "issued")
    state.orders[name] = Order(
        name, event["kind"], event["node"], event.get("lease", ""), event["units"],
        event["due_us"], now, event.get("request"), event.get("steps", []),
        event.get("enabled"),
    )  # fmt: skip
    if event["kind"] == "stop":
        state.leases[event["lease"]].parts[event["node"]].stop_order = name
    elif event["kind"] == "partition":
        begin_partition(state, state.orders[name])
    state.next_id += 1
    state.index.due(state, event["due_us"], "order", name)


def _order_closed(state: State, event: Event, _now: int) -> None:
    order = state.orders.pop(event["order"])
    outcome = event["type"].removeprefix("order.")
    step("order", order.id, "issued", outcome)
    if order.kind == "stop":
        state.leases[order.lease].parts[order.node].stop_order = None
    if order.kind == "clean" and outcome != "superseded":
        _free_units(state, order)
    if order.kind == "partition" and outcome == "done":
        device = state.devices[order.units[0]]
        partition_retried(state, device)
        state.index.refresh(state, state.nodes[device.node], [device.uuid])


def _free_units(state: State, order: Order) -> None:
    """Take the lease's hold off the units of its clean order.

    After a failed order they are in quarantine, which keeps them out of use. A
    device that has moved is not this node's to speak of.
    """
    touched: list[str] = []
    for unit in order.units:
        item = state.slices.get(unit)
        device = state.devices.get(unit if item is None else item.device)
        if device is None or device.node != order.node:
            continue
        if item is not None and item.lease == order.lease:
            old = slice_state(item)
            item.lease = None
            item.cleaning = False
            if item.quarantine is None:
                step("slice", unit, old, "present")
        elif item is None:
            old = device_state(device)
            if device.holds.pop(order.lease, None) is None:
                continue
            _stepped(device, old)
        else:
            continue
        touched.append(device.uuid)
    state.index.refresh(state, state.nodes[order.node], touched)


def _pass_cut(state: State, _event: Event, _now: int) -> None:
    state.pass_cut = True


def _pass_done(state: State, _event: Event, _now: int) -> None:
    state.pass_cut = False


LEASE_EVENTS: dict[str, Callable[[State, Event, int], None]] = {
    "lease.granted": _lease_granted,
    "lease.started": _lease_started,
    "lease.stopping": _lease_stopping,
    "lease.extended": _lease_extended,
    "task.begun": _task_begun,
    "lease.idle": _lease_idle,
    "lease.reminded": _lease_reminded,
    "part.ended": _part_ended,
    "lease.ended": _lease_ended,
    "pass.cut": _pass_cut,
    "pass.done": _pass_done,
    "order.issued": _order_issued,
    "order.done": _order_closed,
    "order.failed": _order_closed,
    "order.timed-out": _order_closed,
    "order.superseded": _order_closed,
}
