"""What a policy looks at: what is free on one node, and what of it a need takes."""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ledger.core.state import WHOLE_MILLI

if TYPE_CHECKING:
    from ledger.core.state import Need

__all__ = ["NO_LIMIT", "Ask", "Measure", "Spot", "after", "ask_of"]

#: Stands for CPU or memory that a node did not report: unknown is not short.
NO_LIMIT = 10**12


class Spot(NamedTuple):
    """What is free on one node, of one class of devices.

    ``full`` devices are wholly free; ``rooms`` are the free thousandths of those
    that shares hold in part, ascending.
    """

    cpu_milli: int
    memory_mib: int
    full: int
    rooms: tuple[int, ...]


class Ask(NamedTuple):
    """What of a need makes a difference on a node. ``milli`` 0: whole ``devices``."""

    devices: int
    milli: int
    cpu_milli: int
    memory_mib: int
    device_mib: int

    @property
    def total_milli(self) -> int:
        """Return the thousandths of devices that are asked for."""
        return self.milli or self.devices * WHOLE_MILLI


class Measure(Protocol):
    """A policy for the devices of one class: what is free on a node is worth a number.

    The score of a place is by how much less that is when the place is taken, and the
    `toll`; the place with the highest score, as `grade` makes of it, is taken.
    """

    def worth(self, spot: Spot) -> int:
        """Return what the spot is worth. It must depend on nothing else."""

    def toll(self, ask: Ask) -> int:
        """Return what it costs to take any place of this class."""

    def grade(self, score: int) -> int:
        """Return the score (zero or less, mostly) as it is compared; a higher one is no worse."""


def ask_of(need: Need) -> Ask:
    """Return what of the need makes a difference on a node."""
    milli = need.gpu_milli if need.mode == "share" else 0
    devices = 0 if milli else need.count
    device_mib = need.memory_mib if milli else 0
    return Ask(devices, milli, need.cpu_milli, need.host_memory_mib, device_mib)


def after(spot: Spot, ask: Ask, room: int) -> Spot:
    """Return what is left of the spot, when a share goes to a device with so much ``room``."""
    cpu, memory, full, rooms = spot
    devices, milli, ask_cpu, ask_memory, _ = ask
    if not milli:
        full -= devices
    else:
        left = list(rooms)
        if room == WHOLE_MILLI:
            full -= 1
        else:
            left.remove(room)
        if room > milli:
            insort(left, room - milli)
        rooms = tuple(left)
    return Spot(cpu - ask_cpu, memory - ask_memory, full, rooms)
