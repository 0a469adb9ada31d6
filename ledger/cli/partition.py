"""MIG layouts: what is on a device, what would make room, and an operator's order to change it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ledger.cli.common import No, Session, Speaker, Usage
from ledger.cli.policy_apply import Operator, send

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["COMMANDS"]


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

    Changes nothing. Exit 1 when there is no such device, or no moves would do.
    """
    from ledger.answers.partitions import device_layout, moves_plain, moves_text
    from ledger.core.mig.defragment import defragment
    from ledger.reading import cells_of, fold_log

    if (device is None) == (profile is None):
        raise Usage("give a device or --profile")
    async with session.open() as log:
        cells = cells_of(await fold_log(log, session.prefix, progress=session.progress("reading")))
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
    planned = any(one.geometry for cell in cells.values() for one in cell.devices.values())
    why = "" if planned else ": no device reports what profiles it takes"
    raise No(f"no moves make a place for {profile}{why}")


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
) -> None:
    """Order a whole layout of a device. Exit 1 when something in use has no place in it."""
    from schemas.requests import DevicePartition

    data = DevicePartition(
        device=device,
        layout=tuple(layout or ()),
        author=operator.name,
        reason=operator.reason,
    )
    await send(session, data, speaker)


async def mig_mode(
    session: Session,
    device: Annotated[str, typer.Argument(help="UUID of the device")],
    mode: Annotated[str, typer.Argument(help="on or off")],
    *,
    operator: Operator,
    speaker: Speaker,
) -> None:
    """Turn a device's MIG mode on or off. Its node has to be drained, and nothing on it in use.

    Exit 1 when it is not. The node's next report says what the mode is then.
    """
    from schemas.requests import DeviceMode

    if mode not in ("on", "off"):
        raise Usage(f"the mode is on or off, not {mode!r}")
    data = DeviceMode(
        device=device, enabled=mode == "on", author=operator.name, reason=operator.reason
    )
    await send(session, data, speaker)


COMMANDS: dict[str, Callable[..., Awaitable[None]]] = {
    "mig-mode": mig_mode,
    "partition": partition,
    "partition-plan": plan,
}
