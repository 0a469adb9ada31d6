"""Quotas as a clerk sees them: what flows up a tree, and what flows down.

Every quota has what is nominally its own and not its children's. What it does not
use may flow up to its parent, as far as it lends; what it lacks must flow down to
it, as far as it may borrow. A set of leases is allowed when nothing lacks anything
at the top. The core keeps sums instead; they must say the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Amounts", "Budget", "Node", "Tree"]

#: More than anybody has: stands for no limit.
ENDLESS = 1 << 60


@dataclass(frozen=True)
class Amounts:
    """What one lease takes, in every measure that a quota may be stated in."""

    milli: int
    model: str
    profile: str
    units: int
    mib: int

    def of(self, resource: str) -> int:
        """Return how much of the resource it takes."""
        if resource.startswith("model:"):
            return self.milli if resource == f"model:{self.model}" else 0
        if resource.startswith("profile:"):
            return self.units if resource == f"profile:{self.profile}" else 0
        return self.milli if resource == "gpu" else self.mib


@dataclass
class Budget:
    """GPU time of a period, since it was set: lease -> what it counts for, and when granted."""

    period_us: int
    most: int
    counted: dict[str, tuple[int, int]] = field(default_factory=dict)

    def left(self, now_us: int) -> int:
        """Return what is left of the period that it is."""
        here = now_us // self.period_us
        spent = sum(
            much
            for granted_us, much in self.counted.values()
            if granted_us // self.period_us == here
        )
        return self.most - spent


@dataclass
class Node:
    """One quota: its parent, and (nominal, borrowing, lending) of each resource."""

    parent: str | None
    limits: dict[str, tuple[int, int, int]]
    budget: Budget | None = None


class Tree:
    """All quotas. ``usage`` is given to every question: direct use by quota's name."""

    def __init__(self) -> None:
        """Start without any."""
        self.nodes: dict[str, Node] = {}

    def apply(self, event: dict[str, Any]) -> None:
        """Follow ``quota.applied``."""
        tenant, project = event["tenant"], event.get("project")
        name = tenant if project is None else f"{tenant}/{project}"
        plain = [
            {
                "resource": "gpu",
                "nominal": event["nominal_gpu_milli"],
                "borrowing": event.get("borrowing_gpu_milli"),
                "lending": event.get("lending_gpu_milli"),
            },
            *event.get("limits", ()),
        ]
        limits = {
            one["resource"]: (
                one["nominal"],
                _or_endless(one.get("borrowing")),
                _or_endless(one.get("lending")),
            )
            for one in plain
        }
        known = self.nodes.get(name)
        budget = known.budget if known is not None else None
        period_us, most = event.get("period_us"), event.get("budget_milli_us", 0)
        if period_us is None:
            budget = None
        elif budget is None or budget.period_us != period_us:
            budget = Budget(period_us, most)
        else:
            budget.most = most
        self.nodes[name] = Node(tenant if project else event.get("parent"), limits, budget)

    def holder(self, tenant: str, project: str | None) -> str:
        """Return the quota that a request counts against."""
        name = f"{tenant}/{project}"
        return name if project is not None and name in self.nodes else tenant

    def chain(self, name: str) -> Iterator[str]:
        """Yield the quota and those above it."""
        at: str | None = name
        while at is not None:
            yield at
            at = self.nodes[at].parent

    def root(self, name: str) -> str:
        """Return the topmost of the quota's tree."""
        return list(self.chain(name))[-1]

    def resources(self, name: str) -> set[str]:
        """Return what is limited at the quota or above it."""
        return {one for at in self.chain(name) for one in self.nodes[at].limits}

    def children(self, name: str) -> list[str]:
        """Return the quotas directly below."""
        return [one for one, node in self.nodes.items() if node.parent == name]

    def stated(self, name: str, resource: str) -> int:
        """Return the nominal total: the quota's own word, else the sum below."""
        limit = self.nodes[name].limits.get(resource)
        if limit is not None:
            return limit[0]
        return sum(self.stated(one, resource) for one in self.children(name))

    def says(self, name: str, resource: str) -> bool:
        """Say whether the quota, or one below it, has an amount of its own of the resource."""
        mine = resource in self.nodes[name].limits
        return mine or any(self.says(one, resource) for one in self.children(name))

    def surplus(self, name: str, resource: str, usage: Mapping[str, int]) -> int:
        """Return what the quota's subtree has over for its parent; negative is what it lacks."""
        below = self.children(name)
        limit = self.nodes[name].limits.get(resource)
        total = self.stated(name, resource) - sum(self.stated(one, resource) for one in below)
        own = total if limit is not None else 0
        counts = resource in self.resources(name)
        return (
            own
            - (usage.get(name, 0) if counts else 0)
            + sum(self.lent(one, resource, self.surplus(one, resource, usage)) for one in below)
        )

    def lent(self, name: str, resource: str, surplus: int) -> int:
        """Return what of a surplus goes up."""
        return min(surplus, self.nodes[name].limits.get(resource, (0, ENDLESS, ENDLESS))[2])

    def fault(self, name: str, resource: str, usage: Mapping[str, int]) -> str | None:
        """Say where what this quota uses is not covered, or None."""
        for at in self.chain(name):
            over = self.surplus(at, resource, usage)
            limit = self.nodes[at].limits.get(resource, (0, ENDLESS, ENDLESS))
            if self.nodes[at].parent is None:
                return None if over >= 0 else f"{at} lacks {-over} of {resource}"
            if over < -limit[1]:
                return f"{at} borrows {-over} of {resource}, more than {limit[1]}"
            if over >= limit[2]:
                # It still lends all that it may: nobody above notices.
                return None
        return None

    def within_own(
        self, name: str, resource: str, usage: Mapping[str, int], stop: set[str]
    ) -> bool:
        """Say whether what the quota uses is nominally its own, and so upwards to ``stop``."""
        if name in stop:
            # Against one below it, it has what is not theirs, and uses what is not theirs.
            below = sum(self.stated(one, resource) for one in self.children(name))
            limit = self.nodes[name].limits.get(resource)
            return limit is None or usage.get(name, 0) <= limit[0] - below
        for at in self.chain(name):
            if at in stop:
                return True
            if not self.says(at, resource):
                continue
            over = self.surplus(at, resource, usage)
            if over < 0:
                return False
            if over >= self.nodes[at].limits.get(resource, (0, ENDLESS, ENDLESS))[2]:
                return True
        return True

    def borrowed(self, name: str, usage: Mapping[str, Mapping[str, int]], stop: set[str]) -> int:
        """Return the most that the quota, or one above it below ``stop``, has of others."""
        most = 0
        for at in self.chain(name):
            if at in stop:
                break
            for resource, used in usage.items():
                if self.says(at, resource):
                    most = max(most, -self.surplus(at, resource, used))
        return most


def _or_endless(limit: int | None) -> int:
    return ENDLESS if limit is None else limit
