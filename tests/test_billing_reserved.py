"""The unused part of reservations: which idle seconds it is, and that no sum changes by it."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from ledger.billing.charges import Charge, Origin
from ledger.billing.focus import rows_of
from ledger.billing.reserved import Reserved, mark_unused
from ledger.billing.seconds import Piece
from ledger.metering.calendar import Period
from ledger.metering.rows import Holding
from ledger.testing import CoreDriver, device
from tests.billing_support import DAY, FOREVER_MONTH, charges, issued, tariff
from tests.books import STEPS, by_books
from tests.metering_logs import random_log

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

S = 1_000_000
MINUTE = 60 * S
HOUR = 60 * MINUTE
JANUARY = Period("1970-01", 0, 31 * DAY)
FEBRUARY = Period("1970-02", 31 * DAY, 59 * DAY)


def site(*, count: int, start_us: int = 2 * HOUR, end_us: int = 4 * HOUR) -> CoreDriver:
    """Four cards on one node, of which some are reserved for tenant u for a time."""
    cell = CoreDriver()
    cell.pool(), cell.queue(), cell.quota(), cell.quota("u")
    cell.node("n1", [device(f"GPU-{which}") for which in "abcd"])
    plain = {
        "reservation": "demo", "tenant": "u", "count": count, "start_us": start_us,
        "end_us": end_us, "author": "op", "reason": "demo day",
    }  # fmt: skip
    assert "applied" == cell.feed("reservation.apply", plain, source="/operator").code
    return cell


def hold(cell: CoreDriver, name: str, at_us: int, **more: Any) -> None:
    """Let a request be granted one card."""
    assert "granted" == cell.submit(name, at_us=at_us, **more).code


def free(cell: CoreDriver, name: str, at_us: int, clean_us: int) -> None:
    """Let it be given back, and be proved clean a while later."""
    cell.feed("lease.release", {"lease": cell.lease(name).id}, source="/team/a", at_us=at_us)
    cell.tick(at_us=at_us + clean_us)
    cell.answer_all_orders()


def demo_day() -> Sequence[bytes]:
    """Two of four cards are reserved from two to four; one is used for fifty minutes."""
    cell = site(count=2)
    hold(cell, "before", MINUTE, max_run_s=5_400)
    free(cell, "before", HOUR, 17 * S)
    cell.tick(at_us=2 * HOUR)
    hold(cell, "within", 2 * HOUR + 10 * MINUTE, tenant="u", reservation="demo")
    hold(cell, "beside", 2 * HOUR + 30 * MINUTE, max_run_s=3_600)
    free(cell, "within", 3 * HOUR, 5 * MINUTE)
    free(cell, "beside", 3 * HOUR + 30 * MINUTE, MINUTE)
    cell.tick(at_us=4 * HOUR)
    cell.tick(at_us=5 * HOUR)
    return cell.records


DEMO_DAY = tuple(demo_day())


def reserved_s(found: Iterable[Charge]) -> Counter[str]:
    """Return the device seconds of a reservation, used and unused; taken back ones less."""
    total: Counter[str] = Counter()
    for one in found:
        held = one.piece.holding
        if one.unused is not None:
            total["unused"] += one.metered_milli_s // 1000
        elif held is not None and held.reservation and one.piece.state == "allocated":
            total["used"] += one.metered_milli_s // 1000
    return total


def test_what_is_reserved_is_used_or_unused_and_no_more() -> None:
    """Two cards for two hours, less fifty minutes in which one was used."""
    bill = issued(DEMO_DAY, FOREVER_MONTH, tariff())
    assert {"used": 3_000, "unused": 2 * 7_200 - 3_000} == reserved_s(charges(bill.origins))
    rows = [row for row in rows_of(bill, tariff()) if row["CapacityReservationStatus"] == "Unused"]
    assert {("c/reservations/demo", "pool", "idle", None)} == {
        (row["CapacityReservationId"], row["x_Payer"], row["x_State"], row["SubAccountId"])
        for row in rows
    }
    bounds = {row[name] or "" for row in rows for name in ("ChargePeriodStart", "ChargePeriodEnd")}
    assert ("1970-01-01T02:00:00Z", "1970-01-01T04:00:00Z") == (min(bounds), max(bounds))


def sums(found: Iterable[Any]) -> Counter[tuple[Any, ...]]:
    """Return quantities and costs by device, state and price."""
    total: Counter[tuple[Any, ...]] = Counter()
    for name, state, price, *amounts in found:
        for what, amount in zip(("nano", "list", "contracted"), amounts, strict=True):
            total[name, state, price, what] += amount
    return total


def of_charges(found: Iterable[Charge]) -> Counter[tuple[Any, ...]]:
    """Return `sums` of charges."""
    return sums(
        (one.piece.device, f"{one.piece.state} {one.piece.cause}", one.price.id,
         one.priced_nano, one.list_atto, one.contracted_atto)
        for one in found
    )  # fmt: skip


def test_no_sum_changes_and_the_second_count_is_the_same() -> None:
    """To the nano by device, state and price: unmarked, and in the books made with SQL.

    On the demo day, and on random logs to which everything happens.
    """
    logs = [DEMO_DAY, *(random_log(seed, STEPS) for seed in range(12))]
    cut = 0
    for values, books in zip(logs, by_books(logs), strict=True):
        marked = charges(issued(values, FOREVER_MONTH, tariff()).origins)
        plain = charges(issued(values, FOREVER_MONTH, tariff(), marked=False).origins)
        assert of_charges(plain) == of_charges(marked)
        assert of_charges(marked) == sums(
            (line[0], f"{line[2]} {line[3]}", *line[9:]) for line in books.lines
        )
        cut += len(plain) < len(marked)
    assert cut > 3


PRICE = tariff().prices.book.prices[0]


def drawn(random: Random, uuid: str) -> list[Origin]:
    """Return what a device was, at random: idle, held within a reservation, held, or cleaned."""
    found = []
    bounds = sorted(random.sample(range(1, 100), 8))
    for start_s, end_s in pairwise([0, *bounds, 100]):
        state, cause, within = random.choice(
            [("idle", "free", ""), ("idle", "free", ""), ("allocated", "running", "r1"),
             ("allocated", "running", ""), ("unavailable", "cleaning", "r1"),
             ("idle", "kept", "r2")]
        )  # fmt: skip
        held = None
        if state != "idle" or cause == "kept":
            held = Holding("l", "q", "t", None, "q", "", "", "whole", "", None, None, 1000, 1,
                           None, within or None)  # fmt: skip
        piece = Piece("c", "n1", "main", "H100", uuid, uuid, state, cause, 1000, held)
        origin = f"c/{uuid}/{start_s}"
        charge = Charge(piece, start_s, end_s, origin, False, False, PRICE,
                        1000 * (end_s - start_s), random.randrange(10**6))  # fmt: skip
        found.append(Origin(origin, (charge,)))
    return found


@pytest.mark.parametrize("seed", range(20))
def test_in_every_second_as_much_is_unused_as_is_left_or_idle(seed: int) -> None:
    """Two reservations of one node, on random histories of five cards, second by second."""
    random = Random(seed)
    before = {("c", f"GPU-{which}"): drawn(random, f"GPU-{which}") for which in "edcba"}
    reserved = [Reserved("c", "n1", "r1", "H100", random.randint(1, 5), 10, 70),
                Reserved("c", "n1", "r2", "H100", random.randint(1, 5), 30, 95)]  # fmt: skip
    after = mark_unused(before, reserved)
    for key, found in before.items():
        whole, parts = charges(found), charges(after[key])
        assert sum(one.priced_nano for one in whole) == sum(one.priced_nano for one in parts)
        assert [one.start_s for one in parts[1:]] == [one.end_s for one in parts[:-1]]
        assert len({one.origin for one in parts}) == len(parts)
    for second in range(100):
        now = [one for found in after.values() for one in charges(found)
               if one.start_s <= second < one.end_s]  # fmt: skip
        idle = [one for one in now if one.piece.cause == "free"]
        marked = Counter(one.unused for one in now if one.unused is not None)
        left = len(idle)
        for one in reserved:
            taken = sum(
                each.piece.holding is not None
                and each.piece.holding.reservation == one.name
                and each.piece.state in ("allocated", "idle")
                for each in now
            )
            inside = one.start_s <= second < one.end_s
            wanted = min(left, max(0, one.devices - taken)) if inside else 0
            assert wanted == marked[one.name], (second, one)
            left -= wanted


def test_a_closed_month_and_its_corrections_are_what_billing_it_anew_gives() -> None:
    """On the fourth of the next month the node is found not to have been heard since noon.

    Of its cards one was marked: that row is taken back with its mark, to the second.
    """
    end_us = JANUARY.end_us
    cell = site(count=1, start_us=end_us - DAY, end_us=end_us)
    cell.tick(at_us=end_us - DAY)
    cell.tick(at_us=end_us + HOUR)
    cell.tick(at_us=end_us + 3 * DAY + HOUR)
    cell.now_us = end_us + 4 * DAY
    cell.says("node.silent", "n1", last_heartbeat_us=end_us - 12 * HOUR)
    cell.tick(at_us=end_us + 5 * DAY)
    months = [JANUARY, FEBRUARY]
    first, later = (charges(issued(cell.records, one, tariff(), months).origins) for one in months)
    anew = charges(issued(cell.records, JANUARY, tariff(), months, 10**15).origins)
    corrections = [one for one in later if one.corrects is not None]
    assert {"unused": 86_400} == reserved_s(first)
    assert {"unused": 43_200} == reserved_s(anew) == reserved_s([*first, *corrections])
    assert of_charges(anew) == +of_charges([*first, *corrections])


def test_a_reservation_that_is_given_up_or_replaced_reserves_no_longer() -> None:
    """Cancelled at half time; applied anew with three instead of two."""
    cell = site(count=2)
    plain = {"reservation": "demo", "author": "op", "reason": "rain"}
    cell.tick(at_us=2 * HOUR)
    cell.feed("reservation.cancel", plain, source="/operator", at_us=3 * HOUR)
    cell.tick(at_us=5 * HOUR)
    found = charges(issued(cell.records, FOREVER_MONTH, tariff()).origins)
    assert {"unused": 2 * 3_600} == reserved_s(found)
