"""What an XID means for the device and for the work on it, and what the driver's verdict does.

Two tables. The driver's own recovery action comes first: where a driver gives one, it says
what the device needs, and an XID says only what of the work is over. Where it gives none, the
XID says both. Sources: NVIDIA's catalogue of XIDs (the action that it asks for) and its NVML
reference (recovery actions); where the two differ from what schedulers do (109), the driver
has the last word.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["ACTIONS", "XIDS", "Action", "Effect", "Ends", "Xid", "action_of", "effect_of"]

Ends = Literal["none", "scope", "linked", "device"]
#: What a device needs: to be reset before it is used again, or to be reset when what runs on
#: it has ended. Nothing new is placed on it in either case.
Need = Literal["", "reset", "drain"]

#: From nothing to everything.
_ORDER: tuple[Ends, ...] = ("none", "scope", "linked", "device")


@dataclass(frozen=True, slots=True)
class Xid:
    """An XID: what it says, what of the work is over for sure, and what the device needs."""

    text: str
    work: Ends = "none"
    need: Need = ""


@dataclass(frozen=True, slots=True)
class Action:
    """A recovery action of the driver: what is to be done, what of the work cannot go on."""

    text: str
    work: Ends = "none"


@dataclass(frozen=True, slots=True)
class Effect:
    """What follows from an XID. ``need`` is empty where the driver tells it by itself."""

    text: str
    ends: Ends
    need: Need


_NVLINK = Xid("NVLink error", "linked", "drain")

#: What is not here is noted, and nothing follows from it.
XIDS: dict[int, Xid] = {
    13: Xid("graphics engine exception"),
    31: Xid("memory page fault"),
    32: Xid("invalid push buffer"),
    43: Xid("the device stopped processing for a task"),
    45: Xid("channels were cleaned up after another error"),
    46: Xid("the device stopped processing", need="reset"),
    48: Xid("double-bit ECC error", "scope", "drain"),
    62: Xid("PMU halted", need="reset"),
    63: Xid("a row of memory is to be remapped"),
    64: Xid("a row of memory could not be remapped", need="drain"),
    68: Xid("video processor exception"),
    69: Xid("graphics engine class error"),
    74: _NVLINK,
    78: Xid("a vGPU did not start"),
    79: Xid("the device has fallen off the bus", "device", "reset"),
    92: Xid("high rate of single-bit ECC errors"),
    94: Xid("contained memory error", "scope"),
    95: Xid("uncontained memory error", "device", "reset"),
    109: Xid("context switch timed out", need="reset"),
    110: Xid("security fault", need="reset"),
    119: Xid("the device's own processor does not answer", need="reset"),
    120: Xid("error on the device's own processor", need="reset"),
    121: Xid("chip-to-chip link error"),
    136: Xid("link training failed", "linked", "reset"),
    137: Xid("NVLink privilege error"),
    140: Xid("unrecovered ECC error", "device", "reset"),
    143: Xid("the device could not be initialised", need="reset"),
    **dict.fromkeys(range(144, 151), _NVLINK),
    151: Xid("confidential computing: keys could not be changed", "device", "reset"),
    154: Xid("the driver's recovery action has changed"),
    156: Xid("a part of the device is to be retired", need="drain"),
    157: Xid("a part of the device could not be retired"),
    158: Xid("fatal timeout", need="reset"),
}

#: By NVML's number; 0 asks for nothing.
ACTIONS: dict[int, Action] = {
    0: Action("do nothing"),
    1: Action("reset the GPU", "device"),
    2: Action("reboot the node", "device"),
    3: Action("drain peer-to-peer traffic", "linked"),
    4: Action("drain and reset the GPU"),
    5: Action("recover the IMEX domain", "linked"),
    6: Action("reset the bus", "device"),
    7: Action("reboot the system", "device"),
}


def action_of(number: int) -> Action:
    """Return a recovery action; one that a newer driver has made up cannot wait."""
    return ACTIONS.get(number) or Action(f"take action {number}", "device")


def effect_of(xid: int, action: int | None) -> Effect:
    """Return what follows from an XID, given the driver's recovery action; None: it gives none.

    Work that cannot go on by either is over; what the device needs is the driver's to say.
    """
    known = XIDS.get(xid, Xid("not in the table"))
    if action is None:
        # A device that needs a reset at once does no work until then.
        at_once: Ends = "device" if known.need == "reset" else "none"
        return Effect(known.text, _more(known.work, at_once), known.need)
    return Effect(known.text, _more(known.work, action_of(action).work), "")


def _more(one: Ends, other: Ends) -> Ends:
    return max(one, other, key=_ORDER.index)
