"""Prices on record: a book may grow, and what was billed is billed the same for ever (M6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ledger.billing.prices import NoBook, prices_on_record
from ledger.core.digest import load_fold, save_fold
from ledger.ingest import Refusal, ingest
from ledger.log.port import Record
from ledger.testing import CoreDriver, device
from ledger.wire import input_entry
from tests.audit_support import room_with

if TYPE_CHECKING:
    from ledger.core.decide import Decision

_HEAD: dict[str, Any] = {
    "book": "list", "currency": "EUR", "issuer": "Example IT", "provider": "GPU platform",
    "host": "Example data centre", "account": "example", "author": "finance", "reason": "a test",
}  # fmt: skip
#: Where the clock of a cell stands: 2026-10-15.
_NOW_US = 1_792_022_400_000_000


def _price(sku: str, valid_from: str, nanos: int = 1_000, **about: str) -> dict[str, Any]:
    who = {"author": "finance", "reason": "a test"}
    price = {"sku": sku, "unit": "GPU-Seconds", "list_nanos": nanos, "valid_from": valid_from}
    return price | about | who


_H100 = _price("h100", "2026-01-01T00:00:00Z", model="H100")


def _cell() -> CoreDriver:
    cell = CoreDriver(check=True, now_us=_NOW_US)
    cell.pool()
    return cell


def _apply(cell: CoreDriver, *prices: dict[str, Any], **more: Any) -> Decision:
    return cell.feed("prices.apply", _HEAD | {"prices": prices} | more, source="/operator")


def test_a_book_is_on_record_and_the_same_again_is_no_event() -> None:
    """Who applied it, and why, is in the event."""
    cell = _cell()

    first, again = _apply(cell, _H100), _apply(cell, _H100)

    assert ("applied", "unchanged") == (first.code, again.code)
    assert "finance" == first.events[0]["author"]
    assert [] == again.events


def test_one_instant_spelt_otherwise_is_the_same_price() -> None:
    """A beginning is kept in UTC."""
    cell = _cell()
    _apply(cell, _H100)

    assert "unchanged" == _apply(cell, _H100 | {"valid_from": "2026-01-01T02:00:00+02:00"}).code


def test_m6_a_price_on_record_is_neither_edited_nor_taken_out() -> None:
    """Nor does a book change its currency."""
    cell = _cell()
    other = _price("a100", "2026-01-01T00:00:00Z", model="A100")
    _apply(cell, _H100, other)

    edited = _apply(cell, _H100 | {"list_nanos": 2}, other)
    left_out = _apply(cell, other)
    currency = _apply(cell, _H100, other, currency="USD")

    for decision in (edited, left_out, currency):
        assert "price_fixed" == decision.code
        assert [] == decision.events
    assert "h100@2026-01-01T00:00:00Z" == edited.numbers["price"]
    assert "EUR" == currency.numbers["currency"]


@pytest.mark.parametrize(
    ("price", "code"),
    [
        (_price("h100", "2026-10-15T00:00:00Z", 2, model="H100"), "price_backdated"),
        (_price("h100", "2026-10-16T00:00:00Z", 2, model="H100"), "applied"),
        # A narrower price, or one of everything, would change what was billed as well.
        (_price("slice", "2026-10-01T00:00:00Z", profile="1g.10gb"), "price_backdated"),
        (_price("all", "2026-10-01T00:00:00Z"), "price_backdated"),
        # What had no price could not be billed.
        (_price("b200", "2026-01-01T00:00:00Z", model="B200"), "applied"),
    ],
)
def test_m6_a_new_price_reaches_back_only_to_what_had_none(
    price: dict[str, Any], code: str
) -> None:
    """Otherwise a closed month would be billed again, and come out otherwise."""
    cell = _cell()
    _apply(cell, _H100)

    assert code == _apply(cell, _H100, price).code


def test_a_bill_finds_the_book_on_record_as_it_was_applied_last() -> None:
    """Other prices are another SHA-256, which every row names."""
    cell = _cell()
    _apply(cell, _H100)
    first = prices_on_record([cell.state])
    _apply(cell, _H100, _price("h100", "2026-11-01T00:00:00Z", 2_000, model="H100"))
    second = prices_on_record([cell.state], "list")

    assert [1_000] == [one.list_nanos for one in first.book.prices]
    assert [1_000, 2_000] == [one.list_nanos for one in second.book.prices]
    assert first.sha256 != second.sha256
    assert "example" == second.book.account


def test_without_one_book_on_record_there_is_no_bill() -> None:
    """Which books there are is said."""
    one, other = _cell(), _cell()
    with pytest.raises(NoBook, match="the log has: none"):
        prices_on_record([one.state])
    _apply(one, _H100)
    _apply(one, _H100, book="internal")
    with pytest.raises(NoBook, match="several price books on record, internal, list: --book"):
        prices_on_record([one.state])
    with pytest.raises(NoBook, match="price book absent"):
        prices_on_record([one.state], "absent")
    _apply(other, _H100 | {"list_nanos": 7})
    with pytest.raises(NoBook, match="two cells have other prices"):
        prices_on_record([one.state, other.state], "list")


def test_s2_a_book_survives_a_snapshot() -> None:
    """The digest of the book is the same, too."""
    cell = _cell()
    _apply(cell, _H100)

    loaded = load_fold(save_fold(cell.fold)).cells[cell.state.cell]

    assert cell.state.price_books == loaded.price_books
    assert prices_on_record([cell.state]).sha256 == prices_on_record([loaded]).sha256


async def test_an_auditor_is_told_which_book_and_which_reservation() -> None:
    """A change of policy is about its own thing: what was before is of the same book."""
    cell = _cell()
    cell.queue()
    cell.quota("t")
    cell.node("n1", [device("GPU-1")])
    _apply(cell, _H100)
    _apply(cell, _H100, book="other")
    _apply(cell, _H100, _price("a100", "2026-11-01T00:00:00Z", model="A100"))
    start_us = cell.state.now_us + 3_600_000_000
    made = cell.feed(
        "reservation.apply",
        {"reservation": "night", "pool": cell.state.nodes["n1"].pool, "tenant": "t", "count": 1,
         "start_us": start_us, "end_us": start_us + 3_600_000_000, "author": "o", "reason": "r"},
        source="/operator",
    )  # fmt: skip
    assert "applied" == made.code, made

    async with room_with(cell.records) as room:
        found = room.ask(
            "SELECT about, before IS NULL FROM policy_changes"
            " WHERE type IN ('prices.applied', 'reservation.applied') ORDER BY \"offset\""
        ).rows

    assert [("list", True), ("other", True), ("list", False), ("night", True)] == found


@pytest.mark.parametrize(
    "when", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "0999-12-31T23:59:59Z"]
)
def test_c51_a_price_beyond_the_calendar_is_put_aside(when: str) -> None:
    """It has no year that every reader takes: it is no input, and ends no worker."""
    plain = _HEAD | {"prices": [_price("h100", when)]}
    entry = input_entry("c", "prices.apply", "/operator", "p1", plain)
    record = Record("gpuledger.requests", 0, 0, _NOW_US, entry.key, entry.value, entry.headers)

    refusal = ingest(record, "requests")

    assert isinstance(refusal, Refusal)
    assert "bad_field" == refusal.code
    assert "a year from 1000 to 9998" in refusal.detail
