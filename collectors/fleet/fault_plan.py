"""What goes wrong, and when: a fault plan for simulated nodes.

A plan is a TOML or JSON file with one ``[[fault]]`` for each fault::

    [[fault]]
    kind = "down"  # the machine goes off...
    node = "gpu-03"
    at_s = 3600  # ...an hour after the start...
    for_s = 240  # ...and is back four minutes later, rebooted

Times are whole seconds from the start of the simulation. A fault without
``for_s`` lasts until the end. Each ``kind`` is one of the classes below: some befall a
machine under the real agent (`MACHINE_KINDS`, `collectors.fleet.host_faults`), some are what a
light node of the demonstration does wrong (`LIGHT_KINDS`, `collectors.light.node`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from collectors.files import BadFile, read_model
from schemas.base import Model, Name, Seconds, Text

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

__all__ = [
    "LIGHT_KINDS",
    "MACHINE_KINDS",
    "CleanFails",
    "ClockJump",
    "DeviceFault",
    "Down",
    "DriverReload",
    "Duplicate",
    "Fault",
    "FaultPlan",
    "Flapping",
    "GpuFault",
    "Hang",
    "Late",
    "LeakedMemory",
    "Lost",
    "PartialCreate",
    "PartialDestroy",
    "Silent",
    "StopUnanswered",
    "Turn",
    "TwoAgents",
    "Xid",
    "check_nodes",
    "read_faults",
    "turns",
]

_US = 1_000_000


class _Fault(Model):
    """What every fault has: the node, when it begins and how long it lasts (seconds)."""

    node: Name
    at_s: Seconds
    for_s: Annotated[int, Field(ge=1, le=10_000_000_000)] | None = None


class Down(_Fault):
    """The node says nothing and hears nothing; ``incarnation`` is what comes back.

    ``new``: the machine was off, it comes back as a new incarnation and its tasks
    are gone. ``same``: only the agent was; tasks ran on, the agent's epoch is higher.
    """

    kind: Literal["down"]
    incarnation: Literal["new", "same"] = "new"


class Silent(_Fault):
    """The node is cut off: tasks run on, what it has to say comes when it is back."""

    kind: Literal["silent"]


class DeviceFault(_Fault):
    """Device number ``device`` of the node is unhealthy, or gone from the bus.

    At the end of the fault it is there again and healthy.
    """

    kind: Literal["device"]
    device: Annotated[int, Field(ge=0, le=1023)]
    health: Literal["unhealthy", "gone"]
    reason: Text = "XID 79: GPU has fallen off the bus"


class CleanFails(_Fault):
    """Cleaning finds a process that cannot be ended: `clean` orders fail with evidence."""

    kind: Literal["clean-fails"]


class StopUnanswered(_Fault):
    """The task hangs in the driver: `stop` orders get no answer, and it goes on."""

    kind: Literal["stop-unanswered"]


class Duplicate(_Fault):
    """The node says everything twice."""

    kind: Literal["duplicate"]


class Late(_Fault):
    """Answers to orders come ``by_s`` seconds later than they would."""

    kind: Literal["late"]
    by_s: Annotated[int, Field(ge=1, le=10_000_000)]


class GpuFault(_Fault):
    """What befalls GPU number ``device`` of a machine; at the end it is reset and well."""

    device: Annotated[int, Field(ge=0, le=1023)] = 0


class Hang(GpuFault):
    """Calls of this function of NVML about the GPU do not return."""

    kind: Literal["hang"]
    function: Text = "nvmlDeviceGetName"


class Xid(GpuFault):
    """The driver tells of this XID, and asks for ``action`` (NVML's number; 0: for none)."""

    kind: Literal["xid"]
    xid: Annotated[int, Field(ge=1, le=1023)] = 48
    action: Annotated[int, Field(ge=0, le=7)] = 1


class Lost(GpuFault):
    """The GPU has fallen off the bus."""

    kind: Literal["lost"]


class DriverReload(_Fault):
    """The kernel module is loaded anew, as ``driver`` if that is said: no session survives."""

    kind: Literal["driver-reload"]
    driver: Text | None = None


class PartialCreate(GpuFault):
    """GPU instances can be created, and no compute instance in them."""

    kind: Literal["partial-create"]


class PartialDestroy(GpuFault):
    """Compute instances can be destroyed, and the GPU instances around them cannot."""

    kind: Literal["partial-destroy"]


class LeakedMemory(GpuFault):
    """Memory of the GPU, or of each of its instances, stays in use with nobody on it."""

    kind: Literal["leaked-memory"]
    memory_mib: Annotated[int, Field(ge=1, le=1_000_000)] = 4_096


class Flapping(GpuFault):
    """The driver asks for a reset of the GPU and takes it back, in turn, every ``every_s``."""

    kind: Literal["flapping"]
    every_s: Annotated[int, Field(ge=1, le=3600)] = 15


class ClockJump(_Fault):
    """The machine's wall clock is off by ``by_s`` (below 0: behind); at the end it is right."""

    kind: Literal["clock-jump"]
    by_s: Annotated[int, Field(ge=-10_000_000, le=10_000_000)]


class TwoAgents(_Fault):
    """A second agent speaks for the same boot of the machine, with a journal of its own."""

    kind: Literal["two-agents"]


Fault = Annotated[
    Down
    | Silent
    | DeviceFault
    | CleanFails
    | StopUnanswered
    | Duplicate
    | Late
    | Hang
    | Xid
    | Lost
    | DriverReload
    | PartialCreate
    | PartialDestroy
    | LeakedMemory
    | Flapping
    | ClockJump
    | TwoAgents,
    Field(discriminator="kind"),
]

#: What a light node of the demonstration knows, and what a machine under the real agent does.
LIGHT_KINDS = frozenset(
    {"down", "silent", "device", "clean-fails", "stop-unanswered", "duplicate", "late"}
)
MACHINE_KINDS = frozenset(
    {
        "down",
        "silent",
        "hang",
        "xid",
        "lost",
        "driver-reload",
        "partial-create",
        "partial-destroy",
        "leaked-memory",
        "flapping",
        "clock-jump",
        "two-agents",
    }
)


class FaultPlan(Model):
    """Everything that is to go wrong. A node has one fault of a kind at a time."""

    fault: Annotated[tuple[Fault, ...], Field(max_length=100_000)] = ()

    @model_validator(mode="after")
    def _one_at_a_time(self) -> FaultPlan:
        ends: dict[tuple[object, ...], int | None] = {}
        for one in sorted(self.fault, key=lambda one: one.at_s):
            about = _about(one)
            before = ends.get(about, 0)
            if before is None or one.at_s < before:
                raise ValueError(
                    f"node {one.node}: the {one.kind} fault at {one.at_s} s begins before"
                    " the one ahead of it has ended"
                )
            ends[about] = None if one.for_s is None else one.at_s + one.for_s
        return self


def _about(fault: Fault) -> tuple[object, ...]:
    """Return what two faults may not share at one time; both ways to be away are one thing."""
    if isinstance(fault, (DeviceFault, GpuFault)):
        return (fault.node, fault.kind, fault.device)
    return (fault.node, "away" if isinstance(fault, (Down, Silent)) else fault.kind)


@dataclass(frozen=True, slots=True)
class Turn:
    """A fault begins or ends at ``at_us``."""

    at_us: int
    fault: Fault
    begins: bool


def turns(plan: FaultPlan, start_us: int) -> list[Turn]:
    """Return the beginnings and ends of a plan's faults, in order of time.

    At one instant ends stand before beginnings, so a fault may follow another at once.
    """
    found = []
    for fault in plan.fault:
        begin_us = start_us + fault.at_s * _US
        found.append(Turn(begin_us, fault, begins=True))
        if fault.for_s is not None:
            found.append(Turn(begin_us + fault.for_s * _US, fault, begins=False))
    return sorted(found, key=lambda turn: (turn.at_us, turn.begins))


def check_nodes(
    plan: FaultPlan, devices: Mapping[str, int], kinds: Collection[str] = LIGHT_KINDS
) -> None:
    """Raise `BadFile` when a fault names a node or a device that is not there.

    ``devices`` has the number of devices of each node of the fleet, ``kinds`` are those that
    its nodes know.
    """
    for fault in plan.fault:
        if fault.kind not in kinds:
            raise BadFile(
                f"nodes of this kind know no fault {fault.kind!r}; they know"
                f" {', '.join(sorted(kinds))}"
            )
        if fault.node not in devices:
            raise BadFile(f"the fault plan names node {fault.node!r}, which is not in the fleet")
        if isinstance(fault, (DeviceFault, GpuFault)) and fault.device >= devices[fault.node]:
            raise BadFile(
                f"the fault plan names device {fault.device} of node {fault.node!r},"
                f" which has {devices[fault.node]}"
            )


def read_faults(path: Path) -> FaultPlan:
    """Read a fault plan; raise `BadFile` when it is none."""
    return read_model(path, FaultPlan)
