"""``bench helios``: a real month of two virtual clusters, replayed under their quotas.

1,867 jobs of Helios Venus (September 2020; CC-BY-4.0, Hu et al., SC '21; shipped in
examples/helios), on 20 and 2 nodes of 8 GPUs. Each virtual cluster is a tenant with
its own pool and a quota of its GPUs. Every job goes through `decide`; nodes clean at
once. Job completion time (JCT) is from submission to end.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

from bench.site import Site
from bench.workload import peak_rss_mib
from collectors.simulation.traces import Job, read_helios
from ledger.core.invariants import check

__all__ = ["POLICIES", "run"]

TRACE = Path(__file__).resolve().parent.parent / "examples" / "helios" / "helios_venus_2vc_sept.csv"
POOLS = {"vcvGl": 20, "vcvlY": 2}

#: Ours -> how the queue is ordered, whether a job's real run time is stated as its longest,
#: and the mean JCT measured for this project on the same slice with a plain simulator.
POLICIES: dict[str, tuple[str, bool, int | None]] = {
    "fifo": ("strict", False, 16_534),
    "back-fill": ("best-effort", False, 5_902),
    "back-fill-planned": ("backfill", True, None),
}


def run(policy: str, trace: Path | None = None) -> dict[str, Any]:
    """Replay the trace under one policy."""
    ordering, stated, known = POLICIES[policy]
    jobs = read_helios(trace or TRACE, queue="train")
    site = Site()
    site.claim()
    site.operator("queue.apply", queue="train", ordering=ordering)
    first = 0
    for pool, nodes in POOLS.items():
        site.operator("pool.apply", pool=pool)
        site.operator("quota.apply", tenant=pool, nominal_gpu_milli=nodes * 8_000)
        site.nodes(nodes, 8, pool, first)
        first += nodes
    began = time.perf_counter()
    begin_us = site.now_us
    violations = _replay(site, jobs, begin_us, stated=stated)
    seconds = time.perf_counter() - began
    submitted = {f"/bench#{job.id}": begin_us + job.at_us for job in jobs}
    jct_s = [(site.ended_us[name] - at_us) / 1e6 for name, at_us in submitted.items()]
    wait_s = [(site.granted_us[name] - at_us) / 1e6 for name, at_us in submitted.items()]
    return {
        "bench": "helios",
        "workload": "Helios Venus, 2 virtual clusters, 1,867 jobs",
        "policy": policy,
        "jobs": len(jobs),
        "mean_jct_s": round(statistics.mean(jct_s)),
        "mean_wait_s": round(statistics.mean(wait_s)),
        "waited": sum(one > 1 for one in wait_s),
        "known_mean_jct_s": known,
        "violations": violations,
        "decisions": site.decisions,
        "seconds": round(seconds, 2),
        "peak_rss_mib": peak_rss_mib(),
    }


def _replay(site: Site, jobs: list[Job], begin_us: int, *, stated: bool) -> int:
    """Submit and end every job; return how many invariants and quotas were found broken."""
    violations = 0
    for at, job in enumerate(jobs):
        site.until(begin_us + job.at_us)
        plain = dict(job.submission)
        if stated:
            plain["max_run_s"] = job.ending.run_us // 1_000_000 + 60
        site.submit(job.id, plain, job.ending.run_us)
        violations += _over_quota(site)
        if at % 100 == 0:
            violations += len(check(site.state))
    site.until(None)
    return violations + len(check(site.state))


def _over_quota(site: Site) -> int:
    """Add up what each tenant's leases hold, and hold it against its pool's size."""
    held = dict.fromkeys(POOLS, 0)
    for lease in site.state.leases.values():
        held[lease.tenant] += sum(len(part.units) for part in lease.parts.values())
    return sum(held[tenant] > nodes * 8 for tenant, nodes in POOLS.items())
