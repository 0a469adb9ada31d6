"""Advance reservations: devices of nodes for one tenant, from one instant to another.

A reservation counts devices, of one class, on each of its nodes; it names no device.
It holds when at every instant of its time as many devices of the class are in use on
the node, and held by nobody else, as are reserved there by all together. So a lease of
somebody else is given on such a node only if it is known to end before, or if enough
is left beside it; and what would be left is counted as of the beginning of each
reservation that it would overlap: between two beginnings only more becomes free.

A lease within the reservation takes of what is reserved. A device counts as free from
the end of what holds it, where that is known; what is told to stop counts as stopped.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ledger.core.derived.index import usable
from ledger.core.placing.constraints import for_tenant
from ledger.core.promises.repair import units_taken
from ledger.core.state import WHOLE_MILLI, Need

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ledger.core.derived.places import ClassKey
    from ledger.core.derived.waiting import ShapeKey
    from ledger.core.line.asking import Asker
    from ledger.core.state import Device, Lease, Node, State

__all__ = [
    "SHORT",
    "Reservation",
    "choose_nodes",
    "clash",
    "is_open",
    "need_of_reservation",
    "outside_reservations",
    "reservation_faults",
    "reserved_class",
    "stands",
    "stretch_clash",
    "within_time",
]

#: The alarm of a reservation whose nodes cannot serve it, and for which there are no others.
SHORT = "reservation_short"

#: Later than every time; stands for an end that nobody knows.
_NEVER = 1 << 62


@dataclass(slots=True)
class Reservation:
    """``count`` devices on each of ``nodes`` nodes for a tenant, from ``start_us`` to ``end_us``.

    ``chosen`` are the nodes, ``model`` and ``device_mib`` the class of their devices. It is
    ``opened`` at its start. ``cancelled``: it ends as soon as nobody waits for it any more.
    """

    name: str
    tenant: str
    pool: str | None
    models: list[str]
    count: int
    nodes: int
    start_us: int
    end_us: int
    chosen: list[str] = field(default_factory=list)
    model: str = ""
    device_mib: int = 0
    opened: bool = False
    cancelled: bool = False


def need_of_reservation(state: State, one: Reservation) -> Need:
    """Return what the reservation asks for, as a request of its tenant would."""
    need = Need("whole", one.pool, models=tuple(one.models), count=one.count, nodes=one.nodes)
    return for_tenant(state, need, one.tenant)


def is_open(one: Reservation, now_us: int) -> bool:
    """Say whether requests that name the reservation may run now."""
    return one.start_us <= now_us < one.end_us and not one.cancelled


def within_time(state: State, key: ShapeKey, now_us: int) -> bool:
    """Say whether requests of the shape may run now as far as their reservation goes."""
    if key.reservation is None:
        return True
    one = state.reservations.get(key.reservation)
    return one is not None and is_open(one, now_us)


def reserved_class(state: State, key: ShapeKey) -> Callable[[ClassKey], bool] | None:
    """Return what says of a class whether the shape's reservation is of it.

    A node may have devices of other classes too, which are not reserved, or are others'.
    None: it names no reservation, or needs no device.
    """
    one = state.reservations.get(key.reservation or "")
    if one is None or not key.need.count:
        return None
    return lambda of_class: of_class[1:3] == (one.model, one.device_mib)


# -- what is left beside reservations ----------------------------------------------


def outside_reservations(state: State, asker: Asker, now_us: int) -> Callable[[str], bool] | None:
    """Return on which nodes the asker may have a lease as far as reservations go; None: on all."""
    own = asker.key.reservation
    if own is not None:
        mine = state.reservations.get(own)
        taken = units_taken(asker)

        def within(node: str) -> bool:
            if mine is None:
                return False
            used = _used(state, mine, node, now_us, asker.request)
            return is_open(mine, now_us) and node in mine.chosen and used + taken <= mine.count

        return within
    if not state.index.booked:
        return None

    def outside(node: str) -> bool:
        return clash(state, asker, node, now_us, now_us) is None

    return outside


def clash(state: State, asker: Asker, node: str, from_us: int, now_us: int) -> Reservation | None:
    """Return a reservation that a lease of the asker on the node would break, if it began then."""
    names = state.index.booked.get(node)
    taken = units_taken(asker)
    if not names or not taken:
        return None
    run_us = asker.key.run_us
    until_us = _NEVER if run_us is None else from_us + run_us
    mine = state.index.matches(state, asker.key.need)
    for one in _overlapping(state, node, from_us, until_us, now_us):
        key = _class_on(state, one, node)
        at_us = max(one.start_us, from_us)
        if key in mine and _spare(state, node, key, at_us, now_us, asker.request) < taken:
            return one
    return None


def stretch_clash(state: State, lease: Lease, due_us: int, now_us: int) -> Reservation | None:
    """Return a reservation that the lease would break if it ended only at ``due_us``."""
    own = state.requests[lease.request].reservation
    assert lease.due_us is not None
    for part in lease.parts.values():
        for one in _overlapping(state, part.node, now_us, due_us, now_us):
            key = _class_on(state, one, part.node)
            at_us = max(one.start_us, now_us)
            more = [
                unit
                for unit in part.units
                if unit in state.devices and _class_of(state, state.devices[unit]) == key
            ]
            if one.name == own or lease.due_us > at_us or not more:
                continue
            if _covers(state, own, part.node, key):
                # What it holds longer is its own reservation's all the time.
                continue
            if _spare(state, part.node, key, at_us, now_us) < len(more):
                return one
    return None


def _covers(state: State, name: str | None, node: str, key: ClassKey) -> bool:
    """Say whether the reservation, if there is one, is of devices of the class on the node."""
    one = state.reservations.get(name or "")
    return one is not None and node in one.chosen and _class_on(state, one, node) == key


def _overlapping(
    state: State, node: str, from_us: int, until_us: int, now_us: int
) -> Iterator[Reservation]:
    for name in sorted(state.index.booked.get(node, ())):
        one = state.reservations[name]
        if one.start_us < until_us and _end(one, now_us) > from_us:
            yield one


def _end(one: Reservation, now_us: int) -> int:
    """One that is over is there until that is on record."""
    return max(one.end_us, now_us + 1)


def _class_on(state: State, one: Reservation, node: str) -> ClassKey:
    return (state.nodes[node].pool, one.model, one.device_mib, "", WHOLE_MILLI)


def _class_of(state: State, device: Device) -> ClassKey:
    pool = state.nodes[device.node].pool
    return (pool, device.model, device.memory_mib, "", WHOLE_MILLI)


def _spare(
    state: State,
    node: str,
    key: ClassKey,
    at_us: int,
    now_us: int,
    asker: str = "",
    without: str = "",
) -> int:
    """Return how many devices of the class nothing holds and nobody has reserved at an instant.

    ``asker``: what is kept for this request counts as free. ``without`` a reservation.
    """
    here = state.nodes[node]
    spare = sum(
        _free_by(state, here, state.devices[uuid], at_us, asker)
        for uuid in here.devices
        if _class_of(state, state.devices[uuid]) == key
    )
    for name in state.index.booked.get(node, ()):
        one = state.reservations[name]
        within = one.start_us <= at_us < _end(one, now_us)
        if name != without and within and _class_on(state, one, node) == key:
            spare -= max(0, one.count - _used(state, one, node, at_us))
    return spare


def _free_by(state: State, node: Node, device: Device, at_us: int, asker: str) -> bool:
    if not usable(node, device) or device.mig_enabled or device.slices:
        return False
    for name in device.holds:
        lease = state.leases.get(name)
        if lease is None or lease.state == "stopping":
            continue
        if lease.due_us is None or lease.due_us > at_us:
            return False
    owner = device.kept_for
    if owner in (None, asker):
        return True
    # One that has a longest run is looked at again when its place is given (`settle_reserved`).
    other = state.requests[owner]
    return other.max_run_us is not None and other.reservation not in state.reservations


def _used(state: State, one: Reservation, node: str, at_us: int, asker: str = "") -> int:
    """Return how many of the node's devices only leases within the reservation hold then.

    What is kept for such counts too, but for the ``asker``. Those of a class that it was
    of before it was applied again are none of it.
    """
    key = _class_on(state, one, node)
    return sum(
        _is_used(state, one, device, at_us, asker)
        for uuid in state.nodes[node].devices
        if _class_of(state, device := state.devices[uuid]) == key
    )


def _is_used(state: State, one: Reservation, device: Device, at_us: int, asker: str) -> bool:
    # One that is over by then is counted as free (`_free_by`), and what is reserved is needed.
    holders = [
        lease.request
        for name in device.holds
        if (lease := state.leases.get(name)) is not None
        and lease.state != "stopping"
        and (lease.due_us is None or lease.due_us > at_us)
    ]
    if device.kept_for not in (None, asker):
        holders.append(device.kept_for)
    return bool(holders) and all(state.requests[name].reservation == one.name for name in holders)


# -- where ---------------------------------------------------------------------------


def choose_nodes(
    state: State, one: Reservation, now_us: int
) -> tuple[tuple[ClassKey, list[str]] | None, int]:
    """Return the class and the nodes that can serve the reservation, and the most there were.

    Those it has stay if they can; then those that are free soonest and have least to
    spare. The reservation itself, as it may stand already, does not count.
    """
    need = need_of_reservation(state, one)
    most = 0
    for key in state.index.matches(state, need):
        ready = []
        for name in state.index.cards[key].members:
            room = _room(state, one, name, key, now_us)
            if room is not None:
                ready.append((name not in one.chosen, *room, name))
        most = max(most, len(ready))
        if len(ready) >= one.nodes:
            return (key, sorted(name for *_, name in sorted(ready)[: one.nodes])), most
    return None, most


def _room(
    state: State, one: Reservation, name: str, key: ClassKey, now_us: int
) -> tuple[int, int] | None:
    """Return when the node has the devices, and how many it would spare; None: not in time."""
    node = state.nodes[name]
    if not node.open or node.pool != key[0]:
        return None
    start_us = max(one.start_us, now_us)
    instants = [start_us] + [
        other.start_us
        for other in _overlapping(state, name, start_us, one.end_us, now_us)
        if other.start_us > start_us and other.name != one.name
    ]
    spare = min(_spare(state, name, key, at, now_us, "", one.name) for at in instants) - one.count
    if spare < 0:
        return None
    ends = sorted(
        _latest(state, device)
        for uuid in node.devices
        if _class_of(state, device := state.devices[uuid]) == key
        and _free_by(state, node, device, start_us, "")
    )
    return ends[one.count - 1], spare


def _latest(state: State, device: Device) -> int:
    """Return when the last lease on the device is over; 0: there is none."""
    leases = (state.leases.get(name) for name in device.holds)
    ends = [one.due_us or 0 for one in leases if one is not None and one.state != "stopping"]
    return max(ends, default=0)


def stands(state: State, one: Reservation, now_us: int) -> bool:
    """Say whether all nodes of the reservation can serve it, together with what else is there."""
    at_us = max(one.start_us, now_us)
    serving = state.index.matches(state, need_of_reservation(state, one))
    for name in one.chosen:
        key = _class_on(state, one, name)
        if key not in serving or _spare(state, name, key, at_us, now_us) < 0:
            return False
    return True


def reservation_faults(state: State) -> Iterator[tuple[str, str, str]]:
    """No lease of another overlaps a reservation's time on what is reserved there (A15)."""
    for one in state.reservations.values():
        if f"{SHORT} {one.name}" in state.alarms:
            continue
        if len(one.chosen) != one.nodes:
            yield "A15", one.name, f"has {len(one.chosen)} nodes of {one.nodes}"
        elif not stands(state, one, state.now_us):
            yield "A15", one.name, "others hold what is reserved, at its beginning or now"
