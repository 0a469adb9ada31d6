"""``gpuledger report``: ready questions, each with its own options.

The questions of an auditor are SQL with a description (`ledger.audit.sql_texts.REPORTS`); their
options are made from it when one is asked for. Other modules add commands to the same group.
"""

from __future__ import annotations

import inspect
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from ledger.cli.audit import Asking, CsvOption, show_result, warn_unrecorded
from ledger.cli.common import No, Session, Usage, command, table
from ledger.cli.positions import LogAtOption

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ledger.audit.auditor import Auditor
    from ledger.audit.sql_texts import Parameter, Text

__all__ = ["register"]

#: Parameters that are times: they are told to the database in UTC.
_TIMES = frozenset({"at", "from", "to"})

#: Parameter that is an id -> what it is the id of, and whether the log knows one.
_IDS: dict[str, tuple[str, str]] = {
    "device": (
        "device or slice",
        (
            "SELECT EXISTS (SELECT 1 FROM devices WHERE device = $id)"
            " OR EXISTS (SELECT 1 FROM slices WHERE $id IN (slice, mig_uuid))"
        ),
    ),
    "node": ("node", "SELECT EXISTS (SELECT 1 FROM nodes WHERE node = $id)"),
    "tenant": (
        "tenant",
        (
            "SELECT EXISTS (SELECT 1 FROM quotas WHERE $id IN (quota, tenant))"
            " OR EXISTS (SELECT 1 FROM requests WHERE tenant = $id)"
        ),
    ),
    "request": ("request", "SELECT EXISTS (SELECT 1 FROM requests WHERE request = $id)"),
    "lease": ("lease", "SELECT EXISTS (SELECT 1 FROM leases WHERE lease = $id)"),
    "who": (
        "source or author",
        (
            "SELECT EXISTS (SELECT 1 FROM decisions WHERE input_source = $id)"
            " OR EXISTS (SELECT 1 FROM policy_changes WHERE author = $id)"
        ),
    ),
}


class _Group(TyperGroup):
    """Ready questions beside the commands of the group; ``report`` alone is ``report list``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - typer's own
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401 - typer's own
        from ledger.audit.sql_texts import REPORTS

        return [*super().list_commands(ctx), *sorted(REPORTS)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401 - typer's own
        found = super().get_command(ctx, cmd_name)
        if found is not None:
            return found
        from ledger.audit.sql_texts import REPORTS

        text = REPORTS.get(cmd_name)
        if text is None:
            return None
        one = typer.Typer(rich_markup_mode=None)
        command(one, cmd_name)(_function(text))
        made = typer.main.get_command(one)
        made.name = cmd_name
        return made


_group = typer.Typer(
    cls=_Group,
    help="Ready questions; 'gpuledger report list' has them all with their options.",
    no_args_is_help=False,
    rich_markup_mode=None,
)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(_group, "list")(list_reports)
    app.add_typer(_group, name="report")


def list_reports(session: Session) -> None:
    """List the ready questions and what they are asked with; [..] may be left out."""
    from ledger.audit.sql_texts import REPORTS

    if session.json:
        for text in sorted(REPORTS.values(), key=lambda one: one.name):
            session.emit(_plain(text), "")
        return
    rows = [
        [text.name, " ".join(map(_option_word, text.parameters)), text.meaning]
        for text in sorted(REPORTS.values(), key=lambda one: one.name)
    ]
    session.emit({}, table(["report", "options", "question"], rows).rstrip("\n"))


def _option_word(one: Parameter) -> str:
    return f"--{one.name}" if one.required else f"[--{one.name}]"


def _plain(text: Text) -> dict[str, Any]:
    return {
        "report": text.name,
        "question": text.meaning,
        "options": [
            {"name": one.name, "required": one.required, "meaning": one.meaning}
            for one in text.parameters
        ],
        "columns": [
            {"name": one.name, "type": one.type, "meaning": one.meaning} for one in text.columns
        ],
        "sql": text.query,
    }


def _function(text: Text) -> Callable[..., Awaitable[None]]:
    """Return the command that asks a ready question."""

    async def ask(session: Session, **values: Any) -> None:  # noqa: ANN401 - of the options
        asking: Asking = values["asking"]
        if values["csv"] and session.json:
            raise Usage("--csv and --json are two forms; give one of them")
        parameters = {
            one.name: _value(one.name, values[_variable(one.name)]) for one in text.parameters
        }
        async with asking.open(session, values["log_at"], "--log-at") as auditor:
            result = await auditor.ask(text.query, parameters, report=text.name)
            if not result.rows:
                _check_known(auditor, parameters)
                _note_before(session, auditor, parameters.get("at"))
            show_result(session, result, csv=values["csv"])
            warn_unrecorded(session, auditor)

    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter("session", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Session),
        *map(_option, text.parameters),
        inspect.Parameter("csv", keyword, default=False, annotation=CsvOption),
        inspect.Parameter("log_at", keyword, default=None, annotation=LogAtOption),
        inspect.Parameter("asking", keyword, annotation=Asking),
    ]
    ask.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    ask.__annotations__ = {one.name: one.annotation for one in parameters}
    ask.__doc__ = f"{text.meaning}\n\nColumns: {', '.join(one.name for one in text.columns)}."
    return ask


def _check_known(auditor: Auditor, parameters: dict[str, str | None]) -> None:
    """Raise `No` for an id that no record is about: no row of it would read as a no of the log."""
    for name, given in parameters.items():
        if name not in _IDS or given is None:
            continue
        what, query = _IDS[name]
        if auditor.room.ask(query, {"id": given}).rows != [(True,)]:
            ends = [f"events/{at}@{end - 1}" for at, end in enumerate(auditor.ends) if end]
            upto = f"up to {', '.join(ends)}" if ends else "in the ledger, which is empty"
            raise No(f"there is no record of {what} {given} {upto}")


def _note_before(session: Session, auditor: Auditor, at: str | None) -> None:
    """Say that an instant is before the first decision, where that is why there is no row."""
    if at is None:
        return
    first = "SELECT min(time) FROM decisions HAVING min(time) > utc($at)"
    for (time,) in auditor.room.ask(first, {"at": at}).rows:
        session.note(f"nothing was there at {at}: the first decision is of {time}")


def _variable(name: str) -> str:
    return f"{name}_" if name == "from" else name


def _option(one: Parameter) -> inspect.Parameter:
    option = typer.Option(f"--{one.name}", help=one.meaning)
    return inspect.Parameter(
        _variable(one.name),
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if one.required else None,
        annotation=Annotated[str if one.required else str | None, option],
    )


def _value(name: str, given: str | None) -> str | None:
    """Return a parameter as the database takes it; raise `Usage` for a time that is none."""
    if name not in _TIMES or given is None:
        return given
    try:
        time = datetime.fromisoformat(given)
        time = time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (OverflowError, ValueError):
        raise Usage(f"--{name} is a time such as 2026-01-31T12:00:00Z, not {given!r}") from None
    return time.isoformat()
