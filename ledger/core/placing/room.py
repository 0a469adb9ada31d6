"""What is left of a device for one more share: of its compute and of its memory (A9)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.core.state import NO_POOL, WHOLE_MILLI

if TYPE_CHECKING:
    from ledger.core.state import Device, State

__all__ = ["free_memory", "free_milli", "share_memory"]


def free_milli(device: Device) -> int:
    """Return the thousandths of the device that nothing holds."""
    left = WHOLE_MILLI
    for hold in device.holds.values():
        left -= hold.milli
    return left


def share_memory(state: State, device: Device) -> int:
    """Return the MiB that shares of the device may sum to, as its pool has it (A9)."""
    pool = state.pools.get(state.nodes[device.node].pool, NO_POOL)
    return device.memory_mib * pool.memory_overcommit_permille // 1000


def free_memory(state: State, device: Device) -> int:
    """Return the MiB that one more share may ask of the device."""
    left = share_memory(state, device)
    for hold in device.holds.values():
        left -= hold.mib
    return left
