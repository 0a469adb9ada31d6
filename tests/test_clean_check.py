"""The proof of clean: what is not known is not clean, and each finding has its evidence."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from collectors.agent.clean_check import TOLERANCE_MIB, Found, check, found_of, together
from collectors.agent.processes import LEASE_VARIABLE, HostProcesses
from collectors.fake_nvml.gpu import Process as OnGpu
from collectors.nvml.inventory import read_device
from collectors.nvml.readings import Process
from tests.nvml_support import make_node, put_slice, reading

if TYPE_CHECKING:
    from pathlib import Path

CLEAN = Found("GPU-a", processes=(), memory_mib=4, baseline_mib=4)


def on(*processes: Process, **more: Any) -> Found:
    """Return a unit with processes on it, all there unless ``states`` says otherwise."""
    states = {one.pid: "alive" for one in processes} | more.pop("states", {})
    return replace(CLEAN, processes=processes, states=states, **more)


COMPUTE, MPS = Process(7, "compute", 100), Process(8, "mps", 0)

CASES: dict[str, tuple[Found, str]] = {
    "nobody, and memory as before": (CLEAN, ""),
    "a little more memory than before": (replace(CLEAN, memory_mib=4 + TOLERANCE_MIB), ""),
    "gone, and only the driver can have let it go": (Found("MIG-a", gone=True), ""),
    "a process": (on(COMPUTE), "a process is left"),
    "graphics counts too": (on(Process(9, "graphics")), "a process is left"),
    "an MPS server": (on(MPS), "an MPS server or client is left"),
    "a zombie": (on(COMPUTE, states={7: "zombie"}), "a zombie holds the device"),
    "a pid that nobody has, and no memory": (on(COMPUTE, states={7: "absent"}), ""),
    "a pid that nobody has, and memory": (
        on(COMPUTE, states={7: "absent"}, memory_mib=500), "memory is left"
    ),
    "a pid of which nothing is known": (on(COMPUTE, states={7: "unknown"}), "a process is left"),
    "processes that cannot be listed": (
        replace(CLEAN, processes=None), "processes cannot be listed"
    ),
    "memory that cannot be read": (replace(CLEAN, memory_mib=None), "memory cannot be read"),
    "memory without anything to hold it against": (
        replace(CLEAN, baseline_mib=None), "no baseline of its memory is known"
    ),
    "leaked memory": (replace(CLEAN, memory_mib=5 + TOLERANCE_MIB), "memory is left"),
    "slices that somebody has made": (replace(CLEAN, instances=2), "MIG instances are left"),
    "a device that hangs": (Found("GPU-a", "hung: nvmlDeviceGetName"), "the device cannot be read"),
    "shared, and all who are there are others": (
        on(COMPUTE, leases={7: "l2"}, others=frozenset({"l2"}), memory_mib=900), ""
    ),
    "shared, and one is this lease's": (
        on(COMPUTE, leases={7: "l1"}, others=frozenset({"l2"})), "a process is left"
    ),
    "shared, and of one nobody knows": (
        on(COMPUTE, leases={7: None}, others=frozenset({"l2"})), "a process is left"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_clean_or_why_not(name: str) -> None:
    """The first that is wrong is the reason, and the numbers go with it."""
    found, why = CASES[name]

    verdict = check(found)

    assert why == verdict.why
    assert verdict.evidence
    assert (found.unit == verdict.evidence.get("unit")) == bool(why)


def test_a_lease_is_clean_when_all_its_units_are() -> None:
    """Numbers are summed, a number that is unknown makes the sum unknown."""
    one, other = check(CLEAN), check(replace(CLEAN, unit="GPU-b", memory_mib=900))
    verdict = together([one, other, one])

    assert "memory is left" == verdict.why
    assert ("GPU-b", 908, 12, 3) == tuple(
        verdict.evidence[name] for name in ("unit", "memory_mib", "baseline_mib", "units")
    )
    unknown = together([one, check(replace(CLEAN, memory_mib=None))])
    assert unknown.evidence["memory_mib"] is None
    assert "" == together([]).why


def test_a_slice_is_looked_at_by_itself() -> None:
    """Processes of its GPU and compute instance, its own memory; gone is gone."""
    node = make_node("n", ["H100-80GB"], mig=True)
    gpu = node.gpus[0]
    first, one = put_slice(gpu, "3g.40gb", 0)
    second, other = put_slice(gpu, "3g.40gb", 4)
    assert one is not None
    assert other is not None
    gpu.processes = [OnGpu(7, 500, gi=second.id, ci=other.id)]
    second.leaked_mib = 100

    def look(unit: str) -> Found:
        with reading(node) as session:
            session.host()
            device = read_device(session, gpu.uuid)
        return found_of(device, unit, baseline_mib=26, state=lambda _: "alive")

    assert ((), 26) == (look(one.uuid).processes, look(one.uuid).memory_mib)
    assert "" == check(look(one.uuid)).why
    assert [7] == [each.pid for each in look(other.uuid).processes or ()]
    assert 626 == look(other.uuid).memory_mib
    assert "a process is left" == check(look(other.uuid)).why
    # Whole, the device is not clean: slices are on it.
    gpu.processes = []
    assert 2 == look(gpu.uuid).instances
    gpu.destroy_ci(first, one)
    assert look(one.uuid).gone
    # Where instances cannot be listed, a missing one is not known to be gone.
    node.rights = frozenset({"processes"})
    assert not look(one.uuid).gone
    assert "the device cannot be read" == check(look(one.uuid)).why


def test_processes_of_this_machine(tmp_path: Path) -> None:
    """There, a zombie, or absent; and whose it says that it is."""
    proc = tmp_path / "proc"
    for pid, state in {1: "S", 2: "Z"}.items():
        (proc / str(pid)).mkdir(parents=True)
        (proc / str(pid) / "stat").write_text(f"{pid} (a) Z (b)) {state} 0 0")
    (proc / "1" / "environ").write_bytes(b"A=1\0" + LEASE_VARIABLE.encode() + b"=l1\0B=2\0")
    (proc / "2" / "environ").write_bytes(b"A=1\0")
    host = HostProcesses(tmp_path)

    assert ["alive", "zombie", "absent"] == [host.state(pid) for pid in (1, 2, 3)]
    assert ["l1", None, None] == [host.lease(pid) for pid in (1, 2, 3)]


def test_a_process_is_asked_and_then_made_to_end() -> None:
    """The signals are the gentle and the hard one; one that is gone is as good."""
    import signal  # noqa: PLC0415 - close to its use
    import subprocess  # noqa: PLC0415 - close to its use

    host = HostProcesses()
    for hard, expected in {False: signal.SIGTERM, True: signal.SIGKILL}.items():
        child = subprocess.Popen(["sleep", "60"])
        assert "" == host.end(child.pid, hard=hard)
        assert -expected == child.wait(10)
    # No kernel gives a process such a number.
    assert "" == host.end(2**30, hard=True)
