"""What the events about pools, nodes, devices and slices do to the state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ledger.core.admitting.templates import Template
from ledger.core.derived.deadlines import due_time
from ledger.core.derived.makers import read_geometry
from ledger.core.events.slices import alarm_changed, partition_retried
from ledger.core.lifecycles import step
from ledger.core.placing.constraints import for_tenant
from ledger.core.policies.workload import Workload
from ledger.core.quotas.fair_share import spend
from ledger.core.quotas.quota import GPU, Limit, Quota, QuotaAsk, holder_of, quota_name
from ledger.core.quotas.tree import rebuild
from ledger.core.state import (
    NO_POOL,
    Device,
    Node,
    Pool,
    Queue,
    State,
    device_state,
    slice_state,
)
from ledger.core.terms import facts_from_plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.core.state import Lease

__all__ = ["SUPPLY", "push_idle"]

Event = dict[str, Any]

#: How many earlier incarnations of a node are remembered, to refuse what they still say.
PAST_INCARNATIONS = 8

#: The half-life of fair share where nothing else is said.
_WEEK_US = 604_800_000_000


def _pool_applied(state: State, event: Event, _now: int) -> None:
    name = event["pool"]
    before = state.pools.get(name, NO_POOL)
    limited = state.pools_limited
    pool = state.pools[name] = Pool(
        name,
        event["labels"],
        event["silent_grace_us"],
        event["order_timeout_us"],
        event.get("placement", "best-fit"),
        event.get("partition", "never"),
        event.get("slices_warning", 4),
        list(event.get("allowed_modes", ())),
        list(event.get("allowed_tenants", ())),
        event.get("memory_overcommit_permille", 1000),
        {one["when"]: one["mode"] for one in event.get("routing", ())},
    )
    state.index.scores.clear()
    state.pools_limited = any(
        one.allowed_modes or one.allowed_tenants for one in state.pools.values()
    )
    if state.pools_limited != limited:
        for request in state.requests.values():
            request.need = for_tenant(state, request.need, request.tenant)
        state.index.needs_changed(state)
    state.index.classes_changed(state)
    # A kept place may not have the labels any more that were asked for.
    for request in state.requests.values():
        if request.kept:
            state.index.ripe_for(request.id)
    # Nor may it serve whom it is reserved for.
    state.index.unsure.update(state.reservations)
    for node in state.nodes.values():
        if node.pool == name and node.state == "silent":
            _push_silence(state, node)
        if node.pool == name and before.partition != pool.partition:
            state.index.refresh_node(state, node)


def _placement_applied(state: State, event: Event, _now: int) -> None:
    name = event["pool"]
    state.workloads[name] = Workload(
        name,
        event["shapes"],
        event["holes"],
        event["cpu_milli_per_gpu"],
        event["memory_mib_per_gpu"],
        event["cpu_load_milli"],
        event["loads_milli"],
    )
    state.index.scores.clear()


def _queue_applied(state: State, event: Event, _now: int) -> None:
    name = event["queue"]
    get = event.get
    state.queues[name] = Queue(
        name,
        event["ordering"],
        event["max_gpus"],
        event["max_wait_us"],
        list(get("tenants", ())),
        get("max_run_us"),
        get("fair_share", False),
        get("preemption", "never"),
        get("reclaim", "never"),
        get("idle_remind_us"),
        get("idle_reclaim_us"),
        get("repair_hold_us", 600_000_000),
    )
    state.index.queue_changed(state, name)
    for lease in state.leases.values():
        if lease.idle_since_us is not None and state.requests[lease.request].queue == name:
            push_idle(state, lease)


def push_idle(state: State, lease: Lease) -> None:
    """Remember when an idle lease is to be reminded and reclaimed."""
    for kind in ("remind", "idle"):
        state.index.due(state, due_time(state, kind, lease.id), kind, lease.id)


def _quota_applied(state: State, event: Event, _now: int) -> None:
    tenant, project = event["tenant"], event.get("project")
    name = quota_name(tenant, project)
    get = event.get
    borrowing, lending = get("borrowing_gpu_milli"), get("lending_gpu_milli")
    limits = {GPU: Limit(event["nominal_gpu_milli"], borrowing, lending)}
    for one in get("limits", ()):
        limits[one["resource"]] = Limit(one["nominal"], one.get("borrowing"), one.get("lending"))
    quota = state.quotas.get(name)
    before = None if quota is None else (quota.parent, quota.period_us)
    _count_time(state, -1)
    if quota is None:
        quota = state.quotas[name] = Quota(name, None, limits)
    quota.parent = tenant if project is not None else get("parent")
    quota.limits = limits
    quota.weight = get("weight", 1)
    half_life_us = get("half_life_us", _WEEK_US)
    if half_life_us != quota.half_life_us:
        # Windows of another length: what was used before is forgotten.
        quota.half_life_us, quota.used_window, quota.used_milli_us = half_life_us, 0, 0
    period_us = get("period_us")
    if period_us != quota.period_us:
        quota.period_us, quota.spent_period, quota.spent_milli_us = period_us, 0, 0
    quota.budget_milli_us = get("budget_milli_us") or 0
    rebuild(state)
    _count_time(state, 1)
    state.index.quotas_changed(state, reshaped=before != (quota.parent, period_us))


def _count_time(state: State, sign: int) -> None:
    """Take the GPU time of live leases off the budgets above them, or put it on."""
    for lease in state.leases.values():
        request = state.requests[lease.request]
        if request.charge is not None:
            holder = holder_of(state, request.tenant, request.project)
            time_us = request.charge.time_us
            spend(state, holder, sign * lease.charge_milli * time_us, lease.granted_us)


def _quota_asked(state: State, event: Event, _now: int) -> None:
    ask = event["ask"]
    state.quota_asks[ask] = QuotaAsk(
        ask,
        event["tenant"],
        event.get("project"),
        event["nominal_gpu_milli"],
        event["author"],
        event["reason"],
    )


def _quota_answered(state: State, event: Event, _now: int) -> None:
    ask = state.quota_asks.pop(event["ask"])
    if not event["approve"]:
        return
    name = quota_name(ask.tenant, ask.project)
    state.quotas[name].limits[GPU].nominal = ask.nominal_milli
    rebuild(state)
    state.index.quotas_changed(state, reshaped=False)


def _quota_renewed(state: State, event: Event, now: int) -> None:
    quota = state.quotas[event["quota"]]
    assert quota.period_us is not None
    quota.spent_period, quota.spent_milli_us = now // quota.period_us, 0
    state.index.relieve(state, quota.name)


def _template_applied(state: State, event: Event, _now: int) -> None:
    name, default = event["template"], event.get("default", False)
    for other in state.templates.values():
        # A task type has one default: the new one takes the place of the old.
        if default and other.task_type == event["task_type"]:
            other.default = False
    state.templates[name] = Template(
        name,
        event["task_type"],
        default,
        event.get("defaults", {}),
        event.get("required", []),
        event.get("limits", {}),
    )


def _look_at_kept(state: State, uuids: list[str]) -> None:
    """Let places on these devices be looked at whole: they may be of another class by now."""
    for uuid in uuids:
        device = state.devices[uuid]
        for request in (device.kept_for, *(state.slices[one].kept_for for one in device.slices)):
            if request is not None:
                state.index.ripe_for(request)


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
            for uuid in node.devices:
                partition_retried(state, state.devices[uuid], forget=True)
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
    node.driver, node.cuda = event.get("driver") or "", event.get("cuda") or ""
    node.labels = event.get("labels", {})
    state.index.refresh_node(state, node)
    _look_at_kept(state, node.devices)
    state.index.facts_changed(state)


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
    device.geometry = read_geometry(event.get("profiles", ()), device.compute_slices)
    device.mig_pending = event.get("mig_pending", False)
    device.facts = facts_from_plain(event)
    partition_retried(state, device)
    state.index.refresh(state, node, [uuid])
    _look_at_kept(state, [uuid])
    state.index.refresh_bare(state, node)
    state.index.facts_changed(state)


def _stepped(device: Device, old: str) -> None:
    new = device_state(device)
    if new != old:
        step("device", device.uuid, old, new)


def _device_health(state: State, event: Event, _now: int) -> None:
    device = state.devices[event["device"]]
    old, was = device_state(device), device.health
    device.health = event["health"]
    _stepped(device, old)
    state.index.refresh(state, state.nodes[device.node], [device.uuid])
    if "gone" in (device.health, was):
        state.index.facts_changed(state)


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
    partition_retried(state, device, forget=True)
    for name in device.slices:
        item = state.slices[name]
        if item.quarantine is not None:
            item.quarantine = None
            step("slice", name, "quarantined", slice_state(item))
    _stepped(device, old)
    state.index.refresh(state, state.nodes[device.node], [device.uuid])


def _alarm_raised(state: State, event: Event, now: int) -> None:
    state.alarms[f"{event['code']} {event['about']}"] = now
    alarm_changed(state, event, now)


SUPPLY: dict[str, Callable[[State, Event, int], None]] = {
    "pool.applied": _pool_applied,
    "placement.applied": _placement_applied,
    "queue.applied": _queue_applied,
    "quota.applied": _quota_applied,
    "quota.asked": _quota_asked,
    "quota.answered": _quota_answered,
    "quota.renewed": _quota_renewed,
    "template.applied": _template_applied,
    "node.registered": _node_registered,
    "node.changed": _node_changed,
    "device.discovered": _device_discovered,
    "device.health": _device_health,
    "device.quarantined": _device_quarantined,
    "slice.quarantined": _slice_quarantined,
    "device.cleared": _device_cleared,
    "alarm.raised": _alarm_raised,
}
