"""Sites to replay under other rules: simulated whole, so that the truth is there to compare."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

from collectors.fleet.description import DeviceSpec, NodeSpec, device_uuid
from collectors.fleet.fault_plan import FaultPlan
from collectors.light.tasks import Ending
from collectors.simulation.clock import VirtualClock
from collectors.simulation.cluster import Act, Cluster, Scenario
from collectors.simulation.traces import Job
from ledger.counterfactual.changes import Changes
from ledger.counterfactual.replay import Options, Outcome, replay
from ledger.log.memory import MemoryLog
from ledger.log.port import TopicState
from ledger.log.topics import declared
from ledger.policy_files import read_site
from ledger.testing import CoreDriver, device
from processors.embedded import EmbeddedLoop
from tests.processor_support import settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ledger.counterfactual.sums import Sums
    from ledger.log.port import Log
    from ledger.policy_files import PolicyRecord

__all__ = [
    "PREFIX", "WHY", "Cell", "act", "drawn_jobs", "fleet", "job", "pairs", "policy",
    "replayed", "run", "simulated", "waits",
]  # fmt: skip

PREFIX = "gpuledger"
WHY = {"author": "operator", "reason": "test"}
START_US = 1_600_000_000_000_000
_US = 1_000_000


def fleet(*names: str, devices: int = 4, model: str = "H100") -> list[NodeSpec]:
    """Return nodes of pool p."""
    return [
        NodeSpec(
            name,
            "p",
            tuple(DeviceSpec(device_uuid(name, at), model, 81_559, at) for at in range(devices)),
        )
        for name in names
    ]


def act(kind: str, at_s: int = 0, **data: Any) -> Act:
    """Return what an operator applies."""
    name = str(data.get(kind.partition(".")[0]) or data.get("tenant") or data.get("node"))
    return Act(at_s * _US, f"{kind}-{name}-{at_s}", kind, data | WHY)


def job(name: str, at_s: int, run_s: int, how: Any = "completed", **more: Any) -> Job:
    """Return a request of tenant t for one device that runs so long."""
    asked: dict[str, Any] = {
        "tenant": "t",
        "queue": "q",
        "task": {"id": name},
        "ask": {"mode": "whole"},
    }
    asked |= more
    code = 1 if how == "failed" else None
    return Job(name, asked["tenant"], at_s * _US, asked, Ending(run_s * _US, how, code))


def drawn_jobs(seed: int, count: int, **more: Any) -> list[Job]:
    """Return requests of two tenants for whole devices and shares, each on one node.

    Nodes of a gang say things at one instant, and which is first of them would be chance.
    """
    random, found, at_s = Random(seed), [], 0
    asks: tuple[dict[str, Any], ...] = (
        {"mode": "whole"},
        {"mode": "whole", "count": 2},
        {"mode": "whole", "count": 4},
        {"mode": "share", "gpu_milli": 300, "memory_mib": 20_000},
    )
    for number in range(count):
        at_s += random.randrange(60)
        asked: dict[str, Any] = {
            "tenant": random.choice(("t", "u")),
            "ask": random.choice(asks),
            "priority": random.choice((0, 0, 5)),
            "preemptible": random.random() < 0.6,
            "retries": 1,
            "task": {"id": f"j{number}", "type": random.choice(("training", "data-processing"))},
        }
        how = random.choice(("completed", "completed", "failed"))
        one = job(f"j{number}", at_s, random.randrange(20, 600), how, **asked, **more)
        at_us, run_us = (us + random.randrange(_US) for us in (one.at_us, one.ending.run_us))
        found.append(replace(one, at_us=at_us, ending=replace(one.ending, run_us=run_us)))
    return found


async def run(scenario: Scenario) -> Log:
    """Return the log of a scenario that was run to its end."""
    clock = VirtualClock(scenario.start_us)
    log = MemoryLog(clock)
    await log.create_topics({name: TopicState(1) for name in declared(PREFIX)})
    loop = EmbeddedLoop(log, settings(heartbeat_limit_s=scenario.heartbeat_limit_s), clock)
    await Cluster(log, loop, clock, scenario).run()
    return log


async def simulated(
    jobs: Sequence[Job],
    nodes: Sequence[NodeSpec],
    acts: Sequence[Act] = (),
    faults: FaultPlan | None = None,
) -> Log:
    """Return the log of a site with pool p and queue q, as they are unless ``acts`` say."""
    said = {one.type for one in acts if one.at_us == 0}
    base = [act("pool.apply", pool="p"), act("queue.apply", queue="q")]
    mine = [one for one in base if one.type not in said]
    plan = FaultPlan() if faults is None else faults
    return await run(Scenario("dc1", START_US, nodes, jobs, [*mine, *acts], plan))


def policy(text: str) -> tuple[PolicyRecord, ...]:
    """Return the records of a policy file."""
    return tuple(read_site(text, WHY))


async def replayed(
    log: Log,
    changes: Changes | None = None,
    first: int = 0,
    end: int | None = None,
    options: Options | None = None,
) -> Outcome:
    """Replay partition 0 of a log from an offset on, under changes."""
    last = await log.end(f"{PREFIX}.events", 0) if end is None else end
    places = {0: first}, {0: last}
    return await replay(log, PREFIX, places, changes or Changes(), options or Options())


def waits(sums: Sums, tenants: Iterable[str] = ("t", "u")) -> dict[str, tuple[int, int | None]]:
    """Return when each request came and had its first lease, by its id (µs from the start)."""
    return {
        name: (
            one.received_us - START_US,
            None if one.granted_us is None else one.granted_us - START_US,
        )
        for name, one in sums.asked.items()
        if one.tenant in tenants
    }


def pairs(plain: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every difference of a comparison, with where it stands."""
    if isinstance(plain, dict):
        if "difference" in plain:
            yield path, plain
            return
        for name, one in plain.items():
            yield from pairs(one, f"{path}.{name}")
    elif isinstance(plain, list):
        for at, one in enumerate(plain):
            yield from pairs(one, f"{path}.{at}")


class Cell(CoreDriver):
    """A cell with one device, driven by hand."""

    def __init__(self, gpus: int = 1, **queue: Any) -> None:
        super().__init__()
        self.pool()
        self.queue(**queue)
        self.quota()
        self.node("n1", [device(f"GPU-{at}") for at in range(gpus)])

    def runs(self, lease: str, to_s: int) -> None:
        """Let a lease's task run to its own end, and what it held be proved clean."""
        self.task_started(lease, "n1")
        self.feed(
            "task.ended", {"node": "n1", "incarnation": "b1", "lease": lease, "how": "completed"},
            source=self.state.nodes["n1"].agent, at_us=to_s * _US,
        )  # fmt: skip
        self.answer_all_orders()
