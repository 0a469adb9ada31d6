"""What a request may ask of devices, by delivery mode."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from schemas.base import Model, Name, Text, Version, WholeMib

__all__ = [
    "Ask",
    "AutoAsk",
    "Labels",
    "Licences",
    "MigAsk",
    "Mode",
    "Models",
    "PassthroughAsk",
    "PlacedProfile",
    "Profile",
    "Remote",
    "ServiceClass",
    "Sessions",
    "ShareAsk",
    "Spread",
    "VgpuAsk",
    "VgpuName",
    "Where",
    "WholeAsk",
]

Labels = Annotated[dict[Name, Text], Field(max_length=32)]
Models = Annotated[tuple[Text, ...], Field(max_length=32)]


Licences = Annotated[dict[Name, Annotated[int, Field(ge=1, le=1_000_000)]], Field(max_length=16)]

Sessions = Annotated[int, Field(ge=0, le=1024)]

#: A vendor's name for a type of vGPU.
VgpuName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}$")]

ServiceClass = Literal["latency-sensitive", "elastic"]

#: The failure domain: the node, or what a label names.
Spread = Annotated[str, Field(pattern=r"^(node|label:[A-Za-z0-9][A-Za-z0-9._-]{0,62})$")]

#: How devices are given to a request.
Mode = Literal["whole", "mig", "share", "passthrough", "vgpu", "remote"]

Profile = Annotated[str, Field(pattern=r"^[0-9]{1,4}[gc]\.[0-9a-z.+-]{1,40}$")]


PlacedProfile = Annotated[str, Field(pattern=r"^[0-9]{1,4}[gc]\.[0-9a-z.+-]{1,40}(@[0-9]{1,2})?$")]


class Where(Model):
    """Constraints that every delivery mode shares; empty means any.

    ``labels`` must all be carried by the pool; ``models`` are exact device
    model names, ``architectures`` likewise; ``capability`` is the least compute
    capability, ``driver_min`` the least driver. What is not reported does not do.
    ``spread`` keeps the nodes of a gang, and replicas of one task, in failure domains
    of their own: nodes, or what a label of the node, else of its pool, names.
    """

    pool: Name | None = None
    labels: Labels = Field(default_factory=dict)
    models: Models = ()
    architectures: Models = ()
    capability: Version | None = None
    driver_min: Version | None = None
    spread: Spread | None = None


class Remote(Model):
    """The task runs on ``from_node`` and uses devices of another node over the network.

    Admitted only by evidence of the link that is fresh then (A12): a P99 latency and a
    bandwidth that are good enough.
    """

    from_node: Name
    p99_us_max: Annotated[int, Field(ge=1, le=1_000_000_000)]
    bandwidth_mbps_min: Annotated[int, Field(ge=0, le=1_000_000_000)] = 0


class WholeAsk(Where):
    """``count`` whole devices on each of ``nodes`` distinct nodes, all or nothing.

    ``count`` 0 asks for no device at all (a CPU-only task beside the others).
    ``memory_mib`` is the least device memory that will do. ``same_nvlink_domain``:
    the devices on a node are of one domain, and those of a gang too, where a domain
    spans nodes. ``encoder_sessions`` and ``decoder_sessions`` are of each device (A13).
    For what not every device of a node has, nobody is evicted and nothing planned.
    """

    mode: Literal["whole"] = "whole"
    count: Annotated[int, Field(ge=0, le=16)] = 1
    nodes: Annotated[int, Field(ge=1, le=1024)] = 1
    memory_mib: WholeMib = 0
    same_nvlink_domain: bool = False
    encoder_sessions: Sessions = 0
    decoder_sessions: Sessions = 0
    remote: Remote | None = None


class MigAsk(Where):
    """``count`` MIG slices of one profile.

    Instead of the profile the least memory and compute of a slice: of each kind of
    device the smallest profile that gives it will do. What is given is often more than
    what was asked; both are on record (M8).
    """

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [{"required": [one]} for one in ("profile", "memory_mib", "compute_slices")]
        }
    )

    mode: Literal["mig"]
    profile: Profile | None = None
    memory_mib: WholeMib = 0
    compute_slices: Annotated[int, Field(ge=0, le=64)] = 0
    count: Annotated[int, Field(ge=1, le=64)] = 1

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.profile is None) != bool(self.memory_mib or self.compute_slices):
            raise ValueError("give a profile, or memory_mib and compute_slices")
        return self


class ShareAsk(Where):
    """A share of one device: thousandths of its compute, memory in MiB, and media sessions."""

    mode: Literal["share"]
    gpu_milli: Annotated[int, Field(ge=1, le=1000)]
    memory_mib: WholeMib = 0
    encoder_sessions: Sessions = 0
    decoder_sessions: Sessions = 0
    remote: Remote | None = None


class PassthroughAsk(Where):
    """``count`` whole devices of one node, given to a machine by their PCI addresses.

    All devices of an IOMMU group go together, so groups must add up to ``count``.
    """

    mode: Literal["passthrough"]
    count: Annotated[int, Field(ge=1, le=16)] = 1
    memory_mib: WholeMib = 0


class VgpuAsk(Where):
    """One vGPU of a type, by its vendor's name for it; the device says what it is."""

    mode: Literal["vgpu"]
    type: VgpuName


class AutoAsk(Where):
    """What the pool's ``routing`` makes of it: whole, a MIG slice or a share (`PoolApply`).

    A share takes ``gpu_milli``, a slice ``compute_slices``, each takes ``memory_mib``.
    """

    mode: Literal["auto"]
    pool: Name
    gpu_milli: Annotated[int, Field(ge=1, le=1000)] = 1000
    compute_slices: Annotated[int, Field(ge=0, le=64)] = 0
    memory_mib: Annotated[int, Field(ge=1, le=1_000_000_000_000)]


Ask = Annotated[
    WholeAsk | MigAsk | ShareAsk | PassthroughAsk | VgpuAsk | AutoAsk, Field(discriminator="mode")
]
