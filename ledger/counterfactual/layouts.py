"""Which slices a node would report where another world has made others on its devices.

A device on which both worlds had the same partition orders carried out, in the same order,
has what the log says. Where they had others, a recorded inventory says of it what this
world has made instead, until the node starts anew: then it is as the log has it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ledger.counterfactual.changes import slices_of

if TYPE_CHECKING:
    from ledger.core.state import State

__all__ = ["Layouts", "made_by"]

#: Instance ids of slices that only this world has; a node counts its own from 0.
_FIRST_GI = 1000


class Layouts:
    """Follows the partition orders that are carried out, there (in the log) and here."""

    def __init__(self) -> None:
        """Begin where both worlds are the same."""
        self._here: dict[str, list[object]] = {}
        self._there: dict[str, list[object]] = {}

    def there(self, device: str, what: object) -> None:
        """Note what was done to a device in the log."""
        self._there.setdefault(device, []).append(what)

    def here(self, device: str, what: object) -> None:
        """Note what was done to a device in this world; the same is equal."""
        self._here.setdefault(device, []).append(what)

    def inventory(self, state: State, data: dict[str, Any]) -> dict[str, Any]:
        """Return a recorded inventory as this world's node would tell it."""
        node = state.nodes.get(data["node"])
        if node is None or node.incarnation != data["incarnation"]:
            for report in data["devices"]:
                self._here.pop(report["uuid"], None)
                self._there.pop(report["uuid"], None)
            return data
        devices = [self._report(state, report) for report in data["devices"]]
        return data | {"devices": devices}

    def _report(self, state: State, report: dict[str, Any]) -> dict[str, Any]:
        uuid = report["uuid"]
        device = state.devices.get(uuid)
        if device is None or self._here.get(uuid) == self._there.get(uuid):
            return report
        return report | {"slices": [one.model_dump() for one in slices_of(state, device)]}


def made_by(state: State, order: str, device: str) -> list[dict[str, Any]]:
    """Return the slices that a node would report to have made by an order."""
    items = (state.slices[name] for name in state.devices[device].slices)
    return [
        {
            "mig_uuid": f"MIG-whatif-{one.id}", "profile": one.profile,
            "gi": _FIRST_GI + one.start, "ci": 0, "start": one.start, "size": one.size,
            "compute_slices": one.compute_slices, "memory_mib": one.memory_mib,
        }
        for one in items
        if one.order == order and not one.mig_uuid
    ]  # fmt: skip
