"""What NVML answers, and the word that a missing reading carries for it."""

from __future__ import annotations

from enum import IntEnum
from functools import cache

__all__ = ["ABSENT", "GONE", "IMPLAUSIBLE", "NO_VALUE", "Code", "code_of", "word"]

#: Why a value is missing that was told and cannot be.
IMPLAUSIBLE = "implausible"

#: What NVML writes into an unsigned 32-bit field that has no value: no instance, no profile.
NO_VALUE = 0xFFFF_FFFF


class Code(IntEnum):
    """A return code of NVML (``nvmlReturn_t``)."""

    SUCCESS = 0
    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    ALREADY_INITIALIZED = 5
    NOT_FOUND = 6
    INSUFFICIENT_SIZE = 7
    INSUFFICIENT_POWER = 8
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    IRQ_ISSUE = 11
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    CORRUPTED_INFOROM = 14
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    OPERATING_SYSTEM = 17
    LIB_RM_VERSION_MISMATCH = 18
    IN_USE = 19
    MEMORY = 20
    NO_DATA = 21
    VGPU_ECC_NOT_SUPPORTED = 22
    INSUFFICIENT_RESOURCES = 23
    FREQ_NOT_SUPPORTED = 24
    ARGUMENT_VERSION_MISMATCH = 25
    DEPRECATED = 26
    NOT_READY = 27
    GPU_NOT_FOUND = 28
    INVALID_STATE = 29
    RESET_TYPE_NOT_SUPPORTED = 30
    UNKNOWN = 999


#: This host or device has no such thing: the reading stays missing, and nothing is wrong.
ABSENT = frozenset(
    {
        Code.NOT_SUPPORTED,
        Code.FUNCTION_NOT_FOUND,
        Code.NO_DATA,
        Code.VGPU_ECC_NOT_SUPPORTED,
        Code.ARGUMENT_VERSION_MISMATCH,
        Code.DEPRECATED,
    }
)

#: The device is not there any more, however it is said.
GONE = frozenset({Code.GPU_IS_LOST, Code.GPU_NOT_FOUND})


def code_of(number: int) -> Code:
    """Return the code of a number; one that a newer driver has made up is `Code.UNKNOWN`."""
    try:
        return Code(number)
    except ValueError:
        return Code.UNKNOWN


@cache
def word(code: Code) -> str:
    """Return the code as reports spell it: ``not-supported``, ``gpu-is-lost``."""
    return code.name.lower().replace("_", "-")
