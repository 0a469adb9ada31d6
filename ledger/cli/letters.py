"""Dead letters: what was put aside, why, and how it gets back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, get_args

import typer

from ledger.cli.common import No, Session, Usage, command

if TYPE_CHECKING:
    from ledger.dead_letters import DeadLetter
    from ledger.log.port import Log

__all__ = ["register"]


CodeOption = Annotated[str | None, typer.Option(help="only those with this code")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        help="Records that were put aside because they are malformed.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    command(group, "list")(list_letters)
    command(group, "show")(show_letter)
    command(group, "redrive")(redrive_letters)
    app.add_typer(group, name="dead-letters")


async def list_letters(
    session: Session,
    code: CodeOption = None,
    last: Annotated[int, typer.Option(help="how many of the newest; 0 is all")] = 100,
) -> None:
    """List the dead letters, oldest first."""
    from collections import deque

    from ledger.dead_letters import read_all

    _check(code)
    found: deque[dict[str, object]] = deque(maxlen=last or None)
    count = 0
    async with session.open() as log:
        async for letter in read_all(log, session.prefix):
            if code in (None, letter.code):
                count += 1
                found.append(letter.plain())
    session.emit_rows(found, ["letter", "origin", "code", "key", "bytes", "detail"])
    if count > len(found):
        session.note(f"the newest {len(found)} of {count}; --last 0 lists all")


def _check(code: str | None) -> None:
    """Raise `Usage` for a code that no dead letter has."""
    from ledger.ingest import RefusalCode

    known = get_args(RefusalCode)
    if code is not None and code not in known:
        raise Usage(f"--code is one of {', '.join(known)}, not {code!r}")


async def show_letter(
    session: Session,
    letter: Annotated[str, typer.Argument(help="its name, as 0@17 in the list")],
) -> None:
    """Show one dead letter whole: its origin, reason, headers and value."""
    from ledger.dead_letters import find

    async with session.open() as log:
        try:
            found = await find(log, session.prefix, letter)
        except ValueError as error:
            raise Usage(str(error)) from None
    if found is None:
        raise No(f"there is no dead letter {letter}")
    plain = found.whole()
    lines = [f"{name:<12} {value}" for name, value in plain.items() if name != "headers"]
    lines += [f"header       {name}: {value}" for name, value in plain["headers"]]
    session.emit(plain, "\n".join(lines))


async def redrive_letters(
    session: Session,
    letters: Annotated[
        list[str] | None, typer.Argument(help="names, as 0@17 in the list [all]")
    ] = None,
    code: CodeOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what would be sent")] = False,
) -> None:
    """Put records back where they came from, unchanged, after the cause is mended.

    Exit 1 when one of them cannot be; the others are sent.
    """
    from ledger.dead_letters import CannotRedrive, original, redrive

    if letters and code is not None:
        raise Usage("name the letters, or give --code")
    _check(code)
    failed = 0
    async with session.open(write=not dry_run) as log:
        chosen = await _chosen(log, session.prefix, letters or [], code)
        for letter in chosen:
            try:
                if dry_run:
                    size = len((await original(log, letter)).value or b"")
                    plain = {"letter": letter.position, "to": letter.origin, "bytes": size}
                    text = f"{letter.position}: {size} bytes would go to {letter.topic}"
                else:
                    sent = await redrive(log, letter)
                    plain = {"letter": letter.position, "sent": sent}
                    text = f"{letter.position}: sent to {sent}"
            except CannotRedrive as error:
                failed += 1
                session.note(str(error))
            else:
                session.emit(plain, text)
    if failed:
        raise No(f"{failed} of {len(chosen)} were not sent")


async def _chosen(log: Log, prefix: str, names: list[str], code: str | None) -> list[DeadLetter]:
    """Return the letters that were named, or all (with that code)."""
    from ledger.dead_letters import find, read_all

    if not names:
        return [one async for one in read_all(log, prefix) if code in (None, one.code)]
    chosen = []
    for name in names:
        try:
            found = await find(log, prefix, name)
        except ValueError as error:
            raise Usage(str(error)) from None
        if found is None:
            raise No(f"there is no dead letter {name}; nothing was sent")
        chosen.append(found)
    return chosen
