"""What operators set of prices: a book may grow, and what is on record of it stays (M6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ledger.core.prices import overlap, price_id

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.core.decisions.turn import Answer, Input, Turn
    from ledger.core.prices import PriceBook
    from schemas.prices import PricesApply

__all__ = ["PRICES"]

_US = 1_000_000


def _apply(turn: Turn, given: Input) -> Answer:
    """Put the book on record; refuse one that would bill again what was billed."""
    asked: PricesApply = given.data
    prices = [
        one.model_dump(exclude_none=True) | {"valid_from": one.begins} for one in asked.prices
    ]
    heading = asked.model_dump(exclude_none=True, exclude={"book", "prices", "author", "reason"})
    known = turn.state.price_books.get(asked.book)
    if known is not None:
        refusal = _changed(known, asked, prices, turn.now_us)
        if refusal is not None:
            return refusal
        if known.heading == heading and len(known.prices) == len(prices):
            return "unchanged", {}
    turn.emit(
        {
            "type": "prices.applied",
            "book": asked.book,
            **heading,
            "prices": prices,
            "author": asked.author,
            "reason": asked.reason,
        }
    )
    return "applied", {}


def _changed(
    known: PriceBook, asked: PricesApply, prices: list[dict[str, Any]], now_us: int
) -> Answer | None:
    """Say what of the book on record the new one would change, or reach back to."""
    if asked.currency != known.heading["currency"]:
        return "price_fixed", {"book": known.book, "currency": known.heading["currency"]}
    said = {price_id(one): one for one in prices}
    for name, price in known.prices.items():
        if said.get(name) != price:
            return "price_fixed", {"book": known.book, "price": name}
    for one in asked.prices:
        plain = said[one.id]
        back = one.id not in known.prices and one.valid_from_s * _US < now_us
        if back and any(overlap(plain, other) for other in known.prices.values()):
            return "price_backdated", {"book": known.book, "price": one.id, "now_us": now_us}
    return None


PRICES: dict[str, Callable[[Turn, Input], Answer]] = {"prices.apply": _apply}
