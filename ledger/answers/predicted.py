"""Estimated starts held against the real ones, from the records alone. Pure."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ledger.reading import Seen

__all__ = ["Predicted", "PredictedRow"]

#: A start within so much of its estimate counts as near, in µs.
_NEAR_US = 60_000_000


@dataclass(frozen=True, slots=True)
class PredictedRow:
    """How well one basis told the starts. Errors are actual less predicted, in µs.

    ``waits`` is how often a request had to wait, ``predicted`` how often a start was
    estimated, ``started`` how many of those have started by now. ``p50_us`` and the
    like are quantiles of the errors; negative is earlier than predicted.
    """

    basis: str
    waits: int
    predicted: int
    started: int
    early_us: int | None
    p50_us: int | None
    p90_us: int | None
    p99_us: int | None
    within_60s: int


@dataclass(slots=True)
class Predicted:
    """Collects waits and starts while records go by; each of them is given to `take`."""

    _open: dict[str, tuple[str, int]] = field(default_factory=dict)
    _waits: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    _errors: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

    def take(self, seen: Seen) -> None:
        """Add one record."""
        if seen.verdict != "effective":
            return
        for event in seen.data["events"]:
            if event["type"] == "request.queued":
                self._queued(event)
            elif event["type"] == "request.planned" and event["start_us"] is not None:
                # The first plan is the promise; what is planned again later is not held to it.
                name = f"plan of {event['request']}"
                if name not in self._open:
                    self._waits["plan"] += 1
                    self._open[name] = ("plan", event["start_us"])
            elif event["type"] == "lease.granted":
                self._started(event["request"], seen.data["time_us"])
            elif event["type"] == "request.ended":
                self._open.pop(event["request"], None)
                self._open.pop(f"plan of {event['request']}", None)

    def _queued(self, event: dict[str, Any]) -> None:
        start_us = event.get("estimate_us")
        basis = "unknown" if start_us is None else event.get("estimate_basis", "")
        self._waits[basis] += 1
        if start_us is not None:
            self._open[event["request"]] = (basis, start_us)

    def _started(self, request: str, time_us: int) -> None:
        for name in (request, f"plan of {request}"):
            known = self._open.pop(name, None)
            if known is not None:
                self._errors[known[0]].append(time_us - known[1])

    def rows(self) -> list[PredictedRow]:
        """Return a row for each basis, and one for all."""
        rows = [self._row(basis, [basis]) for basis in sorted(self._waits) if basis != "unknown"]
        if "unknown" in self._waits:
            rows.append(self._row("unknown", ["unknown"]))
        # A plan is a second word on a wait that is counted already.
        return [*rows, self._row("all", [one for one in self._waits if one != "plan"])]

    def _row(self, name: str, bases: Sequence[str]) -> PredictedRow:
        errors = sorted(error for basis in bases for error in self._errors.get(basis, ()))
        waits = sum(self._waits[basis] for basis in bases)
        return PredictedRow(
            name,
            waits,
            waits - (self._waits["unknown"] if "unknown" in bases else 0),
            len(errors),
            errors[0] if errors else None,
            _quantile(errors, 50),
            _quantile(errors, 90),
            _quantile(errors, 99),
            sum(abs(error) <= _NEAR_US for error in errors),
        )


def _quantile(values: Sequence[int], percent: int) -> int | None:
    """Return the least value that so many per cent of all do not exceed."""
    return values[max(0, -(-len(values) * percent // 100) - 1)] if values else None
