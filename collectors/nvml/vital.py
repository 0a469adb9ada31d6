"""What makes a whole reading of a device due: its mode, and what its driver says of its health."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from collectors.nvml.calls import Reading, read

if TYPE_CHECKING:
    from collectors.nvml.session import Kept

__all__ = ["begin", "vital"]

#: The calls; the mode comes first.
_VITAL = ("mig_mode", "recovery_action")


def begin(handle: Any, uuid: str, kept: Kept) -> None:
    """Begin a whole reading: forget what was kept of another MIG mode."""
    mode = read("mig_mode", handle, about=uuid)
    if kept.mode is not None and kept.mode != mode:
        kept.readings.clear()
        kept.touched()
    kept.mode = mode


def vital(handle: Any, uuid: str, kept: Kept) -> tuple[Reading, ...]:
    """Return what is looked at between whole readings; what it lacks is asked once."""
    return tuple([kept.unless_absent(name, handle, about=uuid) for name in _VITAL])
