"""When a request that waits should start, as far as known ends of leases tell.

An estimate is worked out by walking the ends of leases in order of time, soonest
first, until there is room for everybody ahead, for the request itself place by
place, and in its quota. A lease ends at its longest run, or sooner where its
requester expects so. What has no end is never assumed to have one: then the
answer is that no time is known, and which lease it is that has no end.

It is an estimate and no promise: nothing is decided from it. It is recorded with
the wait, so that it can be held against what happened.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush, merge
from itertools import islice
from typing import TYPE_CHECKING

from ledger.core.derived.deadlines import expected_end
from ledger.core.derived.index import usable
from ledger.core.line.asking import over_quota
from ledger.core.placing.placement import could_fit
from ledger.core.placing.room import free_milli
from ledger.core.quotas.quota import holder_of, leave, remove, root_of
from ledger.core.state import WHOLE_MILLI

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ledger.core.derived.places import ClassKey
    from ledger.core.derived.waiting import Rank
    from ledger.core.line.asking import Asker
    from ledger.core.quotas.quota import Quota
    from ledger.core.state import Device, Lease, Need, State

__all__ = [
    "Estimate",
    "ahead_of",
    "estimate",
    "expectation",
    "quick_estimate",
    "with_own_quotas",
]

#: As many requests ahead are looked at one by one; a longer line has no estimate.
_MOST_AHEAD = 256

#: As many ends, shapes and quotas an estimate that is recorded may look at: it is made
#: in the decision that lets the request wait, and has to be cheap.
_QUICK_FEW = 8
_QUICK_ENDS = 64
_QUICK_AHEAD = 32
_QUICK_SHAPES = 32
_QUICK_QUOTAS = 64

#: When units are free of a lease: time in µs, the lease, the units.
End = tuple[int, str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Estimate:
    """When the request should start (UTC µs; None: no time is known), and what that rests on.

    ``basis`` is ``kept`` (a place is kept: the latest answer of its nodes), ``plan``,
    ``max_run`` or ``expected_run`` of the leases that it waits for, ``period`` of a
    budget; or, with no time, ``open_end`` (``leases`` have no known end), ``no_supply``
    (nothing that ends would be enough) or ``long_line`` (too many are ahead).
    """

    start_us: int | None
    basis: str
    leases: tuple[str, ...] = ()


def estimate(state: State, asker: Asker, now_us: int) -> Estimate:
    """Return the estimate with every lease looked at."""
    request = state.requests.get(asker.request)
    if request is not None and request.state == "reserved":
        kept = {unit for units in request.kept.values() for unit in units}
        orders = [
            one
            for one in state.orders.values()
            if one.request == request.id or not kept.isdisjoint(one.units)
        ]
        latest = max((one.due_us for one in orders), default=now_us)
        leases = dict.fromkeys(one.lease for one in orders if one.lease)
        return Estimate(latest, "kept", tuple(leases))
    if request is not None and request.plan is not None and request.plan.start_us is not None:
        return Estimate(max(now_us, request.plan.start_us), "plan")
    ends: list[End] = []
    never = []
    for name, lease in state.leases.items():
        end_us = now_us if lease.state == "stopping" else expected_end(state, lease)
        if end_us is not None and end_us < now_us:
            # It has run longer than its requester expected.
            end_us = lease.due_us
        if end_us is None:
            never.append(name)
        else:
            ends.append((end_us, name, _units_of(lease)))
    ends.sort()
    cleaning = [
        (now_us, one.lease, tuple(one.units))
        for one in state.orders.values()
        if one.kind == "clean"
    ]
    walk = _Walk(state, asker, now_us)
    found = walk.to_start([*cleaning, *ends], _MOST_AHEAD)
    if found.basis != "open_end":
        return found
    mine = tuple(name for name in never if walk.concerns(state.leases[name]))
    # With all of them ended, and nobody ahead, there may be no room still: then more is short.
    late = [(now_us, name, _units_of(state.leases[name])) for name in mine]
    alone = _Walk(state, asker._replace(rank=(-(1 << 62), 0, 0)), now_us)
    enough = alone.to_start([*cleaning, *ends, *late], _MOST_AHEAD).start_us is not None
    return Estimate(None, "open_end", mine) if mine and enough else Estimate(None, "no_supply")


def quick_estimate(state: State, asker: Asker, now_us: int) -> Estimate | None:
    """Return an estimate from the leases that end soonest, or None; for a decision's record."""
    classes = state.index.matches(state, asker.key.need)
    if len(state.quotas) > _QUICK_QUOTAS or state.index.waiting.width(classes) > _QUICK_SHAPES:
        return None
    mine = (asker.rank, asker.request)
    ahead = 0
    for shape in state.index.waiting.for_classes(classes):
        ahead += bisect_left(shape.line, mine)
        if ahead > _QUICK_AHEAD:
            return None
    ending = []
    if len(state.orders) <= _QUICK_ENDS:
        ending = sorted(
            (now_us, one.lease, tuple(one.units))
            for one in state.orders.values()
            if one.kind in ("stop", "clean")
        )
    for most in (_QUICK_FEW, _QUICK_ENDS):
        ends = state.index.deadlines.next_ends(state, now_us, most)
        if not ends and not ending:
            return None
        coming = [(end_us, name, _units_of(state.leases[name])) for end_us, name in ends]
        cut = len(ends) == most
        walk = _Walk(state, asker, now_us)
        found = walk.to_start([*ending, *coming], _QUICK_AHEAD, cut=cut)
        if found.start_us is not None or not cut:
            return found
    return None


def expectation(state: State, asker: Asker, now_us: int) -> dict[str, int | str]:
    """Return what the event that lets a request wait says of its start: nothing if unknown."""
    if asker.key.reservation is not None:
        # When it starts is said by its reservation, and by nothing that ends before.
        return {}
    found = quick_estimate(state, asker, now_us)
    if found is None or found.start_us is None:
        return {}
    return {"estimate_us": found.start_us, "estimate_basis": found.basis}


def with_own_quotas(state: State) -> State:
    """Return the same state with quotas of its own, on which something may be tried."""
    return replace(state, quotas={name: _copy(quota) for name, quota in state.quotas.items()})


def _copy(quota: Quota) -> Quota:
    return replace(
        quota,
        limits={name: replace(limit) for name, limit in quota.limits.items()},
        used=dict(quota.used),
        leaving=dict(quota.leaving),
    )


def _rivals(state: State, asker: Asker, now_us: int) -> Iterator[list[tuple[Rank, str]]]:
    """Yield the lines of those that wait for a class that the request needs.

    Who waits for a quota of its own is in nobody's way.
    """
    key = asker.key
    for shape in state.index.waiting.for_classes(state.index.matches(state, key.need)):
        if shape.key.holder == key.holder or over_quota(state, shape.key, now_us) is None:
            yield shape.line


def ahead_of(state: State, asker: Asker, now_us: int, most: int) -> list[str]:
    """Return who is ahead of the request for the same classes, first first, up to ``most``."""
    mine = (asker.rank, asker.request)
    parts = [line[: min(most, bisect_left(line, mine))] for line in _rivals(state, asker, now_us)]
    return [name for _, name in islice(merge(*parts), most)]


@dataclass(slots=True)
class _Walk:
    """Room for a request, as leases end one after the other."""

    state: State
    asker: Asker
    now_us: int
    spare: int = 0
    places: Counter[ClassKey] = field(default_factory=Counter)
    basis: str = "max_run"
    released: dict[str, int] = field(default_factory=dict)
    nodes: dict[tuple[ClassKey, str], int] = field(default_factory=dict)
    touched: dict[str, None] = field(default_factory=dict)
    trial: State | None = None
    classes: frozenset[ClassKey] = frozenset()

    def to_start(self, ends: Iterable[End], most_ahead: int, *, cut: bool = False) -> Estimate:
        """Walk the ends until everybody ahead and the request itself have room.

        ``cut``: there are more ends than these, all of them later.
        """
        state, need = self.state, self.asker.key.need
        kinds = state.index.matches(state, need)
        self.classes = frozenset(kinds)
        if not kinds:
            return Estimate(None, "no_supply")
        period_us = self._quota()
        if period_us == 0:
            return Estimate(None, "no_supply")
        ahead = ahead_of(state, self.asker, self.now_us, most_ahead + 1)
        if len(ahead) > most_ahead:
            return Estimate(None, "long_line")
        self._free_now(kinds)
        at_us, coming, known = self.now_us, list(ends), 0
        later: list[tuple[int, int]] = []
        for name in (*ahead, None):
            own = need if name is None else state.requests[name].need
            wanted = _units(own)
            while self.spare < wanted or (name is None and not self._fits()):
                real = known < len(coming) and (not later or coming[known][0] <= later[0][0])
                if real:
                    at_us = max(at_us, coming[known][0])
                    self._end(coming[known])
                    known += 1
                elif later and not (cut and known == len(coming)):
                    end_us, units = heappop(later)
                    at_us, self.spare = max(at_us, end_us), self.spare + units
                else:
                    return Estimate(None, "open_end")
            self.spare -= wanted
            run_us = None if name is None else _run_of(state, name)
            if run_us is not None:
                heappush(later, (at_us + run_us, wanted))
        if period_us is not None and period_us > at_us:
            return Estimate(period_us, "period", tuple(self.touched))
        return Estimate(at_us, self.basis, tuple(self.touched))

    def concerns(self, lease: Lease) -> bool:
        """Say whether the lease's end would give the request something it is short of."""
        if self.trial is not None and self._over() and self._in_tree(lease):
            return True
        return any(self._class_of(unit) in self.classes for unit in _units_of(lease))

    def _quota(self) -> int | None:
        """Prepare for a quota in use; return when a spent budget is whole again (0: never)."""
        state, asker = self.state, self.asker
        short = over_quota(state, asker.key, self.now_us)
        if short is None:
            return None
        if short.resource == "gpu_time":
            quota = state.quotas[short.quota]
            if quota.period_us is None or short.asked > quota.budget_milli_us:
                return 0
            return (self.now_us // quota.period_us + 1) * quota.period_us
        self.trial = with_own_quotas(state)
        return None

    def _over(self) -> bool:
        trial = self.trial
        return trial is not None and over_quota(trial, self.asker.key, self.now_us) is not None

    def _free_now(self, kinds: tuple[ClassKey, ...]) -> None:
        """Count what is free before anything has ended."""
        index, need = self.state.index, self.asker.key.need
        if need.mode == "mig":
            self.spare = sum(len(index.slices[key].free) for key in kinds)
            return
        for key in kinds:
            cards = index.cards[key]
            free = sum(count * len(nodes) for count, nodes in enumerate(cards.buckets))
            if need.mode == "whole":
                self.spare += free
                self.places[key] = sum(map(len, cards.buckets[need.count :]))
            else:
                self.spare += free * WHOLE_MILLI + sum(room for room, _ in cards.partial)
                self.places[key] = int(could_fit(self.state, need, key))

    def _fits(self) -> bool:
        need = self.asker.key.need
        wanted = {"whole": need.nodes, "share": 1, "mig": 0}[need.mode]
        return max(self.places.values(), default=0) >= wanted and not self._over()

    def _in_tree(self, lease: Lease) -> bool:
        request = self.state.requests[lease.request]
        holder = holder_of(self.state, request.tenant, request.project)
        return root_of(self.state, holder) == root_of(self.state, self.asker.key.holder)

    def _end(self, end: End) -> None:
        """Let a lease end on these units: they are free, and its quota has room again."""
        _, name, units = end
        helped = False
        for unit in units:
            helped = self._unit(name, unit) or helped
        lease = self.state.leases.get(name)
        if lease is not None and name not in self.touched:
            helped = self._uncount(lease) or helped
            if helped and lease.due_us != expected_end(self.state, lease):
                self.basis = "expected_run"
        if helped:
            self.touched[name] = None

    def _uncount(self, lease: Lease) -> bool:
        if self.trial is None or not self._in_tree(lease):
            return False
        request = self.state.requests[lease.request]
        if request.charge is None:
            return False
        holder = holder_of(self.state, request.tenant, request.project)
        if request.evicted:
            leave(self.trial.quotas[holder], request.charge, -1)
        else:
            remove(self.trial, holder, request.charge)
        return True

    def _class_of(self, unit: str) -> ClassKey | None:
        """Return the class of a device or slice that could be leased once it is free."""
        state = self.state
        item = state.slices.get(unit)
        device = state.devices.get(unit if item is None else item.device)
        if device is None or not _able(state, device, mig=item is not None):
            return None
        if item is None:
            pool = state.nodes[device.node].pool
            return (pool, device.model, device.memory_mib, "", WHOLE_MILLI)
        if item.quarantine is not None or item.kept_for is not None:
            return None
        return next(
            (key for key in self.classes if key[1:4] == (device.model, device.memory_mib,
                                                        item.profile)),
            None,
        )  # fmt: skip

    def _unit(self, lease: str, unit: str) -> bool:
        """Free one unit of a lease; return whether that helps."""
        key = self._class_of(unit)
        if key is None or key not in self.classes:
            return False
        need = self.asker.key.need
        if need.mode == "mig":
            self.spare += 1
            return True
        device = self.state.devices[unit]
        hold = device.holds.get(lease)
        if hold is None:
            return False
        room = self.released.get(unit)
        room = (free_milli(device) if room is None else room) + hold.milli
        self.released[unit] = room
        if need.mode == "share":
            self.spare += hold.milli
            self.places[key] += room >= need.gpu_milli
            return True
        if room < WHOLE_MILLI:
            return False
        place = (key, device.node)
        before = self.nodes.get(place)
        if before is None:
            before = len(self.state.index.cards[key].free.get(device.node, ()))
        self.nodes[place] = before + 1
        self.spare += 1
        self.places[key] += before + 1 == need.count
        return True


def _able(state: State, device: Device, *, mig: bool) -> bool:
    node = state.nodes[device.node]
    if not usable(node, device):
        return False
    return mig or (not device.mig_enabled and not device.slices and device.kept_for is None)


def _units_of(lease: Lease) -> tuple[str, ...]:
    return tuple(unit for part in lease.parts.values() for unit in part.units)


def _units(need: Need) -> int:
    """Return how much the need takes of what is counted: devices, slices, or thousandths."""
    return need.gpu_milli if need.mode == "share" else need.count * need.nodes


def _run_of(state: State, name: str) -> int | None:
    """Return how long a waiting request should run once it starts."""
    request = state.requests[name]
    runs = [one for one in (request.expected_run_us, request.max_run_us) if one is not None]
    return max(0, min(runs) - request.used_us) if runs else None
