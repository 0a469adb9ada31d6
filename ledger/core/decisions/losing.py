"""What is left of a node or devices that are lost: ended, and then cleaned, in bounded steps.

A node may hold tens of thousands of shares, and one decision is one record of
bounded size. So as much is ended as a record takes; while some is left the node is
*unsettled*: nothing on it is leased and nothing is ordered of it, and a deadline that
is due at once (`ledger.core.derived.deadlines`, ``settle``) goes on with the next decision.
It is part of the state: a restart of the worker or a replay goes on as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.core.decisions.partition import close_partition
from ledger.core.limits import MAX_DUE

if TYPE_CHECKING:
    from ledger.core.decisions.turn import Turn
    from ledger.core.state import Lease, Node, State

__all__ = ["UNCLEAN", "clean_what_is_left", "lose_devices", "lose_node", "settle_node"]

#: The reason of a node on which leases are over and no proof of clean was asked for.
UNCLEAN = "unclean"
#: The reason of a node that goes on without devices of which more was held than a record ends.
_GONE = "device-gone"


def lose_node(turn: Turn, name: str, reason: str) -> None:
    """End what ran on a node that is lost or has restarted; a gang ends whole (A10).

    Orders that nobody there will answer are given up: the cleaning is ordered
    again when the node is back.
    """
    node = turn.state.nodes[name]
    many = node.unsettled is not None or len(turn.events) + _most_events(turn.state, name) > MAX_DUE
    if many:
        _begin(turn, name, reason)
    if _end_what_ran(turn, node, reason, many=many) and many and node.state == "lost":
        turn.emit({"type": "node.settled", "node": name})


def lose_devices(turn: Turn, node: Node, gone: list[str]) -> None:
    """Where more is held of devices that a node no longer has than a record ends, begin with it.

    The events that say of each that it is gone are the caller's, and follow. Of a node that
    was lost or has restarted everything is being ended already.
    """
    state = turn.state
    holds = sum(len(state.devices[uuid].holds) + len(state.devices[uuid].slices) for uuid in gone)
    if node.unsettled in (None, UNCLEAN) and len(turn.events) + _EACH * holds > MAX_DUE:
        _begin(turn, node.name, _GONE)


def settle_node(turn: Turn, name: str) -> None:
    """Go on with an unsettled node; it is settled when everything is ended and being cleaned."""
    node = turn.state.nodes[name]
    reason = node.unsettled
    assert reason is not None
    if not _end_what_ran(turn, node, reason, many=True):
        # Its time is this decision's: the next one goes on, and this one has done enough.
        _begin(turn, name, reason)
    elif node.state == "lost" or _clean(turn, node):
        turn.emit({"type": "node.settled", "node": name})
    else:
        _begin(turn, name, UNCLEAN)


def clean_what_is_left(turn: Turn, node: Node) -> None:
    """Order the proof for what is held by nothing but a lease that is over.

    An unsettled node has it ordered when it is settled.
    """
    if node.unsettled is None and not _clean(turn, node):
        _begin(turn, node.name, UNCLEAN)


def _begin(turn: Turn, name: str, reason: str) -> None:
    turn.emit({"type": "node.unsettled", "node": name, "reason": reason})


def _most_events(state: State, node: str) -> int:
    """Return the most events that the end of everything there could be."""
    orders = sum(order.node == node for order in state.orders.values())
    return orders + sum(_EACH + 2 * len(one.parts) for one in _ran_on(state, node))


#: Events of a lease's end beside those of its parts.
_EACH = 6


def _end_what_ran(turn: Turn, node: Node, reason: str, *, many: bool) -> bool:
    """Give up orders and end leases, of ``many`` as much as a record takes; say if all is done."""
    if reason == UNCLEAN:
        return True
    state = turn.state
    for order in [one for _, one in sorted(state.orders.items()) if one.node == node.name]:
        if order.kind == "stop" or reason == _GONE:
            # It is closed with its part of the lease; or its node is there and answers it.
            continue
        if many and len(turn.events) >= MAX_DUE:
            return False
        closing = {"type": "order.superseded", "order": order.id, "reason": reason}
        if order.kind == "partition":
            close_partition(turn, order, closing, reason)
        else:
            turn.emit(closing)
    for lease in _ran_on(state, node.name):
        if reason == _GONE and not _on_gone(state, lease, node.name):
            continue
        if many and len(turn.events) >= MAX_DUE:
            return False
        turn.end_part(lease, node.name, reason)
        turn.stop(lease, reason)
        turn.end_if_over(lease, reason)
    return True


def _ran_on(state: State, node: str) -> list[Lease]:
    """Return the leases that have a part there: those on whole devices and slices first.

    They are few, and the inventory of a node that has restarted speaks of them next.
    """

    def many(lease: Lease) -> bool:
        need = state.requests[lease.request].need
        return need.mode == "share" or not need.count

    found = [lease for lease in state.leases.values() if _runs_on(lease, node)]
    return sorted(found, key=lambda lease: (many(lease), lease.id))


def _runs_on(lease: Lease, node: str) -> bool:
    part = lease.parts.get(node)
    return part is not None and not (part.state == "ended" and lease.state == "stopping")


def _on_gone(state: State, lease: Lease, node: str) -> bool:
    """Say whether the lease has something there of a device that is gone, or is elsewhere now."""
    for unit in lease.parts[node].units:
        item = state.slices.get(unit)
        device = state.devices.get(unit if item is None else item.device)
        if device is None or device.health == "gone" or device.node != node:
            return True
    return False


def _clean(turn: Turn, node: Node) -> bool:
    """Order the proof of clean until the record is full; return whether all is ordered."""
    state = turn.state
    ordered = {
        (order.lease, unit)
        for order in state.orders.values()
        if order.node == node.name and order.kind == "clean"
        for unit in order.units
    }
    left: dict[str, list[str]] = {}
    for uuid in node.devices:
        device = state.devices[uuid]
        if device.health == "gone":
            continue
        for lease, hold in device.holds.items():
            if hold.cleaning and (lease, uuid) not in ordered:
                left.setdefault(lease, []).append(uuid)
        for name in device.slices:
            item = state.slices[name]
            if item.lease is not None and item.cleaning and (item.lease, name) not in ordered:
                left.setdefault(item.lease, []).append(name)
    for lease, units in sorted(left.items()):
        if len(turn.events) >= MAX_DUE:
            return False
        turn.order("clean", lease, node.name, units)
    return True
