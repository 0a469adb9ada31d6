"""The answer to a request that nobody has made: decided as it would be, and explained."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ledger.answers.placed import placed_of
from ledger.answers.reasons import reason_text
from ledger.answers.rules import ADVICE, RULES, Rule, up_to
from ledger.answers.submission import asking_for
from ledger.answers.trials import runs
from ledger.core.decide import decide
from ledger.core.decisions.turn import Input
from ledger.explain import Explanation, held_back, why
from schemas.codes import CODES

if TYPE_CHECKING:
    from ledger.answers.rules import Asking
    from ledger.core.decisions.turn import Answer
    from ledger.core.state import State
    from schemas.requests import RequestSubmit

__all__ = ["what_if"]

#: Under what id the request is asked for; no real source has this name.
_SOURCE, _ID = "/gpuledger/whatif", "request"


def what_if(state: State, asked: RequestSubmit) -> Explanation:
    """Return how the request would be answered now, and why.

    It is decided by the ledger's own decision, on ``state``, which is used up by
    that: it must be the caller's to throw away. Nothing is written anywhere.
    """
    given = Input(
        "requests", "request.submit", 1, _SOURCE, _ID, state.now_us, asked,
        asked.model_dump(mode="json"), "",
    )  # fmt: skip
    asking = asking_for(state, asked, given.key)
    found = None if asking is None or state.pass_cut else runs(state, asking)
    placed = None
    if asking is not None and found is not None:
        parts = [{"node": node, "units": list(units)} for node, units in found.parts]
        placed = placed_of(state, asking.need, parts, {"rule": found.rule})
    decision = decide(state, given)
    if decision.code in ("queued", "reserved"):
        told = why(state, (), given.key)
        assert told is not None
        return told
    if decision.code == "granted":
        rules = tuple(Rule(code, text, "met", {}) for code, text in RULES.items())
        granted = next(one for one in decision.events if one["type"] == "lease.granted")
        numbers = {name: value for name, value in granted["why"].items() if name != "rule"}
        if placed is not None:
            placed = replace(placed, numbers=numbers)
        return Explanation(given.key, state.cell, "granted", "granted", None, rules,
                           reason=CODES["granted"].meaning, placed=placed)  # fmt: skip
    return _refused(state, asking, given.key, (decision.code, decision.numbers))


def _refused(state: State, asking: Asking | None, name: str, answer: Answer) -> Explanation:
    """Explain a no on the state as it is; of an unknown tenant or queue only the record tells."""
    code, numbers = answer
    reason = reason_text(code, numbers)
    if asking is None:
        rules = up_to(code, numbers)
        return Explanation(name, state.cell, "refused", code, ADVICE.get(code), rules, (), reason)
    told = held_back(state, asking, code)
    rules = tuple(
        replace(rule, verdict="not met", numbers=numbers) if rule.code == code else rule
        for rule in told.rules
    )
    return replace(told, status="refused", rules=rules, reason=reason)
