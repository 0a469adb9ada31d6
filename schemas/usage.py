"""What nodes put on ``gpuledger.usage``: how what is held was used, measured on the node.

Never on the decision path. What was not measured is missing and never 0: a mean is over the
samples that there are, and ``measured_us`` says how much of the time that is. A record is of
one window, which ends about when it is written; its length is by the node's steady clock, and
when it was is by the log's time. What could not be written in time is not written later.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from schemas.base import MAX_INT, Count, Model, Reference, Text, TimeUs, WholeMib
from schemas.observations import NodeFact, Uuid

__all__ = ["CLOCK_REASONS", "DeviceUsage", "LeaseUsage", "NodeUsage", "ProcessUsage", "SliceUsage"]

#: Bits of ``clock_reasons`` -> why the clocks are lower than they could be.
CLOCK_REASONS = {
    0x01: "gpu-idle",
    0x02: "clocks-set",
    0x04: "sw-power-cap",
    0x08: "hw-slowdown",
    0x10: "sync-boost",
    0x20: "sw-thermal-slowdown",
    0x40: "hw-thermal-slowdown",
    0x80: "hw-power-brake",
    0x100: "display-clocks",
}

Permille = Annotated[int, Field(ge=0, le=1000)]
#: Of a shared device several processes' parts are added, each rounded by the driver.
Added = Annotated[int, Field(ge=0, le=100_000)]
Whole = Annotated[int, Field(ge=0, le=MAX_INT)]
Degrees = Annotated[int, Field(ge=-273, le=1000)]


class Measured(Model):
    """How busy something was: thousandths of ``measured_us`` in which any work ran on it.

    ``sm_permille`` and ``dram_permille`` are the parts of its SMs and of its memory's bandwidth
    that were used, on boards that count them.
    """

    busy_permille: Permille | None = None
    measured_us: TimeUs = 0
    sm_permille: Permille | None = None
    dram_permille: Permille | None = None


class SliceUsage(Measured):
    """A GPU instance, with all compute instances in it: they share its memory and counters."""

    gi: Count
    mig_uuids: Annotated[tuple[Uuid, ...], Field(max_length=16)] = ()
    memory_used_mib: WholeMib | None = None
    memory_total_mib: WholeMib | None = None


class ProcessUsage(Model):
    """A process that had the device open at the end of the window, and whose it says it is."""

    pid: Annotated[int, Field(ge=1, le=MAX_INT)]
    lease: Reference | None = None
    gi: Count | None = None
    memory_mib: WholeMib | None = None
    sm_permille: Permille | None = None
    encoder_permille: Permille | None = None
    decoder_permille: Permille | None = None


class DeviceUsage(Measured):
    """A device: means, what it was at the end (memory), and the most (temperatures).

    ``energy_mj``, PCIe bytes and replays are of the window. ``clock_reasons`` are all that
    were seen (`CLOCK_REASONS`). ``samples`` are those that were taken, ``missing`` says by
    NVML's call why something is not there.
    """

    uuid: Uuid
    samples: Count
    encoder_permille: Permille | None = None
    decoder_permille: Permille | None = None
    memory_used_mib: WholeMib | None = None
    memory_total_mib: WholeMib | None = None
    power_mw: Whole | None = None
    energy_mj: Whole | None = None
    temperature_c: Degrees | None = None
    memory_temperature_c: Degrees | None = None
    sm_mhz: Whole | None = None
    memory_mhz: Whole | None = None
    video_mhz: Whole | None = None
    clock_reasons: Whole | None = None
    pcie_sent_bytes: Whole | None = None
    pcie_received_bytes: Whole | None = None
    pcie_replays: Whole | None = None
    slices: Annotated[tuple[SliceUsage, ...], Field(max_length=64)] = ()
    processes: Annotated[tuple[ProcessUsage, ...], Field(max_length=1024)] = ()
    missing: Annotated[dict[Text, Text], Field(max_length=64)] = Field(default_factory=dict)


class LeaseUsage(Model):
    """How busy one unit was for a lease: thousandths of the unit, over ``measured_us``."""

    lease: Reference
    unit: Uuid
    busy_permille: Added
    measured_us: TimeUs


class NodeUsage(NodeFact):
    """How a node's devices were used in the ``window_us`` before this was written."""

    window_us: TimeUs
    devices: Annotated[tuple[DeviceUsage, ...], Field(max_length=256)]
    leases: Annotated[tuple[LeaseUsage, ...], Field(max_length=4096)] = ()
