"""The scripted run of a proof of concept: three hours of a small site in which everything happens.

Cards are shared, cut and leased whole; requests are refused, wait, expire, are withdrawn and
sent twice; a node dies, another is cut off, cards break and go away, one is not proved clean;
a quota is raised by two people; and a worker that was frozen wakes up after another has
taken over. The ledger is the real one, as in the demonstration; only time is made up. What it
proves is told by ``gpuledger report acceptance``, from the log alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from collectors.fleet.description import Fleet, device_uuid
from collectors.fleet.fault_plan import FaultPlan
from collectors.light.node import Timing
from collectors.simulation.clock import VirtualClock
from collectors.simulation.cluster import Act, Cluster, Scenario, job_source
from collectors.simulation.demo import DemoOptions, make_room
from collectors.simulation.log import SimulationLog
from collectors.simulation.scenario import ExtraRequests, policy_acts
from ledger.log.port import TopicState
from ledger.log.topics import declared
from ledger.shard import Fenced
from schemas.requests import PoolApply, QueueApply, QuotaApply

if TYPE_CHECKING:
    from typing import TextIO

    from collectors.simulation.cluster import Loop
    from collectors.simulation.demo import MakeLoop
    from collectors.simulation.traces import Job

__all__ = ["DEFAULT_PATH", "acceptance_scenario", "run_acceptance"]

#: Where the ledger of the run is left.
DEFAULT_PATH = Path("acceptance-ledger") / "ledger.sqlite"

_US = 1_000_000
#: 2026-01-05T08:00:00Z, a Monday.
_START_US = 1_767_600_000 * _US
#: When the first worker is frozen and another takes over, in seconds.
_TAKEN_OVER_S = 4_500

_PROFILES = tuple(
    {"profile": name, "size": size, "compute_slices": compute, "memory_mib": mib, "starts": starts}
    for name, size, compute, mib, starts in (
        ("1g.10gb", 1, 1, 9_984, tuple(range(7))),
        ("2g.20gb", 2, 2, 20_096, (0, 2, 4)),
        ("3g.40gb", 4, 3, 40_448, (0, 4)),
        ("4g.40gb", 4, 4, 40_448, (0,)),
        ("7g.80gb", 8, 7, 81_559, (0,)),
    )
)
_H100: dict[str, Any] = {
    "model": "NVIDIA H100 80GB HBM3",
    "memory_mib": 81_559,
    "architecture": "hopper",
    "compute_slices": 7,
}
_HOST = {"cpu_milli": 96_000, "memory_mib": 1_031_168}

_FLEET = {
    "cell": "poc",
    "nodes": (
        {"name": "train-{}", "count": 3, "pool": "train", "devices": ({"count": 4, **_H100},)}
        | _HOST,
        {"name": "mig-1", "pool": "mig", "devices": ({"count": 2, **_H100, "profiles": _PROFILES},)}
        | _HOST,
        {"name": "share-1", "pool": "share", "devices": (
            {"count": 2, "model": "NVIDIA L40S", "memory_mib": 46_068, "architecture": "ada"},
        )} | _HOST,
    ),
}  # fmt: skip

_BY: dict[str, Any] = {"author": "olga", "reason": "proof of concept"}
_POLICIES = (
    PoolApply(pool="train", silent_grace_s=120, labels={"use": "training"}, **_BY),
    PoolApply(pool="mig", partition="relayout", allowed_modes=("mig",), **_BY),
    PoolApply(pool="share", allowed_modes=("share", "whole"), **_BY),
    QueueApply(queue="train", repair_hold_s=None, **_BY),
    QueueApply(queue="serve", ordering="strict", max_gpus=4, **_BY),
    QueueApply(queue="urgent", preemption="any-tenant", **_BY),
    QuotaApply(tenant="vision", nominal_gpu_milli=12_000, **_BY),
    QuotaApply(tenant="language", nominal_gpu_milli=8_000, **_BY),
    QuotaApply(tenant="search", nominal_gpu_milli=4_000, **_BY),
)

#: At second -> type, data: what people do in the course of the run.
_ACTS: tuple[tuple[int, str, dict[str, Any]], ...] = (
    (900, "quota.ask", {"tenant": "search", "nominal_gpu_milli": 6_000, "author": "lars",
                        "reason": "a second model goes live"}),
    (960, "quota.answer", {"ask": "/operators/demo#act-900", "approve": True, "author": "lars",
                           "reason": "his own ask: to be refused"}),
    (1_020, "quota.answer", {"ask": "/operators/demo#act-900", "approve": True, "author": "mira",
                             "reason": "within the budget"}),
    (1_080, "quota.ask", {"tenant": "language", "nominal_gpu_milli": 64_000, "author": "lars",
                          "reason": "everything"}),
    (1_140, "quota.answer", {"ask": "/operators/demo#act-1080", "approve": False,
                             "author": "mira", "reason": "there are not so many"}),
    (3_600, "device.partition", {"device": device_uuid("mig-1", 0), "layout": ["7g.80gb"],
                                 "author": "olga", "reason": "must not touch what is in use"}),
    (7_200, "device.clear", {"device": device_uuid("share-1", 0), "author": "olga",
                             "reason": "rebooted and looked at"}),
    (7_210, "device.clear", {"device": device_uuid("share-1", 1), "author": "olga",
                             "reason": "rebooted and looked at"}),
    (7_500, "node.set", {"node": "train-2", "mode": "draining", "author": "olga",
                         "reason": "new firmware"}),
    (9_000, "node.set", {"node": "train-2", "mode": "online", "author": "olga",
                         "reason": "firmware is on"}),
    (9_900, "request.cancel", {"request": f"{job_source('bert')}#full-4",
                               "reason": "not his own: to be refused"}),
    (10_800, "lease.reclaim", {"lease": f"{job_source('anna')}#long-1/1", "author": "olga",
                               "reason": "needed for a demonstration"}),
)  # fmt: skip

#: Kind, node, from second, for seconds, and more.
_FAULTS: tuple[dict[str, Any], ...] = (
    {"kind": "duplicate", "node": "mig-1", "at_s": 30, "for_s": 3_000},
    {"kind": "down", "node": "train-1", "at_s": 2_000, "for_s": 900},
    {"kind": "device", "node": "train-3", "device": 0, "health": "unhealthy", "at_s": 3_000,
     "for_s": 1_200, "reason": "XID 48: double bit ECC error"},
    {"kind": "device", "node": "train-3", "device": 1, "health": "gone", "at_s": 5_000,
     "for_s": 600, "reason": "XID 79: GPU has fallen off the bus"},
    {"kind": "clean-fails", "node": "share-1", "at_s": 5_400, "for_s": 900},
    {"kind": "silent", "node": "train-2", "at_s": 6_600, "for_s": 100},
    # Too short to be noticed, but at its limit the ledger looks at all nodes.
    {"kind": "silent", "node": "mig-1", "at_s": 6_610, "for_s": 40},
)  # fmt: skip


def _whole(count: int, nodes: int = 1) -> dict[str, Any]:
    return {"mode": "whole", "pool": "train", "count": count, "nodes": nodes}


def _mig(profile: str, count: int = 1) -> dict[str, Any]:
    return {"mode": "mig", "pool": "mig", "profile": profile, "count": count}


def _share(milli: int, memory_mib: int) -> dict[str, Any]:
    return {"mode": "share", "pool": "share", "gpu_milli": milli, "memory_mib": memory_mib}


#: User, tenant, queue, task, at second, run seconds, ask, and more of `ExtraRequests`.
_REQUESTS: tuple[tuple[str, str, str, str, int, int, dict[str, Any], dict[str, Any]], ...] = (
    ("anna", "vision", "train", "train-{}", 60, 1_500, _whole(2), {"count": 3, "every_s": 1_200}),
    ("anna", "vision", "train", "gang-{}", 120, 3_000, _whole(4, 2), {}),
    ("anna", "vision", "train", "everything-{}", 4_700, 900, _whole(4, 3), {}),
    ("anna", "vision", "train", "long-{}", 8_000, 14_000, _whole(1), {}),
    ("bert", "language", "train", "tune-{}", 300, 600, _whole(1), {"count": 5, "every_s": 700}),
    ("bert", "language", "train", "crash-{}", 400, 300, _whole(1), {"how": "failed"}),
    ("bert", "language", "train", "full-{}", 9_600, 900, _whole(4), {"count": 4}),
    ("bert", "language", "train", "too-many-{}", 500, 60, _whole(8, 2), {}),
    ("cleo", "search", "serve", "too-large-{}", 520, 60, _whole(8), {}),
    ("cleo", "search", "nowhere", "lost-{}", 540, 60, _whole(1), {}),
    ("cleo", "search", "serve", "small-{}", 600, 5_000, _mig("1g.10gb"), {"count": 4}),
    ("cleo", "search", "serve", "middle-{}", 660, 4_000, _mig("3g.40gb"), {"count": 2}),
    ("cleo", "search", "serve", "whole-slice-{}", 700, 600, _mig("7g.80gb"), {"max_wait_s": 300}),
    ("dora", "search", "serve", "notebook-{}", 800, 5_000, _share(300, 12_000), {"count": 6}),
    ("dora", "search", "serve", "again-{}", 7_800, 900, _share(500, 20_000), {"count": 2}),
    ("emil", "search", "urgent", "urgent-{}", 9_700, 600, _whole(4), {}),
)  # fmt: skip


def _jobs() -> list[Job]:
    found: list[Job] = []
    for user, tenant, queue, task, at_s, run_s, ask, more in _REQUESTS:
        group = ExtraRequests.model_validate(
            {"user": user, "tenant": tenant, "queue": queue, "task": task, "at_s": at_s,
             "run_s": run_s, "ask": ask, **more},
            strict=False,
        )  # fmt: skip
        found += group.jobs()
    for job in found:
        if job.submission["queue"] == "train":
            # What is interrupted goes back to its place, and who asks for more goes first.
            job.submission.update(retries=3, preemptible=True)
        elif job.submission["queue"] == "urgent":
            job.submission.update(priority=100)
    first = found[0]
    other = {**first.submission, "priority": 7}
    # The same once more, and the same id with other content.
    return [
        *found,
        type(first)(first.id, first.user, first.at_us + 10 * _US, first.submission, first.ending),
        type(first)(first.id, first.user, first.at_us + 20 * _US, other, first.ending),
    ]


def acceptance_scenario() -> Scenario:
    """Return everything that will happen."""
    fleet = Fleet.model_validate(_FLEET)
    acts = [*policy_acts(_POLICIES), *(
        Act(at_s * _US, f"act-{at_s}", kind, data) for at_s, kind, data in _ACTS
    )]  # fmt: skip
    return Scenario(
        fleet.cell,
        _START_US,
        fleet.specs(),
        _jobs(),
        acts,
        FaultPlan.model_validate({"fault": _FAULTS}),
        Timing(start_us=3 * _US, inventory_every_us=3_600 * _US),
    )


class _TakenOver:
    """A loop that is frozen at a time: another takes the ledger over, then the first wakes up.

    What the first still writes is void, and it ends as soon as it sees that.
    """

    def __init__(self, first: Loop, second: Loop, clock: VirtualClock, at_us: int) -> None:
        self._loop, self._second = first, second
        self._old: Loop | None = None
        self._clock = clock
        self._at_us = at_us
        self._fenced = False

    async def start(self) -> None:
        """Start the first."""
        await self._loop.start()

    async def step(self) -> int:
        """Let the one that holds the ledger decide what there is; the other tries to."""
        if self._old is None and self._clock.now_us >= self._at_us:
            self._old, self._loop = self._loop, self._second
            await self._loop.start()
        if self._old is not None and not self._fenced:
            try:
                await self._old.step()
            except Fenced:
                self._fenced = True
        return await self._loop.step()

    async def tick(self, now_us: int) -> int:
        """Let time pass for the one that holds the ledger."""
        return await self._loop.tick(now_us)

    def next_due_us(self) -> int | None:
        """Return when it has something due."""
        return self._loop.next_due_us()


async def run_acceptance(path: Path, prefix: str, make_loop: MakeLoop, notes: TextIO) -> None:
    """Run the script and leave its ledger at ``path``.

    Raise `collectors.simulation.demo.NotADemo` when another ledger stands there, and what
    the log and the loop raise.
    """
    scenario = acceptance_scenario()
    await make_room(DemoOptions(path=path, prefix=prefix, notes=notes))
    clock = VirtualClock(scenario.start_us)
    url = f"sqlite:{path}"
    async with SimulationLog(path, clock=clock) as log:
        await log.create_topics({name: TopicState(1) for name in declared(prefix)})

        def one() -> Loop:
            return make_loop(log, url, clock, scenario.heartbeat_limit_s)

        at_us = scenario.start_us + _TAKEN_OVER_S * _US
        loop = _TakenOver(one(), one(), clock, at_us)
        await Cluster(log, loop, clock, scenario, prefix=prefix).run()
