"""What would be, or would have been: a request not made, other rules; and estimated starts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ledger.cli import whatif_replay
from ledger.cli.asked import request_in
from ledger.cli.common import AtOption, No, Session, Usage, command

if TYPE_CHECKING:
    from ledger.core.state import State

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    whatif = typer.Typer(
        help="Ask what would be, without writing anything.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    app.add_typer(whatif, name="whatif")
    command(whatif, "submit")(submit)
    command(whatif, "replay")(whatif_replay.replay)
    command(app, "estimates")(estimates)


async def submit(
    session: Session,
    file: Annotated[Path, typer.Argument(help="the request as JSON, as submit --file; - is stdin")],
    at: AtOption = None,
    cell: Annotated[str | None, typer.Option(help="in this cell [the only one]")] = None,
) -> None:
    """Say how a request would be answered, and why. Exit 1 when it would be refused."""
    from ledger.answers.whatif import what_if
    from ledger.cli.explained import explained

    asked = request_in(file)
    found = what_if(await _cell(session, at, cell), asked)
    session.emit(found.plain(), explained(found))
    if found.status == "refused":
        raise No(f"it would be refused: {found.reason}")


async def _cell(session: Session, at: str | None, cell: str | None) -> State:
    """Return the state of the cell named, or of the only one; raise `No` when there is none."""
    from ledger.cli.questions import upto_of
    from ledger.reading import cells_of, fold_log

    async with session.open() as log:
        upto = await upto_of(log, session, at)
        only = list(upto.offsets) if upto is not None and upto.offsets is not None else None
        folds = await fold_log(
            log, session.prefix, only, upto=upto, progress=session.progress("reading")
        )
    cells = cells_of(folds)
    if cell is None and len(cells) > 1:
        raise Usage(f"--cell is one of {', '.join(cells)}")
    if not cells or (cell is not None and cell not in cells):
        raise No(f"there is no cell {cell or ''}; the ledger has {', '.join(cells) or 'none'}")
    return cells[cell] if cell is not None else next(iter(cells.values()))


async def estimates(session: Session) -> None:
    """Hold the starts that were estimated when requests had to wait against the real ones."""
    from dataclasses import asdict

    from ledger.answers.predicted import Predicted
    from ledger.core.fold import Fold
    from ledger.reading import read_events
    from schemas.topics import full_name

    found = Predicted()
    async with session.open() as log:
        for partition in range(await log.partitions(full_name(session.prefix, "events"))):
            fold = Fold().reading()
            async for seen in read_events(log, session.prefix, partition, fold):
                found.take(seen)
    rows = [asdict(row) for row in found.rows()]
    if not session.json:
        rows = [_seconds(row) for row in rows]
    session.emit_rows(rows, list(rows[0]))


def _seconds(row: dict[str, object]) -> dict[str, object]:
    from ledger.amounts import seconds_text

    return {
        name.removesuffix("_us"): seconds_text(value)
        if name.endswith("_us") and isinstance(value, int)
        else value
        for name, value in row.items()
    }
