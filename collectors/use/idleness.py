"""When a lease becomes idle, and when it is used again: edges, from samples that there are.

Pure. A lease is idle when every unit of it on this node was measured to do nothing in every
sample for so long; a mean over samples would call a lease idle that nobody has looked at. One
sample that shows work ends it at once. A sample that is missing is neither: an idle time that
was not seen whole does not begin, and one that was told and cannot be seen any more for so
long is taken back, since the ledger reclaims on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

__all__ = ["AFTER_US", "Edge", "Idleness"]

_US = 1_000_000

#: A lease that has done nothing for so long is told to be idle; queues have limits of minutes.
AFTER_US = 60 * _US
#: For so long a lease that was told to be idle may go unseen.
UNSEEN_US = 30 * _US
#: Thousandths that count as nothing. NVML's own readings are whole percents.
NOTHING_PERMILLE = 0


class Edge(NamedTuple):
    """A lease has become idle, or is so no more; ``idle_s`` is for how long it has been."""

    lease: str
    idle: bool
    idle_s: int


@dataclass(slots=True)
class _Lease:
    """Since when it is seen to do nothing, and when that was seen last (steady, us)."""

    since_us: int | None = None
    seen_us: int = 0
    told: bool = False


class Idleness:
    """Follows leases from sample to sample. ``told`` are those that were told to be idle."""

    def __init__(
        self, told: Iterable[str] = (), *, after_us: int = AFTER_US, unseen_us: int = UNSEEN_US
    ) -> None:
        """Begin with what was told before; what was seen then is not known any more."""
        self._after_us = after_us
        self._unseen_us = unseen_us
        self._leases = {name: _Lease(told=True) for name in told}

    @property
    def told(self) -> list[str]:
        """The leases that were told to be idle and not to be used again."""
        return sorted(name for name, one in self._leases.items() if one.told)

    def see(
        self, now_us: int, span_us: int, busy: Mapping[str, Collection[int | None]]
    ) -> list[Edge]:
        """Take a sample of the time since ``now_us - span_us``: thousandths of each unit.

        None is a unit that was not measured. Return what has changed.
        """
        found = []
        for lease, units in busy.items():
            one = self._leases.setdefault(lease, _Lease(seen_us=now_us))
            edge = self._edge(one, now_us, span_us, units)
            if edge is not None:
                one.told = edge[0]
                found.append(Edge(lease, *edge))
        return found

    def keep(self, leases: Collection[str]) -> None:
        """Forget all but these leases: nothing holds for the others any more."""
        for name in self._leases.keys() - leases:
            del self._leases[name]

    def _edge(
        self, one: _Lease, now_us: int, span_us: int, units: Collection[int | None]
    ) -> tuple[bool, int] | None:
        if any(value is not None and value > NOTHING_PERMILLE for value in units):
            one.since_us = None
            return (False, 0) if one.told else None
        if not units or None in units:
            if not one.told:
                one.since_us = None
            elif now_us - one.seen_us >= self._unseen_us:
                one.since_us = None
                return False, 0
            return None
        if one.since_us is None or now_us - span_us > one.seen_us:
            # It was not seen since then: there was a sample too few.
            one.since_us = now_us - span_us
        one.seen_us = now_us
        idle_us = now_us - one.since_us
        if one.told or idle_us < self._after_us:
            return None
        return True, idle_us // _US
