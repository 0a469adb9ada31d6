"""Which calls work on a device, for `gpuledger doctor`: nothing is changed by asking."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collectors.nvml.calls import read

if TYPE_CHECKING:
    from collectors.nvml.session import Session

__all__ = ["SURVEYED", "survey"]

#: The calls that need no more than a device's handle, and change nothing.
SURVEYED = (
    "name",
    "memory",
    "pci",
    "numa",
    "mig_mode",
    "compute_processes",
    "graphics_processes",
    "mps_processes",
    "ecc_mode",
    "ecc_uncorrected",
    "remapped_rows",
    "recovery_action",
    "nvlink_count",
    "fabric",
    "vgpu_supported",
    "utilization",
    "encoder",
    "decoder",
    "power",
    "energy",
    "temperature",
    "sm_clock",
    "clock_reasons",
    "pcie_sent",
    "pcie_replays",
    "gpm_support",
    "event_types",
)

#: GPU instance profiles are numbered below this; each is tried until one can be listed.
_PROFILES = range(18)


def survey(session: Session, uuid: str) -> dict[str, str]:
    """Return why each call gives nothing on this device; an empty text: it works."""
    handle = session.handle(uuid)
    if handle.why:
        return dict.fromkeys(SURVEYED, handle.why)
    found = {name: read(name, handle.value, about=uuid).why for name in SURVEYED}
    mode = read("mig_mode", handle.value, about=uuid).value
    if mode and mode[0]:
        for enum in _PROFILES:
            kind = read("gi_profile", handle.value, enum, about=uuid).value
            if kind is not None:
                listed = read("gi_list", handle.value, kind["id"], kind["most"], about=uuid)
                found["gi_list"] = listed.why
                break
    return found
