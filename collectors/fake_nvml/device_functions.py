"""Fake functions of one device: identity, health, processes, media, use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from collectors.fake_nvml.gpu import FakeGpu, Process
from collectors.fake_nvml.node import Part
from collectors.fake_nvml.pointers import (
    address_of,
    fill,
    get_field,
    number,
    put,
    put_text,
    set_field,
    target,
)
from collectors.nvml.codes import NO_VALUE, Code

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from collectors.fake_nvml.node import FakeNode

__all__ = ["FUNCTIONS", "device_of"]

_MIB = 1_048_576
#: What NVML says for memory that it does not know.
_NO_MEMORY = 0xFFFF_FFFF_FFFF_FFFF


def device_of(node: FakeNode, handle: Any) -> FakeGpu | Part | Code:
    """Return the GPU or MIG device of a handle, or why there is none."""
    thing = node.thing(address_of(handle))
    if isinstance(thing, FakeGpu):
        return Code.GPU_IS_LOST if thing.lost else thing
    if isinstance(thing, Part) and thing.kind == "mig":
        if thing.gpu.lost:
            return Code.GPU_IS_LOST
        return thing if thing.alive else Code.NOT_FOUND
    return Code.INVALID_ARGUMENT


def _of_gpu(work: Callable[..., Code]) -> Callable[..., Code]:
    """Make a function of a GPU; on a MIG device it is not supported."""

    def call(node: FakeNode, handle: Any, *rest: Any) -> Code:
        found = device_of(node, handle)
        if isinstance(found, Code):
            return found
        return work(node, found, *rest) if isinstance(found, FakeGpu) else Code.NOT_SUPPORTED

    return call


def _text(read: Callable[[FakeGpu], str | None]) -> Callable[..., Code]:
    """Make a function that writes one text."""

    def work(node: FakeNode, gpu: FakeGpu, buffer: Any, length: Any) -> Code:
        value = read(gpu)
        if value is None:
            return Code.NOT_SUPPORTED
        put_text(buffer, value)
        return Code.SUCCESS

    return _of_gpu(work)


def _numbers(read: Callable[..., Iterable[int | None] | None]) -> Callable[..., Code]:
    """Make a function that writes numbers to its last arguments; what is before is asked."""

    def work(node: FakeNode, gpu: FakeGpu, *rest: Any) -> Code:
        asked = [one for one in rest if not hasattr(one, "_obj")]
        values = read(gpu, *map(number, asked))
        if values is None:
            return Code.NOT_SUPPORTED
        for place, value in zip(rest[len(asked) :], values, strict=True):
            if value is None:
                return Code.NOT_SUPPORTED
            put(place, value)
        return Code.SUCCESS

    return _of_gpu(work)


def _no_mig(read: Callable[[FakeGpu], Any]) -> Callable[[FakeGpu], Any]:
    """Make a reading that a device in MIG mode does not give."""
    return lambda gpu: None if gpu.mig else read(gpu)


# -- identity --------------------------------------------------------------------


def _uuid(node: FakeNode, handle: Any, buffer: Any, length: Any) -> Code:
    found = device_of(node, handle)
    if isinstance(found, Code):
        return found
    one = found.compute if isinstance(found, Part) else None
    put_text(buffer, found.uuid if one is None else one.uuid)
    return Code.SUCCESS


def _name(node: FakeNode, handle: Any, buffer: Any, length: Any) -> Code:
    found = device_of(node, handle)
    if isinstance(found, Code):
        return found
    if isinstance(found, Part):
        put_text(buffer, f"{found.gpu.board.model} MIG {found.instance.shape.name}")
    else:
        put_text(buffer, found.board.model)
    return Code.SUCCESS


def _memory(node: FakeNode, handle: Any, memory: Any) -> Code:
    found = device_of(node, handle)
    if isinstance(found, Code):
        return found
    if isinstance(found, Part):
        total, reserved = found.instance.shape.memory_mib, 0
        used = found.gpu.used_mib(found.instance.id)
    else:
        total, reserved = found.board.memory_mib, found.board.reserved_mib
        used = found.used_mib()
    free = max(0, total - reserved - used)
    fill(
        target(memory),
        total=total * _MIB,
        reserved=reserved * _MIB,
        used=used * _MIB,
        free=free * _MIB,
    )
    return Code.SUCCESS


def _pci(node: FakeNode, gpu: FakeGpu, info: Any) -> Code:
    fill(
        target(info),
        domain=gpu.domain,
        bus=gpu.bus,
        device=gpu.slot,
        pciDeviceId=gpu.board.device_id,
        pciSubSystemId=0,
        busId=gpu.pci_address.encode(),
        busIdLegacy=gpu.pci_address[4:].encode(),
    )
    return Code.SUCCESS


# -- processes -------------------------------------------------------------------


def _processes(kind: str) -> Callable[..., Code]:
    def call(node: FakeNode, handle: Any, count: Any, into: Any) -> Code:
        found = device_of(node, handle)
        if isinstance(found, Code):
            return found
        if isinstance(found, Part):
            one = found.compute
            place = (found.instance.id, None if one is None else one.id)
            listed = [each for each in found.gpu.processes if (each.gi, each.ci) == place]
        else:
            listed = found.processes if _sees_all(node, found) else []
        return _write(count, into, [each for each in listed if each.kind == kind], _process)

    return call


def _sees_all(node: FakeNode, gpu: FakeGpu) -> bool:
    """Say whether the list of a device in MIG mode is more than an empty one: not an error."""
    return not gpu.mig or "processes" in node.rights


def _process(struct: Any, one: Process) -> None:
    memory = _NO_MEMORY if one.memory_mib is None else one.memory_mib * _MIB
    gi, ci = (NO_VALUE if each is None else each for each in (one.gi, one.ci))
    fill(struct, pid=one.pid, usedGpuMemory=memory, gpuInstanceId=gi, computeInstanceId=ci)


def _write(count: Any, into: Any, items: list[Any], put_one: Callable[[Any, Any], None]) -> Code:
    """Fill an array as NVML does: first it is asked for the size, then for the content."""
    space = 0 if into is None else number(target(count))
    put(count, len(items))
    if len(items) > space:
        return Code.INSUFFICIENT_SIZE
    for at, one in enumerate(items):
        put_one(into[at], one)
    return Code.SUCCESS


# -- health ----------------------------------------------------------------------

#: Field of `nvmlDeviceGetFieldValues` -> its value; None: not supported.
_FIELDS: dict[int, Callable[[FakeGpu], int | None]] = {
    82: lambda gpu: gpu.memory_temperature_c,
    83: lambda gpu: gpu.energy_mj,
    91: lambda gpu: None if gpu.mig else len(gpu.nvlinks),
    94: lambda gpu: gpu.pcie_replays,
    184: lambda gpu: int(not gpu.board.mig_resets) if gpu.board.shapes else None,
    185: lambda gpu: gpu.power_mw,
    186: lambda gpu: gpu.power_mw,
    197: lambda gpu: None if gpu.pcie_bytes is None else gpu.pcie_bytes[0],
    198: lambda gpu: None if gpu.pcie_bytes is None else gpu.pcie_bytes[1],
    199: lambda gpu: 0 if gpu.board.shapes else None,
    230: lambda gpu: gpu.recovery_action,
}
#: NVML's number for a value that is an unsigned integer of 64 bits.
_UNSIGNED = 3


def _fields(node: FakeNode, gpu: FakeGpu, count: Any, values: Any) -> Code:
    for one in target(values):
        read = _FIELDS.get(get_field(one, "fieldId"))
        value = None if read is None else read(gpu)
        if value is None:
            set_field(one, "nvmlReturn", Code.NOT_SUPPORTED)
        else:
            set_field(one, "nvmlReturn", Code.SUCCESS)
            set_field(one, "valueType", _UNSIGNED)
            get_field(one, "value").ullVal = value
    return Code.SUCCESS


def _ecc_errors(gpu: FakeGpu, kind: int, counter: int) -> tuple[int] | None:
    return (gpu.ecc_errors.get((kind, counter), 0),) if gpu.ecc else None


def _histogram(node: FakeNode, gpu: FakeGpu, values: Any) -> Code:
    if gpu.remapped is None or gpu.mig:
        return Code.NOT_SUPPORTED
    fill(target(values), max=192, high=0, partial=0, low=0, none=0)
    return Code.SUCCESS


# -- links -----------------------------------------------------------------------

#: NVML's numbers for what is at the other end of an NVLink.
_GPU_END, _SWITCH_END = 0, 2
_FABRIC_COMPLETED = 3


def _remote_type(gpu: FakeGpu, link: int) -> tuple[int] | None:
    if gpu.mig or link not in gpu.nvlinks:
        return None
    return (_SWITCH_END if gpu.nvlinks[link] is None else _GPU_END,)


def _remote_pci(node: FakeNode, gpu: FakeGpu, link: Any, info: Any) -> Code:
    remote = gpu.nvlinks.get(number(link))
    if gpu.mig or remote is None:
        return Code.NOT_SUPPORTED
    fill(target(info), busId=remote.encode())
    return Code.SUCCESS


def _fabric(node: FakeNode, gpu: FakeGpu, info: Any) -> Code:
    struct = target(info)
    if gpu.fabric is None:
        fill(struct, state=0)
        return Code.NOT_SUPPORTED
    cluster, clique = gpu.fabric
    digits = bytes.fromhex(cluster.replace("-", ""))
    struct.clusterUuid = type(struct.clusterUuid)(*digits)
    fill(struct, cliqueId=clique, state=_FABRIC_COMPLETED, status=0)
    return Code.SUCCESS


#: NVML's number of the temperature at which the board slows itself down.
_SLOWDOWN = 1


# -- use -------------------------------------------------------------------------


def _utilization(node: FakeNode, gpu: FakeGpu, info: Any) -> Code:
    if gpu.utilization is None or gpu.mig:
        return Code.NOT_SUPPORTED
    fill(target(info), gpu=gpu.utilization[0], memory=gpu.utilization[1])
    return Code.SUCCESS


def _process_use(node: FakeNode, gpu: FakeGpu, into: Any, count: Any, since: Any) -> Code:
    if gpu.mig:
        return Code.NOT_SUPPORTED
    stamp_us = gpu.use_stamp_us
    if not gpu.processes or (stamp_us is not None and stamp_us <= number(since)):
        return Code.NOT_FOUND
    return _write(count, into, gpu.processes, lambda struct, one: fill(
        struct, pid=one.pid, timeStamp=stamp_us or 1, smUtil=one.sm_percent,
        memUtil=0, encUtil=0, decUtil=0,
    ))  # fmt: skip


def _media(at: int) -> Callable[[FakeGpu], tuple[int, int] | None]:
    """Return the reading of the encoder's (0) or decoder's (1) use, and its period (us)."""
    return _no_mig(
        lambda gpu: None if gpu.media_percent is None else (gpu.media_percent[at], 167_000)
    )


def _encoder_capacity(gpu: FakeGpu, codec: int) -> tuple[int] | None:
    return None if gpu.mig else (100,)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "nvmlDeviceGetUUID": _uuid,
    "nvmlDeviceGetName": _name,
    "nvmlDeviceGetMemoryInfo": _memory,
    "nvmlDeviceGetMemoryInfo_v2": _memory,
    "nvmlDeviceGetPciInfo_v3": _of_gpu(_pci),
    "nvmlDeviceGetSerial": _text(lambda gpu: gpu.serial),
    "nvmlDeviceGetVbiosVersion": _text(lambda gpu: "96.00.00.00.01"),
    "nvmlDeviceGetMinorNumber": _numbers(lambda gpu: (gpu.minor,)),
    "nvmlDeviceGetArchitecture": _numbers(lambda gpu: (gpu.board.architecture,)),
    "nvmlDeviceGetCudaComputeCapability": _numbers(lambda gpu: gpu.board.capability),
    "nvmlDeviceGetNumaNodeId": _numbers(lambda gpu: (gpu.numa,)),
    "nvmlDeviceGetPersistenceMode": _numbers(lambda gpu: (int(gpu.persistence),)),
    "nvmlDeviceGetComputeMode": _numbers(lambda gpu: (gpu.compute_mode,)),
    "nvmlDeviceGetVirtualizationMode": _numbers(lambda gpu: (gpu.virtualization,)),
    "nvmlDeviceGetComputeRunningProcesses_v3": _processes("compute"),
    "nvmlDeviceGetGraphicsRunningProcesses_v3": _processes("graphics"),
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": _processes("mps"),
    "nvmlDeviceGetEccMode": _numbers(
        lambda gpu: gpu.ecc if gpu.ecc is None else [int(gpu.ecc)] * 2
    ),
    "nvmlDeviceGetTotalEccErrors": _numbers(_ecc_errors),
    "nvmlDeviceGetRemappedRows": _numbers(_no_mig(lambda gpu: gpu.remapped)),
    "nvmlDeviceGetRowRemapperHistogram": _of_gpu(_histogram),
    "nvmlDeviceGetFieldValues": _of_gpu(_fields),
    "nvmlDeviceGetNvLinkState": _numbers(
        lambda gpu, link: None if gpu.mig or link not in gpu.nvlinks else (1,)
    ),
    "nvmlDeviceGetNvLinkRemoteDeviceType": _numbers(_remote_type),
    "nvmlDeviceGetNvLinkRemotePciInfo_v2": _of_gpu(_remote_pci),
    "nvmlDeviceGetGpuFabricInfoV": _of_gpu(_fabric),
    "nvmlDeviceGetUtilizationRates": _of_gpu(_utilization),
    "nvmlDeviceGetProcessUtilization": _of_gpu(_process_use),
    "nvmlDeviceGetEncoderUtilization": _numbers(_media(0)),
    "nvmlDeviceGetDecoderUtilization": _numbers(_media(1)),
    "nvmlDeviceGetEncoderCapacity": _numbers(_encoder_capacity),
    "nvmlDeviceGetEncoderStats": _numbers(lambda gpu: gpu.encoder_stats),
    "nvmlDeviceGetPowerUsage": _numbers(lambda gpu: (gpu.power_mw,)),
    "nvmlDeviceGetPowerManagementLimit": _numbers(lambda gpu: (gpu.board.power_limit_mw,)),
    "nvmlDeviceGetTotalEnergyConsumption": _numbers(lambda gpu: (gpu.energy_mj,)),
    "nvmlDeviceGetTemperature": _numbers(lambda gpu, sensor: (gpu.temperature_c,)),
    "nvmlDeviceGetTemperatureThreshold": _numbers(
        lambda gpu, which: (gpu.slowdown_c,) if which == _SLOWDOWN else None
    ),
    "nvmlDeviceGetClockInfo": _numbers(lambda gpu, kind: (gpu.clocks_mhz[kind],)),
    "nvmlDeviceGetCurrentClocksEventReasons": _numbers(lambda gpu: (gpu.clock_reasons,)),
    "nvmlDeviceGetCurrentClocksThrottleReasons": _numbers(lambda gpu: (gpu.clock_reasons,)),
    "nvmlDeviceGetPcieThroughput": _numbers(lambda gpu, way: (gpu.pcie_kb_s[way],)),
    "nvmlDeviceGetPcieReplayCounter": _numbers(lambda gpu: (gpu.pcie_replays,)),
    "nvmlDeviceGetCurrPcieLinkGeneration": _numbers(lambda gpu: (gpu.board.pcie[0],)),
    "nvmlDeviceGetCurrPcieLinkWidth": _numbers(
        lambda gpu: (gpu.board.pcie[1] if gpu.pcie_width is None else gpu.pcie_width,)
    ),
}
