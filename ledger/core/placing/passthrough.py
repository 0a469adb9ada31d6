"""Passthrough: devices given to a machine by PCI address, whole IOMMU groups at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ledger.core.state import Node, State

__all__ = ["pci_addresses", "whole_groups"]


def whole_groups(
    state: State, node: Node, uuids: Iterable[str], count: int
) -> tuple[str, ...] | None:
    """Return ``count`` of the devices that are whole IOMMU groups of the node, or None.

    A group takes part when all devices of it that the node has are among the given ones
    and report their addresses. Of several choices the one with the fewest groups, then
    the least UUIDs.
    """
    given = set(uuids)
    members: dict[str, list[str]] = {}
    shut = set()
    for uuid in node.devices:
        facts = state.devices[uuid].facts
        if facts is None or not facts.iommu_group:
            continue
        members.setdefault(facts.iommu_group, []).append(uuid)
        if uuid not in given or not facts.pci_address:
            shut.add(facts.iommu_group)
    best: dict[int, tuple[int, tuple[str, ...]]] = {0: (0, ())}
    for group in sorted(name for name in members if name not in shut):
        size = len(members[group])
        for total, (groups, chosen) in sorted(best.items(), reverse=True):
            with_it = (groups + 1, tuple(sorted((*chosen, *members[group]))))
            if total + size <= count and with_it < best.get(total + size, (count + 1, ())):
                best[total + size] = with_it
    return best[count][1] if count in best else None


def pci_addresses(state: State, units: Sequence[str]) -> list[str]:
    """Return where the devices are, in the order of the units."""
    found = []
    for uuid in units:
        facts = state.devices[uuid].facts
        found.append("" if facts is None else facts.pci_address)
    return found
