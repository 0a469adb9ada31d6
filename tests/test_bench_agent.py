"""The agent's bench weighs an agent that really looks, samples and writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.agent import weigh
from ledger.log.sqlite import SqliteLog

if TYPE_CHECKING:
    from pathlib import Path


async def test_the_bench_weighs_an_agent_at_work(tmp_path: Path) -> None:
    """Both processes have taken time, and the node has told of its slices."""
    row = await weigh(tmp_path, 2, 1.0, mig=True, use=True)
    assert ("agent", 2, True, True) == tuple(row[name] for name in ("bench", "gpus", "mig", "use"))
    assert row["agent_ms_per_s"] > 0 < row["nvml_ms_per_s"]
    assert 0 < row["stand_in_ms_per_s"] < row["nvml_ms_per_s"]
    assert 0 < row["own_pct"] < row["core_pct"]
    async with SqliteLog(tmp_path / "log.db") as log:
        told = await log.read("gpuledger.observations", 0, 0)
    assert b"node.inventory" in dict(told[0].headers)["ce_type"]
    assert 14 == (told[0].value or b"").count(b'"mig_uuid"')
