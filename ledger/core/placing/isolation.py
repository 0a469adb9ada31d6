"""How far what a lease has is its own, told with every grant that is not a device's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ledger.core.placing.passthrough import pci_addresses
from ledger.core.state import NO_POOL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ledger.core.state import Need, State

__all__ = ["given_by", "isolation_of"]


def given_by(state: State, need: Need, units: Sequence[str]) -> dict[str, Any]:
    """Return by what else than their ids the units are given; nothing where that is enough."""
    if need.delivery == "vgpu" and need.terms is not None:
        return {"vgpu_type": need.terms.vgpu_type}
    if need.delivery != "passthrough":
        return {}
    return {"pci_addresses": pci_addresses(state, units)}


def isolation_of(state: State, need: Need, node: str) -> dict[str, Any]:
    """Return what a grant on the node says of isolation; nothing where hardware gives it."""
    if need.mode != "share":
        return {}
    if need.delivery == "vgpu":
        return {"isolation": "scheduler"}
    factor = state.pools.get(state.nodes[node].pool, NO_POOL).memory_overcommit_permille
    risk = {"memory_overcommit_permille": factor} if factor > 1000 else {}  # noqa: PLR2004 - all
    return {"isolation": "none", **risk}
