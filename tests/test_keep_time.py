"""When a worker looks for what time brings: at the moment, soon after it wrote, else rarely."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ledger.core.evolve import empty
from ledger.core.state import Node
from ledger.log.memory import MemoryLog
from ledger.log.topics import apply
from ledger.wire import input_entry
from processors.embedded import EmbeddedLoop
from processors.liveness import Liveness
from processors.pump import Pace, keep_time
from tests.processor_support import (
    POLICY,
    events,
    heartbeat,
    inventory,
    policy,
    replay,
    settings,
    submit,
)

if TYPE_CHECKING:
    from ledger.core.state import State

_S = 1_000_000
_BEAT_US = 2 * _S


class _OverError(Exception):
    """The test has seen what it wanted."""


class Site:
    """A node that beats until it is killed, and a worker with the settings that it has.

    Time passes only while the worker sleeps; what is written is decided ``lag_us`` later.
    """

    def __init__(self, lag_us: int, off_us: int) -> None:
        self.now_us = 1_700_000_000 * _S
        self.log = MemoryLog(clock=lambda: self.now_us)
        self.loop = EmbeddedLoop(self.log, settings(), lambda: self.now_us)
        self.lag_us = lag_us
        self.beats = 0
        self.killed_us: int | None = None
        self.last_beat_us = 0
        self.looks = 0
        self._next_beat_us = self.now_us + off_us
        self._seen = 0
        self._step_us: int | None = None

    @property
    def state(self) -> State:
        """The cell as the ledger sees it."""
        shard = self.loop.engine.shard(0)
        assert shard is not None
        return shard.fold.cells["c1"]

    async def open(self) -> None:
        """Set up a pool without patience, a node, and a lease on it."""
        await apply(self.log, "gpuledger", 1)
        await self.loop.start()
        pool = {"pool": "h100", "silent_grace_s": 0, **POLICY}
        entries = [*policy("c1"), input_entry("c1", "pool.apply", "/ops", "impatient", pool)]
        await self.log.append("gpuledger.requests", None, entries)
        await self.log.append("gpuledger.observations", None, [inventory("c1", "n1", 1)])
        await self.loop.step()
        await self.log.append("gpuledger.requests", None, [submit("c1", "r1")])
        await self.loop.step()
        assert len(self.state.leases) == 1

    async def sleep(self, seconds: float) -> None:
        """Let time pass, with what happens in it."""
        self.looks += 1
        until_us = self.now_us + round(seconds * _S)
        end = await self.log.end("gpuledger.observations", 0)
        if end > self._seen:
            self._seen, self._step_us = end, self.now_us + self.lag_us
        while (next_us := min(self._step_us or until_us, self._next_beat_us)) < until_us:
            self.now_us = next_us
            if self._next_beat_us == next_us:
                await self._beat()
            if self._step_us == next_us:
                self._step_us = None
                await self.loop.step()
                if not self.state.leases:
                    raise _OverError
        self.now_us = until_us

    async def _beat(self) -> None:
        self._next_beat_us += _BEAT_US
        if self.killed_us is not None and self.now_us >= self.killed_us:
            return
        self.beats += 1
        self.last_beat_us = self.now_us
        await self.log.append("gpuledger.heartbeats", None, [heartbeat("c1", "n1", self.beats)])


@pytest.mark.parametrize("lag_us", [1_000, 200_000])
@pytest.mark.parametrize("off_us", [0, 370_000, 990_000, 1_310_000, 1_999_000])
async def test_a_killed_nodes_leases_end_within_the_limit_and_a_second_as_it_comes(
    lag_us: int, off_us: int
) -> None:
    """With the default settings, whenever it is killed, also where decisions take a while."""
    site = Site(lag_us, off_us)
    await site.open()
    site.killed_us = site.now_us + 21 * _S
    with pytest.raises(_OverError):
        await keep_time(site.loop.engine, lambda: site.now_us, site.sleep)
    _, decisions = replay(await events(site.log, 0))
    ended_us = next(
        one["time_us"]
        for one in decisions
        if any(event["type"] == "lease.ended" for event in one["events"])
    )
    limit_us = round(site.loop.settings.heartbeat_limit_s * _S)
    assert limit_us <= ended_us - site.last_beat_us
    assert site.now_us - site.last_beat_us <= limit_us + _S
    assert site.looks < 60, "a look costs reading the heartbeats"


def test_the_pace() -> None:
    """Soon after something was written and then ever later; at the moment that is known."""
    pace = Pace(1.0)
    assert pace.wait_s(0, None, wrote=False) == 1.0
    assert [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0] == [
        pace.wait_s(0, None, wrote=at == 0) for at in range(7)
    ]
    assert pace.wait_s(10 * _S, 10 * _S + 300_000, wrote=False) == 0.3
    assert pace.wait_s(10 * _S, 60 * _S, wrote=False) == 1.0
    assert pace.wait_s(10 * _S, 10 * _S + 1, wrote=False) == 0.002
    assert pace.wait_s(10 * _S, 9 * _S, wrote=False) == 0.002, "it fell due during the look"


class Slow:
    """An engine whose looks take 100 ms, with deadlines at these times."""

    def __init__(self, *dues_us: int) -> None:
        self.settings = settings()
        self.dues_us = dues_us
        self.now_us = 0
        self.sleeps: list[float] = []

    async def tick(self, now_us: int) -> int:
        """Look; nothing is written."""
        assert now_us == self.now_us
        self.now_us += 100_000
        return 0

    def next_look_us(self, now_us: int) -> int | None:
        """Return the next deadline."""
        return min((one for one in self.dues_us if one > now_us), default=None)

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.sleeps.append(seconds)
        self.now_us += round(seconds * _S)
        if len(self.sleeps) == 4:
            raise _OverError


async def test_what_falls_due_during_a_look_is_looked_at_next() -> None:
    """And not a whole second later; once, however long that has been due."""
    slow = Slow(50_000, 60_000)
    with pytest.raises(_OverError):
        await keep_time(slow, lambda: slow.now_us, slow.sleep)  # type: ignore[arg-type]
    assert [0.002, 1.0, 1.0, 1.0] == slow.sleeps


def test_the_next_silence() -> None:
    """Of the nodes that are to be heard and are not past their limit yet, the earliest."""
    cell = empty("c1")
    for name, state in (("n1", "online"), ("n2", "draining"), ("n3", "lost"), ("n4", "online")):
        cell.nodes[name] = Node(name, "p", "b", 1, "/nodes/n", state, None, None)
    liveness = Liveness(15 * _S)

    def next_us(now_s: int) -> int | None:
        liveness.verdicts({"c1": cell}, now_s * _S)
        return liveness.next_us(["c1"])

    assert next_us(0) is None
    liveness.listen_from(100 * _S)
    for name, at_s in (("n1", 130), ("n2", 120), ("n3", 101)):
        liveness.heard("c1", name, "b", at_s * _S)
    assert next_us(110) == 115 * _S, "n4 was never heard"
    assert next_us(120) == 135 * _S
    assert next_us(140) == 145 * _S
    assert next_us(145) is None
    assert liveness.next_us(["c2"]) is None, "nobody has looked there"


class CountedNodes(dict[str, Node]):
    """Nodes that count how often somebody goes over them."""

    passes = 0

    def items(self) -> Any:
        """Return them, counted."""
        self.passes += 1
        return super().items()


def test_a_look_goes_over_the_nodes_once() -> None:
    """For the verdicts and for when the next is due: a cell may have thousands of them."""
    cell = empty("c1")
    cell.nodes = nodes = CountedNodes(n1=Node("n1", "p", "b", 1, "/nodes/n", "online", None, None))
    liveness = Liveness(15 * _S)
    liveness.listen_from(0)
    assert [] == liveness.verdicts({"c1": cell}, _S)
    assert 15 * _S == liveness.next_us(["c1"])
    assert 1 == nodes.passes
