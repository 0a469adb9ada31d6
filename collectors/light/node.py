"""A simulated node agent without I/O: orders and time in, observations out.

It keeps the promises that a real node agent keeps. A restart is a new incarnation on which
nothing of the old one runs; orders for another incarnation are refused; an order that comes
again is not carried out again but answered again; what could not be said while the node was
cut off is said later, in order. What it does wrong, `collectors.fleet.fault_plan` orders.

All times are integer microseconds, on whatever clock the caller uses.
"""

from __future__ import annotations

from collections import Counter
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any

from collectors.fleet.fault_plan import DeviceFault, Down, Late, Silent
from collectors.light.partitions import Layouts
from collectors.light.tasks import Ending, RunningTask, Timing
from collectors.said import Said

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from collectors.fleet.description import NodeSpec
    from collectors.fleet.fault_plan import Fault
    from schemas.messages import Order

__all__ = ["Ending", "RunningTask", "SimulatedNode", "Timing"]

_US = 1_000_000

#: How many orders and ended leases a node remembers, to answer them again.
_REMEMBERED = 10_000

#: Device memory in use when nothing runs, as the proof of clean states it.
_BASELINE_MIB = 4

#: What a process that cannot be ended still holds, when cleaning fails.
_LEFT_MIB = 1_024


class SimulatedNode:
    """One node. Call `start`, then `hear` and `advance` as time passes, and `take` what it says."""

    def __init__(
        self,
        spec: NodeSpec,
        cell: str,
        *,
        timing: Timing | None = None,
        ending: Callable[[Order], Ending] | None = None,
        boot_name: Callable[[int], str] = "boot-{}".format,
    ) -> None:
        """Make a node that is off.

        ``ending`` says how a task will end; by default it completes when expected.
        ``boot_name`` makes the incarnation's name of the number of the boot, from 1
        on; where one process follows another its names must differ from those before.
        """
        self.spec = spec
        self.cell = cell
        self.timing = timing or Timing()
        self.incarnation = ""
        self.epoch = 0
        #: Orders that were not for this node as it is now, by reason.
        self.refused: Counter[str] = Counter()
        self._ending = ending or self.timing.ending
        self._boot_name = boot_name
        self._boots = 0
        self._sayings = count(1)
        self._beats = count(1)
        self._entries = count(1)
        self._agenda: list[tuple[int, int, Callable[[int], None]]] = []
        self._running: dict[str, RunningTask] = {}
        #: Lease -> what was said when its task ended; order -> its answer, None: none yet.
        self._ended: dict[str, Said] = {}
        self._answers: dict[str, Said | None] = {}
        self._open: set[str] = set()
        self._outbox: list[Said] = []
        self._inbox: list[Order] = []
        self._health = {device.uuid: "healthy" for device in spec.devices}
        self._faults: dict[str, Fault] = {}
        self._layouts = Layouts(spec)

    # -- what the caller sees --------------------------------------------------

    @property
    def running(self) -> Mapping[str, RunningTask]:
        """What runs now or is being made ready, by lease."""
        return self._running

    @property
    def busy(self) -> bool:
        """Whether a task runs or an order is being carried out."""
        return bool(self._running or self._open)

    @property
    def connected(self) -> bool:
        """Whether the node is on and can be heard."""
        return "down" not in self._faults and "silent" not in self._faults

    def start(self, now_us: int) -> None:
        """Boot: a new incarnation, on which nothing runs, tells what it has."""
        self._boots += 1
        self.incarnation = self._boot_name(self._boots)
        self.epoch = 0
        self._forget_work()
        self._layouts.boot()
        self._ended.clear()
        self._answers.clear()
        self._start_agent(now_us)

    def hear(self, order: Order, now_us: int) -> None:
        """Take an order. A node that is away hears it when it is back."""
        if not self.connected:
            self._inbox.append(order)
            return
        reason = self._not_for_me(order)
        if reason is not None:
            self.refused[reason] += 1
        elif order.order in self._answers:
            answer = self._answers[order.order]
            if answer is not None:
                self._outbox.append(answer)
        else:
            kind = "partition" if order.kind == "mode" else order.kind
            getattr(self, f"_{kind}")(order, now_us)

    def advance(self, now_us: int) -> None:
        """Do everything that is due at or before ``now_us``, each thing at its own time."""
        while self._agenda and self._agenda[0][0] <= now_us:
            due_us, _, act = heappop(self._agenda)
            act(due_us)

    def take(self) -> list[Said]:
        """Return what the node says now, in order, and forget it; nothing while it is away."""
        if not self.connected:
            return []
        said = self._outbox.copy()
        self._outbox.clear()
        if "duplicate" in self._faults:
            return [one for each in said for one in (each, each)]
        return said

    def next_us(self) -> int | None:
        """Return when the node has something to do next, or None."""
        return self._agenda[0][0] if self._agenda else None

    def heartbeat(self, now_us: int) -> Said:
        """Return the next heartbeat; send it only while the node is `connected`."""
        beat = next(self._beats)
        data = {
            "node": self.spec.name,
            "incarnation": self.incarnation,
            "node_time_us": now_us,
            "cell": self.cell,
            "beat": beat,
        }
        return Said("node.heartbeat", f"{self.incarnation}.{self.epoch}-beat-{beat}", data)

    def turn(self, fault: Fault, now_us: int, *, begins: bool) -> None:
        """Let a fault begin or end."""
        self.advance(now_us)
        if begins:
            self._faults[_slot(fault)] = fault
        else:
            self._faults.pop(_slot(fault), None)
        if isinstance(fault, DeviceFault):
            self._set_health(fault, now_us, begins=begins)
        elif isinstance(fault, Down) and fault.incarnation == "new" and begins:
            self._forget_work()
        elif isinstance(fault, (Down, Silent)) and not begins:
            self._come_back(fault, now_us)

    # -- orders ----------------------------------------------------------------

    def _not_for_me(self, order: Order) -> str | None:
        if order.cell != self.cell:
            return "other cell"
        if order.node != self.spec.name:
            return "other node"
        return "other incarnation" if order.incarnation != self.incarnation else None

    def _prepare(self, order: Order, now_us: int) -> None:
        """Make the lease ready and start its task, which will end by itself."""
        if any(self._health.get(unit) == "gone" for unit in order.units):
            self._remember(order, self._end(order.lease, None, "never-started", now_us))
            return
        task = RunningTask(order.lease, order.task, order.units, self._ending(order))
        self._running[order.lease] = task
        self._remember(order, None)

        def started(at_us: int) -> None:
            if self._running.get(task.lease) is task:
                task.started_us = at_us
                said = self._say("task.started", at_us, lease=task.lease)
                self._remember(order, said)
                self._at(at_us + task.ending.run_us, ended)

        def ended(at_us: int) -> None:
            if self._running.get(task.lease) is task:
                self._end(task.lease, task, task.ending.how, at_us, task.ending.exit_code)

        self._at(now_us + self.timing.start_us, started)
        self.advance(now_us)

    def _stop(self, order: Order, now_us: int) -> None:
        """End the lease's task.

        A task that has ended by itself was told of before: that answers the order
        too, and is said again only when the order comes again.
        """
        if "stop-unanswered" in self._faults:
            return
        task = self._running.get(order.lease)
        if task is None:
            before = self._ended.get(order.lease)
            if before is None:
                before = self._end(order.lease, None, "never-started", now_us)
            self._remember(order, before)
            return
        self._remember(order, None)

        def stopped(at_us: int) -> None:
            if self._running.get(task.lease) is task:
                how = "never-started" if task.started_us is None else "stopped"
                self._end(task.lease, task, how, at_us)
            self._remember(order, self._ended.get(task.lease))

        self._at(now_us + self.timing.stop_us + self._delay_us(), stopped)
        self.advance(now_us)

    def _clean(self, order: Order, now_us: int) -> None:
        """End what is left of the lease, and prove its units clean or say why not."""
        self._running.pop(order.lease, None)
        self._remember(order, None)
        began_us = now_us

        def proved(at_us: int) -> None:
            failed = "clean-fails" in self._faults
            evidence = {
                "processes": int(failed),
                "memory_mib": _BASELINE_MIB + failed * _LEFT_MIB,
                "baseline_mib": _BASELINE_MIB,
            }
            if failed:
                answer = self._say(
                    "order.failed",
                    at_us,
                    order=order.order,
                    reason="a process could not be ended",
                    evidence=evidence,
                )
            else:
                answer = self._say(
                    "order.done",
                    at_us,
                    order=order.order,
                    took_us=at_us - began_us,
                    evidence=evidence,
                )
            self._remember(order, answer)

        self._at(now_us + self.timing.clean_us + self._delay_us(), proved)
        self.advance(now_us)

    def _partition(self, order: Order, now_us: int) -> None:
        """Change a device's partitions, and say what was created or why not."""
        self._remember(order, None)

        def changed(at_us: int) -> None:
            kind, more = self._layouts.answer(order, self._running.values())
            self._remember(order, self._say(kind, at_us, order=order.order, **more))
            if kind == "order.failed":
                self._inventory(at_us)

        self._at(now_us + len(order.steps) * self.timing.step_us + self._delay_us(), changed)
        self.advance(now_us)

    def _delay_us(self) -> int:
        late = self._faults.get("late")
        return late.by_s * _US if isinstance(late, Late) else 0

    # -- what happens by itself ------------------------------------------------

    def _end(
        self,
        lease: str,
        task: RunningTask | None,
        how: str,
        now_us: int,
        exit_code: int | None = None,
    ) -> Said:
        self._running.pop(lease, None)
        more: dict[str, int] = {}
        if task is not None and task.started_us is not None:
            more["took_us"] = now_us - task.started_us
        if exit_code is not None:
            more["exit_code"] = exit_code
        said = self._say("task.ended", now_us, lease=lease, how=how, **more)
        _put(self._ended, lease, said)
        return said

    def _start_agent(self, now_us: int) -> None:
        """Start the agent: it tells the inventory, now and every so often."""
        self.epoch += 1
        self._sayings = count(1)
        self._inventory(now_us)
        epoch, incarnation = self.epoch, self.incarnation

        def again(at_us: int) -> None:
            if (self.epoch, self.incarnation) == (epoch, incarnation):
                if self.connected:
                    self._inventory(at_us)
                self._at(at_us + self.timing.inventory_every_us, again)

        self._at(now_us + self.timing.inventory_every_us, again)

    def _come_back(self, fault: Down | Silent, now_us: int) -> None:
        """Tell what was kept back, then what is there; only then hear what was ordered."""
        if isinstance(fault, Silent):
            self._inventory(now_us)
        elif fault.incarnation == "new":
            self.start(now_us)
        else:
            self._start_agent(now_us)
        inbox = self._inbox.copy()
        self._inbox.clear()
        for order in inbox:
            self.hear(order, now_us)

    def _set_health(self, fault: DeviceFault, now_us: int, *, begins: bool) -> None:
        uuid = self.spec.devices[fault.device].uuid
        was, new = self._health[uuid], fault.health if begins else "healthy"
        self._health[uuid] = new
        if "down" in self._faults:
            return  # nobody there to see it: the inventory at the next start tells
        if was == "gone":
            self._inventory(now_us)
        else:
            reason = fault.reason if begins else "healthy again"
            self._say("device.health", now_us, device=uuid, health=new, reason=reason)

    def _inventory(self, now_us: int) -> None:
        spec = self.spec
        self._say(
            "node.inventory",
            now_us,
            epoch=self.epoch,
            pool=spec.pool,
            cpu_milli=spec.cpu_milli,
            memory_mib=spec.memory_mib,
            devices=[
                device.report(health, self._layouts.slices[device.uuid])
                for device in spec.devices
                if (health := self._health[device.uuid]) != "gone"
            ],
        )

    # -- small things ----------------------------------------------------------

    def _say(self, kind: str, now_us: int, **data: object) -> Said:
        about = {
            "node": self.spec.name,
            "incarnation": self.incarnation,
            "node_time_us": now_us,
        }
        name = f"{self.incarnation}.{self.epoch}-{next(self._sayings)}"
        said = Said(kind, name, about | data)
        self._outbox.append(said)
        return said

    def _at(self, due_us: int, act: Callable[[int], None]) -> None:
        heappush(self._agenda, (due_us, next(self._entries), act))

    def _remember(self, order: Order, answer: Said | None) -> None:
        _put(self._answers, order.order, answer)
        if answer is None:
            self._open.add(order.order)
        else:
            self._open.discard(order.order)

    def _forget_work(self) -> None:
        """Lose what does not survive that the machine is off."""
        for kept in (self._agenda, self._running, self._open, self._outbox):
            kept.clear()


def _slot(fault: Fault) -> str:
    """Return the name under which a fault is kept while it lasts."""
    return f"device-{fault.device}" if isinstance(fault, DeviceFault) else fault.kind


def _put(kept: dict[str, Any], key: str, value: Said | None) -> None:
    """Keep a value; forget the oldest beyond the limit."""
    kept[key] = value
    if len(kept) > _REMEMBERED:
        del kept[next(iter(kept))]
