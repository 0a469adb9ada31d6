"""What an agent says of its node's devices, and how that differs from what it said last.

Pure. While a device is being changed it is said to be as it was: what is half made is nobody's
business, and the order's answer tells what came of it. A device that is listed and cannot be
read is said to be as it was too, with health ``unknown``; one on which something was left is
``unhealthy`` until that is gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from collectors.nvml.report import health_of, node_inventory

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from collectors.agent.journal import Hold
    from collectors.nvml.host_facts import HostFacts
    from collectors.nvml.reader import Inventory
    from collectors.nvml.readings import Device
    from collectors.nvml.report import Note, Standing
    from schemas.observations import DeviceReport, NodeInventory

__all__ = ["same_but_health", "view"]


def view(
    inventory: Inventory,
    standing: Standing,
    facts: HostFacts,
    *,
    last: NodeInventory | None,
    known: Mapping[str, Device],
    changing: Collection[str],
    holds: Mapping[str, Hold],
    group_of: Callable[[str], str | None],
) -> tuple[NodeInventory | None, list[Note]]:
    """Return the node's inventory as it is to be said, without epoch and time; None: it has none.

    ``last`` is what was said last by this boot, ``known`` what was last read of devices.
    """
    now, notes = node_inventory(inventory, standing, facts, epoch=0, known=known, group_of=group_of)
    if now is None:
        # NVML itself does not work: nothing is gone for that, and nothing is known to be well.
        return None if last is None else _all_unknown(last), notes
    before = {} if last is None else {one.uuid: one for one in last.devices}
    told = {one.uuid: one for one in now.devices}
    read = {one.uuid: one for one in inventory.devices}
    reports: list[DeviceReport] = []
    for sighting in inventory.host.listed:
        uuid = sighting.uuid
        if uuid is None:
            continue
        report, old = told.get(uuid), before.get(uuid)
        if report is None:
            # Left out it would be gone, and what runs on it lost.
            if old is not None:
                health = health_of(read[uuid])[0] if uuid in read else "unknown"
                reports.append(old.model_copy(update={"health": health}))
            continue
        if uuid in changing and old is not None:
            report = old.model_copy(update={"health": report.health, "index": report.index})
        if uuid in holds:
            report = report.model_copy(update={"health": "unhealthy"})
        reports.append(report)
    return now.model_copy(update={"devices": tuple(reports)}), notes


def _all_unknown(last: NodeInventory) -> NodeInventory:
    devices = tuple(one.model_copy(update={"health": "unknown"}) for one in last.devices)
    return last.model_copy(update={"devices": devices})


def _without_health(one: NodeInventory) -> NodeInventory:
    devices = tuple(each.model_copy(update={"health": "healthy"}) for each in one.devices)
    return one.model_copy(update={"devices": devices, "epoch": 0, "node_time_us": None})


def same_but_health(one: NodeInventory, other: NodeInventory) -> bool:
    """Say whether two inventories differ in nothing but the health of devices, and their time."""
    return _without_health(one) == _without_health(other)
