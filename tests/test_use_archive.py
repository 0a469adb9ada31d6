"""Records of use in the archive: columns that a query reads, and null where nothing is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import duckdb
import orjson

from ledger.archive.check import check_archive
from ledger.archive.follow import Follower, Options
from ledger.log.memory import MemoryLog
from ledger.log.port import Entry
from ledger.log.topics import apply
from ledger.wire import input_entry

if TYPE_CHECKING:
    from pathlib import Path

USAGE = "gpuledger.usage"
SLICE = {"gi": 2, "mig_uuids": ["MIG-1"], "busy_permille": 250, "measured_us": 10_000_000}
LEASE = {"lease": "/a#j/1", "unit": "GPU-a", "busy_permille": 0, "measured_us": 5_000_000}
RECORD = {
    "node": "n1",
    "incarnation": "b1",
    "window_us": 10_000_000,
    "devices": [
        {"uuid": "GPU-a", "samples": 10, "busy_permille": 0, "measured_us": 5_000_000,
         "power_mw": 60_000, "processes": [{"pid": 7, "lease": "/a#j/1", "memory_mib": 9}]},
        {"uuid": "GPU-b", "samples": 10, "slices": [SLICE, SLICE | {"gi": 3, "mig_uuids": []}],
         "missing": {"utilization": "not-supported"}},
    ],
    "leases": [LEASE],
}  # fmt: skip


async def test_use_is_asked_by_columns(tmp_path: Path) -> None:
    """Devices, slices, leases and processes as rows; what was not measured is null, not 0."""
    log = MemoryLog()
    await apply(log, "gpuledger", 1)
    entry = input_entry("n1", "node.usage", "/nodes/n1/agent", "b1.1-use-1", RECORD)
    await log.append(USAGE, None, [entry, Entry(b"n1", b"{"), Entry(b"n1", b'{"devices":[7]}')])
    await Follower(log, "gpuledger", tmp_path, Options(("events", "usage"))).once()
    assert () == check_archive(tmp_path).wrong

    files = f"'{tmp_path}/{USAGE}/**/*.parquet'"

    def asked(what: str, more: str = "") -> list[Any]:
        with duckdb.connect() as database:
            return database.execute(f"SELECT {what} FROM {files} {more}").fetchall()

    units = asked("unnest(use_units)")
    wanted = ("device", "gi", "mig_uuid", "busy_permille", "measured_us", "power_mw")
    assert [
        ("GPU-a", None, None, 0, 5_000_000, 60_000),
        ("GPU-b", None, None, None, None, None),
        ("GPU-b", 2, "MIG-1", 250, 10_000_000, None),
        ("GPU-b", 3, None, 250, 10_000_000, None),
    ] == [tuple(one[name] for name in wanted) for (one,) in units if one["device"]]
    assert [(LEASE,)] == asked("unnest(use_leases)")
    more = "WHERE use_node IS NOT NULL"
    assert [("n1", 10_000_000)] == asked("use_node, use_window_us", more)
    assert [(7,)] == asked("unnest(use_processes).pid")
    assert orjson.loads(entry.value or b"") == RECORD, "the bytes are kept as they came"
