"""Whose turn it is in a pass: the line's order, at the price of what is given (C17, C19)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.core.line import order_of_turn as turns
from ledger.core.line.asking import turn_order
from ledger.testing import CoreDriver, device

if TYPE_CHECKING:
    import pytest

    from ledger.core.derived.waiting import Rank, ShapeKey
    from ledger.core.line.asking import Turnorder
    from ledger.core.state import State

TREES, TENANTS = 3, 10


def crowded(*, fair_share: bool = False) -> tuple[CoreDriver, list[str]]:
    """Let one of each of 30 tenants wait, tree after tree; one device, held by a thirty-first."""
    cell = CoreDriver(check=True)
    cell.pool()
    cell.queue(fair_share=fair_share)
    cell.node("n1", [device("GPU-00")])
    for tree in range(TREES):
        quota(cell, f"tree{tree}", None)
        for tenant in range(TENANTS):
            quota(cell, f"t{tree}-{tenant}", f"tree{tree}")
    quota(cell, "first", None)
    assert "granted" == cell.submit("first", {"mode": "whole"}, tenant="first").code
    names = [f"t{tree}-{tenant}" for tenant in range(TENANTS) for tree in range(TREES)]
    for name in names:
        assert "queued" == cell.submit(name, {"mode": "whole"}, tenant=name).code
    return cell, names


def quota(cell: CoreDriver, tenant: str, parent: str | None) -> None:
    """Set a quota of ten devices, or of one below another."""
    milli = 1000 if parent else 1000 * TENANTS
    plain = {"tenant": tenant, "parent": parent, "nominal_gpu_milli": milli}
    code = cell.feed("quota.apply", plain | {"author": "op", "reason": "x"}, source="/op").code
    assert "applied" == code


def served(cell: CoreDriver) -> list[str]:
    """Let one after the other have the device; return in which order."""
    found = []
    while cell.state.leases:
        (lease,) = cell.state.leases.values()
        found.append(lease.request.partition("#")[2])
        cell.release(lease.id)
        cell.answer_all_orders()
    return found


def test_families_of_several_trees_are_served_as_one_line() -> None:
    """What becomes free goes to whoever came first, whatever tree and tenant that is of."""
    cell, names = crowded()
    assert ["first", *names] == served(cell)


def test_priorities_go_before_age_in_every_tree() -> None:
    """Of two that came last the one of the higher priority is served first, then the line."""
    cell, names = crowded()
    for name, priority in (("low", 1), ("high", 2)):
        cell.submit(name, {"mode": "whole"}, tenant=f"t{priority}-0", priority=priority)
    assert ["first", "high", "low", *names] == served(cell)


def test_fair_share_goes_before_age() -> None:
    """The tenant that has just had the device comes last, though it asked before all others."""
    cell, names = crowded(fair_share=True)
    cell.submit("again", {"mode": "whole"}, tenant=names[0])
    cell.tick(cell.now_us + 60_000_000)
    found = served(cell)
    assert {"first", "again", *names} == set(found)
    assert "again" == found[-1]


def test_a_pass_costs_what_it_gives_and_not_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """One device for thirty that wait: of each tree the first is looked at, and no other."""
    cell, _ = crowded()
    cell.release(cell.lease("first").id)
    looked_at = []

    def counted(state: State, key: ShapeKey, rank: Rank, now_us: int) -> Turnorder:
        looked_at.append(key.holder)
        return turn_order(state, key, rank, now_us)

    monkeypatch.setattr(turns, "turn_order", counted)
    cell.answer_all_orders()
    assert {f"t{tree}-{at}" for tree in range(TREES) for at in (0, 1)} >= set(looked_at)
    assert "t0-0" in {lease.tenant for lease in cell.state.leases.values()}
