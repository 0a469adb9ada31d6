"""A fleet of simulated machines on one log: every node is the real agent over fake GPUs.

One process and one loop are the whole fleet. What it says and hears is what as many machines
would say and hear; what they share is only the way to the log (`collectors.fleet.log`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any

import structlog

from collectors.agent.journal import Clock
from collectors.fake_nvml.reader import fake_library
from collectors.fleet.fault_plan import FaultPlan, Flapping, turns
from collectors.fleet.host import HostOptions, SimulatedHost
from collectors.fleet.host_faults import befall, flip
from collectors.fleet.log import FleetLog
from ledger.log.port import LogDamaged, LogUnavailable
from ledger.log.wakeup import wall_clock_us

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from collectors.fleet.fault_plan import Fault, Turn
    from collectors.fleet.host import HostSpec, Start
    from ledger.log.port import Log

__all__ = ["SimulatedFleet", "world_clock"]

_log = structlog.get_logger(__name__)
_US = 1_000_000

#: How long the next agent waits for the first inventory of the one before, at most, and how
#: often that is looked for, in seconds.
_FIRST_S, _POLL_S = 2.0, 0.002

#: How long nothing befalls a fleet whose plan has nothing more, in seconds.
_IDLE_S = 3600.0

#: How long to wait before a log that is not there is tried again, in seconds.
_RETRY_S = 1.0


def world_clock() -> Clock:
    """Return the clocks of this machine, which all simulated ones share."""
    return Clock(wall_clock_us, lambda: round(asyncio.get_running_loop().time() * _US))


class SimulatedFleet:
    """Machines and what befalls them. `run` in real time, or `begin` and `live` step by step."""

    def __init__(
        self,
        log: Log,
        cell: str,
        specs: Sequence[HostSpec],
        *,
        plan: FaultPlan | None = None,
        options: HostOptions | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Make the machines; they are off until `begin`. The plan's times count from there."""
        self.options = options or HostOptions()
        self._clock = clock or world_clock()
        self.log = FleetLog(log, self.options.prefix)
        self.hosts = {
            spec.name: SimulatedHost(spec, cell, self.log, self._clock, self.options)
            for spec in specs
        }
        self._plan = plan or FaultPlan()
        self._turns: deque[Turn] = deque()
        self._lasting: dict[int, Callable[[], None]] = {}
        self._flips: list[tuple[int, int, Flapping]] = []
        self._numbers = count()
        #: Starts of agents that are there, those of them that wait to be run, and that do run.
        self._known: set[Start] = set()
        self._waiting: asyncio.Queue[Start] = asyncio.Queue()
        self._running: dict[Start, asyncio.Task[None]] = {}
        self._failed: asyncio.Future[None] | None = None

    def begin(self) -> None:
        """Turn every machine on."""
        self._turns = deque(turns(self._plan, self._clock.steady_us()))
        for host in self.hosts.values():
            host.turn_on()

    def live(self) -> int | None:
        """Let the faults that are due happen; return when the next one is (steady us)."""
        now_us = self._clock.steady_us()
        while self._turns and self._turns[0].at_us <= now_us:
            turn = self._turns.popleft()
            self._turn(turn.fault, begins=turn.begins)
        while self._flips and self._flips[0][0] <= now_us:
            due_us, number, fault = heappop(self._flips)
            if id(fault) in self._lasting:
                flip(self.hosts[fault.node], fault)
                heappush(self._flips, (due_us + fault.every_s * _US, number, fault))
        times = [self._turns[0].at_us] if self._turns else []
        times += [self._flips[0][0]] if self._flips else []
        return min(times, default=None)

    def _turn(self, fault: Fault, *, begins: bool) -> None:
        host = self.hosts.get(fault.node)
        if host is None:
            return
        _log.info("fault", **fault.model_dump(), begins=begins)
        if not begins:
            self._lasting.pop(id(fault))()
            return
        self._lasting[id(fault)] = befall(host, fault)
        if isinstance(fault, Flapping):
            due_us = self._clock.steady_us() + fault.every_s * _US
            heappush(self._flips, (due_us, next(self._numbers), fault))

    # -- in real time -----------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Live until ``stop`` is set. A log that cannot be reached is waited for.

        Raise what else the log raises: `UnknownTopic`, `LogDamaged`, `LogClosed`.
        """
        self._failed = asyncio.get_running_loop().create_future()
        with fake_library():
            await self._open()
            self.begin()
            loops = (self.log.run(), self._live_on(), self._boot_on())
            work = [asyncio.create_task(loop) for loop in loops]
            stopped = asyncio.create_task(stop.wait())
            try:
                waiting: list[asyncio.Future[Any]] = [stopped, self._failed, *work]
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            finally:
                tasks = [stopped, *work, *self._running.values()]
                for task in tasks:
                    task.cancel()
                ends = await asyncio.gather(*tasks, return_exceptions=True)
            errors = [end for end in ends if isinstance(end, Exception)]
            if self._failed.done():
                self._failed.result()
            if errors:
                raise errors[0]

    async def _open(self) -> None:
        while True:
            try:
                await self.log.open()
            except LogDamaged:
                raise
            except LogUnavailable as error:
                _log.warning("the log cannot be reached", error=str(error), retry_s=_RETRY_S)
                await asyncio.sleep(_RETRY_S)
            else:
                return

    async def _live_on(self) -> None:
        while True:
            due_us = self.live()
            await self._follow()
            pause_s = _IDLE_S if due_us is None else (due_us - self._clock.steady_us()) / _US
            await asyncio.sleep(max(0.0, pause_s))

    async def _follow(self) -> None:
        """See to it that the agents that were started run, and end those that were taken away."""
        there = {start for host in self.hosts.values() for start in host.starts}
        for start in sorted(there - self._known, key=lambda one: one.agent.standing.node):
            self._known.add(start)
            self._waiting.put_nowait(start)
        gone = [self._running.pop(start) for start in self._running.keys() - there]
        self._known &= there
        for task in gone:
            task.cancel()
        if gone:
            await asyncio.wait(gone)

    async def _boot_on(self) -> None:
        """Run agents one after the other: all at once, each would be late with its inventory."""
        clock = asyncio.get_running_loop().time
        while True:
            start = await self._waiting.get()
            if start not in self._known:
                continue
            task = asyncio.create_task(start.shell.run(asyncio.Event()))
            task.add_done_callback(self._ended)
            self._running[start] = task
            until_s = clock() + _FIRST_S
            while (  # noqa: ASYNC110 - it is the shell that a journal wakes
                start.agent.journal.fact("inventory") is None and clock() < until_s
            ):
                await asyncio.sleep(_POLL_S)

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and self._failed is not None and not self._failed.done():
            self._failed.set_exception(error)
