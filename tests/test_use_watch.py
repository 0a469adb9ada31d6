"""The watch over use: windows of samples, leases' parts, and idle edges in the ledger."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from collectors.agent.shell import NodeShell, ShellOptions
from collectors.fake_nvml.boards import BOARDS
from collectors.fake_nvml.faults import Fault
from collectors.fake_nvml.gpu import Process
from collectors.nvml.codes import Code
from collectors.use.watch import UseOptions
from ledger.log.memory import MemoryLog
from ledger.log.partition import partition_of
from ledger.log.port import LogUnavailable
from ledger.log.topics import apply
from schemas.catalogue import adapter
from tests.node_support import SECOND, Rig, library
from tests.nvml_support import put_slice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collectors.said import Said
    from collectors.use.watch import UseWatch
    from ledger.log.port import Entry, Record

MIG = {"mode": "mig", "profile": "3g.40gb"}


async def watched(rig: Rig, watch: UseWatch, seconds: int) -> list[dict[str, Any]]:
    """Take a sample a second; return the windows, as they cross the topic."""
    found: list[Said] = []
    with library():
        for _ in range(seconds):
            rig.time.passes(SECOND)
            record = await watch.sample()
            if record is not None:
                found.append(record)
    for one in found:
        adapter("node.usage", 1).validate_json(orjson.dumps(one.data))
    assert len({one.id for one in found}) == len(found)
    return [one.data for one in found]


async def leased(rig: Rig, ask: dict[str, Any] | None = None, name: str = "r1") -> str:
    """Start the agent, have a task run, and return its lease."""
    if not rig.agent.epoch:
        await rig.start()
    rig.submit(name, ask)
    await rig.settle(2)
    return next(one.id for one in rig.cell.state.leases.values() if name in one.id)


async def test_a_window_of_a_whole_card() -> None:
    """Means over what was sampled, memory at the end, counters by how much they went up."""
    rig = Rig(("H100-80GB",), mig=False)
    lease = await leased(rig)
    gpu = rig.node.gpus[0]
    watch = rig.agent.use_watch()
    gpu.utilization, gpu.media_percent = (40, 10), (7, 9)
    gpu.gpm = {1: 40.0, 2: 31.5, 10: 4.0}
    gpu.processes = [Process(77, 500, sm_percent=40)]
    rig.processes.leases[77] = lease
    first = await watched(rig, watch, 5)
    gpu.utilization, gpu.energy_mj, gpu.pcie_bytes = (80, 10), 900, (10, 20)
    (window,) = first + await watched(rig, watch, 5)
    gpu.energy_mj, gpu.pcie_bytes, gpu.clock_reasons = 4_900, (510, 2_020), 0x40
    (after,) = await watched(rig, watch, 10)

    (device,) = window["devices"]
    assert 10 * SECOND == window["window_us"] == device["measured_us"]
    assert (600, 70, 90) == tuple(
        device[f"{one}_permille"] for one in ("busy", "encoder", "decoder")
    )
    assert (315, 40) == (device["sm_permille"], device["dram_permille"])
    assert (500, 81_559) == (device["memory_used_mib"], device["memory_total_mib"])
    assert "energy_mj" not in device, "there is nothing to compare the first window with"
    assert [{"pid": 77, "lease": lease, "memory_mib": 500}] == [
        {name: one[name] for name in ("pid", "lease", "memory_mib")} for one in device["processes"]
    ]
    unit = {"lease": lease, "unit": gpu.uuid, "busy_permille": 600, "measured_us": 10 * SECOND}
    assert [unit] == window["leases"]
    (device,) = after["devices"]
    risen = ("energy_mj", "pcie_sent_bytes", "pcie_received_bytes")
    assert [4_000, 500, 2_000] == [device[one] for one in risen]
    assert 0x40 & device["clock_reasons"]


async def test_a_window_of_slices_has_their_counters() -> None:
    """In MIG mode the device tells nothing; each GPU instance has GPM's, on Hopper."""
    rig = Rig(("H100-80GB",))
    made = [put_slice(rig.node.gpus[0], "3g.40gb", at)[0] for at in (0, 4)]
    lease = await leased(rig, MIG)
    gpu = rig.node.gpus[0]
    gpu.gpm_of = {made[0].id: {1: 50.0, 2: 20.0}, made[1].id: {1: 0.0, 2: 0.0}}
    first, second = await watched(rig, rig.agent.use_watch(), 20)

    (device,) = second["devices"]
    assert "busy_permille" not in device
    assert 0 == device["measured_us"]
    assert "not-supported" == device["missing"]["utilization"]
    # The first reading of a counter has nothing before it to compare with.
    assert [9 * SECOND] * 2 == [one["measured_us"] for one in first["devices"][0]["slices"]]
    busy = {one["gi"]: one["busy_permille"] for one in device["slices"]}
    assert {made[0].id: 500, made[1].id: 0} == busy
    assert all(one["memory_used_mib"] for one in device["slices"])
    (part,) = second["leases"]
    assert (lease, 10 * SECOND) == (part["lease"], part["measured_us"])
    gi = next(one["gi"] for one in device["slices"] if part["unit"] in one["mig_uuids"])
    assert busy[gi] == part["busy_permille"]


async def test_a_card_in_mig_mode_is_sampled_once_a_window_and_a_whole_one_each_second() -> None:
    """It has no engine to tell of until MIG is off again; then each second counts anew."""
    rig = Rig(("H100-80GB", "H100-80GB"))
    whole, card = rig.node.gpus
    whole.mig = 0
    await rig.start()
    watch = rig.agent.use_watch()
    windows = await watched(rig, watch, 20)
    samples = [{one["uuid"]: one["samples"] for one in each["devices"]} for each in windows]
    assert {whole.uuid: 10, card.uuid: 1} == samples[1]
    assert [whole.uuid] == watch.differing()
    card.mig = 0
    await rig.settle(20)
    (_, again) = await watched(rig, watch, 20)
    assert [10, 10] == [one["samples"] for one in again["devices"]]


async def test_c03_a_slice_without_counters_is_unknown_and_not_idle() -> None:
    """Ampere has no GPM: memory is told, use is missing, and no lease is ever called idle."""
    rig = Rig(("A100-80GB",))
    put_slice(rig.node.gpus[0], "3g.40gb", 4)
    await leased(rig, MIG)
    windows = await watched(rig, rig.agent.use_watch(), 200)

    one = windows[-1]["devices"][0]["slices"][0]
    assert "busy_permille" not in one
    assert (0, True) == (one["measured_us"], one["memory_used_mib"] > 0)
    assert [] == windows[-1]["leases"]
    assert "task.use" not in {said.type for _, said, _ in rig.journal.unsent(100)}


async def test_an_idle_card_is_reclaimed_and_a_used_one_is_not() -> None:
    """Idle for a minute is told with how long; the queue's limits count from its beginning."""
    rig = Rig(("L40S",))
    rig.cell.queue(idle_remind_s=90, idle_reclaim_s=120)
    lease = await leased(rig)
    gpu = rig.node.gpus[0]
    watch = rig.agent.use_watch()
    gpu.utilization = (0, 0)
    await watched(rig, watch, 61)
    rig.tell_ledger()
    held = rig.cell.state.leases[lease]
    assert 60 * SECOND <= rig.cell.state.now_us - (held.idle_since_us or 0) <= 62 * SECOND
    gpu.utilization = (1, 0)
    await watched(rig, watch, 1)
    rig.tell_ledger()
    assert rig.cell.state.leases[lease].idle_since_us is None
    assert [True, False] == [plain["idle"] for kind, plain in rig.said if kind == "task.use"]
    gpu.utilization = (0, 0)
    for _ in range(2):
        await watched(rig, watch, 95)
        rig.tell_ledger()
        rig.carry(rig.cell.tick(at_us=rig.time.wall_us))
    assert ["reminded"] == [one["answer"] for one in rig.replies if one["answer"] == "reminded"]
    assert "stopping" == rig.cell.state.leases[lease].state


@pytest.mark.parametrize("engine", ["encoder", "decoder", "memory"])
async def test_a_lease_that_uses_another_engine_alone_is_not_idle(engine: str) -> None:
    """Its GPU is busy for nothing, and its work is work."""
    rig = Rig(("L40S",))
    await leased(rig)
    gpu = rig.node.gpus[0]
    gpu.media_percent = (int(engine == "encoder"), int(engine == "decoder"))
    gpu.utilization = (0, int(engine == "memory"))
    windows = await watched(rig, rig.agent.use_watch(), 100)
    assert 0 == windows[-1]["devices"][0]["busy_permille"]
    assert "task.use" not in {said.type for _, said, _ in rig.journal.unsent(100)}


async def test_an_engine_that_cannot_be_asked_may_be_at_work() -> None:
    """An encoder that fails to tell is not one that does nothing."""
    rig = Rig(("L40S",))
    await leased(rig)
    rig.node.faults = [Fault("nvmlDeviceGetEncoderUtilization", Code.UNKNOWN)]
    await watched(rig, rig.agent.use_watch(), 100)
    assert "task.use" not in {said.type for _, said, _ in rig.journal.unsent(100)}


async def test_a_slice_that_moves_memory_is_not_idle() -> None:
    """Decoding in a slice shows in its memory's bandwidth alone."""
    rig = Rig(("H100-80GB",))
    made, _ = put_slice(rig.node.gpus[0], "3g.40gb", 4)
    await leased(rig, MIG)
    gpu = rig.node.gpus[0]
    gpu.gpm_of = {made.id: {1: 0.0, 2: 0.0, 10: 0.2}}
    watch = rig.agent.use_watch()
    await watched(rig, watch, 100)
    assert "task.use" not in {said.type for _, said, _ in rig.journal.unsent(100)}
    gpu.gpm_of = {made.id: {1: 0.0, 2: 0.0, 10: 0.0}}
    await watched(rig, watch, 100)
    (said,) = [said.data for _, said, _ in rig.journal.unsent(100) if said.type == "task.use"]
    assert said["idle"]


async def test_c41_a_device_that_does_not_answer_is_not_idle() -> None:
    """Every other sample fails: no idle edge in ten minutes, and half of the time is measured."""
    rig = Rig(("L40S",))
    await leased(rig)
    watch = rig.agent.use_watch()
    fault = Fault("nvmlDeviceGetUtilizationRates", Code.UNKNOWN)
    windows = []
    for at in range(600):
        rig.node.faults = [fault] if at % 2 else []
        windows += await watched(rig, watch, 1)
    assert "task.use" not in {said.type for _, said, _ in rig.journal.unsent(100)}
    device = windows[-1]["devices"][0]
    assert (0, 5 * SECOND) == (device["busy_permille"], device["measured_us"])
    assert "unknown" == device["missing"]["utilization"]


async def test_who_shares_a_card_is_metered_by_its_processes() -> None:
    """Each lease has what its processes used; with one of nobody's, nobody's part is known."""
    rig = Rig(("L40S",))
    share = {"mode": "share", "gpu_milli": 400, "memory_mib": 8_000}
    first, second = [await leased(rig, share, name) for name in ("ra", "rb")]
    gpu = rig.node.gpus[0]
    gpu.processes = [
        Process(1, 10, sm_percent=30),
        Process(2, 10, sm_percent=20),
        Process(3, 10, sm_percent=5),
    ]
    rig.processes.leases = {1: first, 2: first, 3: second}
    watch = rig.agent.use_watch()
    (window,) = await watched(rig, watch, 10)
    assert {first: 500, second: 50} == {
        one["lease"]: one["busy_permille"] for one in window["leases"]
    }
    del rig.processes.leases[3]
    (window,) = await watched(rig, watch, 10)
    assert [] == window["leases"]


async def test_c43_who_shares_a_card_is_not_idle_for_a_clock_that_is_set_back() -> None:
    """The driver stamps processes' use by the wall clock: what is new is then older than before."""
    rig = Rig(("L40S",))
    name = await leased(rig, {"mode": "share", "gpu_milli": 400, "memory_mib": 8_000})
    (gpu,) = rig.node.gpus
    gpu.processes = [Process(1, 10, sm_percent=30)]
    rig.processes.leases = {1: name}
    watch = rig.agent.use_watch()

    async def windows() -> list[dict[str, Any]]:
        found = []
        for _ in range(100):
            gpu.use_stamp_us = rig.time.wall_us
            found += await watched(rig, watch, 1)
        return [one for window in found for one in window["leases"]]

    assert {300} == {one["busy_permille"] for one in await windows()}
    rig.time.wall_us -= 3_600 * SECOND
    assert {300} == {one["busy_permille"] for one in await windows()}
    rig.tell_ledger()
    assert "task.use" not in rig.types()


async def test_numbers_that_cannot_be_are_missing_and_cost_nobody_else_a_record() -> None:
    """Some drivers tell such parts of a hundred: the record of a node must not be lost by one."""
    rig = Rig(("L40S", "L40S"))
    share = {"mode": "share", "gpu_milli": 400, "memory_mib": 8_000}
    name = await leased(rig, share)
    (hold,) = rig.journal.bound(lease=name)
    mad, well = sorted(rig.node.gpus, key=lambda gpu: gpu.uuid != hold.unit)
    mad.utilization, well.utilization = (4_294_967_295, 0), (50, 0)
    mad.processes = [Process(1, 10, sm_percent=2_000_000)]
    rig.processes.leases = {1: name}
    (window,) = await watched(rig, rig.agent.use_watch(), 10)
    found = {one["uuid"]: one for one in window["devices"]}
    assert 500 == found[well.uuid]["busy_permille"]
    assert "busy_permille" not in found[mad.uuid]
    missing = found[mad.uuid]["missing"]
    assert ["implausible"] * 2 == [missing[name] for name in ("utilization", "process_utilization")]
    assert [] == window["leases"]


async def test_a_device_that_hangs_costs_the_others_one_sample() -> None:
    """It rests; the others are sampled again at once, and it has a reason instead of a use."""
    rig = Rig(("L40S", "L40S"))
    await rig.start()
    sick, well = rig.node.gpus
    sick.utilization = well.utilization = (50, 0)
    rig.node.faults = [Fault("nvmlDeviceGetUtilizationRates", "hang", gpu=sick.uuid)]
    (window,) = await watched(rig, rig.agent.use_watch(), 10)
    found = {one["uuid"]: one for one in window["devices"]}
    assert 9 == found[well.uuid]["samples"]
    assert 9 * SECOND <= found[well.uuid]["measured_us"]
    assert "busy_permille" not in found[sick.uuid]
    assert found[sick.uuid]["missing"]["device"]


@pytest.mark.parametrize("board", sorted(BOARDS))
async def test_every_board_makes_a_record_that_its_schema_takes(board: str) -> None:
    """With whatever a board lacks."""
    rig = Rig((board,), mig=False)
    await rig.start()
    (window,) = await watched(rig, rig.agent.use_watch(), 10)
    assert 10 == window["devices"][0]["samples"]


class Slow(MemoryLog):
    """A log that cannot be reached while it is ``away``."""

    away = False

    async def append(
        self, topic: str, partition: int | None, entries: Sequence[Entry]
    ) -> list[int]:
        """See `ledger.log.port.Log.append`."""
        if self.away and topic.endswith("usage"):
            raise LogUnavailable("away")
        return await super().append(topic, partition, entries)


async def test_windows_reach_the_topic_and_one_that_cannot_be_sent_is_lost() -> None:
    """Keyed by node, in order; what the log did not take is not sent later: it is unknown."""
    rig = Rig(("L40S",))
    log = Slow()
    await apply(log, "gpuledger", 1)
    place = partition_of(b"n1", await log.partitions("gpuledger.usage"))
    options = ShellOptions(use=UseOptions(sample_us=5_000, window_us=20_000))
    shell = NodeShell(log, rig.agent, options)
    stop = asyncio.Event()
    steady = rig.time

    async def windows(count: int) -> list[Record]:
        for _ in range(2000):
            steady.passes(5_000)
            await asyncio.sleep(0.002)
            found = await log.read("gpuledger.usage", place, 0)
            if len(found) >= count:
                return found
        raise AssertionError("no window was written")

    with library():
        task = asyncio.create_task(shell.run(stop))
        first = await windows(2)
        log.away = True
        for _ in range(50):
            steady.passes(5_000)
            await asyncio.sleep(0.002)
        there = await log.end("gpuledger.usage", place)
        log.away = False
        after = await windows(there + 2)
        stop.set()
        await task
    assert {b"n1"} == {one.key for one in first}
    names = [dict(one.headers)["ce_id"].decode() for one in after]
    numbers = [int(name.rpartition("-")[2]) for name in names]
    assert numbers == sorted(set(numbers))
    assert [*range(1, len(numbers) + 1)] != numbers, "what was lost is not sent later"
