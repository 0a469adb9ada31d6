"""Fake functions of vGPU types, and of GPM: the performance counters of newer boards."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from collectors.fake_nvml.gpu import FakeGpu, VgpuType
from collectors.fake_nvml.pointers import (
    address_of,
    get_field,
    number,
    put,
    put_handle,
    put_text,
    set_field,
    target,
)
from collectors.nvml.codes import NO_VALUE, Code

if TYPE_CHECKING:
    from collections.abc import Callable

    from collectors.fake_nvml.node import FakeNode

__all__ = ["FUNCTIONS"]

_MIB = 1_048_576
#: The device is a vGPU host.
_HOST = 3


def _types(*, creatable: bool) -> Callable[..., Code]:
    def work(node: FakeNode, handle: Any, count: Any, into: Any) -> Code:
        gpu = node.thing(address_of(handle))
        if not isinstance(gpu, FakeGpu) or gpu.virtualization != _HOST:
            return Code.NOT_SUPPORTED
        found = [one.id for one in gpu.vgpu_types if one.creatable or not creatable]
        space = 0 if into is None else number(target(count))
        put(count, len(found))
        if len(found) > space:
            return Code.INSUFFICIENT_SIZE
        for at, one in enumerate(found):
            into[at] = one
        return Code.SUCCESS

    return work


def _type(node: FakeNode, number_of: Any) -> VgpuType | None:
    kinds = (one for gpu in node.gpus for one in gpu.vgpu_types)
    return next((one for one in kinds if one.id == number(number_of)), None)


def _name(node: FakeNode, kind: Any, buffer: Any, size: Any) -> Code:
    found = _type(node, kind)
    if found is None:
        return Code.INVALID_ARGUMENT
    put_text(buffer, found.name)
    return Code.SUCCESS


def _value(read: Callable[[VgpuType], int]) -> Callable[..., Code]:
    def work(node: FakeNode, *arguments: Any) -> Code:
        # The type is before the place of the answer; some functions take the device first.
        found = _type(node, arguments[-2])
        if found is None:
            return Code.INVALID_ARGUMENT
        put(arguments[-1], read(found))
        return Code.SUCCESS

    return work


# -- GPM -------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Sample:
    """A GPM sample: which counters it holds, whole device or one GPU instance."""

    values: dict[int, float] = field(default_factory=dict)


def _support(node: FakeNode, handle: Any, info: Any) -> Code:
    gpu = node.thing(address_of(handle))
    if not isinstance(gpu, FakeGpu):
        return Code.NOT_SUPPORTED
    target(info).isSupportedDevice = int(gpu.board.gpm)
    return Code.SUCCESS


def _alloc(node: FakeNode, handle: Any) -> Code:
    put_handle(handle, node.handle(_Sample()))
    return Code.SUCCESS


def _free(node: FakeNode, handle: Any) -> Code:
    found = isinstance(node.thing(address_of(handle)), _Sample)
    return Code.SUCCESS if found else Code.INVALID_ARGUMENT


def _take(node: FakeNode, handle: Any, *rest: Any) -> Code:
    gpu, sample = node.thing(address_of(handle)), node.thing(address_of(rest[-1]))
    if not isinstance(gpu, FakeGpu) or not isinstance(sample, _Sample):
        return Code.INVALID_ARGUMENT
    if gpu.lost or not gpu.board.gpm:
        return Code.GPU_IS_LOST if gpu.lost else Code.NOT_SUPPORTED
    if len(rest) == 1:
        sample.values = dict(gpu.gpm)
    else:
        if number(rest[0]) not in gpu.instances:
            return Code.NOT_FOUND
        sample.values = dict(gpu.gpm_of.get(number(rest[0]), {}))
    return Code.SUCCESS


def _metrics(node: FakeNode, info: Any) -> Code:
    asked = target(info)
    sample = node.thing(address_of(asked.sample2))
    if not isinstance(sample, _Sample):
        return Code.INVALID_ARGUMENT
    metrics = asked.metrics
    for at in range(asked.numMetrics):
        one = metrics[at]
        found = sample.values.get(get_field(one, "metricId"))
        set_field(one, "nvmlReturn", Code.NOT_SUPPORTED if found is None else Code.SUCCESS)
        set_field(one, "value", found or 0.0)
    return Code.SUCCESS


FUNCTIONS: dict[str, Callable[..., Code]] = {
    "nvmlDeviceGetSupportedVgpus": _types(creatable=False),
    "nvmlDeviceGetCreatableVgpus": _types(creatable=True),
    "nvmlVgpuTypeGetName": _name,
    "nvmlVgpuTypeGetMaxInstances": _value(lambda one: one.most),
    "nvmlVgpuTypeGetFramebufferSize": _value(lambda one: one.memory_mib * _MIB),
    "nvmlVgpuTypeGetGpuInstanceProfileId": _value(
        lambda one: NO_VALUE if one.gi_profile is None else one.gi_profile
    ),
    "nvmlGpmQueryDeviceSupport": _support,
    "nvmlGpmSampleAlloc": _alloc,
    "nvmlGpmSampleFree": _free,
    "nvmlGpmSampleGet": _take,
    "nvmlGpmMigSampleGet": _take,
    "nvmlGpmMetricsGet": _metrics,
}
