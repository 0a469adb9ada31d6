"""Health through the real agent over the fake library: what ends, what goes on, what is told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from collectors.agent.agent import NodeOptions
from collectors.agent.lease_work import Patience
from collectors.fake_nvml.faults import Fault
from collectors.fake_nvml.gpu import Process as OnGpu
from collectors.fake_nvml.node import Event
from collectors.health.hearing import WatchOptions
from collectors.nvml.codes import Code
from collectors.nvml.events import XID
from ledger.core.invariants import check
from ledger.core.state import device_state
from ledger.explain import why
from ledger.show import show
from ledger.testing import TEAM
from tests.answers import history
from tests.metering_logs import metered
from tests.node_support import SECOND, Rig
from tests.nvml_support import put_slice

if TYPE_CHECKING:
    from pathlib import Path

    from collectors.fake_nvml.gpu import FakeGpu

WHOLE = {"mode": "whole"}


def rig_of(*boards: str, mig: bool = False, log: Path | None = None, **more: Any) -> Rig:
    """Return a rig whose agent listens every second."""
    options = NodeOptions(watch=WatchOptions(kernel_log=log, **more))
    return Rig(boards or ("H100-80GB",), mig=mig, options=options)


async def strike(rig: Rig, gpu: FakeGpu, xid: int, *scope: int, seconds: int = 3) -> None:
    """Let an XID happen on a GPU, in a GPU instance, or in a compute instance of it."""
    rig.node.happen(Event(gpu, XID, xid, *scope))
    await rig.settle(seconds)


def states(rig: Rig) -> list[str]:
    """Return the state of each device in the ledger, in the order of the node's GPUs."""
    return [device_state(rig.cell.state.devices[gpu.uuid]) for gpu in rig.node.gpus]


def live(rig: Rig) -> set[str]:
    """Return the requests that have a lease which is not ending."""
    found = rig.cell.state.leases.values()
    return {one.request.rpartition("#")[2] for one in found if one.state != "stopping"}


def events(rig: Rig, kind: str) -> list[dict[str, Any]]:
    """Return the ledger's events of a type, in order."""
    told = [event for seen in history(rig.cell) for event in seen.data.get("events", ())]
    return [event for event in told if event["type"] == kind]


def ends(rig: Rig) -> dict[str, tuple[str, str]]:
    """Return why each lease was told to end: the reason, and the fault."""
    return {
        event["lease"].rpartition("#")[2].partition("/")[0]: (
            event["reason"], event.get("rule", "")
        )
        for event in events(rig, "lease.stopping")
    }  # fmt: skip


def faults(rig: Rig) -> list[tuple[str, str]]:
    """Return the faults that were told: their code, and what of the work they end."""
    told = [plain["fault"] for _, plain in rig.said if "fault" in plain]
    return [(one["code"], one["ends"]) for one in told]


def spent_s(rig: Rig, cause: str) -> int:
    """Return how many device-seconds the meter has under a cause, held by somebody or not."""
    rows, _ = metered(rig.cell.records)
    found = [one.milli * (one.end_us - one.start_us) for one in rows if one.cause == cause]
    return sum(found) // (1000 * SECOND)


# -- XIDs in three scopes ---------------------------------------------------------------


async def three_slices() -> tuple[Rig, dict[str, tuple[int, int]]]:
    """Return a rig with two compute instances in one GPU instance and one in another, leased.

    And which request has which instance.
    """
    rig = rig_of(mig=True)
    gpu = rig.node.gpus[0]
    pair, _ = put_slice(gpu, "3g.40gb", 4, bare=True)
    gpu.create_ci(pair, 0, 0), gpu.create_ci(pair, 1, 1)
    put_slice(gpu, "1g.10gb", 0)
    await rig.start()
    for profile in ("1c.3g.40gb", "2c.3g.40gb", "1g.10gb"):
        assert "granted" == rig.submit(profile, {"mode": "mig", "profile": profile})
    await rig.settle(1)
    slices = rig.cell.state.slices.values()
    of = {one.lease.rpartition("#")[2].partition("/")[0]: one for one in slices if one.lease}
    return rig, {name: (one.gi, one.ci or 0) for name, one in of.items()}


@pytest.mark.parametrize("scope", ["compute instance", "GPU instance", "device"])
async def test_an_xid_ends_exactly_the_leases_in_its_scope(scope: str) -> None:
    """A contained memory error: the work there is over, the rest and the device go on."""
    rig, where = await three_slices()
    gi, ci = where["1c.3g.40gb"]
    hit = {
        "compute instance": {"1c.3g.40gb"},
        "GPU instance": {"1c.3g.40gb", "2c.3g.40gb"},
        "device": set(where),
    }[scope]
    at = {"compute instance": (gi, ci), "GPU instance": (gi,), "device": ()}[scope]
    await strike(rig, rig.node.gpus[0], 94, *at)
    assert hit == set(ends(rig))
    assert all(one[0] == "device-fault" and "xid-94" in one[1] for one in ends(rig).values())
    assert set(where) - hit == live(rig)
    assert "healthy" == rig.cell.state.devices[rig.node.gpus[0].uuid].health
    # Proved clean, the slices are there for others.
    for profile in hit:
        assert "granted" == rig.submit(f"next-{profile}", {"mode": "mig", "profile": profile})
    check(rig.cell.state)


async def test_an_xid_in_a_slice_that_needs_a_reset_ends_all_on_the_device() -> None:
    """Where the driver gives no verdict the table says it: nothing works until the reset."""
    rig, where = await three_slices()
    gpu = rig.node.gpus[0]
    gpu.recovery_action = None
    await strike(rig, gpu, 109, *where["1g.10gb"])
    assert set(where) == set(ends(rig))
    assert ["unhealthy"] == states(rig)
    assert [("xid-109", "device")] == faults(rig)
    told = rig.last("device.health")
    assert where["1g.10gb"] == (told["fault"]["gi"], told["fault"]["ci"])


async def test_the_drivers_verdict_comes_before_the_table() -> None:
    """It asks for nothing: the XID is noted. It asks for a reset: that ends what is there."""
    rig = rig_of("H100-80GB", "L40S")
    await rig.start()
    rig.submit("r1", WHOLE)
    rig.submit("r2", WHOLE)
    await rig.settle(1)
    first = rig.node.gpus[0]
    await strike(rig, first, 109)
    assert [("xid-109", "none")] == faults(rig)
    assert {"r1", "r2"} == live(rig)

    first.recovery_action = 1
    await strike(rig, first, 154)
    assert ("xid-154", "device") == faults(rig)[-1]
    assert 1 == len(live(rig))
    assert "unhealthy" == states(rig)[0]
    # Seen without an XID it is a fault all the same.
    second = rig.node.gpus[1]
    second.recovery_action = 2
    await rig.settle(15)
    assert ("recovery-action-2", "device") == faults(rig)[-1]
    assert set() == live(rig)


async def test_a_drain_lets_the_work_end_by_itself() -> None:
    """The driver asks to drain: nothing new is placed there, and what runs goes on."""
    rig = rig_of("H100-80GB")
    await rig.start()
    rig.submit("r1", WHOLE)
    await rig.settle(1)
    rig.node.gpus[0].recovery_action = 4
    await rig.settle(15)
    assert ["unhealthy"] == states(rig)
    assert {"r1"} == live(rig)
    assert "queued" == rig.submit("r2", WHOLE)


async def test_a_link_error_ends_what_uses_links() -> None:
    """XID 74: a job on two cards ends whole, one on a card of its own goes on."""
    rig = rig_of("H100-80GB", "H100-80GB", "H100-80GB")
    await rig.start()
    rig.submit("two", {"mode": "whole", "count": 2})
    rig.submit("one", WHOLE)
    await rig.settle(1)
    pair = rig.cell.lease(f"{TEAM}#two").parts["n1"].units
    alone = rig.cell.lease(f"{TEAM}#one").parts["n1"].units
    await strike(rig, rig.node.gpu(alone[0]), 74)
    assert {"one", "two"} == live(rig)
    await strike(rig, rig.node.gpu(pair[0]), 74)
    assert {"one"} == live(rig)


async def test_an_application_error_is_noted_and_a_storm_of_them_counted() -> None:
    """XID 13 ends nothing; a thousand of them make two records, the second with the count."""
    rig = rig_of("H100-80GB")
    await rig.start()
    rig.submit("r1", WHOLE)
    await rig.settle(1)
    for _ in range(100):
        rig.node.happen(Event(rig.node.gpus[0], XID, 13))
        await rig.settle(1)
    assert {"r1"} == live(rig)
    told = [plain for kind, plain in rig.said if kind == "device.health"]
    assert 2 == len(told)
    assert 40 < told[1]["evidence"]["times"] < 80
    assert ["leased"] == states(rig)


async def test_the_same_xid_under_another_lease_is_another() -> None:
    """Within a minute, on the same device: each lease ends by its own."""
    rig = rig_of("H100-80GB")
    await rig.start()
    for name in ("r1", "r2"):
        rig.submit(name, WHOLE)
        await rig.settle(2)
        assert {name} == live(rig)
        await strike(rig, rig.node.gpus[0], 94)
        assert set() == live(rig)
    assert {"r1", "r2"} == set(ends(rig))


async def test_c27_an_xid_under_one_lease_is_told_before_the_next() -> None:
    """It waits in the event set while the lease ends: it is the old lease's, not the next one's."""
    rig = rig_of("H100-80GB")
    await rig.start()
    rig.submit("old", WHOLE)
    await rig.settle(1)
    rig.submit("new", WHOLE)
    assert "released" == rig.ask(
        "lease.release", {"lease": rig.cell.lease(f"{TEAM}#old").id}, source=TEAM
    )
    rig.node.happen(Event(rig.node.gpus[0], XID, 94))
    await rig.settle(5)
    assert ("xid-94", "scope") in faults(rig)
    assert {"new"} == live(rig)
    assert "new" not in ends(rig)


# -- devices that are lost -----------------------------------------------------------------


async def test_c01_a_lost_gpu_takes_its_leases_and_names_the_xid() -> None:
    """XID 79 and a wait that says that some GPU is lost: missing, its lease over."""
    rig = rig_of("L40S", "L40S")
    await rig.start()
    rig.submit("r1", WHOLE)
    await rig.settle(1)
    (unit,) = rig.cell.lease(f"{TEAM}#r1").parts["n1"].units
    gpu = rig.node.gpu(unit)
    rig.node.happen(Event(gpu, XID, 79))
    rig.node.lose(gpu)
    await rig.settle(3)
    assert ["available", "missing"] == sorted(states(rig))
    assert {"r1": ("device-gone", ends(rig)["r1"][1])} == ends(rig)
    assert ends(rig)["r1"][1].startswith("xid-79: XID 79: the device has fallen off the bus")
    check(rig.cell.state)


async def test_c01_a_gpu_that_is_listed_and_lost_is_gone() -> None:
    """As many are listed as were: the number tells nothing, and is not told."""
    rig = rig_of("L40S", "L40S")
    await rig.start()
    unit = rig.node.gpus[0].uuid
    rig.node.faults = [Fault("nvmlDeviceGetTotalEccErrors", Code.GPU_IS_LOST, gpu=unit)]
    await rig.settle(15)
    gone = rig.last("device.health")
    told = "gpu-is-lost: one of 2 devices that are listed, and it cannot be read"
    assert ("gone", told) == (gone["health"], gone["reason"])


async def test_c01_a_gpu_that_is_no_longer_counted_is_gone() -> None:
    """No XID, no error, and one device less: the number before and after is told."""
    rig = rig_of("L40S", "L40S")
    await rig.start()
    rig.submit("r1", WHOLE)
    await rig.settle(1)
    (unit,) = rig.cell.lease(f"{TEAM}#r1").parts["n1"].units
    rig.node.gpu(unit).listed = False
    await rig.settle(15)
    assert [("gpu-lost", "device")] == faults(rig)
    gone = rig.last("device.health")
    assert ("gone", "1 devices are listed, 2 were") == (gone["health"], gone["reason"])
    assert {"r1": ("device-gone", "gpu-lost: 1 devices are listed, 2 were")} == ends(rig)

    rig.node.gpu(unit).listed = True
    await rig.settle(15)
    assert "missing" not in states(rig)
    back = [event for event in events(rig, "device.health") if event["device"] == unit][-1]
    assert ("healthy", "healthy again") == (back["health"], back["reason"])
    assert "gone" == back["evidence"]["was"]


async def test_c33_two_of_eight_fail_and_nobody_gets_what_is_not_there() -> None:
    """A job has all eight; two may not be used any more. Free is 0 before and after."""
    rig = rig_of(*["L40S"] * 8)
    await rig.start()
    rig.submit("j0", {"mode": "whole", "count": 8})
    await rig.settle(1)
    for gpu in rig.node.gpus[6:]:
        gpu.recovery_action = 4
    await rig.settle(15)
    assert ["leased"] * 6 + ["unhealthy"] * 2 == states(rig)
    assert {"j0"} == live(rig), "what becomes of it is its own policy's"
    assert "queued" == rig.submit("r1", {"mode": "whole", "count": 6})
    # A harmless change: the inventory is told again.
    rig.agent.retell()
    await rig.settle(15)
    assert {"j0"} == live(rig)
    check(rig.cell.state)


# -- what hangs ------------------------------------------------------------------------------


async def test_a_device_that_hangs_is_unknown_and_the_others_go_on() -> None:
    """Its lease is kept, nothing new is placed there, and it is back when it answers."""
    rig = rig_of("L40S", "L40S")
    await rig.start()
    rig.submit("r1", WHOLE)
    await rig.settle(1)
    (unit,) = rig.cell.lease(f"{TEAM}#r1").parts["n1"].units
    rig.node.faults = [Fault("nvmlDeviceGetMemoryInfo_v2", "hang", gpu=unit)]
    await rig.settle(40)
    assert "unknown" == rig.cell.state.devices[unit].health
    assert {"r1"} == live(rig)
    assert "granted" == rig.submit("r2", WHOLE)
    rig.node.faults = []
    await rig.settle(700)
    assert "healthy" == rig.cell.state.devices[unit].health
    assert {"r1", "r2"} == live(rig)


async def test_an_nvml_that_hangs_makes_nothing_known_and_ends_nothing() -> None:
    """Not even the listing comes back: no device is well, none is gone, every lease goes on."""
    rig = rig_of("L40S", "L40S")
    await rig.start()
    rig.submit("r1", WHOLE)
    await rig.settle(1)
    rig.node.faults = [Fault("nvmlDeviceGetCount_v2", "hang")]
    await rig.settle(40)
    known = rig.cell.state.devices.values()
    assert ["unknown", "unknown"] == [one.health for one in known]
    assert {"r1"} == live(rig)
    assert "queued" == rig.submit("r2", WHOLE)
    rig.node.faults = []
    await rig.settle(60)
    assert {"r1", "r2"} == live(rig)


async def test_a_hanging_gpu_of_which_the_kernel_tells_is_unhealthy(tmp_path: Path) -> None:
    """NVML does not answer; XID 119 in the kernel's log says why: its work is over."""
    log = tmp_path / "kern.log"
    log.touch()
    options = NodeOptions(
        patience=Patience(limit_us=5 * SECOND), watch=WatchOptions(kernel_log=log)
    )
    rig = Rig(("L40S", "L40S"), mig=False, options=options)
    await rig.start()
    rig.submit("r1", WHOLE)
    rig.submit("r2", WHOLE)
    await rig.settle(1)
    gpu = rig.node.gpus[0]
    rig.node.faults = [Fault("nvmlDeviceGetFieldValues", "hang", gpu=gpu.uuid)]
    say(log, gpu, "119, pid=1234, name=python3, Timeout after 6s of waiting for RPC response")
    await rig.settle(5)
    assert "unhealthy" == rig.cell.state.devices[gpu.uuid].health
    assert [("xid-119", "device")] == faults(rig)
    assert 1 == len(live(rig))
    # What cannot be looked at cannot be proved clean: it waits for a person.
    await rig.settle(200)
    assert "quarantined" == states(rig)[0]
    assert "leased" == states(rig)[1]


# -- the kernel's log ------------------------------------------------------------------------


def say(log: Path, gpu: FakeGpu, text: str, instance: str = "") -> None:
    """Let the kernel log an XID of a GPU."""
    address = gpu.pci_address[4:].rpartition(".")[0].lower()
    with log.open("a") as file:
        file.write(f"Nov 30 10:00:00 n1 kernel: NVRM: Xid (PCI:{address}{instance}): {text}\n")


async def test_an_xid_of_the_kernel_log_alone(tmp_path: Path) -> None:
    """NVML delivers nothing: the line has its effect after a while, with its process."""
    log = tmp_path / "kern.log"
    log.touch()
    rig = rig_of("L40S", "L40S", log=log)
    await rig.start()
    rig.submit("r1", WHOLE)
    rig.submit("r2", WHOLE)
    await rig.settle(1)
    say(log, rig.node.gpus[1], "94, pid=4711, name=python3, Contained: SM (0x1). RST: No")
    await rig.settle(1)
    assert [] == faults(rig), "NVML has the time to tell of it first"
    await rig.settle(5)
    assert [("xid-94", "scope")] == faults(rig)
    told = rig.last("device.health")
    assert ("kernel-log", 4711) == (told["evidence"]["source"], told["evidence"]["pid"])
    assert 1 == len(live(rig))


async def test_what_both_sources_tell_is_one_xid_in_the_finer_scope(tmp_path: Path) -> None:
    """The line says the device, NVML the instance: only the lease there ends, once."""
    log = tmp_path / "kern.log"
    log.touch()
    rig = rig_of(mig=True, log=log)
    gpu = rig.node.gpus[0]
    put_slice(gpu, "3g.40gb", 0)
    made, _ = put_slice(gpu, "3g.40gb", 4)
    await rig.start()
    rig.submit("r1", {"mode": "mig", "profile": "3g.40gb"})
    rig.submit("r2", {"mode": "mig", "profile": "3g.40gb"})
    await rig.settle(1)
    say(log, gpu, "94, pid=1, name=x, Contained")
    await rig.settle(1)
    await strike(rig, gpu, 94, made.id, seconds=10)
    assert 1 == len(faults(rig)) == len(live(rig))

    say(log, gpu, "31, pid=1, name=x, MMU Fault", f" GPU-I:{made.id:02d} GPU-CI:00")
    await rig.settle(5)
    told = rig.last("device.health")["fault"]
    assert ("xid-31", made.id, 0) == (told["code"], told["gi"], told["ci"])


async def test_the_log_is_followed_over_a_restart_of_the_agent(tmp_path: Path) -> None:
    """What was there before the first start is history; what comes while it is down is not."""
    log = tmp_path / "kern.log"
    rig = rig_of("L40S", log=log)
    say(log, rig.node.gpus[0], "79, GPU has fallen off the bus.")
    await rig.start()
    await rig.settle(5)
    assert [] == faults(rig)
    rig.agent.close()
    say(log, rig.node.gpus[0], "31, pid=1, name=x, MMU Fault")
    await rig.restart()
    await rig.settle(5)
    assert [("xid-31", "none")] == faults(rig)


# -- heat, ECC, rows -------------------------------------------------------------------------


async def test_heat_takes_a_device_out_of_use_and_gives_it_back() -> None:
    """Too hot for half a minute; back when it was cooler for a minute; its lease goes on."""
    rig = rig_of("H100-80GB")
    await rig.start()
    rig.submit("r1", WHOLE)
    gpu = rig.node.gpus[0]
    gpu.temperature_c = 95
    await rig.settle(15)
    assert ["leased"] == states(rig), "a peak is no fault"
    await rig.settle(40)
    assert ["unhealthy"] == states(rig)
    told = rig.last("device.health")
    assert ("too hot: 95 degrees Celsius", 90) == (told["reason"], told["evidence"]["slowdown_c"])
    assert {"r1"} == live(rig)
    gpu.temperature_c = 88
    await rig.settle(120)
    assert ["unhealthy"] == states(rig), "just below the limit is not cool"
    gpu.temperature_c = 70
    await rig.settle(90)
    assert ["leased"] == states(rig)
    assert "hot" == rig.last("device.health")["evidence"]["was"]


async def test_a_row_to_be_remapped_waits_for_a_reset() -> None:
    """Nothing new is placed there; after the reset the device is back, on record."""
    rig = rig_of("H100-80GB")
    await rig.start()
    gpu = rig.node.gpus[0]
    gpu.remapped = (0, 1, 1, 0)
    await rig.settle(15)
    assert ["unhealthy"] == states(rig)
    assert "a row of memory is remapped at the next reset" == rig.last("device.health")["reason"]
    gpu.remapped = (0, 1, 0, 0)
    await rig.settle(15)
    assert ["available"] == states(rig)
    assert "row-pending" == rig.last("device.health")["evidence"]["was"]


async def test_ecc_errors_that_no_xid_has_told_of() -> None:
    """With a verdict of the driver they are noted; without one they wait for a reset."""
    rig = rig_of("H100-80GB", "H100-80GB")
    await rig.start()
    first, second = rig.node.gpus
    second.recovery_action = None
    await rig.settle(15)
    for gpu in (first, second):
        gpu.ecc_errors[1, 0] = 2
    await rig.settle(15)
    assert [("ecc-uncorrected", "none")] * 2 == faults(rig)
    assert ["available", "unhealthy"] == states(rig)
    # A reset begins the count anew.
    second.ecc_errors.clear()
    await rig.settle(15)
    assert ["available", "available"] == states(rig)
    first.ecc_errors[0, 0] = 5_000
    await rig.settle(15)
    assert ("ecc-corrected", "none") == faults(rig)[-1]


# -- recovery, and flapping --------------------------------------------------------------------


async def test_a_recovery_is_recorded_with_what_it_was() -> None:
    """How long it took, and from what; the device is leased again after it."""
    rig = rig_of("H100-80GB")
    await rig.start()
    rig.submit("r1", WHOLE)
    await rig.settle(1)
    gpu = rig.node.gpus[0]
    gpu.recovery_action = 1
    await strike(rig, gpu, 95)
    assert "queued" == rig.submit("r2", WHOLE)
    await rig.settle(60)
    gpu.reset()
    await rig.settle(15)
    told = rig.last("device.health")
    assert ("healthy", "recovery-action") == (told["health"], told["evidence"]["was"])
    assert 60 <= told["evidence"]["after_s"] <= 80
    assert {"r2"} == live(rig)


async def test_a_flapping_device_is_held_back_for_longer_each_time() -> None:
    """The third fall within an hour costs a minute, the fourth two; a restart forgets nothing."""
    rig = rig_of("H100-80GB")
    await rig.start()
    gpu = rig.node.gpus[0]

    async def fall() -> None:
        gpu.recovery_action = 1
        await rig.settle(15)
        gpu.recovery_action = 0
        await rig.settle(15)

    await fall()
    await fall()
    assert ["available"] == states(rig)
    await fall()
    assert ["unhealthy"] == states(rig)
    assert "queued" == rig.submit("r1", WHOLE)
    await rig.restart()
    await rig.settle(30)
    assert ["unhealthy"] == states(rig)
    await rig.settle(40)
    assert {"r1"} == live(rig)
    assert (60, 3) == tuple(
        rig.last("device.health")["evidence"][name] for name in ("held_back_s", "faults")
    )
    await fall()
    await rig.settle(80)
    assert ["unhealthy"] == states(rig)
    await rig.settle(60)
    assert "unhealthy" not in states(rig)
    assert 120 == rig.last("device.health")["evidence"]["held_back_s"]


async def test_a_new_boot_begins_anew() -> None:
    """A reboot resets the device: what an XID had left is over."""
    rig = rig_of("H100-80GB")
    rig.node.gpus[0].recovery_action = None
    await rig.start()
    await strike(rig, rig.node.gpus[0], 143)
    assert ["unhealthy"] == states(rig)
    await rig.restart()
    assert ["unhealthy"] == states(rig), "the agent's restart resets nothing"
    rig.node.reboot()
    rig.node.gpus[0].recovery_action = None
    rig.boot = "machine-boot-2"
    await rig.restart()
    assert ["available"] == states(rig)


# -- one chain ---------------------------------------------------------------------------------


async def test_why_show_and_metering_tell_one_chain() -> None:
    """The XID is in one record with the end of the lease and the device's health.

    `why` names it for the request, `show` for the device, and the meter has the device out of
    use from that record to the recovery's.
    """
    rig = rig_of("H100-80GB")
    await rig.start()
    rig.submit("r1", WHOLE)
    await rig.settle(1)
    gpu = rig.node.gpus[0]
    gpu.processes.append(OnGpu(77, 900))
    gpu.recovery_action = 1
    await strike(rig, gpu, 95)
    await rig.settle(100)
    gpu.reset()
    await rig.settle(15)
    rig.submit("later", WHOLE)
    seen = history(rig.cell)

    chain = next(one for one in seen if any(
        event["type"] == "device.fault" for event in one.data.get("events", ())
    ))  # fmt: skip
    kinds = [event["type"] for event in chain.data["events"]]
    assert ["device.fault", "device.health", "lease.stopping", "order.issued"] == kinds

    found = why(rig.cell.state, seen, f"{TEAM}#r1")
    assert found is not None
    (ending,) = found.endings
    assert "device-fault" == ending.reason
    assert (ending.rule or "").startswith("xid-95: XID 95: uncontained memory error")

    shown = show({"c": rig.cell.state}, seen, gpu.uuid)
    told = [step.text for step in shown.timeline]
    assert any("xid-95" in text and "(ends: device)" in text for text in told)
    assert any(text.endswith("is healthy: healthy again") for text in told)

    cleared = next(
        one.data["time_us"] for one in seen if any(
            event.get("reason") == "healthy again" for event in one.data.get("events", ())
        )
    )  # fmt: skip
    sick_s = (cleared - chain.data["time_us"]) // SECOND
    assert sick_s - 1 <= spent_s(rig, "unhealthy") <= sick_s
    assert 100 <= sick_s


async def test_a_code_that_fails_is_no_fault_of_the_device() -> None:
    """Events cannot be had: the rest of the watch goes on, and the device stays in use."""
    rig = rig_of("H100-80GB")
    rig.node.faults = [Fault("nvmlEventSetCreate", Code.NOT_SUPPORTED)]
    await rig.start()
    await rig.settle(30)
    assert ["available"] == states(rig)
    rig.node.gpus[0].recovery_action = 1
    await rig.settle(15)
    assert ["unhealthy"] == states(rig)
