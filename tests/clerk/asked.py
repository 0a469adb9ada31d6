"""What a request asks, in the clerk's words: read from what was sent, never from the ledger."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from tests.clerk.tree import Amounts

__all__ = ["Asked", "Held", "Terms", "Vgpu", "numbers"]


class Vgpu(NamedTuple):
    """A type of vGPU as devices offer it: the least memory counts."""

    mib: int
    most: int
    type: str


class Held(NamedTuple):
    """What one lease has of one unit."""

    milli: int
    mib: int
    vgpu: str = ""
    encoders: int = 0
    decoders: int = 0


@dataclass
class Terms:
    """What is asked beside how much."""

    delivery: str
    architectures: tuple[str, ...] = ()
    capability: str = ""
    driver: str = ""
    spread: str = ""
    nvlink: bool = False
    licences: dict[str, int] = field(default_factory=dict)
    encoders: int = 0
    decoders: int = 0
    vgpu: Vgpu | None = None
    #: (from node, P99 at most, bandwidth at least)
    remote: tuple[str, int, int] | None = None

    @property
    def one_by_one(self) -> bool:
        """Say whether devices of one kind on one node are not alike for it."""
        apart = self.delivery in ("passthrough", "vgpu", "remote")
        return apart or self.nvlink or bool(self.encoders or self.decoders)


@dataclass
class Asked:
    """A request that is not over. ``ask`` is what it is counted as: whole, a share or slices."""

    id: str
    tenant: str
    project: str | None
    queue: str
    task: str
    ask: dict[str, Any]
    terms: Terms
    cpu: int
    memory: int
    priority: int
    preemptible: bool
    replicas_min: int
    run_us: int | None
    rank: tuple[int, int, int]
    reservation: str | None = None
    amounts: Amounts | None = None
    lease: str | None = None
    evicted: bool = False
    kept: dict[str, str] = field(default_factory=dict)
    used_us: int = 0

    @property
    def group(self) -> tuple[str, str]:
        """Requests of one source with one task id are replicas of it."""
        return self.id.partition("#")[0], self.task

    @property
    def held(self) -> Held:
        """What it has of a card of which it has a share, or an instance."""
        terms, mib = self.terms, self.ask.get("memory_mib", 0)
        if terms.vgpu is not None:
            return Held(1000 // terms.vgpu.most, mib, terms.vgpu.type)
        milli = self.ask.get("gpu_milli", 1000)
        return Held(milli, mib, "", terms.encoders, terms.decoders)


def numbers(version: str) -> list[int]:
    """Return a version as numbers, without zeros at its end; empty where it is not known."""
    found = [int(one) for one in version.split(".") if one]
    while found and not found[-1]:
        found.pop()
    return found
