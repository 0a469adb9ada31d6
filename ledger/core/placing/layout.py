"""Whether what is reported of a device can be: slices side by side, within its size (A2, A9)."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from ledger.core.placing.media import sessions_lacking
from ledger.core.state import WHOLE_MILLI

if TYPE_CHECKING:
    from ledger.core.state import Device, State

__all__ = ["layout_fault"]


def layout_fault(state: State, device: Device) -> str | None:
    """Say what is impossible about the device, or None.

    Compute instances of one GPU instance (same ``gi``) share its place and memory.
    """
    fault = _held_fault(device)
    if fault is not None:
        return fault
    if not device.slices:
        return None
    # What is only ordered is no part of what was reported.
    slices = [one for name in device.slices if (one := state.slices[name]).mig_uuid]
    if len({one.mig_uuid for one in slices}) < len(slices):
        return "two slices have one MIG UUID"
    if len({(one.gi, one.ci) for one in slices}) < len(slices):
        return "two slices have one GPU instance and compute instance"
    if len({(one.gi, one.start, one.size) for one in slices}) > len({one.gi for one in slices}):
        return "one GPU instance is at two places"
    places = {one.gi: (one.start, one.start + one.size, one.memory_mib) for one in slices}
    ends = sorted(places.values())
    if any(after[0] < before[1] for before, after in pairwise(ends)):
        return "slices overlap: " + " ".join(f"{start}-{end - 1}" for start, end, _ in ends)
    compute = sum(one.compute_slices for one in slices)
    if device.compute_slices and compute > device.compute_slices:
        return f"slices have {compute} of {device.compute_slices} compute slices"
    memory = sum(mib for _, _, mib in ends)
    if memory > device.memory_mib:
        return f"slices have {memory} of {device.memory_mib} MiB"
    return None


def _held_fault(device: Device) -> str | None:
    """Say what is held beyond what the device has, under the factors it was granted with."""
    shares = 0
    permille = 1000
    for hold in device.holds.values():
        permille = max(permille, hold.permille)
        if hold.milli < WHOLE_MILLI and not hold.cleaning:
            shares += hold.mib
    if shares > device.memory_mib * permille // 1000:
        return f"shares hold {shares} of {device.memory_mib} MiB"
    for kind, lacking in sessions_lacking(device).items():
        if lacking > 0:
            return f"{lacking} more {kind} sessions are in use than there are"
    return None
