"""The place of an interrupted gang, kept whole through repair (A10).

When one node or device of a running gang is lost and its request has a retry left, the
units of its place are kept for it for a stated time: of each kind as many on each node
as it had there and as are in use now, what comes back within the time included. A later
one in line may use such a node as far as so many would still be free. It is let go when
the request runs again, wherever, or ends; or when the time is over, on record.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ledger.core.derived.index import usable
from ledger.core.derived.places import slice_class
from ledger.core.state import WHOLE_MILLI

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.core.decisions.turn import Turn
    from ledger.core.derived.places import ClassKey
    from ledger.core.line.asking import Asker
    from ledger.core.state import Lease, Request, State

__all__ = ["Repair", "beside_repairs", "keep_for_repair", "let_repair_go", "units_taken"]


@dataclass(slots=True)
class Repair:
    """Node -> the units that an interrupted gang had there; kept until a time (µs)."""

    parts: dict[str, list[str]]
    until_us: int


def keep_for_repair(turn: Turn, lease: Lease, request: Request) -> None:
    """Keep what is left of the lease's place for its request, which waits again."""
    state = turn.state
    hold_us = state.queues[request.queue].repair_hold_us
    units = [(part.node, unit) for part in lease.parts.values() for unit in part.units]
    if not hold_us or len(units) < 2:  # noqa: PLR2004 - a gang has two
        return
    if not any(_class_of(state, node, unit) for node, unit in units):
        return
    turn.emit(
        {
            "type": "request.repairing",
            "request": request.id,
            "parts": [{"node": one.node, "units": one.units} for one in lease.parts.values()],
            "until_us": turn.now_us + hold_us,
        }
    )


def let_repair_go(state: State, request: Request) -> None:
    """Keep the request's former place no longer: what was kept is there for all."""
    if request.repair is None:
        return
    parts, request.repair = request.repair.parts, None
    for name in parts:
        owners = state.index.repairs.get(name)
        if owners is not None and owners.pop(request.id, 0) is None:
            if not owners:
                del state.index.repairs[name]
            state.index.free_class(state, state.nodes[name])


def beside_repairs(
    state: State, asker: Asker, *, ended: bool = False
) -> Callable[[str], bool] | None:
    """Return on which nodes enough stays free for earlier gangs; None when nothing is kept.

    ``ended``: once what already ends has ended.
    """
    repairs = state.index.repairs
    if not repairs:
        return None
    need = asker.key.need
    mine = frozenset(state.index.matches(state, need))
    taken = units_taken(asker)

    def allowed(node: str) -> bool:
        held: Counter[ClassKey] = Counter()
        for name in repairs.get(node, ()):
            if name != asker.request and state.requests[name].rank < asker.rank:
                held.update(_kept_on(state, node, state.requests[name]))
        for key, count in held.items():
            # Whoever has slices made may have idle ones destroyed for it, of any profile.
            concerned = key in mine or (need.mode == "mig" and key[3])
            if not concerned or not taken:
                continue
            free = _free(state, key, node) + (_ending(state, key, node) if ended else 0)
            if free - taken < count:
                return False
        return True

    return allowed


def units_taken(asker: Asker) -> int:
    """Return how many units of one node the asker may take, at most; a share counts as a device."""
    need = asker.key.need
    return 1 if need.mode == "share" else need.count


def _kept_on(state: State, node: str, request: Request) -> Counter[ClassKey]:
    assert request.repair is not None
    units = request.repair.parts[node]
    return Counter(key for unit in units if (key := _class_of(state, node, unit)) is not None)


def _class_of(state: State, node: str, unit: str) -> ClassKey | None:
    """Return the class of a unit that is in use on the node now, or None."""
    item = state.slices.get(unit)
    device = state.devices.get(unit if item is None else item.device)
    here = state.nodes[node]
    if device is None or device.node != node or not usable(here, device):
        return None
    if item is not None:
        return slice_class(here, device, item) if item.quarantine is None else None
    if device.mig_enabled or device.slices:
        return None
    return (here.pool, device.model, device.memory_mib, "", WHOLE_MILLI)


def _free(state: State, key: ClassKey, node: str) -> int:
    if key[3]:
        slices = state.index.slices.get(key)
        return sum(one[0] == node for one in slices.free) if slices is not None else 0
    cards = state.index.cards.get(key)
    return len(cards.free.get(node, ())) if cards is not None else 0


def _ending(state: State, key: ClassKey, node: str) -> int:
    """Count the node's devices of the class that only what already ends has."""
    found = 0
    for uuid in state.nodes[node].devices:
        device = state.devices[uuid]
        if device.holds and device.kept_for is None and _class_of(state, node, uuid) == key:
            found += all(
                hold.cleaning or state.leases[name].state == "stopping"
                for name, hold in device.holds.items()
            )
    return found
