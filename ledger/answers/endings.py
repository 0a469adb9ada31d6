"""How leases of a request came to their end: by whom, under which rule, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from ledger.reading import Seen

__all__ = ["Ending", "endings_of"]


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of one lease.

    ``by`` is the request for which it was evicted or the operator who took it back,
    ``rule`` the rule it fell under (``priority`` or ``reclaim``), ``why`` the operator's
    words. ``ended_us`` None: its nodes have not stopped it yet. ``became`` says what
    the request did next: ``waits again``, ``granted again``, or how it ended.
    """

    lease: str
    reason: str
    told_us: int | None = None
    by: str | None = None
    rule: str | None = None
    why: str | None = None
    ended_us: int | None = None
    became: str | None = None


def endings_of(history: Iterable[Seen], request: str) -> tuple[Ending, ...]:
    """Return the ends of the request's leases, oldest first, from the records that name them."""
    found: dict[str, Ending] = {}
    last: str | None = None
    leases = f"{request}/"
    for seen in history:
        if seen.verdict != "effective":
            continue
        for event in seen.data["events"]:
            name = str(event.get("lease", ""))
            if name.startswith(leases) and event["type"] in ("lease.stopping", "lease.ended"):
                last = name
                found[name] = _told(found.get(name), seen, event)
            elif last is not None and event.get("request") == request:
                became = _became(event)
                if became is not None:
                    found[last] = replace(found[last], became=became)
    return tuple(found.values())


def _told(known: Ending | None, seen: Seen, event: dict[str, Any]) -> Ending:
    time_us, given = seen.data["time_us"], seen.data["input"]
    if event["type"] == "lease.ended":
        base = known or Ending(event["lease"], event["reason"])
        return replace(base, reason=event["reason"], ended_us=time_us)
    words = given["data"].get("reason") if given["type"] == "lease.reclaim" else None
    return Ending(
        event["lease"],
        event["reason"],
        time_us,
        event.get("by") or event.get("author"),
        event.get("rule"),
        words,
    )


def _became(event: dict[str, Any]) -> str | None:
    if event["type"] == "request.queued":
        return "waits again"
    if event["type"] == "lease.granted":
        return f"granted again: lease {event['lease']}"
    return f"ended: {event['how']}" if event["type"] == "request.ended" else None
