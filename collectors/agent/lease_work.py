"""What a node does for leases: makes them ready, ends what runs, and proves what they held clean.

An order names its lease, and a lease is bound to the lifetime of the unit that it was given:
an order of an old lease never reaches what stands under the same UUID now, or what another
lease holds now (C27). The agent starts no task itself: whoever asked for the lease does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from collectors.agent.clean_check import Found, Verdict, check, found_of, together
from collectors.agent.device_files import left_by
from collectors.agent.journal import Bound
from collectors.agent.ledger_clock import is_past

if TYPE_CHECKING:
    from collections.abc import Callable

    from collectors.agent.journal import Journal, OrderRow
    from collectors.agent.processes import Processes
    from collectors.agent.telling import Teller
    from collectors.nvml.reader import NvmlReader

__all__ = ["LeaseWork", "Patience"]

_WHOLE_MILLI = 1000


@dataclass(frozen=True, slots=True)
class Patience:
    """How long things may take on the node, in microseconds.

    ``grace_us`` is between asking a process to end and making it; ``limit_us`` is when a stop
    or a proof of clean is given up, and ``margin_us`` how long before the ledger would do so
    itself. Without ``ends_processes`` none is ever ended: whoever started it has to.
    """

    grace_us: int = 10_000_000
    limit_us: int = 60_000_000
    margin_us: int = 10_000_000
    again_us: int = 500_000
    ends_processes: bool = True


class LeaseWork:
    """Orders ``prepare``, ``stop`` and ``clean``. Each returns when to go on, None: answered."""

    def __init__(
        self,
        journal: Journal,
        reader: NvmlReader,
        teller: Teller,
        processes: Processes,
        patience: Patience,
    ) -> None:
        """Work with these; nothing is kept but in the journal."""
        self._journal = journal
        self._reader = reader
        self._teller = teller
        self._processes = processes
        self._patience = patience
        #: Set by the agent: whether a unit is one that it has said is there.
        self.told: Callable[[str], bool] = lambda _: False

    async def prepare(self, row: OrderRow) -> int | None:
        """Let the lease hold its units and say that it may begin."""
        lease, units = row.plain["lease"], row.plain["units"]
        missing = not all(self.told(unit) for unit in units)
        exclusive = row.plain.get("gpu_milli", _WHOLE_MILLI) >= _WHOLE_MILLI
        journal = self._journal
        with journal.transaction():
            if missing:
                said = self._teller.say("task.ended", lease=lease, how="never-started")
            else:
                for unit in units:
                    journal.bind(lease, unit, journal.generation(unit), exclusive=exclusive)
                said = self._teller.say("task.started", lease=lease)
            journal.close_order(row.id, said)
        return None

    async def stop(self, row: OrderRow) -> int | None:
        """End the lease's processes, and say so when none of them is there any more."""
        bound = self._journal.bound(lease=row.plain["lease"])
        if not bound:
            self._ended(row, "never-started")
            return None
        if self._refused(row, bound):
            return None
        found = [await self._find(one) for one in bound]
        unreadable = next((one for one in found if one.why or one.processes is None), None)
        pids = self._pids(found, bound)
        if unreadable is None and not pids:
            self._ended(row, "stopped", took_us=self._teller.took_us(bound[0].since))
            return None
        if self._over(row):
            why = "not-readable" if unreadable is not None else "process-left"
            self._teller.fail(row, why, {"processes": len(pids), "pid": min(pids, default=None)})
            return None
        self._end(row, pids)
        return self._journal.clock.steady_us() + self._patience.again_us

    async def clean(self, row: OrderRow) -> int | None:
        """Prove the lease's units clean; what cannot be proved in time is said with evidence."""
        lease = row.plain["lease"]
        bound = self._journal.bound(lease=lease)
        if self._refused(row, bound):
            return None
        held = {one.unit for one in bound}
        units = [
            *bound,
            *(self._unbound(row, one) for one in row.plain["units"] if one not in held),
        ]
        found = [await self._find(one) for one in units]
        verdict = together([check(one) for one in found])
        if not verdict.why:
            # Only now: going over every open file of the machine is for what is clean else.
            found = [
                await self._with_holders(one, unit) for one, unit in zip(found, units, strict=True)
            ]
            verdict = together([check(one) for one in found])
        if not verdict.why:
            with self._journal.transaction():
                self._teller.done(row, verdict.evidence)
                self._journal.unbind(lease)
            return None
        if self._over(row):
            self._not_clean(row, verdict)
            return None
        self._end(row, self._pids(found, units))
        return self._journal.clock.steady_us() + self._patience.again_us

    def _not_clean(self, row: OrderRow, verdict: Verdict) -> None:
        with self._journal.transaction():
            waited_us = self._teller.took_us(row.heard)
            self._teller.fail(row, verdict.why, verdict.evidence | {"waited_us": waited_us})
            self._journal.unbind(row.plain["lease"])

    def _ended(self, row: OrderRow, how: str, **more: object) -> None:
        with self._journal.transaction():
            said = self._teller.say("task.ended", lease=row.plain["lease"], how=how, **more)
            self._journal.close_order(row.id, said)

    # -- whose unit it is now -------------------------------------------------------

    def _refused(self, row: OrderRow, bound: list[Bound]) -> bool:
        """Refuse an order whose units are another lifetime or another lease's by now."""
        lease = row.plain["lease"]
        for unit in {*row.plain["units"], *(one.unit for one in bound)}:
            others = [one for one in self._journal.bound(unit=unit) if one.lease != lease]
            other = next((one for one in others if one.exclusive), None)
            if other is not None:
                self._teller.fail(row, "other-lease", {"unit": unit, "lease": other.lease})
                return True
        for one in bound:
            now = self._journal.generation(one.unit)
            if now not in (one.generation, 0):
                said: dict[str, Any] = {"unit": one.unit, "was": one.generation, "now": now}
                self._teller.fail(row, "old-generation", said)
                return True
        return False

    def _unbound(self, row: OrderRow, unit: str) -> Bound:
        """Stand in for a unit whose lease was cancelled before this node heard of it (C29)."""
        lease = row.plain["lease"]
        generation = self._journal.generation(unit)
        return Bound(lease, unit, generation, exclusive=True, state="void", since=row.heard)

    # -- processes ---------------------------------------------------------------------

    async def _find(self, one: Bound) -> Found:
        uuid = self._journal.home(one.unit)
        others = frozenset(
            each.lease for each in self._journal.bound(unit=one.unit) if each.lease != one.lease
        )
        if uuid is None:
            return Found(one.unit, "no such unit was ever seen here")
        return found_of(
            await self._reader.device(uuid),
            one.unit,
            baseline_mib=self._journal.baseline(one.unit),
            state=self._processes.state,
            lease=self._processes.lease,
            others=others,
        )

    async def _with_holders(self, found: Found, one: Bound) -> Found:
        """Look for who has the unit's file open and is in no list of NVML's."""
        if found.gone:
            return found
        told = None if found.place is None else await self._processes.holders(*found.place)
        if told is None:
            return replace(found, looked=True)
        listed = {each.pid for each in found.processes or ()}
        holders = [each for each in told.found if each.pid not in listed]
        mine = [each.pid for each in holders if self._processes.lease(each.pid) == one.lease]
        left = left_by(holders, mine, one.since.steady_us)
        # Nobody has come under a lease that this boot never began, and its time is another boot's.
        alone = not found.others and one.state != "void"
        held = [each.pid for each in left] if alone else mine
        return replace(
            found, holders=len(holders), unread=told.unread, held=tuple(held), looked=True
        )

    def _pids(self, found: list[Found], bound: list[Bound]) -> set[int]:
        """Return the processes that are there and may be ended: the lease's own.

        On a device that others share only those that say so themselves; graphics and the MPS
        server belong to the machine.
        """
        pids = set()
        for one, unit in zip(found, bound, strict=True):
            for each in one.processes or ():
                mine = not one.others or one.leases.get(each.pid) == unit.lease
                if mine and each.kind == "compute" and one.states.get(each.pid) == "alive":
                    pids.add(each.pid)
            # Who only came while the lease lasted is waited for, and never ended on a guess.
            pids |= {pid for pid in one.held if self._processes.lease(pid) == unit.lease}
        return pids

    def _end(self, row: OrderRow, pids: set[int]) -> None:
        """Ask processes to end, and make them when the grace is over."""
        if self._patience.ends_processes:
            hard = self._teller.took_us(row.heard) >= self._patience.grace_us
            for pid in sorted(pids):
                self._processes.end(pid, hard=hard)

    def _over(self, row: OrderRow) -> bool:
        """Say whether it is time to give up: before the ledger does so without the evidence."""
        soon = is_past(self._journal, row.plain.get("due_us"), self._patience.margin_us)
        return soon or self._teller.took_us(row.heard) >= self._patience.limit_us
