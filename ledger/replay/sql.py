"""The state at one position as SQL tables, for an expression that is true or false of it.

The tables are those of `ledger.replay.tables`, made from the classes of the state, so
that none is forgotten. The expression is asked as every question of ``gpuledger sql`` is:
in a process of its own that has the rows and nothing else, one SELECT, with limits that
the kernel keeps (`ledger.audit.sandbox`).
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa

from ledger.audit.auditor import Room
from ledger.audit.sql import BadQuery, Limits
from ledger.audit.tables import Table
from ledger.core import prices, state
from ledger.core.admitting import compatibility, licences, templates
from ledger.core.placing import links
from ledger.core.policies import workload
from ledger.core.promises import reservations
from ledger.core.quotas import quota
from ledger.replay.tables import CELL, KINDS, plain_row, rows_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ledger.core.state import State

__all__ = ["TABLES", "StateTables", "state_room"]

_CLASSES: dict[str, type[Any]] = {
    "pools": state.Pool,
    "workloads": workload.Workload,
    "queues": state.Queue,
    "quotas": quota.Quota,
    "quota_asks": quota.QuotaAsk,
    "templates": templates.Template,
    "reservations": reservations.Reservation,
    "compatibilities": compatibility.Compatibility,
    "licences": licences.Licence,
    "links": links.Link,
    "price_books": prices.PriceBook,
    "nodes": state.Node,
    "devices": state.Device,
    "slices": state.Slice,
    "requests": state.Request,
    "leases": state.Lease,
    "orders": state.Order,
}

#: Column types of annotations; what is not here is nested, and JSON.
_TYPES = {"int": "BIGINT", "str": "VARCHAR", "bool": "BOOLEAN"}

_COUNTERS = dict.fromkeys(("now_us", "swept_us", "next_id", "arrivals"), "BIGINT")
_FLAGS = dict.fromkeys(("pass_cut", "pools_limited"), "BOOLEAN")

#: Columns of what is no class of its own, and what is worked out of those that are.
_COLUMNS: dict[str, dict[str, str]] = {
    CELL: _COUNTERS | _FLAGS,
    "alarms": {"since_us": "BIGINT"},
    "seen": {
        "fingerprint": "VARCHAR",
        "code": "VARCHAR",
        "time_us": "BIGINT",
        "how": "VARCHAR",
        "leases": "BIGINT",
    },
    "partition_failures": {"failures": "BIGINT", "last_us": "BIGINT"},
    "devices": {"state": "VARCHAR"},
    "slices": {"state": "VARCHAR"},
}


def _table(name: str, kind: str) -> Table:
    columns = {"cell": "VARCHAR", "id": "VARCHAR"}
    for one in fields(_CLASSES[name]) if name in _CLASSES else ():
        columns[one.name] = _TYPES.get(str(one.type).removesuffix(" | None"), "JSON")
    columns |= _COLUMNS.get(name, {})
    meaning = f"one row a {kind} of the state"
    return Table(name, meaning, tuple((column, of, "") for column, of in columns.items()))


TABLES: dict[str, Table] = {name: _table(name, kind) for name, kind in KINDS.items()}


def state_room(limits: Limits | None = None) -> Room:
    """Start a process for questions about states; it is to be closed."""
    return Room(limits or Limits(threads=1), "ledger.replay.room")


class StateTables:
    """An expression about the state, asked in a room whose tables are filled for each position."""

    def __init__(self, expression: str, room: Room) -> None:
        """Take one SELECT that returns one boolean, and a `state_room`."""
        self.expression = expression
        self._room = room
        # Only what the expression may name is filled in; query_table() may put a name together.
        text = expression.lower()
        self._named = [one for one in TABLES.values() if one.name in text or "query" in text]

    @property
    def names(self) -> frozenset[str]:
        """Return the tables that the expression may look at."""
        return frozenset(one.name for one in self._named)

    def holds(self, cells: Mapping[str, State]) -> bool:
        """Say whether the expression is true of the cells; NULL and no row are no.

        Raise `BadQuery` when it is wrong, goes beyond a limit, or is not one boolean.
        """
        for table in self._named:
            self._room.renew(table, _rows(table, cells))
        result = self._room.ask(self.expression)
        if result.types != ("BOOLEAN",) or len(result.rows) > 1:
            shape = f"{len(result.rows)} row(s) of {', '.join(result.types)}"
            raise BadQuery(f"the expression must be one SELECT that returns one boolean; {shape}")
        return result.rows == [(True,)]


def _rows(table: Table, cells: Mapping[str, State]) -> pa.Table:
    columns: dict[str, list[Any]] = {name: [] for name, _, _ in table.columns}
    kinds = {name: kind for name, kind, _ in table.columns}
    for cell, one in cells.items():
        for key, row in rows_of(one, table.name).items():
            plain = {**plain_row(row), "cell": cell, "id": key}
            for name, column in columns.items():
                value = plain.get(name)
                nested = kinds[name] == "JSON" and value is not None
                column.append(orjson.dumps(value).decode() if nested else value)
    return pa.table(columns, schema=table.schema())
