"""What metering says: rows of half-open time on a device, and what a lease had and how it ended.

A **part** row is a piece of one device's capacity in one state. The parts of a device
tile it: at every instant that the device is present their ``milli`` sum to 1000 (M1).
A **memo** row repeats time that part rows already hold, or that is no capacity, under a
name of its own; it is never added to them.

| state | is | causes |
|---|---|---|
| ``allocated`` | a lease lasts on it | running, idle, starting, over, node-silent, node-lost, \
unhealthy, health-unknown, quarantined |
| ``idle`` | nobody holds it, it could be leased | free, kept (for a request that is not yet \
granted), unpartitioned (of a MIG device: in no slice) |
| ``unavailable`` | nobody may be given it | cleaning, quarantined, unhealthy, maintenance, \
draining, node-silent, node-lost, registering, settling, repartition |
| ``unknown`` | nothing was known of it | unheard (from the node's last heartbeat until its \
silence was recorded), health-unknown, not-yet (after the last record) |
| ``present`` (memo) | the device is reported by its node: what the parts must sum to | |
| ``absent`` (memo) | the device was there before and is gone: bought, but not present | \
missing, held (by a lease that has not ended) |
| ``reserved`` (memo) | counts against a quota: from the place kept or the grant to the end (Q2) | |

Quantities are integers. Time on capacity is in ``milli_us``: thousandths of a device times
microseconds; one GPU-hour is 3,600,000,000,000 of them. A row with negative ``milli`` takes
back time of an earlier row: a fact that arrived late says that it was something else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "GPU_HOUR_MILLI_US",
    "MEMOS",
    "OUTCOMES",
    "PARTS",
    "Ended",
    "Holding",
    "Row",
    "clip",
]

#: States whose rows sum to present time x capacity.
PARTS = ("allocated", "idle", "unavailable", "unknown")
#: States whose rows are told beside.
MEMOS = ("present", "absent", "reserved")

#: One whole device for an hour.
GPU_HOUR_MILLI_US = 1000 * 3_600_000_000

#: Reason of a lease's end -> what became of the work. ``interrupted``: it was taken away or
#: broke under it. ``stopped``: its own user's word, or a limit it was given with.
OUTCOMES = {
    "completed": "completed",
    "failed": "failed",
    "cancelled": "stopped",
    "max-run": "stopped",
    "idle": "stopped",
    "reclaimed": "interrupted",
    "preempted": "interrupted",
    "quota-lowered": "interrupted",
    "node-lost": "interrupted",
    "node-restarted": "interrupted",
    "device-gone": "interrupted",
    "device-fault": "interrupted",
    "slice-gone": "interrupted",
    "stop-timed-out": "interrupted",
}


@dataclass(frozen=True, slots=True)
class Holding:
    """Who holds a unit, and what of it was asked, reserved and delivered (M8), for each unit.

    ``lease`` is empty while a place is only kept for the request. What the ask left open
    (``requested_milli``, ``requested_mib`` None) was asked as it is delivered: a whole card
    is whole, a named profile is that profile. ``reserved_milli`` is what the unit counts
    against the quota, rounded against the requester (C15). ``delivered_mib`` is None where
    nothing keeps the memory apart: a share is promised its memory, not given it.
    """

    lease: str
    request: str
    tenant: str
    project: str | None
    queue: str
    task: str
    task_type: str
    delivery: str
    profile: str
    requested_milli: int | None
    requested_mib: int | None
    reserved_milli: int
    reserved_mib: int
    delivered_mib: int | None
    reservation: str | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One piece of a device in one state, from ``start_us`` until before ``end_us`` (UTC, µs).

    ``unit`` is the device's UUID, or the id of the MIG slice that the piece is.
    ``holding`` says who held it; of cleaning, who left it to be cleaned; of a kept place,
    for whom it is kept; None where it was nobody's.
    """

    cell: str
    node: str
    pool: str
    model: str
    device: str
    unit: str
    state: str
    cause: str
    start_us: int
    end_us: int
    milli: int
    holding: Holding | None = None

    @property
    def span_us(self) -> int:
        """Return how long it is; negative for time that is taken back."""
        return self.end_us - self.start_us if self.milli >= 0 else self.start_us - self.end_us

    @property
    def milli_us(self) -> int:
        """Return capacity x time."""
        return self.milli * (self.end_us - self.start_us)

    @property
    def requested_milli_us(self) -> int:
        """Return what was asked of it x time: never more than what is there."""
        asked = None if self.holding is None else self.holding.requested_milli
        return self.milli_us if asked is None else min(asked, abs(self.milli)) * self.span_us

    @property
    def requested_mib_us(self) -> int:
        """Return the device memory asked x time; what was not asked is as it is reserved."""
        one = self.holding
        if one is None:
            return 0
        asked = one.reserved_mib if one.requested_mib is None else one.requested_mib
        return min(asked, one.reserved_mib) * self.span_us

    @property
    def reserved_mib_us(self) -> int:
        """Return the device memory kept for the holder x time."""
        return 0 if self.holding is None else self.holding.reserved_mib * self.span_us

    @property
    def delivered_mib_us(self) -> int:
        """Return the device memory x time that was the holder's own; of a share none is."""
        one = self.holding
        return 0 if one is None or one.delivered_mib is None else one.delivered_mib * self.span_us


class Ended(NamedTuple):
    """A lease is over: why, when (UTC, µs), and what became of its work (`OUTCOMES`)."""

    lease: str
    reason: str
    outcome: str
    at_us: int


def clip(row: Row, bounds: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """Yield (number of the window, start, end) of what of the row lies in each window.

    Window *n* is from ``bounds[n]`` until before ``bounds[n + 1]``: neighbours share a
    bound and no instant, so their sums are the sum of the whole (M2, C39).
    """
    for at in range(len(bounds) - 1):
        start_us, end_us = max(row.start_us, bounds[at]), min(row.end_us, bounds[at + 1])
        if start_us < end_us:
            yield at, start_us, end_us
