"""Prices on record: what was priced once stays priced so (M6).

Nothing is decided by a price. What is kept of a book is what says of the next version of
it whether a month that is billed could come out otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["PriceBook", "overlap", "price_id"]

#: What a price is for; what is left out is any.
_ABOUT = ("model", "profile", "delivery")

Plain = dict[str, Any]


@dataclass(slots=True)
class PriceBook:
    """A book as it was applied last: its heading, and its prices by SKU and beginning."""

    book: str
    heading: dict[str, str]
    prices: dict[str, Plain] = field(default_factory=dict)


def price_id(price: Plain) -> str:
    """Return what names a price for ever (`schemas.prices.Price.id`)."""
    return f"{price['sku']}@{price['valid_from']}"


def overlap(one: Plain, other: Plain) -> bool:
    """Say whether there can be something that both prices are for."""
    pairs = ((one.get(name), other.get(name)) for name in _ABOUT)
    return all(mine is None or its is None or mine == its for mine, its in pairs)
