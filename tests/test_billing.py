"""M4 to M7 of bills on logs to which everything happens, and a second count by other means."""

from __future__ import annotations

from collections import Counter, defaultdict
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ledger.billing.charges import device_charges
from ledger.billing.focus import decimal_text, rows_of
from ledger.billing.seconds import Piece, Run, apportion, layouts, whole_seconds
from ledger.metering.calendar import Period
from ledger.metering.policy import POLICIES
from ledger.metering.rows import PARTS, Row
from tests.billing_oracle import oracle_bill
from tests.billing_support import (
    EVERYTHING,
    FOREVER_MONTH,
    charges,
    issued,
    oracle_prices,
    tariff,
)
from tests.metering_logs import metered, random_log
from tests.metering_oracle import Oracle

if TYPE_CHECKING:
    from ledger.billing.charges import Charge, Tariff

SEEDS = range(20)
STEPS = 150
US = 1_000_000


def summary(one: Charge) -> tuple[Any, ...]:
    """Return what two counts of a charge must agree on."""
    held = one.piece.holding
    return (
        one.piece.device, one.piece.unit, one.piece.state, one.piece.cause, one.start_s, one.end_s,
        one.piece.milli, (held.lease or held.request) if held else "",
        held.tenant if held and one.holder_pays else "", one.price.id, one.priced_nano,
        one.list_atto, one.contracted_atto,
    )  # fmt: skip


def told(one: dict[str, Any]) -> tuple[Any, ...]:
    """Return the same of a charge of the oracle."""
    return (
        one["device"], one["unit"], one["state"], one["cause"], one["start"], one["end"],
        one["milli"], one["owner"], one["payer"], one["price"]["id"], one["nano"], one["list"],
        one["contracted"],
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(6))
def test_a_second_path_finds_the_same_bill_to_the_last_digit(batch: int) -> None:
    """Every charge of 120 logs: its seconds, who pays, its quantity and both its costs."""
    for seed in range(batch * 20, batch * 20 + 20):
        values = random_log(seed, STEPS)
        found = charges(issued(values, FOREVER_MONTH, tariff(), marked=False).origins)
        end_s = FOREVER_MONTH.end_us // US
        wanted = oracle_bill(Oracle(values), 0, end_s, oracle_prices(), set(EVERYTHING.holder_pays))
        assert sorted(map(told, wanted)) == sorted(map(summary, found)), seed
        assert found


def test_the_random_logs_have_everything() -> None:
    """Every price, both units, both payers, split and whole devices, absence."""
    found: Counter[str] = Counter()
    for seed in range(40):
        for one in charges(issued(random_log(seed, STEPS), FOREVER_MONTH, tariff()).origins):
            found[one.price.id] += 1
            found["holder" if one.holder_pays else "pool"] += 1
            found["split" if one.split else "whole"] += 1
            found[f"{one.piece.state} {one.piece.cause}"] += 1
    wanted = {one["id"] for one in oracle_prices()} | {"holder", "pool", "split", "whole"}
    wanted |= {"unavailable cleaning", "absent held", "allocated idle"}
    assert not wanted - found.keys()


# -- M4 ------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_m4_rows_do_not_overlap_and_costs_are_exact(seed: int) -> None:
    """By resource and allocated resource; price x quantity as fractions; ratios sum to 1."""
    chosen = tariff()
    rows = list(rows_of(issued(random_log(seed, STEPS), FOREVER_MONTH, chosen), chosen))
    spans: defaultdict[Any, list[tuple[str, str]]] = defaultdict(list)
    for row in rows:
        start, end = row["ChargePeriodStart"], row["ChargePeriodEnd"]
        assert start is not None
        assert end is not None
        spans[row["ResourceId"], row["AllocatedResourceId"]].append((start, end))
        quantity = Fraction(row["PricingQuantity"] or "")
        for cost, price in (
            ("ListCost", "ListUnitPrice"),
            ("ContractedCost", "ContractedUnitPrice"),
        ):
            assert Fraction(row[cost] or "") == Fraction(row[price] or "") * quantity
    for found in spans.values():
        found.sort()
        assert all(end <= start for (_, end), (start, _) in pairwise(found))
    for origin in issued(random_log(seed, STEPS), FOREVER_MONTH, chosen).origins:
        assert 1000 == sum(one.piece.milli for one in origin.charges)
        assert all(one.split == (len(origin.charges) > 1) for one in origin.charges)


# -- M5 ------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_m5_a_devices_billed_seconds_are_its_present_time(seed: int) -> None:
    """A second of which the device was there all the time is billed once, one of none never."""
    values = random_log(seed, STEPS)
    rows, _ = metered(values)
    billed: Counter[tuple[str, int]] = Counter()
    for one in charges(issued(values, FOREVER_MONTH, tariff(POLICIES["pool"])).origins):
        for second in range(one.start_s, one.end_s):
            billed[one.piece.device, second] += one.piece.milli
    there: Counter[tuple[str, int]] = Counter()
    for row in rows:
        if row.state == "present":
            for second in range(row.start_us // US, -(-row.end_us // US)):
                bounds = max(row.start_us, second * US), min(row.end_us, (second + 1) * US)
                there[row.device, second] += bounds[1] - bounds[0]
    assert set(billed.values()) == {1000}
    assert not {key for key, us in there.items() if us == US} - billed.keys()
    assert not billed.keys() - there.keys()


def piece(name: str) -> Piece:
    """Return a piece that is a whole device in one state."""
    return Piece("c", "n", "p", "m", "GPU-a", "GPU-a", "idle", name, 1000, None)


lengths = st.lists(st.tuples(st.integers(1, 3 * US), st.sampled_from("abc-")), max_size=40)


@given(lengths, st.integers(0, 3 * US))
@example([(US // 2, "a"), (US // 2, "-"), (US // 2, "b"), (US // 2, "a"), (US, "c")], 0)
@example([(US, "a"), (2 * US, "-"), (US, "a")], 0)
@example([(US * 4 // 10, "a"), (US * 2 // 10, "b"), (US * 4 // 10, "c")], 0)
def test_m5_a_second_goes_to_whoever_had_most_of_it(
    spans: list[tuple[int, str]], start_us: int
) -> None:
    """Of any spans, ``-`` where there is nothing: second by second, the earlier of equals."""
    runs, at_us = [], start_us
    for length, name in spans:
        if name != "-":
            runs.append(Run(at_us, at_us + length, (piece(name),)))
        at_us += length
    found = {
        second: run.layout[0].cause
        for run in whole_seconds(runs)
        for second in range(run.start, run.end)
    }
    wanted = {}
    for second in range(at_us // US + 1):
        had: dict[str, int] = {}
        for run in runs:
            length = min(run.end, (second + 1) * US) - max(run.start, second * US)
            if length > 0:
                had[run.layout[0].cause] = had.get(run.layout[0].cause, 0) + length
        if had and max(had.values()) >= US - sum(had.values()):
            wanted[second] = max(had, key=had.__getitem__)
    assert wanted == found


@given(st.lists(st.integers(0, 10**13), max_size=30), st.integers(1, 4_000_000))
def test_m5_apportioning_loses_nothing(amounts: list[int], unit: int) -> None:
    """The sum is the sum, rounded once; nobody is off by a unit; the largest remainders gain."""
    found = apportion(amounts, unit)
    assert (2 * sum(amounts) + unit) // (2 * unit) == sum(found)
    assert all(abs(had * unit - amount) < unit for had, amount in zip(found, amounts, strict=True))
    up = [amount % unit for had, amount in zip(found, amounts, strict=True) if had > amount // unit]
    down = [
        amount % unit for had, amount in zip(found, amounts, strict=True) if had == amount // unit
    ]
    assert not up or not down or min(up) >= max(down)


@pytest.mark.parametrize("seed", SEEDS)
def test_layouts_are_the_rows_that_are_left(seed: int) -> None:
    """However often the meter was made to tell and to take back: the pieces tile the device."""
    rows, _ = metered(random_log(seed, STEPS), lambda meter, _: meter.cut(meter.known_us))
    for device in {row.device for row in rows}:
        mine = [row for row in rows if row.device == device]
        had: Counter[Any] = Counter()
        for row in mine:
            if row.state in (*PARTS, "absent"):
                had[row.unit, row.state, row.cause] += row.milli_us
        found: Counter[Any] = Counter()
        for run in layouts(mine):
            assert 1000 == sum(one.milli for one in run.layout)
            for one in run.layout:
                found[one.unit, one.state, one.cause] += one.milli * (run.end - run.start)
        assert found == Counter({key: amount for key, amount in had.items() if amount})


def test_what_lies_outside_the_period_is_not_charged() -> None:
    """A row may reach over the months before and after, as a late fact does."""
    row = Row("c", "n", "p", "m", "GPU-a", "GPU-a", "idle", "free", 0, 9_000 * US, 1000)
    (origin,) = device_charges([row], 3_000, 5_000, tariff())
    assert [(3_000, 5_000)] == [(one.start_s, one.end_s) for one in origin.charges]


# -- M6 ------------------------------------------------------------------------

LENGTH_US, GRACE_US = 300 * US, 120 * US


def _net(found: list[Charge]) -> Counter[Any]:
    """Return what charges come to: what was taken back and made anew is gone."""
    total: Counter[Any] = Counter()
    for one in found:
        sign = 1 if one.metered_milli_s > 0 else -1
        key = (one.piece, one.start_s, one.end_s, one.price.id, one.holder_pays)
        total[key, abs(one.priced_nano)] += sign
    return Counter({key: count for key, count in total.items() if count})


@pytest.mark.slow
def test_m6_closed_bills_never_change_and_corrections_make_them_true() -> None:
    """Of a shorter log the same bill once it is closed; with corrections, the bill made late."""
    corrections = closed = 0
    chosen = tariff()
    for seed in range(30):
        values = random_log(seed, STEPS)
        last_us = metered(values)[1].known_us
        periods = [
            Period(f"p{at}", at * LENGTH_US, (at + 1) * LENGTH_US)
            for at in range(last_us // LENGTH_US + 1)
        ]
        bills = [issued(values, one, chosen, periods, GRACE_US) for one in periods]
        for one, bill in zip(periods, bills, strict=True):
            half = issued(values[: len(values) * 2 // 3], one, chosen, periods, GRACE_US)
            if half.state == "closed":
                closed += 1
                own = [origin for origin in bill.origins if not origin.charges[0].corrects]
                assert own == [o for o in half.origins if not o.charges[0].corrects]
        every = [one for bill in bills for one in charges(bill.origins)]
        corrections += sum(one.corrects is not None for one in every)
        for one in periods:
            name, start_s, end_s = one.name, one.start_us // US, one.end_us // US
            mine = [
                charge for bill in bills for charge in charges(bill.origins)
                if charge.corrects == name or (charge.corrects is None and bill.month == one)
            ]  # fmt: skip
            late = issued(values, one, chosen, periods, 10**15)
            assert _net(mine) == _net(charges(late.origins)), (seed, name)
            assert all(start_s <= charge.start_s < charge.end_s <= end_s for charge in mine)
    assert corrections > 0
    assert closed > 30


# -- M7 ------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_m7_who_pays_is_as_the_policy_says(seed: int) -> None:
    """Another policy moves charges and changes none: what the holders do not pay the pool does."""
    values = random_log(seed, STEPS)
    totals = set()
    for name in POLICIES:
        found = charges(issued(values, FOREVER_MONTH, tariff(POLICIES[name])).origins)
        kinds = {f"{one.piece.state} {one.piece.cause}" for one in found if one.holder_pays}
        assert kinds <= POLICIES[name].holder_pays
        assert all(one.piece.holding is not None for one in found if one.holder_pays)
        totals.add(sum(one.list_atto for one in found))
    assert 1 == len(totals)


def test_m7_the_pools_rows_have_no_sub_account() -> None:
    """Idle and broken time is in the bill, as the pool's."""
    chosen: Tariff = tariff(POLICIES["pool"])
    rows = [
        row
        for seed in range(10)
        for row in rows_of(issued(random_log(seed, STEPS), FOREVER_MONTH, chosen), chosen)
    ]
    pool = [row for row in rows if row["x_Payer"] == "pool"]
    assert {None} == {row["SubAccountId"] for row in pool}
    assert {"idle", "unavailable"} <= {row["x_State"] for row in pool}
    assert not {row["x_State"] for row in rows if row["x_Payer"] == "holder"} - {"allocated"}


@pytest.mark.parametrize(
    ("value", "scale", "text"),
    [(0, 9, "0"), (1, 9, "0.000000001"), (-1_500, 3, "-1.5"), (12_000, 3, "12"), (-5, 1, "-0.5")],
)
def test_decimals_are_plain(value: int, scale: int, text: str) -> None:
    """No exponent, no needless digit, no plus sign."""
    assert text == decimal_text(value, scale)
