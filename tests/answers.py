"""Cells driven by hand, asked why: the records as a reader sees them, and the explanation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from ledger.core.digest import digest
from ledger.core.fold import Fold
from ledger.explain import why
from ledger.log.port import Record
from ledger.reading import Seen
from ledger.testing import CoreDriver, device

if TYPE_CHECKING:
    from ledger.explain import Explanation

Part = TypeVar("Part")

OPERATOR = {"author": "operator", "reason": "test"}
GANG = {"mode": "whole", "count": 4, "nodes": 12}


def site(nodes: int = 1, gpus: int = 4, *, quota: int = 1000, **queue: Any) -> CoreDriver:
    """Return a cell of nodes n1, n2, … with ``gpus`` devices each, for the tenants t and u."""
    cell = CoreDriver(check=True)
    cell.pool()
    cell.queue(**queue)
    for tenant in "tu":
        cell.quota(tenant, nominal_gpu_milli=quota * 1000)
    for at in range(1, nodes + 1):
        cell.node(f"n{at}", [device(f"GPU-{at}{which}") for which in "abcdefgh"[:gpus]])
    return cell


def quota(cell: CoreDriver, name: str, gpus: int, **more: Any) -> None:
    """Set a quota of the tree."""
    plain = {"tenant": name, "nominal_gpu_milli": gpus * 1000, **OPERATOR, **more}
    answer = cell.feed("quota.apply", plain, source="/operator")
    assert answer.code in ("applied", "unchanged")


def ask(cell: CoreDriver, name: str, count: int = 1, nodes: int = 1, **more: Any) -> str:
    """Ask for whole devices; return the code."""
    return cell.submit(name, {"mode": "whole", "count": count, "nodes": nodes}, **more).code


def history(cell: CoreDriver) -> list[Seen]:
    """Return the records as a reader of the log sees them."""
    fold, found = Fold(), []
    for offset, value in enumerate(cell.records):
        verdict, data = fold.apply(offset, value)
        record = Record("events", 0, offset, 0, b"c", value, ())
        found.append(Seen(record, verdict, data))
    return found


def explain(cell: CoreDriver, name: str) -> Explanation:
    """Explain a request that is known; the state is as it was afterwards."""
    before = cell.digest()
    found = why(cell.state, history(cell), cell.key(name))
    assert found is not None
    assert before == digest(cell.fold.cells), "an explanation changed the state"
    return found


def told(found: Explanation, kind: str) -> list[str]:
    """Return the words of the changes of one kind."""
    return [one.text for one in found.changes if one.kind == kind]


def there(part: Part | None) -> Part:
    """Return a part of an explanation that has to be there."""
    assert part is not None
    return part
