"""vGPU: instances of one type at a time on a device, as many as the device takes of it.

An instance is charged its part of the device, rounded up; what it holds is rounded down,
so that as many as the device takes do fit (A9).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ledger.core.derived.index import usable
from ledger.core.placing.room import free_memory
from ledger.core.state import WHOLE_MILLI

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from ledger.core.derived.places import ClassKey
    from ledger.core.state import Device, Need, State

__all__ = ["held_milli", "offers_vgpu", "vgpu_faults", "vgpu_fits", "vgpu_spot", "with_vgpu_type"]


def with_vgpu_type(state: State, need: Need) -> Need | None:
    """Return the need with what its vGPU type is where devices offer it; None where none does.

    Where devices say different things of one type the least memory counts, and the
    others do not offer it.
    """
    terms = need.terms
    if terms is None or terms.delivery != "vgpu":
        return need
    offered = {
        one
        for device in state.devices.values()
        if device.facts is not None
        for one in device.facts.vgpu_types
        if one[2] == terms.vgpu_type
    }
    if not offered:
        return None
    memory_mib, most, _ = min(offered)
    milli = -(-WHOLE_MILLI // most)
    return replace(
        need, gpu_milli=milli, memory_mib=memory_mib, terms=replace(terms, vgpu_most=most)
    )


def held_milli(need: Need) -> int:
    """Return the thousandths of a device that a share or an instance holds."""
    terms = need.terms
    return (
        need.gpu_milli if terms is None or not terms.vgpu_most else WHOLE_MILLI // terms.vgpu_most
    )


def offers_vgpu(device: Device, need: Need) -> bool:
    """Say whether the device offers the need's vGPU type, in use or not."""
    terms, facts = need.terms, device.facts
    if terms is None or facts is None:
        return False
    return (need.memory_mib, terms.vgpu_most, terms.vgpu_type) in facts.vgpu_types


def vgpu_fits(device: Device, need: Need, gone: Collection[str] = ()) -> bool:
    """Say whether what is on the device lets the need on it: vGPUs of one type, or none.

    ``gone`` are the leases that do not count.
    """
    terms = need.terms
    there = [hold.vgpu_type for name, hold in device.holds.items() if name not in gone]
    if terms is None or terms.delivery != "vgpu":
        return not any(there)
    fits = len(there) < terms.vgpu_most and all(name == terms.vgpu_type for name in there)
    return fits and offers_vgpu(device, need)


def vgpu_spot(
    state: State, need: Need, key: ClassKey, nodes: Iterable[str]
) -> tuple[str, str] | None:
    """Return the node and the device for one more instance: the fullest, then the least name."""
    able = ((-len(one.holds), name, one.uuid) for name, one in _able(state, need, key, nodes))
    best = min(able, default=None)
    return None if best is None else best[1:]


def _able(
    state: State, need: Need, key: ClassKey, nodes: Iterable[str]
) -> Iterator[tuple[str, Device]]:
    for name in nodes:
        node = state.nodes[name]
        for uuid in node.devices:
            device = state.devices[uuid]
            if (
                (device.model, device.memory_mib) == key[1:3]
                and usable(node, device)
                and device.kept_for is None
                and not device.mig_enabled
                and not device.slices
                and vgpu_fits(device, need)
                and free_memory(state, device) >= need.memory_mib
            ):
                yield name, device


def vgpu_faults(device: Device) -> Iterator[str]:
    """Yield what cannot be on the device: two types, a type and something else, too many."""
    types = {hold.vgpu_type for hold in device.holds.values()}
    if len(types) > 1:
        yield f"holds vGPUs of {sorted(types)} at once"
    most = {one[2]: one[1] for one in (device.facts.vgpu_types if device.facts else ())}
    for name in types & most.keys():
        if len(device.holds) > most[name]:
            yield f"holds {len(device.holds)} vGPUs of {name}, of which it takes {most[name]}"
