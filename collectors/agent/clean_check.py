"""Whether what a lease has held is clean: nobody on it, no memory left, nothing left behind.

Pure. What is not known is not clean: a list that could not be read, memory without a
baseline, a process of nobody known. "No process listed" alone proves nothing, since a driver
has kept memory and instances of processes that were gone; and idle memory is never zero on
MIG, so it is held against what the same unit used when nobody was on it yet.

A MIG instance that is gone is clean: the driver destroys only what nobody is in.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from collectors.agent.processes import State
    from collectors.nvml.readings import Device, Process

__all__ = ["TOLERANCE_MIB", "Found", "Verdict", "check", "found_of", "together"]

#: How far idle memory may be above its baseline: the driver's own use moves by some MiB.
TOLERANCE_MIB = 32


@dataclass(frozen=True, slots=True)
class Found:
    """What was read of one unit. None is unknown.

    ``place`` is the device's minor number with the ids of the slice's instances, if it is one.
    ``states`` are the processes' by pid. ``instances`` are MIG instances on what was leased
    whole. ``leases`` is who each process says it belongs to, and ``others`` who else holds
    the device: both are for a device that several share. Where it was ``looked`` for who has
    the device's file open, ``holders`` is how many there are beside those listed, ``unread`` how
    many processes would not tell, and ``held`` are the pids that the lease may have left.
    """

    unit: str
    why: str = ""
    gone: bool = False
    place: tuple[int, int | None, int | None] | None = None
    processes: tuple[Process, ...] | None = None
    states: Mapping[int, State] = field(default_factory=dict)
    memory_mib: int | None = None
    baseline_mib: int | None = None
    instances: int = 0
    leases: Mapping[int, str | None] = field(default_factory=dict)
    others: frozenset[str] = frozenset()
    holders: int | None = None
    unread: int = 0
    held: tuple[int, ...] = ()
    looked: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """``why`` is empty for what is proved clean; ``evidence`` is what was compared."""

    why: str
    evidence: dict[str, Any]


def found_of(
    device: Device,
    unit: str,
    *,
    baseline_mib: int | None,
    state: Callable[[int], State],
    lease: Callable[[int], str | None] = lambda _: None,
    others: frozenset[str] = frozenset(),
) -> Found:
    """Pick out of a reading of the device what is about the unit: all of it, or one slice."""
    if device.why:
        return Found(unit, device.why)
    listed = device.processes
    memory = None if device.memory is None else device.memory.used_mib
    instances = len(device.instances)
    where: tuple[int | None, int | None] = (None, None)
    if unit != device.uuid:
        if device.instances_why:
            return Found(unit, device.instances_why)
        places = [
            (one.gi, each.ci, each.used_mib)
            for one in device.instances
            for each in one.compute
            if each.uuid == unit
        ]
        if not places:
            # A device that is not in MIG mode has no instances: gone as well.
            return Found(unit, gone=True)
        gi, ci, memory = places[0]
        where = (gi, ci)
        instances = 0
        if listed is not None:
            listed = tuple(one for one in listed if (one.gi, one.ci) == (gi, ci))
    pids = [one.pid for one in listed or ()]
    return Found(
        unit,
        place=None if device.minor is None else (device.minor, *where),
        processes=listed,
        states={pid: state(pid) for pid in pids},
        memory_mib=memory,
        baseline_mib=baseline_mib,
        instances=instances,
        leases={pid: lease(pid) for pid in pids} if others else {},
        others=others,
    )


def _mine(found: Found) -> list[Process]:
    """Return the processes that may be the lease's: those that are no other's for sure."""
    return [one for one in found.processes or () if found.leases.get(one.pid) not in found.others]


def _alive(found: Found) -> list[Process]:
    """Return those that are there; a pid that no process has is the driver's mistake."""
    return [one for one in _mine(found) if found.states.get(one.pid) in ("alive", "unknown")]


def _above(found: Found) -> int:
    used, idle = found.memory_mib, found.baseline_mib
    return 0 if used is None or idle is None else max(0, used - idle - TOLERANCE_MIB)


#: In this order: what is wrong -> whether it is. The first that is makes the answer.
_CHECKS: tuple[tuple[str, Callable[[Found], bool]], ...] = (
    ("the device cannot be read", lambda one: bool(one.why)),
    ("processes cannot be listed", lambda one: one.processes is None),
    (
        "an MPS server or client is left",
        lambda one: any(each.kind == "mps" for each in _alive(one)),
    ),
    ("a process is left", lambda one: bool(_alive(one))),
    (
        "a zombie holds the device",
        lambda one: any(one.states.get(each.pid) == "zombie" for each in _mine(one)),
    ),
    ("the device's file is held open", lambda one: bool(one.held)),
    ("MIG instances are left", lambda one: one.instances > 0),
    ("memory cannot be read", lambda one: not one.others and one.memory_mib is None),
    ("no baseline of its memory is known", lambda one: not one.others and one.baseline_mib is None),
    ("memory is left", lambda one: not one.others and _above(one) > 0),
)


def check(found: Found) -> Verdict:
    """Judge one unit."""
    if found.gone:
        return Verdict("", {"destroyed": 1})
    why = next((text for text, wrong in _CHECKS if wrong(found)), "")
    mine = _mine(found)
    evidence: dict[str, Any] = {
        "processes": None if found.processes is None else len(_alive(found)),
        "mps": sum(one.kind == "mps" for one in mine),
        "zombies": sum(found.states.get(one.pid) == "zombie" for one in mine),
        "ghosts": sum(found.states.get(one.pid) == "absent" for one in mine),
        "instances": found.instances,
        "memory_mib": found.memory_mib,
        "baseline_mib": found.baseline_mib,
    }
    if found.looked:
        evidence |= {"holders": found.holders, "unread": found.unread}
    if found.held:
        evidence["holder_pid"] = found.held[0]
    if found.others:
        evidence["others"] = len(found.others)
    if why:
        evidence["unit"] = found.unit
    if why and mine:
        evidence["pid"] = mine[0].pid
    if found.why:
        evidence["read"] = found.why[:200]
    return Verdict(why, evidence)


_PIDS = frozenset({"pid", "holder_pid"})


def together(verdicts: list[Verdict]) -> Verdict:
    """Judge a lease by all its units: sums, and the first that is not clean.

    A sum in which a number is unknown is unknown.
    """
    bad = next((one for one in verdicts if one.why), None)
    names = dict.fromkeys(name for one in verdicts for name in one.evidence)
    evidence: dict[str, Any] = {}
    for name in names:
        values = [one.evidence[name] for one in verdicts if name in one.evidence]
        if any(isinstance(value, str) for value in values) or name in _PIDS:
            evidence[name] = values[0]
        else:
            evidence[name] = None if None in values else sum(values)
    evidence["units"] = len(verdicts)
    return Verdict("" if bad is None else bad.why, evidence)
