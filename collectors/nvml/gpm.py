"""GPM: counters of newer boards, for a whole device or one GPU instance of it.

NVML takes a sample of all counters; what they were in between is worked out from two. The
last sample is kept with the device, and let go of when its partitions change: an instance
that stands there then is another one, also under the same id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from collectors.nvml.calls import read
from collectors.nvml.codes import Code

if TYPE_CHECKING:
    from collectors.nvml.session import Kept

__all__ = ["Counters", "counters"]

#: GPM's numbers: any work was running, SMs were busy, memory's bandwidth was used.
_METRICS = (1, 2, 10)
_MOST_PERMILLE = 1000


class Counters(NamedTuple):
    """Thousandths of the time, or of what there is, since the sample before; None: unknown."""

    busy: int | None = None
    sm: int | None = None
    dram: int | None = None


_NONE = Counters()


def counters(kept: Kept, handle: Any, uuid: str, gi: int | None) -> Counters:
    """Take a sample of a device or of a GPU instance, and compare it with the one before."""
    if not kept.once("gpm_support", "gpm_support", handle, about=uuid).value:
        return _NONE
    key = ("gpm", gi)
    if key in kept.readings:
        return _NONE
    before, spare = kept.samples.get(key, (None, None))
    if spare is None:
        spare = read("gpm_alloc", about=uuid).value
        if spare is None:
            return _NONE
    if gi is None:
        taken = read("gpm_sample", handle, spare, about=uuid)
    else:
        taken = read("gpm_mig_sample", handle, gi, spare, about=uuid)
    if taken.why:
        # What was counted before is not followed by anything: begin again.
        kept.samples[key] = (None, spare)
        if taken.code == Code.NOT_SUPPORTED:
            kept.readings[key] = taken
        return _NONE
    kept.samples[key] = (spare, before)
    if before is None:
        return _NONE
    found = read("gpm_metrics", before, spare, _METRICS, about=uuid)
    return _NONE if found.why else Counters(*map(_plausible, found.value))


def _plausible(value: int | None) -> int | None:
    """Return a part of a thousand: more of it is a counter of something that is gone."""
    return value if value is not None and 0 <= value <= _MOST_PERMILLE else None
