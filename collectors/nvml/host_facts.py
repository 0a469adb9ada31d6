"""What the node's agent reads of the machine itself: who it is this boot, CPU, memory, PCI.

Every function takes the root of the file system, so that tests bring their own.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from ledger.proc_stat import split_stat

__all__ = ["HostFacts", "host_facts", "incarnation_of", "iommu_group", "process_there"]

ROOT = Path("/")

_BOOT_ID = "proc/sys/kernel/random/boot_id"
#: Where a machine's own id is; a container may have only one of them.
_MACHINE_IDS = ("etc/machine-id", "var/lib/dbus/machine-id")
_MEMORY = re.compile(r"^MemTotal:\s+(\d+) kB", re.MULTILINE)
#: How much of a machine id stands in an incarnation: enough to tell two machines apart.
_MACHINE_DIGITS = 12


@dataclass(frozen=True, slots=True)
class HostFacts:
    """The machine. None is unknown; ``incarnation`` is of this boot (`incarnation_of`)."""

    incarnation: str
    cpu_milli: int | None
    memory_mib: int | None


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def incarnation_of(root: Path = ROOT) -> str:
    """Return the name of this boot of this machine: MACHINE-BOOT.

    A new one means that nothing survived; two machines with one name of node have two.
    Raise `OSError` where the kernel does not say which boot this is.
    """
    boot = (root / _BOOT_ID).read_text(encoding="utf-8").strip()
    machine = next((found for name in _MACHINE_IDS if (found := _text(root / name))), "unknown")
    return f"{machine[:_MACHINE_DIGITS]}-{boot}"


def host_facts(root: Path = ROOT) -> HostFacts:
    """Return the machine's facts; raise `OSError` as `incarnation_of`."""
    matched = _MEMORY.search(_text(root / "proc/meminfo") or "")
    cpus = os.cpu_count()
    return HostFacts(
        incarnation_of(root),
        None if cpus is None else cpus * 1000,
        None if matched is None else int(matched[1]) // 1024,
    )


def iommu_group(address: str, root: Path = ROOT) -> str | None:
    """Return the IOMMU group of a PCI address (``0000:01:00.0``); None where there is none."""
    try:
        return (root / "sys/bus/pci/devices" / address / "iommu_group").readlink().name
    except OSError:
        return None


def process_there(pid: int, root: Path = ROOT) -> bool:
    """Say whether a process is there that is not a zombie.

    NVML has told of processes that never were (a structure that changed without its
    version), and a zombie holds no memory of a device.
    """
    status = _text(root / "proc" / str(pid) / "stat")
    return status is not None and split_stat(status)[1][:1] != ["Z"]
