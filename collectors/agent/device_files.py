"""Who holds a device's file open: those that NVML does not list, and that can still reach it.

NVML lists processes with a context. One that has the file open and no context yet, or no
more, is in no list, and is what the driver means by "in use" with nobody in sight. It is
found by the open files in ``/proc``, for a MIG slice by the capability that it takes to get
into that slice. What may not be read is counted: then there may be more.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ledger.proc_stat import split_stat

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["MACHINES_OWN", "DeviceFiles", "Holder", "Holders", "left_by"]

#: Programs that belong to the machine and keep devices open, as the kernel has their names
#: (15 characters): they are no lease's, whenever they were started.
MACHINES_OWN = frozenset(
    {
        *("nvidia-persiste", "nv-hostengine", "dcgm-exporter", "dcgmi", "nvidia-smi"),
        *("nvidia-device-p", "nv-fabricmanage", "nvsm_core", "nvidia-imex", "Xorg"),
    }
)

#: A command may be started some time before its node hears that the lease may begin (µs).
_BEFORE_US = 10_000_000

_TICK_US = 1_000_000 // os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds a file of the device, by its name and when it was started.

    ``started_us`` counts from the boot, as the agent's steady clock does.
    """

    pid: int
    name: str
    started_us: int


@dataclass(frozen=True, slots=True)
class Holders:
    """Who holds the file; ``unread`` is of how many processes the open files may not be read."""

    found: tuple[Holder, ...]
    unread: int = 0


def left_by(holders: Iterable[Holder], mine: Iterable[int], since_us: int) -> tuple[Holder, ...]:
    """Return those that a lease may have left on a device that it had alone since ``since_us``.

    ``mine`` are the pids that name the lease themselves. Of the others those count that were
    started under the lease, but for the machine's own.
    """
    named = frozenset(mine)
    return tuple(
        one
        for one in holders
        if one.pid in named
        or (one.name not in MACHINES_OWN and one.started_us >= since_us - _BEFORE_US)
    )


class DeviceFiles:
    """The files of this machine's devices, and who has them open."""

    def __init__(self, root: Path = Path("/"), own: int | None = None) -> None:
        """Look below this root; the process ``own`` (this one) and its children do not count."""
        self._proc = root / "proc"
        self._own = os.getpid() if own is None else own

    def holders(self, minor: int, gi: int | None = None, ci: int | None = None) -> Holders | None:
        """Return who holds ``/dev/nvidiaMINOR``, or the capability of a MIG slice on it.

        None where that cannot be told at all. It takes milliseconds for each thousand
        open files of the machine.
        """
        wanted = self._file(minor, gi, ci)
        if wanted is None:
            return None
        try:
            pids = list(self._pids())
        except OSError:
            return None
        found, unread = [], 0
        for pid in pids:
            try:
                about = self._about(pid) if self._holds(pid, wanted) else None
            except (FileNotFoundError, NotADirectoryError, ProcessLookupError):
                # It has ended meanwhile.
                continue
            except OSError:
                # No right to it, or no file descriptor left to look with.
                unread += 1
            else:
                found += [] if about is None else [about]
        return Holders(tuple(found), unread)

    def _file(self, minor: int, gi: int | None, ci: int | None) -> str | None:
        if gi is None:
            return f"/dev/nvidia{minor}"
        place = f"driver/nvidia/capabilities/gpu{minor}/mig/gi{gi}"
        place += "" if ci is None else f"/ci{ci}"
        try:
            text = (self._proc / place / "access").read_text(encoding="ascii", errors="replace")
        except OSError:
            return None
        line = next((one for one in text.splitlines() if one.startswith("DeviceFileMinor:")), "")
        number = line.partition(":")[2].strip()
        return f"/dev/nvidia-caps/nvidia-cap{number}" if number.isdigit() else None

    def _pids(self) -> Iterator[int]:
        with os.scandir(self._proc) as entries:
            for entry in entries:
                if entry.name.isdigit() and int(entry.name) != self._own:
                    yield int(entry.name)

    def _holds(self, pid: int, wanted: str) -> bool:
        with os.scandir(self._proc / str(pid) / "fd") as entries:
            for entry in entries:
                try:
                    # A Path for each open file of the machine would cost more than the reading.
                    target = os.readlink(entry.path)  # noqa: PTH115 - as said above
                except FileNotFoundError:
                    # Closed meanwhile.
                    continue
                if target == wanted:
                    return True
        return False

    def _about(self, pid: int) -> Holder | None:
        """Return a process by its entry, None for a child of this one."""
        text = (self._proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        name, fields = split_stat(text)
        if int(fields[1]) == self._own:
            return None
        return Holder(pid, name, int(fields[19]) * _TICK_US)
