"""``bench fill`` and ``bench reclaim``: a site filled at once, and taken back for who is entitled.

Published beside them: KAI's scale suite fills 4,000 one-GPU jobs on 500 nodes in 397.8 s
(10.1/s), reclaims one GPU in 13.9 s on average, and half of 1,000 nodes in process in
76.3 s with 7.87 GiB (its docs/scale-tests and designs/vectorizing-resources). Those
include its API server; ours is in process, inputs and record bytes included.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bench.site import Site
from bench.workload import peak_rss_mib
from ledger.core.invariants import check

if TYPE_CHECKING:
    from ledger.core.decide import Decision

__all__ = ["fill", "reclaim"]


@dataclass
class _Timed(Site):
    """A site that remembers how long each decision took, in seconds."""

    took_s: list[float] = field(default_factory=list)

    def feed(self, topic: str, name: str, source: str, event_id: str, data: bytes) -> Decision:
        began = time.perf_counter()
        made = super().feed(topic, name, source, event_id, data)
        self.took_s.append(time.perf_counter() - began)
        return made


def _site(nodes: int, **queue: Any) -> _Timed:  # noqa: ANN401 - a record's fields
    site = _Timed()
    site.claim()
    site.operator("pool.apply", pool="main")
    site.operator("queue.apply", queue="train", **queue)
    site.nodes(nodes, 8)
    return site


def _ask(tenant: str, count: int = 1, nodes: int = 1) -> dict[str, Any]:
    ask = {"mode": "whole", "count": count, "nodes": nodes}
    return {"tenant": tenant, "queue": "train", "task": {"id": "task"}, "ask": ask}


def fill(nodes: int = 500) -> dict[str, Any]:
    """Submit as many one-GPU requests as there are GPUs; all are granted."""
    site = _site(nodes)
    site.operator("quota.apply", tenant="t", nominal_gpu_milli=nodes * 8_000)
    began = time.perf_counter()
    for at in range(nodes * 8):
        site.submit(f"r{at}", _ask("t"))
    seconds = time.perf_counter() - began
    if len(site.state.leases) != nodes * 8:
        raise RuntimeError(f"{len(site.state.leases)} of {nodes * 8} were granted")
    return {
        "bench": "fill",
        "workload": f"{nodes * 8} one-GPU requests on {nodes} nodes x 8",
        "requests": nodes * 8,
        "seconds": round(seconds, 3),
        "decisions_per_s": round(nodes * 8 / seconds),
        "published_seconds": 397.8 if nodes == 500 else None,
        "published_by": "KAI, end to end on KWOK",
        "peak_rss_mib": peak_rss_mib(),
    }


def reclaim(case: str, nodes: int = 1000) -> dict[str, Any]:
    """Fill the site by one tenant's one-GPU jobs, half of it borrowed; then the lender asks.

    ``gang``: for its half, as one gang of whole nodes; ``one``: for one GPU, nine times.
    ``seconds`` is the decision that names the victims and keeps the place (the median;
    the first, in a process that has never evicted, beside it); ``granted_s`` is until
    the lease is granted, victims stopped and cleaned.
    """
    site = _site(nodes, reclaim="any")
    site.operator("quota.apply", tenant="org", nominal_gpu_milli=nodes * 8_000)
    for tenant in "tu":
        site.operator("quota.apply", tenant=tenant, parent="org", nominal_gpu_milli=nodes * 4_000)
    for at in range(nodes * 8):
        site.submit(f"r{at}", _ask("t"))
    plain = _ask("u", 8, nodes // 2) if case == "gang" else _ask("u")
    decided, granted = [], []
    for at in range(1 if case == "gang" else 9):
        site.took_s.clear()
        began = time.perf_counter()
        code = site.submit(f"entitled-{at}", plain).code
        granted.append(time.perf_counter() - began)
        decided.append(site.took_s[0])
        request = site.state.requests[f"/bench#entitled-{at}"]
        if (code, request.state) != ("reserved", "granted"):
            raise RuntimeError(f"the entitled request was {code} and is {request.state}")
    return {
        "bench": "reclaim",
        "workload": f"{nodes} nodes x 8 full of one tenant's one-GPU jobs, half borrowed",
        "case": case,
        "victims": site.evictions,
        "seconds": round(statistics.median(decided), 4),
        "first_s": round(decided[0], 4),
        "granted_s": round(statistics.median(granted), 3),
        "published_seconds": 76.3 if case == "gang" else 13.9,
        "published_by": "KAI, in process at 1,000 nodes" if case == "gang" else "KAI, end to end",
        "violations": len(check(site.state)),
        "peak_rss_mib": peak_rss_mib(),
    }
