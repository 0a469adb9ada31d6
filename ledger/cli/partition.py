"""MIG layouts: what is on a device, what would make room, and an operator's order to change it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ledger.cli.common import No, Session, Speaker, Usage
from ledger.cli.policy_apply import Operator

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from ledger.core.fold import Fold
    from ledger.core.state import State
    from ledger.log.port import Log
    from schemas.requests import DeviceMode, DevicePartition

__all__ = ["COMMANDS"]

#: How many profiles are named: one model has up to a dozen.
_MOST_PROFILES = 16

#: How often a command looks whether its order has ended, in seconds.
_LOOK_S = 0.2

_ENDS = ("order.done", "order.failed", "order.timed-out", "order.superseded")

Wait = Annotated[
    bool,
    typer.Option("--wait/--no-wait", help="until the node has carried it out [--wait]"),
]


async def plan(
    session: Session,
    device: Annotated[str | None, typer.Argument(help="UUID of a device in MIG mode")] = None,
    *,
    profile: Annotated[
        str | None, typer.Option(help="instead of a device: what to move so that this has a place")
    ] = None,
    pool: Annotated[str | None, typer.Option(help="only on devices of this pool [all]")] = None,
) -> None:
    """Show what is on a device and what fits, or the fewest moves that make a place.

    Changes nothing. Exit 1 when there is no such device, pool or profile, or no moves would do.
    """
    from ledger.answers.partitions import device_layout, moves_plain, moves_text
    from ledger.core.mig.defragment import defragment
    from ledger.reading import cells_of, fold_log

    if (device is None) == (profile is None):
        raise Usage("give a device or --profile")
    if profile is None and pool is not None:
        raise Usage("--pool goes with --profile: a device is in one pool")
    async with session.open() as log:
        cells = cells_of(await fold_log(log, session.prefix, progress=session.progress("reading")))
    if profile is not None:
        _check(cells.values(), profile, pool)
    for state in cells.values():
        if device is not None and device in state.devices:
            found = device_layout(state, state.devices[device])
            if session.json:
                session.emit(found, "")
            else:
                columns = ("slice", "profile", "start", "size", "state", "lease")
                session.emit_rows(found["slices"], columns)
                if not found["mig_enabled"]:
                    session.note(f"{device} is not in MIG mode")
                elif not found["fits"]["now"]:
                    session.note(f"{device} does not report what profiles it takes")
                for name, starts in found["fits"]["now"].items():
                    session.note(f"{name} fits at {', '.join(map(str, starts)) or 'no place'}")
            return
        moves = None if profile is None else defragment(state, profile, pool)
        if moves is not None:
            session.emit({"cell": state.cell, **moves_plain(moves)}, moves_text(moves))
            return
    if device is not None:
        raise No(f"there is no device {device}")
    where = "" if pool is None else f" in pool {pool}"
    raise No(f"no moves make a place for {profile}{where}")


def _check(cells: Iterable[State], profile: str, pool: str | None) -> None:
    """Raise `No` for a pool that no cell has, and for a profile that no device of it takes."""
    from ledger.wording import listed

    pools: set[str] = set()
    profiles: set[str] = set()
    for state in cells:
        pools |= {*state.pools, *(node.pool for node in state.nodes.values())}
        profiles |= {
            one.name
            for device in state.devices.values()
            if device.geometry is not None and pool in (None, state.nodes[device.node].pool)
            for one in device.geometry.profiles
        }
    if pool is not None and pool not in pools:
        raise No(f"there is no pool {pool}; there are {listed(sorted(pools)) or 'none'}")
    where = "" if pool is None else f" of pool {pool}"
    if not profiles:
        raise No(f"no device{where} reports what profiles it takes")
    if profile not in profiles:
        there = listed(sorted(profiles), _MOST_PROFILES)
        raise No(f"no device{where} takes the profile {profile}; they take {there}")


async def partition(
    session: Session,
    device: Annotated[str, typer.Argument(help="UUID of a device in MIG mode")],
    layout: Annotated[
        list[str] | None,
        typer.Argument(metavar="PROFILE[@START]...", help="all that is to be on it; none: nothing"),
    ] = None,
    *,
    operator: Operator,
    speaker: Speaker,
    wait: Wait = True,
) -> None:
    """Order a whole layout of a device, and wait until its node has made it.

    Exit 1 when something in use has no place in it, and when the node could not do it.
    """
    from schemas.requests import DevicePartition

    data = DevicePartition(
        device=device,
        layout=tuple(layout or ()),
        author=operator.name,
        reason=operator.reason,
    )
    await _order(session, data, speaker, wait=wait)


async def mig_mode(
    session: Session,
    device: Annotated[str, typer.Argument(help="UUID of the device")],
    mode: Annotated[str, typer.Argument(help="on or off")],
    *,
    operator: Operator,
    speaker: Speaker,
    wait: Wait = True,
) -> None:
    """Turn a device's MIG mode on or off, and wait until its node has done so.

    Its node has to be drained first (gpuledger node set NODE draining), and nothing on it in
    use. Exit 1 when it is not, and when the node could not do it.
    """
    from schemas.requests import DeviceMode

    if mode not in ("on", "off"):
        raise Usage(f"the mode is on or off, not {mode!r}")
    data = DeviceMode(
        device=device, enabled=mode == "on", author=operator.name, reason=operator.reason
    )
    await _order(session, data, speaker, wait=wait)


async def _order(
    session: Session, data: DeviceMode | DevicePartition, speaker: Speaker, *, wait: bool
) -> None:
    """Put it on the log, say the answer, and how the order ended that came of it.

    Raise `No` when the ledger refuses it, the node fails, or it has not ended in the time that
    is waited for an answer.
    """
    from ledger.cli.positions import Starts, stores_of
    from ledger.cli.requests import say
    from ledger.replay.states import fold_at
    from ledger.wording import numbers_text

    async with session.open(write=True) as log:
        reply = await speaker.client(session, log).ask(data, timeout_s=speaker.limit_s)
        say(session, reply)
        order = reply.numbers.get("order")
        if order is None or reply.position is None:
            return
        follow = f"gpuledger show {order} tells how it goes"
        if not wait:
            session.note(f"ordered as {order}; {follow}")
            return
        number, _, offset = reply.position.rpartition("/")[2].partition("@")
        partition, place = int(number), {int(number): int(offset)}
        # What was there before the answer is gone over first: that is no waiting for the node.
        folds = await fold_at(
            log, session.prefix, place, stores_of(session, Starts()), with_ids=False
        )
        try:
            async with asyncio.timeout(speaker.limit_s):
                end = await _end_of(log, session.prefix, partition, folds[partition], str(order))
        except TimeoutError:
            raise No(
                f"{order} is ordered, and its node has not answered in {speaker.limit_s:g} s;"
                f" {follow}"
            ) from None
    how, reason = end["type"].removeprefix("order."), end.get("reason", "")
    numbers = numbers_text(end.get("evidence") or {})
    compared = f" ({numbers})" if numbers else ""
    text = f"{how:<9} {order}{'  ' if reason else ''}{reason}{compared}"
    plain = {"order": order, "ended": how, "reason": reason, "evidence": end.get("evidence", {})}
    session.emit(plain, text)
    if how != "done":
        raise No(f"the node could not do it: {reason or how}{compared}; gpuledger show {order}")


async def _end_of(log: Log, prefix: str, partition: int, fold: Fold, order: str) -> dict[str, Any]:
    """Return the event that ends the order, when it is there: read from where the fold stands."""
    from ledger.reading import read_events

    while True:
        async for seen in read_events(log, prefix, partition, fold):
            for event in seen.data["events"] if seen.verdict == "effective" else ():
                if event.get("order") == order and event["type"] in _ENDS:
                    return dict(event)
        await asyncio.sleep(_LOOK_S)


COMMANDS: dict[str, Callable[..., Awaitable[None]]] = {
    "mig-mode": mig_mode,
    "partition": partition,
    "partition-plan": plan,
}
