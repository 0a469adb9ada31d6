"""The MIG layouts of a simulated node's devices, changed step by step as a driver would.

Without I/O. A step that cannot be done ends the change there: what was done stays done,
as on a real device, and the inventory tells.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from collectors.fleet.description import mig_uuid
from ledger.core.derived.makers import read_geometry
from ledger.core.mig.layouts import Instance, legal_starts
from schemas.observations import SliceReport

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from collectors.fleet.description import NodeSpec
    from collectors.light.tasks import RunningTask
    from ledger.core.mig.layouts import Geometry
    from schemas.events import PartitionStep
    from schemas.messages import Order

__all__ = ["Layouts"]


class Layouts:
    """What is on each device now; a boot puts back what its description says."""

    def __init__(self, spec: NodeSpec) -> None:
        """Start with what the node is described with."""
        self._spec = spec
        self._geometries: dict[str, Geometry | None] = {
            one.uuid: read_geometry(
                [each.model_dump() for each in one.profiles], one.compute_slices
            )
            for one in spec.devices
        }
        self._made = 0
        self.slices: dict[str, tuple[SliceReport, ...]] = {}
        self.boot()

    def boot(self) -> None:
        """Lose what was created since the last boot."""
        self.slices = {one.uuid: one.slices for one in self._spec.devices}

    def answer(self, order: Order, running: Iterable[RunningTask]) -> tuple[str, dict[str, Any]]:
        """Change a device; return what the node says of it: its type and its data."""
        made = self._carry_out(order, {unit for task in running for unit in task.units})
        if isinstance(made, str):
            return "order.failed", {"reason": made}
        return "order.done", {"slices": [one.model_dump() for one in made]}

    def _carry_out(self, order: Order, in_use: Collection[str]) -> list[SliceReport] | str:
        uuid = order.units[0]
        if uuid not in self.slices:
            return f"no device {uuid}"
        if order.kind == "mode":
            return "the MIG mode of a described device is as it is described"
        created: list[SliceReport] = []
        for step in order.steps:
            if step.do == "destroy":
                fault = self._destroy(uuid, step, in_use)
            else:
                fault = self._create(uuid, step)
            if fault is not None:
                return fault
            if step.do == "create":
                created.append(self.slices[uuid][-1])
        return created

    def _destroy(self, uuid: str, step: PartitionStep, in_use: Collection[str]) -> str | None:
        if step.mig_uuid in in_use:
            return f"{step.profile} at {step.start} is in use by another client"
        left = tuple(one for one in self.slices[uuid] if one.mig_uuid != step.mig_uuid)
        if len(left) == len(self.slices[uuid]):
            return f"no {step.profile} at {step.start}"
        self.slices[uuid] = left
        return None

    def _create(self, uuid: str, step: PartitionStep) -> str | None:
        there, geometry = self.slices[uuid], self._geometries[uuid]
        kind = None if geometry is None else geometry.profile(step.profile)
        occupied = [Instance(one.start, one.size, one.profile) for one in there]
        if geometry is None or kind is None:
            return f"no profile {step.profile}"
        if step.start not in legal_starts(geometry, occupied, step.profile):
            return "insufficient resources"
        self._made += 1
        number = min(set(range(1, len(there) + 2)) - {one.gi for one in there})
        new = SliceReport(
            mig_uuid=mig_uuid(uuid, f"made-{self._made}"),
            profile=kind.name,
            gi=number,
            ci=0,
            start=step.start,
            size=kind.size,
            compute_slices=kind.compute_slices,
            memory_mib=kind.memory_mib,
        )
        self.slices[uuid] = (*there, new)
        return None
