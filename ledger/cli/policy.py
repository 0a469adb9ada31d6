"""What an operator sets: pools, queues, quotas, templates, nodes, the word of a clean device.

Pools, queues and quotas are given by options, or from a file that holds one record
or many; templates from a file. ``--dry-run`` says what would come of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from ledger.cli import learn, partition, policy_apply, quotas
from ledger.cli.common import Session, Speaker, Usage, command, pairs_of
from ledger.cli.policy_apply import Act, Operator, names_a_file, perform, read_file, send

__all__ = ["register"]

NameOrFile = Annotated[
    str,
    typer.Argument(
        metavar="NAME|FILE", help="its name; or a file: .yaml, .yml, .json, .jsonl, - is stdin"
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    policy_apply.register(app)
    groups = (
        ("pool", "A named set of nodes.", {"apply": pool_apply, **learn.COMMANDS}),
        ("queue", "A waiting line and its rules.", {"apply": queue_apply}),
        ("quota", "What tenants may hold at once.", {"apply": quota_apply, **quotas.COMMANDS}),
        ("template", "What requests of a task type get and must say.", {"apply": template_apply}),
        ("node", "Nodes in and out of service.", {"set": node_set, **partition.COMMANDS}),
        ("device", "Devices in quarantine.", {"clear": device_clear}),
    )
    for name, about, verbs in groups:
        group = typer.Typer(help=about, no_args_is_help=True, rich_markup_mode=None)
        for verb, function in verbs.items():
            command(group, verb)(function)
        # With one command Typer would leave its name out; the callback keeps it.
        group.callback()(_nothing)
        app.add_typer(group, name=name)


def _nothing() -> None:
    return


@dataclass(frozen=True, slots=True)
class PoolFields:
    """Options that describe a pool."""

    label: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="label; may be repeated")
    ] = None
    silent_grace_s: Annotated[
        int | None, typer.Option(help="until a silent node's leases end [60]")
    ] = None
    order_timeout_s: Annotated[
        int | None, typer.Option(help="a node's time to answer an order [300]")
    ] = None
    placement: Annotated[
        str | None,
        typer.Option(help="best-fit, first-fit, fgd or least-waste [best-fit]"),
    ] = None
    partition: Annotated[
        str | None, typer.Option(help="make MIG slices: never, create or relayout [never]")
    ] = None
    slices_warning: Annotated[
        int | None, typer.Option(help="an alarm above so many slices on a device; 0: none [4]")
    ] = None

    def plain(self) -> dict[str, Any]:
        """Return what was given, as the record has it."""
        given = _given(self)
        if self.label:
            given["labels"] = pairs_of(given.pop("label"))
        return given


@dataclass(frozen=True, slots=True)
class QueueFields:
    """Options that describe a queue."""

    ordering: Annotated[
        str | None, typer.Option(help="strict, best-effort or backfill [best-effort]")
    ] = None
    tenant: Annotated[
        list[str] | None, typer.Option(help="may submit; may be repeated [everybody]")
    ] = None
    max_gpus: Annotated[int | None, typer.Option(help="largest request let in [any]")] = None
    max_wait_s: Annotated[int | None, typer.Option(help="longest wait [for ever]")] = None
    max_run_s: Annotated[int | None, typer.Option(help="longest run of a lease [any]")] = None
    fair_share: Annotated[
        bool, typer.Option("--fair-share", help="who had least lately goes first")
    ] = False
    preemption: Annotated[
        str | None, typer.Option(help="never, same-tenant or any-tenant [never]")
    ] = None
    reclaim: Annotated[
        str | None, typer.Option(help="of what was lent: never, lower-priority or any [never]")
    ] = None
    idle_remind_s: Annotated[int | None, typer.Option(help="remind of an idle lease after")] = None
    idle_reclaim_s: Annotated[int | None, typer.Option(help="reclaim an idle lease after")] = None
    repair_hold_s: Annotated[
        int | None, typer.Option(help="keep an interrupted gang's place for; 0: not at all [600]")
    ] = None

    def plain(self) -> dict[str, Any]:
        """Return what was given, as the record has it."""
        given = _given(self)
        if self.tenant:
            given["tenants"] = given.pop("tenant")
        return given


@dataclass(frozen=True, slots=True)
class QuotaFields:
    """Options that describe a quota."""

    project: Annotated[str | None, typer.Option(help="of this project of the tenant")] = None
    parent: Annotated[str | None, typer.Option(help="the quota above it [none]")] = None
    gpus: Annotated[int | None, typer.Option(help="whole devices held at once")] = None
    gpu_milli: Annotated[int | None, typer.Option(help="the same in thousandths")] = None
    borrowing_gpu_milli: Annotated[
        int | None, typer.Option(help="most that it borrows [no limit]")
    ] = None
    lending_gpu_milli: Annotated[int | None, typer.Option(help="most that it lends [no limit]")] = (
        None
    )
    limit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RESOURCE=N[,borrowing=N][,lending=N]",
            help="of model:NAME, profile:NAME or memory_mib; may be repeated",
        ),
    ] = None
    budget_gpu_hours: Annotated[int | None, typer.Option(help="GPU-hours of a period")] = None
    budget_period_s: Annotated[int | None, typer.Option(help="how long a period is")] = None
    weight: Annotated[int | None, typer.Option(help="in fair share [1]")] = None
    half_life_s: Annotated[
        int | None, typer.Option(help="after which past use counts half [a week]")
    ] = None
    evict: Annotated[
        bool, typer.Option("--evict", help="stop what is beyond it, the last granted first")
    ] = False

    def plain(self) -> dict[str, Any]:
        """Return what was given, as the record has it; raise `Usage` for half a budget."""
        given = _given(self)
        if self.gpus is not None and self.gpu_milli is not None:
            raise Usage("give one of --gpus and --gpu-milli")
        for name, factor in (("gpus", 1000), ("gpu_milli", 1)):
            if name in given:
                given["nominal_gpu_milli"] = given.pop(name) * factor
        if self.limit:
            given["limits"] = [_limit(one) for one in given.pop("limit")]
        hours, period = given.pop("budget_gpu_hours", None), given.pop("budget_period_s", None)
        if (hours is None) != (period is None):
            raise Usage("--budget-gpu-hours and --budget-period-s go together")
        if hours is not None:
            given["budget"] = {"gpu_hours": hours, "period_s": period}
        return given


_LIMIT = re.compile(r"(.+?)=([0-9]+)(?:,borrowing=([0-9]+))?(?:,lending=([0-9]+))?")


def _limit(text: str) -> dict[str, Any]:
    match = _LIMIT.fullmatch(text)
    if match is None:
        raise Usage(f"--limit takes RESOURCE=N[,borrowing=N][,lending=N], not {text!r}")
    names = ("nominal", "borrowing", "lending")
    numbers = {name: int(one) for name, one in zip(names, match.groups()[1:], strict=True) if one}
    return {"resource": match[1], **numbers}


def _given(options: Any) -> dict[str, Any]:  # noqa: ANN401 - a group of options
    """Return the options that were given, by name."""
    plain = {one.name: getattr(options, one.name) for one in fields(options)}
    # Zero is given, and equal to False: what is left out is told by what it is.
    return {
        name: value for name, value in plain.items() if value is not None and value is not False
    }


async def pool_apply(
    session: Session, pool: NameOrFile, options: PoolFields, act: Act, speaker: Speaker
) -> None:
    """Create or change a pool, or those of a file; it replaces the labels it had."""
    await _set(session, speaker, "pool", pool, options, act)


async def queue_apply(
    session: Session, queue: NameOrFile, options: QueueFields, act: Act, speaker: Speaker
) -> None:
    """Create or change a queue, or those of a file; what is not said is as by default."""
    await _set(session, speaker, "queue", queue, options, act)


async def quota_apply(
    session: Session, tenant: NameOrFile, options: QuotaFields, act: Act, speaker: Speaker
) -> None:
    """Set a quota, or those of a file; what is not said is as by default.

    A lower one takes nothing away unless told to --evict, it only grants nothing new.
    """
    if not names_a_file(tenant) and options.gpus is None and options.gpu_milli is None:
        raise Usage("give one of --gpus and --gpu-milli")
    await _set(session, speaker, "quota", tenant, options, act)


async def template_apply(
    session: Session,
    file: Annotated[Path, typer.Argument(help="templates (YAML, JSON); - is stdin")],
    act: Act,
    speaker: Speaker,
) -> None:
    """Create or change the templates of a file."""
    await perform(session, speaker, read_file(file, "template", act), act)


async def _set(
    session: Session,
    speaker: Speaker,
    kind: str,
    name: str,
    options: PoolFields | QueueFields | QuotaFields,
    act: Act,
) -> None:
    """Set what the options say of ``name``, or what the file of that name holds."""
    from ledger.policy_files import KINDS, policy_record
    from schemas.catalogue import TYPES

    given = options.plain()
    if names_a_file(name):
        if given:
            option = next(iter(_given(options))).replace("_", "-")
            raise Usage(f"{name} holds the whole record; leave out --{option}")
        await perform(session, speaker, read_file(Path(name), kind, act), act)
        return
    named = {"tenant" if kind == "quota" else kind: name}
    model = TYPES[KINDS[kind].type, 1].model
    data = model.model_validate({**named, **given, **act.signed}, strict=False)
    if act.dry_run:
        await perform(session, speaker, [policy_record(kind, data)], act)
    else:
        await send(session, data, speaker)


async def node_set(
    session: Session,
    node: Annotated[str, typer.Argument(help="name of the node")],
    mode: Annotated[str, typer.Argument(help="online, draining or maintenance")],
    operator: Operator,
    speaker: Speaker,
) -> None:
    """Put a node in or out of service; what runs there goes on."""
    from typing import Literal, cast

    from schemas.requests import NodeSet

    if mode not in ("online", "draining", "maintenance"):
        raise Usage(f"a node is online, draining or maintenance, not {mode!r}")
    wanted = cast("Literal['online', 'draining', 'maintenance']", mode)
    data = NodeSet(node=node, mode=wanted, author=operator.name, reason=operator.reason)
    await send(session, data, speaker)


async def device_clear(
    session: Session,
    device: Annotated[str, typer.Argument(help="UUID of the device")],
    operator: Operator,
    speaker: Speaker,
) -> None:
    """Give your word that a device in quarantine is clean."""
    from schemas.requests import DeviceClear

    data = DeviceClear(device=device, author=operator.name, reason=operator.reason)
    await send(session, data, speaker)
