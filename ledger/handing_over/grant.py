"""A grant as it is handed over: the parts of a reply, and what kind of thing each unit is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ledger.core.placing.grant import reply_parts
from schemas.messages import ReplyPart

if TYPE_CHECKING:
    from ledger.core.state import State

__all__ = ["CDI_KIND", "Kind", "NotSayable", "Part", "parts_of"]

#: Vendor and class of the CDI names in a reply (`ledger.core.placing.grant`).
CDI_KIND = "nvidia.com/gpu"

_PERCENTAGE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"


class NotSayable(ValueError):
    """The format has no words for what was granted; the message says which of it, and why."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What a unit is: a device of this model, or a MIG slice of it.

    ``index`` is where the node last saw the device: a sighting, never an identity (C01).
    """

    model: str
    profile: str = ""
    index: int | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """What is granted on one node: as a reply has it, and the kinds of its units, in order.

    A reply alone does not say kinds; formats that name models cannot be had of it.
    """

    given: ReplyPart
    kinds: tuple[Kind, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The UUIDs that a process is to use; none where a machine is given devices."""
        return tuple(name.removeprefix(f"{CDI_KIND}=") for name in self.given.cdi)

    @property
    def mps_percentage(self) -> int | None:
        """How much of the one device a share may use, in per cents; None: all of what it has."""
        text = self.given.environment.get(_PERCENTAGE)
        return None if text is None else int(text)

    def for_processes(self) -> Part:
        """Return itself; raise `NotSayable` where devices are given to a machine."""
        if self.given.pci_addresses or self.given.vgpu_type:
            what = self.given.vgpu_type or ", ".join(self.given.pci_addresses)
            raise NotSayable(f"{what} on {self.given.node} is given to a machine, not to a process")
        return self

    def known_kinds(self) -> tuple[Kind, ...]:
        """Return the kinds; raise `NotSayable` where only the reply is known."""
        if len(self.kinds) != len(self.given.units):
            raise NotSayable("a reply does not say the models of devices; ask the ledger's state")
        return self.kinds


def parts_of(state: State, lease: str) -> list[Part]:
    """Return the parts of a lease that has not ended; none when there is no such lease."""
    held = state.leases.get(lease)
    if held is None:
        return []
    need = state.requests[held.request].need
    plain = [{"node": one.node, "units": one.units} for one in held.parts.values()]
    return [
        Part(
            ReplyPart.model_validate(one, strict=False),
            tuple(_kind(state, unit) for unit in one["units"]),
        )
        for one in reply_parts(state, need, plain)
    ]


def _kind(state: State, unit: str) -> Kind:
    item = state.slices.get(unit)
    device = state.devices[unit if item is None else item.device]
    return Kind(device.model, "" if item is None else item.profile, device.index)
