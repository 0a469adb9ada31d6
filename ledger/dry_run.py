"""What records of policy would do: tried by the real `decide` on a copy of the state.

Pure: the state given is left as it is. It is tried at the state's own time, the time
of the last record; what happens meanwhile may of course change the answer.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ledger.core.decide import decide
from ledger.core.decisions.turn import Input
from ledger.core.digest import load_fold, save_fold
from ledger.core.fold import Fold
from ledger.core.quotas.quota import available
from ledger.policy_files import KINDS
from schemas.codes import CODES, Kind
from schemas.observations import OrderDone, Tick

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ledger.core.decide import Decision
    from ledger.core.state import State
    from ledger.policy_files import PolicyRecord
    from schemas.base import Model

__all__ = ["OverQuota", "Rehearsal", "Start", "Stop", "Tried", "rehearse"]

_SOURCE = "/gpuledger/dry-run"

#: What a quota is, beside what is worked out from it and what it has spent.
_QUOTA_FIELDS = ("parent", "limits", "weight", "half_life_us")
_BUDGET = ("period_us", "budget_milli_us")

#: Orders whose answer says no more than that they are done.
_FREEING = frozenset({"stop", "clean"})

#: How many orders are thought to be carried out, to see who gets what they free.
_MAX_ORDERS = 10_000

#: How many ticks what is overdue may take; each does as much as a record holds.
_MAX_TICKS = 1_000


@dataclass(frozen=True, slots=True)
class Tried:
    """One record and what would come of it.

    ``code`` is ``applied``, ``unchanged`` (nothing would come of it), or that of the
    refusal with its ``numbers``. ``changes`` has [old, new] by field.
    """

    record: PolicyRecord
    code: str
    numbers: dict[str, Any]
    changes: dict[str, list[Any]]

    @property
    def refused(self) -> bool:
        """Say whether it would not be applied."""
        return CODES[self.code].kind is not Kind.YES


@dataclass(frozen=True, slots=True)
class OverQuota:
    """A quota that would hold more of a resource than it may; ``before``: it does already."""

    quota: str
    resource: str
    used: int
    over_by: int
    before: bool


@dataclass(frozen=True, slots=True)
class Stop:
    """A lease that would be stopped, and for whom (None: for the policy itself)."""

    lease: str
    tenant: str
    reason: str
    by: str | None


@dataclass(frozen=True, slots=True)
class Start:
    """A waiting request that would get a lease.

    ``when`` is ``now``, ``once-freed`` after what stops for it has stopped and was proved
    clean, or ``kept`` where a place is kept that others have to free.
    """

    request: str
    nodes: tuple[str, ...]
    when: str


@dataclass(slots=True)
class Rehearsal:
    """All that would happen, records in an order in which they can be applied."""

    tried: list[Tried] = field(default_factory=list)
    over: list[OverQuota] = field(default_factory=list)
    stops: list[Stop] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)

    @property
    def refused(self) -> list[Tried]:
        """Return what would be refused."""
        return [one for one in self.tried if one.refused]

    @property
    def to_send(self) -> list[Tried]:
        """Return what changes something."""
        return [one for one in self.tried if one.code == "applied"]


def rehearse(state: State, records: Iterable[PolicyRecord]) -> Rehearsal:
    """Return what the records would do, one after the other, to the cell as it is.

    One that is refused is tried again after the others: a quota may need another one
    raised or lowered before it. `Rehearsal.tried` has the order that was found.
    """
    return _Stage(state).run(list(records))


class _Stage:
    """A copy of the cell, and what has happened on it so far."""

    def __init__(self, state: State) -> None:
        copy = load_fold(save_fold(Fold(cells={state.cell: state}))).ready()
        self.state = copy.cells[state.cell]
        self.found = Rehearsal()
        self._count = 0
        # What is overdue, and what a cut pass has left, is not the records' doing.
        for _ in range(_MAX_TICKS):
            if not self._feed("observations", "tick", Tick()).events:
                break
        self._reserved_before = self._reserved()
        self._over_before = {(one.quota, one.resource) for one in _over(self.state, set())}
        self._orders_before = set(self.state.orders)

    def run(self, records: list[PolicyRecord]) -> Rehearsal:
        left = records
        while left:
            tried = [self._try(record) for record in left]
            refused = [one for one in tried if one.refused]
            again = len(refused) < len(left)
            self.found.tried += [one for one in tried if not (again and one.refused)]
            left = [one.record for one in refused] if again else []
        self.found.over = _over(self.state, self._over_before)
        self._free()
        started = {one.request for one in self.found.starts}
        for name in sorted(self._reserved() - self._reserved_before - started):
            nodes = tuple(self.state.requests[name].kept)
            self.found.starts.append(Start(name, nodes, "kept"))
        return self.found

    def _try(self, record: PolicyRecord) -> Tried:
        before = _row(self.state, record)
        decision = self._feed("requests", record.type, record.data)
        self._take(decision, "now")
        after = _row(self.state, record)
        changes = {
            name: [before.get(name), after.get(name)]
            for name in (*after, *(name for name in before if name not in after))
            if before.get(name) != after.get(name)
        }
        numbers = dict(decision.numbers)
        code = decision.code
        if code == "applied" and not changes and before and len(decision.events) == 1:
            code, numbers = "unchanged", {}
        return Tried(record, code, numbers, changes)

    def _feed(self, topic: str, kind: str, data: Model, source: str = _SOURCE) -> Decision:
        self._count += 1
        given = Input(
            topic, kind, 1, source, f"{self._count}", self.state.now_us, data, {}, f"{self._count}"
        )
        return decide(self.state, given)

    def _take(self, decision: Decision, when: str) -> None:
        """Keep what of a decision's events people want to know."""
        for event in decision.events:
            if event["type"] == "lease.stopping":
                self._stopped(event)
            elif event["type"] == "lease.granted":
                nodes = tuple(part["node"] for part in event["parts"])
                self.found.starts.append(Start(event["request"], nodes, when))

    def _stopped(self, event: dict[str, Any]) -> None:
        lease = event["lease"]
        if all(one.lease != lease for one in self.found.stops):
            request = lease.rpartition("/")[0]
            known = self.state.requests.get(request)
            tenant = "" if known is None else known.tenant
            self.found.stops.append(Stop(lease, tenant, event["reason"], event.get("by")))

    def _free(self) -> None:
        """Let nodes that are heard do what they were ordered, and give what that frees."""
        done = 0
        while done < _MAX_ORDERS and (
            mine := [one for one in self.state.orders if self._ours(one)]
        ):
            for order in mine[: _MAX_ORDERS - done]:
                done += 1
                self._orders_before.add(order)
                if order in self.state.orders:  # the one before may have made it needless
                    self._done(order)

    def _done(self, order: str) -> None:
        node = self.state.nodes[self.state.orders[order].node]
        fact = OrderDone(node=node.name, incarnation=node.incarnation, order=order)
        self._take(self._feed("observations", "order.done", fact, node.agent), "once-freed")

    def _reserved(self) -> set[str]:
        return {one.id for one in self.state.requests.values() if one.state == "reserved"}

    def _ours(self, order: str) -> bool:
        known = self.state.orders[order]
        heard = self.state.nodes[known.node].state not in ("silent", "lost")
        return known.kind in _FREEING and heard and order not in self._orders_before


def _over(state: State, before: set[tuple[str, str]]) -> list[OverQuota]:
    """Return the quotas that hold more than they may, borrowing counted."""
    found = []
    for quota in state.quotas.values():
        for resource in quota.governed:
            used = quota.used.get(resource, 0)
            left = available(state, quota.name, resource)
            if used and left is not None and left < 0:
                known = (quota.name, resource) in before
                found.append(OverQuota(quota.name, resource, used, -left, known))
    return found


def _row(state: State, record: PolicyRecord) -> dict[str, Any]:
    """Return the fields of what the record is about as it stands, flat; empty when it is not."""
    row = getattr(state, KINDS[record.kind].section).get(record.name)
    if row is None:
        return {}
    plain = asdict(row)
    names = [name for name in plain if name != "name"]
    if record.kind == "quota":
        names = [*_QUOTA_FIELDS, *(_BUDGET if plain["period_us"] is not None else ())]
    return dict(_flat("", {name: plain[name] for name in names}))


def _flat(path: str, plain: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    for name, value in plain.items():
        if isinstance(value, dict):
            yield from _flat(f"{path}{name}.", value)
        elif value is not None:
            yield f"{path}{name}", value
