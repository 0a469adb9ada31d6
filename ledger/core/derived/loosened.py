"""What is derived from the state, and what of it a decision has loosened: the data.

`ledger.core.derived.supply_index` follows devices and slices, `ledger.core.derived.index` all else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.core.derived.deadlines import Deadlines
from ledger.core.derived.makers import Makers
from ledger.core.derived.waiting import Waiting
from ledger.core.policies.ranking import KeptScores
from ledger.core.quotas.quota import root_of

if TYPE_CHECKING:
    from ledger.core.derived.places import (
        Cards,
        ClassKey,
        Slices,
    )
    from ledger.core.state import State

__all__ = ["Loosened"]


class Loosened:
    """Everything derived. ``freed`` and the like say what a decision has loosened."""

    __slots__ = (
        "_constrained",
        "_homes",
        "_matches",
        "_replicas",
        "apart",
        "beside",
        "booked",
        "cards",
        "changed",
        "deadlines",
        "floored",
        "freed",
        "held_back",
        "held_by",
        "held_in",
        "loosened_queues",
        "makers",
        "plans",
        "relieved",
        "repairs",
        "ripe",
        "scores",
        "shaken",
        "slices",
        "unsure",
        "waiting",
        "waits_on",
    )

    def __init__(self) -> None:
        """Start empty."""
        self.cards: dict[ClassKey, Cards] = {}
        self.slices: dict[ClassKey, Slices] = {}
        self.waiting = Waiting()
        self.deadlines = Deadlines()
        #: Classes in which something became free since the last pass.
        self.freed: set[ClassKey] = set()
        #: Trees of quotas, by their topmost, in which there is more room since the last pass.
        self.relieved: set[str] = set()
        #: Quotas of which something has ended since the last pass.
        self.changed: set[str] = set()
        #: Requests of whose kept place something has changed since the last pass.
        #: -> the units concerned; an empty name stands for all of them.
        self.ripe: dict[str, set[str]] = {}
        #: Request -> the unit of its kept place that was last seen not free: looked at first.
        self.waits_on: dict[str, str] = {}
        #: Requests whose planned nodes have changed since the last pass.
        self.shaken: set[str] = set()
        #: Requests whose kept place is clean, but not yet their quota or their node's CPU.
        self.held_back: set[str] = set()
        #: Node -> CPU and memory beside the devices that are kept there for requests.
        self.beside: dict[str, tuple[int, int]] = {}
        #: Node -> the waiting request for which it is planned.
        self.plans: dict[str, str] = {}
        #: Node -> the waiting gangs that had a part there, which is kept for them (A10).
        self.repairs: dict[str, dict[str, None]] = {}
        #: Node -> its reservations; and the reservations whose nodes have changed.
        self.booked: dict[str, dict[str, None]] = {}
        self.unsure: set[str] = set()
        #: Queues in which somebody may no longer be behind another since the last pass.
        self.loosened_queues: set[str] = set()
        #: Quota -> the leases that count against it.
        self.held_by: dict[str, dict[str, None]] = {}
        #: Topmost of a tree of quotas -> the quotas in it that leases count against.
        self.held_in: dict[str, dict[str, None]] = {}
        #: Replicas of a task -> their leases; None: nobody has asked yet.
        self._replicas: dict[tuple[str, str], dict[str, None]] | None = None
        #: Replicas of which some must stay -> how many of their leases say so (C25).
        self.floored: dict[tuple[str, str], int] = {}
        #: Device, slice or bare node -> the class and the node under which it is kept.
        self._homes: dict[str, tuple[ClassKey, str]] = {}
        self._matches: dict[tuple[object, ...], tuple[ClassKey, ...]] = {}
        #: Whether a need with terms was matched.
        self._constrained = False
        #: Task whose replicas are to be apart -> those of its requests that have a place kept.
        self.apart: dict[str, dict[str, None]] = {}
        #: Devices on which slices could be made.
        self.makers = Makers()
        #: What placement policies keep of a class.
        self.scores = KeptScores()

    def settle(self) -> None:
        """Forget what has been loosened: a pass has looked at it, or the record did."""
        if self.freed:
            self.freed.clear()
        if self.relieved:
            self.relieved.clear()
            self.changed.clear()
        if self.loosened_queues:
            self.loosened_queues.clear()

    def loosen(self, tag: str) -> None:
        """Let those be looked at again who wait for something beside devices and quota."""
        for shape in self.waiting.tagged(tag):
            self.freed.update(shape.classes)

    def ripe_for(self, request: str, unit: str = "") -> None:
        """Note that something of a kept place has changed: one unit, or perhaps any of them."""
        self.ripe.setdefault(request, set()).add(unit)

    def ripen(self) -> None:
        """Let those be looked at again who waited for more than their place."""
        for name in self.held_back:
            self.ripe_for(name)
        self.held_back.clear()

    def relieve(self, state: State, holder: str) -> None:
        """Note that there is more room in the tree of a quota.

        A kept place waits for its quota, too: for what is evicted of it, but what anybody
        of the tree gives back is room as well.
        """
        self.relieved.add(root_of(state, holder))
        self.changed.add(holder)
        if self.held_back:
            self.ripen()

    def due(self, state: State, due_us: int | None, kind: str, name: str) -> None:
        """Remember that something falls due."""
        self.deadlines.push(state, due_us, kind, name)

    def _shaken(self, node: str) -> None:
        """Note that what is planned on the node may not stand any more."""
        owner = self.plans.get(node)
        if owner is not None:
            self.shaken.add(owner)
        if node in self.booked or node in self.repairs:
            # Of what is kept there something is gone: more, or less, is left for others.
            self.unsure.update(self.booked.get(node, ()))
            self.freed.update(self.cards)
            self.freed.update(self.slices)
