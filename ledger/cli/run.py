"""``gpuledger run -- CMD``: ask for devices, run a command with them, give them back."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ledger.cli.asked import Asked, FileOption, IdOption, Terms, request_of
from ledger.cli.common import No, Session, Speaker, Usage, check_identity, command
from ledger.cli.grant import node_name
from ledger.cli.waiting import explainer

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.client import Client
    from ledger.handing_over.owners import Owners
    from ledger.handing_over.wrapper import Plan, Wrapper
    from ledger.log.port import Log

__all__ = ["register"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "run")(run)


@dataclass(frozen=True, slots=True)
class Running:
    """Options of how the command is run under its lease."""

    node: Annotated[
        str | None, typer.Option(help="this host's name in the ledger [its host name]")
    ] = None
    any_node: Annotated[
        bool, typer.Option("--any-node", help="start it here, wherever the devices are")
    ] = False
    renew_s: Annotated[
        int | None,
        typer.Option(
            "--renew-s", "--renew", help="lengthen --max-run by so many seconds, again and again"
        ),
    ] = None
    grace_s: Annotated[
        float, typer.Option("--grace-s", help="from SIGTERM to SIGKILL, when it is to stop")
    ] = 10.0
    again: Annotated[
        bool, typer.Option("--again", help="start it anew when evicted or interrupted")
    ] = False
    why_every_s: Annotated[
        float, typer.Option(help="while it waits, look again why, every so many seconds")
    ] = 60.0
    recover: Annotated[
        bool, typer.Option("--recover", help="end what dead runs of this host left, and no more")
    ] = False


async def run(
    session: Session,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="-- COMMAND...", help="what to run")
    ] = None,
    *,
    asked: Asked,
    terms: Terms,
    speaker: Speaker,
    running: Running,
    file: FileOption = None,
    event_id: IdOption = None,
) -> None:
    """Run a command with devices: ask, wait, start it, and give them back when it has ended.

    The exit status is the command's, 128 + n when signal n ended it; 1 when the ledger says
    no or the devices are on another node, 3 when nobody answers for --timeout-s. What this
    says itself goes to stderr, with --json one object a line.
    """
    from ledger.client import new_id
    from ledger.handing_over.owners import Owners, default_folder
    from ledger.handing_over.talk import MAX_ID

    owners = Owners(default_folder(os.environ))
    if running.recover:
        await _recover_all(session, owners)
        return
    if not words:
        raise Usage("what is to be run? gpuledger run --tenant TENANT -- COMMAND")
    event_id = event_id or new_id()
    check_identity(event_id=event_id)
    if len(event_id) > MAX_ID:
        raise Usage(f"--id has at most {MAX_ID} characters here")
    plan = _plan(running, speaker, words, request_of(asked, terms, event_id, file))
    async with session.open(write=True) as log:
        client = speaker.client(session, log)
        await _recover(session, log, owners, stop=False)
        status = await _under(session, log, client, owners, plan, event_id)
    raise typer.Exit(status)


def _plan(running: Running, speaker: Speaker, words: list[str], request: Any) -> Plan:  # noqa: ANN401
    from ledger.handing_over.wrapper import Plan

    if running.renew_s is not None and (request.max_run_s is None or running.renew_s < 1):
        raise Usage("--renew lengthens --max-run: give both, in whole seconds")
    if running.grace_s < 0 or running.why_every_s <= 0:
        raise Usage("--grace-s and --why-every-s are seconds")
    return Plan(
        request,
        tuple(words),
        os.environ,
        running.node or node_name(),
        any_node=running.any_node,
        renew_s=running.renew_s,
        grace_s=running.grace_s,
        again=running.again,
        answer_s=speaker.limit_s,
        why_every_s=running.why_every_s,
    )


async def _under(
    session: Session, log: Log, client: Client, owners: Owners, plan: Plan, event_id: str
) -> int:
    """Run the plan, with signals passed on; return the exit status."""
    from ledger.handing_over.owners import Taken
    from ledger.handing_over.talk import Talk
    from ledger.handing_over.wrapper import Elsewhere, Refused, Wrapper

    talk = Talk(client, event_id)
    try:
        owned = owners.take(
            _absolute(session.url), session.prefix, client.cell, client.source, event_id
        )
    except Taken as error:
        raise Usage(str(error)) from None
    explain = partial(explainer, session, log, client.cell, talk.request)
    wrapper = Wrapper(plan, talk, owners, owned, _teller(session), explain)
    _pass_signals(wrapper)
    try:
        return await wrapper.run()
    except Refused as error:
        from ledger.cli.requests import compared, next_step

        told = f"{error.reply.code}: {compared(error.reply)}".removesuffix(": ")
        raise No(f"{next_step(error.reply)}\n  {told}") from None
    except Elsewhere as error:
        raise No(f"{error}. --any-node starts the command here all the same") from None


def _pass_signals(wrapper: Wrapper) -> None:
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        # Who was told to ignore a signal (nohup) goes on ignoring it.
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, wrapper.signal, int(number))


def _teller(session: Session) -> Callable[..., None]:
    """Return a function that says what happens, on stderr: stdout is the command's."""

    def tell(word: str, text: str, **about: object) -> None:
        if session.json:
            import orjson

            session.note(orjson.dumps({"run": word, "text": text, **about}).decode())
        else:
            lease = f" {about['lease']}" if "lease" in about else ""
            session.note(f"gpuledger: {word}{lease}: {text}")

    return tell


async def _recover(session: Session, log: Log, owners: Owners, *, stop: bool) -> None:
    """End what dead runs have left on this log; those on others are only named with ``stop``."""
    from ledger.client import ANSWER_S, Client
    from ledger.handing_over.recover import recover

    for owned in owners.dead():
        if (owned.log, owned.prefix) != (_absolute(session.url), session.prefix):
            if stop:
                session.note(f"{owned.request} is on another log: --log {owned.log}")
            continue
        client = Client(log, owned.cell, prefix=owned.prefix, source=owned.source)
        done = await recover(owned, client, owners, stop=stop, wait_s=ANSWER_S if stop else 0.0)
        if done is None:
            session.note(
                f"a dead run's command still runs under {owned.lease} (process {owned.child});"
                " gpuledger run --recover ends both"
            )
        elif stop:
            session.emit({"request": owned.request, "lease": owned.lease, "done": done}, done)
        else:
            session.note(f"gave back what a dead run had left: {done}")


async def _recover_all(session: Session, owners: Owners) -> None:
    if next(owners.dead(), None) is None:
        session.note("nothing to end: no dead run of yours has left anything on this host")
        return
    async with session.open(write=True) as log:
        await _recover(session, log, owners, stop=True)


def _absolute(url: str) -> str:
    """Return the log's URL, the same from every folder."""
    kind, colon, path = url.partition(":")
    return f"{kind}{colon}{Path(path).absolute()}" if kind == "sqlite" else url
