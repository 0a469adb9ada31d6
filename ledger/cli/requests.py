"""What a service does: submit, cancel, release, and follow its replies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ledger.cli.asked import Asked, FileOption, IdOption, Terms, request_of
from ledger.cli.common import No, Session, Speaker, Usage, check_identity, command, user_name

if TYPE_CHECKING:
    from ledger.client import Client
    from schemas.messages import Reply

__all__ = ["next_step", "register", "say"]


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

    With --wait and no --timeout-s it waits as long as the request does.
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
        limit = None if wait and speaker.timeout_s is None else speaker.limit_s
        say(session, await client.answer(sent, final=bool(wait), timeout_s=limit))


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
    if reply.answer in ("rejected", "refused", "malformed", "expired"):
        raise No(next_step(reply))


def _text(reply: Reply) -> str:
    """Return a reply for people: the answer, whose it is, and what was granted."""
    from ledger.wording import numbers_text

    numbers = {name: value for name, value in reply.numbers.items() if name != "how"}
    code = "" if reply.code in (reply.answer, "observed") else f"  {reply.code}"
    how = f"  {reply.numbers['how']}" if "how" in reply.numbers else ""
    lines = [f"{reply.answer:<9} {reply.input}{code}{how}"]
    if numbers:
        lines.append(f"  compared {numbers_text(numbers)}")
    if reply.lease is not None:
        lines.append(f"  lease    {reply.lease}")
    for part in reply.parts:
        lines.append(f"  node     {part.node}: {', '.join(part.units) or 'no device'}")
        lines += [f"    {name}={value}" for name, value in part.environment.items()]
        lines += [f"    cdi {name}" for name in part.cdi]
    if reply.position is not None:
        lines.append(f"  recorded {reply.position}")
    return "\n".join(lines)


def next_step(reply: Reply) -> str:
    """Say what a no means and what to do about it."""
    from schemas.codes import CODES, Kind

    code = CODES.get(reply.code)
    meaning = "" if code is None else f": {code.meaning}"
    passing = code is not None and code.kind is Kind.TRANSIENT
    hint = _HINTS.get(reply.code, f"gpuledger why '{reply.request}' tells more")
    return (
        f"{reply.answer}{meaning}; {'it may pass' if passing else 'this id keeps this answer'}."
        f" {hint}"
    )


#: What to do about a no that the words of `why` would not help with.
_HINTS = {
    "unknown_cell": "Is --cell right? gpuledger pool apply makes a cell",
    "unknown_tenant": "Is --tenant right? gpuledger quota apply makes a tenant; ask with a new id",
    "unknown_template": "Is --template right? gpuledger template apply makes a template",
    "template_requires": "Say it, and ask with a new id",
    "template_forbids": "Ask for less, or name another --template, with a new id",
    "unknown_reservation": "gpuledger reservation list names them; ask with a new id",
    "unknown_queue": "Is --queue right? gpuledger queue apply makes a queue; ask with a new id",
    "unknown_lease": "A lease is SOURCE#ID/ATTEMPT: gpuledger state lists them; is --source right?",
    "unknown_request": "A request is SOURCE#ID: gpuledger state lists them; is --source right?",
    "not_owner": "Only the source that asked may do this; is --source right?",
}
