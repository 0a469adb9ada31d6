"""Processes of a simulated machine: they are on its fake GPUs, and nowhere else."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from collectors.agent.device_files import Holders
from collectors.fake_nvml.gpu import Process

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from collectors.agent.processes import State
    from collectors.fake_nvml.gpu import FakeGpu
    from collectors.fake_nvml.node import FakeNode

__all__ = ["SimulatedProcesses"]

#: What a task uses of each of its units.
_MEMORY_MIB = 512


class SimulatedProcesses:
    """One process for each task that runs. See `collectors.agent.processes.Processes`.

    What is not on a GPU any more has ended: a reset or a reboot ends what ran.
    """

    def __init__(self, node: FakeNode) -> None:
        """Nothing runs on the node yet."""
        self._node = node
        self._pids = count(1000)
        self._leases: dict[int, str] = {}

    def run(self, lease: str, units: Iterable[str]) -> int:
        """Start a task on these units, UUIDs of GPUs or MIG devices; return its pid.

        One that runs on, over a restart of the agent, is not started again.
        """
        for pid, known in self._leases.items():
            if known == lease and self.state(pid) == "alive":
                return pid
        pid = next(self._pids)
        self._leases[pid] = lease
        for unit in units:
            for gpu, process in self._places(unit, pid):
                gpu.processes.append(process)
        return pid

    def _places(self, unit: str, pid: int) -> Iterator[tuple[FakeGpu, Process]]:
        for gpu in self._node.gpus:
            if gpu.uuid == unit:
                yield gpu, Process(pid, _MEMORY_MIB)
            for instance, one in gpu.compute():
                if one.uuid == unit:
                    yield gpu, Process(pid, _MEMORY_MIB, gi=instance.id, ci=one.id)

    def state(self, pid: int) -> State:
        """See `Processes.state`."""
        there = any(one.pid == pid for gpu in self._node.gpus for one in gpu.processes)
        return "alive" if there else "absent"

    def lease(self, pid: int) -> str | None:
        """See `Processes.lease`."""
        return self._leases.get(pid)

    def end(self, pid: int, *, hard: bool) -> str:  # noqa: ARG002 - all of them end when asked
        """See `Processes.end`."""
        for gpu in self._node.gpus:
            gpu.processes = [one for one in gpu.processes if one.pid != pid]
        self._leases.pop(pid, None)
        return ""

    async def holders(self, minor: int, gi: int | None, ci: int | None) -> Holders | None:  # noqa: ARG002 - there are no files
        """See `Processes.holders`: nobody but who is on the GPUs."""
        return Holders(())
