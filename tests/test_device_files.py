"""Who holds a device's file open: found by open files, part of the proof of clean and of doubt."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from collectors.agent.device_files import DeviceFiles, Holder, Holders, left_by
from collectors.agent.processes import HostProcesses
from collectors.fake_nvml.faults import Fault
from collectors.nvml.codes import Code
from collectors.nvml.doctor import host_checks
from ledger.core.state import device_state
from tests.node_support import SECOND, Rig
from tests.nvml_support import put_slice

if TYPE_CHECKING:
    from pathlib import Path

TICK_US = 1_000_000 // os.sysconf("SC_CLK_TCK")
CAPS = "proc/driver/nvidia/capabilities/gpu3/mig"


def process(root: Path, pid: int, *files: str, parent: int = 1, name: str = "py (x) y") -> None:
    """Make a process with open files; it was started ``pid`` ticks after the boot."""
    folder = root / f"proc/{pid}"
    (folder / "fd").mkdir(parents=True)
    rest = " ".join(["0"] * 17)
    (folder / "stat").write_text(f"{pid} ({name}) S {parent} {rest} {pid} 0 0\n")
    for number, file in enumerate(files):
        (folder / "fd" / str(number)).symlink_to(file)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a machine with processes: the agent is 100, and 101 its own."""
    process(tmp_path, 100, "/dev/nvidia3")
    process(tmp_path, 101, "/dev/nvidia3", parent=100)
    process(tmp_path, 7, "/dev/null", "socket:[1]", "/dev/nvidia3")
    process(tmp_path, 8, "/dev/nvidia30", "/dev/nvidiactl", "/dev/nvidia-caps/nvidia-cap12")
    process(tmp_path, 9)
    (tmp_path / CAPS / "gi2" / "ci0").mkdir(parents=True)
    for place, minor in (("gi2", 12), ("gi2/ci0", 13)):
        text = f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\n"
        (tmp_path / CAPS / place / "access").write_text(text)
    return tmp_path


def test_whoever_holds_the_file_is_found(root: Path) -> None:
    """The file itself and no other, with who it is; the agent and its NVML do not count."""
    files = DeviceFiles(root, own=100)
    assert Holders((Holder(7, "py (x) y", 7 * TICK_US),)) == files.holders(3)
    assert Holders(()) == files.holders(5)


def test_of_a_slice_it_is_the_capability_that_is_held(root: Path) -> None:
    """Each instance has one of its own; where the driver tells of none nothing is known."""
    files = DeviceFiles(root, own=100)
    found = files.holders(3, 2)
    assert found is not None
    assert [8] == [one.pid for one in found.found]
    assert Holders(()) == files.holders(3, 2, 0)
    assert files.holders(3, 5) is None
    assert files.holders(4, 2) is None


def test_what_may_not_be_read_is_counted(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be more among those than are found; and without /proc nothing is known."""
    scan = os.scandir

    def refused(path: Any) -> Any:
        if str(path).endswith(("/8/fd", "/9/fd")):
            raise PermissionError(13, "denied")
        return scan(path)

    monkeypatch.setattr("collectors.agent.device_files.os.scandir", refused)
    found = DeviceFiles(root, own=100).holders(3)
    assert found is not None
    assert (1, 2) == (len(found.found), found.unread)
    assert DeviceFiles(root / "nowhere").holders(3) is None


def test_who_could_not_be_looked_at_is_not_nobody(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Out of file descriptors nothing is seen; what has ended meanwhile is nothing to see."""
    scan, errors = os.scandir, {"/7/fd": OSError(24, "too many open files")}
    errors |= {"/8/fd": FileNotFoundError(2, "gone"), "/9/fd": ProcessLookupError(3, "gone")}

    def refused(path: Any) -> Any:
        for end, error in errors.items():
            if str(path).endswith(end):
                raise error
        return scan(path)

    monkeypatch.setattr("collectors.agent.device_files.os.scandir", refused)
    assert Holders((), 1) == DeviceFiles(root, own=100).holders(3)


def test_what_a_lease_may_have_left() -> None:
    """What names it, and what was started under it; not what was there, nor the machine's own."""
    since_us = 1_000 * SECOND
    before = Holder(1, "old", since_us - 60 * SECOND)
    named = Holder(2, "old", since_us - 60 * SECOND)
    early = Holder(3, "python", since_us - 2 * SECOND)
    late = Holder(4, "python", since_us + 60 * SECOND)
    own = Holder(5, "nv-hostengine", since_us + 60 * SECOND)
    assert (named, early, late) == left_by((before, named, early, late, own), [2], since_us)


def test_the_doctor_says_what_it_costs_not_to_see_open_files(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the right, and where there is no /proc at all."""

    def state() -> str:
        return next(one.state for one in host_checks(root) if one.name == "open files")

    assert "absent" == state()
    process(root, 1)
    assert "ok" == state()

    def refused(_: Any) -> Any:
        raise PermissionError(13, "denied")

    monkeypatch.setattr("pathlib.Path.iterdir", refused)
    assert "denied" == state()


# -- through the agent ---------------------------------------------------------------------


async def _leased(rig: Rig) -> str:
    """Have the card leased; return the lease."""
    await rig.start()
    assert "granted" == rig.submit("r1")
    await rig.settle(1)
    (lease,) = rig.cell.state.leases
    return lease


def _ends(rig: Rig, lease: str) -> None:
    assert "released" == rig.ask("lease.release", {"lease": lease}, source="/team/a")


async def test_a_lease_is_not_clean_while_it_holds_the_devices_file() -> None:
    """NVML lists nobody; who names the lease is made to end, and then the card is clean."""
    rig = Rig(("L40S",), mig=False)
    lease = await _leased(rig)
    rig.processes.leases[7] = lease
    rig.processes.files[0, None, None] = Holders((Holder(7, "python", rig.time.steady_us),), 1)
    _ends(rig, lease)
    await rig.settle(5)
    assert "cleaning" == device_state(rig.cell.state.devices[rig.node.gpus[0].uuid])
    assert (7, False) in rig.processes.ended
    rig.processes.files.clear()
    await rig.settle(5)
    evidence = rig.last("order.done")["evidence"]
    assert (0, 0) == (evidence["holders"], evidence["unread"])
    assert "available" == device_state(rig.cell.state.devices[rig.node.gpus[0].uuid])


async def test_who_came_under_the_lease_is_waited_for_and_never_ended_on_a_guess() -> None:
    """It does not say whose it is: what it holds is quarantined with the evidence in the end."""
    rig = Rig(("L40S",), mig=False)
    lease = await _leased(rig)
    rig.processes.files[0, None, None] = Holders((Holder(7, "python", rig.time.steady_us),))
    _ends(rig, lease)
    await rig.settle(90)
    assert [] == rig.processes.ended
    failed = rig.last("order.failed")
    assert "the device's file is held open" == failed["reason"]
    assert (1, 7) == (failed["evidence"]["holders"], failed["evidence"]["holder_pid"])
    assert "quarantined" == device_state(rig.cell.state.devices[rig.node.gpus[0].uuid])


@pytest.mark.parametrize(
    "holders",
    [None, Holders((), 5), Holders((Holder(7, "nvidia-persiste", 10**15),))],
    ids=["not to be known", "some not readable", "the machine's own"],
)
async def test_where_holders_are_unknown_or_not_its_own_the_rest_is_the_proof(
    holders: Holders | None,
) -> None:
    """As before: unknown is said in the evidence, and holds up nothing by itself."""
    rig = Rig(("L40S",), mig=False)
    lease = await _leased(rig)
    rig.processes.files[0, None, None] = holders
    _ends(rig, lease)
    await rig.settle(5)
    evidence = rig.last("order.done")["evidence"]
    assert (None if holders is None else len(holders.found)) == evidence["holders"]
    assert (0 if holders is None else holders.unread) == evidence["unread"]


async def test_what_came_after_a_reboot_is_nothing_that_a_lease_has_left() -> None:
    """Times count from the boot: those of the one before say nothing of what runs in this one."""
    rig = Rig(("L40S",), mig=False)
    await _leased(rig)
    rig.node.reboot()
    rig.boot = "machine-boot-2"
    rig.time.steady_us += 1_000 * SECOND
    rig.processes.files[0, None, None] = Holders((Holder(7, "python", rig.time.steady_us),))
    await rig.restart()
    await rig.settle(5)
    assert {} == rig.cell.state.leases
    assert 1 == rig.last("order.done")["evidence"]["holders"]
    assert "available" == device_state(rig.cell.state.devices[rig.node.gpus[0].uuid])


async def test_in_use_with_nobody_in_sight_names_who_has_the_files() -> None:
    """The driver says that somebody is there: the evidence says who it may be."""
    rig = Rig()
    put_slice(rig.node.gpus[0], "3g.40gb", 4)
    await rig.start()
    ((_, _, gi, _),) = rig.real()
    rig.node.faults = [Fault("nvmlComputeInstanceDestroy", Code.IN_USE)]
    rig.processes.files[0, gi, None] = Holders((Holder(4711, "leaker", 0),))
    rig.processes.files[0, None, None] = Holders((Holder(4711, "leaker", 0), Holder(1, "x", 0)), 2)
    rig.layout(0)
    await rig.settle(70)
    evidence = rig.last("order.failed")["evidence"]
    expected = {
        "instance_holders": 1, "device_holders": 2, "holders_unread": 2,
        "holder_pid": 4711, "holder": "leaker",
    }  # fmt: skip
    assert expected.items() <= evidence.items()


async def test_the_hosts_processes_look_below_their_root(root: Path) -> None:
    """In a thread, and with the same answer; this process is none of that machine's."""
    found = await HostProcesses(root).holders(3, None, None)
    assert found is not None
    assert {7, 100, 101} == {one.pid for one in found.found}
