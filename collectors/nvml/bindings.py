"""The only importer of ``pynvml``: its functions by name, with C arguments made here.

`collectors.nvml.calls` is the only user; everything else goes through its table. A
function of ``pynvml`` that wants arrays or pointers has an adapter of the same name here,
with plain arguments and results.
"""

from __future__ import annotations

from contextlib import contextmanager
from ctypes import Structure, byref, c_uint
from functools import cache
from typing import TYPE_CHECKING, Any

import pynvml as nv

from collectors.nvml.codes import Code, code_of, word

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["Refused", "invoke", "library", "use_library"]

#: The most placements of one profile: one for each unit of any known board, and to spare.
_MOST_PLACEMENTS = 64

#: NVML's numbers of the types of a field's value -> the member of the union that has it.
_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")

#: Reads a structure's field as it is: ``pynvml``'s own way looks whether each is a text.
_plain = Structure.__getattribute__


class Refused(Exception):
    """NVML answered a call with a code that is not success."""

    def __init__(self, code: Code, function: str) -> None:
        """Keep the code and the function of NVML that answered it."""
        super().__init__(f"{function}: {word(code)}")
        self.code = code
        self.function = function

    def __reduce__(self) -> tuple[type[Refused], tuple[Code, str]]:
        """Let it be copied, which exceptions with their own arguments cannot be by default."""
        return Refused, (self.code, self.function)


def use_library(fake: object | None) -> None:
    """Let all calls go to this object instead of the shared library; None: to that again.

    ``pynvml`` keeps its library and what it has found in it in global variables, so this
    is for the whole process.
    """
    nv.nvmlLib = fake
    nv._nvmlGetFunctionPointer_cache.clear()  # noqa: SLF001 - there is no other way to forget
    nv._nvmlLib_refcount = 0  # noqa: SLF001 - as above


@contextmanager
def library(fake: object) -> Iterator[None]:
    """Use a library for the block, then the one from before."""
    before = nv.nvmlLib
    use_library(fake)
    try:
        yield
    finally:
        use_library(before)


def invoke(function: str, arguments: Sequence[Any]) -> Any:
    """Call a function of NVML by its name in ``pynvml``; raise `Refused`."""
    try:
        return _work(function)(*arguments)
    except nv.NVMLError as error:
        raise Refused(code_of(error.value), function) from None
    except nv.NVMLLibraryMismatchError:
        # What pynvml makes of a missing symbol in functions that it calls unversioned.
        raise Refused(Code.FUNCTION_NOT_FOUND, function) from None


@cache
def _work(function: str) -> Callable[..., Any]:
    found: Callable[..., Any] = _ADAPTERS.get(function) or getattr(nv, function)
    return found


# -- adapters --------------------------------------------------------------------


def _memory(handle: Any) -> Any:
    return nv.nvmlDeviceGetMemoryInfo(handle, version=nv.nvmlMemory_v2)


def _profile_v1(handle: Any, enum: int) -> Any:
    return nv.nvmlDeviceGetGpuInstanceProfileInfo(handle, enum, version=1)


def _placements(handle: Any, profile: int) -> list[tuple[int, int]]:
    array = (nv.c_nvmlGpuInstancePlacement_t * _MOST_PLACEMENTS)()
    number = c_uint(_MOST_PLACEMENTS)
    nv.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile, array, byref(number))
    return [(one.start, one.size) for one in array[: number.value]]


def _gpu_instances(handle: Any, profile: int, most: int) -> list[Any]:
    array = (nv.c_nvmlGpuInstance_t * max(1, most))()
    number = c_uint(0)
    nv.nvmlDeviceGetGpuInstances(handle, profile, array, byref(number))
    return list(array[: number.value])


def _compute_instances(instance: Any, profile: int, most: int) -> list[Any]:
    array = (nv.c_nvmlComputeInstance_t * max(1, most))()
    number = c_uint(0)
    nv.nvmlGpuInstanceGetComputeInstances(instance, profile, array, byref(number))
    return list(array[: number.value])


def _ci_profile(instance: Any, profile: int) -> Any:
    return nv.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, profile, 0)


def _ci_profile_v1(instance: Any, profile: int) -> Any:
    return nv.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, profile, 0, version=1)


def _create_gi(handle: Any, profile: int, start: int, size: int) -> Any:
    # NVML wants a pointer; the structure itself would travel as a number and be followed.
    wanted = nv.c_nvmlGpuInstancePlacement_t(start, size)
    return nv.nvmlDeviceCreateGpuInstanceWithPlacement(handle, profile, byref(wanted))


def _create_ci(instance: Any, profile: int, start: int, size: int) -> Any:
    wanted = nv.c_nvmlComputeInstancePlacement_t(start, size)
    return nv.nvmlGpuInstanceCreateComputeInstanceWithPlacement(instance, profile, byref(wanted))


def _field(handle: Any, number: int | tuple[int, ...]) -> Any:
    """Return a field's value, or those of several; of several one may be missing."""
    if isinstance(number, tuple):
        return [
            _value(one) if _plain(one, "nvmlReturn") == nv.NVML_SUCCESS else None
            for one in nv.nvmlDeviceGetFieldValues(handle, [(each, 0) for each in number])
        ]
    one = nv.nvmlDeviceGetFieldValues(handle, [(number, 0)])[0]
    code = _plain(one, "nvmlReturn")
    if code != nv.NVML_SUCCESS:
        raise nv.NVMLError(code)
    return _value(one)


def _value(field: Any) -> int:
    return int(getattr(_plain(field, "value"), _MEMBERS[_plain(field, "valueType")]))


def _fabric(handle: Any) -> Any:
    info = nv.c_nvmlGpuFabricInfo_v2_t()
    nv.nvmlDeviceGetGpuFabricInfoV(handle, byref(info))
    return info


def _gpm_metrics(first: Any, second: Any, metrics: Sequence[int]) -> list[float | None]:
    asked, given = _gpm_question(tuple(metrics))
    asked.sample1, asked.sample2 = first, second
    nv.nvmlGpmMetricsGet(asked)
    good = nv.NVML_SUCCESS
    return [_plain(one, "value") if _plain(one, "nvmlReturn") == good else None for one in given]


@cache
def _gpm_question(metrics: tuple[int, ...]) -> tuple[Any, list[Any]]:
    """Return the structure that asks for metrics, and where it gets them: some 13 KiB, kept."""
    asked = nv.c_nvmlGpmMetricsGet_t()
    asked.version = nv.NVML_GPM_METRICS_GET_VERSION
    asked.numMetrics = len(metrics)
    for at, number in enumerate(metrics):
        asked.metrics[at].metricId = number
    return asked, [asked.metrics[at] for at in range(len(metrics))]


def _utilization_of_processes(handle: Any, since_us: int) -> list[Any]:
    try:
        return list(nv.nvmlDeviceGetProcessUtilization(handle, since_us))
    except nv.NVMLError as error:
        if error.value == Code.NOT_FOUND:
            return []  # nobody used the device since then
        raise


_ADAPTERS: dict[str, Callable[..., Any]] = {
    "nvmlDeviceGetMemoryInfo_v2": _memory,
    "nvmlDeviceGetGpuInstanceProfileInfo_v1": _profile_v1,
    "nvmlDeviceGetGpuInstancePossiblePlacements": _placements,
    "nvmlDeviceGetGpuInstances": _gpu_instances,
    "nvmlGpuInstanceGetComputeInstances": _compute_instances,
    "nvmlGpuInstanceGetComputeInstanceProfileInfo": _ci_profile,
    "nvmlGpuInstanceGetComputeInstanceProfileInfo_v1": _ci_profile_v1,
    "nvmlDeviceCreateGpuInstanceWithPlacement": _create_gi,
    "nvmlGpuInstanceCreateComputeInstanceWithPlacement": _create_ci,
    "nvmlDeviceGetFieldValues": _field,
    "nvmlDeviceGetGpuFabricInfoV": _fabric,
    "nvmlGpmMetricsGet": _gpm_metrics,
    "nvmlDeviceGetProcessUtilization": _utilization_of_processes,
}
