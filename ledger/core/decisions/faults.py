"""What went wrong on a device, and the leases that do not survive it.

A fault is told with its scope, and ends leases in scope only: those of a compute instance,
of a GPU instance, or of the whole device. The fault, the device's health and the ends of
leases stand in one record, and each lease that ends names the fault.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from schemas.limits import MAX_TEXT

if TYPE_CHECKING:
    from ledger.core.decisions.turn import Turn
    from ledger.core.state import Device, Lease, State
    from schemas.observations import DeviceHealth, FaultReport

__all__ = ["cause_of", "end_what_it_hit", "record_fault"]


def cause_of(fact: DeviceHealth) -> str | None:
    """Return the fault as an end of a lease names it; None where there is none."""
    return None if fact.fault is None else f"{fact.fault.code}: {fact.reason}"[:MAX_TEXT]


def record_fault(turn: Turn, device: Device, fact: DeviceHealth) -> None:
    """Put the fault on record, with the units in its scope as the ledger knows them."""
    fault = fact.fault
    assert fault is not None, "there is one"
    whole = fault.gi is None
    event = {
        "type": "device.fault",
        "device": device.uuid,
        "code": fault.code,
        "ends": fault.ends,
        "units": [device.uuid] if whole else _slices(turn.state, device, fault),
        "reason": fact.reason,
        "evidence": dict(fact.evidence),
    }
    scope = {"xid": fault.xid, "gi": fault.gi, "ci": fault.ci}
    turn.emit(event | {name: value for name, value in scope.items() if value is not None})


def end_what_it_hit(turn: Turn, device: Device, fact: DeviceHealth) -> None:
    """End the leases that do not survive the fault; a gang ends whole (A10)."""
    fault = fact.fault
    state = turn.state
    if fault is None or fault.ends == "none" or state.nodes[device.node].unsettled is not None:
        # What runs on an unsettled node is being ended already.
        return
    if fault.ends == "scope" and fault.gi is not None:
        names = [state.slices[name].lease for name in _slices(state, device, fault)]
        held = [name for name in names if name is not None]
    else:
        held = _all_on(state, device)
    for name in dict.fromkeys(held):
        lease = state.leases.get(name)
        if lease is None or (fault.ends == "linked" and not _is_linked(state, lease)):
            continue
        turn.stop(lease, "device-fault", rule=cause_of(fact))


def _slices(state: State, device: Device, fault: FaultReport) -> list[str]:
    """Return the slices of a GPU instance, or of one compute instance in it."""
    found = []
    for name in device.slices:
        item = state.slices[name]
        # Where a node does not tell compute instances apart, the whole instance is meant.
        same = fault.ci is None or item.ci is None or item.ci == fault.ci
        if item.mig_uuid and item.gi == fault.gi and same:
            found.append(name)
    return found


def _all_on(state: State, device: Device) -> list[str]:
    """Return the leases that hold the device or a slice of it; the cleaned ones are over."""
    held = [name for name, hold in device.holds.items() if not hold.cleaning]
    items = [state.slices[name] for name in device.slices]
    return held + [one.lease for one in items if one.lease is not None and not one.cleaning]


def _is_linked(state: State, lease: Lease) -> bool:
    """Say whether the lease has more than one device, which reach each other by links."""
    devices = set()
    for part in lease.parts.values():
        for unit in part.units:
            item = state.slices.get(unit)
            devices.add(unit if item is None else item.device)
    return len(devices) > 1
