"""An explanation as text for people: the answer first, then what it rests on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.amounts import mib_text, seconds_text, time_text
from ledger.wording import listed, numbers_text, parts_text, quantity_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ledger.answers.endings import Ending
    from ledger.answers.evictions import Evictions
    from ledger.answers.holders import Holder
    from ledger.answers.levels import Level
    from ledger.answers.placed import Amounts, Option, Placed
    from ledger.answers.waits import Wait
    from ledger.core.line.estimate import Estimate
    from ledger.explain import Explanation

__all__ = ["explained", "waiting"]

_SIGNS = {"met": "yes", "not met": "NO", "not reached": "-"}

#: Devices out of use that are named to people, and to one who waits; JSON has all.
_OUT_NAMED, _OUT_TO_WAITING = 10, 3


def explained(found: Explanation) -> str:
    """Return the whole explanation."""
    code = "" if found.code in ("", found.status) else f": {found.code}"
    lines = [f"{found.request}", f"  {found.status}{code}"]
    if found.reason and found.code != "granted":
        lines.append(f"  {found.reason}")
    lines += [f"  {one}" for one in _out(found, _OUT_NAMED)]
    lines += _lines_of_start(found)
    if found.line is not None:
        lines.append(f"  place {found.line.place} of {found.line.length} in line")
        lines += [f"    after {name}" for name in found.line.ahead]
    lines += _changes(found)
    lines += _rules(found)
    if found.quota:
        lines.append("quota, from its own level up")
        lines += [f"  {_level(one)}" for one in found.quota]
    if found.evictions is not None:
        lines += _evictions(found.evictions)
    if found.holders:
        lines.append("held by")
        lines += [f"  {_holder(one)}" for one in found.holders]
        if found.holders_more:
            lines.append(f"  and {found.holders_more} more")
    lines += _placed(found.placed) if found.placed is not None else []
    lines += _amounts(found.amounts) if found.amounts is not None else []
    lines += [f"waited: {_wait(one)}" for one in found.waits]
    lines += [f"ended: {_ending(one)}" for one in found.endings]
    lines += _happened(found)
    return "\n".join(lines)


def waiting(found: Explanation) -> str:
    """Return the short of it for one who waits: why, until when, what would change it."""
    code = "" if found.code in ("", found.status) else f": {found.code}"
    lines = [f"{found.status}{code}" + (f": {found.reason}" if found.reason else "")]
    lines += _lines_of_start(found)
    if found.line is not None:
        lines.append(f"  place {found.line.place} of {found.line.length} in line")
    lines += [f"  {one}" for one in _out(found, _OUT_TO_WAITING)]
    lines += _changes(found)
    return "\n".join(lines)


def _out(found: Explanation, most: int) -> Iterator[str]:
    """Name what is out of use, and why."""
    for one in found.out_of_use[:most]:
        yield f"out of use: {one}"
    if len(found.out_of_use) > most:
        yield f"out of use: {len(found.out_of_use) - most} more; --json has all"


def _changes(found: Explanation) -> Iterator[str]:
    if found.changes:
        yield "what would let it run now"
        for one in found.changes:
            yield f"  {one.who}: {one.text}" + ("" if one.tried else " (by the numbers)")
    elif found.advice:
        yield f"  to change that: {found.advice}"


def _rules(found: Explanation) -> Iterator[str]:
    if found.rules and all(rule.verdict == "met" for rule in found.rules):
        yield f"rules: all {len(found.rules)} were met"
        return
    if found.rules:
        yield "rules, in order"
    for rule in found.rules:
        compared = f"  ({numbers_text(rule.numbers)})" if rule.numbers else ""
        yield f"  {_SIGNS[rule.verdict]:<3} {rule.text}{compared}"


def _happened(found: Explanation) -> Iterator[str]:
    if not found.steps:
        return
    yield "what happened"
    first = found.steps[0].time_us
    for step in found.steps:
        after = seconds_text(step.time_us - first)
        yield f"  {time_text(step.time_us)}  +{after:<10} {step.position}  {step.text}"


def _lines_of_start(found: Explanation) -> Iterator[str]:
    if found.kept is not None:
        parts = [{"node": node, "units": units} for node, units in found.kept.items()]
        yield f"  kept for it: {parts_text(parts)}"
    if found.estimate is not None:
        yield f"  {_estimate(found.estimate)}"


_BASES = {
    "kept": "the latest answer of the nodes that free its place",
    "plan": "its plan",
    "max_run": "the longest runs of the leases before it",
    "expected_run": "the runs that the requesters expect",
    "period": "the next period of its budget",
}


def _estimate(found: Estimate) -> str:
    if found.start_us is not None:
        return f"should start by {time_text(found.start_us)}: {_BASES[found.basis]}"
    if found.basis == "open_end":
        no_end = "has no end" if len(found.leases) == 1 else "have no end"
        return f"start unknown: lease {listed(found.leases, 3)} {no_end}"
    if found.basis == "long_line":
        return "start unknown: too many are ahead"
    return "start unknown: nothing that ends would be enough"


def _level(one: Level) -> str:
    def said(amount: int) -> str:
        return quantity_text(one.resource, amount)

    nominal = "no limit of its own" if one.nominal is None else f"of {said(one.nominal)}"
    text = f"{one.quota} {one.resource.replace('_', ' ')}: {said(one.used)} used {nominal}"
    text += ", without limit" if one.available is None else f", {said(one.available)} to be had"
    if one.asked:
        text += f", {said(one.asked)} asked"
    if one.kept_back:
        text += f", keeps back {said(one.kept_back)}"
    if one.leaving:
        text += f", {said(one.leaving)} being freed"
    if one.borrowing_limit is not None:
        text += f", borrows at most {said(one.borrowing_limit)}"
    if one.borrowed:
        text += f", borrows {said(one.borrowed)} of {listed(one.lenders)}"
    return text if one.renews_us is None else f"{text}, whole again {time_text(one.renews_us)}"


def _evictions(found: Evictions) -> Iterator[str]:
    yield f"evictions: {found.text}"
    for one in found.spared:
        more = ", ..." if one.count > len(one.leases) else ""
        leases = "lease" if one.count == 1 else "leases"
        yield f"  not {one.count} {leases}, {one.reason} ({', '.join(one.leases)}{more})"


def _holder(one: Holder) -> str:
    ends = "no end set" if one.ends_us is None else f"until {time_text(one.ends_us)}"
    if one.expected_us is not None and one.expected_us != one.ends_us and one.state != "stopping":
        ends += f", expected to end {time_text(one.expected_us)}"
    borrows = ", borrows" if one.borrows else ""
    return f"{one.lease} ({one.tenant}, {one.state}, {ends}{borrows}): {listed(one.units)}"


def _wait(one: Wait) -> str:
    text = f"{one.lease}: {seconds_text(one.granted_us - one.since_us)} for its grant"
    if one.started_us is None:
        return text
    what = "its command to start" if one.by == "requester" else "its node to have it ready"
    return f"{text}, {seconds_text(one.started_us - one.granted_us)} from there for {what}"


def _ending(one: Ending) -> str:
    text = f"{one.lease}: {one.reason}"
    if one.by is not None:
        text += f" for {one.by}" if one.rule else f" by {one.by}"
    if one.rule is not None:
        text += f" (rule: {one.rule})"
    if one.why:
        text += f": {one.why}"
    if one.told_us is not None:
        text += f"; told to stop {time_text(one.told_us)}"
    text += "; not over yet" if one.ended_us is None else f"; over {time_text(one.ended_us)}"
    return text if one.became is None else f"{text}; then {one.became}"


def _placed(found: Placed) -> Iterator[str]:
    yield f"why there: {found.rule}: {found.text}"
    if found.numbers:
        yield f"  compared {numbers_text(found.numbers)}; {found.nodes_with_room} nodes had room"
    for option in found.chosen:
        yield f"  chosen   {_option(option)}"
    for others in found.others:
        yield f"  or else  {'; '.join(map(_option, others))}"


def _option(one: Option) -> str:
    return f"{listed(one.units)} on {one.node} ({one.free_before} free, {one.free_after} left)"


def _amounts(found: Amounts) -> Iterator[str]:
    def mib(value: int | None) -> str:
        return "not stated" if value is None else mib_text(value)

    delivered = "not isolated" if found.delivered_memory_mib is None else mib(
        found.delivered_memory_mib
    )  # fmt: skip
    yield (
        f"memory: requested {mib(found.requested_memory_mib)},"
        f" reserved {mib(found.reserved_memory_mib)}, delivered {delivered}"
    )
    yield (
        f"devices: requested {quantity_text('gpu', found.requested_gpu_milli)},"
        f" reserved {quantity_text('gpu', found.reserved_gpu_milli)}"
    )
