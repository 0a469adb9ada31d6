"""The command ``gpuledger``: everything the ledger can do, for people and for scripts.

A module a subject; each command imports what it needs when it runs, so that
``--help`` and the short commands start at once.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ledger.cli.common import EXIT_INTERRUPTED, JsonOption, LogOption, PrefixOption
from ledger.collector import relax

if TYPE_CHECKING:
    from collections.abc import Iterable

    app: typer.Typer

__all__ = ["app", "main"]

#: In the order in which the help has their commands.
_MODULES = (
    "running",
    "fleet",
    "nodes",
    "requests",
    "run",
    "grant",
    "questions",
    "replay",
    "whatif",
    "policy",
    "prices",
    "reservations",
    "formats",
    "audit",
    "report",
    "meter",
    "bill",
    "operations",
    "archive",
    "checkpoint",
    "letters",
    "evidence",
)

#: Command -> the one module that it needs: the others would take longer than what it does.
_ALONE = {
    "state": "questions",
    "why": "questions",
    "show": "questions",
    "diff": "replay",
    "replay": "replay",
    "bisect": "replay",
    "timeline": "replay",
    "submit": "requests",
    "cancel": "requests",
    "release": "requests",
    "grant": "grant",
    "meter": "meter",
    "bill": "bill",
}


def _version(wanted: bool) -> None:
    if wanted:
        from ledger.version import version

        sys.stdout.write(f"gpuledger {version()}\n")
        raise typer.Exit


def _shared(
    log: LogOption = None,
    prefix: PrefixOption = None,
    json: JsonOption = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    """Take the options that may stand before any command; `common.command` reads them."""


def _made(modules: Iterable[str]) -> typer.Typer:
    """Return the command with what these modules add to it."""
    made = typer.Typer(
        name="gpuledger",
        help="An event-sourced allocation ledger for pooled and partitioned GPUs.",
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        epilog="Exit status: 0 ok, 1 the ledger says no, 2 usage, 3 cannot reach, 4 log damaged.",
    )
    made.callback()(_shared)
    for name in modules:
        import_module(f"ledger.cli.{name}").register(made)
    return made


def __getattr__(name: str) -> Any:  # noqa: ANN401 - the whole command, made when it is asked for
    if name != "app":
        raise AttributeError(name)
    made = globals()["app"] = _made(_MODULES)
    return made


def main() -> None:
    """Run the command; ends the process with its exit status."""
    relax()
    alone = _ALONE.get(sys.argv[1]) if len(sys.argv) > 1 else None
    try:
        _made(_MODULES if alone is None else (alone,))()
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
