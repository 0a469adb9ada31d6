"""The command ``gpuledger``: everything the ledger can do, for people and for scripts.

A module a subject; each command imports what it needs when it runs, so that
``--help`` and the short commands start at once.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ledger.cli import (
    archive,
    audit,
    bill,
    checkpoint,
    evidence,
    fleet,
    formats,
    grant,
    letters,
    meter,
    nodes,
    operations,
    policy,
    prices,
    questions,
    replay,
    report,
    requests,
    reservations,
    run,
    running,
    whatif,
)
from ledger.cli.common import EXIT_INTERRUPTED, JsonOption, LogOption, PrefixOption
from ledger.collector import relax

__all__ = ["app", "main"]

app = typer.Typer(
    name="gpuledger",
    help="An event-sourced allocation ledger for pooled and partitioned GPUs.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit status: 0 ok, 1 the ledger says no, 2 usage, 3 cannot reach, 4 log damaged.",
)


def _version(wanted: bool) -> None:
    if wanted:
        from ledger.version import version

        sys.stdout.write(f"gpuledger {version()}\n")
        raise typer.Exit


@app.callback()
def _shared(
    log: LogOption = None,
    prefix: PrefixOption = None,
    json: JsonOption = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    """Take the options that may stand before any command; `common.command` reads them."""


for module in (
    running,
    fleet,
    nodes,
    requests,
    run,
    grant,
    questions,
    replay,
    whatif,
    policy,
    prices,
    reservations,
    formats,
    audit,
    report,
    meter,
    bill,
    operations,
    archive,
    checkpoint,
    letters,
    evidence,
):
    module.register(app)


def main() -> None:
    """Run the command; ends the process with its exit status."""
    relax()
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
