"""What a fleet of simulated nodes consists of, and the file that describes one.

A description is TOML or JSON: a cell, and groups of nodes that are alike. Every
id is derived from the names in it, so two starts of one fleet show the same
devices, as two boots of one machine do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, model_validator

from collectors.files import read_model
from schemas.base import Milli, Model, Name, Text, WholeMib
from schemas.observations import ProfileReport, SliceReport

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["DeviceSpec", "Fleet", "NodeSpec", "SliceSpec", "device_uuid", "mig_uuid", "read_fleet"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")

Profile = Annotated[str, Field(pattern=r"^[0-9]+[gc]\.[0-9a-z.+-]{1,40}$")]


class SliceSpec(Model):
    """One MIG slice that stands on a device from the start.

    ``start`` and ``size`` are its place in memory slices, ``compute_slices`` its
    part of the device's, ``memory_mib`` its memory.
    """

    profile: Profile
    start: Annotated[int, Field(ge=0, le=63)]
    size: Annotated[int, Field(ge=1, le=64)]
    compute_slices: Annotated[int, Field(ge=1, le=64)]
    memory_mib: WholeMib


class DeviceGroup(Model):
    """``count`` devices of one model, each with the same slices.

    ``profiles`` is what MIG instances can be made of one. With neither, MIG is off.
    """

    count: Annotated[int, Field(ge=1, le=64)]
    model: Text
    memory_mib: WholeMib
    architecture: Text | None = None
    compute_slices: Annotated[int, Field(ge=0, le=64)] = 0
    slices: Annotated[tuple[SliceSpec, ...], Field(max_length=64)] = ()
    profiles: Annotated[tuple[ProfileReport, ...], Field(max_length=32)] = ()


class NodeGroup(Model):
    """``count`` nodes that are alike.

    ``{}`` in ``name`` is where their numbers from 1 on go, ``{:03}`` with leading
    zeros; a group of one needs neither. ``cpu_milli`` and ``memory_mib`` are the
    host's, for what runs beside the devices; left out, they are not counted.
    """

    name: Text
    count: Annotated[int, Field(ge=1, le=10_000)] = 1
    pool: Name
    cpu_milli: Milli | None = None
    memory_mib: WholeMib | None = None
    devices: Annotated[tuple[DeviceGroup, ...], Field(max_length=64)] = ()

    def names(self) -> list[str]:
        """Return the names of the group's nodes."""
        return [self.name.format(number) for number in range(1, self.count + 1)]


class Fleet(Model):
    """A cell's simulated nodes."""

    cell: Name
    nodes: Annotated[tuple[NodeGroup, ...], Field(min_length=1, max_length=1000)]

    @model_validator(mode="after")
    def _names_are_names(self) -> Fleet:
        seen: set[str] = set()
        for group in self.nodes:
            try:
                names = group.names()
            except (AttributeError, LookupError, ValueError) as error:
                raise ValueError(f"{group.name!r} is no pattern such as 'gpu-{{:02}}'") from error
            for name in names:
                if not _NAME.fullmatch(name):
                    raise ValueError(f"{name!r} cannot be the name of a node")
                if name in seen:
                    raise ValueError(f"two nodes are called {name!r}; put {{}} into the name")
                seen.add(name)
        return self

    def specs(self) -> list[NodeSpec]:
        """Return every node of the fleet, in the order of the description."""
        return [_node(group, name) for group in self.nodes for name in group.names()]


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """One device: who it is, and what an inventory says of it.

    ``slices`` are the MIG instances on it after a boot, ``profiles`` what can be made of
    it; two empty tuples say that MIG is off.
    """

    uuid: str
    model: str
    memory_mib: int
    index: int
    architecture: str | None = None
    compute_slices: int = 0
    slices: tuple[SliceReport, ...] = ()
    profiles: tuple[ProfileReport, ...] = ()

    def report(self, health: str, slices: tuple[SliceReport, ...]) -> dict[str, Any]:
        """Return the device with these slices as the data of an inventory has it."""
        plain: dict[str, Any] = {
            "uuid": self.uuid,
            "model": self.model,
            "memory_mib": self.memory_mib,
            "health": health,
            "index": self.index,
            "architecture": self.architecture,
            "compute_slices": self.compute_slices,
            "mig_enabled": bool(self.slices or self.profiles),
            "slices": [one.model_dump() for one in slices],
        }
        if self.profiles:
            plain["profiles"] = [one.model_dump() for one in self.profiles]
        return plain


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One machine: its name, pool and devices, and the host's CPU and memory if counted."""

    name: str
    pool: str
    devices: tuple[DeviceSpec, ...] = ()
    cpu_milli: int | None = None
    memory_mib: int | None = None


def device_uuid(node: str, index: int) -> str:
    """Return the UUID of a node's device in NVIDIA's form, the same at every start."""
    return f"GPU-{_uuid(f'{node}/{index}')}"


def mig_uuid(device: str, name: str) -> str:
    """Return the MIG UUID of a device's slice, the same for the same name."""
    return f"MIG-{_uuid(f'{device}/{name}')}"


def _uuid(text: str) -> str:
    digits = blake2b(text.encode(), digest_size=16).hexdigest()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _node(group: NodeGroup, name: str) -> NodeSpec:
    kinds = [kind for kind in group.devices for _ in range(kind.count)]
    devices = tuple(_device(kind, name, index) for index, kind in enumerate(kinds))
    return NodeSpec(name, group.pool, devices, group.cpu_milli, group.memory_mib)


def _device(kind: DeviceGroup, node: str, index: int) -> DeviceSpec:
    uuid = device_uuid(node, index)
    slices = tuple(
        SliceReport(mig_uuid=mig_uuid(uuid, str(gi)), gi=gi, ci=0, **one.model_dump())
        for gi, one in enumerate(kind.slices, start=1)
    )
    return DeviceSpec(
        uuid, kind.model, kind.memory_mib, index, kind.architecture, kind.compute_slices, slices,
        kind.profiles,
    )  # fmt: skip


def read_fleet(path: Path) -> Fleet:
    """Read a fleet description; raise `collectors.files.BadFile` when it is none."""
    return read_model(path, Fleet)
