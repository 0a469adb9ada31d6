"""The price book that a bill is made with: from the log, or from a file beside it.

Every row of a bill names the SHA-256 of its book: of the file's bytes, or of the canonical
form of what is on record (`schemas.prices`).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import orjson
from pydantic import ValidationError

from ledger.formats.documents import NotTheFormat, plain_of, read_documents
from schemas.faults import first_fault
from schemas.prices import PriceBook

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ledger.core.state import State
    from ledger.metering.rows import Row
    from schemas.prices import Price

__all__ = ["UNITS", "NoBook", "NoPrice", "Prices", "prices_on_record", "read_prices"]

#: Pricing unit -> how many thousandths of a device x seconds one of it is.
UNITS = {"GPU-Seconds": 1000, "GPU-Hours": 3_600_000}


class NoBook(Exception):
    """The log has no price book, or not one only, of the name."""


class NoPrice(Exception):
    """Something was metered that no price of the book is for: unknown is not free."""


@dataclass(frozen=True, slots=True)
class Prices:
    """A price book with its SHA-256."""

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
            models = {one.model or "any" for one in self.book.prices if one.valid_from_s <= at_s}
            raise NoPrice(
                f"no price of {self.book.book} is for {what} ({row.device}) at {when}; it then has"
                f" prices for the models {', '.join(sorted(models)) or 'none'}: add one for this"
                " model, by its whole name, with a valid_from not later than that"
            )
        return max(found, key=lambda one: (one.narrowness, one.valid_from_s))


def prices_on_record(cells: Iterable[State], name: str | None = None) -> Prices:
    """Return the price book that the cells have on record; raise `NoBook` without one.

    ``name`` None: the only one that there is. Cells that have the same book on record
    have the same prices in it, or there is no bill.
    """
    found: dict[str, dict[bytes, Any]] = {}
    for cell in cells:
        for book, known in cell.price_books.items():
            plain = {"book": book, **known.heading, "prices": list(known.prices.values())}
            canonical = orjson.dumps(plain, option=orjson.OPT_SORT_KEYS)
            found.setdefault(book, {})[canonical] = plain
    names = ", ".join(sorted(found)) or "none"
    if name is None and len(found) > 1:
        raise NoBook(f"there are several price books on record, {names}: --book says which")
    if name is None and found:
        name = next(iter(found))
    if name is None or name not in found:
        what = "a price book" if name is None else f"price book {name}"
        raise NoBook(
            f"{what} has to be on record, and the log has: {names};"
            " gpuledger prices apply FILE, or --prices FILE"
        )
    if len(found[name]) > 1:
        raise NoBook(f"two cells have other prices in price book {name}; apply one to both")
    canonical, plain = next(iter(found[name].items()))
    # Not strict: the record has been read as JSON, in which an instant is text.
    return Prices(PriceBook.model_validate(plain, strict=False), sha256(canonical).hexdigest())


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
        book = PriceBook.model_validate(plain_of(documents[0]), strict=False)
    except ValidationError as error:
        place, text = first_fault(error)
        message = text.removeprefix("Value error, ")
        raise NotTheFormat(message, ".".join(map(str, place)), documents[0].line) from None
    return Prices(book, sha256(data).hexdigest())
