"""What all commands share: the log they work on, how they speak, and their exit status.

Data goes to stdout, everything else to stderr. With ``--json`` data is one
object, or one a line. Exit status: 0 ok, 1 the ledger says no, 2 usage, 3
cannot reach, 4 the log is damaged, 130 interrupted.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from ledger.cli.ending import run_until_interrupted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from ledger.client import Client
    from ledger.log.port import Log

__all__ = [
    "No",
    "Session",
    "Speaker",
    "Usage",
    "check_identity",
    "command",
    "pairs_of",
    "run",
    "table",
    "user_name",
]

DEFAULT_LOG = "sqlite:gpuledger.sqlite"
DEFAULT_PREFIX = "gpuledger"
DEFAULT_CELL = "main"

EXIT_NO = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 3
EXIT_DAMAGED = 4
EXIT_INTERRUPTED = 130
#: What a shell reports for a program that wrote into a closed pipe.
EXIT_PIPE = 141

LogOption = Annotated[
    str | None,
    typer.Option(
        "--log",
        metavar="URL",
        help="sqlite:PATH, kafka://HOST:PORT or archive:DIR  [env GPULEDGER_LOG;"
        f" default {DEFAULT_LOG}]",
    ),
]
PrefixOption = Annotated[
    str | None,
    typer.Option(
        "--prefix",
        metavar="NAME",
        help=f"what the topics' names begin with  [env GPULEDGER_PREFIX; default {DEFAULT_PREFIX}]",
    ),
]
AtOption = Annotated[
    str | None,
    typer.Option(help="as it was: a time (RFC 3339), a record as events/0@17, an offset [now]"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="print JSON: one object, or one a line")]


@dataclass(frozen=True, slots=True)
class Speaker:
    """Options of a command that puts something on the log and waits for the answer."""

    cell: Annotated[
        str | None,
        typer.Option("--cell", help=f"cell  [env GPULEDGER_CELL; default {DEFAULT_CELL}]"),
    ] = None
    source: Annotated[
        str | None,
        typer.Option("--source", help="who speaks  [env GPULEDGER_SOURCE; default /cli/USER]"),
    ] = None
    timeout_s: Annotated[
        float | None, typer.Option("--timeout-s", help="how long to wait for the answer")
    ] = None

    def client(self, session: Session, log: Log) -> Client:
        """Return a client that speaks so; raise `Usage` for a source that no ledger takes."""
        from ledger.client import Client

        cell = self.cell or os.environ.get("GPULEDGER_CELL") or DEFAULT_CELL
        source = self.source or os.environ.get("GPULEDGER_SOURCE")
        client = Client(log, cell, prefix=session.prefix, source=source)
        check_identity(client.source)
        return client

    @property
    def limit_s(self) -> float:
        """Return how long to wait for an answer, in seconds."""
        from ledger.client import ANSWER_S

        return ANSWER_S if self.timeout_s is None else self.timeout_s


class No(Exception):
    """The ledger's answer is no (exit 1): what was asked is not there, or refused."""


class Usage(Exception):
    """The command was called wrongly (exit 2)."""


@dataclass(frozen=True, slots=True)
class Session:
    """One call of the command: its log and how it is to speak.

    ``named``: the log was named on the command line.
    """

    url: str
    prefix: str
    json: bool
    named: bool

    @asynccontextmanager
    async def open(self, *, write: bool = False, make: bool = False) -> AsyncIterator[Log]:
        """Open the log for the block; to write only with ``write``, a new one with ``make``."""
        from ledger.log.url import open_log

        if write and self.url.startswith("archive:"):
            raise Usage(
                f"{self.url} cannot be written to; 'gpuledger archive restore DIR --log URL'"
                " makes a log of it that can"
            )
        if write and not make:  # a file that was named wrongly is told, not made
            await open_log(self.url, read_only=True).close()
        log = open_log(self.url, read_only=not write)
        try:
            yield log
        finally:
            await log.close()

    def emit(self, plain: Mapping[str, Any], text: str) -> None:
        """Print one thing: as JSON, or as text for people."""
        if self.json:
            from ledger.cli.json_text import json_text

            text = json_text(plain)
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def emit_json(self, line: bytes) -> None:
        """Print one thing that is JSON already; it has no line break in it."""
        sys.stdout.write(line.decode() + "\n")
        sys.stdout.flush()

    def emit_rows(self, rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> None:
        """Print rows: one JSON object a line, or a table of ``columns``."""
        if self.json:
            for row in rows:
                self.emit(row, "")
            return
        cells = [[_cell(row.get(name)) for name in columns] for row in rows]
        sys.stdout.write(table(columns, cells))
        sys.stdout.flush()

    def note(self, text: str) -> None:
        """Say something that is not data."""
        sys.stderr.write(text + "\n")
        sys.stderr.flush()

    def progress(self, doing: str) -> Callable[[int, int], None] | None:
        """Return a function that shows how far a scan is; None where nobody watches."""
        if not sys.stderr.isatty():
            return None

        def show(done: int, total: int) -> None:
            sys.stderr.write(f"\r{doing}: {done:,} of {total:,} records")
            if done >= total:
                sys.stderr.write("\r\x1b[K")  # the line was for waiting only
            sys.stderr.flush()

        return show


def _cell(value: object) -> str:
    return "" if value is None else str(value)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return an aligned table, header first, without a frame so that other tools can cut it."""
    shown = [list(columns), *([_line(each) for each in row] for row in rows)]
    widths = [max(len(row[at]) for row in shown) for at in range(len(columns))]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in shown)
    return "".join(f"{line}\n" for line in lines)


def _line(text: str) -> str:
    """Keep a value on one line, and its control characters from the terminal."""
    return text if text.isprintable() else text.encode("unicode_escape").decode()


Work = TypeVar("Work", bound=Callable[..., Awaitable[None] | None])

_KEYWORD = inspect.Parameter.KEYWORD_ONLY


def command(app: typer.Typer, name: str, *, warns: bool = True) -> Callable[[Work], Work]:
    """Make a function of a `Session` and its own options a command of ``app``.

    ``warns`` is False of one that loads nothing that could write to the program's own logs:
    to set these up takes longer than most of what it does.

    A parameter that is a dataclass stands for its fields, each an option.
    ``--log``, ``--prefix`` and ``--json`` are added (they may also stand before
    the command), and what the function raises becomes an exit status.
    """

    def register(function: Work) -> Work:
        own, groups = _options_of(function)
        shared = [
            inspect.Parameter("log", _KEYWORD, default=None, annotation=LogOption),
            inspect.Parameter("prefix", _KEYWORD, default=None, annotation=PrefixOption),
            inspect.Parameter("json", _KEYWORD, default=False, annotation=JsonOption),
        ]
        context = inspect.Parameter("context", _KEYWORD, annotation=typer.Context)

        def call(**values: Any) -> None:  # noqa: ANN401 - of the types that the options have
            session = _session(values.pop("context"), *[values.pop(one.name) for one in shared])
            for group, kind in groups.items():
                values[group] = kind(**{one.name: values.pop(one.name) for one in fields(kind)})
            raise typer.Exit(run(lambda: function(session, **values), warns=warns))

        parameters = [*own, *shared, context]
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {one.name: one.annotation for one in parameters}
        call.__doc__ = function.__doc__
        app.command(name)(call)
        return function

    return register


def _options_of(function: Work) -> tuple[list[inspect.Parameter], dict[str, Any]]:
    """Return the options of a command's function, and which of its parameters are groups."""
    hints = get_type_hints(function, include_extras=True)
    found: list[inspect.Parameter] = []
    groups: dict[str, Any] = {}
    for one in inspect.signature(function).parameters.values():
        hint = hints[one.name]
        if hint is Session:
            continue
        if not is_dataclass(hint):
            found.append(one.replace(kind=_KEYWORD, annotation=hint))
            continue
        groups[one.name] = hint
        inner = get_type_hints(hint, include_extras=True)
        for field in fields(hint):
            default = inspect.Parameter.empty if field.default is MISSING else field.default
            found.append(
                inspect.Parameter(
                    field.name, _KEYWORD, default=default, annotation=inner[field.name]
                )
            )
    return found, groups


def _session(context: typer.Context, log: str | None, prefix: str | None, json: bool) -> Session:
    before = context.find_root().params
    named = log or before.get("log")
    return Session(
        named or os.environ.get("GPULEDGER_LOG") or DEFAULT_LOG,
        prefix or before.get("prefix") or os.environ.get("GPULEDGER_PREFIX") or DEFAULT_PREFIX,
        json or bool(before.get("json")),
        named is not None,
    )


def run(work: Callable[[], Awaitable[None] | None], *, warns: bool = True) -> int:
    """Do the work; return the exit status, with the error said on stderr."""
    if warns:
        _logs_to_stderr()
    try:
        result = work()
        if inspect.iscoroutine(result):
            run_until_interrupted(result)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read the output has enough; a later flush must not complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE
    except typer.Exit as ended:
        return ended.exit_code
    except Exception as error:
        status, advice = _judge(error)
        if status is None:
            raise
        sys.stderr.write(f"gpuledger: {_message(error)}\n" + (f"  {advice}\n" if advice else ""))
        return status
    return 0


def _logs_to_stderr() -> None:
    """Send warnings of what a short command uses to stderr; a worker sets up its own logs."""
    import structlog

    if not structlog.is_configured():
        structlog.configure(
            wrapper_class=structlog.make_filtering_bound_logger("warning"),
            logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
        )


def _message(error: Exception) -> str:
    """Return what happened on one line; a model's complaint names its first field."""
    from pydantic import ValidationError

    if isinstance(error, ValidationError):
        from schemas.faults import first_fault, misspelt

        place, message = first_fault(error)
        return f"{'.'.join(map(str, place)) or 'the record'}: {message}{misspelt(error)}"
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__


def _judge(error: Exception) -> tuple[int | None, str]:
    """Return the exit status of an expected error, and what to do next; None for another."""
    from pydantic import ValidationError

    from ledger.archive.folder import NoArchive
    from ledger.client import NoAnswer
    from ledger.core.fold import LogDamaged as FoldDamaged
    from ledger.log import port
    from ledger.log.url import BadLogUrl
    from ledger.reading import Damaged

    if isinstance(error, No):
        return EXIT_NO, ""
    if isinstance(error, (Damaged, FoldDamaged, port.LogDamaged)):
        return EXIT_DAMAGED, "gpuledger verify names every kind of fault; nothing was changed"
    if isinstance(error, NoAnswer):
        return EXIT_UNREACHABLE, (
            "is a worker running on this log (gpuledger up, or gpuledger worker)? The request is in"
            f" the log; the same again with --id {error.request.partition('#')[2]} is safe"
        )
    if isinstance(error, port.UnknownTopic):
        return (
            EXIT_UNREACHABLE,
            "is this the right log and prefix? gpuledger topics apply makes them",
        )
    if isinstance(error, NoArchive):
        advice = "is that the folder? 'gpuledger archive --to DIR --log URL' makes one of a log"
        return EXIT_UNREACHABLE, advice
    if isinstance(error, (port.LogUnavailable, port.LogClosed)):
        return EXIT_UNREACHABLE, "is --log right, and the log up? Nothing has to be undone"
    if isinstance(error, (Usage, BadLogUrl, port.LogError, ValidationError)):
        return EXIT_USAGE, ""
    if isinstance(error, OSError):
        # A file that was named and is none was named wrongly; a socket has no such name.
        no_file = isinstance(error, (FileNotFoundError, IsADirectoryError, NotADirectoryError))
        return EXIT_USAGE if no_file and error.filename is not None else EXIT_UNREACHABLE, ""
    return None, ""


def check_identity(source: str = "/x", event_id: str = "x") -> None:
    """Raise `Usage` for a source or id that the ledger would put aside."""
    from schemas.cloudevents import to_headers

    try:
        to_headers({"id": event_id, "source": source, "type": "io.gpuledger.tick.v1"})
    except ValueError as error:
        given = source if event_id == "x" else event_id
        raise Usage(f"{error}: {given!r}") from None


def user_name() -> str:
    """Return who gives an order when nobody says so: the user, as a name of the ledger."""
    from ledger.client import default_source

    return default_source().rpartition("/")[2]


def pairs_of(labels: list[str] | None, option: str = "--label") -> dict[str, str]:
    """Return what was given as NAME=VALUE; raise `Usage` for others."""
    found = {}
    for one in labels or []:
        name, equals, value = one.partition("=")
        if not equals:
            raise Usage(f"{option} takes NAME=VALUE, not {one!r}")
        found[name] = value
    return found
