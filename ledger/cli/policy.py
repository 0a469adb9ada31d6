"""What an operator sets: pools, queues, quotas, nodes, and the word that a device is clean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from ledger.cli.common import Session, Speaker, Usage, command, pairs_of, user_name

if TYPE_CHECKING:
    from schemas.base import Model

__all__ = ["register"]


@dataclass(frozen=True, slots=True)
class Operator:
    """Options of every act of an operator: who and why are on record for ever."""

    reason: Annotated[str, typer.Option("--reason", help="why: it is on record for ever")]
    author: Annotated[str | None, typer.Option("--author", help="who [your user name]")] = None

    @property
    def name(self) -> str:
        """Return who it is."""
        return self.author or user_name()


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for name, verb, function, about in (
        ("pool", "apply", pool_apply, "A named set of nodes."),
        ("queue", "apply", queue_apply, "A waiting line and its rules."),
        ("quota", "apply", quota_apply, "What a tenant may hold at once."),
        ("node", "set", node_set, "Nodes in and out of service."),
        ("device", "clear", device_clear, "Devices in quarantine."),
    ):
        group = typer.Typer(help=about, no_args_is_help=True, rich_markup_mode=None)
        command(group, verb)(function)
        # With one command Typer would leave its name out; the callback keeps it.
        group.callback()(_nothing)
        app.add_typer(group, name=name)


def _nothing() -> None:
    return


async def pool_apply(
    session: Session,
    pool: Annotated[str, typer.Argument(help="name of the pool")],
    operator: Operator,
    speaker: Speaker,
    *,
    label: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="label; may be repeated")
    ] = None,
    silent_grace_s: Annotated[int, typer.Option(help="until a silent node's leases end")] = 60,
    order_timeout_s: Annotated[int, typer.Option(help="a node's time to answer an order")] = 300,
) -> None:
    """Create or change a pool; it replaces the labels it had."""
    from schemas.requests import PoolApply

    data = PoolApply(
        pool=pool,
        labels=pairs_of(label),
        silent_grace_s=silent_grace_s,
        order_timeout_s=order_timeout_s,
        author=operator.name,
        reason=operator.reason,
    )
    await _apply(session, data, speaker)


async def queue_apply(
    session: Session,
    queue: Annotated[str, typer.Argument(help="name of the queue")],
    operator: Operator,
    speaker: Speaker,
    *,
    ordering: Annotated[str, typer.Option(help="best-effort or strict")] = "best-effort",
    max_gpus: Annotated[int | None, typer.Option(help="largest request let in [any]")] = None,
    max_wait_s: Annotated[int | None, typer.Option(help="longest wait [for ever]")] = None,
) -> None:
    """Create or change a queue."""
    from schemas.requests import QueueApply

    if ordering not in ("best-effort", "strict"):
        raise Usage(f"--ordering is best-effort or strict, not {ordering!r}")
    data = QueueApply(
        queue=queue,
        ordering="strict" if ordering == "strict" else "best-effort",
        max_gpus=max_gpus,
        max_wait_s=max_wait_s,
        author=operator.name,
        reason=operator.reason,
    )
    await _apply(session, data, speaker)


async def quota_apply(
    session: Session,
    tenant: Annotated[str, typer.Argument(help="name of the tenant")],
    operator: Operator,
    speaker: Speaker,
    *,
    gpus: Annotated[int | None, typer.Option(help="whole devices held at once")] = None,
    gpu_milli: Annotated[int | None, typer.Option(help="the same in thousandths")] = None,
) -> None:
    """Set a tenant's quota; a lower one takes nothing away, it only grants nothing new."""
    from schemas.requests import QuotaApply

    if (gpus is None) == (gpu_milli is None):
        raise Usage("give one of --gpus and --gpu-milli")
    milli = gpus * 1000 if gpus is not None else gpu_milli or 0
    data = QuotaApply(
        tenant=tenant, nominal_gpu_milli=milli, author=operator.name, reason=operator.reason
    )
    await _apply(session, data, speaker)


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
    await _apply(session, data, speaker)


async def device_clear(
    session: Session,
    device: Annotated[str, typer.Argument(help="UUID of the device")],
    operator: Operator,
    speaker: Speaker,
) -> None:
    """Give your word that a device in quarantine is clean."""
    from schemas.requests import DeviceClear

    data = DeviceClear(device=device, author=operator.name, reason=operator.reason)
    await _apply(session, data, speaker)


async def _apply(session: Session, data: Model, speaker: Speaker) -> None:
    from ledger.cli.requests import say

    async with session.open(write=True) as log:
        say(session, await speaker.client(session, log).ask(data, timeout_s=speaker.limit_s))
