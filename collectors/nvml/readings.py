"""What is read of a node and its devices: plain values that cross from the child process.

None is a value that is missing. For a device, ``missing`` says why, by the name of the
call in `calls.CALLS`; what a device has no such thing for is missing as `not-supported`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = [
    "ComputeInstance",
    "Device",
    "DeviceUse",
    "Ecc",
    "Fabric",
    "GpuInstance",
    "Happening",
    "Happenings",
    "Host",
    "InstanceUse",
    "Memory",
    "MigProfile",
    "NvLink",
    "Pci",
    "Process",
    "ProcessUse",
    "Remapped",
    "Sighting",
    "Signs",
    "Vgpu",
]


@dataclass(frozen=True, slots=True)
class Sighting:
    """An entry of NVML's listing. ``index`` is where it stood just then, not who it is (C01).

    Without ``uuid`` the entry could not be read, and ``why`` says so; the others could.
    """

    index: int
    uuid: str | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Host:
    """The node's driver and what it lists. ``why``: NVML itself does not work here.

    ``cuda`` is 1000 x major + 10 x minor.
    """

    why: str = ""
    driver: str | None = None
    library: str | None = None
    cuda: int | None = None
    listed: tuple[Sighting, ...] = ()


@dataclass(frozen=True, slots=True)
class Memory:
    """Device memory (MiB). Without ``reserved_mib`` the driver counts that as used."""

    total_mib: int
    reserved_mib: int | None
    used_mib: int
    free_mib: int


@dataclass(frozen=True, slots=True)
class Pci:
    """Where it is plugged in, as sysfs writes it, and how wide its link is now."""

    address: str
    device_id: int
    subsystem_id: int
    generation: int | None = None
    width: int | None = None


@dataclass(frozen=True, slots=True)
class MigProfile:
    """A GPU instance profile: ``enum`` is what NVML lists it by, ``id`` what it is created by.

    ``starts`` and ``size`` are in placement units. ``name`` is None where the driver is too
    old to say it: it is never computed.
    """

    enum: int
    id: int
    name: str | None
    slices: int
    memory_mib: int
    most: int
    sms: int
    copy_engines: int
    decoders: int
    encoders: int
    jpegs: int
    ofas: int
    size: int
    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ComputeInstance:
    """A compute instance, as a MIG device. ``start`` is in the slices of its GPU instance.

    What only the listing knows (``start``, ``profile``) is None for one that only the walk
    found; ``uuid`` is None for one whose MIG device could not be read. ``used_mib`` is of
    its whole GPU instance: compute instances of one share their memory.
    """

    ci: int
    slices: int
    uuid: str | None
    profile: int | None = None
    start: int | None = None
    name: str | None = None
    used_mib: int | None = None


@dataclass(frozen=True, slots=True)
class GpuInstance:
    """A GPU instance. Without ``compute`` it takes its place, and no walk sees it.

    ``profile``, ``start`` and ``size`` are None for one that only the walk found, which is
    so when the right to list instances is missing.
    """

    gi: int
    profile: int | None
    start: int | None
    size: int | None
    compute: tuple[ComputeInstance, ...] = ()


@dataclass(frozen=True, slots=True)
class Process:
    """A process on a device; ``kind`` is compute, graphics or mps. No gi: not in MIG mode."""

    pid: int
    kind: str
    used_mib: int | None = None
    gi: int | None = None
    ci: int | None = None


@dataclass(frozen=True, slots=True)
class Ecc:
    """Whether ECC is on, and errors since the driver was loaded and ever."""

    enabled: bool
    pending: bool
    corrected: int | None = None
    uncorrected: int | None = None
    corrected_ever: int | None = None
    uncorrected_ever: int | None = None


@dataclass(frozen=True, slots=True)
class Remapped:
    """Rows of memory that were replaced; ``pending`` needs a reset, ``failed`` a new card."""

    corrected: int
    uncorrected: int
    pending: bool
    failed: bool


@dataclass(frozen=True, slots=True)
class NvLink:
    """A link that is there. ``remote`` is the other end's PCI address, None for a switch."""

    link: int
    active: bool
    remote: str | None = None


@dataclass(frozen=True, slots=True)
class Fabric:
    """The NVLink fabric over nodes: devices of one cluster and clique reach each other."""

    cluster: str
    clique: int


@dataclass(frozen=True, slots=True)
class Vgpu:
    """A type of vGPU. With ``gi_profile`` it is backed by a GPU instance of that profile."""

    id: int
    name: str
    most: int
    memory_mib: int
    creatable: bool
    gi_profile: int | None = None


@dataclass(frozen=True, slots=True)
class Device:
    """One device, whole. ``why``: it could not be read, and all but its UUID may be missing.

    ``mig`` and ``mig_pending`` are None on a device that has no MIG. ``instances`` and
    ``profiles`` are what the device says, ``instances_why`` why the listing of instances is
    not to be relied on. ``recovery_action`` is the driver's own verdict, 0 for none.
    """

    uuid: str
    why: str = ""
    model: str | None = None
    serial: str | None = None
    vbios: str | None = None
    minor: int | None = None
    architecture: int | None = None
    capability: tuple[int, int] | None = None
    memory: Memory | None = None
    pci: Pci | None = None
    numa: int | None = None
    persistence: bool | None = None
    compute_mode: int | None = None
    virtualization: int | None = None
    mig: bool | None = None
    mig_pending: bool | None = None
    profiles: tuple[MigProfile, ...] = ()
    instances: tuple[GpuInstance, ...] = ()
    instances_why: str = ""
    processes: tuple[Process, ...] | None = None
    ecc: Ecc | None = None
    remapped: Remapped | None = None
    recovery_action: int | None = None
    nvlinks: tuple[NvLink, ...] | None = None
    fabric: Fabric | None = None
    vgpus: tuple[Vgpu, ...] | None = None
    encoder_sessions: int | None = None
    encoder_capacity_percent: int | None = None
    missing: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Happening:
    """An event. ``xid`` is set for an XID; 999 is one that NVML does not know.

    Without ``gi`` the whole device is meant, without ``ci`` the whole GPU instance. ``uuid``
    is None where the device could not say who it is any more.
    """

    uuid: str | None
    type: int
    xid: int | None = None
    gi: int | None = None
    ci: int | None = None


@dataclass(frozen=True, slots=True)
class Happenings:
    """What has happened since the last question. ``why``: nothing can be known now.

    ``lost``: some GPU is gone, without saying which. ``missing`` are the devices whose events
    are not delivered, and why.
    """

    events: tuple[Happening, ...] = ()
    lost: bool = False
    why: str = ""
    missing: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Signs:
    """How a device is, of what is told of it at any time. ``why``: it could not be asked.

    ``recovery_action`` is the driver's own verdict, 0: nothing is to be done. At ``slowdown_c``
    the board slows itself down; ``clock_reasons`` are NVML's bits of why clocks are low. ECC
    errors count from when the driver was loaded, or the device was reset.
    """

    uuid: str
    why: str = ""
    recovery_action: int | None = None
    temperature_c: int | None = None
    slowdown_c: int | None = None
    clock_reasons: int | None = None
    corrected: int | None = None
    uncorrected: int | None = None
    rows_pending: bool | None = None
    rows_failed: bool | None = None


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """How much a process used the device, by the driver's stamp of the sample (us)."""

    pid: int
    at_us: int
    sm_percent: int
    memory_percent: int
    encoder_percent: int
    decoder_percent: int


@dataclass(frozen=True, slots=True)
class InstanceUse:
    """A GPU instance, all its compute instances together: ``units`` are their UUIDs.

    Memory is in MiB. The counters are of the time since the sample before, in thousandths:
    that anything ran, of its SMs, of its memory's bandwidth.
    """

    gi: int
    used_mib: int | None = None
    total_mib: int | None = None
    units: tuple[str, ...] = ()
    busy_permille: int | None = None
    sm_permille: int | None = None
    dram_permille: int | None = None


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """One sample of a device. In MIG mode NVML tells no utilisation: GPM has it instead.

    Energy, PCIe bytes and replays are counters since the driver was loaded; PCIe rates are
    told by a slow sample only. ``holders`` are the processes that have the device open.
    """

    uuid: str
    why: str = ""
    memory: Memory | None = None
    gpu_percent: int | None = None
    memory_percent: int | None = None
    encoder_percent: int | None = None
    decoder_percent: int | None = None
    power_mw: int | None = None
    energy_mj: int | None = None
    temperature_c: int | None = None
    memory_temperature_c: int | None = None
    graphics_mhz: int | None = None
    sm_mhz: int | None = None
    memory_mhz: int | None = None
    video_mhz: int | None = None
    clock_reasons: int | None = None
    pcie_sent_kb_s: int | None = None
    pcie_received_kb_s: int | None = None
    pcie_sent_bytes: int | None = None
    pcie_received_bytes: int | None = None
    pcie_replays: int | None = None
    sm_permille: int | None = None
    dram_permille: int | None = None
    instances: tuple[InstanceUse, ...] = ()
    processes: tuple[ProcessUse, ...] | None = None
    holders: tuple[Process, ...] | None = None
    missing: dict[str, str] = field(default_factory=dict)
