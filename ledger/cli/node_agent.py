"""``gpuledger collector`` on a host with GPUs: the node's agent, until it is told to stop."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ledger.cli.common import DEFAULT_CELL, Usage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from collectors.agent.agent import NodeAgent
    from collectors.nvml.watchdog import NvmlChild
    from ledger.cli.common import Session

__all__ = ["LOOK_US", "PASS_US", "POLL_S", "HostAgent", "run"]

_MODES = {"on": True, "off": False}
_KERNEL_LOG = Path("/dev/kmsg")

#: How often an agent looks for orders in a file at most. They take seconds, and looking costs.
POLL_S = 0.5

#: How often an agent looks at its devices, and reads each of them whole, in microseconds.
LOOK_US, PASS_US = 1_000_000, 30_000_000


@dataclass(frozen=True, slots=True)
class HostAgent:
    """How the agent of this host is to be, as the command line says.

    ``mig`` is the MIG mode that devices are to have, by UUID: ``on`` or ``off``.
    """

    node: str
    pool: str
    cell: str | None = None
    fake: Path | None = None
    journal: Path | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    mig: Mapping[str, str] = field(default_factory=dict)
    ends_processes: bool = True
    kernel_log: Path | None = None

    @property
    def in_cell(self) -> str:
        """The cell that this node is in."""
        return self.cell or os.environ.get("GPULEDGER_CELL") or DEFAULT_CELL

    @property
    def file(self) -> Path:
        """The agent's journal."""
        return self.journal or Path(f"gpuledger-agent-{self.node}.db")

    @property
    def log(self) -> Path | None:
        """Where the kernel tells of XIDs; of a described node this kernel has none to tell."""
        return self.kernel_log or (_KERNEL_LOG if self.fake is None else None)


async def run(session: Session, host: HostAgent) -> None:
    """Be this host's agent on the session's log, until SIGINT or SIGTERM.

    Raise `Usage` for a journal that another agent has open, `ConnectionError` where the
    NVIDIA library is not installed, and the log's errors.
    """
    from collectors.agent.shell import NodeShell, ShellOptions
    from collectors.nvml.watchdog import NvmlChild
    from collectors.use.watch import UseOptions
    from ledger.cli.site import stop_on_signals
    from ledger.log.sqlite import SqliteLog

    wrong = next((one for one in host.mig.values() if one not in _MODES), None)
    if wrong is not None:
        raise Usage(f"--mig-mode takes UUID=on or UUID=off, not {wrong!r}")
    child = NvmlChild(fake=host.fake)
    stop = stop_on_signals()
    try:
        agent = await _agent(child, host)
        try:
            async with session.open(write=True) as log:
                if isinstance(log, SqliteLog):
                    log.poll_s = POLL_S
                plain = {"node": host.node, "cell": host.in_cell, "journal": str(host.file)}
                text = f"{host.node} in cell {host.in_cell}, journal {host.file}; Ctrl-C ends"
                session.emit({**plain, "incarnation": agent.incarnation}, text)
                shell = NodeShell(log, agent, ShellOptions(session.prefix, use=UseOptions()))
                for uuid, mode in host.mig.items():
                    agent.change_mode(uuid, enabled=_MODES[mode])
                await shell.run(stop)
        finally:
            agent.close()
            agent.journal.close()
    finally:
        await child.close()


async def _agent(child: NvmlChild, host: HostAgent) -> NodeAgent:
    from collectors.agent.agent import NodeAgent, NodeOptions
    from collectors.agent.journal import Clock, Journal, JournalBusy
    from collectors.agent.lease_work import Patience
    from collectors.agent.processes import HostProcesses
    from collectors.health.hearing import WatchOptions
    from collectors.nvml.host_facts import host_facts, iommu_group
    from collectors.nvml.reader import NvmlReader
    from collectors.nvml.report import Standing

    found = await NvmlReader(child).host()
    if found.why == "library-not-found":
        # Whatever else is wrong may pass, and the node must be heard meanwhile.
        raise ConnectionError("NVML: library-not-found; gpuledger doctor says what to do")
    clock = Clock(lambda: time.time_ns() // 1000, lambda: time.monotonic_ns() // 1000)
    try:
        journal = Journal(host.file, clock)
    except JournalBusy as error:
        raise Usage(f"the journal cannot be used: {error}") from None
    return NodeAgent(
        child,
        journal,
        Standing(host.node, host.pool, dict(host.labels)),
        host.in_cell,
        facts=host_facts(),
        processes=HostProcesses(),
        options=NodeOptions(
            look_us=LOOK_US,
            on_the_second=True,
            pass_us=PASS_US,
            patience=Patience(ends_processes=host.ends_processes),
            watch=WatchOptions(kernel_log=host.log),
        ),
        group_of=iommu_group,
    )
