"""The archive's columns of events: what is in them, and null for what is not as expected."""

from __future__ import annotations

from typing import Any

import orjson

from ledger.archive.columns import table_of
from ledger.archive.event_columns import EVENT_COLUMNS, event_arrays
from ledger.log.port import Record


def columns(*events: object) -> dict[str, Any]:
    """Return the typed columns of one record with these events."""
    record = {"kind": "decision", "events": list(events), "input": {"type": "request.submit"}}
    value = orjson.dumps(record)
    row = table_of("gpuledger.events", [Record("gpuledger.events", 0, 0, 0, b"c", value)])
    found: dict[str, Any] = row.to_pylist()[0]
    return found


def test_a_lease_on_one_unit_has_it_by_name() -> None:
    """Most leases are on one unit of one node: no list is needed for them."""
    parts = [{"node": "n1", "units": ["GPU-a"]}]
    granted = {"type": "lease.granted", "lease": "l", "request": "r", "charge_milli": 250}
    row = columns({**granted, "parts": parts})
    assert row["granted"] == [
        {
            "n": 1, "lease": "l", "request": "r", "charge_milli": 250, "node": "n1",
            "unit": "GPU-a", "units": None, "unit_nodes": None,
        }
    ]  # fmt: skip


def test_a_gang_has_its_units_each_with_its_node() -> None:
    """Two nodes: neither is the lease's."""
    parts = [{"node": "n1", "units": ["GPU-a", "GPU-b"]}, {"node": "n2", "units": ["GPU-c"]}]
    row = columns({"type": "lease.granted", "lease": "l", "request": "r", "parts": parts})
    (granted,) = row["granted"]
    assert (granted["node"], granted["unit"]) == (None, None)
    assert granted["units"] == ["GPU-a", "GPU-b", "GPU-c"]
    assert granted["unit_nodes"] == ["n1", "n1", "n2"]


def test_each_step_is_in_its_own_column_and_the_others_are_null() -> None:
    """With the number of the event: the order of all events of a record is known."""
    row = columns(
        {"type": "request.received", "request": "r", "tenant": "t", "need": {"mode": "whole"}},
        {"type": "request.queued", "request": "r"},
        {"type": "part.ended", "lease": "l", "node": "n1", "how": "completed"},
        {"type": "lease.ended", "lease": "l", "held_us": 7},
        {"type": "order.issued", "kind": "clean", "order": "o", "lease": "l", "node": "n1",
         "units": ["GPU-a"]},
        {"type": "order.done", "order": "p"},
        {"type": "request.ended", "request": "q"},
    )  # fmt: skip
    assert {name: row[name] for name in EVENT_COLUMNS} == {
        "received": [
            {
                "n": 1, "request": "r", "tenant": "t", "mode": "whole", "milli": 1000,
                "delivery": None, "vgpu_most": None,
            }
        ],
        "granted": None,
        "stepped": [{"n": 3, "type": "part.ended", "lease": "l", "node": "n1"}],
        "ended": [{"n": 4, "lease": "l", "held_us": 7}],
        "to_clean": [
            {
                "n": 5, "order": "o", "lease": "l", "node": "n1", "unit": "GPU-a", "units": None,
                "unit_nodes": None,
            }
        ],
        "answered": [{"n": 6, "type": "order.done", "order": "p"}],
        "finished": [{"n": 7, "request": "q"}],
        "unusual": None,
    }  # fmt: skip


def test_two_of_a_kind_are_in_their_order() -> None:
    """Also over records, of which the one between them has none."""
    ends = [{"type": "lease.ended", "lease": name, "held_us": 1} for name in "abc"]
    found = event_arrays([ends[:2], [], None, ends[2:]])
    lists = dict(zip(EVENT_COLUMNS, found, strict=True))["ended"].to_pylist()
    assert [None if one is None else [(x["n"], x["lease"]) for x in one] for one in lists] == [
        [(1, "a"), (2, "b")], None, None, [(1, "c")],
    ]  # fmt: skip


def test_what_happens_to_supply_is_in_a_column_of_its_own() -> None:
    """With the number of the event, so that its order among the others is known."""
    steps = [{"do": "destroy", "start": 4}, {"do": "create", "start": 0}]
    order = {"type": "order.issued", "kind": "partition", "units": ["GPU-a"], "steps": steps}
    row = columns({"type": "request.queued", "request": "r"}, order)
    assert [(one["n"], one["type"], one["destroys"]) for one in row["unusual"]] == [
        (2, "order.issued", [4])
    ]
    assert row["to_clean"] is None


def test_an_order_that_failed_is_an_answer_and_no_usual_step() -> None:
    """Who looks at cleaning and who looks at supply both find it."""
    row = columns({"type": "order.failed", "order": "o"})
    assert [one["type"] for one in row["answered"]] == ["order.failed"]
    assert [one["type"] for one in row["unusual"]] == ["order.failed"]


def test_what_is_not_as_expected_is_null() -> None:
    """No event is left out: the others keep their numbers."""
    row = columns(
        7, {"type": 1, "lease": ["l"]}, {"type": "lease.granted", "parts": [{"units": "GPU-a"}]},
        {"type": "request.received", "need": {"mode": 2}}, {"type": "request.received", "need": 3},
        {"type": "lease.ended", "lease": ["l"], "held_us": 2**64 - 1},
        {"type": "lease.ended", "held_us": True, "lease": "l"},
    )  # fmt: skip
    assert [(one["n"], one["lease"], one["held_us"]) for one in row["ended"]] == [
        (6, None, None), (7, "l", None),
    ]  # fmt: skip
    assert [(one["n"], one["mode"], one["milli"]) for one in row["received"]] == [
        (4, None, 1000), (5, None, None),
    ]  # fmt: skip
    assert row["granted"][0]["unit"] is None
    assert [one["n"] for one in row["unusual"]] == [2]
