"""Why a request was answered as it was: every rule in order, with the numbers compared.

Pure. For a request that waits the rules are looked at again on the state as it
is now, by the same functions that decide; for one that has its answer the
recorded code and numbers tell, because the state it was decided on is gone.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from ledger.answers.changes import changes_of
from ledger.answers.endings import endings_of
from ledger.answers.evictions import evictions_of
from ledger.answers.holders import NAMED, OF_QUOTA, holders_of, line_of, out_of_use
from ledger.answers.levels import levels_of
from ledger.answers.outages import outages_of
from ledger.answers.placed import amounts_of, granting
from ledger.answers.reasons import reason_text
from ledger.answers.rules import ADVICE, RULES, Rule, asking_of, live_rules, up_to
from ledger.answers.submission import asking_for, still_refused, submitted, unsaid
from ledger.answers.trials import Change, runs
from ledger.answers.waits import waits_of
from ledger.core.line.estimate import estimate
from ledger.core.line.schedule import examine, reason_to_wait
from ledger.core.placing.placement import Placement
from ledger.steps import REFUSED, steps
from ledger.wording import listed
from schemas.codes import CODES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ledger.answers.endings import Ending
    from ledger.answers.evictions import Evictions
    from ledger.answers.holders import Holder, Line
    from ledger.answers.levels import Level
    from ledger.answers.outages import Outage, Outages
    from ledger.answers.placed import Amounts, Placed
    from ledger.answers.rules import Asking
    from ledger.answers.waits import Wait
    from ledger.core.line.estimate import Estimate
    from ledger.core.state import Request, State
    from ledger.reading import Seen
    from ledger.steps import Step
    from schemas.requests import RequestSubmit

__all__ = ["Ambiguous", "Explanation", "held_back", "resolve", "why"]

#: Codes of a no for which it is told who could be evicted, and why nobody else.
_EVICTABLE = frozenset({"no_capacity", "quota_in_use", "planned_for_another", "no_such_hardware"})


@dataclass(frozen=True, slots=True)
class Explanation:
    """The whole answer.

    ``status`` is ``waiting``, ``reserved``, ``granted``, ``running``, ``stopping``,
    ``refused`` or how the request ended; ``reason`` is the code in words. What keeps
    a request waiting is completed by ``holders_more`` and ``out_of_use``, whose causes are
    ``outages``; ``quota`` has its levels from the quota charged upwards.
    """

    request: str
    cell: str
    status: str
    code: str
    advice: str | None
    rules: tuple[Rule, ...]
    steps: tuple[Step, ...] = ()
    reason: str = ""
    line: Line | None = None
    holders: tuple[Holder, ...] = ()
    holders_more: int = 0
    out_of_use: tuple[str, ...] = ()
    outages: tuple[Outage, ...] = ()
    quota: tuple[Level, ...] = ()
    evictions: Evictions | None = None
    changes: tuple[Change, ...] = ()
    estimate: Estimate | None = None
    kept: dict[str, list[str]] | None = None
    waits: tuple[Wait, ...] = ()
    endings: tuple[Ending, ...] = ()
    placed: Placed | None = None
    amounts: Amounts | None = None

    def plain(self) -> dict[str, Any]:
        """Return the explanation as one JSON object."""
        return asdict(self)


class Ambiguous(ValueError):
    """A short id stands for several things; ``candidates`` are their whole ids."""

    def __init__(self, name: str, candidates: Iterable[str]) -> None:
        self.candidates = tuple(sorted(candidates))
        super().__init__(f"{name} is {len(self.candidates)} things: {', '.join(self.candidates)}")


def resolve(states: Iterable[State], name: str) -> str:
    """Return the whole id of a request or lease named without its source; others as they are.

    Raise `Ambiguous` when several sources have used the id.
    """
    if "#" in name:
        return name
    short, slash, attempt = name.partition("/")
    ending = f"#{short}"
    found = {
        key
        for state in states
        for kept in (state.requests, state.seen)
        for key in kept
        if key.endswith(ending)
    }
    if len(found) > 1:
        raise Ambiguous(name, found)
    return f"{found.pop()}{slash}{attempt}" if found else name


def why(
    state: State, history: Iterable[Seen], request: str, outages: Outages | None = None
) -> Explanation | None:
    """Explain a request (``source#id``) of the cell; None when the cell has never seen it.

    ``state`` is the cell as it is now, ``history`` the records of its partition
    (others than the request's may be among them). ``outages`` are those of all of its
    records; without them they are taken from ``history``.
    """
    history = tuple(history)
    outages = outages_of(history) if outages is None else outages
    happened = tuple(steps(history, request))
    known = state.requests.get(request)
    if known is None and state.seen.get(request) is None and not happened:
        return None
    if known is not None and known.state == "queued":
        found = _waiting(state, known, outages)
    elif known is not None and known.state == "reserved":
        found = _reserved(state, known, outages)
    elif known is not None:
        lease = state.leases[known.lease or ""]
        found = Explanation(request, state.cell, lease.state, "granted", None, _all_met(happened))
    else:
        found = _over(state, request, happened, submitted(history, request))
    given = granting(history, request)
    received = _received(history, request)
    return replace(
        found,
        steps=happened,
        waits=waits_of(history, request),
        endings=endings_of(history, request),
        amounts=amounts_of(state, received, given[1]) if given and received else None,
    )


def _received(history: Iterable[Seen], request: str) -> dict[str, Any] | None:
    for seen in history:
        for event in seen.data.get("events", ()) if seen.verdict == "effective" else ():
            if event["type"] == "request.received" and event["request"] == request:
                return dict(event)
    return None


def _over(
    state: State, request: str, happened: tuple[Step, ...], asked: RequestSubmit | None
) -> Explanation:
    """Explain a request that has ended, or an input that never was one, by its records."""
    refused = next((step for step in happened if step.text.startswith(REFUSED)), None)
    if refused is not None and refused.code is not None:
        numbers = dict(refused.numbers or {})
        return Explanation(
            request, state.cell, "refused", refused.code, ADVICE.get(refused.code),
            up_to(refused.code, numbers), reason=reason_text(refused.code, numbers),
            changes=_asked_again(state, request, asked, refused.code),
        )  # fmt: skip
    entry = state.seen.get(request)
    status = str(entry[3]) if entry is not None and len(entry) > _INPUT_ONLY else "ended"
    granted = any(step.code == "granted" for step in happened)
    queued = [step for step in happened if step.code in RULES]
    if not granted and queued:
        code, numbers = queued[-1].code or "", dict(queued[-1].numbers or {})
        rules, reason = up_to(code, numbers), reason_text(code, numbers)
        if entry is not None and len(entry) <= _INPUT_ONLY:
            status, rules = "refused", ()
    else:
        code, reason = "granted" if granted else "", ""
        rules = _all_met(happened) if granted else ()
    return Explanation(request, state.cell, status, code, None, rules, reason=reason)


def _asked_again(
    state: State, request: str, asked: RequestSubmit | None, code: str
) -> tuple[Change, ...]:
    """Say what would let a refused request run if it were asked for again now."""
    asking = None if asked is None else asking_for(state, asked, f"{request} again")
    if asking is None or asked is None:
        return ()
    lacks = listed(unsaid(state, asked))
    if runs(state, asking) is not None:
        if lacks:
            return (Change("say", "requester", f"it says {lacks} itself", {}, tried=False),)
        if still_refused(state, asked, request):
            return ()
        return (Change("again", "requester", "the same request, asked again with a new id", {}),)
    start = estimate(state, asking.asker, state.now_us)
    found = tuple(changes_of(state, asking, code, start))
    if lacks:
        # None of them alone would do: its template refuses it again.
        also = f", and it says {lacks} itself"
        return tuple(replace(one, text=one.text + also, tried=False) for one in found)
    return found


#: How long an entry of ``State.seen`` is that is no request's.
_INPUT_ONLY = 3


def _all_met(happened: tuple[Step, ...]) -> tuple[Rule, ...]:
    """Return all rules as met, the last with what the grant's record says."""
    granted = [step for step in happened if step.code == "granted"]
    numbers = dict(granted[-1].numbers or {}) if granted else {}
    return tuple(
        Rule(name, text, "met", numbers if name == "no_capacity" else {})
        for name, text in RULES.items()
    )


# -- requests that wait -----------------------------------------------------------


def _waiting(state: State, request: Request, outages: Outages) -> Explanation:
    asking = asking_of(state, request)
    found = examine(state, asking.asker, state.now_us)
    code = (
        "granted"
        if isinstance(found, Placement)
        else reason_to_wait(state, asking.asker.key, found, state.now_us).code
    )
    return replace(held_back(state, asking, code, outages), status="waiting")


def _reserved(state: State, request: Request, outages: Outages) -> Explanation:
    """A place is kept: it waits for those that have it now to end, and to be proved clean."""
    asking = asking_of(state, request)
    kept = {unit for units in request.kept.values() for unit in units}
    holders = [
        one for one in holders_of(state, asking, "reserved") if not kept.isdisjoint(one.units)
    ]
    out = [one for one in out_of_use(state, asking, outages) if one[0].partition(":")[0] in kept]
    return Explanation(
        request.id,
        state.cell,
        "reserved",
        "reserved",
        None,
        tuple(Rule(code, text, "met", {}) for code, text in RULES.items()),
        reason=CODES["reserved"].meaning,
        holders=tuple(holders[:NAMED]),
        holders_more=max(0, len(holders) - NAMED),
        out_of_use=tuple(text for text, _ in out),
        outages=_causes(out),
        quota=tuple(levels_of(state, asking)),
        estimate=estimate(state, asking.asker, state.now_us),
        kept={node: list(units) for node, units in request.kept.items()},
    )


def _causes(out: Iterable[tuple[str, Outage | None]]) -> tuple[Outage, ...]:
    """Return what is on record of what is out of use, a node's once."""
    return tuple({one.about: one for _, one in out if one is not None}.values())


def held_back(
    state: State, asking: Asking, code: str, outages: Outages | None = None
) -> Explanation:
    """Explain what holds back a request that asks now, first of all ``code``.

    Looks only: everything that is tried is tried on copies.
    """
    holders = holders_of(state, asking, code)
    rules = tuple(live_rules(state, asking))
    numbers = next((rule.numbers for rule in rules if rule.code == code), {})
    start = estimate(state, asking.asker, state.now_us)
    out = [] if code in OF_QUOTA else list(out_of_use(state, asking, outages))
    return Explanation(
        asking.asker.request,
        state.cell,
        "",
        code,
        ADVICE.get(code),
        rules,
        reason=reason_text(code, numbers),
        line=line_of(state, asking, code),
        holders=tuple(holders[:NAMED]),
        holders_more=max(0, len(holders) - NAMED),
        out_of_use=tuple(text for text, _ in out),
        outages=_causes(out),
        quota=tuple(levels_of(state, asking)),
        evictions=evictions_of(state, asking) if code in _EVICTABLE else None,
        changes=tuple(changes_of(state, asking, code, start)),
        estimate=start,
    )
