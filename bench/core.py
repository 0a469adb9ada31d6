"""``bench core``: decisions a second of the pure core, in one process."""

from __future__ import annotations

import io
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.workload import Cell, peak_rss_mib
from ledger.collector import relax

__all__ = ["run", "run_against", "run_scaled"]

#: The same work, as any version of this repository can do it; prints the CPU seconds of the churn.
_WORK = """
import sys, time
from bench.workload import Cell
from ledger.collector import relax
nodes, gpus, requests, seed = map(int, sys.argv[1:])
relax()
cell = Cell(seed)
cell.claim()
cell.build(nodes, gpus)
began = time.process_time()
decisions = cell.churn(requests, min(nodes * gpus // 2, requests // 2))
print(decisions, time.process_time() - began)
"""


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


def _cpu_rate(tree: Path, nodes: int, gpus: int, requests: int, seed: int) -> float:
    """Return decisions a second of CPU time, of the code in a tree, in a process of its own."""
    numbers = [str(one) for one in (nodes, gpus, requests, seed)]
    done = subprocess.run(
        [sys.executable, "-P", "-c", _WORK, *numbers],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        check=True,
    )
    decisions, seconds = done.stdout.split()
    return int(decisions) / float(seconds)


def run_against(
    ref: str, nodes: int, gpus_per_node: int, requests: int, seed: int, rounds: int = 5
) -> dict[str, Any]:
    """Run this code and that of another commit in turn, and give the ratio of their rates.

    CPU time is what is compared, the median of the rounds: two processes on one
    machine do not get the same share of its clock.
    """
    here = Path(__file__).resolve().parent.parent
    archive = subprocess.run(["git", "archive", ref], cwd=here, capture_output=True, check=True)  # noqa: S607
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
            files.extractall(folder, filter="data")
        rates: dict[str, list[float]] = {"now": [], "then": []}
        for _ in range(rounds):
            for name, tree in (("then", Path(folder)), ("now", here)):
                rates[name].append(_cpu_rate(tree, nodes, gpus_per_node, requests, seed))
    now, then = statistics.median(rates["now"]), statistics.median(rates["then"])
    return {
        "bench": "core",
        "workload": "as bench core, in turn with another commit; CPU time, median",
        "against": ref,
        "nodes": nodes,
        "gpus_per_node": gpus_per_node,
        "requests": requests,
        "rounds": rounds,
        "seed": seed,
        "decisions_per_cpu_s": round(now),
        "against_decisions_per_cpu_s": round(then),
        "ratio": round(now / then, 3),
    }


def run_scaled(gpus: tuple[int, int], requests: int, seed: int, rounds: int = 3) -> dict[str, Any]:
    """Give what a decision costs on a large cell as a multiple of what it costs on a small one."""
    here = Path(__file__).resolve().parent.parent
    rates: dict[int, list[float]] = {count: [] for count in gpus}
    for _ in range(rounds):
        for count in gpus:
            rates[count].append(_cpu_rate(here, count // 8, 8, requests, seed))
    small, large = (statistics.median(rates[count]) for count in gpus)
    return {
        "bench": "core",
        "workload": "as bench core, a small cell in turn with a large one; CPU time, median",
        "gpus": list(gpus),
        "requests": requests,
        "rounds": rounds,
        "seed": seed,
        "small_decisions_per_cpu_s": round(small),
        "large_decisions_per_cpu_s": round(large),
        "cost_ratio": round(small / large, 3),
    }
