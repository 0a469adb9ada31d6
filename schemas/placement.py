"""What a pool's placement policy is told of the requests that come."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Self

from pydantic import Field, model_validator

from schemas.asks import Models
from schemas.base import Milli, Model, Name, Text, WholeMib
from schemas.requests import Policy

__all__ = ["HolePrice", "PlacementApply", "TypicalShape"]

_ALL_PPM = 1_000_000

#: [free thousandths of a device, what such a hole is worth in thousandths of a device].
HolePrice = tuple[Annotated[int, Field(ge=0, le=1000)], Annotated[int, Field(ge=0, le=1000)]]


class TypicalShape(Model):
    """A kind of request that comes often: ``count`` devices of ``gpu_milli`` each.

    ``models`` are those it may have; empty means any. ``share_ppm`` is its part of
    the requests, ``worth_ppm`` what a copy that still fits counts for
    ``least-waste``, both in millionths.
    """

    count: Annotated[int, Field(ge=0, le=16)]
    gpu_milli: Annotated[int, Field(ge=1, le=1000)] = 1000
    cpu_milli: Milli = 0
    host_memory_mib: WholeMib = 0
    models: Models = ()
    share_ppm: Annotated[int, Field(ge=0, le=_ALL_PPM)]
    worth_ppm: Annotated[int, Field(ge=0, le=100_000_000)] = 0


class PlacementApply(Policy):
    """Tell the placement policy of a pool what requests come (`ledger.core.policies`).

    ``gpuledger pool learn`` makes it of the requests received. ``shapes`` are the
    usual ones. ``holes`` are steps, both numbers ascending; without any a hole is
    worth its size. ``cpu_milli_per_gpu`` and ``memory_mib_per_gpu`` are what requests
    ask beside a device on average, 0 for nothing. ``cpu_load_milli`` is what all ask of
    CPU when they ask for all devices, in thousandths of the CPU there is, 0 for unknown.
    ``loads_milli`` is by model what requests that name their models ask of it then, in
    thousandths of the devices there are.
    """

    pool: Name
    shapes: Annotated[tuple[TypicalShape, ...], Field(max_length=1024)]
    holes: Annotated[tuple[HolePrice, ...], Field(max_length=1001)]
    cpu_milli_per_gpu: Milli
    memory_mib_per_gpu: WholeMib
    cpu_load_milli: Milli
    loads_milli: Annotated[dict[Text, Milli], Field(max_length=256)]

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        if sum(shape.share_ppm for shape in self.shapes) > _ALL_PPM:
            raise ValueError("the shares of the shapes are more than all requests")
        for before, after in pairwise(self.holes):
            if before[0] >= after[0] or before[1] > after[1]:
                raise ValueError("holes do not ascend")
        return self
