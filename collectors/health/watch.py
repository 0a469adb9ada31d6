"""What a node's agent makes of its devices' health, and what it says of it.

`rules.judge` has each device's verdict, with a memory that outlives the agent's restarts and
ends with the boot of the machine. Health is said before an inventory, and that a device is
well again after it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from collectors.health.hearing import Hearing, WatchOptions
from collectors.health.rules import Memory, Seen, Verdict, judge
from collectors.nvml.codes import GONE, word
from collectors.nvml.report import health_of
from schemas.limits import MAX_TEXT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from collectors.agent.journal import Hold, Journal
    from collectors.health.rules import Fault
    from collectors.nvml.reader import Inventory, NvmlReader
    from collectors.nvml.readings import Device, Signs
    from schemas.observations import NodeInventory

__all__ = ["HealthWatch", "Judged"]

_LOST = frozenset(map(word, GONE))


@dataclass(frozen=True, slots=True)
class Judged:
    """The inventory with each device's health, and the data of what is said of it.

    ``before`` is said before an inventory, ``after`` after it: a device is well again with
    what is on it now, so the inventory has it as it was until then (``told``).
    """

    now: NodeInventory
    told: NodeInventory
    before: list[dict[str, Any]]
    after: list[dict[str, Any]]


class HealthWatch:
    """Call `begin` at the agent's start, `listen` every so often, `ask` and `judge` at a look."""

    def __init__(self, reader: NvmlReader, journal: Journal, options: WatchOptions) -> None:
        """Know nothing yet."""
        self._reader = reader
        self._journal = journal
        self._options = options
        self.hearing = Hearing(reader, journal, options)
        #: Whether the last `listen` has heard anything that only a whole reading tells more of.
        self.heard = False
        self._memory: dict[str, Memory] = {}
        self._signs: dict[str, Signs] = {}
        #: When `listen` asks for signs again, by the steady clock (us).
        self.signs_us = 0
        self._asked_us = -1
        #: What was seen of each device at the last look, and whether it was said to be well.
        self._seen: dict[str, tuple[Seen, str]] = {}
        #: What the journal has: of which boot, of each device, and how far the log was read.
        self._kept: tuple[Any, ...] = ()

    def begin(self) -> None:
        """Take up what was remembered in this boot."""
        kept = self._journal.fact("health") or {}
        mine = kept if kept.get("incarnation") == self._journal.fact("incarnation") else {}
        self._memory = {uuid: _memory(plain) for uuid, plain in mine.get("devices", {}).items()}
        same = mine.get("log") == str(self._options.kernel_log)
        self.hearing.open(mine.get("position") if same else None)

    def close(self) -> None:
        """Let go of the kernel's log."""
        self.hearing.close()

    def due(self, known: Mapping[str, Device]) -> tuple[list[str], list[str]]:
        """Return the devices of which `listen` asks for signs now, and for what has happened."""
        due = self._now_us() >= self.signs_us
        return self._signs_due() if due else [], self.hearing.heeded(known)

    def _signs_due(self) -> list[str]:
        return [uuid for uuid, (_, health) in self._seen.items() if health != "gone"]

    async def listen(self, known: Mapping[str, Device]) -> bool:
        """Hear what has happened; say whether the node is to be looked at now."""
        news = self.heard = await self.hearing.listen(known)
        if not news and self._now_us() >= self.signs_us:
            await self._ask(self._signs_due())
            news = self._has_changed()
        return news

    async def ask(self, inventory: Inventory) -> None:
        """Read the signs of the devices that can be read, unless that was just now."""
        if self._asked_us != self._now_us():
            await self._ask([one.uuid for one in inventory.devices if not one.why])

    async def _ask(self, uuids: list[str]) -> None:
        self._asked_us = self._now_us()
        # At a listen that comes a little early rather than at one that comes late.
        self.signs_us = self._asked_us + self._options.signs_us - self._options.listen_us // 2
        found = [await self._reader.signs(uuid) for uuid in uuids]
        self._signs = {one.uuid: one for one in found if not one.why}

    def _has_changed(self) -> bool:
        """Say whether there is something to tell by the signs; if not, only remember them."""
        memory = {}
        for uuid, (seen, health) in self._seen.items():
            signs = self._signs.get(uuid)
            if (signs is None) != (seen.signs is None):
                return True
            now = replace(seen, signs=signs)
            memory[uuid], verdict = self._judge(uuid, now)
            if verdict.faults or verdict.health != health:
                return True
        self._memory |= memory
        self._keep()
        return False

    def _judge(self, uuid: str, seen: Seen) -> tuple[Memory, Verdict]:
        memory = self._memory.get(uuid, Memory())
        return judge(memory, seen, self._now_us(), self._options.limits)

    def _now_us(self) -> int:
        return self._journal.clock.steady_us()

    def judge(
        self,
        now: NodeInventory,
        last: NodeInventory | None,
        inventory: Inventory,
        holds: Mapping[str, Hold],
    ) -> Judged:
        """Put each device's health into the inventory, and find what is to be said of it.

        Within the transaction that keeps what is said: an XID is told once.
        """
        before = {} if last is None else {one.uuid: one.health for one in last.devices}
        there = {one.uuid for one in now.devices}
        verdicts: dict[str, Verdict] = {}
        for uuid in sorted({*there, *before, *self.hearing.struck}):
            found = self._found(uuid, inventory, listed=uuid in there, before=len(before))
            struck = self.hearing.take(uuid, gone=found.health == "gone")
            self._memory[uuid], verdicts[uuid] = self._judge(uuid, replace(found, struck=struck))
            self._seen[uuid] = (found, verdicts[uuid].health)
        self._keep()
        return _told(now, before, verdicts, holds)

    def _found(self, uuid: str, inventory: Inventory, *, listed: bool, before: int) -> Seen:
        """Return what is seen of a device; one that was told of and is not there is gone."""
        device = next((one for one in inventory.devices if one.uuid == uuid), None)
        if device is not None and device.why not in _LOST:
            signs = self._signs.get(uuid)
            if signs is not None:
                # The signs are the newer reading of the two.
                device = replace(device, recovery_action=None, remapped=None)
            return Seen(*health_of(device), signs)
        if device is None and listed:
            return Seen("unknown", inventory.host.why or "it cannot be read")
        count = len(inventory.host.listed)
        reason = f"{count} devices are listed, {before} were"
        if count == before:
            reason = f"one of {count} devices that are listed, and it cannot be read"
        failed = next((one.why for one in inventory.host.listed if one.uuid is None), "")
        why = failed if device is None else device.why
        return Seen("gone", f"{why}: {reason}" if why else reason)

    def _keep(self) -> None:
        incarnation, position = self._journal.fact("incarnation"), self.hearing.position
        now = (incarnation, dict(self._memory), position)
        if now == self._kept:
            return
        plain = {
            "incarnation": incarnation,
            "devices": {uuid: asdict(one) for uuid, one in sorted(self._memory.items())},
            "log": str(self._options.kernel_log),
            "position": position,
        }
        self._journal.keep("health", plain)
        self._kept = now


def _memory(plain: dict[str, Any]) -> Memory:
    corrected = plain["corrected"]
    pair = None if corrected is None else (corrected[0], corrected[1])
    return Memory(**plain | {"corrected": pair, "fell_us": tuple(plain["fell_us"])})


def _told(
    now: NodeInventory,
    before: Mapping[str, str],
    verdicts: Mapping[str, Verdict],
    holds: Mapping[str, Hold],
) -> Judged:
    """Say what is new of each device: its faults first, its health with the first of them."""
    reports, shown = [], []
    early: list[dict[str, Any]] = []
    late: list[dict[str, Any]] = []
    for one in now.devices:
        verdict = verdicts[one.uuid]
        if verdict.health == "gone":
            continue
        health = "unhealthy" if one.uuid in holds else verdict.health
        reports.append(one.model_copy(update={"health": health}))
        was = before.get(one.uuid)
        well_again = health == "healthy" and (was not in (None, "healthy") or bool(verdict.reason))
        as_it_was = (was or "unhealthy") if well_again else health
        shown.append(one.model_copy(update={"health": as_it_was}))
        # The ledger does not know a device before the inventory has told of it.
        to = late if was is None else early
        to += [_fault(one.uuid, as_it_was, fault) for fault in verdict.faults]
        if well_again:
            late.append(_change(one.uuid, health, verdict, None))
        elif was not in (None, health) and not verdict.faults:
            early.append(_change(one.uuid, health, verdict, holds.get(one.uuid)))
    for uuid, verdict in verdicts.items():
        if verdict.health == "gone":
            early += [_fault(uuid, "gone", fault) for fault in verdict.faults]
    return Judged(
        now.model_copy(update={"devices": tuple(reports)}),
        now.model_copy(update={"devices": tuple(shown)}),
        early,
        late,
    )


def _fault(uuid: str, health: str, fault: Fault) -> dict[str, Any]:
    scope = {"xid": fault.xid, "gi": fault.gi, "ci": fault.ci}
    plain = {name: value for name, value in scope.items() if value is not None}
    return {
        "device": uuid,
        "health": health,
        "reason": fault.reason[:MAX_TEXT],
        "evidence": fault.evidence,
        "fault": {"code": fault.code, "ends": fault.ends, **plain},
    }


def _change(uuid: str, health: str, verdict: Verdict, hold: Hold | None) -> dict[str, Any]:
    reason, evidence = verdict.reason or "healthy again", verdict.evidence
    if hold is not None:
        reason, evidence = hold.reason, hold.evidence
    return {
        "device": uuid,
        "health": health,
        "reason": reason[:MAX_TEXT],
        "evidence": evidence,
    }
