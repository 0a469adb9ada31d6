"""Price books on record: applied from a file, and read back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ledger.cli.common import AtOption, No, Session, Speaker, command
from ledger.cli.policy_apply import Act, perform, read_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ledger.core.state import State

__all__ = ["register"]

_ABOUT = ("sku", "model", "profile", "delivery", "unit")
_COLUMNS = ("book", *_ABOUT, "list", "contracted", "valid_from", "author", "reason")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help="What GPU time costs.", no_args_is_help=True, rich_markup_mode=None)
    for verb, function in (("apply", prices_apply), ("list", list_all)):
        command(group, verb)(function)
    app.add_typer(group, name="prices")


async def prices_apply(
    session: Session,
    file: Annotated[Path, typer.Argument(help="a price book (YAML, JSON); - is stdin")],
    act: Act,
    speaker: Speaker,
) -> None:
    """Put a price book on record, or more prices into it; what is on record of it stays."""
    await perform(session, speaker, read_file(file, "prices", act), act)


async def list_all(
    session: Session,
    *,
    book: Annotated[str | None, typer.Option(help="only this book [all]")] = None,
    at: AtOption = None,
) -> None:
    """List the prices on record: for what, how much of which currency, from when, by whom."""
    from ledger.cli.questions import upto_of
    from ledger.reading import cells_of, fold_log

    async with session.open() as log:
        show = session.progress("reading")
        upto = await upto_of(log, session, at)
        folds = await fold_log(log, session.prefix, upto=upto, progress=show)
    cells = cells_of(folds).values()
    known = sorted({name for state in cells for name in state.price_books})
    if book is not None and book not in known:
        raise No(f"there is no price book {book}; on record: {', '.join(known) or 'none'}")
    rows = [row for state in cells for row in _rows(state) if book in (None, row["book"])]
    session.emit_rows(rows, _COLUMNS)


def _rows(state: State) -> Iterator[dict[str, Any]]:
    from ledger.billing.focus import decimal_text

    for name, book in sorted(state.price_books.items()):
        currency = book.heading["currency"]
        prices = book.prices.values()
        for price in sorted(prices, key=lambda one: (one["sku"], one["valid_from"])):
            agreed = price["contracted_nanos" if "contracted_nanos" in price else "list_nanos"]
            yield {
                "cell": state.cell,
                "book": name,
                **{part: price.get(part) for part in _ABOUT},
                "list": f"{decimal_text(price['list_nanos'], 9)} {currency}",
                "contracted": f"{decimal_text(agreed, 9)} {currency}",
                **{part: price[part] for part in ("valid_from", "author", "reason")},
            }
