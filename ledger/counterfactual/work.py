"""How long work and nodes would have taken: as they did where that is known, else estimated.

A lease that was granted in both worlds runs as the log has it, counted from its grant. One
that the log shows to its end tells how long its request runs in another lease as well. Of
what was interrupted, or never ran, the length is an assumption: `BASES` has them, and each
is counted, so that a report can say how much of it rests on what.
"""

from __future__ import annotations

from collections import Counter
from statistics import median_low
from typing import TYPE_CHECKING, Any, NamedTuple

from ledger.counterfactual.history import ENDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ledger.core.state import Lease, Request
    from ledger.counterfactual.history import Deed, History, Ordered, OrderKey, Run

__all__ = ["BASES", "LAST", "Cue", "Durations", "Reply", "Work"]

#: Behind every record of the log, at an equal time.
LAST = 1 << 62

#: What the length of a lease rests on, best first, in words.
BASES = {
    "recorded": "the same lease of the log, to its own end",
    "other-lease": "another lease of the request, that came to its own end",
    "expected": "the expected run time that the request states",
    "tenant-type": "the median of the tenant's requests of the same task type",
    "tenant": "the median of the tenant's requests",
    "max-run": "the longest run that the request or its queue allows",
    "all": "the median of all requests",
    "seen": "no longer than it was seen to run",
    "unknown": "nothing: to the end of the log",
}

#: Where nothing whatever is known of how long something takes.
_START_US, _STOP_US, _CLEAN_US, _STEP_US = 1_000_000, 1_000_000, 1_000_000, 1_000_000


class Cue(NamedTuple):
    """An input that is to come ``after_us`` after a grant; ``exact``: as the log has it."""

    after_us: int
    offset: int
    type: str
    node: str
    said: dict[str, Any]
    by: tuple[str, str, str] | None = None
    exact: bool = False


class Reply(NamedTuple):
    """What a node will answer to an order, or None in ``type``: nothing, as in the log."""

    after_us: int
    offset: int
    type: str | None
    said: dict[str, Any]
    exact: bool = False


class Durations(NamedTuple):
    """Medians of the log, in µs, each with the number of cases it is from."""

    start: tuple[int, int]
    stop: tuple[int, int]
    clean: tuple[int, int]
    partition_step: tuple[int, int]

    def plain(self) -> dict[str, dict[str, int]]:
        """Return it as JSON has it."""
        return {
            name: {"median_us": value[0], "cases": value[1]}
            for name, value in self._asdict().items()
        }


def _median(found: list[int], default: int) -> tuple[int, int]:
    return (median_low(found), len(found)) if found else (default, 0)


class Work:
    """What is known from a history that was read to its end, and what is assumed beside it."""

    def __init__(self, history: History) -> None:
        """Work out the medians."""
        self.history = history
        self.bases: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()
        self._issued: Counter[OrderKey] = Counter()
        self._whole: dict[str, Run] = {}
        by_type: dict[tuple[str, str], list[int]] = {}
        by_tenant: dict[str, list[int]] = {}
        starts: list[int] = []
        for run in history.runs.values():
            starts += _starts(run)
            if run.whole:
                self._whole[run.request] = run
                tenant, kind = history.tenant_of(run.request)
                held_us = run.held_us(history.last_us)
                by_type.setdefault((tenant, kind), []).append(held_us)
                by_tenant.setdefault(tenant, []).append(held_us)
        self._by_type = {key: median_low(held) for key, held in by_type.items()}
        self._by_tenant = {key: median_low(held) for key, held in by_tenant.items()}
        everybody = [one for held in by_tenant.values() for one in held]
        self._all = median_low(everybody) if everybody else None
        self.durations = self._durations(starts)

    def _durations(self, starts: list[int]) -> Durations:
        found: dict[str, list[int]] = {"stop": [], "clean": [], "partition": [], "mode": []}
        for key, orders in self.history.orders.items():
            for one in orders:
                if one.answer is not None and one.answer.type != "order.failed":
                    found[key[0]].append(one.answer.after_us // _steps_of(key))
        return Durations(
            _median(starts, _START_US),
            _median(found["stop"], _STOP_US),
            _median(found["clean"], _CLEAN_US),
            _median(found["partition"], _STEP_US),
        )

    # -- leases ------------------------------------------------------------------------

    def cues(self, lease: Lease, request: Request) -> list[Cue]:
        """Return what follows from a grant if nothing else comes in between, in no order."""
        history = self.history
        own = history.runs.get(lease.id)
        places = _places(own, lease) if own is not None else {}
        exact = own is not None and own.granted_us == lease.granted_us
        if own is not None and own.whole:
            self.bases["recorded"] += 1
            return list(_as_done(own.deeds, places, exact=exact))
        found = [] if own is None else list(_as_done(own.deeds, places, exact=exact))
        whole = self._whole.get(request.id)
        needed_us, basis = self._needed_us(request, whole)
        start_us = self.durations.start[0]
        if own is not None:
            # It was held so long, and had not ended; or not even begun.
            seen_us = own.held_us(history.last_us) + 1
            start_us = max(start_us, seen_us)
            needed_us, basis = max((needed_us, basis), (seen_us, "seen"))
        elif whole is not None:
            found += _as_done(_until_end(whole), _places(whole, lease), exact=False)
        if not any(cue.type == "task.started" for cue in found):
            needed_us = max(needed_us, start_us)
            found += [Cue(start_us, LAST, "task.started", node, {})
                      for node in lease.parts]  # fmt: skip
        self.bases[basis] += 1
        return [*found, *_ends(whole, needed_us, lease)]

    def _needed_us(self, request: Request, whole: Run | None) -> tuple[int, str]:
        """Return how long the request has to hold a lease until its work is done, and why."""
        if whole is not None:
            # To its last word, not to the lease's end: the rest of a gang that failed is stopped.
            worked_us = [deed for deed in whole.deeds if deed.type in ENDS][-1].after_us
            others = [one.held_us(self.history.last_us) for one in self._cut(request.id)]
            goes_on = request.id in self.history.checkpointed
            if goes_on or any(one >= worked_us for one in others):
                # It went on where it was interrupted, or it could not have ended so soon.
                before_us = self.history.used_us.get(request.id, 0)
                left_us = before_us + worked_us + sum(others) - request.used_us
                return max(left_us, self.durations.start[0]), "other-lease"
            return worked_us, "other-lease"
        if request.expected_run_us:
            return request.expected_run_us, "expected"
        tenant, kind = request.tenant, request.task_type
        for median_us, basis in (
            (self._by_type.get((tenant, kind)), "tenant-type"),
            (self._by_tenant.get(tenant), "tenant"),
            (request.max_run_us, "max-run"),
            (self._all, "all"),
        ):
            if median_us is not None:
                return median_us, basis
        return self.history.last_us, "unknown"

    def _cut(self, request: str) -> Iterable[Run]:
        return (one for one in self.history.attempts.get(request, ()) if not one.whole)

    # -- orders ------------------------------------------------------------------------

    def reply(self, key: OrderKey, units: Sequence[str], issued_us: int) -> Reply:
        """Return what the node will answer to this order: as in the log, or in the median time."""
        number = self._issued[key]
        self._issued[key] += 1
        known = self.history.orders.get(key, ())
        one = known[number] if number < len(known) else None
        same = one is not None and one.units == tuple(units)
        if one is not None and (same or key[0] == "stop"):
            exact = one.issued_us == issued_us
            if one.answer is not None:
                self.answers["recorded"] += 1
                answer = one.answer
                return Reply(answer.after_us, answer.offset if exact else LAST, answer.type,
                             answer.said, exact)  # fmt: skip
            if one.ignored:
                self.answers["ignored"] += 1
                return Reply(0, LAST, None, {}, exact)
        self.answers["median" if one is None or one.answer is not None else "none-there"] += 1
        return self._usual(key, one)

    def _usual(self, key: OrderKey, one: Ordered | None) -> Reply:
        kind = "partition_step" if key[0] in ("partition", "mode") else key[0]
        after_us = getattr(self.durations, kind)[0] * _steps_of(key)
        if one is not None and one.answer is not None:
            after_us = one.answer.after_us
        elif one is not None:
            # Until it was given up the node had not answered.
            closed_us = self.history.last_us if one.closed_us is None else one.closed_us
            after_us = max(after_us, closed_us - one.issued_us + 1)
        return Reply(after_us, LAST, "task.ended" if key[0] == "stop" else "order.done", {})


def _steps_of(key: OrderKey) -> int:
    """Return how many steps an order is: those of a partition order follow kind and device."""
    return max(len(key) - 2, 1) if key[0] == "partition" else 1


def _starts(run: Run) -> list[int]:
    return [deed.after_us for deed in run.deeds if deed.type == "task.started"]


def _places(run: Run, lease: Lease) -> dict[str, list[str]]:
    """Return on which nodes of the lease happens what happened on those of the run.

    A node of both stays itself; the others take each other's place in order, and what
    happened on the last happens on all that are left.
    """
    found: dict[str, list[str]] = {node: [node] for node in run.nodes if node in lease.parts}
    mine = [node for node in run.nodes if node not in found]
    others = [node for node in lease.parts if node not in found]
    for node, other in zip(mine, others, strict=False):
        found[node] = [other]
    last = run.nodes[-1]
    found.setdefault(last, []).extend(others[len(mine) :])
    return found


def _as_done(deeds: Iterable[Deed], places: dict[str, list[str]], *, exact: bool) -> Iterable[Cue]:
    for deed in deeds:
        for node in places.get(deed.node, ()) if deed.node else ("",):
            same = exact and node == deed.node
            yield Cue(
                deed.after_us, deed.offset if same else LAST, deed.type, node, deed.said, deed.by,
                same,
            )  # fmt: skip


def _until_end(run: Run) -> list[Deed]:
    return [deed for deed in run.deeds if deed.type not in ENDS]


def _ends(whole: Run | None, needed_us: int, lease: Lease) -> Iterable[Cue]:
    """Yield how the work ends: as that of the request once did, the last of it in so long."""
    if whole is None:
        for node in lease.parts:
            yield Cue(needed_us, LAST, "task.ended", node, {"how": "completed"})
        return
    ends = [deed for deed in whole.deeds if deed.type in ENDS]
    later_us = needed_us - ends[-1].after_us
    for cue in _as_done(ends, _places(whole, lease), exact=False):
        yield cue._replace(after_us=max(cue.after_us + later_us, 1))
