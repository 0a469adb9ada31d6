"""A fake node: its GPUs, its driver, the handles it has given out, and its faults."""

from __future__ import annotations

import time
from collections import deque
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

from collectors.fake_nvml.boards import BOARDS
from collectors.fake_nvml.faults import CallHung, Fault
from collectors.fake_nvml.gpu import ComputeInstance, FakeGpu, GpuInstance, gpu_uuid
from collectors.nvml.codes import NO_VALUE, Code

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["ALL_RIGHTS", "NODE", "Event", "EventSet", "FakeNode", "Part", "make_node", "on"]

#: What a process may: change MIG mode; create, destroy and list instances; see all processes.
ALL_RIGHTS = frozenset({"admin", "mig-config", "processes"})

#: A process that is one node sleeps this long in a hanging call; its watchdog is quicker.
_FOR_EVER_S = 86_400

#: The node on which NVML's functions work: one process can be many nodes.
NODE: ContextVar[FakeNode] = ContextVar("fake_nvml_node")


@dataclass(frozen=True, slots=True)
class Event:
    """What an event set delivers. Without ``gi`` the whole GPU is meant."""

    gpu: FakeGpu
    type: int
    data: int
    gi: int = NO_VALUE
    ci: int = NO_VALUE


@dataclass(slots=True, eq=False)
class EventSet:
    """Which events of which GPUs are wanted, and those that wait. Earlier ones are not."""

    masks: dict[str, int] = field(default_factory=dict)
    waiting: deque[Event] = field(default_factory=deque)
    #: A GPU was lost: one wait says so, without naming it.
    lost: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """What a handle inside a GPU stands for. ``kind`` is gi, ci, or mig: a MIG device."""

    kind: str
    gpu: FakeGpu
    instance: GpuInstance
    compute: ComputeInstance | None = None

    @property
    def uuid(self) -> str:
        """The UUID of the GPU that it is a part of."""
        return self.gpu.uuid

    @property
    def alive(self) -> bool:
        """Whether it has not been destroyed."""
        there = self.gpu.instances.get(self.instance.id) is self.instance
        return there and (self.compute is None or self.compute in self.instance.compute)


@dataclass(slots=True, eq=False)
class FakeNode:
    """A node. ``alone``: this process is no other node, so a hanging call really hangs.

    ``missing`` are symbols that the library does not have. ``initialized`` counts the
    sessions that were opened and not shut down.
    """

    gpus: list[FakeGpu] = field(default_factory=list)
    driver: str = "590.48.01"
    library: str = "590.48.01"
    cuda: int = 13_010
    rights: frozenset[str] = ALL_RIGHTS
    missing: frozenset[str] = frozenset()
    faults: list[Fault] = field(default_factory=list)
    alone: bool = False
    initialized: int = 0
    calls: int = 0
    sets: list[EventSet] = field(default_factory=list)
    _handles: dict[int, Any] = field(default_factory=dict)
    _addresses: dict[int, int] = field(default_factory=dict)
    _parts: dict[tuple[str, int], Part] = field(default_factory=dict)
    _next: Iterator[int] = field(default_factory=lambda: count(0x1000, 16))

    # -- handles -----------------------------------------------------------------

    def handle(self, thing: Any) -> int:
        """Return the address that stands for a thing, the same as long as it lives."""
        known = self._addresses.get(id(thing))
        if known is None:
            known = self._addresses[id(thing)] = next(self._next)
            # Holding the thing keeps its id from being given to another.
            self._handles[known] = thing
        return known

    def thing(self, address: int | None) -> Any:
        """Return what an address stands for; None for a handle that is not or no longer one."""
        return self._handles.get(address or 0)

    def part(
        self, kind: str, gpu: FakeGpu, instance: GpuInstance, compute: ComputeInstance | None = None
    ) -> int:
        """Return the address of a part of a GPU, the same as long as the part lives."""
        key = (kind, id(instance if compute is None else compute))
        if key not in self._parts:
            self._parts[key] = Part(kind, gpu, instance, compute)
        return self.handle(self._parts[key])

    def forget_handles(self, gpu: FakeGpu | None = None) -> None:
        """Make the handles of a GPU and its parts invalid, as a reset does; None: all there are.

        It is in no event set any more; the sets stay, with the other GPUs in them.
        """
        if gpu is None:
            self._parts.clear()
            self._handles.clear()
            self._addresses.clear()
            return
        self._parts = {key: part for key, part in self._parts.items() if part.gpu is not gpu}
        for address, thing in list(self._handles.items()):
            if thing is gpu or (isinstance(thing, Part) and thing.gpu is gpu):
                del self._handles[address], self._addresses[id(thing)]
        for one in self.sets:
            one.masks.pop(gpu.uuid, None)

    # -- what happens to the node ------------------------------------------------

    @property
    def listed(self) -> list[FakeGpu]:
        """The GPUs that have an index now, in order of PCI address."""
        return sorted((one for one in self.gpus if one.listed), key=lambda one: one.pci_address)

    def gpu(self, uuid: str) -> FakeGpu:
        """Return a GPU by UUID."""
        return next(one for one in self.gpus if one.uuid == uuid)

    def reboot(self) -> None:
        """Restart the machine."""
        for one in self.gpus:
            one.reboot()
        self._drop_sessions()

    def reload_driver(self, driver: str | None = None) -> None:
        """Load the kernel module anew, in another version if one is named."""
        self.driver = self.library = driver or self.driver
        for one in self.gpus:
            one.reboot()
        self._drop_sessions()

    def _drop_sessions(self) -> None:
        self.forget_handles()
        self.sets.clear()
        self.initialized = 0

    def lose(self, gpu: FakeGpu) -> None:
        """Let a GPU fall off the bus. Event sets say that one is lost, not which."""
        gpu.lost = True
        for one in self.sets:
            one.lost = one.lost or gpu.uuid in one.masks

    def happen(self, event: Event) -> None:
        """Deliver an event to the sets that asked for it."""
        for one in self.sets:
            if one.masks.get(event.gpu.uuid, 0) & event.type:
                one.waiting.append(event)

    def fault(self, function: str, gpu: str | None) -> Fault | None:
        """Return the fault that strikes this call; counts it."""
        return next((one for one in self.faults if one.strikes(function, gpu)), None)

    def strike(self, fault: Fault, gpu: str | None) -> Code:
        """Let a call go wrong; raise `CallHung` where it hangs and this process is many nodes."""
        if isinstance(fault.does, Code):
            return fault.does
        if not self.alone:
            raise CallHung(fault.function, gpu)
        time.sleep(_FOR_EVER_S)
        return Code.TIMEOUT


@contextmanager
def on(node: FakeNode) -> Iterator[FakeNode]:
    """Let NVML's functions work on this node for the block."""
    token = NODE.set(node)
    try:
        yield node
    finally:
        NODE.reset(token)


def make_node(name: str, boards: Sequence[str], *, mig: bool = False) -> FakeNode:
    """Return a node with these boards (see `boards.BOARDS`), with MIG on where it can be.

    The same name makes the same UUIDs, as two boots of one machine do.
    """
    gpus = []
    for index, board in enumerate(boards):
        kind = BOARDS[board]
        one = FakeGpu(kind, gpu_uuid(name, index), minor=index, bus=index + 1)
        if mig and kind.shapes:
            one.mig = one.mig_pending = 1
        gpus.append(one)
    return FakeNode(gpus)
