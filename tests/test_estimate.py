"""Estimated starts: what they rest on, that they are recorded, and how they are judged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ledger.answers.predicted import Predicted
from ledger.answers.rules import asking_of
from ledger.core.line.estimate import estimate
from ledger.testing import device, mig_slice
from tests.answers import ask, explain, history, quota, site, there, told

if TYPE_CHECKING:
    from ledger.testing import CoreDriver

US = 1_000_000


def started(cell: CoreDriver, name: str) -> int:
    """Return when the request's lease was granted."""
    return cell.lease(name).granted_us


def recorded(cell: CoreDriver, name: str) -> tuple[int | None, str | None]:
    """Return the estimate that the first wait of a request recorded."""
    events = [event for seen in history(cell) for event in seen.data.get("events", ())]
    queued = next(
        one
        for one in events
        if one["type"] == "request.queued" and one["request"] == cell.key(name)
    )
    return queued.get("estimate_us"), queued.get("estimate_basis")


def told_start(cell: CoreDriver, name: str) -> tuple[int | None, str]:
    """Return what is estimated now."""
    request = cell.state.requests[cell.key(name)]
    found = estimate(cell.state, asking_of(cell.state, request).asker, cell.state.now_us)
    return found.start_us, found.basis


def test_the_end_of_a_longest_run_is_the_start_of_who_waits() -> None:
    """The lease that ends first and is enough decides; the record has it, and it comes true."""
    cell = site(1, 4)
    ask(cell, "soon", 1, max_run_s=100)
    ask(cell, "later", 3, max_run_s=200)
    start_us = started(cell, "later") + 200 * US
    assert "queued" == ask(cell, "wants", 2)
    assert (start_us, "max_run") == recorded(cell, "wants")
    assert (start_us, "max_run") == told_start(cell, "wants")
    found = explain(cell, "wants")
    assert ("/team/a#soon/1", "/team/a#later/1") == there(found.estimate).leases
    assert "as longest runs tell" in told(found, "wait")[0]
    cell.tick(at_us=start_us)
    cell.answer_all_orders()
    assert start_us <= started(cell, "wants") < start_us + US


def test_an_expected_run_is_a_sooner_end() -> None:
    """What the requester expects is believed until it is over; then only the longest run is."""
    cell = site(1, 1)
    ask(cell, "holds", max_run_s=500, expected_run_s=60)
    begun = started(cell, "holds")
    ask(cell, "wants")
    assert (begun + 60 * US, "expected_run") == recorded(cell, "wants")
    ask(cell, "another", at_us=begun + 100 * US)
    assert begun + 500 * US == told_start(cell, "wants")[0]


def test_without_an_end_nothing_is_assumed() -> None:
    """The lease that has no end is named, and no number is made up."""
    cell = site(1, 2)
    ask(cell, "soon", max_run_s=60)
    ask(cell, "for-ever")
    ask(cell, "wants", 2)
    assert (None, None) == recorded(cell, "wants")
    found = there(explain(cell, "wants").estimate)
    assert (None, "open_end", ("/team/a#for-ever/1",)) == (
        found.start_us, found.basis, found.leases,
    )  # fmt: skip


def test_an_end_that_would_not_help_is_not_waited_for() -> None:
    """No node has so many devices: that a lease has no end is not why no time is known."""
    cell = site(2, 4)
    ask(cell, "for-ever", 1)
    ask(cell, "wants", 8)
    found = there(explain(cell, "wants").estimate)
    assert (None, "no_supply", ()) == (found.start_us, found.basis, found.leases)
    # Behind another who has no end either, it is those ends that are not known.
    ask(cell, "all", 4)
    ask(cell, "ahead", 4)
    ask(cell, "behind", 4)
    found = there(explain(cell, "behind").estimate)
    assert (None, "open_end") == (found.start_us, found.basis)


def test_those_ahead_go_first_and_give_back() -> None:
    """A line of three behind one device: each starts when the runs before it have passed."""
    cell = site(1, 1)
    ask(cell, "holds", max_run_s=100)
    end_us = started(cell, "holds") + 100 * US
    for at in range(3):
        ask(cell, f"w{at}", expected_run_s=50)
        assert (end_us + at * 50 * US, "max_run") == recorded(cell, f"w{at}")


def test_room_is_counted_place_by_place() -> None:
    """Two free devices on two nodes are no place of two: the node that is whole soonest counts."""
    cell = site(2, 2)
    ask(cell, "a", 1, max_run_s=300)
    ask(cell, "b", 2, max_run_s=900)
    ask(cell, "c", 1, max_run_s=200)
    assert [["n1"], ["n2"], ["n1"]] == [list(cell.lease(one).parts) for one in "abc"]
    ask(cell, "wants", 2)
    assert started(cell, "a") + 300 * US == recorded(cell, "wants")[0]


@pytest.mark.parametrize(
    "wanted", [{"mode": "share", "gpu_milli": 700}, {"mode": "whole", "count": 1}]
)
def test_shares_end_one_by_one(wanted: dict[str, Any]) -> None:
    """A share needs room on one device; a whole device needs all of its shares to end."""
    cell = site(1, 1)
    cell.submit("a", {"mode": "share", "gpu_milli": 500}, max_run_s=100)
    cell.submit("b", {"mode": "share", "gpu_milli": 300}, max_run_s=200)
    assert "queued" == cell.submit("wants", wanted).code
    last = "a" if wanted["mode"] == "share" else "b"
    assert cell.lease(last).due_us == recorded(cell, "wants")[0]


def test_slices_come_free_wherever_they_are() -> None:
    """Two slices of a profile are waited for, on whichever devices they are."""
    cell = site(1, 1)
    for at in (2, 3):
        slices = [mig_slice(f"MIG-{at}", gi=7, start=0)]
        devices = [device(f"GPU-{at}m", mig_enabled=True, compute_slices=7, slices=slices)]
        cell.node(f"n{at}", devices)
    small = {"mode": "mig", "profile": "1g.10gb"}
    cell.submit("a", small, max_run_s=300)
    cell.submit("b", small, max_run_s=200)
    assert "queued" == cell.submit("wants", small | {"count": 2}).code
    assert cell.lease("a").due_us == recorded(cell, "wants")[0]
    found = explain(cell, "wants")
    assert "needs 2 slices, only 0 are free" == found.reason
    assert {"/team/a#a/1", "/team/a#b/1"} == {one.lease for one in found.holders}


def test_what_is_being_cleaned_is_there_at_once() -> None:
    """A device whose lease is over waits for its proof only: the start is now."""
    cell = site(1, 1)
    ask(cell, "first")
    cell.release(cell.lease("first").id)
    assert "queued" == ask(cell, "wants")
    assert cell.state.now_us == recorded(cell, "wants")[0]
    assert ("GPU-1a: being cleaned",) == explain(cell, "wants").out_of_use


def test_a_quota_has_room_when_enough_of_its_leases_have_ended() -> None:
    """Devices are free, the quota is not: only leases that count against it are waited for."""
    cell = site(1, 8)
    quota(cell, "t", 3)
    ask(cell, "other", 1, tenant="u", max_run_s=10)
    ask(cell, "a", 1, max_run_s=100)
    ask(cell, "b", 2, max_run_s=200)
    ask(cell, "wants", 2)
    assert cell.lease("b").due_us == recorded(cell, "wants")[0]
    assert ("/team/a#a/1", "/team/a#b/1") == there(explain(cell, "wants").estimate).leases[-2:]


def test_estimates_are_held_against_what_happened() -> None:
    """Errors are actual less predicted; a wait without an estimate is counted as unknown."""
    cell = site(1, 1)
    ask(cell, "holds", max_run_s=100)
    ask(cell, "early", max_run_s=100)
    ask(cell, "for-ever")
    ask(cell, "behind")
    due_us = there(cell.lease("holds").due_us)
    at_us = due_us - 40 * US
    cell.release(cell.lease("holds").id, at_us=at_us)
    cell.answer_all_orders()
    error = started(cell, "early") - due_us
    assert -40 * US < error < -39 * US
    found = Predicted()
    for seen in history(cell):
        found.take(seen)
    rows = {row.basis: row for row in found.rows()}
    assert (2, 2, 1) == (
        rows["max_run"].waits, rows["max_run"].predicted, rows["max_run"].started,
    )  # fmt: skip
    assert (error, error, 1) == (
        rows["max_run"].p50_us, rows["max_run"].p99_us, rows["max_run"].within_60s,
    )  # fmt: skip
    assert (1, 0, None) == (
        rows["unknown"].waits, rows["unknown"].predicted, rows["unknown"].p50_us,
    )  # fmt: skip
    assert (3, 2) == (rows["all"].waits, rows["all"].predicted)


def test_the_quick_estimate_is_the_whole_one_where_it_is_made() -> None:
    """What a decision records is what `why` would have told at the same moment."""
    cell = site(3, 4)
    for at in range(12):
        ask(cell, f"h{at}", 1, max_run_s=60 + 37 * (at * 7 % 12))
    for at in range(9):
        ask(cell, f"w{at}", 1 + at % 4, 1 + at % 2, expected_run_s=30 + at)
        assert told_start(cell, f"w{at}") == recorded(cell, f"w{at}")
