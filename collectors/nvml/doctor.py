"""What works on this host, and what each thing that does not costs: for `gpuledger doctor`.

Nothing is changed by asking. What a board simply does not have is `absent`, and costs
nothing that could be had; a right that is missing is `denied`; what should work and does
not is `broken`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from collectors.nvml.codes import ABSENT, Code, word
from collectors.nvml.host_facts import ROOT, incarnation_of, process_there

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from collectors.nvml.readings import Host

__all__ = ["Check", "State", "device_checks", "host_checks", "nvml_check"]

State = Literal["ok", "absent", "denied", "broken"]

#: The bit of CAP_SYS_ADMIN in the kernel's sets of capabilities.
_SYS_ADMIN = 1 << 21

_ABSENT = frozenset(map(word, ABSENT))
_DENIED = word(Code.NO_PERMISSION)
#: A GPU whose list of processes is empty because nobody used it is no trouble.
_FINE = frozenset({"", word(Code.NOT_FOUND)})


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at. ``device`` is empty for the host.

    ``costs`` says what the ledger goes without when it is not ``ok``.
    """

    name: str
    state: State
    found: str
    costs: str
    device: str = ""


#: Why NVML as a whole does not work -> what to do.
_ADVICE = {
    "library-not-found": "install the NVIDIA driver: libnvidia-ml.so.1 is not on this host",
    "driver-not-loaded": "load the kernel module (nvidia-modprobe), or reboot after an upgrade",
    "lib-rm-version-mismatch": "the library was upgraded and the loaded module was not: reboot",
    "no-permission": "this user may not open the NVIDIA devices (/dev/nvidiactl)",
}


def nvml_check(host: Host) -> Check:
    """Judge NVML as a whole: without it nothing else is asked."""
    costs = "no GPU of this host can be reported or leased"
    if host.why:
        advice = _ADVICE.get(host.why, "see the kernel log")
        return Check("NVML", "broken", f"{host.why}: {advice}", costs)
    readable = sum(one.uuid is not None for one in host.listed)
    found = f"driver {host.driver}, {readable} of {len(host.listed)} GPUs can be read"
    return Check("NVML", "ok" if readable else "broken", found, costs)


# -- the host --------------------------------------------------------------------


def _boot(root: Path) -> tuple[State, str]:
    try:
        return "ok", incarnation_of(root)
    except OSError as error:
        return "broken", str(error)


def _admin(root: Path) -> tuple[State, str]:
    try:
        status = (root / "proc/self/status").read_text(encoding="utf-8")
    except OSError as error:
        return "broken", str(error)
    line = next((one for one in status.splitlines() if one.startswith("CapEff:")), "CapEff: 0")
    has = bool(int(line.split()[1], 16) & _SYS_ADMIN)
    return ("ok", "CAP_SYS_ADMIN") if has else ("denied", "without CAP_SYS_ADMIN")


def _readable(path: str) -> Callable[[Path], tuple[State, str]]:
    def look(root: Path) -> tuple[State, str]:
        at = root / path
        if not at.exists():
            return "absent", f"no {at}"
        return ("ok" if os.access(at, os.R_OK) else "denied"), str(at)

    return look


def _processes(root: Path) -> tuple[State, str]:
    if process_there(1, root):
        return "ok", "all processes are visible"
    return "denied", "other users' processes are hidden, or this is a container's own view"


def _open_files(root: Path) -> tuple[State, str]:
    """Say whether others' open files can be read: those of the first process stand for all."""
    try:
        next(iter((root / "proc/1/fd").iterdir()), None)
    except PermissionError:
        return "denied", "other users' open files may not be read"
    except OSError as error:
        return "absent", error.strerror or str(error)
    return "ok", "open files of all processes can be read"


def _iommu(root: Path) -> tuple[State, str]:
    try:
        groups = len(list((root / "sys/kernel/iommu_groups").iterdir()))
    except OSError:
        groups = 0
    return ("ok", f"{groups} groups") if groups else ("absent", "the IOMMU is off")


#: Name -> how to look, and what it costs.
_HOST: tuple[tuple[str, Callable[[Path], tuple[State, str]], str], ...] = (
    ("boot id", _boot, "a reboot cannot be told from a restart of the agent"),
    ("MIG mode", _admin, "MIG cannot be turned on or off; instances can still be changed"),
    (
        "MIG instances",
        _readable("proc/driver/nvidia/capabilities/mig/config"),
        "instances can be neither made nor listed whole: devices in MIG mode stay unknown",
    ),
    (
        "MIG device nodes",
        _readable("dev/nvidia-caps"),
        "workloads cannot open MIG slices (nvidia-modprobe makes the nodes)",
    ),
    ("processes", _processes, "a pid that NVML names cannot be checked: cleaning is not proved"),
    (
        "open files",
        _open_files,
        "who holds a device open that NVML does not list is not seen (CAP_SYS_PTRACE)",
    ),
    ("kernel log", _readable("dev/kmsg"), "a GPU that is lost without an event is seen late"),
    ("IOMMU", _iommu, "devices cannot be passed through"),
)


def host_checks(root: Path = ROOT) -> list[Check]:
    """Look at what the agent needs of the host beside NVML."""
    return [Check(name, *look(root), costs) for name, look, costs in _HOST]


# -- devices ---------------------------------------------------------------------

#: Call of `survey.SURVEYED` -> what the ledger goes without.
_COSTS = {
    "name": "the device is not reported",
    "memory": "the device is not reported",
    "pci": "no CDI name by address, no NVLink domain, no passthrough",
    "numa": "placement does not know which CPUs are near",
    "mig_mode": "no MIG",
    "gi_list": "MIG instances stay unknown, and the device with them",
    "compute_processes": "cleaning cannot be proved",
    "graphics_processes": "cleaning cannot be proved",
    "mps_processes": "cleaning cannot be proved",
    "ecc_mode": "memory errors are not counted",
    "ecc_uncorrected": "memory errors are not counted",
    "remapped_rows": "worn memory is not seen",
    "recovery_action": "health rests on XIDs alone, without the driver's own verdict",
    "nvlink_count": "requests for one NVLink domain are not placed here",
    "fabric": "NVLink over nodes is not seen",
    "vgpu_supported": "no vGPU types are offered",
    "utilization": "idle leases are not noticed (in MIG mode GPM says it instead)",
    "encoder": "encoder use is not metered",
    "decoder": "decoder use is not metered",
    "power": "power is not metered",
    "energy": "energy is added up from samples of power",
    "temperature": "overheating is not seen before the clocks fall",
    "sm_clock": "throttling is not seen",
    "clock_reasons": "throttling has no reason",
    "pcie_sent": "PCIe traffic is not metered",
    "pcie_replays": "a bad PCIe link is not noticed",
    "gpm_support": "use within MIG slices is not metered",
    "event_types": "XIDs are found in the kernel log only",
}


def device_checks(uuid: str, survey: Mapping[str, str]) -> list[Check]:
    """Judge what a survey (`survey.survey`) found of one device."""
    found = []
    for name, why in survey.items():
        state: State = "broken"
        if why in _FINE:
            state = "ok"
        elif why in _ABSENT:
            state = "absent"
        elif why == _DENIED:
            state = "denied"
        found.append(Check(name, state, why or "works", _COSTS[name], uuid))
    return found
