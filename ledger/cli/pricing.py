"""With which prices a command reckons: those of a file, or the book that is on record."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ledger.cli.common import No, Usage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ledger.billing.prices import Prices
    from ledger.core.state import State

__all__ = ["BookOption", "PricesOption", "prices_in", "recorded_prices"]

PricesOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="a price book, YAML or JSON [the one on record]"),
]
BookOption = Annotated[
    str | None, typer.Option(help="the price book on record, if there are several")
]


def prices_in(file: Path | None, book: str | None) -> Prices | None:
    """Return the price book of a file; None where none was named.

    Raise `Usage` where the file is none, or a ``book`` on record was named as well.
    """
    if file is None:
        return None
    if book is not None:
        raise Usage("--prices FILE or --book NAME: one of them")
    from ledger.billing.prices import read_prices
    from ledger.formats.documents import NotTheFormat

    try:
        return read_prices(file.read_bytes())
    except NotTheFormat as fault:
        line = f":{fault.line}" if fault.line else ""
        raise Usage(f"{file}{line}: {fault}") from None


def recorded_prices(cells: Iterable[State], book: str | None) -> Prices:
    """Return the price book on record; raise `No` without one, or without the one named."""
    from ledger.billing.prices import NoBook, prices_on_record

    try:
        return prices_on_record(cells, book)
    except NoBook as error:
        raise No(str(error)) from None
