"""Fake functions of the node as a whole: sessions, versions, finding devices, events."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from collectors.fake_nvml.gpu import FakeGpu
from collectors.fake_nvml.node import EventSet
from collectors.fake_nvml.pointers import (
    address_of,
    fill,
    number,
    put,
    put_handle,
    put_text,
    target,
)
from collectors.nvml.codes import Code

if TYPE_CHECKING:
    from collections.abc import Callable

    from collectors.fake_nvml.node import FakeNode

__all__ = ["FUNCTIONS"]

#: Event types that a fake GPU supports: all that NVML's header names.
_EVENTS = 0xFF9F


def _init(node: FakeNode, flags: Any) -> Code:
    node.initialized += 1
    return Code.SUCCESS


def _shutdown(node: FakeNode) -> Code:
    if not node.initialized:
        return Code.UNINITIALIZED
    node.initialized -= 1
    if not node.initialized:
        node.forget_handles()
    return Code.SUCCESS


def _error_string(node: FakeNode, result: Any) -> bytes:
    return f"error {number(result)}".encode()


def _count(node: FakeNode, count: Any) -> Code:
    put(count, len(node.listed))
    return Code.SUCCESS


def _by_index(node: FakeNode, index: Any, handle: Any) -> Code:
    listed = node.listed
    at = number(index)
    if at >= len(listed):
        return Code.INVALID_ARGUMENT
    if listed[at].lost:
        return Code.GPU_IS_LOST
    put_handle(handle, node.handle(listed[at]))
    return Code.SUCCESS


def _by_uuid(node: FakeNode, uuid: Any, handle: Any) -> Code:
    wanted = uuid.value.decode()
    for gpu in node.listed:
        if gpu.uuid == wanted:
            if gpu.lost:
                return Code.GPU_IS_LOST
            put_handle(handle, node.handle(gpu))
            return Code.SUCCESS
        for instance, one in gpu.compute():
            if one.uuid == wanted:
                put_handle(handle, node.part("mig", gpu, instance, one))
                return Code.SUCCESS
    return Code.NOT_FOUND


def _text(read: Callable[[FakeNode], str]) -> Callable[..., Code]:
    def work(node: FakeNode, buffer: Any, length: Any) -> Code:
        put_text(buffer, read(node))
        return Code.SUCCESS

    return work


def _cuda(node: FakeNode, version: Any) -> Code:
    put(version, node.cuda)
    return Code.SUCCESS


# -- events ----------------------------------------------------------------------


def _set_create(node: FakeNode, handle: Any) -> Code:
    made = EventSet()
    node.sets.append(made)
    put_handle(handle, node.handle(made))
    return Code.SUCCESS


def _supported_events(node: FakeNode, handle: Any, types: Any) -> Code:
    if not isinstance(node.thing(address_of(handle)), FakeGpu):
        return Code.NOT_SUPPORTED
    put(types, _EVENTS)
    return Code.SUCCESS


def _register(node: FakeNode, handle: Any, types: Any, events: Any) -> Code:
    gpu = node.thing(address_of(handle))
    kept = node.thing(address_of(events))
    if not isinstance(kept, EventSet):
        return Code.INVALID_ARGUMENT
    if not isinstance(gpu, FakeGpu) or number(types) & ~_EVENTS:
        return Code.NOT_SUPPORTED
    if gpu.lost:
        return Code.GPU_IS_LOST
    kept.masks[gpu.uuid] = kept.masks.get(gpu.uuid, 0) | number(types)
    return Code.SUCCESS


def _wait(node: FakeNode, events: Any, data: Any, timeout_ms: Any) -> Code:
    kept = node.thing(address_of(events))
    if not isinstance(kept, EventSet):
        return Code.INVALID_ARGUMENT
    if kept.waiting:
        event = kept.waiting.popleft()
        fill(
            target(data),
            device=node.handle(event.gpu),
            eventType=event.type,
            eventData=event.data,
            gpuInstanceId=event.gi,
            computeInstanceId=event.ci,
        )
        return Code.SUCCESS
    if kept.lost:
        kept.lost = False
        return Code.GPU_IS_LOST
    if node.alone and (wait_ms := number(timeout_ms)):
        time.sleep(wait_ms / 1000)
    return Code.TIMEOUT


def _set_free(node: FakeNode, events: Any) -> Code:
    kept = node.thing(address_of(events))
    if kept not in node.sets:
        return Code.INVALID_ARGUMENT
    node.sets.remove(kept)
    return Code.SUCCESS


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "nvmlInitWithFlags": _init,
    "nvmlShutdown": _shutdown,
    "nvmlErrorString": _error_string,
    "nvmlSystemGetDriverVersion": _text(lambda node: node.driver),
    "nvmlSystemGetNVMLVersion": _text(lambda node: node.library),
    "nvmlSystemGetCudaDriverVersion_v2": _cuda,
    "nvmlDeviceGetCount_v2": _count,
    "nvmlDeviceGetHandleByIndex_v2": _by_index,
    "nvmlDeviceGetHandleByUUID": _by_uuid,
    "nvmlEventSetCreate": _set_create,
    "nvmlDeviceGetSupportedEventTypes": _supported_events,
    "nvmlDeviceRegisterEvents": _register,
    "nvmlEventSetWait_v2": _wait,
    "nvmlEventSetFree": _set_free,
}
