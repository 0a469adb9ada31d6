"""How a process gets at what was granted: environment and CDI names (C01: by UUID only)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ledger.core.placing.isolation import given_by, isolation_of

if TYPE_CHECKING:
    from ledger.core.state import Need, State

__all__ = ["reply_parts", "unit_names"]


def unit_names(state: State, units: list[str]) -> list[str]:
    """Name units as their node knows them: a slice by its MIG UUID, a device by its own."""
    return [state.slices[unit].mig_uuid if unit in state.slices else unit for unit in units]


def reply_parts(state: State, need: Need, parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the granted parts as a reply carries them, node by node."""
    found = []
    passed = need.delivery in ("passthrough", "vgpu")
    for part in parts:
        names = unit_names(state, part["units"])
        found.append(
            {
                "node": part["node"],
                "units": part["units"],
                "environment": {} if passed else _environment(need, names),
                "cdi": [] if passed else [f"nvidia.com/gpu={name}" for name in names],
                **given_by(state, need, part["units"]),
                **isolation_of(state, need, part["node"]),
            }
        )
    return found


def _environment(need: Need, names: list[str]) -> dict[str, str]:
    """UUIDs, and the order fixed: an index would name another device after a restart."""
    listed = ",".join(names)
    environment = {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": listed,
        "NVIDIA_VISIBLE_DEVICES": listed or "void",
    }
    if need.mode == "share":
        # MPS takes whole per cents; rounded down, so shares do not add up to more than a device;
        # below ten thousandths it is the one per cent that MPS takes at least.
        environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(max(1, need.gpu_milli // 10))
        if need.memory_mib:
            environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={need.memory_mib}M"
    return environment
