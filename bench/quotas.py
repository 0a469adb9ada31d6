"""``bench quota``: 50,000 requests of 1,000 quotas that borrow from each other.

The shape of Kueue's large-scale performance test (its generator: 10 cohorts of 100
queues, nominal 20, borrowing limit 100; of 50 requests a queue 35 ask 1, 10 ask 5
and 5 ask 20, priorities 50, 100 and 200, tasks of 200, 500 and 1,000 ms, arriving
every 100, 500 and 1,200 ms; reclaim from any, preemption of lower priorities in the
same queue). There a request is admitted by quota alone; here it gets its devices
too. Published: 1,179.4 s for it, 42.4 requests a second, API server included.
"""

from __future__ import annotations

import time
from typing import Any

from bench.site import Site
from bench.workload import peak_rss_mib
from ledger.core.invariants import check

__all__ = ["run"]

#: requests, GPUs (count x nodes), priority, run time ms, time between arrivals ms.
CLASSES = {
    "small": (35, (1, 1), 50, 200, 100),
    "medium": (10, (5, 1), 100, 500, 500),
    "large": (5, (4, 5), 200, 1_000, 1_200),
}
NOMINAL, BORROWING = 20, 100


def run(cohorts: int = 10, queues: int = 100, every: int = 5_000) -> dict[str, Any]:
    """Submit everything, let it run, and check every invariant of quotas on the way and after."""
    site = _site(cohorts, queues)
    arrivals = sorted(
        (number * gap_ms * 1000, cohort, queue, name, number)
        for cohort in range(cohorts)
        for queue in range(queues)
        for name, (count, _, _, _, gap_ms) in CLASSES.items()
        for number in range(count)
    )
    begin_us = site.now_us
    violations = 0
    checking = 0.0
    began = time.perf_counter()
    for at, (at_us, cohort, queue, name, number) in enumerate(arrivals):
        site.until(begin_us + at_us)
        tenant = f"q{cohort}-{queue}"
        site.submit(f"{tenant}-{name}-{number}", _plain(tenant, name), CLASSES[name][3] * 1000)
        if at % every == 0:
            pause = time.perf_counter()
            violations += len(check(site.state))
            checking += time.perf_counter() - pause
    site.until(None)
    seconds = time.perf_counter() - began - checking
    violations += len(check(site.state))
    if len(site.ended_us) != len(arrivals):
        raise RuntimeError(f"{len(site.ended_us)} of {len(arrivals)} requests came to their end")
    return {
        "bench": "quota",
        "workload": "Kueue's large-scale generator shape, devices included",
        "requests": len(arrivals),
        "queues": cohorts * queues,
        "cohorts": cohorts,
        "decisions": site.decisions,
        "seconds": round(seconds, 2),
        "decisions_per_s": round(site.decisions / seconds),
        "requests_per_s": round(len(arrivals) / seconds),
        "evictions": site.evictions,
        "violations": violations,
        "published_seconds": 1_179.4 if (cohorts, queues) == (10, 100) else None,
        "published_requests_per_s": 42.4,
        "published_by": "Kueue, envtest",
        "peak_rss_mib": peak_rss_mib(),
    }


def _plain(tenant: str, name: str) -> dict[str, Any]:
    _, (count, nodes), priority, _, _ = CLASSES[name]
    return {
        "tenant": tenant,
        "queue": "work",
        "task": {"id": name},
        "ask": {"mode": "whole", "count": count, "nodes": nodes},
        "priority": priority,
        "preemptible": True,
    }


def _site(cohorts: int, queues: int) -> Site:
    site = Site()
    site.claim()
    site.operator("pool.apply", pool="main")
    site.operator("queue.apply", queue="work", preemption="same-tenant", reclaim="any")
    milli = NOMINAL * 1000
    for cohort in range(cohorts):
        site.operator("quota.apply", tenant=f"c{cohort}", nominal_gpu_milli=queues * milli)
        for queue in range(queues):
            site.operator(
                "quota.apply",
                tenant=f"q{cohort}-{queue}",
                parent=f"c{cohort}",
                nominal_gpu_milli=milli,
                borrowing_gpu_milli=BORROWING * 1000,
            )
    site.nodes(-(-cohorts * queues * NOMINAL // 8), 8)
    return site
