"""The fold: which records count, and where a reader must stop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pytest

from ledger.core.digest import digest
from ledger.core.fold import Fold, LogDamaged
from ledger.testing import CoreDriver, device

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def cell() -> CoreDriver:
    """A cell whose last record grants r1 the only device."""
    cell = CoreDriver(check=True)
    cell.pool()
    cell.queue()
    cell.quota()
    cell.node("n1", [device("GPU-a")])
    cell.submit("r1")
    return cell


def following(cell: CoreDriver, /, **more: Any) -> dict[str, Any]:
    """Return a record that would count after the cell's last: nothing but a tick."""
    record: dict[str, Any] = orjson.loads(cell.records[-1])
    source = [record["source"][0], record["source"][1] + 1]
    about = {**record["input"], "id": "next"}
    outcome = {"code": "applied"}
    following = {"seq": record["seq"] + 1, "source": source, "input": about, "outcome": outcome}
    return record | following | {"events": []} | more


def test_a_gap_stops_the_reader(cell: CoreDriver) -> None:
    """A record that is not at the next offset is refused, before or after it (L2)."""
    for offset in (len(cell.records) - 1, len(cell.records) + 1):
        with pytest.raises(LogDamaged) as stopped:
            cell.replayed().apply(offset, orjson.dumps(following(cell)))
        assert (len(cell.records), "gap") == (stopped.value.offset, stopped.value.code)


def test_the_record_that_counts(cell: CoreDriver) -> None:
    """The current token, the next seq and a newer source offset: effective."""
    fold = cell.replayed()
    assert "effective" == fold.apply(len(cell.records), orjson.dumps(following(cell)))[0]
    assert len(cell.records) == fold.head.seq
    assert 0 == fold.head.void


VOID: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "token of another claim": lambda _: {"token": "f" * 32},
    "seq that was": lambda record: {"seq": record["seq"] - 1},
    "seq that is not next": lambda record: {"seq": record["seq"] + 1},
    "source decided before": lambda record: {"source": ["requests", record["source"][1] - 1]},
    "source of the first": lambda _: {"source": ["requests", 0]},
}


@pytest.mark.parametrize("kind", VOID)
def test_a_void_record_has_no_effect(cell: CoreDriver, kind: str) -> None:
    """Void: counted and passed, no event of it applied, even one that could not be (L6)."""
    record = following(cell, events=[{"type": "lease.ended", "lease": "none"}])
    fold = cell.replayed()
    at = len(cell.records)
    assert "void" == fold.apply(at, orjson.dumps(record | VOID[kind](record)))[0]
    assert cell.digest() == digest(fold.cells)
    assert (at + 1, 1, at - 1) == (fold.head.offset, fold.head.void, fold.head.seq)
    assert "effective" == fold.apply(at + 1, orjson.dumps(following(cell)))[0]


def test_a_claim_voids_what_the_one_before_still_writes(cell: CoreDriver) -> None:
    """After a claim only its token counts; the seq goes on where it stood."""
    fold = cell.replayed()
    at = len(cell.records)
    claim = orjson.loads(cell.records[0]) | {"token": "b" * 32}
    assert "claim" == fold.apply(at, orjson.dumps(claim))[0]
    assert "void" == fold.apply(at + 1, orjson.dumps(following(cell)))[0]
    mine = orjson.dumps(following(cell, token="b" * 32))
    assert "effective" == fold.apply(at + 2, mine)[0]


DAMAGE: dict[str, tuple[bytes | None, str]] = {
    "tombstone": (None, "empty_value"),
    "empty": (b"", "empty_value"),
    "half a record": (b'{"v":1,"kind":"deci', "not_json"),
    "trailing rubbish": (b'{"v":1,"kind":"claim"}TRAILER', "not_json"),
    "a list": (b"[1]", "not_an_object"),
    "newer version": (b'{"v":2,"kind":"claim"}', "unknown_version"),
    "no version": (b'{"kind":"claim"}', "unknown_version"),
    "version as text": (b'{"v":"1","kind":"claim"}', "unknown_version"),
    "unknown kind": (b'{"v":1,"kind":"note"}', "unknown_type"),
    "no kind": (b'{"v":1}', "bad_field"),
    "claim without token": (b'{"v":1,"kind":"claim"}', "bad_field"),
    "decision without source": (b'{"v":1,"kind":"decision"}', "bad_field"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_what_cannot_be_read_stops_the_reader(cell: CoreDriver, kind: str) -> None:
    """Nothing is skipped: the offset and a stable code are named (L7, C51)."""
    value, code = DAMAGE[kind]
    with pytest.raises(LogDamaged) as stopped:
        cell.replayed().apply(len(cell.records), value)
    assert (len(cell.records), code) == (stopped.value.offset, stopped.value.code)
    assert str(len(cell.records)) in str(stopped.value)


def _grant(**more: Any) -> dict[str, Any]:
    lease = {"type": "lease.granted", "lease": "x/1", "request": "x", "attempt": 1}
    parts = [{"node": "n1", "units": ["GPU-a"]}]
    return {**lease, "charge_milli": 1_000, "parts": parts, "why": {}, **more}


RECEIVED: dict[str, Any] = {
    "type": "request.received",
    "request": "x",
    "tenant": "t",
    "queue": "q",
    "task": "x",
    "task_type": "training",
    "need": {"mode": "whole"},
}
FIRST = "/team/a#r1"
END = {"type": "lease.ended", "lease": f"{FIRST}/1", "reason": "completed", "held_us": 1}
BROKEN: dict[str, tuple[list[dict[str, Any]], str]] = {
    "held twice": ([RECEIVED, _grant()], "A1"),
    "more than the quota": ([RECEIVED, _grant(charge_milli=10_000_000)], "Q1"),
    "share of a full device": (
        [RECEIVED | {"need": {"mode": "share", "gpu_milli": 1}}, _grant(charge_milli=1)],
        "A9",
    ),
    "received twice": ([RECEIVED, RECEIVED], "L1"),
    "rejected while it runs": (
        [{"type": "request.rejected", "request": FIRST, "tenant": "t", "code": "x", "numbers": {}}],
        "A5",
    ),
    "ended while its lease lasts": (
        [{"type": "request.ended", "request": FIRST, "how": "completed"}],
        "A5",
    ),
    "metered wrongly": ([END], "M3"),
    "granted twice": ([_grant(request=FIRST)], "A4"),
    "no such edge": (
        [{"type": "node.changed", "node": "n1", "state": "lost", "reason": ""}],
        "A4",
    ),
    "draining node": (
        [
            {"type": "node.changed", "node": "n1", "state": "draining", "reason": ""},
            RECEIVED,
            _grant(),
        ],
        "A6",
    ),
    "unknown device": ([RECEIVED, _grant(parts=[{"node": "n1", "units": ["GPU-z"]}])], "bad_field"),
    "unknown event": ([{"type": "wish.granted"}], "bad_field"),
    "missing field": ([{"type": "lease.ended"}], "bad_field"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_rule_stops_the_reader(cell: CoreDriver, kind: str) -> None:
    """Rules are checked in the fold again, whoever wrote the record: offset and invariant id."""
    events, code = BROKEN[kind]
    with pytest.raises(LogDamaged) as stopped:
        cell.replayed().apply(len(cell.records), orjson.dumps(following(cell, events=events)))
    assert (len(cell.records), code) == (stopped.value.offset, stopped.value.code)


def test_the_clock_of_the_log_does_not_go_back(cell: CoreDriver) -> None:
    """A decision earlier than the one before it is damage (L5)."""
    record = following(cell, time_us=cell.state.now_us - 1)
    with pytest.raises(LogDamaged) as stopped:
        cell.replayed().apply(len(cell.records), orjson.dumps(record))
    assert "L5" == stopped.value.code


def test_cells_of_a_partition_keep_apart(cell: CoreDriver) -> None:
    """Two cells in one partition share its head and nothing else."""
    fold = cell.replayed()
    applied = {"type": "quota.applied", "tenant": "t", "nominal_gpu_milli": 5}
    events = [applied | {"author": "a", "reason": ""}]
    record = following(cell, cell="other", events=events, time_us=1)
    assert "effective" == fold.apply(len(cell.records), orjson.dumps(record))[0]
    assert 5 == fold.cells["other"].quotas["t"].limits["gpu"].nominal
    assert cell.digest() == digest({"c": fold.cells["c"]})


def test_an_empty_fold_starts_at_zero() -> None:
    """A log begins at offset 0, and without a claim no decision counts."""
    fold = Fold()
    assert (0, 0, "") == (fold.head.offset, fold.head.seq, fold.head.token)
    with pytest.raises(LogDamaged, match="gap"):
        fold.apply(1, b"{}")
