"""The lifecycles: an edge that is not in the table does not exist."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from ledger import lifecycle_docs
from ledger.core.digest import canonical
from ledger.core.evolve import evolve
from ledger.core.fold import LogDamaged
from ledger.core.lifecycles import LIFECYCLES, IllegalTransition, step
from ledger.testing import CoreDriver, device

if TYPE_CHECKING:
    from pathlib import Path

PAIRS = [(name, old, new) for name, table in LIFECYCLES.items() for old in table for new in table]


@pytest.mark.parametrize(("name", "old", "new"), PAIRS)
def test_an_edge_is_taken_or_refused(name: str, old: str, new: str) -> None:
    """`step` gives the new state for an edge of the table, and names any other pair."""
    if new in LIFECYCLES[name][old]:
        assert new == step(name, "x", old, new)
        return
    with pytest.raises(IllegalTransition) as refused:
        step(name, "x", old, new)
    assert (name, "x", old, new) == (
        refused.value.lifecycle,
        refused.value.about,
        refused.value.old,
        refused.value.new,
    )


@pytest.mark.parametrize("name", LIFECYCLES)
def test_every_state_can_be_reached(name: str) -> None:
    """From the first state of a table every other can be reached, and no edge leaves the table."""
    table = LIFECYCLES[name]
    assert frozenset().union(*table.values()) <= table.keys()
    reached: set[str] = set()
    ahead = [next(iter(table))]
    while ahead:
        state = ahead.pop()
        if state not in reached:
            reached.add(state)
            ahead.extend(table[state])
    assert table.keys() == reached


@pytest.mark.parametrize("name", LIFECYCLES)
def test_terminal_means_terminal(name: str) -> None:
    """What has ended, is gone, rejected or answered has no way out (A4)."""
    final = {"ended", "gone", "rejected", "done", "failed", "timed-out", "superseded"}
    table = LIFECYCLES[name]
    assert {state for state in table if not table[state]} == final & table.keys()


def test_the_document_is_the_tables() -> None:
    """docs/lifecycles.md is what `python -m ledger.lifecycle_docs` writes."""
    assert 0 == lifecycle_docs.main(["--check"]), "run `python -m ledger.lifecycle_docs`"


def test_a_drifted_document_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check fails for a missing or edited file, and writing repairs it."""
    monkeypatch.setattr(lifecycle_docs, "PATH", tmp_path / "docs" / "lifecycles.md")
    assert 1 == lifecycle_docs.main(["--check"])
    assert 0 == lifecycle_docs.main([])
    assert 0 == lifecycle_docs.main(["--check"])
    lifecycle_docs.PATH.write_text("# Lifecycles\n", encoding="utf-8")
    assert 1 == lifecycle_docs.main(["--check"])


def _cell() -> CoreDriver:
    cell = CoreDriver(check=True)
    cell.pool()
    cell.queue()
    cell.quota()
    cell.node("n1", [device("GPU-a")])
    cell.submit("r1")
    return cell


ILLEGAL = [
    {"type": "node.changed", "node": "n1", "state": "lost", "reason": ""},
    {"type": "node.changed", "node": "n1", "state": "registering-again", "reason": ""},
    {"type": "request.queued", "request": "/team/a#r2", "code": "x", "numbers": {}, "again": False},
    {"type": "slice.quarantined", "unit": "c-s1", "reason": "", "evidence": {}},
]


@pytest.mark.parametrize("event", ILLEGAL)
def test_a_refused_event_changes_nothing(event: dict[str, Any]) -> None:
    """An event that asks for an edge that does not exist, or for nothing known, has no effect."""
    cell = _cell()
    before = canonical(cell.state)
    with pytest.raises((IllegalTransition, KeyError)):
        evolve(cell.state, copy.deepcopy(event), cell.now_us)
    after = canonical(cell.state)
    assert before == after


def test_a_log_with_an_illegal_edge_is_damaged() -> None:
    """A reader stops at the record that takes an edge which does not exist, and names A4."""
    cell = _cell()
    record = orjson.loads(cell.records[-1])
    record["seq"] += 1
    record["source"][1] += 1
    record["events"] = [{"type": "node.changed", "node": "n1", "state": "lost", "reason": ""}]
    with pytest.raises(LogDamaged, match="no edge from online to lost") as stopped:
        cell.replayed().apply(len(cell.records), orjson.dumps(record))
    assert (len(cell.records), "A4") == (stopped.value.offset, stopped.value.code)
