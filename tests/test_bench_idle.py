"""The idle bench weighs a worker that really serves, with the bell and without."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bench.idle import weigh
from ledger.log.sqlite import SqliteLog

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("bell", [True, False])
async def test_the_bench_weighs_a_worker_that_serves(tmp_path: Path, *, bell: bool) -> None:
    """It has claimed its partitions, and appends have reached who waits."""
    row = await weigh(tmp_path, 0.5, 3, bell=bell)
    assert ("idle", bell) == (row["bench"], row["bell"])
    assert row["core_pct"] > 0 < row["append_to_read_p50_ms"]
    # Without the bell it looks 200 times a second, however loaded the machine is: at least some.
    assert bell or row["wakes_per_s"] > 0
    async with SqliteLog(tmp_path / "log.sqlite") as log:
        assert await log.read("gpuledger.events", 0, 0), "nobody has claimed"
