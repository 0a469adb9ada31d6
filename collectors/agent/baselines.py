"""What an agent learns of its units by the way: lifetimes of slices, and memory when idle."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collectors.agent.journal import Journal
    from collectors.nvml.readings import Device

__all__ = ["learn", "slices_of"]


def slices_of(device: Device) -> list[str]:
    """Return the UUIDs of the MIG devices on a device."""
    return [each.uuid for one in device.instances for each in one.compute if each.uuid is not None]


def learn(journal: Journal, device: Device) -> None:
    """Follow which slices there are, and keep what each unit uses when nobody is on it.

    The first idle reading of a lifetime is its baseline: taken right after a slice was made
    or a machine has booted, it has nothing in it that a lease has left.
    """
    if device.why or device.instances_why:
        return
    journal.slices_seen(device.uuid, slices_of(device))
    if device.processes is None:
        return
    idle: dict[str, int | None] = {}
    if not device.mig and not device.processes and device.memory is not None:
        idle[device.uuid] = device.memory.used_mib
    busy = {one.gi for one in device.processes}
    for one in device.instances:
        for each in one.compute:
            if each.uuid is not None and one.gi not in busy:
                idle[each.uuid] = each.used_mib
    for unit, used_mib in idle.items():
        free = not journal.bound(unit=unit)
        if used_mib is not None and free and journal.baseline(unit) is None:
            journal.set_baseline(unit, used_mib)
