"""Which MIG slices a need could have if some leases ended (`ledger.core.evicting.victims`)."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from ledger.core.derived.index import usable
from ledger.core.derived.places import slice_class
from ledger.core.evicting.candidates import Room, host_would_fit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ledger.core.derived.places import ClassKey
    from ledger.core.evicting.candidates import Candidate
    from ledger.core.state import Need, State

__all__ = ["slices_for"]


def slices_for(
    state: State,
    need: Need,
    key: ClassKey,
    candidates: Mapping[str, Candidate],
    names: Iterable[str],
) -> Iterable[Room]:
    """Look at each node alone, and at all together: the slices there are, and who has them."""
    looked_at = frozenset(names)
    by_node: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for item in state.slices.values():
        device = state.devices[item.device]
        node = state.nodes[device.node]
        if (
            node.name not in looked_at
            or slice_class(node, device, item) != key
            or not usable(node, device)
            or item.quarantine is not None
            or item.order is not None
        ):
            continue
        if item.kept_for is not None or device.holds:
            continue
        ending = item.lease is None or item.cleaning or state.leases[item.lease].state == "stopping"
        holder = "" if ending else item.lease or ""
        if not holder or holder in candidates:
            by_node[node.name][holder].append(item.id)
    together: dict[str, list[str]] = defaultdict(list)
    for name, held in sorted(by_node.items()):
        for units in held.values():
            # The order in which they came is not the one in which a snapshot gives them.
            units.sort()
        room = _slices_of(state, held, need, candidates)
        if room is not None and host_would_fit(state, state.nodes[name], need, room.victims):
            yield room
        if host_would_fit(state, state.nodes[name], need, ()):
            for holder, units in held.items():
                together[holder] += units
    room = _slices_of(state, together, need, candidates)
    if room is not None and len(room.parts) > 1:
        yield room


def _slices_of(
    state: State,
    held: Mapping[str, list[str]],
    need: Need,
    candidates: Mapping[str, Candidate],
) -> Room | None:
    """Choose slices by their holders, nobody's first, then whoever has most of them."""
    units = held.get("", [])[: need.count]
    victims = []
    for holder in sorted(
        (name for name in held if name), key=lambda one: (-len(held[one]), candidates[one].order)
    ):
        if len(units) >= need.count:
            break
        victims.append(holder)
        units += held[holder][: need.count - len(units)]
    if len(units) < need.count:
        return None
    parts: dict[str, list[str]] = {}
    for unit in units:
        parts.setdefault(state.devices[state.slices[unit].device].node, []).append(unit)
    return Room(tuple(victims), tuple((node, tuple(names)) for node, names in parts.items()))
