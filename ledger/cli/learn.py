"""``gpuledger pool learn``: what requests a pool gets, from the log, for its placement policy."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ledger.cli.common import No, Session, Speaker, user_name

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ledger.core.fold import Fold
    from ledger.core.state import Need, State
    from ledger.log.port import Log

__all__ = ["COMMANDS"]


async def learn_pool(
    session: Session,
    pool: Annotated[str, typer.Argument(help="name of the pool")],
    speaker: Speaker,
    *,
    apply: Annotated[bool, typer.Option("--apply", help="put it on the log, in force")] = False,
    reason: Annotated[str | None, typer.Option(help="why [learned from so many requests]")] = None,
    author: Annotated[str | None, typer.Option(help="who [your user name]")] = None,
) -> None:
    """Learn from all requests received what the placement policies fgd and least-waste go by.

    Prints the record that would be applied; with --apply it is, and the answer is printed.
    """
    from ledger.cli.requests import say
    from ledger.placement_weights import learn

    async with session.open(write=apply) as log:
        client = speaker.client(session, log)
        state, needs = await _read(session, log, client.cell, pool)
        devices = Counter(
            one.model for one in state.devices.values() if state.nodes[one.node].pool == pool
        )
        cpus = [one.cpu_milli for one in state.nodes.values() if one.pool == pool]
        # One node that did not say leaves the sum unknown.
        cpu_milli = 0 if None in cpus else sum(filter(None, cpus))
        why = reason or f"learned from {needs.total()} requests"
        try:
            data = learn(
                pool, needs.items(), devices, cpu_milli, author=author or user_name(), reason=why
            )
        except ValueError as nothing:
            raise No(str(nothing)) from None
        if apply:
            say(session, await client.ask(data, timeout_s=speaker.limit_s))
            return
    plain = data.model_dump(mode="json")
    session.emit(plain, _text(plain, needs.total()))


async def _read(session: Session, log: Log, cell: str, pool: str) -> tuple[State, Counter[Need]]:
    """Return the cell as it is, and how often each need was asked for of the pool."""
    from ledger.core.fold import Fold
    from ledger.placement_weights import received
    from ledger.reading import read_events
    from schemas.topics import full_name

    records: list[dict[str, Any]] = []
    home: Fold | None = None
    for partition in range(await log.partitions(full_name(session.prefix, "events"))):
        fold = Fold().reading()
        records += [
            seen.data
            async for seen in read_events(log, session.prefix, partition, fold)
            if seen.verdict == "effective" and seen.data["input"]["type"] == "request.submit"
        ]
        if cell in fold.cells:
            home = fold
    state = home.cells[cell] if home is not None else None
    if state is None or pool not in state.pools:
        raise No(f"there is no pool {pool} in cell {cell}")
    return state, received(records, cell, pool, state.pools[pool].labels)


def _text(plain: dict[str, Any], requests: int) -> str:
    from ledger.amounts import gpus, mib_text, per_cent, short

    holes = ", ".join(f"{gpus(milli)}: {gpus(worth)}" for milli, worth in plain["holes"])
    loads = ", ".join(
        f"{model}: {per_cent(load, 1000)}" for model, load in plain["loads_milli"].items()
    )
    load = plain["cpu_load_milli"]
    cpu = per_cent(load, 1000) if load else "not known"
    cores, memory = short(plain["cpu_milli_per_gpu"], 1000), mib_text(plain["memory_mib_per_gpu"])
    lines = [
        f"pool {plain['pool']}, from {requests} requests; nothing was written (--apply does)",
        f"  {len(plain['shapes'])} usual shapes; beside a device {cores} cores and {memory}",
        f"  CPU asked for with all devices: {cpu}",
        f"  worth of a hole, both in devices: {holes or 'its size'}",
        f"  asked of models by name, of theirs: {loads or 'nothing'}",
    ]
    return "\n".join(lines)


COMMANDS: dict[str, Callable[..., Awaitable[None]]] = {"learn": learn_pool}
