"""What is on record in a window: decisions, who set which policy, faults, cleaning, alarms.

Each kind of thing is counted, and the first places where it stands are kept, so that a reader
can look at the records themselves.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from schemas.codes import CODES, Kind

if TYPE_CHECKING:
    from ledger.operations.measure import Window
    from ledger.reading import Seen

__all__ = ["POLICY_EVENTS", "Register", "time_of"]

#: Events of what people set or say, each with an author and a reason.
POLICY_EVENTS = frozenset(
    {
        "pool.applied",
        "placement.applied",
        "queue.applied",
        "quota.applied",
        "quota.asked",
        "quota.answered",
        "prices.applied",
        "template.applied",
        "compatibility.applied",
        "licence.applied",
        "reservation.applied",
        "reservation.cancelled",
        "device.cleared",
    }
)

#: Places that are kept of each kind of thing.
_PLACES = 3


def time_of(seen: Seen) -> int:
    """Return when a record was: of a decision in force as it says, of others as the log says.

    What a claim says is the clock of whoever wrote it.
    """
    return int(seen.data["time_us"]) if seen.verdict == "effective" else seen.record.time_us


class Register:
    """Counts one window. Records are given to `take`, void ones and claims too."""

    def __init__(self, window: Window) -> None:
        """Begin with nothing."""
        self.window = window
        self.counts: Counter[str] = Counter()
        self.places: dict[str, list[str]] = {}
        self.authors: Counter[str] = Counter()
        self.alarms: Counter[str] = Counter()
        self.refused_acts: Counter[str] = Counter()
        self.isolation: Counter[str] = Counter()
        self.cleans_us: list[int] = []
        self.partitions_us: list[int] = []
        #: Quota asked for -> who asked.
        self._asks: dict[str, str] = {}
        #: Order -> what it is for, and when it was given.
        self._orders: dict[str, tuple[str, int]] = {}

    def take(self, seen: Seen) -> None:
        """Count one record."""
        record, now_us = seen.data, time_of(seen)
        within = self.window.holds(now_us)
        if within:
            self.note(f"record {seen.verdict}", seen.position)
        if seen.verdict != "effective" or now_us >= self.window.end_us:
            return
        if within:
            self._outcome(record, seen.position)
        for event in record["events"]:
            if within:
                self.note(event["type"], seen.position)
                self._look(event, seen.position)
            self._follow(event, now_us, within=within, place=seen.position)

    def note(self, kind: str, place: str) -> None:
        """Count one thing, and keep its place if it is among the first."""
        self.counts[kind] += 1
        kept = self.places.setdefault(kind, [])
        if len(kept) < _PLACES and place not in kept:
            kept.append(place)

    def _outcome(self, record: dict[str, Any], place: str) -> None:
        """Count who was told no, other than those who asked for devices."""
        code = record["outcome"]["code"]
        self.note(f"outcome {code}", place)
        known = CODES.get(code)
        if record["source"][0] != "requests" or known is None or known.kind is Kind.YES:
            return
        self.note("refused with a code", place)
        if record["input"]["type"] != "request.submit":
            self.refused_acts[code] += 1
            self.note(f"refused {code}", place)

    def _look(self, event: dict[str, Any], place: str) -> None:
        """Count what an event says by itself."""
        kind = event["type"]
        author = event.get("author")
        if kind in POLICY_EVENTS:
            self.note("policy", place)
            if author and event.get("reason"):
                self.note("policy with author and reason", place)
        if author:
            self.authors[author] += 1
        if kind == "alarm.raised":
            self.alarms[event["code"]] += 1
            self.note(f"alarm {event['code']}", place)
        elif kind == "lease.granted":
            self.isolation[event.get("isolation", "hardware")] += 1
        elif kind == "device.health":
            self.note(f"device {event['health']}", place)
        elif kind == "node.changed":
            self.note(f"node {event['state']}", place)
        elif kind == "lease.stopping" and author:
            self.note("lease stopped by an operator", place)

    def _follow(self, event: dict[str, Any], now_us: int, *, within: bool, place: str) -> None:
        """Count what only two events tell: who answered whom, how long an order took."""
        kind = event["type"]
        if kind == "quota.asked":
            self._asks[event["ask"]] = event["author"]
        elif kind == "quota.answered":
            asked = self._asks.pop(event["ask"], None)
            if within and asked is not None and asked != event["author"]:
                self.note("quota answered by a second person", place)
        elif kind == "order.issued":
            self._orders[event["order"]] = (event["kind"], now_us)
            if within:
                self.note(f"{event['kind']} ordered", place)
        elif kind.startswith("order."):
            what, since_us = self._orders.pop(event["order"], ("", now_us))
            if not within or not what:
                return
            self.note(f"{what} {kind.removeprefix('order.')}", place)
            times = {"clean": self.cleans_us, "partition": self.partitions_us}.get(what)
            if times is not None and kind == "order.done":
                times.append(now_us - since_us)
