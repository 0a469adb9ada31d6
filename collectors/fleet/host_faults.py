"""What befalls a simulated machine, and how it is over: one function for each kind of fault.

Everything is done to what is under the agent (fake GPUs, clocks, processes, the cable), so the
agent meets it as a real one does. Each function lets its fault happen and returns what lets it
be over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from collectors.fake_nvml.faults import Fault as CallFault
from collectors.fake_nvml.node import Event
from collectors.nvml.codes import Code

if TYPE_CHECKING:
    from collectors.fleet.fault_plan import (
        ClockJump,
        Down,
        DriverReload,
        Fault,
        Flapping,
        Hang,
        LeakedMemory,
        Lost,
        PartialCreate,
        PartialDestroy,
        Silent,
        TwoAgents,
        Xid,
    )
    from collectors.fleet.host import SimulatedHost

__all__ = ["befall", "flip"]

_US = 1_000_000

#: NVML's event of a critical error, whose data is the XID.
_XID_EVENT = 0x8

_CREATE_CI = "nvmlGpuInstanceCreateComputeInstanceWithPlacement"
_DESTROY_GI = "nvmlGpuInstanceDestroy"

_Undo = Callable[[], None]


def befall(host: SimulatedHost, fault: Fault) -> _Undo:
    """Let a fault happen to a machine; call what is returned to let it be over."""
    return _KINDS[fault.kind](host, fault)


def flip(host: SimulatedHost, fault: Flapping) -> None:
    """Let the driver ask for a reset of the GPU, or take that back."""
    gpu = host.gpu(fault.device)
    gpu.recovery_action = 0 if gpu.recovery_action else 1


# -- the machine and its agents -------------------------------------------------------


def _down(host: SimulatedHost, fault: Down) -> _Undo:
    if fault.incarnation == "new":
        host.turn_off()
        return host.turn_on
    host.stop_agents()
    return host.start_agent


def _silent(host: SimulatedHost, _: Silent) -> _Undo:
    host.cut(off=True)
    return lambda: host.cut(off=False)


def _clock_jump(host: SimulatedHost, fault: ClockJump) -> _Undo:
    host.set_clock(fault.by_s * _US)
    return lambda: host.set_clock(0)


def _two_agents(host: SimulatedHost, _: TwoAgents) -> _Undo:
    second = host.start_another()
    return lambda: host.stop(second)


def _driver_reload(host: SimulatedHost, fault: DriverReload) -> _Undo:
    host.node.reload_driver(fault.driver)
    host.set_up()
    return lambda: None


# -- single GPUs ----------------------------------------------------------------------


def _broken_call(host: SimulatedHost, device: int, function: str, does: Any) -> _Undo:  # noqa: ANN401 - a code or "hang"
    broken = CallFault(function, does, gpu=host.gpu(device).uuid)
    host.node.faults.append(broken)
    return lambda: host.node.faults.remove(broken)


def _hang(host: SimulatedHost, fault: Hang) -> _Undo:
    return _broken_call(host, fault.device, fault.function, "hang")


def _partial_create(host: SimulatedHost, fault: PartialCreate) -> _Undo:
    return _broken_call(host, fault.device, _CREATE_CI, Code.UNKNOWN)


def _partial_destroy(host: SimulatedHost, fault: PartialDestroy) -> _Undo:
    return _broken_call(host, fault.device, _DESTROY_GI, Code.IN_USE)


def _xid(host: SimulatedHost, fault: Xid) -> _Undo:
    gpu = host.gpu(fault.device)
    gpu.recovery_action = fault.action
    host.node.happen(Event(gpu, _XID_EVENT, fault.xid))
    return gpu.reset


def _lost(host: SimulatedHost, fault: Lost) -> _Undo:
    gpu = host.gpu(fault.device)
    host.node.lose(gpu)
    return gpu.reset


def _flapping(host: SimulatedHost, fault: Flapping) -> _Undo:
    flip(host, fault)

    def rest() -> None:
        host.gpu(fault.device).recovery_action = 0

    return rest


def _leaked_memory(host: SimulatedHost, fault: LeakedMemory) -> _Undo:
    gpu = host.gpu(fault.device)

    def leave(memory_mib: int) -> None:
        for one in gpu.instances.values():
            one.leaked_mib = memory_mib
        gpu.leaked_mib = 0 if gpu.mig else memory_mib

    leave(fault.memory_mib)
    return lambda: leave(0)


_KINDS: dict[str, Callable[[SimulatedHost, Any], _Undo]] = {
    "down": _down,
    "silent": _silent,
    "hang": _hang,
    "xid": _xid,
    "lost": _lost,
    "driver-reload": _driver_reload,
    "partial-create": _partial_create,
    "partial-destroy": _partial_destroy,
    "leaked-memory": _leaked_memory,
    "flapping": _flapping,
    "clock-jump": _clock_jump,
    "two-agents": _two_agents,
}
