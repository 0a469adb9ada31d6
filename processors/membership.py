"""Which assignor a consumer group has: workers of two runners have different ones.

A broker refuses whoever comes with another assignor, for as long as the group has a
member. Faust does not hear that: its consumer asks for nothing before it has joined,
and only a question raises the client's error. So the broker is asked instead.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from ledger.log.kafka_admin import KafkaTopics
from ledger.log.port import LogUnavailable
from processors.setup import mixed_group

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["check_group", "watch_group"]

_log = structlog.get_logger(__name__)

#: How often a worker that has not joined looks, and how long one look may take, in seconds.
_LOOK_S = 1.0
_LIMIT_S = 10.0


async def check_group(servers: str, group: str, assignor: str) -> None:
    """Raise `Refused` when the group has members with another assignor.

    A broker that does not answer, or tells no assignor (a rebalance is under way, the
    user may not ask), is no reason to refuse.
    """
    try:
        found = await KafkaTopics({"bootstrap_servers": servers}, _LIMIT_S).assignor_of(group)
    except LogUnavailable as error:
        _log.debug("the group cannot be described", group=group, error=str(error))
        return
    if found not in ("", assignor):
        raise mixed_group(group, assignor)


async def watch_group(
    servers: str, group: str, assignor: str, has_joined: Callable[[], bool]
) -> None:
    """Look again and again, for ever, while this worker is no member; raise `Refused`."""
    while True:
        await asyncio.sleep(_LOOK_S)
        if not has_joined():
            await check_group(servers, group, assignor)
