"""A cell whose tasks take time: submissions and ends in order of time, nodes that clean at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

import orjson

from bench.workload import CELL, Cell, inventory

if TYPE_CHECKING:
    from ledger.core.decide import Decision
    from ledger.core.state import State

__all__ = ["Site"]

_WHO = {"author": "bench", "reason": "a benchmark"}


@dataclass
class Site(Cell):
    """Drives a cell along its own clock. ``runs_us`` says how long each request's task takes.

    An evicted task begins again from its start. Nodes carry their orders out in no
    time, so what is measured is the ledger.
    """

    runs_us: dict[str, int] = field(default_factory=dict)
    granted_us: dict[str, int] = field(default_factory=dict)
    ended_us: dict[str, int] = field(default_factory=dict)
    evictions: int = 0
    decisions: int = 0
    _said: int = 0
    _ends: list[tuple[int, str]] = field(default_factory=list)

    @property
    def state(self) -> State:
        """The cell as it is now."""
        return self.fold.cell(CELL)

    def operator(self, name: str, **plain: Any) -> Decision:  # noqa: ANN401 - a record's fields
        """Apply a policy."""
        return self.say("requests", name, "/bench/operator", plain | _WHO)

    def nodes(self, count: int, gpus: int, pool: str = "main", first: int = 0) -> None:
        """Report so many nodes."""
        for number in range(first, first + count):
            node = f"n{number:05d}"
            report = inventory(node, gpus) | {"pool": pool}
            self.say("observations", "node.inventory", f"/nodes/{node}", report)

    def submit(self, name: str, plain: dict[str, Any], run_us: int | None = None) -> Decision:
        """Submit a request whose task will take so long, or until somebody ends it."""
        if run_us is not None:
            self.runs_us[f"/bench#{name}"] = run_us
        return self.say("requests", "request.submit", "/bench", plain, name)

    def say(
        self, topic: str, name: str, source: str, plain: dict[str, Any], event_id: str | None = None
    ) -> Decision:
        """Decide one input at the site's time, and follow what it led to."""
        self._said += 1
        at_us = self.now_us
        made = self.feed(topic, name, source, event_id or f"i{self._said}", orjson.dumps(plain))
        self.now_us = at_us
        self.decisions += 1
        for event in made.events:
            self._follow(event, made.time_us)
        self._answer()
        return made

    def _follow(self, event: dict[str, Any], at_us: int) -> None:
        kind = event["type"]
        if kind == "lease.granted":
            request = event["request"]
            self.granted_us.setdefault(request, at_us)
            run_us = self.runs_us.get(request)
            if run_us is not None:
                heappush(self._ends, (at_us + run_us, event["lease"]))
        elif kind == "lease.ended":
            self.evictions += event["reason"] == "preempted"
            if event["reason"] == "completed":
                self.ended_us[event["lease"].rpartition("/")[0]] = at_us

    def _answer(self) -> None:
        """Let the nodes do what they were told: stop and clean."""
        while self.state.orders:
            order = next(iter(self.state.orders.values()))
            said = {"node": order.node, "incarnation": "boot-1", "order": order.id}
            self._said += 1
            at_us = self.now_us
            made = self.feed(
                "observations", "order.done", f"/nodes/{order.node}", f"i{self._said}",
                orjson.dumps(said),
            )  # fmt: skip
            self.now_us = at_us
            self.decisions += 1
            for event in made.events:
                self._follow(event, made.time_us)

    def until(self, time_us: int | None) -> None:
        """End the tasks whose time has come by then, in order; None: all of them."""
        while self._ends and (time_us is None or self._ends[0][0] <= time_us):
            at_us, lease = heappop(self._ends)
            if lease in self.state.leases and self.state.leases[lease].state != "stopping":
                self.now_us = max(self.now_us, at_us)
                self.say("requests", "lease.release", "/bench", {"lease": lease})
        if time_us is not None:
            self.now_us = max(self.now_us, time_us)
