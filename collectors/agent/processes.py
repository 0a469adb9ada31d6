"""Processes of the machine that are on its devices: whether they are there, whose, and their end.

Every function takes the root of the file system, so that tests bring their own.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from collectors.agent.device_files import DeviceFiles
from ledger.proc_stat import split_stat

if TYPE_CHECKING:
    from collectors.agent.device_files import Holders

__all__ = ["LEASE_VARIABLE", "HostProcesses", "Processes", "State"]

#: What a process of a lease is told apart by where several leases share a device.
LEASE_VARIABLE = "GPULEDGER_LEASE"

State = Literal["alive", "zombie", "absent", "unknown"]


class Processes(Protocol):
    """What the agent asks and does about processes."""

    def state(self, pid: int) -> State:
        """Say whether a process is there; a zombie has ended and was not waited for."""

    def lease(self, pid: int) -> str | None:
        """Return the lease in the process's environment; None when there is none to be read."""

    def end(self, pid: int, *, hard: bool) -> str:
        """Ask a process to end, or make it (``hard``); return why that cannot be, or nothing."""

    async def holders(self, minor: int, gi: int | None, ci: int | None) -> Holders | None:
        """Say who holds a device's or slice's file open; None when that cannot be told."""


class HostProcesses:
    """Those of this machine, by ``/proc``. The agent must see the PIDs that the driver tells."""

    def __init__(self, root: Path = Path("/")) -> None:
        """Look below this root."""
        self._proc = root / "proc"
        self._files = DeviceFiles(root)

    def state(self, pid: int) -> State:
        """See `Processes.state`."""
        try:
            status = (self._proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return "absent"
        except OSError:
            return "unknown"
        return "zombie" if split_stat(status)[1][:1] == ["Z"] else "alive"

    def lease(self, pid: int) -> str | None:
        """See `Processes.lease`. Reading another user's needs the right to trace it."""
        try:
            raw = (self._proc / str(pid) / "environ").read_bytes()
        except OSError:
            return None
        name = f"{LEASE_VARIABLE}=".encode()
        found = next((one for one in raw.split(b"\0") if one.startswith(name)), None)
        return None if found is None else found.removeprefix(name).decode(errors="replace")

    def end(self, pid: int, *, hard: bool) -> str:
        """See `Processes.end`."""
        try:
            os.kill(pid, signal.SIGKILL if hard else signal.SIGTERM)
        except ProcessLookupError:
            return ""
        except OSError as error:
            return error.strerror or str(error)
        return ""

    async def holders(self, minor: int, gi: int | None, ci: int | None) -> Holders | None:
        """See `Processes.holders`. In a thread: a machine may have very many open files."""
        return await asyncio.to_thread(self._files.holders, minor, gi, ci)
