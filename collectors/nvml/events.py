"""What has happened to devices since it was last asked: one event set, kept by the session.

An event set takes whole GPUs; an event then says how much of one it is about: all of it, a
GPU instance, or a compute instance. Only what happens after a device was registered is in it.
One question waits once, for no longer than it is told, so that no other question waits for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from collectors.nvml.calls import read
from collectors.nvml.codes import GONE, Code, word
from collectors.nvml.readings import Happening, Happenings
from collectors.nvml.units import address

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collectors.nvml.session import Session

__all__ = ["MOST_EVENTS", "XID", "Registered", "read_events"]

#: NVML's bit for an XID. Of the others asked for it is enough that they happened: the device
#: is then read. They are double-bit ECC errors, changes of MIG instances, retired DRAM and
#: its failure, poison, a GPU that is not available, and another recovery action.
XID = 0x8
_WANTED = XID | 0x2 | 0x100 | 0x400 | 0x800 | 0x1000 | 0x2000 | 0x4000 | 0x8000

#: The most events of one answer; what is left is in the next.
MOST_EVENTS = 64

#: After how many questions a device that could not be registered is tried again.
_AGAIN = 60

_LOST = frozenset(map(word, GONE))
_TIMEOUT = word(Code.TIMEOUT)


@dataclass(slots=True)
class Registered:
    """A session's event set: which devices are in it, by the address of their handle."""

    handle: Any = None
    devices: dict[int, str] = field(default_factory=dict)
    #: Device -> why it is not in the set, and for how many more questions it is left so.
    refused: dict[str, tuple[str, int]] = field(default_factory=dict)

    def forget(self, uuid: str) -> None:
        """Register the device anew: after a reset or a change of mode it is in no set."""
        self.devices = {at: one for at, one in self.devices.items() if one != uuid}
        self.refused.pop(uuid, None)


def read_events(session: Session, *, uuids: Sequence[str], wait_ms: int = 0) -> Happenings:
    """Return what has happened to these devices; ``wait_ms`` is how long the first may take.

    Never raises for what is missing: without a set there is ``why``, and a device that cannot
    be in it is in ``missing``.
    """
    kept = session.events
    opened = session.open()
    if opened.why:
        return Happenings(why=opened.why)
    if kept.handle is None:
        made = read("event_set")
        if made.why:
            return Happenings(why=made.why)
        kept.handle = made.value
    for uuid in uuids:
        _register(session, kept, uuid)
    missing = {uuid: why for uuid, (why, _) in kept.refused.items() if uuid in uuids}
    return _wait(session, kept, missing, wait_ms)


def _register(session: Session, kept: Registered, uuid: str) -> None:
    if uuid in kept.devices.values():
        return
    why, left = kept.refused.get(uuid, ("", 0))
    if left > 0:
        kept.refused[uuid] = (why, left - 1)
        return
    handle = session.handle(uuid)
    types = handle if handle.why else read("event_types", handle.value, about=uuid)
    done = types
    if not types.why:
        wanted = types.value & _WANTED
        done = read("event_register", handle.value, wanted, kept.handle, about=uuid)
    if done.why:
        kept.refused[uuid] = (done.why, _AGAIN)
    else:
        kept.refused.pop(uuid, None)
        kept.devices[address(handle.value)] = uuid


def _wait(session: Session, kept: Registered, missing: dict[str, str], wait_ms: int) -> Happenings:
    found: list[Happening] = []
    lost, why = False, ""
    while len(found) < MOST_EVENTS:
        one = read("event_wait", kept.handle, 0 if found else wait_ms)
        if one.why == _TIMEOUT:
            break
        if one.why in _LOST:
            # One of them is gone, and this does not say which.
            lost = True
            break
        if one.why:
            # The driver was loaded anew, or took the set away: the next question makes another.
            why = one.why
            session.drop_events()
            break
        found.append(_happening(kept, one.value))
    return Happenings(tuple(found), lost=lost, why=why, missing=missing)


def _happening(kept: Registered, event: dict[str, Any]) -> Happening:
    uuid = kept.devices.get(address(event["device"]))
    if uuid is None:
        uuid = read("uuid", event["device"]).value
    xid = event["data"] if event["type"] == XID else None
    return Happening(uuid, event["type"], xid, event["gi"], event["ci"])
