"""The agent of one node with NVIDIA GPUs: orders in, observations out, a journal between.

A node is a name and an incarnation, which is a boot of the machine; each start of the agent
is an epoch of it. At a start the whole inventory is told, and after that what differs: the
health of a device, or the inventory when anything else does. Orders are kept before anything
is done about them, carried out once by their id, and refused with a code when they are for
another node, boot, lifetime or lease, or when somebody is on the device.

`hear`, `work` and the journal's outbox are all there is: whoever moves records to and from a
log (`collectors.agent.shell`) needs nothing else, and a crash between any two calls loses
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from collectors.agent.baselines import learn
from collectors.agent.lease_work import LeaseWork, Patience
from collectors.agent.order_checks import is_another, not_for_this
from collectors.agent.partition_work import PartitionWork
from collectors.agent.telling import Teller, keep_told, last_told
from collectors.agent.view import same_but_health, view
from collectors.health.hearing import WatchOptions
from collectors.health.watch import HealthWatch
from collectors.mig.runner import SagaRunner
from collectors.nvml.reader import NvmlReader, Routine, Wanted
from collectors.nvml.rounds import Rounds
from collectors.said import Said
from collectors.use.watch import UseWatch

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    from collectors.agent.journal import Journal, OrderRow
    from collectors.agent.processes import Processes
    from collectors.health.watch import Judged
    from collectors.nvml.host_facts import HostFacts
    from collectors.nvml.readings import Device
    from collectors.nvml.report import Standing
    from collectors.nvml.watchdog import Asker
    from collectors.use.watch import UseOptions
    from schemas.messages import Order
    from schemas.observations import NodeInventory

__all__ = ["NodeAgent", "NodeOptions"]

_log = structlog.get_logger(__name__)
_US = 1_000_000

#: So many rounds at least are left to NVML's process alone.
_LEAST_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """How often things are done, in microseconds.

    The node is looked at every ``look_us``, each device is read whole every ``pass_us`` at
    least, and the inventory is told when it differs; every ``retell_us`` it is
    told whole all the same, since the ledger may have given the node up meanwhile.
    ``on_the_second``: what is periodic is done at multiples of its period by the steady clock,
    all of it at one wake-up. Not for many agents in one process, which would do it all at once.
    """

    look_us: int = 10 * _US
    on_the_second: bool = False
    pass_us: int = 10 * _US
    retell_us: int = 600 * _US
    sweep_us: int = 30 * _US
    patience: Patience = field(default_factory=Patience)
    watch: WatchOptions = field(default_factory=WatchOptions)


class NodeAgent:
    """One start of a node's agent. Call `start`, then `hear` and `work` as time passes."""

    def __init__(
        self,
        asker: Asker,
        journal: Journal,
        standing: Standing,
        cell: str,
        *,
        facts: HostFacts,
        processes: Processes,
        options: NodeOptions | None = None,
        group_of: Callable[[str], str | None] = lambda _: None,
    ) -> None:
        """Speak for this machine, as its boot in ``facts``; whoever made the asker closes it."""
        self.cell = cell
        self.standing = standing
        self.journal = journal
        self.epoch = 0
        self._facts = facts
        self._processes = processes
        self._options = options or NodeOptions()
        self._group_of = group_of
        self._reader = NvmlReader(asker, clock=lambda: journal.clock.steady_us() / _US)
        self._rounds = Rounds(
            self._reader, lambda: journal.clock.steady_us() / _US, self._options.pass_us / _US
        )
        self._quiet = False
        self._teller = Teller(journal, standing.node, facts.incarnation)
        sagas = SagaRunner(asker, self._reader, journal, processes.holders)
        self._partitions = PartitionWork(journal, self._reader, self._teller, sagas, standing)
        self._partitions.retell = self.retell
        self._health = HealthWatch(self._reader, journal, self._options.watch)
        self._leases = LeaseWork(
            journal, self._reader, self._teller, processes, self._options.patience
        )
        self._leases.told = self._is_told
        self._known: dict[str, Device] = {}
        self._noted: set[str] = set()
        self._use: UseWatch | None = None
        #: Called with each record of use that is complete.
        self.on_use: Callable[[Said], None] = lambda _: None
        self._due: dict[str, int] = {}
        self._look_us = self._retell_us = self._sweep_us = self._listen_us = self._round_us = 0
        self._beat = 0
        self._kinds: dict[str, Callable[[OrderRow], Awaitable[int | None]]] = {
            "prepare": self._leases.prepare,
            "stop": self._leases.stop,
            "clean": self._leases.clean,
            "partition": self._partitions.change,
            "mode": self._partitions.change,
        }

    def use_watch(self, options: UseOptions | None = None) -> UseWatch:
        """Return who watches how this node's devices are used, through the same reader."""
        about = (self.standing.node, self.incarnation)
        return UseWatch(
            self._reader, self.journal, self._processes, about, lambda: self._known, options
        )

    def sample_for(self, watch: UseWatch) -> None:
        """Take its samples when they are due, as far as `work` comes to it; see ``on_use``."""
        self._use = watch
        watch.due_us -= self.since_us(watch.due_us, watch.options.sample_us)

    @property
    def incarnation(self) -> str:
        """The boot that this agent speaks for."""
        return self._facts.incarnation

    def start(self) -> None:
        """Begin an epoch; nothing is read yet."""
        self.epoch = self.journal.begin(self.incarnation)
        self._health.begin()
        self.retell()

    def close(self) -> None:
        """Let go of what was opened beside the journal."""
        self._health.close()

    def retell(self) -> None:
        """Tell the whole inventory at the next `work`: after an outage of the log."""
        self._look_us = self._retell_us = 0

    def heartbeat(self) -> Said:
        """Return the next heartbeat; it is not kept."""
        self._beat += 1
        data = {
            "node": self.standing.node,
            "incarnation": self.incarnation,
            "node_time_us": self.journal.clock.wall_us(),
            "cell": self.cell,
            "beat": self._beat,
        }
        return Said("node.heartbeat", f"{self.incarnation}.{self.epoch}-beat-{self._beat}", data)

    # -- orders -----------------------------------------------------------------------

    def hear(self, order: Order, position: tuple[int, int] | None = None) -> None:
        """Keep an order, or refuse it. ``position`` is (partition, next offset) of the topic."""
        with self.journal.transaction():
            if position is not None:
                self.journal.keep(f"orders-{position[0]}", position[1])
            known = self.journal.order(order.order)
            if known is not None and is_another(order, known):
                _log.warning("an order of another log had this id", order=order.order)
                self.journal.forget_order(order.order)
                known = None
            if known is not None:
                if known.answer is not None:
                    self.journal.say_again(known.answer)
                return
            code, evidence = not_for_this(order, self.journal, self.cell, self.standing.node)
            self.journal.hear(order.order, order.kind, order.model_dump(mode="json"))
            if code:
                row = self.journal.order(order.order)
                assert row is not None, "it was kept just now"
                self._teller.fail(row, code, evidence)
                if order.kind == "partition":
                    # What it was to destroy is nobody's until this node has told of it again.
                    self.retell()
            elif order.kind in ("partition", "mode"):
                self.journal.keep(f"newest {order.units[0]}", order.order)

    def change_mode(self, uuid: str, *, enabled: bool) -> str:
        """Begin a change of a device's MIG mode that no ledger has ordered; the journal has it.

        It ends in the inventory: in the new mode, pending, or as it was (`JournalFile.fact`
        has why under the order's name, which is returned).
        """
        number = int(self.journal.fact("modes") or 0) + 1
        name = f"local-mode-{number}"
        with self.journal.transaction():
            self.journal.keep("modes", number)
            self.journal.hear(name, "mode", {"units": [uuid], "enabled": enabled})
        return name

    async def work(self) -> int:
        """Do everything that is due; return the steady time (us) at which more is."""
        self._round_us = self._now_us()
        if not self._retell_us:
            await self._look()
        for row in await self._round():
            if self._due.get(row.id, 0) <= self._now_us():
                due_us = await self._kinds[row.kind](row)
                self._due.pop(row.id, None)
                if due_us is not None:
                    self._due[row.id] = due_us
        if self._now_us() >= self._sweep_us:
            self._sweep_us = self._now_us() + self._options.sweep_us
            if await self._partitions.sweep():
                self._look_us = 0
        if self._now_us() >= self._look_us:
            await self._look()
        sweeps = [self._sweep_us] if self.journal.holds() else []
        samples = [] if self._use is None else [self._use.due_us]
        return min([self._look_us, self._listen_us, *samples, *sweeps, *self._due.values()])

    async def rest(self, due_us: int, wake: asyncio.Event) -> int:
        """Leave the node to NVML's process while nothing happens; return when `work` is due.

        ``due_us`` is what `work` has returned, ``wake`` ends it when it is set. Until something is
        due that not every round asks, NVML's process makes the rounds as `work` would: devices
        are sampled, listened to and looked at, and what there is to tell ends the rest.
        """
        every_us = self._options.look_us
        # Those at `due_us` and after it, before more is due.
        rounds = -((due_us - self._more_us()) // every_us)
        awaited = wake.is_set() or due_us <= self._now_us()
        asked = None if awaited or rounds < _LEAST_ROUNDS else self._routine()
        if asked is None:
            return due_us
        with self._health.hearing.waking(wake):
            found = await self._reader.vigil(asked, rounds, every_us, wake)
        for at_us, uses in found.samples:
            if self._use is not None:
                self._use.take(at_us, uses)
        now_us = self._now_us()
        next_us = now_us if found.news else now_us + every_us - now_us % every_us
        self._listen_us, self._look_us = next_us, self._look_us and next_us
        return next_us

    def _routine(self) -> Routine | None:
        """Return what each round asks while nothing happens; None: something does."""
        options, use = self._options, self._use
        every_us = options.look_us if use is None else use.options.sample_us
        at_ease = (
            options.on_the_second
            and options.look_us == options.watch.listen_us == every_us
            and self._quiet
            and self._reader.is_well
            and self._health.hearing.at_ease
            and (use is None or use.at_ease)
            and not self.journal.open_orders()
        )
        uuids = self._rounds.all_well() if at_ease else None
        if uuids is None:
            return None
        uses = None if use is None else use.differing()
        return Routine(uses, uuids, self._health.hearing.heeded(self._known))

    def _more_us(self) -> int:
        """Return when something is due that not every round asks."""
        samples = [] if self._use is None else [self._use.more_us]
        return min([self._look_us and self._retell_us, self._health.signs_us, *samples])

    async def _round(self) -> list[OrderRow]:
        """Sample, listen and look where that is due; return the orders that may be answered now.

        It is one question to NVML where nothing is ordered. Before an order is answered what
        has happened is heard, and after it the node is looked at.
        """
        now_us = self._now_us()
        use = self._use if self._use is not None and now_us >= self._use.due_us else None
        listens = now_us >= self._listen_us
        looks = now_us >= self._look_us and not self.journal.open_orders()
        signs, events = self._health.due(self._known) if listens else ([], None)
        uses = None if use is None else use.plan()
        pulse = self._rounds.plan() if looks else None
        async with self._reader.at_once(Wanted(uses, pulse, signs, events)):
            if use is not None:
                record = await use.sample()
                if record is not None:
                    self.on_use(record)
            orders = self.journal.open_orders()
            if listens or orders:
                await self._listen()
            if looks and now_us >= self._look_us:
                await self._look()
        return orders

    def _next_us(self, every_us: int) -> int:
        """Return when it is due again: with a sample, which is no later, where those are taken."""
        due_us = self._round_us + every_us
        due_us -= self.since_us(due_us, every_us)
        if self._use is not None and every_us >= self._use.options.sample_us:
            due_us -= (due_us - self._use.due_us) % self._use.options.sample_us
        return due_us if due_us > self._now_us() else self._now_us() + every_us

    def since_us(self, now_us: int, every_us: int) -> int:
        """Return how long ago something periodic was due; see `NodeOptions.on_the_second`."""
        return now_us % every_us if self._options.on_the_second else 0

    async def _listen(self) -> None:
        """Hear what has happened to devices, and tell it.

        Before an order is answered: so what happened under a lease is told before its units are
        proved clean, and never of the next lease there.
        """
        self._listen_us = self._next_us(self._options.watch.listen_us)
        if await self._health.listen(self._known):
            self._quiet = False
            if self._health.heard:
                self._rounds.distrust()
                self._reader.distrust()
            await self._look()

    def _now_us(self) -> int:
        return self.journal.clock.steady_us()

    # -- the inventory --------------------------------------------------------------------

    async def _look(self) -> None:
        """Read the node, and tell what differs from what was told last."""
        look = await (self._rounds.next() if self._retell_us else self._rounds.whole())
        inventory = look.inventory
        changing = self._partitions.changing()
        holds = {one.device: one for one in self.journal.holds()}
        quiet, self._quiet = self._quiet, not changing and not holds
        if quiet and self._quiet and not look.news and self._now_us() < self._retell_us:
            self._look_us = self._next_us(self._options.look_us)
            if look.read:
                with self.journal.transaction():
                    for device in look.read:
                        learn(self.journal, device)
            return
        last = last_told(self.journal)
        await self._health.ask(inventory)
        for device in inventory.devices:
            if not device.why:
                self._known[device.uuid] = device
        now, notes = view(
            inventory,
            self.standing,
            self._facts,
            last=last,
            known=self._known,
            changing=changing,
            holds=holds,
            group_of=self._group_of,
        )
        for note in notes:
            if str(note) not in self._noted:
                self._noted.add(str(note))
                _log.warning("device", device=note.device, text=note.text)
        self._look_us = self._next_us(self._options.look_us)
        with self.journal.transaction():
            for device in inventory.devices:
                if device.uuid not in changing:
                    learn(self.journal, device)
            if now is not None:
                self._tell(last, self._health.judge(now, last, inventory, holds))

    def _tell(self, last: NodeInventory | None, judged: Judged) -> None:
        due = self._now_us() >= self._retell_us
        whole = last is None or due or not same_but_health(last, judged.now)
        for change in judged.before:
            self._teller.say("device.health", **change)
        if whole:
            self._teller.inventory(judged.told)
            self._retell_us = self._now_us() + self._options.retell_us
            self._retell_us = min(self._retell_us, self._teller.again_us() or self._retell_us)
        for change in judged.after:
            self._teller.say("device.health", **change)
        if last != judged.now:
            keep_told(self.journal, judged.now)

    def _is_told(self, unit: str) -> bool:
        last = last_told(self.journal)
        devices = () if last is None else last.devices
        return self.journal.generation(unit) > 0 or any(one.uuid == unit for one in devices)
