"""Records of policy, from options or files: tried first, then sent, one answer after the other."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ledger.cli.common import No, Session, Speaker, Usage, command, user_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ledger.core.state import State
    from ledger.dry_run import Rehearsal, Tried
    from ledger.log.port import Log
    from ledger.policy_files import PolicyRecord
    from schemas.base import Model

__all__ = [
    "Act",
    "Operator",
    "apply_site",
    "names_a_file",
    "perform",
    "read_file",
    "register",
    "send",
]

_SUFFIXES = (".yaml", ".yml", ".json", ".jsonl")


@dataclass(frozen=True, slots=True)
class Operator:
    """Options of every act of an operator: who and why are on record for ever."""

    reason: Annotated[str, typer.Option("--reason", help="why: it is on record for ever")]
    author: Annotated[str | None, typer.Option("--author", help="who [your user name]")] = None

    @property
    def name(self) -> str:
        """Return who it is."""
        return self.author or user_name()


@dataclass(frozen=True, slots=True)
class Act:
    """Options of an act that can be tried: who and why are on record for ever."""

    reason: Annotated[str | None, typer.Option("--reason", help="why: on record for ever")] = None
    author: Annotated[str | None, typer.Option("--author", help="who [your user name]")] = None
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="say what would come of it, write nothing")
    ] = False

    @property
    def about(self) -> dict[str, str]:
        """Return who, and why if it was said, for the records of a file that say neither."""
        why = "dry run" if self.reason is None and self.dry_run else self.reason
        return {"author": self.author or user_name(), **({} if why is None else {"reason": why})}

    @property
    def signed(self) -> dict[str, str]:
        """Return who and why; raise `Usage` when nobody said why."""
        if "reason" not in self.about:
            raise Usage("--reason must be given: it is on record with who and why")
        return self.about


def register(app: typer.Typer) -> None:
    """Add the command for whole sites."""
    command(app, "apply")(apply)


async def apply(
    session: Session,
    site: Annotated[
        Path, typer.Argument(help="pools, quotas, queues, templates (YAML, JSON); - is stdin")
    ],
    act: Act,
    speaker: Speaker,
) -> None:
    """Make the cell's policy what a file says; what is so already is not sent again.

    Nothing is taken away that the file does not name. Everything is tried first:
    when one record would be refused, none is sent. Exit 1 then.
    """
    await perform(session, speaker, read_file(site, None, act), act)


def names_a_file(name: str) -> bool:
    """Say whether an argument is a file's and not a record's: no name has a slash."""
    return name == "-" or "/" in name or name.endswith(_SUFFIXES)


def read_file(path: Path, kind: str | None, act: Act) -> list[PolicyRecord]:
    """Return the records in a file, of one kind or (None) of all; raise `Usage` with the line."""
    from ledger.formats.documents import MAX_CHARS, NotTheFormat
    from ledger.policy_files import read_policy, read_site

    name = "stdin" if str(path) == "-" else str(path)
    # A character has at most four bytes; whatever is longer need not be read whole.
    limit = 4 * MAX_CHARS + 1
    if name == "stdin":
        raw = sys.stdin.buffer.read(limit)
    else:
        with path.open("rb") as stream:
            raw = stream.read(limit)
    try:
        text = raw.decode()
        found = read_site(text, act.about) if kind is None else read_policy(text, kind, act.about)
    except UnicodeDecodeError:
        raise Usage(f"{name}: not UTF-8; save it as UTF-8") from None
    except NotTheFormat as fault:
        raise Usage(f"{name}:{fault.line}: {fault}" if fault.line else f"{name}: {fault}") from None
    if not found:
        raise Usage(f"{name}: there is no record in it")
    return found


async def perform(
    session: Session, speaker: Speaker, records: Sequence[PolicyRecord], act: Act
) -> None:
    """Try the records on the cell as it is; send what changes something, unless it is a dry run.

    Raise `No` when one is refused: in the trial nothing was sent, later on those
    before it were.
    """
    async with session.open(write=not act.dry_run) as log:
        client = speaker.client(session, log)
        rehearsal = await _rehearse(session, log, client.cell, records)
        if act.dry_run or rehearsal.refused:
            session.emit(_plain(rehearsal, {}), _text(rehearsal, {}))
            _check(rehearsal, dry_run=act.dry_run)
            return
        positions: dict[str, str | None] = {}
        refused = None
        for one in rehearsal.to_send:
            reply = await client.ask(one.record.data, timeout_s=speaker.limit_s)
            if reply.answer != "applied":
                refused = f"{_name(one)}: {reply.code}: the ledger has changed since it was tried"
                break
            positions[_name(one)] = reply.position
    session.emit(_plain(rehearsal, positions), _text(rehearsal, positions))
    if refused is not None:
        raise No(f"{refused}; {len(positions)} records before it are in force")


def _check(rehearsal: Rehearsal, *, dry_run: bool) -> None:
    count = len(rehearsal.refused)
    if count:
        done = "would be refused" if dry_run else "would be refused, so nothing was sent"
        raise No(f"{count} of {len(rehearsal.tried)} records {done}")


async def apply_site(session: Session, log: Log, cell: str, path: Path) -> int:
    """Put on the log what a site's file changes, for a worker to decide; return how many.

    For a worker that is about to start: nobody answers yet. Raise `Usage` for the
    file and `No` when the ledger would refuse any of it; nothing was sent then.
    """
    from ledger.client import Client

    act = Act(reason=f"site file {path.name}")
    rehearsal = await _rehearse(session, log, cell, read_file(path, None, act))
    if rehearsal.refused:
        session.note(_text(rehearsal, {}))
    _check(rehearsal, dry_run=False)
    client = Client(log, cell, prefix=session.prefix)
    for one in rehearsal.to_send:
        await client.send(one.record.data)
    return len(rehearsal.to_send)


async def _rehearse(
    session: Session, log: Log, cell: str, records: Sequence[PolicyRecord]
) -> Rehearsal:
    from ledger.dry_run import rehearse

    return rehearse(await _cell(session, log, cell), records)


async def _cell(session: Session, log: Log, cell: str) -> State:
    """Return a cell of the log as it is now, empty when nothing has happened in it."""
    from ledger.core.evolve import empty
    from ledger.reading import cells_of, fold_log

    folds = await fold_log(log, session.prefix, progress=session.progress("reading"))
    return cells_of(folds).get(cell) or empty(cell)


async def send(session: Session, data: Model, speaker: Speaker) -> None:
    """Put one record on the log and say the answer; raise `No` when it is one."""
    from ledger.cli.requests import say

    async with session.open(write=True) as log:
        say(session, await speaker.client(session, log).ask(data, timeout_s=speaker.limit_s))


# -- in words ---------------------------------------------------------------------------


def _name(one: Tried) -> str:
    return f"{one.record.kind} {one.record.name}"


def _plain(rehearsal: Rehearsal, positions: dict[str, str | None]) -> dict[str, Any]:
    """Return it as one object; ``position`` is where a record that was sent is recorded."""
    return {
        "records": [
            {
                "kind": one.record.kind,
                "name": one.record.name,
                "code": one.code,
                "numbers": one.numbers,
                "changes": one.changes,
                "position": positions.get(_name(one)),
            }
            for one in rehearsal.tried
        ],
        "over_quota": [asdict(one) for one in rehearsal.over],
        "stops": [asdict(one) for one in rehearsal.stops],
        "starts": [asdict(one) for one in rehearsal.starts],
        "sent": len(positions),
    }


def _text(rehearsal: Rehearsal, positions: dict[str, str | None]) -> str:
    lines = []
    for one in rehearsal.tried:
        lines += _record_lines(one)
    for each in rehearsal.over:
        already = ", as it does now" if each.before else ""
        lines.append(
            f"over quota: {each.quota} holds {each.used} of {each.resource},"
            f" {each.over_by} too much{already}"
        )
    for stop in rehearsal.stops:
        made_for = f" for {stop.by}" if stop.by else ""
        lines.append(f"stops: {stop.lease} of {stop.tenant}: {stop.reason}{made_for}")
    for start in rehearsal.starts:
        when = {"now": "at once", "once-freed": "once that is freed", "kept": "when it is free"}
        lines.append(f"starts: {start.request} on {', '.join(start.nodes)} {when[start.when]}")
    what = f"{len(positions)} sent" if positions else "nothing was written"
    count = len(rehearsal.tried)
    lines.append(f"{count} record{'' if count == 1 else 's'}, {what}")
    return "\n".join(lines)


def _record_lines(one: Tried) -> list[str]:
    """Return a line for the record, and one for each field that changes."""
    from ledger.wording import numbers_text

    if one.refused:
        compared = f" ({numbers_text(one.numbers)})" if one.numbers else ""
        return [f"{_name(one)}: refused: {one.code}{compared}"]
    if one.code == "unchanged":
        return [f"{_name(one)}: unchanged"]
    new = all(before is None for before, _ in one.changes.values())
    lines = [f"{_name(one)}: {'new' if new else 'changed'}"]
    for field, (before, after) in one.changes.items():
        if new and (after is False or after in ([], "")):
            continue
        old = "" if new else f"{_value(field, before)} -> "
        # A time is told with its unit, which is not the one that its name has.
        name = field.removesuffix("_us")
        lines.append(f"  {name:<24} {old}{_value(field, after)}")
    return lines


def _value(field: str, value: object) -> str:
    """Return a value as files have it, but for times, which these have in other units.

    Nothing is a dash.
    """
    from ledger.wording import field_text

    if value is None:
        return "-"
    if isinstance(value, int) and field.endswith("_us"):
        return field_text(field, value)[1]
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
