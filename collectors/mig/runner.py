"""Carries a planned change of partitions out, and goes on with one after a restart.

`collectors.mig.saga` says what comes next; here it is recorded, done, and recorded again. A
device is read anew at the beginning, after everything that went wrong, and before anything
is told: what was done is believed when the device shows it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from collectors.agent.journal import Hold
from collectors.agent.ledger_clock import is_past
from collectors.mig.plan import seen_of, steps_from_plain
from collectors.mig.saga import GONE, Mark, Move, applied, backoff_us, next_step
from collectors.nvml.calls import Refused
from collectors.nvml.codes import word
from collectors.nvml.watchdog import ChildFailed, Hung

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from collectors.agent.device_files import Holders
    from collectors.agent.journal import Journal, OrderRow
    from collectors.mig.plan import Seen, Step
    from collectors.nvml.reader import NvmlReader
    from collectors.nvml.readings import Device, GpuInstance
    from collectors.nvml.watchdog import Asker

__all__ = ["Outcome", "SagaRunner"]

#: How long a device may be unreadable before its change is given up, and how often it is tried.
_UNREADABLE_US, _AGAIN_US = 120_000_000, 1_000_000


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a change ended. ``reason`` is empty when all of it is done.

    ``hold`` keeps the device out of use: something may be left on it. ``device`` is the
    last reading of it, on which the answer rests.
    """

    device: Device
    reason: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)
    hold: Hold | None = None


class SagaRunner:
    """Works on orders that have a plan, one call of NVML after the other."""

    def __init__(
        self,
        asker: Asker,
        reader: NvmlReader,
        journal: Journal,
        holders: Callable[[int, int | None, int | None], Awaitable[Holders | None]],
    ) -> None:
        """Change through ``asker``, read through ``reader``, remember in ``journal``.

        ``holders`` says who has the files open of what is in use by nobody in sight.
        """
        self._holders = holders
        self._asker = asker
        self._reader = reader
        self._journal = journal

    async def advance(
        self, row: OrderRow, uuid: str, device: Device | None = None
    ) -> Outcome | int:
        """Go on with a change until it ends, or until it has to wait.

        ``device`` is a reading of just now. Return how the change ended, or the steady time
        (us) at which it is to be tried again.
        """
        assert row.plan is not None, "it was planned before"
        plan = steps_from_plain(row.plan["steps"])
        reason = row.reason
        seen = None if device is None else seen_of(device)
        fresh = seen is not None
        while True:
            if seen is None or device is None:
                device = await self._reader.device(uuid)
                seen = seen_of(device)
                if seen is None:
                    return self._unreadable(row, device, plan)
                fresh = True
            marks = self._journal.marks(row.id)
            move = next_step(plan, marks, seen, reason)
            if not reason and move.kind != "done" and self._late(row):
                # The ledger does not wait for it any more, and may have planned otherwise.
                move = next_step(plan, marks, seen, "past-due")
            if move.kind in ("done", "failed", "stuck") and not fresh:
                seen = None
                continue
            if move.kind == "done":
                return Outcome(device, "", _effort(marks))
            if move.why and not reason:
                reason = move.why
                self._journal.give_up(row.id, reason)
            if move.kind in ("failed", "stuck"):
                return await self._ended(row, device, marks, move, reason)
            due_us = self._due_us(marks.get(move.at, Mark()))
            if due_us is not None:
                return due_us
            step = _step(move)
            answer = await self._make(row.id, move, step, uuid)
            seen = None if answer is None else applied(seen, step, answer)
            fresh = False

    def _late(self, row: OrderRow) -> bool:
        return is_past(self._journal, row.plain.get("due_us"))

    def _due_us(self, mark: Mark) -> int | None:
        """Return when a step that failed may be tried again; None: now."""
        if not mark.code:
            return None
        due_us = mark.steady_us + backoff_us(mark.tries)
        return due_us if due_us > self._journal.clock.steady_us() else None

    async def _make(self, order: str, move: Move, step: Step, uuid: str) -> Any:  # noqa: ANN401
        """Make one call, recorded before and after; None when its effect must be read."""
        journal = self._journal
        if move.kind == "note":
            journal.step(order, move.at, "after", seen=True)
            return None
        journal.step(order, move.at, "before", do=step.do, start=step.start)
        try:
            answer = await self._asker.ask(step.op, uuid=uuid, **step.arguments)
        except Refused as refused:
            journal.step(order, move.at, "failed", word(refused.code), function=refused.function)
        except Hung as hung:
            journal.step(order, move.at, "failed", "hung", call=hung.call)
        except ChildFailed as failed:
            journal.step(order, move.at, "failed", "nvml-process-died", text=str(failed)[:200])
        else:
            activation = answer["activation"] if step.do == "set_mode" else "success"
            if activation == "success":
                journal.step(order, move.at, "after", answer=answer)
                # A change of mode may have reset the device: nothing is carried over.
                return None if step.do == "set_mode" else answer
            # The call went well and changed nothing but what is pending (facts of nvml.h).
            journal.step(order, move.at, "failed", activation)
        return None

    def _unreadable(self, row: OrderRow, device: Device, plan: tuple[Step, ...]) -> Outcome | int:
        """Wait for a device that cannot be read, but not for ever."""
        now_us = self._journal.clock.steady_us()
        if device.why not in GONE and now_us - row.heard.steady_us < _UNREADABLE_US:
            return now_us + _AGAIN_US
        marks = self._journal.marks(row.id)
        why = device.why or device.instances_why or "no MIG"
        reason = row.reason or (device.why if device.why in GONE else "not-readable")
        evidence = {**_effort(marks), "why": why[:200]}
        places = tuple({step.start for at, step in enumerate(plan) if at in marks})
        held = Hold(device.uuid, places, reason, evidence) if places else None
        return Outcome(device, reason, evidence, held)

    async def _ended(
        self, row: OrderRow, device: Device, marks: dict[int, Mark], move: Move, reason: str
    ) -> Outcome:
        """Return the end of a change that did not come about, with what was seen of it."""
        evidence: dict[str, Any] = _effort(marks)
        failed = {at: mark for at, mark in marks.items() if mark.code}
        if failed:
            at = max(failed, key=lambda one: failed[one].steady_us)
            evidence |= {"code": failed[at].code, "step": at}
        if move.kind == "failed":
            return Outcome(device, reason, evidence)
        step = _step(move)
        evidence |= {"start": step.start, "gi": step.gi}
        if step.do == "destroy_ci":
            evidence |= {"ci": step.ci, "mig_uuid": step.uuid}
        seen = seen_of(device)
        pids = () if seen is None else seen.busy.get(step.gi, ())
        evidence["processes"] = len(pids)
        evidence |= await self._who_holds(device, step.gi)
        evidence["order"] = row.id
        return Outcome(device, reason, evidence, Hold(device.uuid, (step.start,), reason, evidence))

    async def _who_holds(self, device: Device, gi: int) -> dict[str, Any]:
        """Return who has an instance's capability open, and who the device's file: how many.

        And of the first of them what it is; None where that is not to be known.
        """
        if device.minor is None:
            return {}
        found: dict[str, Any] = {}
        for name, told in (
            ("instance_holders", await self._holders(device.minor, gi, None)),
            ("device_holders", await self._holders(device.minor, None, None)),
        ):
            found[name] = None if told is None else len(told.found)
            if told is not None and told.unread:
                found["holders_unread"] = told.unread
            if told is not None and told.found and "holder_pid" not in found:
                found |= {"holder_pid": told.found[0].pid, "holder": told.found[0].name}
        return found

    # -- what was left ---------------------------------------------------------------

    async def sweep(self, hold: Hold, *, leased: bool) -> bool:
        """Try again to take away what a change has left; say whether nothing of it is there.

        ``leased``: something on the device is; then only what nobody can be in is touched.
        """
        seen = seen_of(await self._reader.device(hold.device))
        if seen is None:
            return False
        left = [one for start in hold.places if (one := _left(hold, seen, start)) is not None]
        for one in left:
            if one.compute and (leased or seen.busy.get(one.gi)):
                return False
            try:
                for each in one.compute:
                    await self._asker.ask("destroy_ci", uuid=hold.device, gi=one.gi, ci=each.ci)
                await self._asker.ask("destroy_gi", uuid=hold.device, gi=one.gi)
            except (Refused, Hung, ChildFailed):
                return False
        if not left:
            return True
        # What is gone is what the device does not show any more.
        seen = seen_of(await self._reader.device(hold.device))
        return seen is not None and not any(_left(hold, seen, start) for start in hold.places)


def _left(hold: Hold, seen: Seen, start: int) -> GpuInstance | None:
    """Return what a change has left at a place: without a compute instance, or the one it names."""
    there = seen.instances.get(start)
    if there is None:
        return None
    named = [one for one in there.compute if one.uuid == hold.evidence.get("mig_uuid")]
    return there if named or not there.compute else None


def _step(move: Move) -> Step:
    assert move.step is not None, "what is to be done has a step"
    return move.step


def _effort(marks: dict[int, Mark]) -> dict[str, Any]:
    """Return how much it took: steps that were done, and calls in all."""
    return {
        "steps": sum(one.state == "done" for one in marks.values()),
        "calls": sum(one.tries for one in marks.values()),
    }
