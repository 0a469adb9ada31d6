"""Fake functions of MIG: mode, profiles, GPU instances, compute instances, MIG devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from collectors.fake_nvml.gpu import CI_PROFILES, FakeGpu
from collectors.fake_nvml.node import Part
from collectors.fake_nvml.pointers import (
    address_of,
    fill,
    number,
    pointer,
    put,
    put_handle,
    target,
)
from collectors.nvml.codes import Code

if TYPE_CHECKING:
    from collections.abc import Callable

    from collectors.fake_nvml.boards import Shape
    from collectors.fake_nvml.gpu import ComputeInstance, GpuInstance
    from collectors.fake_nvml.node import FakeNode

__all__ = ["FUNCTIONS"]

#: How many GPU instance and compute instance profiles NVML numbers.
_GI_PROFILES, _CI_PROFILES = 18, 9


def _on_gpu(right: str | None, work: Callable[..., Code]) -> Callable[..., Code]:
    """Make a function of a GPU that can have MIG, for who has the right."""

    def call(node: FakeNode, handle: Any, *rest: Any) -> Code:
        gpu = node.thing(address_of(handle))
        if isinstance(gpu, Part):
            return Code.NOT_SUPPORTED
        if not isinstance(gpu, FakeGpu):
            return Code.INVALID_ARGUMENT
        if gpu.lost:
            return Code.GPU_IS_LOST
        if gpu.mig is None:
            return Code.NOT_SUPPORTED
        if right is not None and right not in node.rights:
            return Code.NO_PERMISSION
        return work(node, gpu, *rest)

    return call


def _on_part(kind: str, work: Callable[..., Code]) -> Callable[..., Code]:
    """Make a function of a GPU instance or compute instance that is still there."""

    def call(node: FakeNode, handle: Any, *rest: Any) -> Code:
        part = node.thing(address_of(handle))
        if not isinstance(part, Part) or part.kind != kind:
            return Code.INVALID_ARGUMENT
        if part.gpu.lost:
            return Code.GPU_IS_LOST
        if "mig-config" not in node.rights:
            return Code.NO_PERMISSION
        return work(node, part, *rest) if part.alive else Code.NOT_FOUND

    return call


# -- mode ------------------------------------------------------------------------


def _get_mode(node: FakeNode, gpu: FakeGpu, current: Any, pending: Any) -> Code:
    put(current, gpu.mig or 0)
    put(pending, gpu.mig_pending or 0)
    return Code.SUCCESS


def _set_mode(node: FakeNode, gpu: FakeGpu, mode: Any, activation: Any) -> Code:
    before = gpu.mig
    code, status = gpu.set_mig(number(mode))
    put(activation, status)
    if gpu.mig != before:
        # The device may have been reset: no handle of it or its parts is good any more.
        node.forget_handles(gpu)
    return code


# -- profiles --------------------------------------------------------------------


def _shape(gpu: FakeGpu, profile: int) -> Shape | None:
    return next((one for one in gpu.board.shapes if one.id == profile), None)


def _profile_info(*, named: bool) -> Callable[..., Code]:
    def work(node: FakeNode, gpu: FakeGpu, profile: Any, info: Any) -> Code:
        wanted = number(profile)
        if wanted >= _GI_PROFILES:
            return Code.INVALID_ARGUMENT
        shape = next((one for one in gpu.board.shapes if one.enum == wanted), None)
        if shape is None or (named and not gpu.mig):
            # The versioned call is documented as not supported while MIG is off.
            return Code.NOT_SUPPORTED
        copies, decoders, encoders, jpegs, ofas = shape.engines
        fill(
            target(info),
            id=shape.id,
            isP2pSupported=0,
            sliceCount=shape.slices,
            instanceCount=shape.most,
            multiprocessorCount=shape.sms,
            copyEngineCount=copies,
            decoderCount=decoders,
            encoderCount=encoders,
            jpegCount=jpegs,
            ofaCount=ofas,
            memorySizeMB=shape.memory_mib,
            name=f"MIG {shape.name}".encode(),
        )
        return Code.SUCCESS

    return work


def _placements(node: FakeNode, gpu: FakeGpu, profile: Any, into: Any, count: Any) -> Code:
    shape = _shape(gpu, number(profile))
    if shape is None:
        return Code.INVALID_ARGUMENT
    if into is not None:
        if number(target(count)) < len(shape.starts):
            return Code.INSUFFICIENT_SIZE
        for at, start in enumerate(shape.starts):
            fill(target(into)[at], start=start, size=shape.size)
    put(count, len(shape.starts))
    return Code.SUCCESS


def _capacity(node: FakeNode, gpu: FakeGpu, profile: Any, count: Any) -> Code:
    shape = _shape(gpu, number(profile))
    if shape is None or not gpu.mig:
        return Code.INVALID_ARGUMENT if shape is None else Code.NOT_SUPPORTED
    # How many more fit one after the other, at the driver's choice of place.
    taken = {unit for one in gpu.instances.values() for unit in one.units}
    room = 0
    for start in reversed(gpu.free_places(shape)):
        units = set(range(start, start + shape.size))
        if taken.isdisjoint(units):
            taken |= units
            room += 1
    there = sum(one.shape is shape for one in gpu.instances.values())
    put(count, min(room, shape.most - there))
    return Code.SUCCESS


# -- GPU instances ---------------------------------------------------------------


def _create_gi(node: FakeNode, gpu: FakeGpu, profile: Any, *rest: Any) -> Code:
    start = target(rest[0]).start if len(rest) > 1 else None
    code, made = gpu.create_gi(number(profile), start)
    if made is not None:
        put_handle(rest[-1], node.part("gi", gpu, made))
    return code


def _destroy_gi(node: FakeNode, part: Part) -> Code:
    return part.gpu.destroy_gi(part.instance)


def _list_gis(node: FakeNode, gpu: FakeGpu, profile: Any, into: Any, count: Any) -> Code:
    shape = _shape(gpu, number(profile))
    if shape is None or into is None:
        return Code.INVALID_ARGUMENT
    if not gpu.mig:
        return Code.NOT_SUPPORTED
    found = [one for one in gpu.instances.values() if one.shape is shape]
    array = target(into)
    for at, one in enumerate(found):
        array[at] = pointer(array._type_, node.part("gi", gpu, one))
    put(count, len(found))
    return Code.SUCCESS


def _gi_by_id(node: FakeNode, gpu: FakeGpu, gi: Any, handle: Any) -> Code:
    if not gpu.mig:
        return Code.NOT_SUPPORTED
    found = gpu.instances.get(number(gi))
    if found is None:
        return Code.NOT_FOUND
    put_handle(handle, node.part("gi", gpu, found))
    return Code.SUCCESS


def _gi_info(node: FakeNode, part: Part, info: Any) -> Code:
    one = part.instance
    fill(
        target(info),
        device=node.handle(part.gpu),
        id=one.id,
        profileId=one.shape.id,
        placement={"start": one.start, "size": one.shape.size},
    )
    return Code.SUCCESS


# -- compute instances -----------------------------------------------------------


def _ci_profile_info(*, named: bool) -> Callable[..., Code]:
    def work(node: FakeNode, part: Part, profile: Any, engine: Any, info: Any) -> Code:
        wanted, shape = number(profile), part.instance.shape
        if wanted >= _CI_PROFILES:
            return Code.INVALID_ARGUMENT
        slices = CI_PROFILES.get(wanted, 0)
        if not 0 < slices <= shape.slices:
            return Code.NOT_SUPPORTED
        name = shape.name if slices == shape.slices else f"{slices}c.{shape.name}"
        fill(
            target(info),
            id=wanted,
            sliceCount=slices,
            instanceCount=shape.slices // slices,
            multiprocessorCount=shape.sms * slices // shape.slices,
            sharedCopyEngineCount=shape.engines[0],
            sharedDecoderCount=shape.engines[1],
            sharedEncoderCount=shape.engines[2],
            sharedJpegCount=shape.engines[3],
            sharedOfaCount=shape.engines[4],
            **({"name": f"MIG {name}".encode()} if named else {}),
        )
        return Code.SUCCESS

    return work


def _ci_placements(node: FakeNode, part: Part, profile: Any, into: Any, count: Any) -> Code:
    size = CI_PROFILES.get(number(profile), 0)
    starts = range(part.instance.shape.slices - size + 1) if size else ()
    if into is not None:
        for at, start in enumerate(starts):
            fill(target(into)[at], start=start, size=size)
    put(count, len(starts))
    return Code.SUCCESS


def _create_ci(node: FakeNode, part: Part, profile: Any, *rest: Any) -> Code:
    start = target(rest[0]).start if len(rest) > 1 else None
    code, made = part.gpu.create_ci(part.instance, number(profile), start)
    if made is not None:
        put_handle(rest[-1], node.part("ci", part.gpu, part.instance, made))
    return code


def _destroy_ci(node: FakeNode, part: Part) -> Code:
    return part.gpu.destroy_ci(part.instance, _compute(part))


def _compute(part: Part) -> ComputeInstance:
    assert part.compute is not None, "a compute instance's handle has one"
    return part.compute


def _list_cis(node: FakeNode, part: Part, profile: Any, into: Any, count: Any) -> Code:
    wanted = number(profile)
    if wanted not in CI_PROFILES:
        return Code.NOT_SUPPORTED
    if into is None:
        return Code.INVALID_ARGUMENT
    found = [one for one in part.instance.compute if one.profile == wanted]
    array = target(into)
    for at, one in enumerate(found):
        address = node.part("ci", part.gpu, part.instance, one)
        array[at] = pointer(array._type_, address)
    put(count, len(found))
    return Code.SUCCESS


def _ci_by_id(node: FakeNode, part: Part, ci: Any, handle: Any) -> Code:
    found = next((one for one in part.instance.compute if one.id == number(ci)), None)
    if found is None:
        return Code.NOT_FOUND
    put_handle(handle, node.part("ci", part.gpu, part.instance, found))
    return Code.SUCCESS


def _ci_info(node: FakeNode, part: Part, info: Any) -> Code:
    one = _compute(part)
    fill(
        target(info),
        device=node.part("mig", part.gpu, part.instance, one),
        gpuInstance=node.part("gi", part.gpu, part.instance),
        id=one.id,
        profileId=one.profile,
        placement={"start": one.start, "size": one.size},
    )
    return Code.SUCCESS


# -- MIG devices: the walk -------------------------------------------------------


def _most_mig_devices(node: FakeNode, gpu: FakeGpu, count: Any) -> Code:
    # What could be, not what is: C03.
    put(count, max(one.slices for one in gpu.board.shapes))
    return Code.SUCCESS


def _mig_device(node: FakeNode, gpu: FakeGpu, index: Any, handle: Any) -> Code:
    wanted = number(index)
    for instance, one in gpu.compute() if gpu.mig else ():
        if one.slot == wanted:
            put_handle(handle, node.part("mig", gpu, instance, one))
            return Code.SUCCESS
    return Code.NOT_FOUND


def _of_mig(work: Callable[..., Code]) -> Callable[..., Code]:
    """Make a function of a MIG device. Anybody may ask it: no right is needed."""

    def call(node: FakeNode, handle: Any, *rest: Any) -> Code:
        part = node.thing(address_of(handle))
        if not isinstance(part, Part) or part.kind != "mig":
            return Code.NOT_SUPPORTED if isinstance(part, FakeGpu) else Code.INVALID_ARGUMENT
        if part.gpu.lost:
            return Code.GPU_IS_LOST
        return work(node, part, *rest) if part.alive else Code.NOT_FOUND

    return call


def _attributes(node: FakeNode, part: Part, info: Any) -> Code:
    shape, one = part.instance.shape, _compute(part)
    fill(
        target(info),
        multiprocessorCount=shape.sms * one.size // shape.slices,
        sharedCopyEngineCount=shape.engines[0],
        sharedDecoderCount=shape.engines[1],
        sharedEncoderCount=shape.engines[2],
        sharedJpegCount=shape.engines[3],
        sharedOfaCount=shape.engines[4],
        gpuInstanceSliceCount=shape.slices,
        computeInstanceSliceCount=one.size,
        memorySizeMB=shape.memory_mib,
    )
    return Code.SUCCESS


def _put_id(read: Callable[[GpuInstance, ComputeInstance], int]) -> Callable[..., Code]:
    def work(node: FakeNode, part: Part, place: Any) -> Code:
        put(place, read(part.instance, _compute(part)))
        return Code.SUCCESS

    return work


def _is_mig(node: FakeNode, handle: Any, answer: Any) -> Code:
    thing = node.thing(address_of(handle))
    put(answer, int(isinstance(thing, Part) and thing.kind == "mig"))
    return Code.SUCCESS


def _parent(node: FakeNode, part: Part, handle: Any) -> Code:
    put_handle(handle, node.handle(part.gpu))
    return Code.SUCCESS


_CONFIG = "mig-config"
FUNCTIONS: dict[str, Callable[..., Code]] = {
    "nvmlDeviceGetMigMode": _on_gpu(None, _get_mode),
    "nvmlDeviceSetMigMode": _on_gpu("admin", _set_mode),
    "nvmlDeviceGetGpuInstanceProfileInfo": _on_gpu(None, _profile_info(named=False)),
    "nvmlDeviceGetGpuInstanceProfileInfoV": _on_gpu(None, _profile_info(named=True)),
    "nvmlDeviceGetGpuInstancePossiblePlacements_v2": _on_gpu(None, _placements),
    "nvmlDeviceGetGpuInstanceRemainingCapacity": _on_gpu(_CONFIG, _capacity),
    "nvmlDeviceCreateGpuInstance": _on_gpu(_CONFIG, _create_gi),
    "nvmlDeviceCreateGpuInstanceWithPlacement": _on_gpu(_CONFIG, _create_gi),
    "nvmlGpuInstanceDestroy": _on_part("gi", _destroy_gi),
    "nvmlDeviceGetGpuInstances": _on_gpu(_CONFIG, _list_gis),
    "nvmlDeviceGetGpuInstanceById": _on_gpu(_CONFIG, _gi_by_id),
    "nvmlGpuInstanceGetInfo": _on_part("gi", _gi_info),
    "nvmlGpuInstanceGetComputeInstanceProfileInfo": _on_part("gi", _ci_profile_info(named=False)),
    "nvmlGpuInstanceGetComputeInstanceProfileInfoV": _on_part("gi", _ci_profile_info(named=True)),
    "nvmlGpuInstanceGetComputeInstancePossiblePlacements": _on_part("gi", _ci_placements),
    "nvmlGpuInstanceCreateComputeInstance": _on_part("gi", _create_ci),
    "nvmlGpuInstanceCreateComputeInstanceWithPlacement": _on_part("gi", _create_ci),
    "nvmlComputeInstanceDestroy": _on_part("ci", _destroy_ci),
    "nvmlGpuInstanceGetComputeInstances": _on_part("gi", _list_cis),
    "nvmlGpuInstanceGetComputeInstanceById": _on_part("gi", _ci_by_id),
    "nvmlComputeInstanceGetInfo_v2": _on_part("ci", _ci_info),
    "nvmlDeviceGetMaxMigDeviceCount": _on_gpu(None, _most_mig_devices),
    "nvmlDeviceGetMigDeviceHandleByIndex": _on_gpu(None, _mig_device),
    "nvmlDeviceIsMigDeviceHandle": _is_mig,
    "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": _of_mig(_parent),
    "nvmlDeviceGetAttributes_v2": _of_mig(_attributes),
    "nvmlDeviceGetGpuInstanceId": _of_mig(_put_id(lambda gi, ci: gi.id)),
    "nvmlDeviceGetComputeInstanceId": _of_mig(_put_id(lambda gi, ci: ci.id)),
}
