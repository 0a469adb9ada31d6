"""Changes of a device's partitions and of its MIG mode, from an order to its answer.

An order is planned or refused as a whole, carried out step by step (`saga_runner`), and
answered with what the device shows then. What could not be taken back is held: the device is
out of use until it is gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import structlog

from collectors.agent.baselines import learn, slices_of
from collectors.agent.telling import keep_told, last_told
from collectors.mig.plan import (
    Refusal,
    plan_mode,
    plan_partition,
    steps_from_plain,
    steps_to_plain,
)
from collectors.mig.saga import Mark
from collectors.nvml.report import device_report
from schemas.events import PartitionStep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from collectors.agent.journal import Bound, Journal, OrderRow
    from collectors.agent.telling import Teller
    from collectors.mig.plan import Step
    from collectors.mig.runner import Outcome, SagaRunner
    from collectors.nvml.reader import NvmlReader
    from collectors.nvml.readings import Device
    from collectors.nvml.report import Standing
    from schemas.observations import NodeInventory

__all__ = ["PartitionWork"]

_log = structlog.get_logger(__name__)


class PartitionWork:
    """Orders ``partition`` and ``mode``. `change` returns when to go on, None: answered."""

    def __init__(
        self,
        journal: Journal,
        reader: NvmlReader,
        teller: Teller,
        sagas: SagaRunner,
        standing: Standing,
    ) -> None:
        """Work with these; nothing is kept but in the journal."""
        self._journal = journal
        self._reader = reader
        self._teller = teller
        self._sagas = sagas
        self._standing = standing
        #: Set by the agent: the whole inventory is to be told, since something has changed.
        self.retell: Callable[[], None] = lambda: None

    async def change(self, row: OrderRow) -> int | None:
        """Plan a change, or go on with one that was planned."""
        uuid = row.plain["units"][0]
        device: Device | None = None
        if row.plan is None:
            device = await self._reader.device(uuid)
            found = self._planned(row, device)
            if isinstance(found, Refusal):
                self._refuse(row, found)
                return None
            self._journal.plan(row.id, {"steps": steps_to_plain(found)})
        elif row.kind == "mode" and not row.reason and self._held([uuid]) is not None:
            # It was leased while the change waited for its next try.
            self._journal.give_up(row.id, "leased")
        planned = self._journal.order(row.id)
        assert planned is not None, "it is open"
        outcome = await self._sagas.advance(planned, uuid, device)
        if isinstance(outcome, int):
            return outcome
        self._end_change(planned, outcome)
        return None

    def _planned(self, row: OrderRow, device: Device) -> tuple[Step, ...] | Refusal:
        """Return the steps of an order, or why it is refused."""
        if row.kind == "mode":
            units = [device.uuid, *slices_of(device)]
            found = plan_mode(device, enabled=row.plain["enabled"])
        else:
            steps = [PartitionStep.model_validate(one) for one in row.plain["steps"]]
            units = [device.uuid, *(one.mig_uuid for one in steps if one.mig_uuid)]
            found = plan_partition(steps, device)
        held = self._held(units)
        if held is not None:
            return Refusal("leased", {"unit": held.unit, "lease": held.lease})
        return found

    def _held(self, units: Iterable[str]) -> Bound | None:
        """Return the first lease that holds one of the units."""
        return next((one for unit in units for one in self._journal.bound(unit=unit)), None)

    def _refuse(self, row: OrderRow, refusal: Refusal) -> None:
        _log.warning("order refused", order=row.id, code=refusal.code, evidence=refusal.evidence)
        with self._journal.transaction():
            if _own(row):
                self._journal.keep(f"end {row.id}", refusal.code)
                self._journal.close_order(row.id)
            else:
                self._teller.fail(row, refusal.code, refusal.evidence)
        # What was to be destroyed is nobody's until its node has told of it again.
        self.retell()

    def _end_change(self, row: OrderRow, outcome: Outcome) -> None:
        """Answer the order with what the device shows, in one step with all that follows."""
        with self._journal.transaction():
            if outcome.hold is not None:
                self._journal.hold(outcome.hold)
                self._say_held(outcome)
            self._journal.gone(self._destroyed(row))
            learn(self._journal, outcome.device)
            changed = self._keep_changed(outcome.device)
            if row.kind == "mode" and changed is not None:
                # With the answer the device may be leased: the ledger must know its mode by then.
                self._teller.inventory(changed)
            if _own(row):
                self._journal.keep(f"end {row.id}", outcome.reason or "done")
                self._journal.close_order(row.id)
            elif outcome.reason:
                self._teller.fail(row, outcome.reason, outcome.evidence)
            elif row.kind == "mode":
                self._teller.done(row, outcome.evidence)
            else:
                self._teller.done(row, outcome.evidence, slices=self._made(row, outcome.device))
        if outcome.reason:
            _log.warning(
                "change failed", order=row.id, reason=outcome.reason, evidence=outcome.evidence
            )
        self.retell()

    def _keep_changed(self, device: Device) -> NodeInventory | None:
        """Take what an answer tells as said: the next change of the device may have begun.

        While it lasts the device is said to be as it was, and that is as the answer said.
        Return the inventory with it; None where nothing is to be said of the device.
        """
        last, (report, _) = last_told(self._journal), device_report(device, self._standing)
        if last is None or report is None:
            return None
        names = ("slices", "profiles", "mig_enabled", "mig_pending", "compute_slices")
        changed = {name: getattr(report, name) for name in names}
        devices = tuple(
            one.model_copy(update=changed) if one.uuid == device.uuid else one
            for one in last.devices
        )
        now = last.model_copy(update={"devices": devices})
        keep_told(self._journal, now)
        return now

    def _destroyed(self, row: OrderRow) -> list[str]:
        """Return the slices whose end the order was: one that stands there now is another."""
        assert row.plan is not None, "it was planned"
        marks = self._journal.marks(row.id)
        plan = steps_from_plain(row.plan["steps"])
        done = [step for at, step in enumerate(plan) if marks.get(at, Mark()).state == "done"]
        return [step.uuid for step in done if step.do == "destroy_ci" and step.uuid]

    def _say_held(self, outcome: Outcome) -> None:
        """Take a device out of use before its order is answered: nothing is placed between."""
        last = last_told(self._journal)
        devices = {} if last is None else {one.uuid: one for one in last.devices}
        about = devices.get(outcome.device.uuid)
        if last is None or about is None or about.health == "unhealthy":
            return
        said = {"device": about.uuid, "health": "unhealthy", "reason": outcome.reason}
        self._teller.say("device.health", **said, evidence=outcome.evidence)
        devices[about.uuid] = about.model_copy(update={"health": "unhealthy"})
        keep_told(self._journal, last.model_copy(update={"devices": tuple(devices.values())}))

    def _made(self, row: OrderRow, device: Device) -> list[dict[str, Any]]:
        """Return the slices that the order has created, as the device shows them."""
        report, _ = device_report(device, self._standing)
        starts = {one["start"] for one in row.plain["steps"] if one["do"] == "create"}
        found = () if report is None else report.slices
        return [one.model_dump(mode="json") for one in found if one.start in starts]

    async def sweep(self) -> bool:
        """Try again to take away what changes have left; say whether some device is free now."""
        free = False
        for hold in self._journal.holds():
            if hold.device in self.changing():
                continue
            uuid = hold.evidence.get("mig_uuid")
            leased = uuid is not None and bool(self._journal.bound(unit=uuid))
            if await self._sagas.sweep(hold, leased=leased):
                _log.info("nothing is left", device=hold.device)
                self._journal.release(hold.device)
                free = True
        return free

    def changing(self) -> set[str]:
        """Return the devices that are being changed."""
        kinds = ("partition", "mode")
        return {one.plain["units"][0] for one in self._journal.open_orders() if one.kind in kinds}


def _own(row: OrderRow) -> bool:
    """Say whether an order is this host's own: no ledger has ordered it, and none is answered."""
    return "order" not in row.plain
