"""A node with very many leases is lost or restarts: bounded records, and nothing leased between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ledger.core.digest import digest
from ledger.core.invariants import check
from ledger.core.limits import MAX_DUE
from ledger.log.port import MAX_RECORD_BYTES
from ledger.testing import CoreDriver, device

if TYPE_CHECKING:
    import pytest

SECOND = 1_000_000
SHARE: dict[str, Any] = {"mode": "share", "gpu_milli": 50}


def crowd(monkeypatch: pytest.MonkeyPatch, most: int, *, retries: int = 0) -> CoreDriver:
    """Return a cell with forty shares on two devices of a node, with this limit of events."""
    monkeypatch.setattr("ledger.core.decisions.losing.MAX_DUE", most)
    monkeypatch.setattr("ledger.core.decisions.due.MAX_DUE", most)
    monkeypatch.setattr("ledger.testing.MAX_DUE", most)
    cell = CoreDriver(check=True)
    cell.pool(silent_grace_s=60)
    cell.queue()
    cell.quota()
    report(cell, "b1")
    for at in range(40):
        cell.submit(f"r{at:02}", SHARE, retries=retries)
    assert 40 == len(cell.state.leases)
    return cell


def unsettled(cell: CoreDriver) -> str | None:
    """Say why the node is not settled yet."""
    return cell.state.nodes["n1"].unsettled


def report(cell: CoreDriver, boot: str) -> list[dict[str, Any]]:
    """Let the node tell its inventory; return what follows."""
    return cell.node("n1", [device("GPU-a"), device("GPU-b")], incarnation=boot).events


def go_on(cell: CoreDriver, most: int) -> int:
    """Let ticks come at once until nothing is due; return how many it took."""
    ticks = 0
    deadlines = cell.state.index.deadlines
    while (due := deadlines.next_due_us(cell.state)) is not None and due <= cell.now_us:
        # One lease's end may go a little beyond, and the pass gives what it may.
        assert len(cell.tick().events) <= most + 10
        ticks += 1
        assert ticks < 40
    return ticks


def test_a_restart_ends_as_much_as_a_record_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty leases, five at a time; while it goes on nobody gets anything there."""
    cell = crowd(monkeypatch, 25)
    first = report(cell, "b2")
    assert 30 < len(cell.state.leases) < 40
    assert "node-restarted" == unsettled(cell)
    assert "node.unsettled" in {event["type"] for event in first}
    assert not cell.state.orders, "the cleaning is ordered when all has ended"
    assert "queued" == cell.submit("late", SHARE).code
    assert "queued" == cell.submit("bare", {"mode": "whole", "count": 0}).code
    assert go_on(cell, 25) > 3
    assert [cell.key("bare") + "/1"] == list(cell.state.leases)
    assert unsettled(cell) is None
    assert 40 == len(cell.state.orders)
    cell.answer_all_orders()
    assert 1 == len(cell.lease("late").parts)
    assert {"node-restarted"} == {cell.state.seen[cell.key(f"r{at:02}")][3] for at in range(40)}


def test_a_restart_goes_on_after_a_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is part of the state: another worker has the same due next."""
    cell = crowd(monkeypatch, 25)
    report(cell, "b2")
    cell.tick()
    again = cell.replayed().cell("c")
    due = again.index.deadlines.standing(again)
    assert ("settle", "n1") in {(kind, name) for _, kind, name in due}
    assert due == cell.state.index.deadlines.standing(cell.state)


def test_a_second_restart_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restarted, lost, back and restarted again before the first has ended: all end once."""
    cell = crowd(monkeypatch, 25)
    report(cell, "b2")
    report(cell, "b3")
    cell.silent("n1")
    cell.tick(cell.now_us + 60 * SECOND)
    go_on(cell, 25)
    assert "lost" == cell.state.nodes["n1"].state
    assert not cell.state.leases
    report(cell, "b4")
    go_on(cell, 25)
    assert 40 == len(cell.state.orders)
    cell.answer_all_orders()
    assert "granted" == cell.submit("late").code


def test_a_lost_node_that_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silent for too long with forty leases; back with the same incarnation: cleaned in steps."""
    cell = crowd(monkeypatch, 25)
    cell.silent("n1")
    cell.tick(cell.now_us + 60 * SECOND)
    assert cell.state.leases
    go_on(cell, 25)
    assert not cell.state.leases
    assert unsettled(cell) is None
    report(cell, "b1")
    assert "unclean" == unsettled(cell)
    assert "queued" == cell.submit("late").code
    go_on(cell, 25)
    assert 40 == len(cell.state.orders)
    cell.answer_all_orders()
    assert "granted" == cell.state.requests[cell.key("late")].state


def test_ends_that_come_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease is given back, another reclaimed, while the node is unsettled: each ends once."""
    cell = crowd(monkeypatch, 25, retries=1)
    report(cell, "b2")
    left = sorted(cell.state.leases)
    assert "released" == cell.release(left[-1]).code
    cell.reclaim(left[-2])
    assert left[-2] not in cell.state.leases
    go_on(cell, 25)
    cell.answer_all_orders()
    assert 38 == len(cell.state.leases), "all others have another try"


def test_twelve_thousand_leases_of_one_node() -> None:
    """By the real limit: no record is larger than the log takes, and none comes near it."""
    cell = CoreDriver()
    cell.pool(silent_grace_s=60)
    cell.queue()
    cell.quota(nominal_gpu_milli=120_000)
    cards = [device(f"GPU-{at:08}-0000-0000-0000-000000000000") for at in range(120)]
    cell.node("n1", cards)
    for at in range(12_000):
        cell.submit(f"{at:036}", {"mode": "share", "gpu_milli": 10})
    assert 12_000 == len(cell.state.leases)
    before = len(cell.records)
    cell.node("n1", cards, incarnation="b2")
    assert cell.state.leases, "one record does not take them all"
    while cell.state.leases or unsettled(cell):
        cell.tick()
    assert 12_000 == len(cell.state.orders)
    largest = max(map(len, cell.records[before:]))
    assert largest < MAX_RECORD_BYTES // 4, largest
    # Five events a lease end, and one for the cleaning, in records of so many events.
    assert len(cell.records) - before < 2 + 12_000 * 6 // (MAX_DUE - 10) + 4
    assert [] == check(cell.state)
    assert cell.digest() == digest(cell.replayed().cells)
