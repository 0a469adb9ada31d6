"""What the events about pools, nodes, devices and slices do to the state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ledger.core.lifecycles import step
from ledger.core.state import (
    NO_POOL,
    Device,
    Node,
    Pool,
    Queue,
    Slice,
    State,
    Tenant,
    device_state,
    slice_state,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SUPPLY"]

Event = dict[str, Any]

#: How many earlier incarnations of a node are remembered, to refuse what they still say.
PAST_INCARNATIONS = 8


def _pool_applied(state: State, event: Event, _now: int) -> None:
    name = event["pool"]
    state.pools[name] = Pool(
        name, event["labels"], event["silent_grace_us"], event["order_timeout_us"]
    )
    state.index.classes_changed(state)
    for node in state.nodes.values():
        if node.pool == name and node.state == "silent":
            _push_silence(state, node)


def _queue_applied(state: State, event: Event, _now: int) -> None:
    name = event["queue"]
    state.queues[name] = Queue(name, event["ordering"], event["max_gpus"], event["max_wait_us"])
    state.index.loosened_queues.add(name)


def _quota_applied(state: State, event: Event, _now: int) -> None:
    name = event["tenant"]
    nominal = event["nominal_gpu_milli"]
    tenant = state.tenants.get(name)
    if tenant is None:
        state.tenants[name] = Tenant(name, nominal)
    else:
        tenant.nominal_milli = nominal
        state.index.relieved.add(name)
        state.index.tightened(state, name)


def _node_registered(state: State, event: Event, _now: int) -> None:
    name = event["node"]
    node = state.nodes.get(name)
    entry = "online" if event["pool"] in state.pools else "registering"
    if node is None:
        node = state.nodes[name] = Node(
            name,
            event["pool"],
            event["incarnation"],
            event["epoch"],
            event["agent"],
            step("node", name, "new", entry),
            event["cpu_milli"],
            event["memory_mib"],
        )
    else:
        if event["incarnation"] != node.incarnation:
            node.past_incarnations = [*node.past_incarnations, node.incarnation][
                -PAST_INCARNATIONS:
            ]
        if node.state in ("silent", "lost", "registering") or entry == "registering":
            new = node.mode if entry == "online" else entry
            node.state = step("node", name, node.state, new)
        node.pool = event["pool"]
        node.incarnation = event["incarnation"]
        node.epoch = event["epoch"]
        node.agent = event["agent"]
        node.cpu_milli = event["cpu_milli"]
        node.memory_mib = event["memory_mib"]
        node.silent_since_us = None
        state.alarms.pop(f"wrong_agent {name}", None)
    state.index.refresh_node(state, node)


def _node_changed(state: State, event: Event, now: int) -> None:
    node = state.nodes[event["node"]]
    new = event["state"]
    node.mode = event.get("mode", node.mode)
    if new != node.state:
        node.state = step("node", node.name, node.state, new)
        node.silent_since_us = now if new == "silent" else None
        _push_silence(state, node)
    state.index.refresh_node(state, node)


def _push_silence(state: State, node: Node) -> None:
    pool = state.pools.get(node.pool, NO_POOL)
    if node.silent_since_us is not None:
        due = node.silent_since_us + pool.silent_grace_us
        state.index.due(state, due, "node", node.name)


def _device_discovered(state: State, event: Event, _now: int) -> None:
    uuid = event["device"]
    device = state.devices.get(uuid)
    node = state.nodes[event["node"]]
    if device is None:
        device = state.devices[uuid] = Device(
            uuid,
            node.name,
            event["model"],
            event["memory_mib"],
            event["compute_slices"],
            event["mig_enabled"],
            event["architecture"],
            event["index"],
        )
        step("device", uuid, "discovered", device_state(device))
        node.devices.append(uuid)
        node.devices.sort()
    else:
        old = device_state(device)
        if device.node != node.name:
            before = state.nodes[device.node]
            before.devices.remove(uuid)
            state.index.refresh_bare(state, before)
            node.devices.append(uuid)
            node.devices.sort()
        device.node = node.name
        device.model = event["model"]
        device.memory_mib = event["memory_mib"]
        device.compute_slices = event["compute_slices"]
        device.mig_enabled = event["mig_enabled"]
        device.architecture = event["architecture"]
        device.index = event["index"]
        if device.health == "gone":
            device.health = "unknown"
        _stepped(device, old)
        state.alarms.pop(f"duplicate_device {uuid}", None)
    state.index.refresh(state, node, [uuid])
    state.index.refresh_bare(state, node)


def _stepped(device: Device, old: str) -> None:
    new = device_state(device)
    if new != old:
        step("device", device.uuid, old, new)


def _device_health(state: State, event: Event, _now: int) -> None:
    device = state.devices[event["device"]]
    old = device_state(device)
    device.health = event["health"]
    _stepped(device, old)
    state.index.refresh(state, state.nodes[device.node], [device.uuid])


def _device_quarantined(state: State, event: Event, _now: int) -> None:
    device = state.devices[event["unit"]]
    old = device_state(device)
    device.quarantine = event["reason"]
    _stepped(device, old)
    state.index.refresh(state, state.nodes[device.node], [device.uuid])


def _slice_quarantined(state: State, event: Event, _now: int) -> None:
    item = state.slices[event["unit"]]
    step("slice", item.id, slice_state(item), "quarantined")
    item.quarantine = event["reason"]
    device = state.devices[item.device]
    state.index.refresh(state, state.nodes[device.node], [device.uuid])


def _device_cleared(state: State, event: Event, _now: int) -> None:
    device = state.devices[event["device"]]
    old = device_state(device)
    device.quarantine = None
    for name in device.slices:
        item = state.slices[name]
        if item.quarantine is not None:
            item.quarantine = None
            step("slice", name, "quarantined", slice_state(item))
    _stepped(device, old)
    state.index.refresh(state, state.nodes[device.node], [device.uuid])


def _slice_present(state: State, event: Event, _now: int) -> None:
    name = event["slice"]
    device = state.devices[event["device"]]
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
    )
    state.next_id += 1
    step("slice", name, "discovered", "present")
    device.slices.append(name)
    state.index.refresh(state, state.nodes[device.node], [device.uuid])


def _slice_gone(state: State, event: Event, _now: int) -> None:
    item = state.slices.pop(event["slice"])
    step("slice", item.id, slice_state(item), "gone")
    device = state.devices[item.device]
    device.slices.remove(item.id)
    state.index.forget_slice(state, item)
    state.index.refresh(state, state.nodes[device.node], [device.uuid])


def _alarm_raised(state: State, event: Event, now: int) -> None:
    state.alarms[f"{event['code']} {event['about']}"] = now


SUPPLY: dict[str, Callable[[State, Event, int], None]] = {
    "pool.applied": _pool_applied,
    "queue.applied": _queue_applied,
    "quota.applied": _quota_applied,
    "node.registered": _node_registered,
    "node.changed": _node_changed,
    "device.discovered": _device_discovered,
    "device.health": _device_health,
    "device.quarantined": _device_quarantined,
    "slice.quarantined": _slice_quarantined,
    "device.cleared": _device_cleared,
    "slice.present": _slice_present,
    "slice.gone": _slice_gone,
    "alarm.raised": _alarm_raised,
}
