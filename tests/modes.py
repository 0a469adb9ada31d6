"""Cells and asks that the tests of constraints and of delivery modes share."""

from __future__ import annotations

from typing import Any

from ledger.testing import CoreDriver

__all__ = ["H100", "cell_of", "give_back", "granted", "nodes_of", "whole"]

H100 = {"architecture": "hopper", "capability": "9.0"}


def cell_of(**pool: object) -> CoreDriver:
    """Return a checked cell with a pool, a queue and a quota that never binds."""
    cell = CoreDriver(check=True)
    cell.pool(**pool)  # type: ignore[arg-type]
    cell.queue()
    cell.quota()
    return cell


def whole(count: int = 1, **more: object) -> dict[str, Any]:
    """Return an ask for whole devices."""
    return {"mode": "whole", "count": count, **more}


def nodes_of(cell: CoreDriver, name: str) -> list[str]:
    """Return the nodes that a request holds something on."""
    return list(cell.lease(name).parts)


def give_back(cell: CoreDriver, name: str) -> None:
    """Release a request's lease and have it proved clean."""
    cell.release(cell.lease(name).id)
    cell.answer_all_orders()


def granted(cell: CoreDriver, answer: Any) -> dict[str, Any]:
    """Return the event that granted a submission."""
    assert "granted" == answer.code
    assert cell.state.leases
    return next(one for one in answer.events if one["type"] == "lease.granted")
