"""The canonical form of a state, its digest, and back (S1).

The digest is SHA-256 over the canonical bytes of the cells: equal logs give
equal digests on any machine and with any chunking. Where the log stands and how
many void records it holds is no part of it.
"""

from __future__ import annotations

import hashlib
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import orjson

from ledger.core.admitting.compatibility import Compatibility
from ledger.core.admitting.licences import Licence
from ledger.core.admitting.templates import Template
from ledger.core.derived.makers import load_geometry
from ledger.core.derived.unindexed import Unindexed
from ledger.core.fold import Fold, Head
from ledger.core.need import need_from_plain, need_to_plain
from ledger.core.placing.constraints import for_tenant
from ledger.core.placing.links import Link
from ledger.core.policies.workload import Workload
from ledger.core.prices import PriceBook
from ledger.core.promises.repair import Repair
from ledger.core.promises.reservations import Reservation
from ledger.core.quotas.quota import Charge, Limit, Quota, QuotaAsk
from ledger.core.state import (
    Device,
    Hold,
    Lease,
    Node,
    Order,
    Part,
    Plan,
    Pool,
    Queue,
    Request,
    Slice,
    State,
)
from ledger.core.terms import facts_from_plain

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "canonical",
    "digest",
    "load_fold",
    "load_parts",
    "save_fold",
    "save_parts",
]

_TABLES: dict[str, type[Any]] = {
    "pools": Pool,
    "workloads": Workload,
    "queues": Queue,
    "quotas": Quota,
    "quota_asks": QuotaAsk,
    "templates": Template,
    "reservations": Reservation,
    "compatibilities": Compatibility,
    "licences": Licence,
    "links": Link,
    "price_books": PriceBook,
    "nodes": Node,
    "devices": Device,
    "slices": Slice,
    "requests": Request,
    "leases": Lease,
    "orders": Order,
}
_PLAIN = tuple(one.name for one in fields(State) if one.name not in _TABLES and one.name != "index")


def canonical(state: State, *, with_ids: bool = True) -> bytes:
    """Return the state's canonical bytes; without ``with_ids`` those of all but ``seen``.

    Tables are sorted by id; ``seen`` keeps the log's own order, which equal
    logs share and a sort of a million ids would only cost.
    """
    plain = _ordered(state)
    if not with_ids:
        del plain["seen"]
    return orjson.dumps(plain)


def _ordered(state: State) -> dict[str, Any]:
    ordered: dict[str, Any] = {name: dict(sorted(getattr(state, name).items())) for name in _TABLES}
    for name in _PLAIN:
        ordered[name] = getattr(state, name)
    ordered["requests"] = {
        name: _request_plain(request) for name, request in ordered["requests"].items()
    }
    return ordered


def _request_plain(request: Request) -> dict[str, Any]:
    plain = {one: getattr(request, one) for one in Request.__slots__}
    plain["need"] = need_to_plain(request.need)
    return plain


def digest(cells: Mapping[str, State]) -> str:
    """Return the digest of the cells, as 64 hexadecimal digits."""
    total = hashlib.sha256()
    for name in sorted(cells):
        total.update(hashlib.sha256(canonical(cells[name])).digest())
    return total.hexdigest()


def save_fold(fold: Fold) -> bytes:
    """Return the fold as bytes that `load_fold` reads."""
    return b"\n".join(save_parts(fold))


def load_fold(data: bytes) -> Fold:
    """Return the fold that `save_fold` wrote, not `ready` yet.

    Raise ValueError, TypeError or KeyError when it is none.
    """
    lines = data.split(b"\n")
    cells = 1 + (len(lines) - 1) // 2
    return load_parts(b"\n".join(lines[:cells]), b"\n".join(lines[cells:]))


def save_parts(fold: Fold, *, with_ids: bool = True) -> tuple[bytes, bytes]:
    """Return the head with the cells, and apart from them the ids that the cells remember.

    Most of a long log's state are those ids, which only a writer has to know; without
    ``with_ids`` nothing is returned of them.
    """
    cells, ids = [orjson.dumps(fold.head)], []
    for name in sorted(fold.cells):
        plain = _ordered(fold.cells[name])
        seen = plain.pop("seen")
        cells.append(orjson.dumps(plain))
        if with_ids:
            ids.append(orjson.dumps(seen))
    return b"\n".join(cells), b"\n".join(ids)


def load_parts(cells: bytes, ids: bytes | None) -> Fold:
    """Return the fold of `save_parts`, not `ready` yet; without ``ids`` it remembers none.

    Such a fold is for reading: records go on changing it as they would change the whole
    one, in all but ``seen``. Raises as `load_fold` does.
    """
    head, *lines = cells.split(b"\n")
    fold = Fold(Head(**orjson.loads(head)), indexed=False)
    remembered = [b"{}"] * len(lines) if ids is None else ids.split(b"\n") if ids else []
    for line, seen in zip(lines, remembered, strict=True):
        state = _load_state(orjson.loads(line) | {"seen": orjson.loads(seen)})
        fold.cells[state.cell] = state
    return fold


def _load_state(plain: dict[str, Any]) -> State:
    state = State(plain["cell"], Unindexed())
    for name in _PLAIN:
        setattr(state, name, plain[name])
    for name, kind in _TABLES.items():
        setattr(state, name, {key: kind(**one) for key, one in plain[name].items()})
    for device in state.devices.values():
        if device.geometry is not None:
            device.geometry = load_geometry(device.geometry)  # type: ignore[arg-type]
        if device.facts is not None:
            device.facts = facts_from_plain(device.facts)  # type: ignore[arg-type]
        device.holds = {key: Hold(**one) for key, one in device.holds.items()}  # type: ignore[arg-type]
    for lease in state.leases.values():
        lease.parts = {key: Part(**one) for key, one in lease.parts.items()}  # type: ignore[arg-type]
    for quota in state.quotas.values():
        quota.limits = {key: Limit(**one) for key, one in quota.limits.items()}  # type: ignore[arg-type]
    for request in state.requests.values():
        need = need_from_plain(request.need)  # type: ignore[arg-type]
        request.need = for_tenant(state, need, request.tenant)
        if request.charge is not None:
            request.charge = Charge(**request.charge)  # type: ignore[arg-type]
        if request.plan is not None:
            request.plan = Plan(**request.plan)  # type: ignore[arg-type]
        if request.repair is not None:
            request.repair = Repair(**request.repair)  # type: ignore[arg-type]
    return state
