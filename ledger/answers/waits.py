"""How long a request has waited for each of its leases, and each lease for its command."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ledger.reading import Seen

__all__ = ["Wait", "waits_of"]


@dataclass(frozen=True, slots=True)
class Wait:
    """From asking (``since_us``; of a later lease, from waiting again) to grant and start.

    ``started_us`` is when the start was first on record, None: not yet, or nobody says so;
    ``by`` is who says so, the ``requester`` of its command before the ``node`` of the lease
    being ready there. ``said_us`` is the requester's own clock at the start, a claim.
    """

    lease: str
    since_us: int
    granted_us: int
    started_us: int | None = None
    by: str = ""
    said_us: int | None = None


def waits_of(history: Iterable[Seen], request: str) -> tuple[Wait, ...]:
    """Return the waits of the request, one for each lease, from the records that name it."""
    found: dict[str, Wait] = {}
    since_us: int | None = None
    for seen in history:
        if seen.verdict != "effective":
            continue
        now_us = seen.data["time_us"]
        for event in seen.data["events"]:
            kind, lease = event["type"], event.get("lease", "")
            if event.get("request") == request:
                if kind == "request.received" or (kind == "request.queued" and event["again"]):
                    since_us = now_us
                elif kind == "lease.granted" and since_us is not None:
                    found[lease] = Wait(lease, since_us, now_us)
            elif lease in found:
                found[lease] = _started(found[lease], event, now_us)
    return tuple(found.values())


def _started(wait: Wait, event: dict[str, object], now_us: int) -> Wait:
    if event["type"] == "task.begun" and wait.by != "requester":
        said_us = event["said_us"]
        assert isinstance(said_us, int)
        return replace(wait, started_us=now_us, by="requester", said_us=said_us)
    if event["type"] == "lease.started" and not wait.by:
        return replace(wait, started_us=now_us, by="node")
    return wait
