"""What a fake library does wrong, call by call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from collectors.nvml.codes import Code

__all__ = ["CallHung", "Fault"]


class CallHung(Exception):
    """A call that would not have returned, in a process that is more than one node."""

    def __init__(self, function: str, gpu: str | None = None) -> None:
        """Name the function of NVML that hangs, and the GPU that it was about."""
        super().__init__(f"{function} does not return")
        self.function = function
        self.gpu = gpu


@dataclass(slots=True)
class Fault:
    """One thing that goes wrong in a function of NVML.

    ``does`` is the code it answers with, ``hang``, or ``slow``: it goes well and takes
    ``takes_ms``. ``when`` is ``after`` for a call that
    does its work and then fails to say so. ``gpu`` is the device's UUID, None for any.
    ``skip`` calls go well first, then ``times`` fail; None: all of them.
    A symbol that a library does not have is `FUNCTION_NOT_FOUND`, as ``pynvml`` sees it.
    """

    function: str
    does: Code | Literal["hang", "slow"] = Code.UNKNOWN
    when: Literal["before", "after"] = "before"
    gpu: str | None = None
    times: int | None = None
    skip: int = 0
    takes_ms: int = 0

    def strikes(self, function: str, gpu: str | None) -> bool:
        """Count a call that this fault is for; say whether it goes wrong now."""
        if function != self.function or self.gpu not in (None, gpu) or self.times == 0:
            return False
        if self.skip:
            self.skip -= 1
            return False
        if self.times is not None:
            self.times -= 1
        return True
