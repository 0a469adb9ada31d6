"""What happened to a request, step by step, from the records that name it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ledger.wording import numbers_text, sentence
from schemas.codes import CODES, Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ledger.reading import Seen

__all__ = ["REFUSED", "Step", "outcome_text", "steps"]

#: How the text of a refusal begins.
REFUSED = "refused: "


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that happened: where it is recorded, when, and in words."""

    position: str
    time_us: int
    text: str
    code: str | None = None
    numbers: Mapping[str, Any] | None = None


def steps(history: Iterable[Seen], request: str) -> Iterator[Step]:
    """Yield what the effective records say of a request and its leases, in their order."""
    leases = f"{request}/"
    for seen in history:
        if seen.verdict != "effective":
            continue
        data = seen.data
        hit = False
        for event in data["events"]:
            about = event.get("request", "")
            lease = event.get("lease", "")
            if about == request or lease.startswith(leases):
                hit = True
                yield _step(seen, event)
        given, outcome = data["input"], data["outcome"]
        if not hit and _concerns(given, request, leases):
            numbers = outcome.get("numbers", {})
            yes = CODES[outcome["code"]].kind is Kind.YES
            yield Step(
                seen.position,
                data["time_us"],
                outcome_text(data),
                None if yes else outcome["code"],
                numbers,
            )


def _step(seen: Seen, event: dict[str, Any]) -> Step:
    """Return the step of one event, with the code that explains it where it has one."""
    kind, time_us = event["type"], seen.data["time_us"]
    if kind == "request.rejected":
        text = f"{REFUSED}{event['code']} ({numbers_text(event['numbers'])})"
        return Step(seen.position, time_us, text, event["code"], event["numbers"])
    if kind == "request.queued":
        return Step(seen.position, time_us, sentence(event), event["code"], event["numbers"])
    if kind == "lease.granted":
        return Step(seen.position, time_us, sentence(event), "granted", event["why"])
    return Step(seen.position, time_us, sentence(event))


def _concerns(given: dict[str, Any], request: str, leases: str) -> bool:
    data = given["data"]
    return (
        f"{given['source']}#{given['id']}" == request
        or data.get("request") == request
        or str(data.get("lease", "")).startswith(leases)
    )


def outcome_text(data: Mapping[str, Any]) -> str:
    """Return what came in and how it was answered, for a decision without an event about it."""
    given, outcome = data["input"], data["outcome"]
    said = f"{given['type']} from {given['source']}: {outcome['code']}"
    numbers = outcome.get("numbers")
    return f"{said} ({numbers_text(numbers)})" if numbers else said
