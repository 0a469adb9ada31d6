"""What only the walk over MIG devices has seen, beside what was listed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from collectors.nvml.readings import GpuInstance

if TYPE_CHECKING:
    from collections.abc import Iterable

    from collectors.nvml.readings import ComputeInstance

__all__ = ["merge", "profiles_of"]


def profiles_of(instance: GpuInstance) -> set[int | None]:
    """Return the profiles of its compute instances; None for one that was not listed."""
    return {one.profile for one in instance.compute}


def merge(
    listed: Iterable[GpuInstance], walked: dict[tuple[int, int], ComputeInstance]
) -> tuple[GpuInstance, ...]:
    """Put what only the walk has seen beside what was listed."""
    by_gi = {one.gi: one for one in listed}
    for (gi, ci), compute in walked.items():
        one = by_gi.get(gi, GpuInstance(gi, None, None, None))
        if all(each.ci != ci for each in one.compute):
            one = replace(one, compute=(*one.compute, compute))
        by_gi[gi] = one
    return tuple(by_gi[gi] for gi in sorted(by_gi))
