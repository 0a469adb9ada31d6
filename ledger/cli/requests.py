"""What a service does: submit, cancel, release, and follow its replies."""

from __future__ import annotations

from dataclasses import dataclass
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ledger.cli.asked import Asked, FileOption, IdOption, Terms, request_of
from ledger.cli.common import (
    EXIT_UNREACHABLE,
    No,
    Session,
    Speaker,
    Usage,
    check_identity,
    command,
    user_name,
)

if TYPE_CHECKING:
    from ledger.client import Client, Sent
    from ledger.log.port import Log
    from schemas.messages import Reply

__all__ = ["compared", "next_step", "register", "say"]


#: How long the first answer is looked for where the final one did not come, in seconds.
_LOOK_S = 1.0


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app, "submit")(submit)
    command(app, "cancel")(cancel)
    command(app, "release")(release)
    command(app, "watch")(watch)
    leases = typer.Typer(help="Leases.", no_args_is_help=True, rich_markup_mode=None)
    command(leases, "extend")(extend)
    leases.callback()(_nothing)
    app.add_typer(leases, name="lease")


def _nothing() -> None:
    return


async def submit(
    session: Session,
    asked: Asked,
    terms: Terms,
    speaker: Speaker,
    *,
    file: FileOption = None,
    event_id: IdOption = None,
    wait: Annotated[
        bool | None,
        typer.Option("--wait/--no-wait", help="for the final answer / not at all [the first]"),
    ] = None,
) -> None:
    """Ask for devices. Exit 0 when granted or queued, 1 when refused.

    With --wait and no --timeout-s it waits as long as the request does; exit 3 when it still
    waits after --timeout-s: then it stays in line.
    """
    from ledger.client import new_id

    event_id = event_id or new_id()
    check_identity(event_id=event_id)
    request = request_of(asked, terms, event_id, file)
    async with session.open(write=True) as log:
        client = speaker.client(session, log)
        sent = await client.send(request, event_id)
        if wait is False:
            session.emit({"request": sent.key, "id": sent.id}, f"sent      {sent.key}")
            return
        if not wait:
            say(session, await client.answer(sent, timeout_s=speaker.limit_s))
        elif not await _waited(session, log, client, sent, speaker.timeout_s):
            raise typer.Exit(EXIT_UNREACHABLE)


async def _waited(
    session: Session, log: Log, client: Client, sent: Sent, limit_s: float | None
) -> bool:
    """Wait for the final answer and say it; where none comes in time, say how it stands.

    Raise `NoAnswer` where nothing has been answered at all, and `No` as `say` does.
    """
    from ledger.cli.waiting import explainer
    from ledger.client import NoAnswer

    try:
        reply = await client.answer(sent, final=True, timeout_s=limit_s)
    except NoAnswer as late:
        try:
            reply = await client.answer(sent, timeout_s=_LOOK_S)
        except NoAnswer:
            raise late from None
    say(session, reply)
    if reply.final:
        return True
    name = quote(sent.key)
    session.note(
        f"gpuledger: not granted within {limit_s:g} s; the request was decided and stays in line"
    )
    for line in (await explainer(session, log, client.cell, sent.key)()).splitlines():
        session.note(f"  {line}")
    session.note(
        f"  gpuledger why {name} tells more, gpuledger cancel {name} withdraws it, and the same"
        f" command with --id {quote(sent.id)} waits on: it asks for nothing twice"
    )
    return False


async def cancel(
    session: Session,
    request: Annotated[str, typer.Argument(help="request: its id, or SOURCE#ID")],
    speaker: Speaker,
    *,
    reason: Annotated[str, typer.Option(help="why, for the record")] = "",
) -> None:
    """Withdraw your own request, waiting or running. Exit 1 when it cannot be."""
    async with session.open(write=True) as log:
        client = speaker.client(session, log)
        name = _whole(client, request)
        say(session, await client.cancel(name, reason, timeout_s=speaker.limit_s))


@dataclass(frozen=True, slots=True)
class Reclaim:
    """Options of an operator who takes another's lease back."""

    reclaim: Annotated[bool, typer.Option("--reclaim", help="take another's lease back")] = False
    author: Annotated[str | None, typer.Option(help="who reclaims [your user name]")] = None
    reason: Annotated[str | None, typer.Option(help="why it is reclaimed")] = None

    def checked(self) -> Reclaim:
        """Return the options; raise `Usage` when they do not go together."""
        if (self.author is not None or self.reason is not None) and not self.reclaim:
            raise Usage("--author and --reason go with --reclaim")
        if self.reclaim and self.reason is None:
            raise Usage("--reclaim needs --reason: it is on record with who and why")
        return self


async def release(
    session: Session,
    lease: Annotated[str, typer.Argument(help="lease: ID/ATTEMPT, or SOURCE#ID/ATTEMPT")],
    operator: Reclaim,
    speaker: Speaker,
    *,
    failed: Annotated[bool, typer.Option("--failed", help="the task failed")] = False,
) -> None:
    """Give back your own lease, or reclaim one. Exit 1 when the ledger says no."""
    from schemas.requests import LeaseReclaim, LeaseRelease

    operator.checked()
    _lease(lease)
    async with session.open(write=True) as log:
        client = speaker.client(session, log)
        name = _whole(client, lease)
        data: LeaseReclaim | LeaseRelease = (
            LeaseReclaim(
                lease=name, author=operator.author or user_name(), reason=operator.reason or ""
            )
            if operator.reclaim
            else LeaseRelease(lease=name, how="failed" if failed else "completed")
        )
        say(session, await client.ask(data, timeout_s=speaker.limit_s))


async def extend(
    session: Session,
    lease: Annotated[str, typer.Argument(help="lease: ID/ATTEMPT, or SOURCE#ID/ATTEMPT")],
    speaker: Speaker,
    *,
    more_s: Annotated[int, typer.Option("--more-s", "--more", help="seconds more to run")],
) -> None:
    """Let your own lease run longer. Exit 1 when the queue, template or quota says no."""
    from schemas.requests import LeaseExtend

    async with session.open(write=True) as log:
        client = speaker.client(session, log)
        data = LeaseExtend(lease=_whole(client, _lease(lease)), more_s=more_s)
        say(session, await client.ask(data, timeout_s=speaker.limit_s))


def _lease(name: str) -> str:
    """Return the name of a lease; raise `Usage` for that of a request."""
    if "/" not in name.rpartition("#")[2]:
        raise Usage(f"{name!r} names a request; a lease is named with its attempt: {name}/1")
    return name


async def watch(
    session: Session,
    speaker: Speaker,
    *,
    from_oldest: Annotated[
        bool, typer.Option("--all", help="begin with the oldest reply that is kept")
    ] = False,
    count: Annotated[int | None, typer.Option(help="stop after so many replies")] = None,
) -> None:
    """Follow the replies to you, each once, until interrupted (or for --timeout-s)."""
    import asyncio

    async with session.open() as log:
        client = speaker.client(session, log)
        start = await client.first_reply() if from_oldest else None
        session.note(f"replies to {client.source}; Ctrl-C ends")
        seen = 0
        try:
            async with asyncio.timeout(speaker.timeout_s):
                async for reply in client.watch(start):
                    session.emit(_plain(reply), _text(reply))
                    seen += 1
                    if seen == count:
                        return
        except TimeoutError:
            return


def _whole(client: Client, name: str) -> str:
    """Return a request's or lease's whole id: one without a source is the caller's own."""
    return name if "#" in name else f"{client.source}#{name}"


def _plain(reply: Reply) -> dict[str, Any]:
    return reply.model_dump(mode="json", exclude_none=True)


def say(session: Session, reply: Reply) -> None:
    """Print a reply; raise `No` when it is one."""
    session.emit(_plain(reply), _text(reply))
    if _is_no(reply):
        raise No(next_step(reply))


def _text(reply: Reply) -> str:
    """Return a reply for people: the answer, whose it is, and what was granted."""
    code = "" if reply.code in (reply.answer, "observed") else f"  {reply.code}"
    how = f"  {reply.numbers['how']}" if "how" in reply.numbers else ""
    lines = [f"{reply.answer:<9} {reply.input}{code}{how}"]
    if told := compared(reply):
        lines.append(f"  {told}")
    lines += [f"  {name:<8} {reply.numbers[name]}" for name in _made(reply)]
    if reply.lease is not None:
        lines.append(f"  lease    {reply.lease}")
    for part in reply.parts:
        lines.append(f"  node     {part.node}: {', '.join(part.units) or 'no device'}")
        lines += [f"    {name}={value}" for name, value in part.environment.items()]
        lines += [f"    cdi {name}" for name in part.cdi]
    if reply.position is not None:
        lines.append(f"  recorded {reply.position}")
    return "\n".join(lines)


def compared(reply: Reply) -> str:
    """Say which numbers were compared; nothing where there are none."""
    from ledger.wording import numbers_text

    beside = {"how", *_made(reply)}
    numbers = {name: value for name, value in reply.numbers.items() if name not in beside}
    told = {name: "none named" if value == "" else value for name, value in numbers.items()}
    return f"compared {numbers_text(told)}" if told else ""


def _made(reply: Reply) -> list[str]:
    """Return what an act has made: it stands among the numbers, and nothing was compared."""
    return [name for name in ("order", "ask") if name in reply.numbers and not _is_no(reply)]


def _is_no(reply: Reply) -> bool:
    return reply.answer in ("rejected", "refused", "malformed", "expired")


def next_step(reply: Reply) -> str:
    """Say what a no means and what to do about it."""
    from schemas.codes import CODES, Kind

    code = CODES.get(reply.code)
    meaning = "" if code is None else f": {code.meaning}"
    passing = code is not None and code.kind is Kind.TRANSIENT
    # Of an act that was refused `why` knows no more than this.
    asked = reply.answer in ("rejected", "expired")
    hint = _HINTS.get(reply.code, f"gpuledger why '{reply.request}' tells more" if asked else "")
    if reply.code == "unknown_queue" and not reply.numbers.get("queue"):
        hint = "Name one with --queue (gpuledger state lists them), and ask with a new id"
    hint = hint.replace("NODE", str(reply.numbers.get("node", "NODE")))
    return (
        f"{reply.answer}{meaning}; {'it may pass' if passing else 'this id keeps this answer'}."
        f" {hint}"
    ).rstrip()


#: What to do about a no that the words of `why` would not help with.
_HINTS = {
    "unknown_cell": "Is --cell right? gpuledger pool apply makes a cell",
    "unknown_tenant": "Is --tenant right? gpuledger quota apply makes a tenant; ask with a new id",
    "unknown_template": "Is --template right? gpuledger template apply makes a template",
    "template_requires": "Say all of it, and ask with a new id",
    "template_forbids": "Ask for less, or name another --template, with a new id",
    "unknown_reservation": "gpuledger reservation list names them; ask with a new id",
    "unknown_queue": "Is --queue right? gpuledger queue apply makes a queue; ask with a new id",
    "unknown_lease": "A lease is SOURCE#ID/ATTEMPT: gpuledger state lists them; is --source right?",
    "unknown_request": "A request is SOURCE#ID: gpuledger state lists them; is --source right?",
    "not_drained": "Drain it, then say this again: gpuledger node set NODE draining --reason WHY",
    "not_owner": "Only the source that asked may do this; is --source right?",
}
