"""The state as tables of plain rows: one table for each kind of thing, keyed by its id."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import orjson

from ledger.core.need import need_to_plain
from ledger.core.state import Device, Request, Slice, State, device_state, slice_state

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["CELL", "KINDS", "plain_row", "row_bytes", "rows_of"]

#: The table with one row a cell: its clock and counters.
CELL = "cells"

#: Table of the state -> what a row is. ``seen`` are the ids that are remembered.
KINDS: dict[str, str] = {
    CELL: "cell",
    "pools": "pool",
    "workloads": "workload",
    "queues": "queue",
    "quotas": "quota",
    "quota_asks": "quota ask",
    "templates": "template",
    "reservations": "reservation",
    "compatibilities": "compatibility",
    "licences": "licence",
    "links": "link",
    "price_books": "price book",
    "nodes": "node",
    "devices": "device",
    "slices": "slice",
    "requests": "request",
    "leases": "lease",
    "orders": "order",
    "alarms": "alarm",
    "partition_failures": "device whose partition failed",
    "seen": "answered id",
}

#: Fields of a cell that are no table, and no index.
_COUNTERS = tuple(
    one.name for one in fields(State) if one.name not in KINDS and one.name not in ("cell", "index")
)

#: What `State.seen` keeps of an id, in its order.
_SEEN = ("fingerprint", "code", "time_us", "how", "leases")

#: What `State.partition_failures` keeps of a device, in its order.
_FAILED = ("failures", "last_us")


def rows_of(state: State | None, table: str) -> Mapping[str, Any]:
    """Return the rows of a table by id, as the state has them; none without a state."""
    if state is None:
        return {}
    return {state.cell: state} if table == CELL else getattr(state, table)


def row_bytes(row: Any) -> bytes:  # noqa: ANN401 - a row of any table
    """Return bytes that are equal exactly when two rows of one table are."""
    if isinstance(row, State):
        return orjson.dumps([getattr(row, name) for name in _COUNTERS])
    if isinstance(row, Request):
        return orjson.dumps(_request(row))
    return orjson.dumps(row)


def plain_row(row: Any) -> dict[str, Any]:  # noqa: ANN401 - a row of any table
    """Return a row as JSON has it, with the state that is derived from it where there is one."""
    if isinstance(row, State):
        return {name: getattr(row, name) for name in _COUNTERS}
    if isinstance(row, list):
        return dict(zip(_SEEN if isinstance(row[0], str) else _FAILED, row, strict=False))
    if isinstance(row, int):
        return {"since_us": row}
    plain: dict[str, Any] = orjson.loads(
        orjson.dumps(_request(row) if isinstance(row, Request) else row)
    )
    if isinstance(row, Device):
        plain["state"] = device_state(row)
    elif isinstance(row, Slice):
        plain["state"] = slice_state(row)
    return plain


def _request(row: Request) -> dict[str, Any]:
    plain = {one.name: getattr(row, one.name) for one in fields(row)}
    plain["need"] = need_to_plain(row.need)
    return plain
