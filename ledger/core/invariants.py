"""What must hold of one state at any position of the log, as code (DESIGN 6).

`check` looks at a state alone. Rules about a step (a lowered quota takes nothing
away, the clock never goes back) stand in the fold, which refuses the event.
Nothing here trusts what is kept twice: sums are made again from the leases, and
the index is held against one that is rebuilt.
"""

from __future__ import annotations

from collections import Counter
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ledger.core.admitting.licences import licence_faults
from ledger.core.checks.derived import derived_faults
from ledger.core.checks.partition import partition_faults
from ledger.core.lifecycles import LEASE, NODE
from ledger.core.line.asking import Asker
from ledger.core.line.schedule import MAKES_ROOM, examine
from ledger.core.mig.partition import plan_partition
from ledger.core.placing.layout import layout_fault
from ledger.core.placing.placement import Placement
from ledger.core.placing.room import free_milli
from ledger.core.placing.vgpu import vgpu_faults
from ledger.core.promises.reservations import reservation_faults
from ledger.core.quotas.tree import nominal_below
from ledger.core.quotas.tree import rebuild as rebuild_quotas
from ledger.core.state import WHOLE_MILLI

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ledger.core.state import Device, Lease, Slice, State

__all__ = ["Violation", "check"]


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken invariant: its id in ``invariants.md``, what it is about, and how."""

    invariant: str
    about: str
    detail: str


def check(state: State) -> list[Violation]:
    """Return everything about the state that must not be, in a fixed order.

    It never raises: a name that leads nowhere is a violation like any other.
    """
    found: list[Violation] = []
    for rule in _RULES:
        try:
            found.extend(rule(state))
        except KeyError as missing:
            about = str(missing.args[0])
            found.append(Violation("A5", about, f"is named and not there ({rule.__name__[1:]})"))
    return found


# -- who holds what -------------------------------------------------------------


def _one_holder(state: State) -> Iterator[Violation]:
    """A1, A11: a hold and a lease name each other; a cleaning hold names a lease that is over."""
    for device in state.devices.values():
        for name, hold in device.holds.items():
            yield from _holder(state, device.uuid, device.node, name, cleaning=hold.cleaning)
    for item in state.slices.values():
        node = state.devices[item.device].node
        if item.lease is not None:
            yield from _holder(state, item.id, node, item.lease, cleaning=item.cleaning)
        elif item.cleaning:
            yield Violation("A11", item.id, "is cleaning after no lease")
    for lease in state.leases.values():
        for part in lease.parts.values():
            for unit in part.units:
                if not _held_by(state, unit, lease.id):
                    yield Violation("A1", unit, f"{lease.id} does not hold what it leases")


def _holder(
    state: State, unit: str, node: str, name: str, *, cleaning: bool
) -> Iterator[Violation]:
    lease = state.leases.get(name)
    if cleaning and lease is not None:
        yield Violation("A11", unit, f"is cleaning after {name}, which is not over")
    if not cleaning and lease is None:
        yield Violation("A1", unit, f"is held by {name}, which is over")
    if lease is not None and not any(unit in part.units for part in lease.parts.values()):
        yield Violation("A1", unit, f"is held by {name}, which does not name it")
    if lease is not None and lease.state != "stopping" and node not in lease.parts:
        yield Violation("A8", unit, f"is on {node}, where {name} has no part")


def _held_by(state: State, unit: str, lease: str) -> bool:
    device = state.devices.get(unit)
    if device is not None:
        return lease in device.holds
    item = state.slices.get(unit)
    # A slice that is gone is held by nobody, and its lease is on its way out.
    return state.leases[lease].state == "stopping" if item is None else item.lease == lease


def _capacity(state: State) -> Iterator[Violation]:
    """A2, A3, A9: no device is held beyond what it has, by thousandths, memory and slices."""
    for device in state.devices.values():
        if free_milli(device) < 0:
            yield Violation("A9", device.uuid, f"{WHOLE_MILLI - free_milli(device)} milli are held")
        yield from (Violation("A9", device.uuid, mixed) for mixed in vgpu_faults(device))
        fault = layout_fault(state, device)
        if fault is not None and device.quarantine is None:
            yield Violation("A2", device.uuid, fault)
        held = [name for name in device.slices if state.slices[name].lease is not None]
        if held and device.holds:
            yield Violation("A3", device.uuid, f"is held whole or in shares, and {held[0]} too")


def _slices(state: State, device: Device) -> Iterator[Slice]:
    return (state.slices[name] for name in device.slices)


def _identity(state: State) -> Iterator[Violation]:
    """A8: a UUID is on one node, and node, device and slice agree about it."""
    listed = Counter(uuid for node in state.nodes.values() for uuid in node.devices)
    for uuid, times in listed.items():
        if times != 1:
            yield Violation("A8", uuid, f"is listed {times} times")
    for node in state.nodes.values():
        if node.devices != sorted(node.devices):
            yield Violation("A8", node.name, "lists its devices out of order")
    for device in state.devices.values():
        if device.uuid not in state.nodes[device.node].devices:
            yield Violation("A8", device.uuid, f"{device.node} does not list it")
    of_devices = Counter(name for device in state.devices.values() for name in device.slices)
    for item in state.slices.values():
        if of_devices[item.id] != 1 or item.id not in state.devices[item.device].slices:
            yield Violation("A8", item.id, f"{item.device} does not list it once")
    if of_devices.total() != len(state.slices):
        yield Violation("A8", state.cell, "a device lists a slice that is gone")


def _beside(state: State) -> Iterator[Violation]:
    """A2: CPU and memory in use on a node are those of its leases, and no more than it has."""
    used: Counter[tuple[str, str]] = Counter()
    for lease in state.leases.values():
        need = state.requests[lease.request].need
        for name in lease.parts:
            used[name, "cpu"] += need.cpu_milli
            used[name, "memory"] += need.host_memory_mib
    for node in state.nodes.values():
        kept = (node.cpu_used, node.memory_used)
        if kept != (used[node.name, "cpu"], used[node.name, "memory"]):
            yield Violation("A2", node.name, f"CPU and memory used are kept as {kept}")


# -- requests, leases, orders ---------------------------------------------------


def _requests(state: State) -> Iterator[Violation]:
    """A4, A5: a granted request has exactly its lease, a queued one has none."""
    owned = Counter(lease.request for lease in state.leases.values())
    for request in state.requests.values():
        if request.state not in ("queued", "reserved", "granted"):
            yield Violation("A4", request.id, f"is kept as {request.state}")
        wanted = 1 if request.state == "granted" else 0
        if owned[request.id] != wanted:
            yield Violation("A5", request.id, f"{request.state} with {owned[request.id]} leases")
        lease = state.leases.get(request.lease or "")
        if (lease is not None) != (request.state == "granted"):
            yield Violation("A5", request.id, f"{request.state} with lease {request.lease}")
        if lease is not None and lease.id != f"{request.id}/{request.attempt}":
            yield Violation("A7", request.id, f"attempt {request.attempt} has lease {lease.id}")
        if request.retries < 0:
            yield Violation("A5", request.id, f"{request.retries} retries are left")


def _leases(state: State) -> Iterator[Violation]:
    """A4, A10: a lease has all that was asked, and whoever stops it has somebody to wait for."""
    for lease in state.leases.values():
        request = state.requests.get(lease.request)
        if request is None:
            yield Violation("A5", lease.id, f"its request {lease.request} is over")
            continue
        if lease.state not in LEASE or lease.state in ("new", "ended"):
            yield Violation("A4", lease.id, f"is kept as {lease.state}")
        if not _whole(lease, request.need.mode, request.need.count, request.need.nodes):
            yield Violation("A10", lease.id, "does not have exactly what was asked")
        yield from _stops(state, lease)


def _whole(lease: Lease, mode: str, count: int, nodes: int) -> bool:
    units = [unit for part in lease.parts.values() for unit in part.units]
    if len(set(units)) != len(units):
        return False
    if mode == "mig":
        return len(units) == count
    return len(lease.parts) == nodes and all(
        len(part.units) == count for part in lease.parts.values()
    )


def _stops(state: State, lease: Lease) -> Iterator[Violation]:
    if all(part.state == "ended" for part in lease.parts.values()):
        yield Violation("A5", lease.id, "runs nowhere any more and is not over")
    if (lease.state == "stopping") != (lease.reason is not None):
        yield Violation("A4", lease.id, f"{lease.state} for the reason {lease.reason}")
    for part in lease.parts.values():
        if part.state not in ("granted", "running", "ended"):
            yield Violation("A4", lease.id, f"its part on {part.node} is {part.state}")
        wanted = lease.state == "stopping" and part.state != "ended"
        if wanted != (part.stop_order is not None):
            yield Violation("V1", lease.id, f"{part.state} on {part.node}: {part.stop_order}")
        if part.stop_order is not None and part.stop_order not in state.orders:
            yield Violation("V1", lease.id, f"{part.stop_order} is not open")


def _orders(state: State) -> Iterator[Violation]:
    """A7: a stop order has a lease that is stopping, a clean order one that is over."""
    for order in state.orders.values():
        lease = state.leases.get(order.lease)
        if order.node not in state.nodes:
            yield Violation("A7", order.id, f"is for {order.node}, which is unknown")
        if order.kind == "clean":
            if lease is not None:
                yield Violation("A7", order.id, f"cleans after {lease.id}, which is not over")
        elif order.kind in ("partition", "mode"):
            continue
        elif lease is None or lease.parts[order.node].stop_order != order.id:
            yield Violation("A7", order.id, f"stops {order.lease}, which does not wait for it")


def _cleaning(state: State) -> Iterator[Violation]:
    """A11: what is not proved clean has an open order, or is where nobody could answer one."""
    ordered = {
        (order.node, order.lease, unit)
        for order in state.orders.values()
        if order.kind == "clean"
        for unit in order.units
    }
    for device in state.devices.values():
        node = state.nodes[device.node]
        if device.health == "gone" or node.state == "lost" or node.unsettled is not None:
            continue
        left = [(name, device.uuid) for name, hold in device.holds.items() if hold.cleaning]
        left += [
            (item.lease, item.id)
            for item in _slices(state, device)
            if item.lease is not None and item.cleaning
        ]
        for name, unit in left:
            if (device.node, name, unit) not in ordered:
                yield Violation("A11", unit, f"nobody was asked to clean it after {name}")


# -- nodes, quotas, time --------------------------------------------------------


def _nodes(state: State) -> Iterator[Violation]:
    """A4: states are in the tables; silence has a beginning exactly while it lasts."""
    for node in state.nodes.values():
        if node.state not in NODE or node.state == "new":
            yield Violation("A4", node.name, f"is kept as {node.state}")
        if (node.state == "silent") != (node.silent_since_us is not None):
            yield Violation("A4", node.name, f"{node.state} since {node.silent_since_us}")


def _quotas(state: State) -> Iterator[Violation]:
    """Q1-Q3: what is counted is what is leased or kept, and the tree adds up."""
    for request in state.requests.values():
        lease = state.leases.get(request.lease or "")
        counts = lease is not None or bool(request.kept)
        if (request.charge is not None) != counts:
            yield Violation("Q2", request.id, f"{request.state} counts {request.charge}")
        elif lease and request.charge and request.charge.milli != lease.charge_milli:
            yield Violation("Q1", lease.id, f"counts {request.charge.milli}")
    twin = copy(state)
    twin.quotas = {name: copy(quota) for name, quota in state.quotas.items()}
    rebuild_quotas(twin)
    for name, quota in state.quotas.items():
        for what in ("used", "leaving", "capacity", "kept"):
            kept, fresh = (
                _positive(getattr(quota, what)),
                _positive(getattr(twin.quotas[name], what)),
            )
            if kept != fresh:
                yield Violation("Q1", name, f"{what} is kept as {kept}, counted again {fresh}")
        for resource, limit in quota.limits.items():
            below = nominal_below(state, name, resource)
            if below > limit.nominal:
                yield Violation("Q3", name, f"{resource}: {below} below it, of {limit.nominal}")


def _positive(amounts: dict[str, int]) -> dict[str, int]:
    return {name: amount for name, amount in amounts.items() if amount}


def _kept(state: State) -> Iterator[Violation]:
    """A1, Q2: what is kept for a request is named by it, and only while it is reserved."""
    named = {
        unit: request.id
        for request in state.requests.values()
        for units in request.kept.values()
        for unit in units
    }
    for request in state.requests.values():
        if bool(request.kept) != (request.state == "reserved"):
            yield Violation(
                "A4", request.id, f"{request.state} with {len(request.kept)} nodes kept"
            )
        if request.plan is not None and request.state != "queued":
            yield Violation("A4", request.id, f"{request.state} with a plan")
    things = [(one.uuid, one.kept_for) for one in state.devices.values()]
    things += [(one.id, one.kept_for) for one in state.slices.values()]
    for unit, kept_for in things:
        if kept_for is not None and named.get(unit) != kept_for:
            yield Violation("A1", unit, f"is kept for {kept_for}, which does not name it")


def _plans(state: State) -> Iterator[Violation]:
    """A1, A2, A3, A7: places are promised once, and what is in use is not to go."""
    return (Violation(*fault) for fault in partition_faults(state))


def _licences(state: State) -> Iterator[Violation]:
    """Q2: licences in use are those of requests with a place."""
    return (Violation(*fault) for fault in licence_faults(state))


def _reservations(state: State) -> Iterator[Violation]:
    """A15: no lease of another overlaps a reservation's time on what is reserved on its nodes."""
    return (Violation(*fault) for fault in reservation_faults(state))


def _clock(state: State) -> Iterator[Violation]:
    """L5: nothing is of the future."""
    for lease in state.leases.values():
        if lease.granted_us > state.now_us:
            yield Violation("L5", lease.id, f"granted at {lease.granted_us}, after now")


# -- what is derived ------------------------------------------------------------


def _derived(state: State) -> Iterator[Violation]:
    """S2: the index that was kept is the one that the state alone would give."""
    return (Violation("S2", *fault) for fault in derived_faults(state))


def _fixpoint(state: State) -> Iterator[Violation]:
    """V1: nobody waits for what could be had now (a pass that was cut is not over)."""
    if state.pass_cut:
        return
    for shape in state.index.waiting.shapes.values():
        asker = Asker(shape.key, *shape.head)
        found = examine(state, asker, state.now_us)
        if isinstance(found, Placement):
            yield Violation("V1", asker.request, "waits for what is free")
        elif found in MAKES_ROOM and plan_partition(state, asker, state.now_us):
            yield Violation("V1", asker.request, "waits for a slice that could be made")


_RULES: tuple[Callable[[State], Iterator[Violation]], ...] = (
    _identity,
    _one_holder,
    _capacity,
    _beside,
    _requests,
    _leases,
    _orders,
    _cleaning,
    _nodes,
    _quotas,
    _kept,
    _plans,
    _reservations,
    _licences,
    _clock,
    _derived,
    _fixpoint,
)
