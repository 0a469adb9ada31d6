"""The archive's columns of events: what is in them, and null for what is not as expected."""

from __future__ import annotations

from typing import Any

import orjson

from ledger.archive.columns import table_of
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
    row = columns({"type": "lease.granted", "lease": "l", "request": "r", "parts": parts})
    assert (row["event_type"], row["event_lease"]) == (["lease.granted"], ["l"])
    assert (row["event_node"], row["event_unit"]) == (["n1"], ["GPU-a"])
    assert (row["event_units"], row["unusual"]) == ([None], None)


def test_a_gang_has_its_units_each_with_its_node() -> None:
    """Two nodes: neither is the lease's."""
    parts = [{"node": "n1", "units": ["GPU-a", "GPU-b"]}, {"node": "n2", "units": ["GPU-c"]}]
    row = columns({"type": "lease.granted", "lease": "l", "request": "r", "parts": parts})
    assert (row["event_node"], row["event_unit"]) == ([None], [None])
    assert row["event_units"] == [["GPU-a", "GPU-b", "GPU-c"]]
    assert row["event_unit_nodes"] == [["n1", "n1", "n2"]]


def test_what_happens_to_supply_is_in_a_column_of_its_own() -> None:
    """With the number of the event, so that its order among the others is known."""
    steps = [{"do": "destroy", "start": 4}, {"do": "create", "start": 0}]
    order = {"type": "order.issued", "kind": "partition", "units": ["GPU-a"], "steps": steps}
    row = columns({"type": "request.queued", "request": "r"}, order)
    assert [(one["n"], one["type"], one["destroys"]) for one in row["unusual"]] == [
        (2, "order.issued", [4])
    ]
    assert row["event_kind"] == [None, "partition"]


def test_what_is_not_as_expected_is_null() -> None:
    """No event is left out: the others keep their places."""
    parts: list[Any] = [{"node": 1, "units": "GPU-a"}]
    row = columns(
        7, {"type": 1, "lease": ["l"], "held_us": True}, {"parts": parts}, {"need": {"mode": 2}},
        {"type": "lease.ended", "held_us": 2**64 - 1, "parts": 3},
    )  # fmt: skip
    assert row["event_type"] == [None, None, None, None, "lease.ended"]
    assert row["event_lease"] == row["event_held_us"] == row["event_unit"] == [None] * 5
    assert row["event_need_mode"] == [None] * 5
    assert row["event_need_milli"] == [None, None, None, 1000, None]
