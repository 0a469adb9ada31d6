"""The journal: what was committed is there after a crash, whatever was not is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from collectors.agent.journal import Hold, Journal, JournalBusy
from collectors.mig.saga import Mark
from collectors.said import Said
from tests.node_support import SECOND, Time

if TYPE_CHECKING:
    from pathlib import Path


def journal(path: Path | str = ":memory:", time: Time | None = None) -> Journal:
    """Return a journal in which a first boot has begun."""
    made = Journal(path, (time or Time()).clock)
    made.begin("boot-1")
    return made


def test_it_is_durable_and_one_agents_alone(tmp_path: Path) -> None:
    """Write-ahead logging, synced at each commit; a second agent is told at once."""
    path = tmp_path / "agent.db"
    mine = journal(path)

    assert [("wal",)] == mine.rows("PRAGMA journal_mode")
    assert [(2,)] == mine.rows("PRAGMA synchronous")
    with pytest.raises(JournalBusy, match=r"another agent has it open \(database is locked"):
        Journal(path, Time().clock)

    mine.close()
    again = journal(path)
    assert 2 == again.fact("epoch")


def test_another_file_is_left_alone(tmp_path: Path) -> None:
    """Neither another program's database nor a text is taken for a journal, or changed."""
    import sqlite3  # noqa: PLC0415 - the test's own look at a file

    other, text = tmp_path / "other.db", tmp_path / "notes"
    db = sqlite3.connect(other)
    db.execute("CREATE TABLE t (x)")
    db.close()
    text.write_text("not a database, " * 100)

    for path in (other, text):
        with pytest.raises(JournalBusy):
            Journal(path, Time().clock)
    assert text.read_text().startswith("not a database")


def test_each_start_is_an_epoch_and_a_boot_ends_what_ran() -> None:
    """What is still to be said outlives a boot; orders, leases, slices and baselines do not."""
    mine = journal()
    mine.hear("o1", "clean", {})
    mine.bind("l1", "MIG-a", 1, exclusive=True)
    mine.slices_seen("GPU-a", ["MIG-a"])
    mine.set_baseline("MIG-a", 9)
    mine.hold(Hold("GPU-a", (4,), "in-use", {}))
    mine.say("task.ended", {"lease": "l1"})

    assert 2 == mine.begin("boot-1")
    assert ["o1"] == [one.id for one in mine.open_orders()]
    assert 9 == mine.baseline("MIG-a")

    assert 3 == mine.begin("boot-2")
    assert [] == mine.open_orders()
    assert [] == mine.bound(unit="MIG-a")
    assert [] == mine.holds()
    assert (0, None) == (mine.generation("MIG-a"), mine.baseline("MIG-a"))
    assert ["boot-1.1-1"] == [said.id for _, said, _ in mine.unsent(10)]


def test_marks_tell_how_far_each_step_has_come() -> None:
    """Before is begun, after is done, a failure keeps its code, and tries are counted."""
    time = Time()
    mine = journal(time=time)
    mine.hear("o1", "partition", {})
    mine.step("o1", 0, "before")
    mine.step("o1", 0, "after", answer={"gi": 1})
    mine.step("o1", 1, "before")
    mine.step("o1", 1, "failed", "in-use")
    time.passes(SECOND)
    mine.step("o1", 1, "before")

    found = mine.marks("o1")
    assert ("done", 1, "") == (found[0].state, found[0].tries, found[0].code)
    assert Mark("begun", 2, "", time.steady_us) == found[1]
    mine.step("o1", 1, "failed", "timeout")
    assert ("begun", 2, "timeout") == (
        mine.marks("o1")[1].state,
        mine.marks("o1")[1].tries,
        mine.marks("o1")[1].code,
    )


def test_a_transaction_is_all_or_nothing() -> None:
    """An observation and what it answers are kept together or not at all."""
    mine = journal()
    mine.hear("o1", "clean", {})

    def answer_and_crash() -> None:
        with mine.transaction():
            mine.close_order("o1", mine.say("order.done", {"order": "o1"}))
            raise RuntimeError("crash")

    with pytest.raises(RuntimeError, match="crash"):
        answer_and_crash()

    assert 0 == mine.waiting()
    assert ["o1"] == [one.id for one in mine.open_orders()]


def test_what_waits_is_sent_in_order_and_once() -> None:
    """Tried ones are marked, acknowledged ones forgotten; an answer waits once only."""
    mine = journal()
    first = mine.say("order.done", {"order": "o1"})
    mine.say("order.done", {"order": "o2"})
    mine.say_again(first)

    numbers = [number for number, _, _ in mine.unsent(10)]
    assert 2 == len(numbers)
    mine.trying(numbers[:1])
    assert [True, False] == [tried for _, _, tried in mine.unsent(10)]
    mine.sent(numbers[:1], 7)
    assert 7 == mine.fact("observed")
    assert [numbers[1]] == [number for number, _, _ in mine.unsent(10)]
    mine.say_again(first)
    assert [first.id] == [said.id for _, said, _ in mine.unsent(10)][1:]


def test_a_uuid_that_comes_back_is_another_lifetime() -> None:
    """The same UUID gone and there again has a new generation, and no baseline of the old one."""
    mine = journal()
    mine.slices_seen("GPU-a", ["MIG-a", "MIG-b"])
    mine.set_baseline("MIG-a", 9)
    mine.slices_seen("GPU-a", ["MIG-b"])
    assert (0, None) == (mine.generation("MIG-a"), mine.baseline("MIG-a"))

    mine.slices_seen("GPU-a", ["MIG-a", "MIG-b"])
    assert (2, 1) == (mine.generation("MIG-a"), mine.generation("MIG-b"))
    assert mine.baseline("MIG-a") is None
    assert ("GPU-a", None, "GPU-x") == (mine.home("MIG-a"), mine.home("MIG-c"), mine.home("GPU-x"))


def test_old_orders_are_forgotten_and_open_ones_never(monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal has a limit that no open order falls under."""
    monkeypatch.setattr("collectors.agent.journal._REMEMBERED", 2)
    mine = journal()
    for at in range(6):
        mine.hear(f"o{at}", "clean", {})
        mine.step(f"o{at}", 0, "before")
    for at in (0, 1, 2, 3, 5):
        mine.close_order(f"o{at}", Said("order.done", f"x{at}", {}))

    assert mine.order("o0") is None
    assert {} == mine.marks("o0")
    assert ["o4"] == [one.id for one in mine.open_orders()]
    kept = mine.order("o5")
    assert kept is not None
    assert Said("order.done", "x5", {}) == kept.answer


def test_both_stamps_are_kept() -> None:
    """C43: the wall clock may go back; the steady one says how long it was."""
    time = Time()
    mine = journal(time=time)
    mine.hear("o1", "clean", {})
    time.passes(40 * SECOND)
    time.wall_us -= 60 * SECOND
    (row,) = mine.open_orders()

    assert 40 * SECOND == mine.stamp().steady_us - row.heard.steady_us
    assert -20 * SECOND == mine.stamp().wall_us - row.heard.wall_us


def test_what_was_found_is_found_anew_after_a_change_and_after_one_that_was_taken_back() -> None:
    """Asked twice with nothing between, the file is read once; nothing old is ever answered."""
    mine = journal()
    asked: list[str] = []
    mine._db.set_trace_callback(asked.append)
    assert [[], []] == [mine.held(), mine.held()]
    assert 1 == len(asked)
    mine.bind("l1", "MIG-a", 1, exclusive=True)
    assert [("l1", "MIG-a", True)] == mine.held()

    def changes_and_fails() -> None:
        with mine.transaction():
            mine.unbind("l1")
            mine.hear("o1", "clean", {})
            assert not mine.held()
            assert mine.open_orders()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        changes_and_fails()
    assert ([("l1", "MIG-a", True)], []) == (mine.held(), mine.open_orders())
