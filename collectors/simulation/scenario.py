"""The file that describes a simulation: policy, fleet, trace, faults, requests beside the trace.

One TOML file names the others, relative to itself. Pools, queues and quotas are
written as they go onto the requests topic (`schemas.requests`).
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, ValidationError

from collectors.files import BadFile, read_model
from collectors.fleet.description import read_fleet
from collectors.fleet.fault_plan import FaultPlan, check_nodes, read_faults
from collectors.light.node import Ending, Timing
from collectors.simulation.cluster import Act, Scenario
from collectors.simulation.traces import Job, read_helios
from schemas.asks import Ask
from schemas.base import Model, Name, Seconds, Text
from schemas.requests import PoolApply, QueueApply, QuotaApply, RequestSubmit, Task, TaskType

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["ExtraRequests", "ScenarioFile", "day_us", "policy_acts", "read_scenario"]

_US = 1_000_000


class ExtraRequests(Model):
    """Requests beside the trace: ``count`` alike, the first at ``at_s``, then every ``every_s``.

    Each runs for ``run_s`` and ends as ``how`` says; all in seconds from the start.
    ``{}`` in ``task`` is where the number from 1 on goes. The rest is as in a
    submission.
    """

    user: Name
    at_s: Seconds
    count: Annotated[int, Field(ge=1, le=100_000)] = 1
    every_s: Seconds = 0
    run_s: Seconds = 60
    how: Literal["completed", "failed", "cancelled"] = "completed"
    task: Text
    type: TaskType = "training"
    tenant: Name
    queue: Name
    ask: Ask
    max_wait_s: Seconds | None = None

    def jobs(self) -> list[Job]:
        """Return the requests one by one; raise pydantic's ``ValidationError`` for a bad name."""
        found = []
        for number in range(1, self.count + 1):
            asked = RequestSubmit(
                tenant=self.tenant,
                queue=self.queue,
                task=Task(id=self.task.format(number), type=self.type),
                ask=self.ask,
                max_wait_s=self.max_wait_s,
                expected_run_s=self.run_s,
            )
            data = asked.model_dump(mode="json", exclude_defaults=True)
            # `mode` tells one kind of ask from another, so it must be there at its default too.
            data["ask"]["mode"] = asked.ask.mode
            at_us = (self.at_s + (number - 1) * self.every_s) * _US
            ending = Ending(self.run_s * _US, self.how, 1 if self.how == "failed" else None)
            found.append(Job(asked.task.id, self.user, at_us, data, ending))
        return found


class ScenarioFile(Model):
    """A simulation. ``start`` is the day (UTC) that the trace's times count from.

    ``queue`` and ``retries`` are those of the trace's jobs. A node that is not
    heard for ``heartbeat_limit_s`` is silent.
    """

    start: date
    trace: Text
    fleet: Text
    faults: Text | None = None
    queue: Name
    retries: Annotated[int, Field(ge=0, le=1000)] = 0
    heartbeat_limit_s: Annotated[int, Field(ge=2, le=86_400)] = 30
    inventory_every_s: Annotated[int, Field(ge=1, le=10_000_000)] = 86_400
    pools: tuple[PoolApply, ...]
    queues: tuple[QueueApply, ...]
    quotas: tuple[QuotaApply, ...]
    requests: tuple[ExtraRequests, ...] = ()


def day_us(day: date) -> int:
    """Return the beginning of a day, UTC, in microseconds since 1970."""
    return int(datetime.combine(day, time(), UTC).timestamp()) * _US


def policy_acts(policies: Iterable[PoolApply | QueueApply | QuotaApply]) -> list[Act]:
    """Return policies as an operator applies them at the start."""
    found = []
    for policy in policies:
        kind, name = _named(policy)
        data = policy.model_dump(mode="json", exclude_unset=True)
        found.append(Act(0, f"{kind}-{name}", f"{kind}.apply", data))
    return found


def _named(policy: PoolApply | QueueApply | QuotaApply) -> tuple[str, str]:
    if isinstance(policy, PoolApply):
        return "pool", policy.pool
    if isinstance(policy, QueueApply):
        return "queue", policy.queue
    return "quota", policy.tenant


def read_scenario(path: Path, *, jobs: int | None = None) -> Scenario:
    """Read a scenario and the files that it names; with ``jobs``, only so many of the trace.

    Raise `BadFile` when one of them is not what it should be.
    """
    found = read_model(path, ScenarioFile)
    fleet = read_fleet(path.parent / found.fleet)
    nodes = fleet.specs()
    faults = FaultPlan() if found.faults is None else read_faults(path.parent / found.faults)
    check_nodes(faults, {node.name: len(node.devices) for node in nodes})
    traced = read_helios(path.parent / found.trace, queue=found.queue, retries=found.retries)
    try:
        extra = [job for group in found.requests for job in group.jobs()]
    except ValidationError as error:
        raise BadFile(f"{path}: {error.errors()[0]['msg']} (a request beside the trace)") from error
    return Scenario(
        fleet.cell,
        day_us(found.start),
        nodes,
        [*traced[:jobs], *extra],
        policy_acts([*found.pools, *found.queues, *found.quotas]),
        faults,
        Timing(inventory_every_us=found.inventory_every_s * _US),
        found.heartbeat_limit_s,
    )
