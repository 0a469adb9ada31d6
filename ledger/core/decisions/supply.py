"""What nodes and the liveness processor see: inventories, silence, health.

Observed is not wanted (DESIGN 1.5): only what a node has reported present and
healthy is ever leased, and who may speak for a node or a device is checked
before anything it says is believed (C01, C05, A8).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ledger.core.decisions.faults import cause_of, end_what_it_hit, record_fault
from ledger.core.decisions.losing import UNCLEAN, clean_what_is_left, lose_devices, lose_node
from ledger.core.decisions.orders import fenced
from ledger.core.decisions.partition import (
    drop_impossible,
    present_event,
    remove_unwanted,
    reopen,
    warn_many,
)
from ledger.core.derived.makers import read_geometry
from ledger.core.placing.layout import layout_fault
from ledger.core.terms import FACTS, facts_from_plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.core.decisions.turn import Answer, Input, Turn
    from ledger.core.mig.layouts import Geometry
    from ledger.core.state import Device, Node, Slice
    from schemas.observations import (
        DeviceHealth,
        DeviceReport,
        NodeInventory,
        NodeSilent,
        SliceReport,
    )

__all__ = ["OBSERVATIONS"]


def _inventory(turn: Turn, given: Input) -> Answer:
    fact: NodeInventory = given.data
    node = turn.state.nodes.get(fact.node)
    if node is not None:
        refusal = _refused(turn, node, given)
        if refusal is not None:
            return refusal
    restarted = node is not None and node.incarnation != fact.incarnation
    if node is None or _differs(node, given):
        turn.emit(
            {
                "type": "node.registered",
                "node": fact.node,
                "incarnation": fact.incarnation,
                "epoch": fact.epoch,
                "agent": given.source,
                "pool": fact.pool,
                "cpu_milli": fact.cpu_milli,
                "memory_mib": fact.memory_mib,
            }
            | ({"driver": fact.driver} if fact.driver else {})
            | ({"cuda": fact.cuda} if fact.cuda else {})
            | ({"labels": dict(sorted(fact.labels.items()))} if fact.labels else {})
        )
    node = turn.state.nodes[fact.node]
    if restarted:
        lose_node(turn, node.name, "node-restarted")
    seen = [report for report in fact.devices if _device(turn, node, report, restarted=restarted)]
    present = {report.uuid for report in seen}
    devices = turn.state.devices
    gone = [uuid for uuid in node.devices if uuid not in present and devices[uuid].health != "gone"]
    lose_devices(turn, node, gone)
    for uuid in gone:
        _device_gone(turn, uuid, "no longer reported by its node")
    clean_what_is_left(turn, node)
    return ("observed" if turn.events else "unchanged"), {}


def _refused(turn: Turn, node: Node, given: Input) -> Answer | None:
    """One agent speaks for a node, of its latest incarnation and start."""
    fact: NodeInventory = given.data
    if given.source != node.agent and node.state != "lost":
        turn.alarm("wrong_agent", node.name, {"agent": node.agent, "other": given.source})
        return "wrong_agent", {"agent": node.agent}
    if fact.incarnation in node.past_incarnations:
        return "stale_incarnation", {"said": fact.incarnation, "now": node.incarnation}
    if fact.incarnation == node.incarnation and fact.epoch < node.epoch:
        return "stale_incarnation", {"epoch": fact.epoch, "now": node.epoch}
    return None


def _differs(node: Node, given: Input) -> bool:
    fact: NodeInventory = given.data
    said = (fact.incarnation, fact.epoch, given.source, fact.pool, fact.cpu_milli, fact.memory_mib)
    known = (
        node.incarnation, node.epoch, node.agent, node.pool, node.cpu_milli, node.memory_mib
    )  # fmt: skip
    runs = (node.driver, node.cuda) != (fact.driver or "", fact.cuda or "")
    changed = runs or node.labels != fact.labels
    return node.state in ("silent", "lost") or known != said or changed


def _device(turn: Turn, node: Node, report: DeviceReport, *, restarted: bool) -> bool:
    """Follow one device; False when another node has it (it is then no device of this one)."""
    device = turn.state.devices.get(report.uuid)
    if report.uuid[: len(turn.state.cell) + 2] == f"{turn.state.cell}-s":
        # The ledger's own ids of slices look like that, and units share one name space.
        turn.alarm("duplicate_device", report.uuid, {"node": node.name, "other": "a slice's id"})
        return False
    elsewhere = device is not None and device.node != node.name and device.health != "gone"
    if device is not None and elsewhere and _given_up(turn.state.nodes[device.node]):
        _device_gone(turn, device.uuid, f"seen on {node.name} after its node was lost")
    if device is not None and device.node != node.name and device.health != "gone":
        turn.alarm("duplicate_device", report.uuid, {"node": device.node, "other": node.name})
        return False
    moved = device is not None and device.node != node.name
    if device is None or device.health == "gone" or _device_differs(device, node, report):
        turn.emit(
            {
                "type": "device.discovered",
                "device": report.uuid,
                "node": node.name,
                "model": report.model,
                "memory_mib": report.memory_mib,
                "architecture": report.architecture,
                "compute_slices": report.compute_slices,
                "mig_enabled": report.mig_enabled,
                "index": report.index,
            }
            | _partitions(report)
            | _facts(report)
        )
        device = turn.state.devices[report.uuid]
    if device.health != report.health:
        turn.emit(
            {
                "type": "device.health",
                "device": report.uuid,
                "health": report.health,
                "reason": "as its node reports it",
                "evidence": {},
            }
        )
    _slices(turn, device, report, restarted=restarted or moved)
    drop_impossible(turn, device)
    warn_many(turn, device)
    fault = layout_fault(turn.state, device)
    if fault is not None:
        turn.quarantine(device.uuid, fault, {})
    reopen(turn, device, "node.inventory")
    return True


def _given_up(node: Node) -> bool:
    """Say whether the node is lost and what ran there has been ended."""
    return node.state == "lost" and node.unsettled is None


def _device_differs(device: Device, node: Node, report: DeviceReport) -> bool:
    return (
        device.node != node.name
        or (device.model, device.memory_mib, device.compute_slices)
        != (report.model, report.memory_mib, report.compute_slices)
        or (device.mig_enabled, device.architecture, device.index, device.mig_pending)
        != (report.mig_enabled, report.architecture, report.index, report.mig_pending)
        or _geometry(report) != device.geometry
        or facts_from_plain(_facts(report)) != device.facts
    )


def _partitions(report: DeviceReport) -> dict[str, Any]:
    """Return what the report says of MIG beside the slices, nothing where it says nothing."""
    found: dict[str, Any] = {}
    if report.profiles:
        found["profiles"] = [
            one.model_dump(exclude_defaults=True) | {"starts": sorted(one.starts)}
            for one in report.profiles
        ]
    if report.mig_pending:
        found["mig_pending"] = True
    return found


def _facts(report: DeviceReport) -> dict[str, Any]:
    """Return what the report says beside, nothing where it says nothing."""
    return report.model_dump(mode="json", include=set(FACTS), exclude_defaults=True)


def _geometry(report: DeviceReport) -> Geometry | None:
    return read_geometry(_partitions(report).get("profiles", ()), report.compute_slices)


def _slices(turn: Turn, device: Device, report: DeviceReport, *, restarted: bool) -> None:
    """MIG UUIDs and instance ids come back: a slice is one lifetime.

    A restart of the node ends it, and so does a move of the device. A slice that was
    ordered is there as soon as its node reports it; one that was to be destroyed is
    nobody's as long as its order is open.
    """
    state = turn.state
    wanted = {_place(one): one for one in report.slices}
    for name in list(device.slices):
        item = state.slices[name]
        if not item.mig_uuid:
            _ordered(turn, device, item, wanted)
            continue
        place = (item.mig_uuid, item.profile, item.gi, item.start, item.size)
        if restarted or place not in wanted:
            if item.lease is not None and not item.cleaning:
                lease = state.leases[item.lease]
                turn.end_part(lease, lease.node_of(name), "slice-gone")
                turn.emit({"type": "slice.gone", "slice": name, "reason": "no longer reported"})
                turn.stop(lease, "slice-gone")
                turn.end_if_over(lease, "slice-gone")
            else:
                turn.emit({"type": "slice.gone", "slice": name, "reason": "no longer reported"})
        else:
            seen = wanted.pop(place)
            if item.order is not None and item.order not in state.orders:
                turn.emit(present_event(name, device.uuid, seen))
    for one in wanted.values():
        turn.emit(present_event(turn.new_id("s"), device.uuid, one))


def _ordered(
    turn: Turn,
    device: Device,
    item: Slice,
    wanted: dict[tuple[str, str, int, int, int], SliceReport],
) -> None:
    """Find the ordered slice among those that are new to the ledger, by its place."""
    known = {turn.state.slices[name].mig_uuid for name in device.slices}
    for place, one in wanted.items():
        if (one.profile, one.start, one.size) != (item.profile, item.start, item.size):
            continue
        if one.mig_uuid in known:
            continue
        order = turn.state.orders[item.order or ""]
        del wanted[place]
        turn.emit(present_event(item.id, device.uuid, one))
        remove_unwanted(turn, device, order, [item.id])
        return


def _place(one: SliceReport) -> tuple[str, str, int, int, int]:
    return (one.mig_uuid, one.profile, one.gi, one.start, one.size)


def _device_gone(turn: Turn, uuid: str, reason: str, fact: DeviceHealth | None = None) -> None:
    """A device is gone: its leases end with that reason (A8, C01), and what ``fact`` has told."""
    state = turn.state
    device = state.devices[uuid]
    turn.emit(
        {
            "type": "device.health",
            "device": uuid,
            "health": "gone",
            "reason": reason,
            "evidence": {} if fact is None else dict(fact.evidence),
        }
    )
    drop_impossible(turn, device, gone="its device is gone")
    if state.nodes[device.node].unsettled not in (None, UNCLEAN):
        # What ran there is being ended already, as much at once as a record takes.
        return
    held = [name for name, hold in device.holds.items() if not hold.cleaning]
    held += [
        lease
        for name in device.slices
        if (lease := state.slices[name].lease) is not None and not state.slices[name].cleaning
    ]
    cause = None if fact is None else cause_of(fact)
    more = {} if cause is None else {"rule": cause}
    for name in dict.fromkeys(held):
        turn.stop(state.leases[name], "device-gone", **more)


def _silent(turn: Turn, given: Input) -> Answer:
    refusal = fenced(turn.state, given)
    if refusal is not None:
        return refusal
    fact: NodeSilent = given.data
    node = turn.state.nodes[fact.node]
    if node.state in ("silent", "lost"):
        return "unchanged", {}
    turn.emit(
        {
            "type": "node.changed",
            "node": node.name,
            "state": "silent",
            "reason": f"last heard at {fact.last_heartbeat_us}",
        }
    )
    return "observed", {}


def _back(turn: Turn, given: Input) -> Answer:
    """A lost node is back only when it has told its inventory again."""
    refusal = fenced(turn.state, given)
    if refusal is not None:
        return refusal
    node = turn.state.nodes[given.data.node]
    if node.state != "silent":
        return "unchanged", {}
    state = node.mode if node.pool in turn.state.pools else "registering"
    turn.emit({"type": "node.changed", "node": node.name, "state": state, "reason": "heard again"})
    return "observed", {}


def _health(turn: Turn, given: Input) -> Answer:
    refusal = fenced(turn.state, given)
    if refusal is not None:
        return refusal
    fact: DeviceHealth = given.data
    device = turn.state.devices.get(fact.device)
    if device is None:
        return "unknown_device", {"device": fact.device}
    if device.node != fact.node:
        return "wrong_node", {"node": fact.node, "of": device.node}
    same = device.health == fact.health
    if same and fact.fault is None:
        return "unchanged", {}
    if device.health == "gone" and not same:
        return "illegal_transition", {"from": "gone", "to": fact.health}
    if fact.fault is not None:
        record_fault(turn, device, fact)
    if fact.health == "gone" and not same:
        _device_gone(turn, device.uuid, fact.reason, fact)
    elif not same:
        turn.emit(
            {
                "type": "device.health",
                "device": device.uuid,
                "health": fact.health,
                "reason": fact.reason,
                "evidence": dict(fact.evidence),
            }
        )
    end_what_it_hit(turn, device, fact)
    reopen(turn, device, "device.health")
    return "observed", {}


def _tick(turn: Turn, _given: Input) -> Answer:
    return ("observed" if turn.events else "unchanged"), {}


OBSERVATIONS: dict[str, Callable[[Turn, Input], Answer]] = {
    "node.inventory": _inventory,
    "node.silent": _silent,
    "node.back": _back,
    "device.health": _health,
    "tick": _tick,
}
