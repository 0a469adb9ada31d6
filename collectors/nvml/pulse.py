"""Which devices are to be read whole again: a few calls each, every second.

A whole reading remembers what it saw of mode and health (`vital`); a pulse looks whether that
is still so. A change of partitions by this session makes its device due by itself; what else
may change is seen when a device's turn for a whole reading comes (`reader`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from collectors.nvml.inventory import read_device
from collectors.nvml.vital import vital

if TYPE_CHECKING:
    from collectors.nvml.session import Session

__all__ = ["pulse"]


def pulse(session: Session, uuids: list[str], whole: list[str]) -> dict[str, Any]:
    """Say which of the devices have to be read again, and read others whole.

    ``listing``: the node does not list as many devices as it did. ``changed``: devices in
    another mode or health than at their last whole reading, those that cannot be reached,
    and those whose partitions were changed by this session. ``read`` are those of ``whole``.
    """
    if not session.same_listing():
        return {"listing": True, "changed": uuids, "read": []}
    changed = [one for one in uuids if one not in whole and _differs(session, one)]
    return {
        "listing": False,
        "changed": changed,
        "read": [read_device(session, one, watched=True) for one in whole],
    }


def _differs(session: Session, uuid: str) -> bool:
    handle = session.handle(uuid)
    if handle.why:
        return True
    kept = session.kept(uuid)
    return kept.vital is None or kept.vital != vital(handle.value, uuid, kept)
