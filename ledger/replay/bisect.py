"""The first record after which something is no longer as it was.

By halves it is assumed that it changes once between the two places; the answer is then
a record at which it does change, whatever lies elsewhere. A scan looks after every
record and needs no such assumption.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ledger.core.digest import load_fold, save_fold
from ledger.core.invariants import Violation, check
from ledger.reading import Damaged, Upto, read_events
from ledger.replay.diff import changes_between
from ledger.replay.states import fold_at

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ledger.core.fold import Fold
    from ledger.core.state import State
    from ledger.log.port import Log
    from ledger.reading import Seen
    from ledger.replay.diff import Change
    from ledger.replay.sql import StateTables
    from ledger.replay.states import PositionSnapshots

__all__ = ["INVARIANTS", "Bisection", "Same", "Turn"]

#: Invariants that a state, or the fold of a record, can be found to break (docs/invariants.md).
INVARIANTS = (
    *(f"A{number}" for number in range(1, 16)),
    "L1", "L5", "M3", "Q1", "Q2", "Q3", "S2", "V1",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Same:
    """Nothing changed: it ``held`` at both ends, or at neither, and in between as far as seen."""

    held: bool


@dataclass(frozen=True, slots=True)
class Turn:
    """The record after which it holds (``held``), or breaks.

    ``seen`` is None when the fold refuses the record itself, for the reason in
    ``detail``; then nothing has changed. ``evaluated`` counts the states looked at.
    """

    held: bool
    position: str
    seen: Seen | None
    detail: str
    changes: tuple[Change, ...]
    evaluated: int


def _broken(cells: Mapping[str, State], name: str) -> list[Violation]:
    return [one for state in cells.values() for one in check(state) if one.invariant == name]


class Bisection:
    """Searches one partition between two places for the record that changes an answer.

    Exactly one of ``tables`` (an expression) and ``invariant`` is asked.
    """

    def __init__(
        self,
        log: Log,
        prefix: str,
        partition: int,
        stores: Sequence[PositionSnapshots] = (),
        *,
        tables: StateTables | None = None,
        invariant: str | None = None,
    ) -> None:
        """Ask of the states of ``partition``; ``stores`` make them quicker to reach."""
        assert (tables is None) != (invariant is None)
        self._log, self._prefix, self._partition = log, prefix, partition
        self._stores = stores
        self._tables, self._invariant = tables, invariant
        #: Only an expression can look at the ids that a state remembers, and few do.
        self._with_ids = tables is not None and "seen" in tables.names
        self.evaluated = 0

    async def run(self, first: int, last: int, *, scan: bool = False) -> Turn | Same:
        """Return the record between the places that changes the answer; see `Turn`.

        The places are counts of records that have happened. Raises `Damaged` for a log that
        cannot be folded, unless the answer changes before, or this is what was asked for.
        """
        start = await self._at(first)
        held = self._holds(start)
        if scan:
            return await self._scan(start, last, held=held)
        low, base = first, save_fold(start)
        try:
            end = await self._at(last, load_fold(base))
        except Damaged as fault:
            return await self._before(fault, low, base, held=held)
        if self._holds(end) == held:
            return Same(held)
        return await self._between(low, last, base, held=held)

    async def _between(self, low: int, high: int, base: bytes, *, held: bool) -> Turn:
        """Halve: at ``low`` the answer is ``held``, at ``high`` it is not."""
        while high - low > 1:
            middle = (low + high) // 2
            fold = await self._at(middle, load_fold(base))
            if self._holds(fold) == held:
                low, base = middle, save_fold(fold)
            else:
                high = middle
        return await self._turn(load_fold(base), low, held=not held)

    async def _before(self, fault: Damaged, low: int, base: bytes, *, held: bool) -> Turn:
        """Search what can be folded; the record that cannot be is the answer when it is asked."""
        before = await self._at(fault.offset, load_fold(base))
        if self._holds(before) != held:
            return await self._between(low, fault.offset, base, held=held)
        if fault.code != self._invariant or not held:
            raise fault
        return self._refused(fault)

    def _refused(self, fault: Damaged) -> Turn:
        position = f"events/{fault.partition}@{fault.offset}"
        return Turn(False, position, None, fault.detail, (), self.evaluated)  # noqa: FBT003

    async def _scan(self, fold: Fold, last: int, *, held: bool) -> Turn | Same:
        """Look after every record; those that cannot change the answer are passed over."""
        base = save_fold(fold)
        if self._invariant is not None:
            fold.ready()
        upto = Upto(offsets={self._partition: last})
        try:
            async for seen in read_events(self._log, self._prefix, self._partition, fold, upto):
                if self._matters(seen) and self._holds(fold) != held:
                    offset = seen.record.offset
                    before = await self._at(offset, load_fold(base))
                    return await self._turn(before, offset, held=not held)
        except Damaged as fault:
            if fault.code != self._invariant or not held:
                raise
            return self._refused(fault)
        return Same(held)

    def _matters(self, seen: Seen) -> bool:
        """Say whether the record may have changed what is asked of."""
        if seen.verdict != "effective":
            return False
        # A decision without events moves the clock, and remembers an id.
        return (
            bool(seen.data["events"])
            or self._tables is None
            or bool(self._tables.names & {"cells", "seen"})
        )

    async def _turn(self, before: Fold, offset: int, *, held: bool) -> Turn:
        """Describe the record at an offset, with what it changed, ids too."""
        if self._stores and not self._with_ids:
            before = await self._at(offset, with_ids=True)
        old = load_fold(save_fold(before)).cells
        before.reading()
        upto = Upto(offsets={self._partition: offset + 1})
        seen = [
            one async for one in read_events(self._log, self._prefix, self._partition, before, upto)
        ][-1]
        changes = tuple(changes_between(old, before.cells))
        for one in changes:
            one.first = one.last = seen.position
        detail = ""
        if self._invariant is not None and not held:
            broken = _broken(before.ready().cells, self._invariant)
            detail = "; ".join(f"{one.about}: {one.detail}" for one in broken[:_MOST])
        return Turn(held, seen.position, seen, detail, changes, self.evaluated)

    async def _at(self, offset: int, start: Fold | None = None, *, with_ids: bool = False) -> Fold:
        folds = {} if start is None else {self._partition: start}
        place = {self._partition: offset}
        found = await fold_at(
            self._log, self._prefix, place, self._stores, folds,
            with_ids=with_ids or self._with_ids,
        )  # fmt: skip
        return found[self._partition]

    def _holds(self, fold: Fold) -> bool:
        """Ask; an invariant is asked of a state with its index, which is made for it."""
        self.evaluated += 1
        if self._tables is not None:
            return self._tables.holds(fold.cells)
        assert self._invariant is not None
        fold.ready()
        return not _broken(fold.cells, self._invariant)


#: How many things that break an invariant are named.
_MOST = 5
