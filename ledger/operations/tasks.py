"""What became of requests in a window: asked, refused, waited for, granted, interrupted, ended.

Events come in, counts go out. A wait is from when a request was let in, or went back to its
place after an interruption, until it was granted, or ended without. What happened before the
window is followed, and not counted.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from ledger.asked_words import need_text
from ledger.core.need import need_from_plain
from ledger.core.placing.placement import charge_of
from ledger.metering.rows import OUTCOMES
from ledger.operations.shapes import refused_shape

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.core.state import State
    from ledger.operations.measure import Window
    from ledger.operations.time_use import Hardware
    from ledger.reading import Seen

__all__ = ["Asked", "Shape", "Tasks", "Wait"]


@dataclass(slots=True)
class Shape:
    """A shape of request, and how it fared: all of the window but ``waiting`` (at its end).

    ``shape`` in words. ``had`` and the next four are of the requests that were asked in the
    window; ``waits_us`` are the waits that ended in a grant in it.
    """

    shape: str
    charge_milli: int = 0
    asked: int = 0
    had: int = 0
    refused: int = 0
    expired: int = 0
    withdrawn: int = 0
    waiting: int = 0
    waits_us: list[int] = field(default_factory=list)
    waited_milli_us: int = 0
    codes: Counter[str] = field(default_factory=Counter)

    @property
    def not_had(self) -> int:
        """Return how many of those asked never had what they asked for."""
        return self.refused + self.expired + self.withdrawn + self.waiting


@dataclass(slots=True)
class Asked:
    """A request that is not over. ``since_us`` is since when it waits; None: it has a lease.

    ``here``: it was asked within the window. ``hardware`` is where it last had a lease, or
    what it names: pool and models, either empty for any.
    """

    tenant: str
    shape: Shape
    charge_milli: int
    received_us: int
    here: bool
    pool: str
    models: tuple[str, ...]
    since_us: int | None
    code: str = ""
    granted: bool = False
    interrupted_us: int | None = None
    hardware: Hardware | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """A request waited: for what hardware, how much, from when to when, held back by what."""

    hardware: Hardware | None
    pool: str
    models: tuple[str, ...]
    charge_milli: int
    start_us: int
    end_us: int
    code: str


class Tasks:
    """Follows the requests of one window. Records are given to `take`; `finish` is called once."""

    def __init__(self, window: Window) -> None:
        """Begin with nothing."""
        self.window = window
        self.counts: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()
        self.interruptions: Counter[str] = Counter()
        self.held_back: Counter[str] = Counter()
        self.by_tenant: dict[str, Counter[str]] = {}
        #: Hardware -> leases granted there.
        self.grants: Counter[Hardware] = Counter()
        self.shapes: dict[str, Shape] = {}
        self.waits: list[Wait] = []
        self.waits_us: list[int] = []
        self.starts_us: list[int] = []
        self.repairs_us: list[int] = []
        self.live: dict[str, Asked] = {}
        #: Lease -> its request; and when those were granted whose task was not seen yet.
        self._leases: dict[str, str] = {}
        self._unstarted: dict[str, int] = {}

    def take(self, seen: Seen, state: State) -> None:
        """Follow one effective record; ``state`` is the cell's after it. Later ones are passed."""
        now_us = seen.data["time_us"]
        if now_us >= self.window.end_us:
            return
        at = _At(now_us, self.window.holds(now_us))
        for event in seen.data["events"]:
            rule = _RULES.get(event["type"])
            if rule is not None:
                rule(self, event, at)
            elif event["type"] == "request.received":
                self._received(event, state, at)
            elif event["type"] == "request.rejected" and at.within:
                self._rejected(event, refused_shape(state, seen.data))

    def finish(self, until_us: int) -> None:
        """Count what waits or runs at the end of the window; waits are known ``until_us``."""
        for asked in self.live.values():
            if asked.since_us is None:
                self.counts["running"] += 1
                continue
            self.counts["waiting"] += 1
            self._waited(asked, until_us)
            if asked.here and not asked.granted:
                asked.shape.waiting += 1

    def tenant(self, name: str) -> Counter[str]:
        """Return a tenant's counts, empty at first."""
        return self.by_tenant.setdefault(name, Counter())

    # -- events ----------------------------------------------------------------

    def _shape(self, text: str, charge_milli: int) -> Shape:
        found = self.shapes.get(text)
        if found is None:
            found = self.shapes[text] = Shape(text, charge_milli)
        return found

    def _received(self, event: dict[str, Any], state: State, at: _At) -> None:
        need = event["need"]
        charge_milli = charge_of(state, need_from_plain(need))
        shape = self._shape(need_text(need), charge_milli)
        self.live[event["request"]] = Asked(
            event["tenant"], shape, charge_milli, at.now_us, at.within, need.get("pool") or "",
            tuple(need.get("models", ())), at.now_us,
        )  # fmt: skip
        if at.within:
            shape.asked += 1
            self.counts["received"] += 1
            self.tenant(event["tenant"])["received"] += 1

    def _rejected(self, event: dict[str, Any], text: str) -> None:
        self.counts["rejected"] += 1
        self.refused[event["code"]] += 1
        self.tenant(event["tenant"])["refused"] += 1
        shape = self._shape(text, 0)
        shape.asked += 1
        shape.refused += 1
        shape.codes[event["code"]] += 1

    def queued(self, event: dict[str, Any], at: _At) -> None:
        """Note what holds a request back, and that it waits again if it had a lease."""
        asked = self.live[event["request"]]
        asked.code = event["code"]
        if event["again"]:
            asked.since_us = at.now_us
        if at.within:
            self.held_back[event["code"]] += 1
            asked.shape.codes[event["code"]] += 1

    def granted(self, event: dict[str, Any], at: _At) -> None:
        """End a wait with a lease."""
        asked = self.live[event["request"]]
        asked.hardware = (str(event["why"].get("pool", asked.pool)), event.get("model", ""))
        asked.charge_milli = event["charge_milli"]
        self._waited(asked, at.now_us)
        wait_us = at.now_us - (at.now_us if asked.since_us is None else asked.since_us)
        asked.since_us = None
        self._leases[event["lease"]] = event["request"]
        self._unstarted[event["lease"]] = at.now_us
        if at.within:
            self.counts["leases"] += 1
            self.grants[asked.hardware] += 1
            if not asked.granted:
                self.counts["granted"] += 1
                self.tenant(asked.tenant)["granted"] += 1
                self.waits_us.append(wait_us)
                asked.shape.waits_us.append(wait_us)
            if asked.interrupted_us is not None:
                self.counts["granted_again"] += 1
                self.repairs_us.append(at.now_us - asked.interrupted_us)
        if asked.here and not asked.granted:
            asked.shape.had += 1
        asked.granted, asked.interrupted_us = True, None

    def started(self, event: dict[str, Any], at: _At) -> None:
        """Note when the first node of a lease was seen running its task."""
        granted_us = self._unstarted.pop(event["lease"], None)
        if granted_us is not None and at.within:
            self.starts_us.append(at.now_us - granted_us)

    def lease_ended(self, event: dict[str, Any], at: _At) -> None:
        """Note the end of a lease, and whether it was taken away."""
        self._unstarted.pop(event["lease"], None)
        asked = self.live.get(self._leases.pop(event["lease"]))
        interrupted = OUTCOMES[event["reason"]] == "interrupted"
        if asked is not None and interrupted:
            asked.interrupted_us = at.now_us
        if at.within:
            self.counts["leases_ended"] += 1
            if interrupted:
                self.interruptions[event["reason"]] += 1

    def ended(self, event: dict[str, Any], at: _At) -> None:
        """Note the end of a request."""
        asked = self.live.pop(event["request"], None)
        if asked is None:
            return
        self._waited(asked, at.now_us)
        if at.within:
            self.ends[event["how"]] += 1
        if asked.here and not asked.granted:
            if event["how"] == "expired":
                asked.shape.expired += 1
            else:
                asked.shape.withdrawn += 1

    def _waited(self, asked: Asked, now_us: int) -> None:
        """Count the part of a wait that lies in the window."""
        if asked.since_us is None:
            return
        start_us = max(asked.since_us, self.window.start_us)
        if start_us >= now_us:
            return
        asked.shape.waited_milli_us += asked.charge_milli * (now_us - start_us)
        self.waits.append(
            Wait(
                asked.hardware, asked.pool, asked.models, asked.charge_milli, start_us, now_us,
                asked.code,
            )
        )  # fmt: skip


class _At(NamedTuple):
    """When a record was decided (UTC, µs), and whether that is within the window."""

    now_us: int
    within: bool


_RULES: dict[str, Callable[[Tasks, dict[str, Any], _At], None]] = {
    "request.queued": Tasks.queued,
    "lease.granted": Tasks.granted,
    "lease.started": Tasks.started,
    "lease.ended": Tasks.lease_ended,
    "request.ended": Tasks.ended,
}
