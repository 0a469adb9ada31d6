"""The events of a record as typed columns: what metering, bills and audits ask of them.

The usual steps of a request and its lease are most of every log. Each kind of step has a
column of its own, a list of structures, with what it is asked for: a value is null where the
event has no such field, or not of the expected type. The column is null for a record without
such a step: so whoever looks for the ends of leases reads these, and nothing of the rest.

All other events, of nodes, devices, slices and kept places, are in one column more,
``unusual``, which is null for nearly every record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["EVENT_COLUMNS", "REPEATED", "event_arrays", "text", "whole"]

_MAX_INT = 2**63 - 1
_NO_EVENT: dict[str, Any] = {}


def text(value: object) -> str | None:
    """Return a text, None for anything else."""
    return value if type(value) is str else None


def whole(value: object) -> int | None:
    """Return a whole number that takes no more than 64 bits, None for anything else."""
    if type(value) is int and -_MAX_INT <= value <= _MAX_INT:
        return value
    return None


def _inside(event: dict[str, Any], name: str) -> dict[str, Any]:
    found = event.get(name)
    return found if type(found) is dict else _NO_EVENT


def _units_of(event: dict[str, Any]) -> list[tuple[str | None, str | None]] | None:
    """Return the units that an event names, each with its node; None where it names none."""
    parts = event.get("parts")
    if type(parts) is not list:
        if "units" not in event:
            return None
        parts = [event]
    found = []
    for part in parts:
        units = part.get("units") if type(part) is dict else None
        if type(units) is list:
            node = text(part.get("node"))
            found += [(text(unit), node) for unit in units]
    return found


def _places(event: dict[str, Any]) -> tuple[Any, ...]:
    """Return unit, units and their nodes: most leases have one unit, which needs no list."""
    found = _units_of(event)
    if found is None:
        return None, None, None
    if len(found) == 1:
        return found[0][0], None, None
    return None, [unit for unit, _ in found], [node for _, node in found]


def _node(event: dict[str, Any]) -> str | None:
    """Return the node of an event that is about one only, as nearly all are."""
    parts = event.get("parts")
    if type(parts) is not list:
        return text(event.get("node"))
    return text(parts[0].get("node")) if len(parts) == 1 and type(parts[0]) is dict else None


def _received(n: int, event: dict[str, Any]) -> tuple[Any, ...]:
    need = event.get("need")
    if type(need) is not dict:
        return n, text(event.get("request")), text(event.get("tenant")), None, None, None, None
    terms = _inside(need, "terms")
    return (
        n, text(event.get("request")), text(event.get("tenant")), text(need.get("mode")),
        whole(need.get("gpu_milli", 1000)), text(terms.get("delivery")),
        whole(terms.get("vgpu_most")),
    )  # fmt: skip


def _granted(n: int, event: dict[str, Any]) -> tuple[Any, ...]:
    return (
        n, text(event.get("lease")), text(event.get("request")), whole(event.get("charge_milli")),
        _node(event), *_places(event),
    )  # fmt: skip


def _to_clean(n: int, event: dict[str, Any]) -> tuple[Any, ...]:
    return (
        n, text(event.get("order")), text(event.get("lease")), _node(event), *_places(event),
    )  # fmt: skip


def _stepped(n: int, event: dict[str, Any]) -> tuple[Any, ...]:
    return n, event["type"], text(event.get("lease")), text(event.get("node"))


def _ended(n: int, event: dict[str, Any]) -> tuple[Any, ...]:
    return n, text(event.get("lease")), whole(event.get("held_us"))


def _answered(n: int, event: dict[str, Any]) -> tuple[Any, ...]:
    return n, event["type"], text(event.get("order"))


def _finished(n: int, event: dict[str, Any]) -> tuple[Any, ...]:
    return n, text(event.get("request"))


#: What an order to clean is called here: its type says only that it is an order.
_CLEANS = "order.issued to clean"

_TEXTS = pa.list_(pa.field("element", pa.string()))
_WHOLES = pa.list_(pa.field("element", pa.int64()))


def _struct(**fields: pa.DataType) -> pa.DataType:
    named = [pa.field(name, kind) for name, kind in fields.items()]
    return pa.struct([pa.field("n", pa.int32()), *named])


_TEXT, _WHOLE = pa.string(), pa.int64()
_PLACES = {"unit": _TEXT, "units": _TEXTS, "unit_nodes": _TEXTS}

#: Column of a usual step -> (its fields, what of an event they are, what it is about).
_STEPS: dict[str, tuple[pa.DataType, Callable[[int, dict[str, Any]], tuple[Any, ...]], str]] = {
    "received": (
        _struct(request=_TEXT, tenant=_TEXT, mode=_TEXT, milli=_WHOLE, delivery=_TEXT,
                vgpu_most=_WHOLE),
        _received,
        "requests that were received, and what each needs (milli 1000 where it is left out)",
    ),
    "granted": (
        _struct(lease=_TEXT, request=_TEXT, charge_milli=_WHOLE, node=_TEXT, **_PLACES),
        _granted,
        "leases granted: the node and unit, or units and the node of each, if not one",
    ),
    "stepped": (
        _struct(type=_TEXT, lease=_TEXT, node=_TEXT),
        _stepped,
        "lease.started and part.ended: the lease, on which node",
    ),
    "ended": (_struct(lease=_TEXT, held_us=_WHOLE), _ended, "leases ended, and how long held"),
    "to_clean": (
        _struct(order=_TEXT, lease=_TEXT, node=_TEXT, **_PLACES),
        _to_clean,
        "orders to clean what a lease has left",
    ),
    "answered": (
        _struct(type=_TEXT, order=_TEXT),
        _answered,
        "order.done, order.failed and order.timed-out",
    ),
    "finished": (_struct(request=_TEXT), _finished, "requests that ended"),
}  # fmt: skip

#: Type of an event -> the column that it has a row in, if it is one of `_STEPS`.
_COLUMN_OF = {
    "request.received": "received",
    "lease.granted": "granted",
    "lease.started": "stepped",
    "part.ended": "stepped",
    "lease.ended": "ended",
    "order.done": "answered",
    "order.failed": "answered",
    "order.timed-out": "answered",
    "request.ended": "finished",
}

#: Types that are not in ``unusual``: steps that have a column of their own, or that nobody asks
#: for. An order that failed or was not answered in time is in both: it is news of a device, too.
_USUAL = frozenset(
    {
        *_COLUMN_OF,
        _CLEANS,
        *("request.rejected", "request.queued", "request.planned", "lease.stopping"),
        *("lease.extended", "lease.reminded", "order.superseded", "pass.cut", "pass.done"),
    }
) - {"order.failed", "order.timed-out"}

_RARE: dict[str, tuple[Any, Callable[[object], object]]] = {
    **dict.fromkeys(
        (
            *("type", "request", "lease", "order", "node", "device", "slice", "unit", "pool"),
            *("model", "profile", "kind", "state", "mode", "health"),
        ),
        (pa.string(), text),
    ),
    **dict.fromkeys(("compute_slices", "start", "size", "since_us"), (pa.int64(), whole)),
    "mig_enabled": (pa.bool_(), lambda value: value if type(value) is bool else None),
}
_UNUSUAL = pa.struct(
    [
        pa.field("n", pa.int32()),
        *(pa.field(name, kind) for name, (kind, _) in _RARE.items()),
        pa.field("units", _TEXTS),
        pa.field("destroys", _WHOLES),
    ]
)

#: Column -> (its type, what it is of the events of a record).
EVENT_COLUMNS: dict[str, tuple[Any, str]] = {
    **{
        name: (pa.list_(pa.field("element", kind)), f"{meaning}, with their number from 1")
        for name, (kind, _, meaning) in _STEPS.items()
    },
    "unusual": (
        pa.list_(pa.field("element", _UNUSUAL)),
        "the events that are no usual step of a lease, with their number from 1; null for none",
    ),
}

#: What repeats itself in a file, by its path there.
REPEATED = (
    *(
        f"{name}.list.element.{field.name}"
        for name, (kind, _, _) in _STEPS.items()
        for field in kind
        if field.type == _TEXT
    ),
    *(
        f"{name}.list.element.{field}.list.element"
        for name in ("granted", "to_clean")
        for field in ("units", "unit_nodes")
    ),
    *(f"unusual.list.element.{name}" for name, (_, read) in _RARE.items() if read is text),
    "unusual.list.element.units.list.element",
)


def event_arrays(lists: Sequence[object]) -> list[pa.Array]:
    """Return `EVENT_COLUMNS` of records, each given as its ``events`` (no list: null)."""
    rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in _STEPS}
    places: dict[str, list[int]] = {name: [] for name in _STEPS}
    unusual: list[list[dict[str, Any]] | None] = [None] * len(lists)
    into = {
        name: (rows[column], places[column], _STEPS[column][1])
        for name, column in (*_COLUMN_OF.items(), (_CLEANS, "to_clean"))
    }
    for at, events in enumerate(lists):
        if type(events) is not list:
            continue
        for n, event in enumerate(events, 1):
            if type(event) is not dict:
                continue
            name = event.get("type")
            if name == "order.issued" and event.get("kind") == "clean":
                name = _CLEANS
            if type(name) is str and name in into:
                found, where, read = into[name]
                found.append(read(n, event))
                where.append(at)
            if type(name) is not str or name not in _USUAL:
                row = _unusual(n, event)
                if row is not None:
                    unusual[at] = [*(unusual[at] or ()), row]
    return [
        *(_lists(name, rows[name], places[name], len(lists)) for name in _STEPS),
        pa.array(unusual, EVENT_COLUMNS["unusual"][0]),
    ]


def _lists(name: str, rows: list[tuple[Any, ...]], places: list[int], count: int) -> pa.Array:
    """Return the column of a step from its rows, each of the record at ``places``."""
    kind = _STEPS[name][0]
    columns = zip(*rows, strict=True) if rows else ([] for _ in kind)
    fields = [pa.array(values, field.type) for values, field in zip(columns, kind, strict=True)]
    starts: list[int | None] = [None] * (count + 1)
    for row in range(len(rows) - 1, -1, -1):
        starts[places[row]] = row
    starts[count] = len(rows)
    return pa.ListArray.from_arrays(
        pa.array(starts, pa.int32()),
        pa.StructArray.from_arrays(fields, fields=list(kind)),
        type=EVENT_COLUMNS[name][0],
    )


def _unusual(n: int, event: dict[str, Any]) -> dict[str, Any] | None:
    if event.get("type") == "order.issued" and event.get("kind") != "partition":
        return None
    units = _units_of(event)
    steps = event.get("steps")
    return {
        **{field: read(event.get(field)) for field, (_, read) in _RARE.items()},
        "n": n,
        "units": None if units is None else [unit for unit, _ in units],
        "destroys": _destroys(steps) if type(steps) is list else None,
    }


def _destroys(steps: list[Any]) -> list[int | None]:
    """Return where the slices begin that an order is to take away."""
    gone = [one for one in steps if type(one) is dict and one.get("do") == "destroy"]
    return [whole(one.get("start")) for one in gone]
