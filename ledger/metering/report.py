"""What rows add up to in a window: by tenant, project, queue, device or cause.

Each group's parts, and the parts of all groups together, sum to their present time x
capacity; the total says both numbers (M1). Time that nobody held is in no tenant's group
unless the policy lets it fall on one (M7).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ledger.metering.policy import POLICIES, MeteringPolicy
from ledger.metering.rows import OUTCOMES, PARTS, Ended, Row

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from ledger.metering.usage import UsageBook

__all__ = ["BY", "DENOMINATORS", "NOBODY", "Report", "Totals"]

#: The group of what is nobody's.
NOBODY = ""


def _project(row: Row) -> str:
    one = row.holding
    if one is None:
        return NOBODY
    return one.tenant if one.project is None else f"{one.tenant}/{one.project}"


#: The names by which rows are grouped.
BY: dict[str, Callable[[Row], str]] = {
    "tenant": lambda row: row.holding.tenant if row.holding else NOBODY,
    "project": _project,
    "queue": lambda row: row.holding.queue if row.holding else NOBODY,
    "device": lambda row: row.device,
    "cause": lambda row: f"{row.state} {row.cause}".strip(),
}

#: Groups by who holds; the others are about what is there.
_HOLDERS = frozenset({"tenant", "project", "queue"})
#: States whose rows belong to their holder whoever pays.
_HELD = frozenset({"allocated", "reserved"})

#: Utilisation is a part of one of these, and always says of which.
DENOMINATORS = {
    "bought": "since the device was first seen, present or not",
    "online": "present, on a node that is heard, and known of",
    "available": "leased or free to be leased: without maintenance, cleaning and what is unhealthy",
}
_OFFLINE = frozenset({"node-silent", "node-lost", "registering"})
#: How what is allocated may have ended; ``live``: it has not, by the last record read.
_ENDS = ("completed", "interrupted", "failed", "stopped", "live")
assert {*OUTCOMES.values(), "live"} == set(_ENDS)


@dataclass(slots=True)
class Totals:
    """The sums of a group, in ``milli_us`` and ``mib_us``; ``used_milli_us`` None: unmeasured.

    ``parts`` is by state, ``causes`` by state and cause, ``ends`` what became of the
    allocated time's work. ``requested`` and ``reserved`` are two numbers of their own:
    what was asked of the devices while they were allocated, and what counted against
    quotas, a kept place included. What was allocated is what was delivered.
    """

    parts: Counter[str] = field(default_factory=Counter)
    causes: Counter[tuple[str, str]] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    charged_milli_us: int = 0
    requested_milli_us: int = 0
    requested_mib_us: int = 0
    reserved_mib_us: int = 0
    delivered_mib_us: int = 0
    used_milli_us: int | None = None
    measured_us: int = 0
    held_us: int = 0

    @property
    def capacity_milli_us(self) -> int:
        """Return present time x capacity, from the presence rows."""
        return self.parts["present"]

    @property
    def parts_milli_us(self) -> int:
        """Return the sum of the parts, which for whole devices is the same number (M1)."""
        return sum(self.parts[name] for name in PARTS)

    @property
    def fragmentation_milli_us(self) -> int:
        """Return what was delivered beyond what was requested (M8)."""
        return self.parts["allocated"] - self.requested_milli_us

    def add(self, other: Totals) -> Self:
        """Add another group's sums."""
        self.parts.update(other.parts)
        self.causes.update(other.causes)
        self.ends.update(other.ends)
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        if other.used_milli_us is not None:
            self.used_milli_us = (self.used_milli_us or 0) + other.used_milli_us
        return self

    def plain(self) -> dict[str, Any]:
        """Return it as JSON has it: integers, None where nothing was measured."""
        parts = {f"{name}_milli_us": self.parts[name] for name in _STATES}
        ends = {f"{name}_milli_us": self.ends[name] for name in _ENDS}
        sums = {name: getattr(self, name) for name in _SUMS}
        causes = {
            f"{state} {cause}".strip(): amount
            for (state, cause), amount in sorted(self.causes.items())
            if amount
        }
        return {
            **parts,
            **ends,
            **sums,
            "used_milli_us": self.used_milli_us,
            "fragmentation_milli_us": self.fragmentation_milli_us,
            "fragmentation_mib_us": self.reserved_mib_us - self.requested_mib_us,
            "causes": causes,
        }

    def denominators(self) -> dict[str, int]:
        """Return the capacities that utilisation may be a part of (`DENOMINATORS`)."""
        online = self.parts["present"] - self.parts["unknown"]
        online -= sum(
            amount
            for (state, cause), amount in self.causes.items()
            if state in ("unavailable", "allocated") and cause in _OFFLINE
        )
        return {
            "bought": self.parts["present"] + self.parts["absent"],
            "online": online,
            "available": self.parts["allocated"] + self.parts["idle"],
        }

    def numerators(self) -> dict[str, int]:
        """Return what utilisation may be: allocated, busy (seen running), successful work."""
        return {
            "allocated": self.parts["allocated"],
            "busy": self.causes["allocated", "running"],
            "successful": self.ends["completed"],
        }


_STATES = (*PARTS, "present", "absent", "reserved")
_SUMS = (
    "charged_milli_us",
    "requested_milli_us",
    "requested_mib_us",
    "reserved_mib_us",
    "delivered_mib_us",
    "measured_us",
    "held_us",
)


class Report:
    """Sums rows of a window by group; rows and ends are given to `take` as they come.

    ``start_us`` and ``end_us`` bound the window, half-open; None leaves a side open.
    ``usage`` has what was measured, where something was.
    """

    def __init__(
        self,
        by: str = "tenant",
        start_us: int | None = None,
        end_us: int | None = None,
        policy: MeteringPolicy = POLICIES["pool"],
        usage: UsageBook | None = None,
    ) -> None:
        """Begin with nothing."""
        self.by = by
        self.policy = policy
        self.groups: dict[str, Totals] = {}
        self._key = BY[by]
        self._start_us = start_us
        self._end_us = end_us
        self._usage = usage
        #: Live lease -> group -> what it has had: what became of it is told by its end.
        self._live: dict[str, Counter[str]] = {}
        #: (cell, device) of those that were present.
        self.devices: set[tuple[str, str]] = set()

    def take(self, one: Row | Ended) -> None:
        """Count a row, or learn what became of a lease."""
        if isinstance(one, Ended):
            for group, amount in self._live.pop(one.lease, Counter()).items():
                self._totals(group).ends[one.outcome] += amount
            return
        start_us, end_us = one.start_us, one.end_us
        if self._start_us is not None:
            start_us = max(start_us, self._start_us)
        if self._end_us is not None:
            end_us = min(end_us, self._end_us)
        if start_us < end_us:
            self._count(one, start_us, end_us)

    def _count(self, row: Row, start_us: int, end_us: int) -> None:
        pays = self.policy.holder_pays_for(row)
        group = self._key(row)
        if self.by in _HOLDERS and row.state not in _HELD and not pays:
            group = NOBODY
        totals = self._totals(group)
        amount = row.milli * (end_us - start_us)
        totals.parts[row.state] += amount
        totals.causes[row.state, row.cause] += amount
        if pays:
            totals.charged_milli_us += amount
        if row.state == "present":
            self.devices.add((row.cell, row.device))
        if row.state == "allocated" and row.holding is not None:
            lease = row.holding.lease
            self._live.setdefault(lease, Counter())[group] += amount
            self._add_amounts(totals, row, start_us, end_us)

    def _add_amounts(self, totals: Totals, row: Row, start_us: int, end_us: int) -> None:
        part = Row(
            row.cell, row.node, row.pool, row.model, row.device, row.unit, row.state, row.cause,
            start_us, end_us, row.milli, row.holding,
        )  # fmt: skip
        totals.requested_milli_us += part.requested_milli_us
        totals.requested_mib_us += part.requested_mib_us
        totals.reserved_mib_us += part.reserved_mib_us
        totals.delivered_mib_us += part.delivered_mib_us
        totals.held_us += part.span_us
        if self._usage is not None and row.holding is not None:
            milli = 1000 if row.unit == row.device else abs(row.milli)
            used = self._usage.used(row.holding.lease, row.unit, start_us, end_us, milli)
            if used.milli_us is not None:
                sign = 1 if row.milli > 0 else -1
                totals.used_milli_us = (totals.used_milli_us or 0) + sign * used.milli_us
                totals.measured_us += sign * used.measured_us

    def _totals(self, group: str) -> Totals:
        found = self.groups.get(group)
        if found is None:
            found = self.groups[group] = Totals()
        return found

    def finish(self) -> dict[str, Totals]:
        """Count what has not ended as live, and return the groups, by name in order."""
        for groups in self._live.values():
            for group, amount in groups.items():
                self._totals(group).ends["live"] += amount
        self._live.clear()
        return dict(sorted(self.groups.items()))

    def total(self) -> Totals:
        """Return the sum of all groups."""
        total = Totals()
        for one in self.groups.values():
            total.add(one)
        return total
