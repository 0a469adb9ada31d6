"""Quotas: the tree as it stands, and a larger one asked for and answered by a second person."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ledger.cli.common import No, Session, Speaker, Usage
from ledger.cli.policy_apply import Operator, send

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from ledger.core.quotas.quota import Quota
    from ledger.core.state import State

__all__ = ["COMMANDS"]

AskArgument = Annotated[
    str, typer.Argument(metavar="ASK", help="id of what was asked for, as its answer has it")
]


async def ask(
    session: Session,
    tenant: Annotated[str, typer.Argument(help="name of the tenant")],
    operator: Operator,
    speaker: Speaker,
    *,
    project: Annotated[str | None, typer.Option(help="of this project of the tenant")] = None,
    gpus: Annotated[int | None, typer.Option(help="whole devices wanted in all")] = None,
    gpu_milli: Annotated[int | None, typer.Option(help="the same in thousandths")] = None,
) -> None:
    """Ask for another nominal quota; it is in force when another person approves it."""
    from schemas.requests import QuotaAsk

    if (gpus is None) == (gpu_milli is None):
        raise Usage("give one of --gpus and --gpu-milli")
    data = QuotaAsk(
        tenant=tenant,
        project=project,
        nominal_gpu_milli=gpus * 1000 if gpus is not None else gpu_milli or 0,
        author=operator.name,
        reason=operator.reason,
    )
    await send(session, data, speaker)


async def approve(
    session: Session, name: AskArgument, operator: Operator, speaker: Speaker
) -> None:
    """Approve a quota asked for; not by who asked. Exit 1 when it cannot be."""
    await _answer(session, name, operator, speaker, approve=True)


async def refuse(session: Session, name: AskArgument, operator: Operator, speaker: Speaker) -> None:
    """Refuse a quota asked for; not by who asked. Exit 1 when it cannot be."""
    await _answer(session, name, operator, speaker, approve=False)


async def _answer(
    session: Session, name: str, operator: Operator, speaker: Speaker, *, approve: bool
) -> None:
    from schemas.requests import QuotaAnswer

    data = QuotaAnswer(ask=name, approve=approve, author=operator.name, reason=operator.reason)
    await send(session, data, speaker)


_COLUMNS = ("nominal", "used", "borrowed", "kept_back", "available")


async def show(
    session: Session,
    name: Annotated[str | None, typer.Argument(help="only this one and those below it")] = None,
    *,
    cell: Annotated[str | None, typer.Option(help="only this cell [all]")] = None,
) -> None:
    """Show the tree of quotas: what each has, uses, borrows and keeps back, by resource.

    `gpu` is in thousandths of a device. What is borrowed is used beyond its own; what is
    kept back is never lent; what is available counts what others would lend now.
    """
    from ledger.cli.questions import check_cell
    from ledger.reading import cells_of, fold_log
    from ledger.wording import quantity_text

    async with session.open() as log:
        cells = cells_of(await fold_log(log, session.prefix, progress=session.progress("reading")))
    check_cell(cells, cell)
    rows = [
        row for state in cells.values() if cell in (None, state.cell) for row in _tree(state, name)
    ]
    if name is not None and not rows:
        raise No(f"there is no quota {name}")
    if not session.json:
        for row in rows:
            row["quota"] = "  " * row["depth"] + row["quota"]
    session.emit_rows(rows, ("quota", "resource", *_COLUMNS))
    for state in cells.values() if name is None else ():
        for one in state.quota_asks.values():
            whose = one.tenant if one.project is None else f"{one.tenant}/{one.project}"
            asked = quantity_text("gpu", one.nominal_milli)
            session.note(f"asked: {asked} for {whose} by {one.author}: {one.id}")


def _tree(state: State, top: str | None) -> Iterator[dict[str, Any]]:
    """Yield a row for each quota and resource, parents before children."""
    children: dict[str | None, list[str]] = {}
    for quota in state.quotas.values():
        children.setdefault(quota.parent, []).append(quota.name)

    def below(name: str, depth: int) -> Iterator[dict[str, Any]]:
        yield from _rows(state, state.quotas[name], depth)
        for child in sorted(children.get(name, ())):
            yield from below(child, depth + 1)

    tops = sorted(children.get(None, ())) if top is None else [top]
    for name in tops:
        if name in state.quotas:
            yield from below(name, 0)


def _rows(state: State, quota: Quota, depth: int) -> Iterator[dict[str, Any]]:
    from ledger.core.quotas.quota import available, budget_left

    about = {"cell": state.cell, "quota": quota.name, "parent": quota.parent, "depth": depth}
    for resource in quota.governed:
        limit = quota.limits.get(resource)
        used, capacity = quota.used.get(resource, 0), quota.capacity.get(resource, 0)
        yield about | {
            "resource": resource,
            "nominal": None if limit is None else limit.nominal,
            "used": used,
            "borrowed": max(0, used - capacity) if quota.parent is not None else 0,
            "kept_back": quota.kept.get(resource, 0),
            "available": available(state, quota.name, resource),
        }
    left = budget_left(quota, state.now_us)
    if left is not None:
        second = 1000 * 1_000_000
        yield about | {
            "resource": "gpu_seconds",
            "nominal": quota.budget_milli_us // second,
            "used": (quota.budget_milli_us - left) // second,
            "borrowed": 0,
            "kept_back": 0,
            "available": left // second,
        }


COMMANDS: dict[str, Callable[..., Awaitable[None]]] = {
    "ask": ask,
    "approve": approve,
    "refuse": refuse,
    "show": show,
}
