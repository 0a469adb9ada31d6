"""What is known of the requests that a pool gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Workload"]


@dataclass(slots=True)
class Workload:
    """The last `schemas.placement.PlacementApply` of a pool, field by field."""

    pool: str
    shapes: list[dict[str, Any]]
    holes: list[list[int]]
    cpu_milli_per_gpu: int
    memory_mib_per_gpu: int
    cpu_load_milli: int
    loads_milli: dict[str, int]
