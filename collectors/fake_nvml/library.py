"""The object that stands in for NVML's shared library, and how each of its calls is made."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from collectors.fake_nvml import (
    device_functions,
    mig_functions,
    system_functions,
    vgpu_functions,
)
from collectors.fake_nvml.gpu import FakeGpu
from collectors.fake_nvml.node import NODE, Part
from collectors.fake_nvml.pointers import address_of
from collectors.nvml.codes import Code

if TYPE_CHECKING:
    from collections.abc import Callable

    from collectors.fake_nvml.node import FakeNode

__all__ = ["FUNCTIONS", "FakeLibrary"]

#: Symbol -> what it does with the node and the arguments.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **system_functions.FUNCTIONS,
    **device_functions.FUNCTIONS,
    **mig_functions.FUNCTIONS,
    **vgpu_functions.FUNCTIONS,
}

#: What works before a session is opened.
_WITHOUT_SESSION = frozenset({"nvmlInitWithFlags", "nvmlShutdown", "nvmlErrorString"})


class FakeLibrary:
    """Give it to `collectors.nvml.calls.use_library`, and choose a node with `node.on`.

    A symbol that it does not have is an `AttributeError`, as ctypes has it; so is one that
    the current node lacks. ``pynvml`` keeps what it has found for all nodes, so a symbol
    that only some lack answers `Code.FUNCTION_NOT_FOUND` there, which it maps to the same.
    """

    def __getattr__(self, name: str) -> Callable[..., int]:
        """Return a function of the library by its symbol."""
        work = FUNCTIONS.get(name)
        node = NODE.get(None)
        if work is None or (node is not None and name in node.missing):
            raise AttributeError(f"undefined symbol: {name}")
        found = work

        def call(*arguments: Any) -> Any:
            node = NODE.get()
            node.calls += 1
            if name in node.missing:
                return int(Code.FUNCTION_NOT_FOUND)
            if not node.initialized and name not in _WITHOUT_SESSION:
                return int(Code.UNINITIALIZED)
            answer = (
                _struck(node, name, found, arguments) if node.faults else found(node, *arguments)
            )
            # A real library returns plain numbers; only nvmlErrorString gives a text.
            return int(answer) if isinstance(answer, Code) else answer

        return call


def _struck(node: FakeNode, name: str, work: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Make a call on a node where faults are planned."""
    gpu = _gpu_of(node, arguments)
    fault = node.fault(name, gpu)
    if fault is not None and fault.does == "slow":
        # Where this process is many nodes, simulated time is not waited for.
        time.sleep(fault.takes_ms / 1000 if node.alone else 0)
        fault = None
    if fault is None:
        return work(node, *arguments)
    if fault.when == "after":
        work(node, *arguments)
    return node.strike(fault, gpu)


def _gpu_of(node: FakeNode, arguments: tuple[Any, ...]) -> str | None:
    """Return the UUID of the GPU that a call's first argument is, or is a part of."""
    thing = node.thing(address_of(arguments[0])) if arguments else None
    return thing.uuid if isinstance(thing, (FakeGpu, Part)) else None
