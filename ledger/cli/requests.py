"""What a service does: submit, cancel, release, and follow its replies."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ledger.cli.common import (
    No,
    Session,
    Speaker,
    Usage,
    check_identity,
    command,
    pairs_of,
    user_name,
)

if TYPE_CHECKING:
    from ledger.client import Client
    from schemas.messages import Reply
    from schemas.requests import RequestSubmit

__all__ = ["register", "say"]


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


@dataclass(frozen=True, slots=True)
class Asked:
    """Options that describe a request."""

    tenant: Annotated[str | None, typer.Option(help="tenant whose quota is charged")] = None
    queue: Annotated[str | None, typer.Option(help="queue to wait in")] = None
    project: Annotated[str | None, typer.Option(help="project of the tenant")] = None
    task: Annotated[str | None, typer.Option(help="your id of the task [its request's]")] = None
    kind: Annotated[
        str | None,
        typer.Option("--type", help="training, online-inference, batch-inference, evaluation, ..."),
    ] = None
    gpus: Annotated[int | None, typer.Option(help="whole devices on each node [1]")] = None
    nodes: Annotated[int | None, typer.Option(help="distinct nodes, all or nothing [1]")] = None
    mig: Annotated[str | None, typer.Option(metavar="PROFILE", help="MIG, as 2g.20gb")] = None
    count: Annotated[int | None, typer.Option(help="MIG slices of the profile [1]")] = None
    share: Annotated[
        int | None, typer.Option(metavar="MILLI", help="thousandths of one device, shared")
    ] = None
    gpu_memory_mib: Annotated[int | None, typer.Option(help="least device memory")] = None
    pool: Annotated[str | None, typer.Option(help="only this pool")] = None
    model: Annotated[list[str] | None, typer.Option(help="device model; may be repeated")] = None
    label: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="label the pool must have")
    ] = None
    cpu_milli: Annotated[int | None, typer.Option(help="CPU on each node, thousandths")] = None
    host_memory_mib: Annotated[int | None, typer.Option(help="memory on each node")] = None
    priority: Annotated[int | None, typer.Option(help="higher goes first [0]")] = None
    preemptible: Annotated[bool, typer.Option(help="may be ended for others")] = False
    max_wait_s: Annotated[
        int | None, typer.Option("--max-wait-s", "--max-wait", help="0 answers at once [for ever]")
    ] = None
    max_run_s: Annotated[
        int | None, typer.Option("--max-run-s", "--max-run", help="longest time held, all tries")
    ] = None
    expected_run_s: Annotated[
        int | None,
        typer.Option("--expected-run-s", "--expected-run", help="how long it should take"),
    ] = None
    retries: Annotated[int | None, typer.Option(help="tries after an interruption [0]")] = None
    replicas_min: Annotated[
        int | None, typer.Option(help="replicas of the task that an eviction leaves")
    ] = None
    recovery: Annotated[str | None, typer.Option(help="when evicted: requeue or end")] = None
    template: Annotated[str | None, typer.Option(help="template [the task type's]")] = None
    reservation: Annotated[str | None, typer.Option(help="run within it, or not at all")] = None
    checkpoint: Annotated[str | None, typer.Option(help="where the checkpoint is")] = None
    rollback: Annotated[str | None, typer.Option(help="model or version to go back to")] = None
    image: Annotated[str | None, typer.Option(help="image, for the record")] = None
    environment: Annotated[str | None, typer.Option(help="runtime, for the record")] = None

    def plain(self) -> dict[str, Any]:
        """Return what was given, as the request has it; raise `Usage` for two modes at once."""
        return _given(
            {
                "tenant": self.tenant,
                "queue": self.queue,
                "project": self.project,
                "task": {"id": self.task, "type": self.kind},
                "ask": {
                    **self._mode(),
                    "memory_mib": self.gpu_memory_mib,
                    "pool": self.pool,
                    "models": self.model or None,
                    "labels": pairs_of(self.label),
                },
                "beside": {"cpu_milli": self.cpu_milli, "memory_mib": self.host_memory_mib},
                "priority": self.priority,
                "preemptible": self.preemptible or None,
                "max_wait_s": self.max_wait_s,
                "max_run_s": self.max_run_s,
                "expected_run_s": self.expected_run_s,
                "retries": self.retries,
                "replicas_min": self.replicas_min,
                "recovery": self.recovery,
                "template": self.template,
                "reservation": self.reservation,
                "checkpoint": self.checkpoint,
                "rollback": self.rollback,
                "image": self.image,
                "environment": self.environment,
            }
        )

    def _mode(self) -> dict[str, Any]:
        """Return the fields of the mode that is asked for."""
        split = self.mig is not None or self.share is not None
        if self.mig is not None and self.share is not None:
            raise Usage("--mig and --share are two ways to ask; give one of them")
        if split and (self.gpus is not None or self.nodes is not None):
            raise Usage("--gpus and --nodes ask for whole devices; leave out --mig and --share")
        if self.mig is None and self.count is not None:
            raise Usage("--count counts MIG slices; it goes with --mig (whole devices: --gpus)")
        if self.mig is not None:
            return {"mode": "mig", "profile": self.mig, "count": self.count}
        if self.share is not None:
            return {"mode": "share", "gpu_milli": self.share}
        return {"count": self.gpus, "nodes": self.nodes}


async def submit(
    session: Session,
    asked: Asked,
    speaker: Speaker,
    *,
    file: Annotated[
        Path | None,
        typer.Option(help="the request as JSON instead of options; - is stdin", allow_dash=True),
    ] = None,
    event_id: Annotated[
        str | None, typer.Option("--id", help="id of the request [a new UUID]")
    ] = None,
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
    request = _request(asked.plain(), event_id, file)
    async with session.open(write=True) as log:
        client = speaker.client(session, log)
        sent = await client.send(request, event_id)
        if wait is False:
            session.emit({"request": sent.key, "id": sent.id}, f"sent      {sent.key}")
            return
        limit = None if wait and speaker.timeout_s is None else speaker.limit_s
        say(session, await client.answer(sent, final=bool(wait), timeout_s=limit))


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """Return what was given: no None, and no object in which nothing is left."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        kept = _given(value) if isinstance(value, dict) else value
        if kept is not None and kept != {}:
            found[name] = kept
    return found


def _request(options: dict[str, Any], event_id: str, file: Path | None) -> RequestSubmit:
    """Return the request that the options, or the file instead of them, describe."""
    import orjson

    from schemas.requests import RequestSubmit
    from schemas.strict_json import JsonFault, loads_strict

    if file is None:
        if "tenant" not in options:
            raise Usage("--tenant must be given (or --file)")
        options.setdefault("task", {}).setdefault("id", event_id)
        if "ask" in options:
            options["ask"].setdefault("mode", "whole")
        return RequestSubmit.model_validate_json(orjson.dumps(options))
    if options:
        raise Usage(f"--file holds the whole request; leave out --{next(iter(options))}")
    raw = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    try:
        loads_strict(raw)
    except JsonFault as fault:
        raise Usage(f"{file}: {fault}") from None
    return RequestSubmit.model_validate_json(raw)


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
        raise No(_next(reply))


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


def _next(reply: Reply) -> str:
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
