"""One simulated node, one request and a real ledger in virtual time, for tests of faults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from collectors.fleet.description import DeviceSpec, NodeSpec, device_uuid
from collectors.simulation.clock import VirtualClock
from collectors.simulation.cluster import OPERATOR, Act, Cluster, Scenario
from ledger.core.fold import Fold
from ledger.core.invariants import check
from ledger.core.state import device_state
from ledger.log.memory import MemoryLog
from ledger.log.port import TopicState
from ledger.log.topics import declared
from ledger.reading import read_events
from processors.embedded import EmbeddedLoop
from tests.processor_support import settings

if TYPE_CHECKING:
    from collectors.fleet.fault_plan import FaultPlan

_US = 1_000_000
_START_US = 1_600_000_000 * _US
_RUN_S = 1000

__all__ = ["SimulatedSite"]


class SimulatedSite:
    """A node with two devices; a request for both, made at once, for 1000 s.

    After `run`: ``events`` of the ledger, ``timed`` the same with their seconds from
    the start, ``ended_at_s`` when the request ended, ``device_states`` by index.
    """

    REQUEST: ClassVar[str] = f"{OPERATOR}#job"
    heartbeat_limit_s = 30
    grace_s = 60
    order_timeout_s = 300

    def __init__(self, plan: FaultPlan, *, retries: int) -> None:
        self._plan = plan
        self._retries = retries
        self.events: list[dict[str, Any]] = []
        self.timed: list[tuple[int, dict[str, Any]]] = []
        self.device_states: list[str] = []
        self.ended_at_s = -1

    def _acts(self) -> list[Act]:
        why = {"author": "operator", "reason": "test"}
        pool = {
            "pool": "p",
            "silent_grace_s": self.grace_s,
            "order_timeout_s": self.order_timeout_s,
        }
        return [
            Act(0, "pool", "pool.apply", {**pool, **why}),
            Act(0, "queue", "queue.apply", {"queue": "q", **why}),
            Act(0, "quota", "quota.apply", {"tenant": "t", "nominal_gpu_milli": 2000, **why}),
            # The operator's own, so that an act can cancel it.
            Act(
                0,
                "job",
                "request.submit",
                {
                    "tenant": "t",
                    "queue": "q",
                    "task": {"id": "job"},
                    "ask": {"mode": "whole", "count": 2},
                    "expected_run_s": _RUN_S,
                    "retries": self._retries,
                },
            ),
        ]

    async def run(self, more: list[tuple[int, str, dict[str, Any]]]) -> None:
        """Run to the end; then every invariant must hold."""
        clock = VirtualClock(_START_US)
        log = MemoryLog(clock)
        await log.create_topics({name: TopicState(1) for name in declared("gpuledger")})
        devices = tuple(DeviceSpec(device_uuid("n1", at), "H100", 81_559, at) for at in range(2))
        acts = self._acts()
        acts += [Act(at_s * _US, f"act-{at_s}", kind, data) for at_s, kind, data in more]
        scenario = Scenario(
            "dc1",
            _START_US,
            [NodeSpec("n1", "p", devices)],
            [],
            acts,
            self._plan,
            heartbeat_limit_s=self.heartbeat_limit_s,
        )
        loop = EmbeddedLoop(log, settings(heartbeat_limit_s=self.heartbeat_limit_s), clock)
        cluster = Cluster(log, loop, clock, scenario)
        await cluster.run()
        fold = Fold()
        async for seen in read_events(log, "gpuledger", 0, fold):
            for event in seen.data.get("events", ()):
                at_s = (seen.data["time_us"] - _START_US) // _US
                self.events.append(event)
                self.timed.append((at_s, event))
                if event["type"] == "request.ended":
                    self.ended_at_s = at_s
        state = fold.cells["dc1"]
        assert not check(state)
        assert [answers.total() for answers in cluster.client.finals.values()] == [1]
        by_index = sorted(state.devices.values(), key=lambda one: one.index or 0)
        self.device_states = [device_state(one) for one in by_index]
