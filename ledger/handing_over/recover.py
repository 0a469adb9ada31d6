"""End what a dead wrapper of this host has left behind: its command, its lease, its request."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from ledger.client import NoAnswer
from ledger.handing_over.process import end_group
from ledger.handing_over.talk import Talk

if TYPE_CHECKING:
    from ledger.client import Client, Sent
    from ledger.handing_over.owners import Owned, Owners

__all__ = ["recover"]

#: How long a command is given to end, in seconds.
_GRACE_S = 10.0
#: How often it is looked at meanwhile.
_LOOK_S = 0.1


async def recover(
    owned: Owned, client: Client, owners: Owners, *, stop: bool, wait_s: float = 0.0
) -> str | None:
    """Give back what the wrapper held; return in words what was done, None for nothing.

    A command that still runs is ended first with ``stop``, and otherwise keeps its lease:
    it uses the devices. With ``wait_s`` the answers are waited for. What is said has the
    ids that the wrapper would have given it, so what it said itself is not said twice.
    """
    if owned.child_lives:
        if not stop:
            return None
        await _end_command(owned)
    talk = Talk(client, owned.id)
    said = []
    if owned.lease:
        how: Literal["completed", "failed"] = "completed" if owned.how == "completed" else "failed"
        sent = await talk.release(owned.lease, how)
        said.append(f"lease {owned.lease}: {await _answer(client, sent, wait_s)}")
    # An interrupted lease may have sent the request back to its queue.
    sent = await talk.cancel("its wrapper has died")
    said.append(f"request {owned.request}: {await _answer(client, sent, wait_s)}")
    owners.remove(owned)
    return "; ".join(said)


async def _end_command(owned: Owned) -> None:
    """End the command and what it has started; alone where it has no group of its own."""
    if owned.grouped:
        await end_group(owned.child, _GRACE_S)
        return
    with suppress(ProcessLookupError):
        os.kill(owned.child, signal.SIGTERM)
        for _ in range(round(_GRACE_S / _LOOK_S)):
            if not owned.child_lives:
                return
            await asyncio.sleep(_LOOK_S)
        os.kill(owned.child, signal.SIGKILL)


async def _answer(client: Client, sent: Sent, wait_s: float) -> str:
    if not wait_s:
        return "sent"
    try:
        reply = await client.answer(sent, timeout_s=wait_s)
    except NoAnswer:
        return "sent; no answer yet"
    return reply.code
