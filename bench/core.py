"""``bench core``: decisions a second of the pure core, in one process."""

from __future__ import annotations

import time
from typing import Any

from bench.workload import Cell, peak_rss_mib
from ledger.collector import relax

__all__ = ["run"]


def run(nodes: int, gpus_per_node: int, requests: int, seed: int) -> dict[str, Any]:
    """Time requests submitted, granted, released and cleaned, record bytes included.

    Half of the devices are held all the time, so that placement has choices.
    The time covers reading and validating each input's JSON, `decide`, and the
    bytes of the record; it does not cover the cell's set-up.
    """
    relax()
    cell = Cell(seed)
    cell.claim()
    cell.build(nodes, gpus_per_node)
    held = min(nodes * gpus_per_node // 2, requests // 2)
    began = time.perf_counter()
    decisions = cell.churn(requests, held)
    seconds = time.perf_counter() - began
    return {
        "bench": "core",
        "workload": "one-GPU requests: submitted and granted, released, proved clean",
        "nodes": nodes,
        "gpus_per_node": gpus_per_node,
        "requests": requests,
        "held": held,
        "seed": seed,
        "decisions": decisions,
        "seconds": round(seconds, 3),
        "decisions_per_s": round(decisions / seconds),
        "peak_rss_mib": peak_rss_mib(),
    }
