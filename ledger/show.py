"""From any id to everything it touched: what it is now, what it met, and when.

Pure. Ids are found in the state (what is there now) and in the records (what
ever was). What belongs to the thing is followed downwards, from a tenant to its
requests, from a request to its leases, from a lease to its orders, so that the
timeline is whole; upwards and sideways it is only named.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ledger.core.need import need_to_plain
from ledger.core.quotas.quota import Quota
from ledger.core.state import Device, Request, Slice, device_state, slice_state
from ledger.explain import Ambiguous
from ledger.steps import Step, outcome_text
from ledger.wording import sentence

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ledger.core.state import State
    from ledger.reading import Seen

__all__ = ["Search", "Shown", "Thing", "show"]

_TABLES = {
    "pool": "pools",
    "queue": "queues",
    "tenant": "quotas",
    "template": "templates",
    "reservation": "reservations",
    "node": "nodes",
    "device": "devices",
    "slice": "slices",
    "request": "requests",
    "lease": "leases",
    "order": "orders",
}

#: Fields of events and inputs that hold an id, and of what. ``unit`` is a device or a slice.
_FIELDS = {
    "request": "request",
    "lease": "lease",
    "order": "order",
    "node": "node",
    "device": "device",
    "slice": "slice",
    "unit": "unit",
    "tenant": "tenant",
    "project": "project",
    "queue": "queue",
    "template": "template",
    "reservation": "reservation",
    "pool": "pool",
    "task": "task",
    "mig_uuid": "mig uuid",
    "about": "about",
}

#: What an event makes: it belongs to whatever else the event names.
_MAKES = {
    "request.received": "request",
    "request.rejected": "request",
    "lease.granted": "lease",
    "order.issued": "order",
    "slice.present": "slice",
}

#: Of a quota: what is kept to be quick, and says nothing that its limits do not.
_WORKED_OUT = frozenset({"governed", "budgeted", "simple", "inner", "keeps_below"})

_SHORT_ENTRY = 3


@dataclass(frozen=True, slots=True)
class Thing:
    """One thing of that id in one cell; ``state`` is its row, None when it is no more."""

    kind: str
    cell: str
    state: dict[str, Any] | None


@dataclass(slots=True)
class Shown:
    """All that is known of an id. ``touched`` has ids (as keys, oldest first) by what they are."""

    id: str
    things: list[Thing] = field(default_factory=list)
    touched: dict[str, dict[str, None]] = field(default_factory=dict)
    timeline: list[Step] = field(default_factory=list)

    @property
    def found(self) -> bool:
        """Say whether the id has ever been there."""
        return bool(self.things or self.timeline)

    def plain(self) -> dict[str, Any]:
        """Return it as one JSON object."""
        plain = asdict(self)
        plain["touched"] = {kind: list(ids) for kind, ids in self.touched.items() if ids}
        return plain


def show(states: Mapping[str, State], records: Iterable[Seen], name: str) -> Shown:
    """Return everything about the thing or things called ``name``; see `Shown.found`.

    ``records`` may be those of all partitions, one after the other. Raises as
    `Search.finish` does.
    """
    search = Search(name)
    for seen in records:
        search.take(seen)
    return search.finish(states)


class Search:
    """Collects what concerns an id while records go by; each of them is given to `take`.

    An id without its source (a request's, a policy's) stands for whatever input has it.
    """

    def __init__(self, name: str) -> None:
        self._shown = Shown(name)
        self._follow = {name}
        #: Whole ids of the inputs that the name is short for.
        self._keys: dict[str, None] = {}

    def take(self, seen: Seen) -> None:
        """Add what one record says of the ids that are followed."""
        if seen.verdict != "effective":
            return
        data, shown = seen.data, self._shown
        given, outcome = data["input"], data["outcome"]
        key = f"{given['source']}#{given['id']}"
        if given["id"] == shown.id:
            self._keys[key] = None
            self._follow.add(key)
        hit = False
        for event in data["events"]:
            mentioned = _mentioned(event)
            if not any(name in self._follow for _, name in mentioned):
                continue
            hit = True
            shown.timeline.append(Step(seen.position, data["time_us"], sentence(event)))
            for kind, name in mentioned:
                shown.touched.setdefault(kind, {})[name] = None
            made = _MAKES.get(event["type"])
            if made is not None:
                self._follow.add(event[made])
        named = [str(given["data"].get(one)) for one in _FIELDS if one in given["data"]]
        if not hit and (key in self._follow or not self._follow.isdisjoint(named)):
            numbers = outcome.get("numbers", {})
            text = outcome_text(data)
            step = Step(seen.position, data["time_us"], text, outcome["code"], numbers)
            shown.timeline.append(step)

    def finish(self, states: Mapping[str, State]) -> Shown:
        """Return what was found, with what the cells have now.

        Raise `Ambiguous` when the name is short for the inputs of several sources.
        """
        shown = self._shown
        if len(self._keys) > 1:
            raise Ambiguous(shown.id, self._keys)
        names = (shown.id, *self._keys)
        for state in states.values():
            for name in names:
                shown.things.extend(_things(state, name))
        if not shown.things:
            kinds = [kind for kind, ids in shown.touched.items() if shown.id in ids]
            shown.things.extend(Thing(kind, "", None) for kind in kinds if kind != "about")
        for ids in shown.touched.values():
            for name in names:
                ids.pop(name, None)
        return shown


def _things(state: State, name: str) -> Iterator[Thing]:
    """Yield what the cell has under this id now."""
    for kind, table in _TABLES.items():
        row = getattr(state, table).get(name)
        if row is not None:
            yield Thing(kind, state.cell, _plain(row))
    entry = state.seen.get(name)
    if name == state.cell:
        rows = {table: len(getattr(state, table)) for table in _TABLES.values()}
        yield Thing("cell", state.cell, {"now_us": state.now_us, **rows, "alarms": state.alarms})
    if entry is not None and name not in state.requests:
        if len(entry) == _SHORT_ENTRY:
            yield Thing("input", state.cell, {"answer": entry[1], "time_us": entry[2]})
        else:
            ended = {"ended": entry[3], "code": entry[1], "time_us": entry[2], "leases": entry[4]}
            yield Thing("request", state.cell, ended)
    for item in state.slices.values():
        if item.mig_uuid == name:
            yield Thing("slice", state.cell, _plain(item))


def _plain(row: Any) -> dict[str, Any]:  # noqa: ANN401 - a row of any table
    plain = asdict(row)
    if isinstance(row, Quota):
        plain = {name: value for name, value in plain.items() if name not in _WORKED_OUT}
    elif isinstance(row, Request):
        plain["need"] = need_to_plain(row.need)
    elif isinstance(row, Device):
        plain["state"] = device_state(row)
    elif isinstance(row, Slice):
        plain["state"] = slice_state(row)
    return plain


def _mentioned(event: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return every id that an event names, with what it is."""
    found = [(kind, event[name]) for name, kind in _FIELDS.items() if event.get(name)]
    found += [("unit", unit) for unit in event.get("units", ())]
    for part in event.get("parts", ()):
        found.append(("node", part["node"]))
        found += [("unit", unit) for unit in part["units"]]
    if "need" in event and event["need"].get("pool"):
        found.append(("pool", event["need"]["pool"]))
    return found
