"""The log in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ledger.log.memory import MemoryLog
from ledger.log.port import TopicState, UnknownTopic
from tests.log_contract import LogContract, entries

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.log.port import Log


class TestMemoryLog(LogContract):
    """The contract."""

    @pytest.fixture
    def opener(self) -> Callable[[], Log]:
        """Return handles that share one store."""
        return MemoryLog().another


async def test_a_clock_set_back_does_not_take_time_back() -> None:
    """The append time stays at the latest one seen in the partition."""
    times = iter([5_000, 1_000, 7_000])
    log = MemoryLog(lambda: next(times))
    await log.create_topics({"t": TopicState(1)})
    for _ in range(3):
        await log.append("t", 0, entries(1))
    assert [each.time_us for each in await log.read("t", 0, 0)] == [5_000, 5_000, 7_000]


async def test_append_all_is_all_or_nothing() -> None:
    """An unknown partition in the middle leaves nothing behind."""
    log = MemoryLog()
    await log.create_topics({"t": TopicState(1)})
    with pytest.raises(UnknownTopic):
        await log.append_all({("t", 0): entries(1), ("t", 1): entries(1)})
    assert await log.end("t", 0) == 0
