"""What differs between the states at two places, and which records in between touched it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ledger.core.digest import digest
from ledger.core.fold import Fold
from ledger.core.state import State
from ledger.reading import Upto, cells_of, read_events
from ledger.replay.names import Named, Names
from ledger.replay.states import copy_of, fold_at
from ledger.replay.tables import KINDS, plain_row, row_bytes, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ledger.log.port import Log
    from ledger.reading import Seen
    from ledger.replay.position import Place
    from ledger.replay.states import PositionSnapshots

__all__ = ["Change", "Difference", "belongs", "changes_between", "diff"]

#: Cell, table and id of a row.
Key = tuple[str, str, str]

#: Tables whose rows change with events that do not name them; they are small, so all are watched.
_DERIVED = frozenset(KINDS) - {
    "nodes", "devices", "slices", "requests", "leases", "orders", "seen", "alarms",
}  # fmt: skip


@dataclass(slots=True)
class Change:
    """One row that is otherwise: ``added``, ``removed`` or ``changed``.

    ``fields`` has old and new by field, one level of nesting spelt with a dot; what was
    not there is None. ``of`` are the ids it belongs to, by kind. ``first`` and ``last``
    are the positions of the records that touched it.
    """

    cell: str
    table: str
    id: str
    what: str
    fields: dict[str, tuple[Any, Any]]
    of: dict[str, list[str]] = field(default_factory=dict)
    first: str | None = None
    last: str | None = None

    @property
    def key(self) -> Key:
        """Return where the row is."""
        return self.cell, self.table, self.id


@dataclass(slots=True)
class Difference:
    """All changes between two places, with the digests of both states.

    ``records`` counts those that lie between the places. ``digests`` is None where the
    ids that the states remember were left out.
    """

    digests: tuple[str, str] | None
    records: int
    changes: list[Change]

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """Return how many rows were added, removed and changed, by table."""
        found: dict[str, dict[str, int]] = {}
        for one in self.changes:
            row = found.setdefault(one.table, {"added": 0, "removed": 0, "changed": 0})
            row[one.what] += 1
        return found


async def diff(
    log: Log,
    prefix: str,
    places: tuple[Place, Place],
    stores: Sequence[PositionSnapshots] = (),
    *,
    with_ids: bool = True,
) -> Difference:
    """Return what differs between two places, of which the first must not be behind the second.

    Without ``with_ids`` the ids that the states remember (``seen``) are not compared, and
    there are no digests: they are most of a long log's state. Raises as
    `ledger.reading.read_events` does.
    """
    first, second = places
    old = await fold_at(log, prefix, first, stores, with_ids=with_ids)
    new = await fold_at(log, prefix, second, stores, copy_of(old), with_ids=with_ids)
    before, after = cells_of(old), cells_of(new)
    digests = (digest(before), digest(after)) if with_ids else None
    compared = [one for one in KINDS if with_ids or one != "seen"]
    changes = list(changes_between(before, after, compared))
    await _attribute(log, prefix, second, old, changes)
    between = sum(second[number] - first[number] for number in second)
    return Difference(digests, between, changes)


def changes_between(
    before: Mapping[str, State], after: Mapping[str, State], tables: Iterable[str] = KINDS
) -> Iterator[Change]:
    """Yield every row that differs, by cell, table and id."""
    for cell in sorted({*before, *after}):
        for table in tables:
            old = rows_of(before.get(cell), table)
            new = rows_of(after.get(cell), table)
            differ = [name for name in {**old, **new} if _differ(old.get(name), new.get(name))]
            for name in sorted(differ):
                one, other = old.get(name), new.get(name)
                what = "added" if one is None else "removed" if other is None else "changed"
                found = Change(cell, table, name, what, _fields(one, other))
                found.of = _belongs_to(before.get(cell), after.get(cell), found, one, other)
                yield found


def _differ(old: Any, new: Any) -> bool:  # noqa: ANN401 - rows
    """Say whether two rows differ as JSON has them; equal objects do not, and are most."""
    if old is None or new is None:
        return True
    if not isinstance(old, State) and old == new:
        return False
    return row_bytes(old) != row_bytes(new)


def _fields(old: Any, new: Any) -> dict[str, tuple[Any, Any]]:  # noqa: ANN401 - rows
    """Return old and new of every field that differs; of an added row, of those that are set."""
    before = {} if old is None else _flat(plain_row(old))
    after = {} if new is None else _flat(plain_row(new))
    names = dict.fromkeys([*before, *after])
    return {
        name: (before.get(name), after.get(name))
        for name in names
        if before.get(name) != after.get(name)
        and not (_unset(before.get(name)) and _unset(after.get(name)))
    }


def _unset(value: object) -> bool:
    return value is None or value in ("", [], {})


def _flat(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Spell one level of nesting with a dot, so that one amount among many is one change."""
    found: dict[str, Any] = {}
    for name, value in plain.items():
        if isinstance(value, dict):
            found.update({f"{name}.{key}": inner for key, inner in value.items()})
        else:
            found[name] = value
    return found


def _belongs_to(
    before: State | None,
    after: State | None,
    change: Change,
    old: Any,  # noqa: ANN401 - rows
    new: Any,  # noqa: ANN401
) -> dict[str, list[str]]:
    of: dict[str, dict[str, None]] = {}
    for state, row in ((before, old), (after, new)):
        if state is not None and row is not None:
            for kind, names in belongs(state, change.table, row).items():
                of.setdefault(kind, {}).update(dict.fromkeys(names))
    return {kind: list(names) for kind, names in of.items() if names}


def belongs(state: State, table: str, row: Any) -> dict[str, list[str]]:  # noqa: ANN401 - a row
    """Return the tenant, nodes, devices and leases that a row belongs to."""
    if table == "leases":
        units = [unit for part in row.parts.values() for unit in part.units]
        return {
            "tenant": [row.tenant],
            "node": list(row.parts),
            "device": [_device_of(state, unit) for unit in units],
            "lease": [row.id],
        }
    if table == "requests":
        return {"tenant": [row.tenant], "lease": [row.lease] if row.lease else []}
    if table == "devices":
        held = list(row.holds)
        return {
            "tenant": _tenants(state, held),
            "node": [row.node],
            "device": [row.uuid],
            "lease": held,
        }
    if table in ("slices", "orders"):
        held = [row.lease] if row.lease else []
        units = [row.id] if table == "slices" else row.units
        devices = [_device_of(state, unit) for unit in units]
        on = [state.devices[uuid].node for uuid in devices if uuid in state.devices]
        return {
            "tenant": _tenants(state, held),
            "node": on if table == "slices" else [row.node],
            "device": devices,
            "lease": held,
        }
    if table == "nodes":
        return {"node": [row.name]}
    if table == "quotas":
        return {"tenant": [row.name.partition("/")[0]]}
    return {"tenant": [row.tenant]} if table in ("quota_asks", "reservations") else {}


def _tenants(state: State, leases: Iterable[str]) -> list[str]:
    return [state.leases[name].tenant for name in leases if name in state.leases]


def _device_of(state: State, unit: str) -> str:
    item = state.slices.get(unit)
    return unit if item is None else item.device


# -- which records -------------------------------------------------------------


async def _attribute(
    log: Log, prefix: str, place: Place, folds: Mapping[int, Fold], changes: Sequence[Change]
) -> None:
    """Set the first and last record that touched each changed row.

    Going over the records once, the rows that each is about are compared with what
    they were. Should a row have changed otherwise, a second pass compares it at every record.
    """
    touched = _Touched(changes)
    if changes:
        await touched.follow(log, prefix, place, copy_of(folds), set())
        left = {one.key for one in changes if not touched.explains(one)}
        if left:
            await touched.follow(log, prefix, place, copy_of(folds), left)
    for one in changes:
        one.first, one.last = touched.found.get(one.key, (None, None))


class _Touched:
    """Watches changed rows while records go by."""

    def __init__(self, changes: Iterable[Change]) -> None:
        self.found: dict[Key, tuple[str, str]] = {}
        self._watched: dict[str, dict[str, list[Key]]] = {}
        self._derived: dict[str, list[Key]] = {}
        self._was: dict[Key, bytes | None] = {}
        self._end: dict[Key, bytes | None] = {}
        self._keys = [one.key for one in changes]
        self._swept: dict[str, int] = {}
        for one in changes:
            if one.table in _DERIVED:
                self._derived.setdefault(one.cell, []).append(one.key)
            else:
                name = one.id.rpartition(" ")[2] if one.table == "alarms" else one.id
                self._watched.setdefault(one.cell, {}).setdefault(name, []).append(one.key)

    async def follow(
        self, log: Log, prefix: str, place: Place, folds: dict[int, Fold], always: set[Key]
    ) -> None:
        """Go over the records; rows of ``always`` are compared at each of them."""
        keys = self._keys
        cells = cells_of(folds)
        self._was = {key: _bytes(cells.get(key[0]), key) for key in keys}
        for number, end in place.items():
            fold = folds.get(number) or Fold()
            names = Names()
            for state in fold.cells.values():
                names.know(state)
            upto = Upto(offsets={number: end})
            async for seen in read_events(log, prefix, number, fold, upto):
                if seen.verdict == "effective":
                    self._look(seen, fold.cells[seen.data["cell"]], names, always)
        cells.update(cells_of(folds))
        self._end = {key: _bytes(cells.get(key[0]), key) for key in keys}

    def explains(self, change: Change) -> bool:
        """Say whether the records found lead to the row as it is at the end."""
        return self._was[change.key] == self._end[change.key]

    def _look(self, seen: Seen, state: State, names: Names, always: set[Key]) -> None:
        cell, data = state.cell, seen.data
        keys = dict.fromkeys(self._derived.get(cell, ()))
        watched = self._watched.get(cell)
        if watched:
            for name in _near(state, data, names):
                keys.update(dict.fromkeys(watched.get(name, ())))
        keys.update(dict.fromkeys(key for key in always if key[0] == cell))
        if state.swept_us != self._swept.get(cell):  # ids beyond their window are forgotten
            self._swept[cell] = state.swept_us
            keys.update(dict.fromkeys(key for key in self._keys if key[:2] == (cell, "seen")))
        for key in keys:
            now = _bytes(state, key)
            if now != self._was[key]:
                self._was[key] = now
                first = self.found.get(key, (seen.position, ""))[0]
                self.found[key] = first, seen.position


def _near(state: State, data: Mapping[str, Any], names: Names) -> set[str]:
    """Return the ids that a record may have touched: what it is about, and what is on its nodes."""
    given = data["input"]
    named: list[Named] = [names.take(event) for event in data["events"]]
    found = {one for each in named for ids in each.values() for one in ids}
    found.add(f"{given['source']}#{given['id']}")
    for name in [each for one in named for each in one.get("node", ())]:
        node = state.nodes.get(name)
        for uuid in node.devices if node else ():
            device = state.devices[uuid]
            found |= {uuid, *device.slices, *device.holds}
    return found


def _bytes(state: State | None, key: Key) -> bytes | None:
    row = rows_of(state, key[1]).get(key[2])
    return None if row is None else row_bytes(row)
