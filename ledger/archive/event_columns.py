"""The events of a record as typed columns: what metering, bills and audits ask of them.

The usual steps of a request and its lease are most of every log. Of them each column is a list
a record, with one value an event, in order; the value is null where the event has no such
field, or not of the expected type. Lists beside each other and not one list of structs: a
reader that wants three fields of fourteen reads three.

All other events, of nodes, devices, slices and kept places, are in one column more,
``unusual``, which is null for nearly every record: whoever looks for them reads little.
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


#: The steps of a request and its lease that are most of every log, and what they are told.
_USUAL = frozenset(
    {
        *("request.received", "request.rejected", "request.queued", "request.planned"),
        *("request.ended", "lease.granted", "lease.started", "lease.stopping", "lease.extended"),
        *("lease.reminded", "part.ended", "lease.ended", "order.done", "order.superseded"),
        *("pass.cut", "pass.done"),
    }
)

#: Field of an event -> (its type, and that of the values which it takes).
_PLAIN: dict[str, tuple[Any, type]] = {
    **dict.fromkeys(
        ("type", "request", "lease", "order", "node", "tenant", "kind"), (pa.string(), str)
    ),
    **dict.fromkeys(("charge_milli", "held_us"), (pa.int64(), int)),
}
_NEED: dict[str, tuple[Any, Callable[[dict[str, Any]], object]]] = {
    "need_mode": (pa.string(), lambda need: text(need.get("mode"))),
    "need_milli": (pa.int64(), lambda need: whole(need.get("gpu_milli", 1000))),
    "need_delivery": (pa.string(), lambda need: text(_inside(need, "terms").get("delivery"))),
    "need_vgpu_most": (pa.int64(), lambda need: whole(_inside(need, "terms").get("vgpu_most"))),
}
_TEXTS = pa.list_(pa.field("element", pa.string()))
_WHOLES = pa.list_(pa.field("element", pa.int64()))

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

#: Column -> (its type, what it is of an event).
EVENT_COLUMNS: dict[str, tuple[Any, str]] = {
    **{
        f"event_{name}": (pa.list_(pa.field("element", kind)), meaning)
        for name, kind, meaning in (
            *((name, kind, f"of each event: its {name}") for name, (kind, _) in _PLAIN.items()),
            ("need_mode", pa.string(), "of requests: need.mode"),
            ("need_milli", pa.int64(), "of requests: need.gpu_milli, 1000 where it is left out"),
            ("need_delivery", pa.string(), "of requests: need.terms.delivery"),
            ("need_vgpu_most", pa.int64(), "of requests: need.terms.vgpu_most"),
            ("unit", pa.string(), "its unit, or the only one of its units"),
            ("units", _TEXTS, "of leases, kept places and orders: their units, if not one"),
            ("unit_nodes", _TEXTS, "the node of each of these units"),
        )
    },
    "unusual": (
        pa.list_(pa.field("element", _UNUSUAL)),
        "the events that are no usual step of a lease, with their number from 1; null for none",
    ),
}

#: What repeats itself in a file, by its path there.
REPEATED = (
    *(f"event_{name}.list.element" for name, (_, kind) in _PLAIN.items() if kind is str),
    *("event_need_mode.list.element", "event_need_delivery.list.element"),
    *("event_unit.list.element", "event_units.list.element.list.element"),
    "event_unit_nodes.list.element.list.element",
    *(f"unusual.list.element.{name}" for name, (_, read) in _RARE.items() if read is text),
    "unusual.list.element.units.list.element",
)


def _inside(event: dict[str, Any], name: str) -> dict[str, Any]:
    found = event.get(name)
    return found if type(found) is dict else _NO_EVENT


def event_arrays(lists: Sequence[object]) -> list[pa.Array]:
    """Return `EVENT_COLUMNS` of records, each given as its ``events`` (no list: null)."""
    events: list[dict[str, Any]] = []
    starts: list[int | None] = []
    for one in lists:
        if type(one) is list:
            starts.append(len(events))
            events += [event if type(event) is dict else _NO_EVENT for event in one]
        else:
            starts.append(None)
    offsets = pa.array([*starts, len(events)], pa.int32())
    needs = [_inside(event, "need") if "need" in event else None for event in events]
    columns = [
        *_plain(events),
        *(
            pa.array([None if need is None else read(need) for need in needs], kind)
            for kind, read in _NEED.values()
        ),
        *_units(events),
    ]
    kinds = [kind for name, (kind, _) in EVENT_COLUMNS.items() if name != "unusual"]
    found = [
        pa.ListArray.from_arrays(offsets, values, type=kind)
        for values, kind in zip(columns, kinds, strict=True)
    ]
    unusual = [_unusual(one) if type(one) is list else None for one in lists]
    return [*found, pa.array(unusual, EVENT_COLUMNS["unusual"][0])]


def _plain(events: list[dict[str, Any]]) -> list[pa.Array]:
    found: dict[str, list[Any]] = {name: [None] * len(events) for name in _PLAIN}
    takes = {name: (found[name], kind) for name, (_, kind) in _PLAIN.items()}
    for at, event in enumerate(events):
        for name, value in event.items():
            if name in takes:
                column, kind = takes[name]
                if type(value) is kind:
                    column[at] = value if kind is str else whole(value)
            elif name == "parts" and type(value) is list and len(value) == 1:
                # On one node only, as nearly all leases are.
                part = value[0] if type(value[0]) is dict else _NO_EVENT
                found["node"][at] = text(part.get("node"))
    return [pa.array(found[name], kind) for name, (kind, _) in _PLAIN.items()]


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


def _units(events: list[dict[str, Any]]) -> list[pa.Array]:
    """Return unit, units and their nodes: most leases have one unit, which needs no list."""
    single: list[str | None] = []
    starts: list[int | None] = []
    units: list[str | None] = []
    nodes: list[str | None] = []
    for event in events:
        found = _units_of(event) if "parts" in event or "units" in event else None
        if found is None:
            single.append(text(event.get("unit")))
            starts.append(None)
        elif len(found) == 1:
            single.append(found[0][0])
            starts.append(None)
        else:
            single.append(None)
            starts.append(len(units))
            units += [unit for unit, _ in found]
            nodes += [node for _, node in found]
    offsets = pa.array([*starts, len(units)], pa.int32())
    return [
        pa.array(single, pa.string()),
        *(
            pa.ListArray.from_arrays(offsets, pa.array(values, pa.string()), type=_TEXTS)
            for values in (units, nodes)
        ),
    ]


def _unusual(events: list[Any]) -> list[dict[str, Any]] | None:
    found = []
    for number, event in enumerate(events, 1):
        if type(event) is not dict:
            continue
        name = event.get("type")
        if name in _USUAL or (name == "order.issued" and event.get("kind") != "partition"):
            continue
        row: dict[str, Any] = {field: read(event.get(field)) for field, (_, read) in _RARE.items()}
        units = _units_of(event)
        steps = event.get("steps")
        found.append(
            {
                **row,
                "n": number,
                "units": None if units is None else [unit for unit, _ in units],
                "destroys": _destroys(steps) if type(steps) is list else None,
            }
        )
    return found or None


def _destroys(steps: list[Any]) -> list[int | None]:
    """Return where the slices begin that an order is to take away."""
    gone = [one for one in steps if type(one) is dict and one.get("do") == "destroy"]
    return [whole(one.get("start")) for one in gone]
