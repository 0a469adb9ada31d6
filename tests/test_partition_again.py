"""A change of partitions that failed for a while: asked for again by itself, on the real agent."""

from __future__ import annotations

import pytest

from collectors.agent.ledger_clock import learn_time
from collectors.fake_nvml.faults import Fault
from collectors.nvml.codes import Code
from tests.answers import history
from tests.node_support import Rig

MIG = {"mode": "mig", "profile": "3g.40gb"}
CREATE_GI, CREATE_CI = "nvmlDeviceCreateGpuInstanceWithPlacement", (
    "nvmlGpuInstanceCreateComputeInstanceWithPlacement"
)  # fmt: skip

#: What goes wrong in the first change, for longer than its steps are tried.
PASSING = {
    "a call hangs": Fault(CREATE_GI, "hang", times=2),
    "a call hangs after its effect": Fault(CREATE_CI, "hang", "after", times=2),
    "the driver is not ready": Fault(CREATE_GI, Code.NOT_READY, times=3),
    "no reason is given": Fault(CREATE_CI, Code.UNKNOWN, times=3),
    "a right is missing for a moment": Fault(CREATE_GI, Code.NO_PERMISSION, times=1),
}


def events(rig: Rig, kind: str) -> list[dict[str, object]]:
    """Return the ledger's events of a type, in order."""
    told = [event for seen in history(rig.cell) for event in seen.data.get("events", ())]
    return [event for event in told if event["type"] == kind]


@pytest.mark.parametrize("name", PASSING)
async def test_what_passes_needs_nobody(name: str) -> None:
    """The request gets its slice without an operator's word, on evidence where it had failed."""
    rig = Rig()
    await rig.start()
    rig.node.faults = [PASSING[name]]
    assert "reserved" == rig.submit("r1", MIG)
    await rig.settle(120)
    assert ["granted"] == [one.state for one in rig.cell.state.requests.values()]
    assert rig.real() == rig.believed()
    assert [] == rig.bare()
    assert [] == events(rig, "device.cleared")
    assert len(events(rig, "order.failed")) == len(events(rig, "device.reopened"))
    for one in events(rig, "device.reopened"):
        assert {"reading", "slices", "layout"} == set(one["evidence"])  # type: ignore[call-overload]
    assert {} == rig.cell.state.partition_failures
    assert not [name for name in rig.cell.state.alarms if name.startswith("partition_failed")]


async def test_what_always_fails_is_asked_for_ever_more_rarely() -> None:
    """An hour of it is a handful of orders, and the device does other work meanwhile."""
    rig = Rig()
    await rig.start()
    rig.node.faults = [Fault(CREATE_GI, Code.NO_PERMISSION)]
    rig.submit("r1", MIG)
    for _ in range(60):
        rig.time.passes(1)
        await rig.settle(60)
    assert 3 <= len(rig.orders) <= 8
    assert {} == rig.cell.state.leases
    rig.node.faults.clear()
    for _ in range(70):
        await rig.settle(60)
    assert 1 == len(rig.cell.state.leases)


@pytest.mark.parametrize("failures", [2, 3, 4])
async def test_what_fails_several_times_waits_no_longer_than_it_is_left_alone(
    failures: int,
) -> None:
    """A minute after the second failure, two after the third: its node tells it again then."""
    rig = Rig()
    await rig.start()
    rig.node.faults = [Fault(CREATE_GI, Code.NO_PERMISSION, times=failures)]
    rig.submit("r1", MIG)
    alone_s = sum(60 << at for at in range(failures - 1))
    await rig.settle(alone_s * 5 // 4)
    assert failures == len(events(rig, "device.reopened"))
    assert ["granted"] == [one.state for one in rig.cell.state.requests.values()]


async def test_a_restart_forgets_no_failure_and_a_boot_does() -> None:
    """The inventory is told again when it would have been without the restart."""
    rig = Rig()
    await rig.start()
    rig.node.faults = [Fault(CREATE_GI, Code.NO_PERMISSION, times=2)]
    rig.submit("r1", MIG)
    await rig.settle(1)
    assert 2 == len(events(rig, "order.failed"))
    await rig.restart()
    await rig.settle(75)
    assert 1 == len(rig.cell.state.leases)
    rig.boot = "machine-boot-2"
    await rig.restart()
    assert rig.agent._teller.again_us() is None


@pytest.mark.parametrize("late", [False, True])
async def test_what_is_done_too_late_has_failed_for_the_ledger(*, late: bool) -> None:
    """Its order timed out meanwhile; what was done in time is not told of again."""
    rig = Rig()
    await rig.start()
    rig.submit("r1", MIG)
    rig.hear()
    (order,) = rig.orders
    assert order.due_us is not None
    learn_time(rig.journal, [order.due_us + (1 if late else -60_000_000)])
    await rig.settle(1)
    assert "order.done" in rig.types()
    assert late == (rig.agent._teller.again_us() is not None)


async def test_a_leftover_that_cannot_be_destroyed_keeps_the_device_shut() -> None:
    """It is unhealthy with the evidence for as long as that is there, and asked for nothing."""
    rig = Rig()
    await rig.start()
    rig.node.faults = [
        Fault(CREATE_CI, Code.UNKNOWN),
        Fault("nvmlGpuInstanceDestroy", Code.UNKNOWN),
    ]
    rig.submit("r1", MIG)
    await rig.settle(600)
    device = rig.cell.state.devices[rig.node.gpus[0].uuid]
    assert "unhealthy" == device.health
    assert 1 == len(rig.bare())
    assert 1 == len([one for one in rig.orders if one.kind == "partition"])
    assert [] == events(rig, "device.reopened")
    rig.node.faults.clear()
    await rig.settle(120)
    assert "healthy" == device.health
    assert 1 == len(rig.cell.state.leases)
    assert [] == rig.bare()
