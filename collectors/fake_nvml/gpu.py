"""One fake GPU: its state, and its MIG instances changed as a driver changes them.

Every change returns a `Code` and does nothing unless it is `Code.SUCCESS`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha1
from typing import TYPE_CHECKING
from uuid import UUID

from collectors.nvml.codes import Code

if TYPE_CHECKING:
    from collections.abc import Iterator

    from collectors.fake_nvml.boards import Board, Shape

__all__ = [
    "CI_PROFILES",
    "ComputeInstance",
    "FakeGpu",
    "GpuInstance",
    "Process",
    "VgpuType",
    "gpu_uuid",
]

#: Compute instance profiles: the id, which equals the enum, and its compute slices.
CI_PROFILES = {0: 1, 1: 2, 2: 3, 3: 4, 4: 7, 5: 8, 6: 6}

#: The most media extensions that a board has to give: one set.
_ONE_SET = 1


def gpu_uuid(node: str, index: int) -> str:
    """Return the UUID of a fake node's GPU, the same for the same names."""
    digest = sha1(f"{node}/{index}".encode(), usedforsecurity=False).digest()[:16]
    return f"GPU-{UUID(bytes=digest)}"


@dataclass(slots=True)
class Process:
    """A process on a GPU. ``kind`` is compute, graphics or mps; without ``gi``: no MIG."""

    pid: int
    memory_mib: int | None
    kind: str = "compute"
    gi: int | None = None
    ci: int | None = None
    sm_percent: int = 0


@dataclass(frozen=True, slots=True)
class VgpuType:
    """A type of vGPU; ``gi_profile`` is the GPU instance profile of one backed by MIG."""

    id: int
    name: str
    most: int
    memory_mib: int
    gi_profile: int | None = None
    creatable: bool = True


@dataclass(slots=True, eq=False)
class ComputeInstance:
    """A compute instance: its place in the compute slices of its GPU instance.

    ``slot`` is its index in a walk over the MIG devices: those that went leave gaps.
    """

    id: int
    profile: int
    start: int
    size: int
    uuid: str
    syspipe: int
    slot: int


@dataclass(slots=True, eq=False)
class GpuInstance:
    """A GPU instance. ``stuck`` destroys of it are refused as in use, with nobody in sight.

    ``leaked_mib`` is memory that stays in use although no process is left.
    """

    id: int
    shape: Shape
    start: int
    compute: list[ComputeInstance] = field(default_factory=list)
    stuck: int = 0
    leaked_mib: int = 0

    @property
    def units(self) -> range:
        """The placement units it takes."""
        return range(self.start, self.start + self.shape.size)


@dataclass(slots=True, eq=False)
class FakeGpu:
    """A GPU. Set its fields as the case needs; what is None is not supported.

    ``clients`` hold the device open without being listed (a monitoring agent): a change of
    MIG mode then finds it in use. ``shifted`` is added to the syspipe of new compute
    instances, so that a recreated instance gets another UUID; by default it gets the same.
    """

    board: Board
    uuid: str
    minor: int = 0
    bus: int = 1
    domain: int = 0
    slot: int = 0
    serial: str | None = None
    numa: int | None = 0
    listed: bool = True
    lost: bool = False
    mig: int | None = None
    mig_pending: int | None = None
    instances: dict[int, GpuInstance] = field(default_factory=dict)
    halves: tuple[int, int] | None = None
    shifted: int = 0
    clients: int = 0
    #: The driver's stamp (us) of processes' use; None: whatever is asked for is new.
    use_stamp_us: int | None = None
    processes: list[Process] = field(default_factory=list)
    base_mib: int = 0
    leaked_mib: int = 0
    ecc: bool | None = True
    #: (corrected or uncorrected, volatile or aggregate) as NVML numbers them -> count.
    ecc_errors: dict[tuple[int, int], int] = field(default_factory=dict)
    #: Rows remapped for corrected and uncorrected errors, pending, failed.
    remapped: tuple[int, int, int, int] | None = (0, 0, 0, 0)
    recovery_action: int | None = 0
    #: Link -> PCI address of the other end, None for an NVSwitch.
    nvlinks: dict[int, str | None] = field(default_factory=dict)
    #: (cluster UUID, clique) of the NVLink fabric.
    fabric: tuple[str, int] | None = None
    virtualization: int = 0
    vgpu_types: tuple[VgpuType, ...] = ()
    persistence: bool = True
    compute_mode: int = 0
    #: Percent, None: not supported. The last three are encoder, decoder and JPEG.
    utilization: tuple[int, int] | None = (0, 0)
    media_percent: tuple[int, int] | None = (0, 0)
    encoder_stats: tuple[int, int, int] = (0, 0, 0)
    power_mw: int | None = 60_000
    energy_mj: int | None = 0
    temperature_c: int | None = 30
    memory_temperature_c: int | None = None
    slowdown_c: int | None = 90
    #: Graphics, SM, memory, video (MHz).
    clocks_mhz: tuple[int, int, int, int] = (345, 345, 1_593, 765)
    clock_reasons: int = 1
    pcie_kb_s: tuple[int, int] = (0, 0)
    pcie_replays: int = 0
    #: Bytes sent and received since the driver was loaded.
    pcie_bytes: tuple[int, int] | None = (0, 0)
    pcie_width: int | None = None
    #: GPM metric -> value, for the whole device and for each GPU instance.
    gpm: dict[int, float] = field(default_factory=dict)
    gpm_of: dict[int, dict[int, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Turn MIG off on a board that can, and leave it unsupported on one that cannot."""
        if self.board.shapes and self.mig is None:
            self.mig = 0
        if self.mig_pending is None:
            self.mig_pending = self.mig
        if not self.board.remaps:
            self.remapped = None

    @property
    def pci_address(self) -> str:
        """The PCI address as NVML writes it."""
        return f"{self.domain:08X}:{self.bus:02X}:{self.slot:02X}.0"

    # -- MIG mode ----------------------------------------------------------------

    def set_mig(self, mode: int) -> tuple[Code, Code]:
        """Change the mode; return the call's code and the activation status.

        A device that is in use keeps its mode, and the change stays pending.
        """
        if self.mig is None:
            return Code.NOT_SUPPORTED, Code.NOT_SUPPORTED
        self.mig_pending = mode
        if mode == self.mig:
            return Code.SUCCESS, Code.SUCCESS
        if self.processes or self.clients or (self.instances and not mode):
            return Code.SUCCESS, Code.IN_USE
        if self.board.mig_resets and self.virtualization == 1:
            # A guest cannot reset what is passed through to it.
            return Code.SUCCESS, Code.RESET_REQUIRED
        self.mig = mode
        return Code.SUCCESS, Code.SUCCESS

    def reset(self) -> None:
        """Reset the device: what is pending takes effect, instances are gone."""
        self.mig = self.mig_pending
        self.instances.clear()
        self.processes.clear()
        self.leaked_mib, self.lost, self.recovery_action = 0, False, 0

    def reboot(self) -> None:
        """Reset, and lose the MIG mode where it lives in the kernel module only."""
        if not self.board.mig_resets and self.mig is not None:
            self.mig_pending = 0
        self.reset()

    # -- GPU instances -----------------------------------------------------------

    def free_places(self, shape: Shape) -> list[int]:
        """Return where another instance of the profile could start now."""
        if len(self._of(shape)) >= shape.most or self._media_excludes(shape):
            return []
        taken = {unit for one in self.instances.values() for unit in one.units}
        return [
            start for start in shape.starts if taken.isdisjoint(range(start, start + shape.size))
        ]

    def _of(self, shape: Shape) -> list[GpuInstance]:
        return [one for one in self.instances.values() if one.shape is shape]

    def _media_excludes(self, shape: Shape) -> bool:
        """Say whether the board's media extensions are in the way: there is one set."""
        others = [one.shape.name for one in self.instances.values()]
        if any(name.endswith("+me.all") for name in others):
            return not shape.name.endswith("-me")
        if shape.name.endswith("+me.all"):
            return any(not name.endswith("-me") for name in others)
        media = sum(one.shape.has_media for one in self.instances.values())
        return shape.has_media and media >= _ONE_SET

    def create_gi(self, profile: int, start: int | None) -> tuple[Code, GpuInstance | None]:
        """Create an instance of the profile id, at a place or at the driver's choice."""
        shape = next((one for one in self.board.shapes if one.id == profile), None)
        if not self.mig:
            return Code.NOT_SUPPORTED, None
        if shape is None or (start is not None and start not in shape.starts):
            return Code.INVALID_ARGUMENT, None
        free = self.free_places(shape)
        if not free or (start is not None and start not in free):
            return Code.INSUFFICIENT_RESOURCES, None
        # Without a place the driver begins at the end, which is why order then matters.
        made = GpuInstance(0, shape, max(free) if start is None else start)
        made.id = self._gi_id(shape.size, made.start)
        self.instances[made.id] = made
        return Code.SUCCESS, made

    def _gi_id(self, size: int, start: int) -> int:
        """Number places as a heap: the whole is 0, halves 1 and 2, quarters 3 to 6."""
        parts = self.board.units // size
        place = start // size
        number = (self.halves or self.board.halves)[place] if parts == 2 else parts - 1 + place
        while number in self.instances:
            number += 1
        return number

    def destroy_gi(self, instance: GpuInstance) -> Code:
        """Destroy an instance: refused while it has compute instances or a hidden holder."""
        if self.instances.get(instance.id) is not instance:
            return Code.NOT_FOUND
        if instance.compute:
            return Code.IN_USE
        if instance.stuck:
            instance.stuck -= 1
            return Code.IN_USE
        del self.instances[instance.id]
        return Code.SUCCESS

    # -- compute instances -------------------------------------------------------

    def free_ci_places(self, instance: GpuInstance, profile: int) -> list[int]:
        """Return where another compute instance of the profile could start in it."""
        size = CI_PROFILES.get(profile, 0)
        taken = {at for one in instance.compute for at in range(one.start, one.start + one.size)}
        last = instance.shape.slices - size
        starts = range(last + 1) if size else ()
        return [at for at in starts if taken.isdisjoint(range(at, at + size))]

    def create_ci(
        self, instance: GpuInstance, profile: int, start: int | None
    ) -> tuple[Code, ComputeInstance | None]:
        """Create a compute instance; its UUID is a function of device, instance and syspipe."""
        size = CI_PROFILES.get(profile)
        if size is None or size > instance.shape.slices:
            return Code.NOT_SUPPORTED, None
        free = self.free_ci_places(instance, profile)
        if not free or (start is not None and start not in free):
            return Code.INSUFFICIENT_RESOURCES, None
        number = min(set(range(8)) - {one.id for one in instance.compute})
        used = {one.syspipe for _, one in self.compute()}
        syspipe = min(set(range(self.shifted, self.shifted + 16)) - used)
        slot = min(set(range(16)) - {one.slot for _, one in self.compute()})
        uuid = self._mig_uuid(instance.id, syspipe)
        place = free[0] if start is None else start
        made = ComputeInstance(number, profile, place, size, uuid, syspipe, slot)
        instance.compute.append(made)
        return Code.SUCCESS, made

    def _mig_uuid(self, gi: int, syspipe: int) -> str:
        digest = sha1(f"{self.uuid}/{gi}/{syspipe}".encode(), usedforsecurity=False).digest()[:16]
        return f"MIG-{UUID(bytes=digest, version=5)}"

    def destroy_ci(self, instance: GpuInstance, one: ComputeInstance) -> Code:
        """Destroy a compute instance: refused while a process is in it."""
        if one not in instance.compute:
            return Code.NOT_FOUND
        if any((each.gi, each.ci) == (instance.id, one.id) for each in self.processes):
            return Code.IN_USE
        instance.compute.remove(one)
        return Code.SUCCESS

    def compute(self) -> Iterator[tuple[GpuInstance, ComputeInstance]]:
        """Yield the compute instances, by GPU instance."""
        for number in sorted(self.instances):
            for one in self.instances[number].compute:
                yield self.instances[number], one

    # -- memory ------------------------------------------------------------------

    def used_mib(self, gi: int | None = None) -> int:
        """Return the memory in use, of the device or of one GPU instance (MiB)."""
        inside = [each for each in self.processes if gi is None or each.gi == gi]
        busy = sum(each.memory_mib or 0 for each in inside)
        if gi is not None:
            one = self.instances[gi]
            idle = self.board.idle_mib
            return busy + one.leaked_mib + idle.get(one.shape.slices, max(idle.values()))
        leaked = sum(one.leaked_mib for one in self.instances.values())
        return busy + leaked + self.leaked_mib + self.base_mib
