"""Whole lives of single requests, record by record: what a figure cannot show.

Of each kind the first one is kept. While a request lives its steps are, so what is held in
memory is bounded by what is alive.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ledger.metering.rows import OUTCOMES
from ledger.wording import sentence

if TYPE_CHECKING:
    from ledger.operations.measure import Window
    from ledger.reading import Seen

__all__ = ["LIFE", "QUOTA", "RECOVERY", "Stories", "Story"]

#: Kinds of story.
LIFE, RECOVERY, QUOTA = "life", "recovery", "quota"


@dataclass(slots=True)
class Story:
    """What happened to one thing: rows of time, place and words; ``numbers`` of the telling one."""

    about: str
    steps: list[dict[str, Any]] = field(default_factory=list)
    numbers: dict[str, Any] = field(default_factory=dict)
    interrupted: bool = False
    leases: list[str] = field(default_factory=list)

    def add(self, seen: Seen, words: str) -> None:
        """Add a step."""
        self.steps.append(
            {"time_us": seen.data["time_us"], "place": seen.position, "words": words}
        )  # fmt: skip


class Stories:
    """Follows a window; ``found`` has the first story of each kind once it is over."""

    def __init__(self, window: Window) -> None:
        """Begin with nothing."""
        self.window = window
        self.found: dict[str, Story] = {}
        self._live: dict[str, Story] = {}
        self._leases: dict[str, str] = {}
        #: Order to clean -> whose story it ends.
        self._cleans: dict[str, Story] = {}
        self._asks: dict[str, Story] = {}

    def take(self, seen: Seen) -> None:
        """Follow one effective record."""
        if not self.window.holds(seen.data["time_us"]):
            return
        for event in seen.data["events"]:
            self._event(seen, event)

    def _event(self, seen: Seen, event: dict[str, Any]) -> None:
        kind = event["type"]
        if kind == "request.received":
            self._live[event["request"]] = Story(event["request"])
        elif kind in ("quota.asked", "quota.answered"):
            self._quota(seen, event)
        elif kind == "order.issued" and event["kind"] == "clean":
            self._cleaning(seen, event)
            return
        elif kind.startswith("order.") and event["order"] in self._cleans:
            self._cleans.pop(event["order"]).add(seen, sentence(event))
        self._go_on(seen, event)

    def _go_on(self, seen: Seen, event: dict[str, Any]) -> None:
        """Add what is about a live request to its story."""
        story = self._story_of(event)
        if story is None:
            return
        kind = event["type"]
        story.add(seen, sentence(event))
        if kind == "lease.granted":
            story.leases.append(event["lease"])
            self._leases[event["lease"]] = story.about
        elif kind == "lease.ended" and OUTCOMES[event["reason"]] == "interrupted":
            story.interrupted = True
        elif kind == "request.ended":
            self._over(story, event)

    def _story_of(self, event: dict[str, Any]) -> Story | None:
        request = event.get("request") or self._leases.get(event.get("lease", ""))
        return None if request is None else self._live.get(request)

    def _over(self, story: Story, event: dict[str, Any]) -> None:
        """Keep a story that is the first of its kind, and forget all others."""
        del self._live[story.about]
        kind = RECOVERY if story.interrupted and len(story.leases) > 1 else LIFE
        told = event["how"] == "completed" and (kind == RECOVERY or not story.interrupted)
        if told and kind not in self.found:
            self.found[kind] = story
            return
        for lease in story.leases:
            self._leases.pop(lease, None)

    def _cleaning(self, seen: Seen, event: dict[str, Any]) -> None:
        """Let the cleaning of a story's lease be a part of it, also when the request is over."""
        request = self._leases.get(event["lease"])
        over = [one for one in self.found.values() if one.about == request]
        story = self._live.get(request or "") or (over[0] if over else None)
        if story is not None:
            self._cleans[event["order"]] = story
            story.add(seen, sentence(event))

    def _quota(self, seen: Seen, event: dict[str, Any]) -> None:
        if event["type"] == "quota.asked":
            self._asks[event["ask"]] = Story(event["ask"], numbers={"asked_by": event["author"]})
        story = self._asks.get(event["ask"])
        if story is None:
            return
        story.add(seen, sentence(event))
        if event["type"] == "quota.answered":
            story.numbers |= {"answered_by": event["author"], "approved": int(event["approve"])}
            self.found.setdefault(QUOTA, story)
