"""A cell for a history that is as small as it gets, with every check on."""

from __future__ import annotations

from typing import Any

from ledger.testing import CoreDriver

__all__ = ["cell_of", "set_quota", "state_of"]


def cell_of(*, quota: int = 1_000_000, **queue: Any) -> CoreDriver:
    """Return a cell with a pool, a queue and a quota; every step is checked."""
    cell = CoreDriver(check=True)
    cell.pool()
    cell.queue(**queue)
    cell.quota(nominal_gpu_milli=quota)
    return cell


def set_quota(cell: CoreDriver, tenant: str, nominal: int, **more: Any) -> str:
    """Set a tenant's quota; return the code."""
    plain = {"tenant": tenant, "nominal_gpu_milli": nominal, "author": "op", "reason": "x", **more}
    return cell.feed("quota.apply", plain, source="/operator").code


def state_of(cell: CoreDriver, request: str) -> str:
    """Return the state of a request."""
    return cell.state.requests[cell.key(request)].state
