"""How much of each hardware was wanted, and was there: step functions of a window, and advice.

Wanted is what was leased and what was waited for because devices were missing. Waiting for a
quota, for a licence or for CPU beside the devices is no demand for devices, and told apart.
Advice is given with what it rests on, and not at all on too little.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ledger.amounts import duration_text
from ledger.operations.words import hours_text
from ledger.percentile import time_percentile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ledger.operations.gather import Gathered
    from ledger.operations.tasks import Wait
    from ledger.operations.time_use import Hardware

__all__ = [
    "LEAST_REQUESTS",
    "LEAST_US",
    "Advice",
    "Demand",
    "advise",
    "demands",
    "ground_of",
]

_WHOLE_MILLI = 1000
_DAY_US = 86_400_000_000

#: The least that advice rests on: a week, so that each weekday is in it, and so many requests.
LEAST_US = 7 * _DAY_US
LEAST_REQUESTS = 30
#: For so much of the time what there is shall be enough.
_ENOUGH_PER_CENT = 95
#: Less waiting than this part of what was leased is not worth a change, in thousandths.
_NOISE_PERMILLE = 10

#: Reason of a wait -> what it was for. What is not here was for devices.
_GROUNDS = {
    "quota_in_use": "quota",
    "budget_spent": "quota",
    "licences_in_use": "other",
    "no_beside": "other",
    "no_fresh_evidence": "other",
    "reservation_not_open": "other",
    "partition_pending": "layout",
    "constraints_unmet": "layout",
    "instance_busy": "layout",
}


def ground_of(code: str) -> str:
    """Return what a wait was for, by its code: ``devices``, ``layout``, ``quota``, ``other``."""
    return _GROUNDS.get(code, "devices")


@dataclass(slots=True)
class Demand:
    """One hardware: for how long (µs) how much was wanted, there, and missing, in thousandths.

    ``entitled_short`` is what was missing if those who waited for a quota had been let ask.
    ``waited`` is GPU time waited for by ground; ``scattered_milli_us`` what was waited for
    while as much was free, though not in one place, and ``held_back_milli_us`` what was waited
    for because of a quota while as much was free. ``requests`` had a lease here or waited.
    """

    hardware: Hardware
    wanted: Counter[int]
    there: Counter[int]
    short: Counter[int]
    spare: Counter[int]
    entitled_short: Counter[int]
    waited: Counter[str]
    scattered_milli_us: int = 0
    held_back_milli_us: int = 0
    leased_milli_us: int = 0
    requests: int = 0


class Advice(NamedTuple):
    """What to do about a hardware.

    ``add`` devices; ``add-and-quota`` both; ``layout``, ``quota``: there was enough, elsewhere or
    for others; ``spare``; ``enough``; ``none``: too little is known.
    ``devices`` is how many, where that can be said; ``basis`` what it rests on.
    """

    hardware: Hardware
    advice: str
    text: str
    devices: int | None
    basis: str


def demands(found: Gathered) -> tuple[list[Demand], list[Wait]]:
    """Return the demand for each hardware, by name, and the waits that no hardware is for."""
    time = found.time
    sizes = {hardware: kinds.total() for hardware, kinds in time.of_hardware.items()}
    waits: dict[Hardware, list[Wait]] = {}
    homeless = []
    for wait in found.tasks.waits:
        hardware = _home(wait, sizes)
        if hardware is None:
            homeless.append(wait)
        else:
            waits.setdefault(hardware, []).append(wait)
    told = [
        _demand(hardware, time.changes.get(hardware, {}), waits.get(hardware, []),
                found.tasks.grants[hardware])
        for hardware in sorted(sizes)
    ]  # fmt: skip
    return told, homeless


def _home(wait: Wait, sizes: dict[Hardware, int]) -> Hardware | None:
    """Return where the request had its lease, or the largest hardware that it could have one."""
    if wait.hardware in sizes:
        return wait.hardware
    could = [
        one
        for one in sizes
        if (not wait.pool or one[0] == wait.pool) and (not wait.models or one[1] in wait.models)
    ]
    return max(could, key=lambda one: (sizes[one], one), default=None)


def _demand(
    hardware: Hardware, changes: dict[int, list[int]], waits: Iterable[Wait], grants: int
) -> Demand:
    steps: dict[int, list[int]] = {at_us: [*two, 0, 0] for at_us, two in changes.items()}
    one = Demand(
        hardware, Counter(), Counter(), Counter(), Counter(), Counter(), Counter(), requests=grants
    )
    for wait in waits:
        ground = ground_of(wait.code)
        one.waited[ground] += wait.charge_milli * (wait.end_us - wait.start_us)
        one.requests += 1
        column = _COLUMN.get(ground)
        if column is not None:
            for at_us, sign in ((wait.start_us, 1), (wait.end_us, -1)):
                steps.setdefault(at_us, [0, 0, 0, 0])[column] += sign * wait.charge_milli
    now, before_us = _Now(), None
    for at_us in sorted(steps):
        if before_us is not None:
            _add(one, now, at_us - before_us)
        before_us = at_us
        now = _Now(*(have + more for have, more in zip(now, steps[at_us], strict=True)))
    return one


class _Now(NamedTuple):
    """Thousandths at one instant; the last two wait for devices, and for a quota."""

    leased: int = 0
    there: int = 0
    waiting: int = 0
    held_back: int = 0


_COLUMN = {"devices": _Now._fields.index("waiting"), "quota": _Now._fields.index("held_back")}


def _add(one: Demand, now: _Now, span_us: int) -> None:
    wanted = now.leased + now.waiting
    one.wanted[wanted] += span_us
    one.there[now.there] += span_us
    one.short[max(wanted - now.there, 0)] += span_us
    one.spare[max(now.there - wanted, 0)] += span_us
    one.entitled_short[max(wanted + now.held_back - now.there, 0)] += span_us
    free = max(now.there - now.leased, 0)
    one.leased_milli_us += now.leased * span_us
    one.scattered_milli_us += min(now.waiting, free) * span_us
    one.held_back_milli_us += min(now.held_back, max(free - now.waiting, 0)) * span_us


def advise(one: Demand, span_us: int) -> list[Advice]:
    """Return all that is to be said of a hardware over a window of ``span_us``; at least one."""
    basis = (
        f"{duration_text(span_us)}, {one.requests} requests and waits;"
        f" leased {hours_text(one.leased_milli_us)}, waited for devices"
        f" {hours_text(one.waited['devices'])}, of which {hours_text(one.scattered_milli_us)}"
        f" while as much was free; for another layout {hours_text(one.waited['layout'])}; for quota"
        f" {hours_text(one.waited['quota'])}, of which {hours_text(one.held_back_milli_us)} while"
        " as much was free"
    )
    if span_us < LEAST_US or one.requests < LEAST_REQUESTS:
        words = (
            f"no advice: it takes {duration_text(LEAST_US)} and {LEAST_REQUESTS} requests and waits"
        )
        return [Advice(one.hardware, "none", words, None, basis)]
    found = [*_more(one, basis), *_otherwise(one, basis)]
    if found:
        return found
    spare = (time_percentile(one.spare, 100 - _ENOUGH_PER_CENT) or 0) // _WHOLE_MILLI
    if spare:
        words = f"{spare} were wanted by nobody for {_ENOUGH_PER_CENT} % of the time"
        return [Advice(one.hardware, "spare", words, spare, basis)]
    return [Advice(one.hardware, "enough", "what there is was enough", 0, basis)]


def _more(one: Demand, basis: str) -> Iterator[Advice]:
    """Yield how many devices more would have been enough, where some were missing."""
    enough = f"would have been enough for {_ENOUGH_PER_CENT} % of the time"
    short, entitled = _devices(one.short), _devices(one.entitled_short)
    if short:
        yield Advice(one.hardware, "add", f"{short} more {enough}", short, basis)
    if entitled > short:
        words = f"{entitled} more, and quotas to match, {enough} also for those held back by quotas"
        yield Advice(one.hardware, "add-and-quota", words, entitled, basis)


def _otherwise(one: Demand, basis: str) -> Iterator[Advice]:
    """Yield what would have helped without more devices."""
    noise = one.leased_milli_us * _NOISE_PERMILLE // 1000
    if one.scattered_milli_us + one.waited["layout"] > noise:
        scattered = hours_text(one.scattered_milli_us + one.waited["layout"])
        words = (
            f"{scattered} were waited for though free in sum, not in one place or layout:"
            " another layout, placement policy or smaller asks"
        )
        yield Advice(one.hardware, "layout", words, None, basis)
    if one.held_back_milli_us > noise:
        words = (
            f"devices were free while quotas held {hours_text(one.held_back_milli_us)} back:"
            " look at quotas before buying"
        )
        yield Advice(one.hardware, "quota", words, None, basis)


def _devices(short: Counter[int]) -> int:
    """Return how many whole devices more would have been enough for most of the time."""
    return -(-(time_percentile(short, _ENOUGH_PER_CENT) or 0) // _WHOLE_MILLI)
