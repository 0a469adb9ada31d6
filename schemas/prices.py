"""What a site's GPU time costs: prices with who set them, why, and from when they hold.

Money is in integer nanos (thousand-millionths) of the book's currency, and a price is always
that of a whole device's time: a slice of 143 thousandths for an hour is 0.143 GPU-hours of
its price. A price is changed by another one of the same SKU with a later ``valid_from``;
none is ever edited, or a closed month would not be billed the same again.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self

from pydantic import AwareDatetime, Field, model_validator

from schemas.base import MAX_INT, Model, Name, Text

__all__ = ["Price", "PriceBook", "PricesApply"]

Nanos = Annotated[int, Field(ge=0, le=MAX_INT)]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Between these an instant has a year of four digits in UTC, as every reader takes it.
_FIRST, _LAST = (datetime(year, 1, 1, tzinfo=UTC) for year in (1000, 9999))


class Price(Model):
    """What a SKU costs from ``valid_from`` until its next price.

    ``model``, ``profile`` and ``delivery`` say what it is for; what is left out is any.
    ``contracted_nanos`` is the agreed price, the list price where none was agreed.
    """

    sku: Name
    model: Text | None = None
    profile: Text | None = None
    delivery: Name | None = None
    unit: Literal["GPU-Seconds", "GPU-Hours"]
    list_nanos: Nanos
    contracted_nanos: Nanos | None = None
    valid_from: AwareDatetime
    author: Name
    reason: Text

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.valid_from.microsecond:
            raise ValueError("valid_from is a whole second, as charge periods are")
        if not _FIRST <= self.valid_from < _LAST:
            raise ValueError("valid_from is in a year from 1000 to 9998, UTC")
        return self

    @property
    def valid_from_s(self) -> int:
        """Return from when it holds, in seconds UTC."""
        return int((self.valid_from - _EPOCH).total_seconds())

    @property
    def begins(self) -> str:
        """Return from when it holds, in UTC: two spellings of one instant are one price."""
        return f"{self.valid_from.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"

    @property
    def id(self) -> str:
        """Return the SKU price id: the SKU, and since when this price holds."""
        return f"{self.sku}@{self.begins}"

    @property
    def agreed_nanos(self) -> int:
        """Return the contracted price."""
        return self.list_nanos if self.contracted_nanos is None else self.contracted_nanos

    def fits(self, model: str, profile: str, delivery: str) -> bool:
        """Say whether it is a price for this."""
        wanted = ((self.model, model), (self.profile, profile), (self.delivery, delivery))
        return all(mine is None or mine == given for mine, given in wanted)

    @property
    def narrowness(self) -> tuple[bool, bool, bool]:
        """Return how narrow it is: a profile's price comes before a delivery mode's or model's."""
        return self.profile is not None, self.delivery is not None, self.model is not None


class PriceBook(Model):
    """Prices, and the names that the bill gives to those concerned."""

    book: Name
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")]
    issuer: Annotated[Text, Field(min_length=1)]
    provider: Annotated[Text, Field(min_length=1)]
    host: Annotated[Text, Field(min_length=1)]
    account: Name
    account_name: Text | None = None
    region: Name | None = None
    region_name: Text | None = None
    prices: Annotated[tuple[Price, ...], Field(min_length=1, max_length=1000)]

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        about: dict[str, tuple[Any, ...]] = {}
        whose: dict[tuple[Any, ...], str] = {}
        seen = set()
        for one in self.prices:
            if one.id in seen:
                raise ValueError(f"{one.id} stands twice; give the later one a later valid_from")
            seen.add(one.id)
            what = (one.model, one.profile, one.delivery)
            if about.setdefault(one.sku, what) != what:
                raise ValueError(f"{one.sku} is for two things; a SKU stays what it is")
            if whose.setdefault(what, one.sku) != one.sku:
                raise ValueError(f"{whose[what]} and {one.sku} are for the same; keep one SKU")
        return self


class PricesApply(PriceBook):
    """Put a price book on record, or more prices into one that is.

    The record is the whole book. What is on record of it stays as it is: the currency, and
    each price. A price that is new begins when it is applied or later, unless the book had
    none for what it is for, so that what was billed is billed the same for ever.
    """

    author: Name
    reason: Text
