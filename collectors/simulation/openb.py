"""The openb lists (Alibaba, cluster trace v2023) as a simulation: one pool, best effort."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collectors.light.node import Timing
from collectors.simulation.cluster import Scenario
from collectors.simulation.scenario import policy_acts
from collectors.simulation.traces import read_openb_nodes, read_openb_pods
from schemas.requests import PoolApply, QueueApply, QuotaApply

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["openb_scenario"]

_POOL = "openb"
_QUEUE = "pods"
_WHOLE_MILLI = 1000

#: The trace names no date; its seconds count from here.
_START_US = 1_672_531_200_000_000  # 2023-01-01T00:00:00Z


def openb_scenario(nodes: Path, pods: Path, *, jobs: int | None = None) -> Scenario:
    """Return the lists as a simulation; with ``jobs``, only so many pods. Raise `BadFile`.

    Every tenant (a quality of service) may use the whole pool: the trace knows no quotas.
    """
    specs = read_openb_nodes(nodes, pool=_POOL)
    found = read_openb_pods(pods, pool=_POOL, queue=_QUEUE)[:jobs]
    gpus = sum(len(spec.devices) for spec in specs)
    author, reason = "operator", "as in the trace"
    tenants = sorted({job.submission["tenant"] for job in found})
    nominal = gpus * _WHOLE_MILLI
    acts = policy_acts(
        [
            PoolApply(author=author, reason=reason, pool=_POOL),
            QueueApply(author=author, reason=reason, queue=_QUEUE),
            *(
                QuotaApply(author=author, reason=reason, tenant=tenant, nominal_gpu_milli=nominal)
                for tenant in tenants
            ),
        ]
    )
    # What nodes have does not change in this run, so once is enough.
    timing = Timing(inventory_every_us=1_000 * 86_400_000_000)
    return Scenario("openb", _START_US, specs, found, acts, timing=timing)
