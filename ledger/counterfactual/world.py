"""The cell as it would have been: the ledger's own decisions, on recorded and modelled inputs.

Recorded inputs are fed at their own time. What followed from a grant or an order of the log
follows from those of this world instead (`ledger.counterfactual.work`). As long as a grant
or order is the recorded one, at the recorded time, so is what follows from it: with nothing
changed every decision is the recorded one, to the microsecond.
"""

from __future__ import annotations

from collections import Counter
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from ledger.core.decide import decide
from ledger.core.decisions.turn import Input
from ledger.counterfactual.changes import SOURCE, twin_of
from ledger.counterfactual.fires import fires
from ledger.counterfactual.history import HERE, order_key
from ledger.counterfactual.layouts import Layouts, made_by
from ledger.counterfactual.work import LAST, Cue, Reply
from schemas.catalogue import TYPES, adapter
from schemas.codes import CODES, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ledger.core.decide import Decision
    from ledger.core.state import State
    from ledger.counterfactual.changes import Changes
    from ledger.counterfactual.history import History
    from ledger.counterfactual.work import Work
    from schemas.base import Model

__all__ = ["Refused", "World"]

Record = dict[str, Any]
Event = dict[str, Any]
#: Recorded inputs about a lease or an order: refused in the log, they must not be believed here.
_OF_LEASE = frozenset(
    {
        *("task.started", "task.begin", "task.ended", "task.use"),
        *("lease.release", "lease.extend", "lease.reclaim"),
    }
)
_OF_ORDER = frozenset({"order.done", "order.failed"})
_AWAY = frozenset({"silent", "lost"})


class Refused(Exception):
    """The ledger would not take a policy that is to be tried."""


class _Due(NamedTuple):
    """Something modelled that is to come, in order of time and, as in the log, of records."""

    time_us: int
    offset: int
    serial: int
    what: Cue | Reply
    about: str


class World:
    """One cell from a state on. Give it `begin`, each record of the log to `step`, and `finish`."""

    def __init__(
        self,
        state: State,
        history: History,
        work: Work,
        changes: Changes,
        take: Callable[[int, str, dict[str, Any], list[Event]], None],
    ) -> None:
        """Work on ``state``, with its index, which is used up; each decision is told to ``take``.

        ``history`` and ``work`` are of the records that will be given.
        """
        self.state = state
        self.decisions = 0
        #: The first record whose decision is another here, and when.
        self.first_difference: tuple[int, int] | None = None
        #: Recorded inputs that were not fed, by why.
        self.passed_over: Counter[str] = Counter()
        self._history = history
        self._work = work
        self._changes = changes
        self._take = take
        self._heap: list[_Due] = []
        self._serial = 0
        self._did = -1
        self._since: list[Event] = []
        self._cut_there = False
        self._pending: list[Model] = []
        self._refusal = ""
        self._away: dict[str, list[_Due]] = {}
        self._layouts = Layouts()
        self._twinned: set[str] = set()

    # -- the run -----------------------------------------------------------------------

    def begin(self, now_us: int) -> None:
        """Take over what runs, and apply what is to be otherwise from the start on."""
        state = self.state
        self._cut_there = state.pass_cut
        for lease in list(state.leases):
            self._granted(lease)
        for order in list(state.orders.values()):
            key = order_key(
                {"kind": order.kind, "lease": order.lease, "node": order.node,
                 "units": order.units, "steps": order.steps, "enabled": order.enabled}
            )  # fmt: skip
            self._ordered(order.id, key, order.units, order.issued_us)
        self._pending += self._changes.at_start(state, self._history.applied)
        self._apply(now_us)
        self._add_nodes(now_us)
        self._since.clear()

    def step(self, record: Record, offset: int, fate: int) -> None:
        """Go on to a record of the log and past it."""
        now_us = record["time_us"]
        self._until(now_us, offset, record["events"])
        if fate == HERE:
            self._here(record, now_us)
        else:
            made = self._history.partitions.get(offset)
            if made is not None:
                self._layouts.there(made[1], made)
            if self._did != offset:
                self._time(now_us)
        for event in record["events"]:
            if event["type"] in ("pass.cut", "pass.done"):
                self._cut_there = event["type"] == "pass.cut"
        if self.first_difference is None and not _alike(self._since, record["events"]):
            self.first_difference = (offset, now_us)
        self._since.clear()

    def finish(self, now_us: int) -> None:
        """Go on to the end of the log; raise `Refused` for a policy that was never taken."""
        if self.first_difference is not None:
            # Until then the log's last record is the last there is.
            self._until(now_us, LAST, ())
        if self._pending:
            raise Refused(self._refusal)

    def _until(self, time_us: int, offset: int, events: Iterable[Event]) -> None:
        """Do what is to come before a record, or is that record's; ``events`` are the record's."""
        heap = self._heap
        while True:
            mine = heap[0] if heap and heap[0][:2] <= (time_us, offset) else None
            due_us = self._due_before(time_us if mine is None else mine.time_us, events)
            if due_us is not None:
                self._tick(due_us)
            elif mine is not None:
                heappop(heap)
                self._do(mine)
                if mine.offset == offset != LAST:
                    # It is the record's own: what has fallen due by it comes after it.
                    return
            else:
                return

    def _due_before(self, time_us: int, events: Iterable[Event]) -> int | None:
        """Return when a deadline is due that the next record does not fire, or None."""
        state = self.state
        if state.pass_cut:
            return None if self._cut_there else state.now_us
        deadlines = state.index.deadlines
        due_us = deadlines.next_due_us(state)
        if due_us is None or due_us >= time_us:
            return None
        entry = deadlines.pop_due(state, due_us)
        assert entry is not None
        deadlines.push(state, *entry)
        return None if fires(events, entry[1], entry[2]) else due_us

    # -- inputs ------------------------------------------------------------------------

    def _feed(
        self,
        now_us: int,
        kind: str,
        data: Model,
        source: str,
        more: tuple[str, str] | None = None,
        plain: dict[str, Any] | None = None,
    ) -> Decision:
        """Decide an input; ``more`` is its id and fingerprint where it has one of its own."""
        self._serial += 1
        name, fingerprint = more or (f"whatif-{self._serial}", f"{self._serial:016x}")
        topic = TYPES[kind, 1].topic
        given = Input(topic, kind, 1, source, name, now_us, data, {}, fingerprint)
        decision = decide(self.state, given)
        self.decisions += 1
        events = decision.events
        if events:
            if self.first_difference is None:
                self._since += events
            self._take(decision.time_us, kind, plain or {}, events)
            for event in events:
                if event["type"] == "lease.granted":
                    self._granted(event["lease"])
                elif event["type"] == "order.issued" and event["order"] in self.state.orders:
                    self._ordered(
                        event["order"], order_key(event), event["units"], decision.time_us
                    )
        return decision

    def _tick(self, now_us: int) -> None:
        self._feed(now_us, "tick", _TICK, SOURCE)

    def _time(self, now_us: int) -> None:
        """Let time pass in the place of an input that is not fed, if that makes a difference."""
        due_us = self.state.index.deadlines.next_due_us(self.state)
        if due_us is not None and due_us <= now_us:
            self._tick(now_us)

    def _here(self, record: Record, now_us: int) -> None:
        """Feed a recorded input at its time, or what stands in its place."""
        given = record["input"]
        kind, data = given["type"], given["data"]
        stray = self._stray(kind, data, record["outcome"]["code"])
        if stray or self._changes.drops(kind, data, self.state):
            self.passed_over[stray or kind] += 1
            self._time(now_us)
            return
        instead = self._changes.instead(kind, data)
        if instead is not None:
            self._pending.append(instead)
            self._apply(now_us)
            return
        if kind == "node.inventory":
            data = self._layouts.inventory(self.state, data)
        model = adapter(kind, given["version"]).validate_python(data, strict=False)
        more = (given["id"], given["fp"])
        self._feed(now_us, kind, model, given["source"], more, data)
        if self._pending and kind.endswith(".apply"):
            self._apply(now_us)
        if kind in ("node.inventory", "node.back"):
            self._back(data["node"], now_us)
            self._add_nodes(now_us)

    def _stray(self, kind: str, data: dict[str, Any], code: str) -> str:
        """Return why a recorded input must not be fed: here it would be believed, there it was not.

        Empty for one that may be: as long as every decision is the recorded one, any.
        """
        if self.first_difference is None:
            return ""
        state = self.state
        if kind in _OF_LEASE and data["lease"] in state.leases:
            if code == "already_released":
                return "of a lease that was over"
            refused = CODES[code].kind is not Kind.YES
            return "refused in the log" if refused or kind != "lease.reclaim" else ""
        if kind in _OF_ORDER and data["order"] in state.orders:
            return "of an order that was closed"
        if kind == "request.cancel":
            request = state.requests.get(data["request"])
            if request is not None and request.lease is not None:
                return "given up while it waited, but here it runs"
        return ""

    def _apply(self, now_us: int) -> None:
        """Apply what is to be otherwise, again and again as long as more of it is taken."""
        while self._pending:
            left = []
            for data in self._pending:
                kind = _type_of(data)
                decision = self._feed(now_us, kind, data, SOURCE)
                if CODES[decision.code].kind is not Kind.YES:
                    numbers = ", ".join(f"{name} {one}" for name, one in decision.numbers.items())
                    self._refusal = f"{kind} is refused: {decision.code} ({numbers})"
                    left.append(data)
            if len(left) == len(self._pending):
                return
            self._pending = left

    # -- nodes -------------------------------------------------------------------------

    def _add_nodes(self, now_us: int) -> None:
        """Add the nodes that are to be more, as soon as there is one that they are like."""
        for one in self._changes.added:
            like = self.state.nodes.get(one.like)
            if like is None or one.like in self._twinned:
                continue
            self._twinned.add(one.like)
            for number in range(1, one.count + 1):
                name = f"{one.like}-whatif-{number}"
                twin = twin_of(self.state, like, name)
                self._feed(now_us, "node.inventory", twin, f"{SOURCE}/{name}")

    def _back(self, node: str, now_us: int) -> None:
        """Let a node that is heard again say what it could not say meanwhile."""
        known = self.state.nodes.get(node)
        if known is None or known.state in _AWAY:
            return
        for one in self._away.pop(node, ()):
            self._serial += 1
            heappush(self._heap, one._replace(time_us=now_us, offset=LAST, serial=self._serial))

    # -- what follows from grants and orders ---------------------------------------------

    def _granted(self, name: str) -> None:
        lease = self.state.leases.get(name)
        if lease is None:
            return
        for cue in self._work.cues(lease, self.state.requests[lease.request]):
            self._push(lease.granted_us + cue.after_us, cue, name)

    def _ordered(self, name: str, key: tuple[str, ...], units: list[str], issued_us: int) -> None:
        reply = self._work.reply(key, units, issued_us)
        if reply.type is not None:
            self._push(issued_us + reply.after_us, reply, name)

    def _push(self, time_us: int, what: Cue | Reply, about: str) -> None:
        self._serial += 1
        heappush(self._heap, _Due(time_us, what.offset, self._serial, what, about))

    def _do(self, due: _Due) -> None:
        """Feed what is due, if what it is about is still there."""
        if isinstance(due.what, Reply):
            self._answer(due, due.what)
        else:
            self._deed(due, due.what)

    def _deed(self, due: _Due, cue: Cue) -> None:
        lease = self.state.leases.get(due.about)
        if lease is None:
            return
        if cue.by is not None:
            about = {"request": lease.request} if cue.type == "request.cancel" else {
                "lease": lease.id
            }  # fmt: skip
            about |= {"node": cue.node} if cue.node else {}
            data = adapter(cue.type, 1).validate_python(about | cue.said, strict=False)
            self._did = due.offset
            self._feed(due.time_us, cue.type, data, cue.by[0], cue.by[1:] if cue.exact else None)
            return
        self._say(due, cue.node, cue.type, {"lease": lease.id, **cue.said}, exact=cue.exact)

    def _answer(self, due: _Due, reply: Reply) -> None:
        order = self.state.orders.get(due.about)
        if order is None or reply.type is None:
            return
        said = reply.said
        if reply.type == "task.ended":
            part = self.state.leases[order.lease].parts[order.node]
            how = "never-started" if part.state == "granted" else "stopped"
            said = {"lease": order.lease, "how": how, **said}
        else:
            said = {"order": order.id, **said}
            if order.kind == "partition" and not reply.said:
                said["slices"] = made_by(self.state, order.id, order.units[0])
        heard = self._say(due, order.node, reply.type, said, exact=reply.exact)
        if heard and order.kind == "partition":
            made = self._history.partitions.get(due.offset, due.serial)
            self._layouts.here(order.units[0], made)

    def _say(self, due: _Due, node: str, kind: str, said: dict[str, Any], *, exact: bool) -> bool:
        """Let a node's agent say something; one that cannot be heard says it when it is back."""
        known = self.state.nodes[node]
        if not exact and known.state in _AWAY:
            self._away.setdefault(node, []).append(due)
            return False
        about = {"node": node, "incarnation": known.incarnation, **said}
        data = adapter(kind, 1).validate_python(about, strict=False)
        if exact:
            self._did = due.offset
        self._feed(due.time_us, kind, data, known.agent)
        return True


def _alike(mine: list[Event], recorded: list[Event]) -> bool:
    """Compare events as the log has them: tuples are lists there."""
    return mine == recorded or orjson.loads(orjson.dumps(mine)) == recorded


_TICK = adapter("tick", 1).validate_python({})


def _type_of(data: Model) -> str:
    """Return the record type of a model."""
    return _NAMES[type(data)]


_NAMES = {spec.model: name for (name, _), spec in TYPES.items() if spec.topic == "requests"}
