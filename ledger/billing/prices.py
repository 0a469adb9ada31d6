"""Prices: versioned records in a file, with who set them, why, and from when they hold.

A price book is one file; every row of a bill names its SHA-256. Money is in integer nanos
(thousand-millionths) of the book's currency, and a price is always that of a whole device's
time: a slice of 143 thousandths for an hour is 0.143 GPU-hours of its price. A price is
changed by another one of the same SKU with a later ``valid_from``; none is ever edited, or
a closed month would not be billed the same again.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AwareDatetime, Field, ValidationError, model_validator

from ledger.formats.documents import Node, NotTheFormat, read_documents
from schemas.base import MAX_INT, Model, Name, Text

if TYPE_CHECKING:
    from ledger.metering.rows import Row

__all__ = ["UNITS", "NoPrice", "Price", "PriceBook", "Prices", "read_prices"]

#: Pricing unit -> how many thousandths of a device x seconds one of it is.
UNITS = {"GPU-Seconds": 1000, "GPU-Hours": 3_600_000}

Nanos = Annotated[int, Field(ge=0, le=MAX_INT)]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class NoPrice(Exception):
    """Something was metered that no price of the book is for: unknown is not free."""


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
        return self

    @property
    def valid_from_s(self) -> int:
        """Return from when it holds, in seconds UTC."""
        return int((self.valid_from - _EPOCH).total_seconds())

    @property
    def id(self) -> str:
        """Return the SKU price id: the SKU, and since when this price holds."""
        return f"{self.sku}@{self.valid_from.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"

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
    """A file of prices, and the names that the bill gives to those concerned."""

    book: Name
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")]
    issuer: Annotated[Text, Field(min_length=1)]
    provider: Annotated[Text, Field(min_length=1)]
    host: Annotated[Text, Field(min_length=1)]
    account: Name
    account_name: Text | None = None
    region: Name | None = None
    region_name: Text | None = None
    prices: Annotated[tuple[Price, ...], Field(min_length=1)]

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


@dataclass(frozen=True, slots=True)
class Prices:
    """A book that was read, with the SHA-256 of its file's bytes."""

    book: PriceBook
    sha256: str

    def changes_s(self) -> tuple[int, ...]:
        """Return when any price begins to hold, in order."""
        return tuple(sorted({one.valid_from_s for one in self.book.prices}))

    def of(self, row: Row, at_s: int) -> Price:
        """Return the price of what the row is about at a second; raise `NoPrice` for none.

        Only who holds is known by profile and delivery; what nobody holds has its model's
        price.
        """
        held = row.holding
        about = (row.model, held.profile if held else "", held.delivery if held else "")
        found = [one for one in self.book.prices if one.valid_from_s <= at_s and one.fits(*about)]
        if not found:
            when = datetime.fromtimestamp(at_s, UTC).isoformat()
            what = " ".join(part for part in about if part)
            raise NoPrice(
                f"no price of {self.book.book} is for {what} ({row.device}) at {when};"
                " add one with a valid_from not later than that"
            )
        return max(found, key=lambda one: (one.narrowness, one.valid_from_s))


def read_prices(data: bytes) -> Prices:
    """Return the price book that a file holds, YAML or JSON; raise `NotTheFormat` for another."""
    try:
        documents = read_documents(data.decode())
    except UnicodeDecodeError:
        raise NotTheFormat("a price book is UTF-8 text") from None
    if len(documents) != 1 or not isinstance(documents[0].value, dict):
        raise NotTheFormat("a price book is one mapping with book, currency and prices")
    try:
        # Not strict: the text of a file becomes what the field is.
        book = PriceBook.model_validate(_plain(documents[0]), strict=False)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"]))
        message = first["msg"].removeprefix("Value error, ")
        raise NotTheFormat(message, place, documents[0].line) from None
    return Prices(book, sha256(data).hexdigest())


def _plain(node: Node) -> Any:  # noqa: ANN401 - what a document holds
    value = node.value
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value
