"""Both worlds side by side: each difference with the two numbers that it is between."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from ledger.billing.charges import device_charges
from ledger.counterfactual.work import BASES
from ledger.percentile import percentile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ledger.billing.charges import Tariff
    from ledger.counterfactual.replay import Outcome
    from ledger.counterfactual.sums import Asked, Sums

__all__ = ["ASSUMPTIONS", "compared"]

_PPM = 1_000_000

#: What every replay takes for granted.
ASSUMPTIONS = (
    (
        "what is not caused by the ledger came as the log has it, at its time: submissions, "
        "policy, operators' acts, nodes and devices that fail and come back; nobody asks for "
        "more or less because of another wait"
    ),
    "a lease of the log runs as it did there, counted from its grant, wherever it is placed",
    (
        "work that the log shows interrupted takes as long as the request's lease that came to "
        "its own end; it begins again from its start, unless the request names a checkpoint or "
        "the lease that ended was the shorter one"
    ),
    ("work that never came to its end in the log takes as long as `runs` says it was taken to"),
    (
        "a node answers an order of the log as it did there, another one in the median time of "
        "its kind, and does what it is told; a node that is not heard answers when it is back"
    ),
    "who gave a request up while it waited does not give it up where it runs by then",
    "deadlines that the log does not have are acted on when they are due",
    (
        "nodes that are added never fail; from one that is removed nothing is taken away, but "
        "it gets nothing new"
    ),
    "memory: the recorded peaks of shares on one device are added, as if all came at once",
)


def compared(outcome: Outcome, lines: Sequence[str], tariff: Tariff | None) -> dict[str, Any]:
    """Return everything as JSON has it; with a ``tariff`` what it would have cost, too.

    Raise `ledger.billing.prices.NoPrice` for what has no price.
    """
    both = outcome.recorded, outcome.changed
    first = outcome.world.first_difference
    plain: dict[str, Any] = {
        "cell": outcome.cell,
        "start_us": outcome.recorded.start_us,
        "end_us": outcome.recorded.end_us,
        "records": outcome.records,
        "decisions": outcome.world.decisions,
        "changes": list(lines),
        "first_difference": None
        if first is None
        else {"position": f"events/{outcome.partition}@{first[0]}", "time_us": first[1]},
        "requests": list(_groups(*both)),
        "leases": {
            "granted": _pair(both, lambda one: one.granted),
            "ended": _pairs(both, lambda one: one.ends),
        },
        "interruptions": _interruptions(both),
        "use": _use(both),
        "fragmentation": _fragmentation(outcome),
        "memory": _memory(both) if outcome.measured else None,
    }
    if tariff is not None:
        plain["cost"] = _cost(both, tariff)
    return plain | _grounds(outcome)


def _grounds(outcome: Outcome) -> dict[str, Any]:
    """Return what the numbers rest on."""
    work = outcome.work
    return {
        "runs": {
            name: {"leases": work.bases[name], "is": text}
            for name, text in BASES.items()
            if work.bases[name]
        },
        "answers": dict(sorted(work.answers.items())),
        "durations": work.durations.plain(),
        "inputs_passed_over": dict(sorted(outcome.world.passed_over.items())),
        "assumptions": list(ASSUMPTIONS),
        "seeds": [],
    }


def _difference(one: int | None, other: int | None) -> dict[str, int | None]:
    known = one is not None and other is not None
    return {
        "recorded": one,
        "whatif": other,
        "difference": other - one if known else None,  # type: ignore[operator]
    }


def _pair(both: tuple[Sums, Sums], number: Callable[[Sums], int | None]) -> dict[str, int | None]:
    return _difference(number(both[0]), number(both[1]))


def _pairs(
    both: tuple[Sums, Sums], numbers: Callable[[Sums], Mapping[str, int]]
) -> dict[str, dict[str, int | None]]:
    one, other = numbers(both[0]), numbers(both[1])
    return {name: _difference(one.get(name, 0), other.get(name, 0))
            for name in sorted({*one, *other})}  # fmt: skip


# -- requests --------------------------------------------------------------------------


def _groups(one: Sums, other: Sums) -> Iterable[dict[str, Any]]:
    """Yield the waits of all, of each tenant, and of each type of task of a tenant."""
    names: dict[tuple[str, str], list[str]] = {("", ""): []}
    for name in dict.fromkeys([*one.asked, *other.asked]):
        known = one.asked.get(name) or other.asked[name]
        names[("", "")].append(name)
        for key in ((known.tenant, ""), (known.tenant, known.type)):
            names.setdefault(key, []).append(name)
    for key in sorted(names):
        yield _group(key, names[key], one, other)


def _group(key: tuple[str, str], names: list[str], one: Sums, other: Sums) -> dict[str, Any]:
    mine, theirs = _waits(one, names), _waits(other, names)
    paired = [
        theirs_us - mine_us
        for mine_us, theirs_us in zip(mine, theirs, strict=True)
        if mine_us is not None and theirs_us is not None
    ]
    both = one, other
    numbers = {
        name: _pair(both, lambda sums, rule=rule: rule(_of(sums, names)))  # type: ignore[misc]
        for name, rule in _COUNTS.items()
    }
    for name, part in (("wait_median_us", 50), ("wait_p95_us", 95), ("wait_longest_us", 100)):
        one_us, other_us = percentile(_known(mine), part), percentile(_known(theirs), part)
        numbers[name] = _difference(one_us, other_us)
    numbers["wait_total_us"] = _difference(sum(_known(mine)), sum(_known(theirs)))
    return {
        "tenant": key[0] or None,
        "type": key[1] or None,
        **numbers,
        "wait_longer": sum(change > 0 for change in paired),
        "wait_shorter": sum(change < 0 for change in paired),
        "wait_alike": sum(change == 0 for change in paired),
    }


def _of(sums: Sums, names: list[str]) -> list[Asked]:
    return [one for name in names if (one := sums.asked.get(name)) is not None]


#: What is counted of a group's requests.
_COUNTS: dict[str, Callable[[list[Asked]], int]] = {
    "let_in": lambda found: sum(not one.rejected for one in found),
    "refused": lambda found: sum(one.rejected for one in found),
    "granted": lambda found: sum(one.granted_us is not None for one in found),
    "never_granted": lambda found: sum(
        one.granted_us is None and one.over_us is not None and not one.rejected for one in found
    ),
    "still_waiting": lambda found: sum(
        one.granted_us is None and one.over_us is None for one in found
    ),
    "completed": lambda found: sum(one.how == "completed" for one in found),
}


def _waits(sums: Sums, names: list[str]) -> list[int | None]:
    """Return how long each waited: until it was given up or the end where it got nothing."""
    return [
        None
        if (one := sums.asked.get(name)) is None or one.rejected or one.early
        else one.wait_us(sums.end_us)
        for name in names
    ]


def _known(waits: list[int | None]) -> list[int]:
    return [one for one in waits if one is not None]


# -- interruptions, use, fragmentation, memory -------------------------------------------


def _interruptions(both: tuple[Sums, Sums]) -> dict[str, Any]:
    def by(at: int) -> Callable[[Sums], Counter[str]]:
        def counts(sums: Sums) -> Counter[str]:
            found: Counter[str] = Counter()
            for key, count in sums.interrupted.items():
                found[key[at]] += count
            return found

        return counts

    return {
        "total": _pair(both, lambda one: one.interrupted.total()),
        "by_reason": _pairs(both, by(1)),
        "by_tenant": _pairs(both, by(0)),
        "lost_milli_us": _pair(both, lambda one: one.lost_milli_us.total()),
    }


def _use(both: tuple[Sums, Sums]) -> dict[str, Any]:
    return {
        "held_milli_us": _pair(both, lambda one: one.use.held_milli_us),
        "in_service_milli_us": _pair(both, lambda one: one.use.in_service_milli_us),
        "utilisation_ppm": _pair(
            both, lambda one: _part(one.use.held_milli_us, one.use.in_service_milli_us)
        ),
        "held_milli_us_by_tenant": _pairs(both, lambda one: one.use.held),
    }


def _fragmentation(outcome: Outcome) -> dict[str, Any]:
    """Return what was free on average, and what of it the log's requests could not use."""
    found = [one.free.fragmented(outcome.shapes) for one in (outcome.recorded, outcome.changed)]
    one, other = found
    mean = [(_mean(each.free_milli, each.samples), _mean(each.useless_milli, each.samples))
            for each in found]  # fmt: skip
    return {
        "samples": one.samples,
        "shapes": len(outcome.shapes),
        "free_milli": _difference(mean[0][0], mean[1][0]),
        "useless_milli": _difference(mean[0][1], mean[1][1]),
        "fragmented_ppm": _difference(
            _part(one.useless_milli, one.free_milli), _part(other.useless_milli, other.free_milli)
        ),
    }


def _memory(both: tuple[Sums, Sums]) -> dict[str, Any]:
    return {
        "shares": _pair(both, lambda one: one.memory.shares),
        "shares_unmeasured": _pair(both, lambda one: one.memory.unmeasured),
        "devices_over": _pair(both, lambda one: len(one.memory.over_mib)),
        "device_us_over": _pair(both, lambda one: one.memory.over_us),
        "most_mib_over": _pair(both, lambda one: max(one.memory.over_mib.values(), default=0)),
    }


def _part(amount: int, whole: int) -> int | None:
    return amount * _PPM // whole if whole else None


def _mean(amount: int, count: int) -> int | None:
    return amount // count if count else None


# -- cost --------------------------------------------------------------------------------


def _cost(both: tuple[Sums, Sums], tariff: Tariff) -> dict[str, Any]:
    one, other = (_payers(sums, tariff) for sums in both)
    payers = {
        name: {
            "gpu_seconds_milli": _difference(one.get(name, (0, 0))[0], other.get(name, (0, 0))[0]),
            "contracted_atto": _difference(one.get(name, (0, 0))[1], other.get(name, (0, 0))[1]),
        }
        for name in sorted({*one, *other})
    }
    return {
        "currency": tariff.prices.book.currency,
        "price_book": tariff.prices.book.book,
        "price_book_sha256": tariff.prices.sha256,
        "policy": tariff.policy.name,
        "payers": payers,
    }


def _payers(sums: Sums, tariff: Tariff) -> dict[str, tuple[int, int]]:
    """Return thousandths of GPU-seconds and contracted cost (1e-18) by who pays, of whole seconds.

    What lies in a second that the window begins or ends in is not in it.
    """
    start_s, end_s = -(-sums.start_us // _PPM), sums.end_us // _PPM
    found: dict[str, tuple[int, int]] = {}
    for rows in sums.rows.values():
        for origin in device_charges(rows, start_s, end_s, tariff):
            for charge in origin.charges:
                seconds, atto = found.get(charge.payer, (0, 0))
                more = charge.metered_milli_s, charge.contracted_atto
                found[charge.payer] = seconds + more[0], atto + more[1]
    return found
