"""Why these devices: what was compared when they were given, and what else would have done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ledger.core.evolve import evolve
from ledger.core.need import need_from_plain
from ledger.core.placing.placement import place
from ledger.core.placing.room import free_milli

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from ledger.core.placing.placement import Placement
    from ledger.core.state import Need, State
    from ledger.reading import Seen

__all__ = ["Amounts", "Option", "Placed", "amounts_of", "granting", "placed_by_record", "placed_of"]

#: How many of the next best places, and how many nodes of a gang, are told.
_MOST_OTHERS = 3
_MOST_NODES = 8

#: What a rule of placement goes by.
_RULES = {
    "best-fit": "the fewest free that is enough, then the name that sorts first",
    "first-fit": "the first node by name that has enough",
    "fgd": "what fragments the pool least for the requests that are usual there",
    "least-waste": "what costs least of the room that the usual requests could use",
    "reserved": "the place was kept for it",
}


@dataclass(frozen=True, slots=True)
class Option:
    """A node with what it had free of the kind before, and what it has left afterwards.

    In devices, in slices, or for a share in thousandths of the device.
    """

    node: str
    units: tuple[str, ...]
    free_before: int
    free_after: int


@dataclass(frozen=True, slots=True)
class Placed:
    """The choice: the rule, its place, the next best ones, and the numbers on record."""

    rule: str
    text: str
    chosen: tuple[Option, ...]
    others: tuple[tuple[Option, ...], ...]
    nodes_with_room: int
    numbers: Mapping[str, int | str | None]


@dataclass(frozen=True, slots=True)
class Amounts:
    """Requested, reserved and delivered: three numbers (M8). None: not stated, not isolated.

    What is reserved beyond what was requested is the cost of fragmentation.
    """

    requested_memory_mib: int | None
    reserved_memory_mib: int
    delivered_memory_mib: int | None
    requested_gpu_milli: int
    reserved_gpu_milli: int


def granting(history: Iterable[Seen], request: str) -> tuple[Seen, dict[str, Any]] | None:
    """Return the record and the event that gave the request its last lease, if it had one."""
    found = None
    for seen in history:
        for event in seen.data.get("events", ()) if seen.verdict == "effective" else ():
            if event["type"] == "lease.granted" and event["request"] == request:
                found = (seen, event)
    return found


def placed_by_record(state: State, seen: Seen, granted: dict[str, Any]) -> Placed:
    """Explain a grant on the state before its record; the state is advanced by the record.

    Whatever the same decision did before the grant is done first.
    """
    for event in seen.data["events"]:
        if event == granted:
            break
        evolve(state, event, seen.data["time_us"])
    request = state.requests[granted["request"]]
    return placed_of(state, request.need, granted["parts"], granted["why"])


def placed_of(
    state: State,
    need: Need,
    parts: Iterable[Mapping[str, Any]],
    numbers: Mapping[str, int | str | None],
) -> Placed:
    """Explain a choice of ``parts`` (node and units) on the state in which they were free."""
    rule = str(numbers.get("rule", "best-fit"))
    chosen = [_option(state, need, str(one["node"]), tuple(one["units"])) for one in parts]
    mine = {one.node for one in chosen}
    taken = set(mine)
    others: list[tuple[Option, ...]] = []
    while rule != "reserved" and len(others) < _MOST_OTHERS:
        found = place(state, need, None, lambda node: node not in taken)
        if found is None:
            break
        others.append(_options(state, need, found))
        taken.update(node for node, _ in found.parts)
    return Placed(
        rule,
        _RULES.get(rule, f"the rule {rule}"),
        tuple(chosen[:_MOST_NODES]),
        tuple(others),
        len(mine | _nodes_with_room(state, need)),
        {name: value for name, value in numbers.items() if name != "rule"},
    )


def _options(state: State, need: Need, found: Placement) -> tuple[Option, ...]:
    return tuple(_option(state, need, node, units) for node, units in found.parts[:_MOST_NODES])


def _option(state: State, need: Need, node: str, units: tuple[str, ...]) -> Option:
    if need.mode == "share":
        device = state.devices.get(units[0])
        free = 0 if device is None else free_milli(device)
        return Option(node, units, free, free - need.gpu_milli)
    # What was kept or made for the request was free to it, and to nobody else.
    left = sum(_free_beside(state, need, node, units))
    return Option(node, units, left + len(units), left)


def _free_beside(state: State, need: Need, node: str, units: tuple[str, ...]) -> Iterable[int]:
    """Count what else is free on the node, by class."""
    for key in state.index.matches(state, need):
        if need.mode == "mig":
            free = state.index.slices[key].free
            yield sum(1 for place in free if place[0] == node and place[3] not in units)
        else:
            yield sum(1 for uuid in state.index.cards[key].free.get(node, ()) if uuid not in units)


def _nodes_with_room(state: State, need: Need) -> set[str]:
    """Return the nodes that had enough by themselves."""
    nodes: set[str] = set()
    for key in state.index.matches(state, need):
        if need.mode == "mig":
            nodes.update(place[0] for place in state.index.slices[key].free)
            continue
        cards = state.index.cards[key]
        count = need.count if need.mode == "whole" else 1
        nodes.update(node for bucket in cards.buckets[count:] for node in bucket)
        if need.mode == "share":
            nodes.update(
                state.devices[uuid].node for room, uuid in cards.partial if room >= need.gpu_milli
            )
    return nodes


def amounts_of(state: State, received: Mapping[str, Any], granted: Mapping[str, Any]) -> Amounts:
    """Return what was asked for, kept and given, from the events and the devices as they are."""
    need = need_from_plain(dict(received["need"]))
    units = [unit for part in granted["parts"] for unit in part["units"]]
    asked = {"whole": need.count * need.nodes, "share": 1, "mig": need.count}[need.mode]
    delivered: int | None = sum(_memory_of(state, unit) for unit in units)
    milli = {
        "whole": 1000 * asked,
        "share": need.gpu_milli,
        "mig": granted["charge_milli"],
    }[need.mode]
    if need.mode == "share":
        # Shares have no memory of their own: only what was asked for is kept.
        delivered = need.memory_mib or None
    return Amounts(
        need.memory_mib * asked or None,
        granted.get("memory_mib", 0),
        delivered,
        milli,
        granted["charge_milli"],
    )


def _memory_of(state: State, unit: str) -> int:
    item = state.slices.get(unit)
    if item is not None:
        return item.memory_mib
    device = state.devices.get(unit)
    return 0 if device is None else device.memory_mib
