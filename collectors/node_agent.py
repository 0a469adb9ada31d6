"""The agent of one node with NVIDIA GPUs: orders in, observations out, a journal between.

A node is a name and an incarnation, which is a boot of the machine; each start of the agent
is an epoch of it. At a start the whole inventory is told, and after that what differs: the
health of a device, or the inventory when anything else does. Orders are kept before anything
is done about them, carried out once by their id, and refused with a code when they are for
another node, boot, lifetime or lease, or when somebody is on the device.

`hear`, `work` and the journal's outbox are all there is: whoever moves records to and from a
log (`collectors.node_shell`) needs nothing else, and a crash between any two calls loses
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import structlog

from collectors.baselines import learn, slices_of
from collectors.lease_work import LeaseWork, Patience
from collectors.mig_plan import (
    Refusal,
    plan_mode,
    plan_partition,
    steps_from_plain,
    steps_to_plain,
)
from collectors.mig_saga import Mark
from collectors.node_view import health_changes, same_but_health, view
from collectors.nvml.reader import NvmlReader
from collectors.nvml.report import device_report
from collectors.saga_runner import SagaRunner
from collectors.tasks import Said
from collectors.telling import Teller
from schemas.events import PartitionStep
from schemas.observations import NodeInventory

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from collectors.journal import Journal, OrderRow
    from collectors.nvml.host_facts import HostFacts
    from collectors.nvml.readings import Device
    from collectors.nvml.report import Standing
    from collectors.nvml.watchdog import Asker
    from collectors.processes import Processes
    from collectors.saga_runner import Outcome
    from schemas.messages import Order

__all__ = ["NodeAgent", "NodeOptions"]

_log = structlog.get_logger(__name__)
_US = 1_000_000


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """How often things are done, in microseconds.

    The inventory is read every ``look_us`` and told when it differs; every ``retell_us`` it is
    told whole all the same, since the ledger may have given the node up meanwhile.
    """

    look_us: int = 10 * _US
    retell_us: int = 600 * _US
    sweep_us: int = 30 * _US
    patience: Patience = field(default_factory=Patience)


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
        self._options = options or NodeOptions()
        self._group_of = group_of
        self._reader = NvmlReader(asker, clock=lambda: journal.clock.steady_us() / _US)
        self._teller = Teller(journal, standing.node, facts.incarnation)
        self._sagas = SagaRunner(asker, self._reader, journal)
        self._leases = LeaseWork(
            journal, self._reader, self._teller, processes, self._options.patience
        )
        self._leases.told = self._is_told
        self._known: dict[str, Device] = {}
        self._noted: set[str] = set()
        self._due: dict[str, int] = {}
        self._look_us = self._retell_us = self._sweep_us = 0
        self._beat = 0
        self._kinds: dict[str, Callable[[OrderRow], Awaitable[int | None]]] = {
            "prepare": self._leases.prepare,
            "stop": self._leases.stop,
            "clean": self._leases.clean,
            "partition": self._change,
            "mode": self._change,
        }

    @property
    def incarnation(self) -> str:
        """The boot that this agent speaks for."""
        return self._facts.incarnation

    def start(self) -> None:
        """Begin an epoch; nothing is read yet."""
        self.epoch = self.journal.begin(self.incarnation)
        self.retell()

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
            if known is not None:
                if known.answer is not None:
                    self.journal.say_again(known.answer)
                return
            code, evidence = self._not_for_me(order)
            self.journal.hear(order.order, order.kind, order.model_dump(mode="json"))
            if code:
                row = self.journal.order(order.order)
                assert row is not None, "it was kept just now"
                self._teller.fail(row, code, evidence)
            elif order.kind == "partition":
                self.journal.keep(f"newest {order.units[0]}", order.order)

    def _not_for_me(self, order: Order) -> tuple[str, dict[str, Any]]:
        """Say why an order is none for this boot of this node, by a code; empty: it is one."""
        said = {
            "other-cell": (order.cell, self.cell),
            "other-node": (order.node, self.standing.node),
            "other-incarnation": (order.incarnation, self.incarnation),
        }
        for code, (named, mine) in said.items():
            if named != mine:
                return code, {"named": named, "here": mine}
        if order.kind != "partition":
            return "", {}
        newest = self.journal.fact(f"newest {order.units[0]}")
        if newest is not None and _number(order.order) < _number(newest):
            # The ledger has ordered something else of the device since, on another plan.
            return "older-order", {"newest": newest}
        late = order.due_us is not None and self.journal.clock.wall_us() > order.due_us
        return ("past-due", {"due_us": order.due_us}) if late else ("", {})

    def change_mode(self, uuid: str, *, enabled: bool) -> str:
        """Begin a change of a device's MIG mode; its own order, which only the journal has.

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
        if not self._retell_us:
            await self._look()
        for row in self.journal.open_orders():
            if self._due.get(row.id, 0) <= self._now_us():
                due_us = await self._kinds[row.kind](row)
                self._due.pop(row.id, None)
                if due_us is not None:
                    self._due[row.id] = due_us
        if self._now_us() >= self._sweep_us:
            await self._sweep()
        if self._now_us() >= self._look_us:
            await self._look()
        sweeps = [self._sweep_us] if self.journal.holds() else []
        return min([self._look_us, *sweeps, *self._due.values()])

    def _now_us(self) -> int:
        return self.journal.clock.steady_us()

    # -- changes of partitions ----------------------------------------------------------

    async def _change(self, row: OrderRow) -> int | None:
        """Plan a change, or go on with one that was planned."""
        uuid = row.plain["units"][0]
        device: Device | None = None
        if row.plan is None:
            device = await self._reader.device(uuid)
            found = self._planned(row, device)
            if isinstance(found, Refusal):
                self._refuse(row, found)
                return None
            self.journal.plan(row.id, {"steps": steps_to_plain(found)})
        planned = self.journal.order(row.id)
        assert planned is not None, "it is open"
        outcome = await self._sagas.advance(planned, uuid, device)
        if isinstance(outcome, int):
            return outcome
        self._end_change(planned, outcome)
        return None

    def _planned(self, row: OrderRow, device: Device) -> Any:  # noqa: ANN401 - steps or a refusal
        """Return the steps of an order, or why it is refused."""
        if row.kind == "mode":
            units = [device.uuid, *slices_of(device)]
            found = plan_mode(device, enabled=row.plain["enabled"])
        else:
            steps = [PartitionStep.model_validate(one) for one in row.plain["steps"]]
            units = [device.uuid, *(one.mig_uuid for one in steps if one.mig_uuid)]
            found = plan_partition(steps, device)
        held = next((one for unit in units for one in self.journal.bound(unit=unit)), None)
        if held is not None:
            return Refusal("leased", {"unit": held.unit, "lease": held.lease})
        return found

    def _refuse(self, row: OrderRow, refusal: Refusal) -> None:
        _log.warning("order refused", order=row.id, code=refusal.code, evidence=refusal.evidence)
        with self.journal.transaction():
            if row.kind == "mode":
                self.journal.keep(f"end {row.id}", refusal.code)
                self.journal.close_order(row.id)
            else:
                self._teller.fail(row, refusal.code, refusal.evidence)
        # What was to be destroyed is nobody's until its node has told of it again.
        self.retell()

    def _end_change(self, row: OrderRow, outcome: Outcome) -> None:
        """Answer the order with what the device shows, in one step with all that follows."""
        with self.journal.transaction():
            if outcome.hold is not None:
                self.journal.hold(outcome.hold)
                self._say_held(outcome)
            self.journal.gone(self._destroyed(row))
            learn(self.journal, outcome.device)
            if row.kind == "mode":
                self.journal.keep(f"end {row.id}", outcome.reason or "done")
                self.journal.close_order(row.id)
            elif outcome.reason:
                self._teller.fail(row, outcome.reason, outcome.evidence)
            else:
                self._teller.done(row, outcome.evidence, slices=self._made(row, outcome.device))
        if outcome.reason:
            _log.warning(
                "change failed", order=row.id, reason=outcome.reason, evidence=outcome.evidence
            )
        self.retell()

    def _destroyed(self, row: OrderRow) -> list[str]:
        """Return the slices whose end the order was: one that stands there now is another."""
        assert row.plan is not None, "it was planned"
        marks = self.journal.marks(row.id)
        plan = steps_from_plain(row.plan["steps"])
        done = [step for at, step in enumerate(plan) if marks.get(at, Mark()).state == "done"]
        return [step.uuid for step in done if step.do == "destroy_ci" and step.uuid]

    def _say_held(self, outcome: Outcome) -> None:
        """Take a device out of use before its order is answered: nothing is placed between."""
        last = self._last()
        devices = {} if last is None else {one.uuid: one for one in last.devices}
        about = devices.get(outcome.device.uuid)
        if last is None or about is None or about.health == "unhealthy":
            return
        said = {"device": about.uuid, "health": "unhealthy", "reason": outcome.reason}
        self._teller.say("device.health", **said, evidence=outcome.evidence)
        devices[about.uuid] = about.model_copy(update={"health": "unhealthy"})
        self._keep_last(last.model_copy(update={"devices": tuple(devices.values())}))

    def _made(self, row: OrderRow, device: Device) -> list[dict[str, Any]]:
        """Return the slices that the order has created, as the device shows them."""
        report, _ = device_report(device, self.standing)
        starts = {one["start"] for one in row.plain["steps"] if one["do"] == "create"}
        found = () if report is None else report.slices
        return [one.model_dump(mode="json") for one in found if one.start in starts]

    async def _sweep(self) -> None:
        """Try again to take away what changes have left; what is gone sets its device free."""
        self._sweep_us = self._now_us() + self._options.sweep_us
        for hold in self.journal.holds():
            if hold.device in self._changing():
                continue
            uuid = hold.evidence.get("mig_uuid")
            leased = uuid is not None and bool(self.journal.bound(unit=uuid))
            if await self._sagas.sweep(hold, leased=leased):
                _log.info("nothing is left", device=hold.device)
                self.journal.release(hold.device)
                self._look_us = 0

    def _changing(self) -> set[str]:
        kinds = ("partition", "mode")
        return {one.plain["units"][0] for one in self.journal.open_orders() if one.kind in kinds}

    # -- the inventory --------------------------------------------------------------------

    async def _look(self) -> None:
        """Read the node, and tell what differs from what was told last."""
        inventory = await self._reader.inventory()
        changing, holds = self._changing(), {one.device: one for one in self.journal.holds()}
        last = self._last()
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
        self._look_us = self._now_us() + self._options.look_us
        with self.journal.transaction():
            for device in inventory.devices:
                if device.uuid not in changing:
                    learn(self.journal, device)
            if now is not None:
                read = {one.uuid: one for one in inventory.devices}
                self._tell(last, now, health_changes(last, now, read, holds) if last else [])

    def _tell(
        self, last: NodeInventory | None, now: NodeInventory, changes: list[dict[str, Any]]
    ) -> None:
        due = self._now_us() >= self._retell_us
        whole = last is None or due or not same_but_health(last, now)
        for change in changes:
            # A device that is well again is so with what is on it now, not with what was: told
            # before that, a slice that is gone would be leased.
            if not whole or change["health"] != "healthy":
                self._teller.say("device.health", **change)
        if whole:
            about = {"node", "incarnation", "node_time_us"}
            plain = now.model_dump(mode="json", exclude=about, exclude_none=True)
            self._teller.say("node.inventory", **{**plain, "epoch": self.epoch})
            self._retell_us = self._now_us() + self._options.retell_us
        if last != now:
            self._keep_last(now)

    def _last(self) -> NodeInventory | None:
        plain = self.journal.fact("inventory")
        return None if plain is None else NodeInventory.model_validate(plain, strict=False)

    def _keep_last(self, now: NodeInventory) -> None:
        self.journal.keep("inventory", now.model_dump(mode="json"))

    def _is_told(self, unit: str) -> bool:
        last = self._last()
        devices = () if last is None else last.devices
        return self.journal.generation(unit) > 0 or any(one.uuid == unit for one in devices)


def _number(order: str) -> int:
    """Return the number in an order's id, which the ledger counts up; 0 where there is none."""
    number = order.rpartition("-o")[2]
    return int(number) if number.isascii() and number.isdigit() else 0
