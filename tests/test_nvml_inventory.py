"""A device read whole: by UUID, with every instance, and what is missing as missing."""

from __future__ import annotations

import pytest

from collectors.fake_nvml.boards import BOARDS
from collectors.fake_nvml.faults import Fault
from collectors.fake_nvml.gpu import Process, VgpuType
from collectors.fake_nvml.library import FUNCTIONS
from collectors.fake_nvml.node import FakeNode, make_node
from collectors.nvml.codes import Code
from collectors.nvml.inventory import read_device, read_processes
from collectors.nvml.readings import Fabric, NvLink, Remapped, Vgpu
from collectors.nvml.readings import Process as Seen
from collectors.nvml.steps import create_ci, create_gi, destroy_ci, destroy_gi, set_mig_mode
from collectors.nvml.use import read_use
from tests.nvml_support import put_slice, reading


def one(board: str, *, mig: bool = False) -> FakeNode:
    """Return a node with one GPU."""
    return make_node("n1", [board], mig=mig)


def test_c01_devices_are_known_by_uuid_whatever_their_number_is() -> None:
    """The index shifts when a card disappears, and no device becomes another."""
    node = make_node("n1", ["T4"] * 4)
    uuids = [gpu.uuid for gpu in node.gpus]
    with reading(node) as session:
        before = session.host().listed
        node.gpus[1].listed = False
        after = session.host().listed
        last = read_device(session, uuids[3])

    assert [(at, uuid) for at, uuid in enumerate(uuids)] == [(x.index, x.uuid) for x in before]
    assert [uuids[0], uuids[2], uuids[3]] == [x.uuid for x in after]
    assert (uuids[3], 3) == (last.uuid, last.minor)


def test_c01_an_entry_that_fails_costs_the_others_nothing() -> None:
    """The listing still has four entries, and one of them answers with an error."""
    node = make_node("n1", ["T4"] * 4)
    node.lose(node.gpus[1])
    with reading(node) as session:
        listed = session.host().listed
        lost = read_device(session, node.gpus[1].uuid)

    assert [None if at == 1 else node.gpus[at].uuid for at in range(4)] == [x.uuid for x in listed]
    assert ["", "gpu-is-lost", "", ""] == [x.why for x in listed]
    assert ("gpu-is-lost", None) == (lost.why, lost.model)


def test_c03_empty_slots_are_no_slices_and_no_errors() -> None:
    """Slots 0, 2 and 5 of 7 hold slices; what is not available is missing, not 0."""
    node = one("A100-40GB", mig=True)
    gpu = node.gpus[0]
    made = [put_slice(gpu, "1g.5gb", start) for start in range(6)]
    for at in (1, 3, 4):
        instance, compute = made[at]
        assert compute is not None
        gpu.destroy_ci(instance, compute)
        gpu.destroy_gi(instance)
    gpu.temperature_c = None
    with reading(node) as session:
        device = read_device(session, gpu.uuid)
        use = read_use(session, gpu.uuid)

    assert [0, 2, 5] == [each.start for each in device.instances]
    assert [0, 2, 5] == [x.slot for _, x in gpu.compute()]
    assert 3 == len(use.instances)
    assert (None, None) == (use.gpu_percent, use.temperature_c)
    assert "not-supported" == use.missing["utilization"] == use.missing["temperature"]


def test_a_slot_that_fails_otherwise_is_an_error_of_that_slot() -> None:
    """Not found is empty; anything else is told, and the rest is read."""
    node = one("A100-40GB", mig=True)
    gpu = node.gpus[0]
    put_slice(gpu, "1g.5gb", 0)
    name = "nvmlDeviceGetMigDeviceHandleByIndex"
    node.faults = [Fault(name, Code.UNKNOWN, skip=3, times=1)]
    with reading(node) as session:
        device = read_device(session, gpu.uuid)

    assert "unknown" == device.missing["mig_device 3"]
    assert [0] == [each.start for each in device.instances]


def test_an_instance_without_a_compute_instance_is_seen() -> None:
    """A walk over MIG devices misses it, the listing by profile does not."""
    node = one("H100-80GB", mig=True)
    put_slice(node.gpus[0], "3g.40gb", 4)
    put_slice(node.gpus[0], "1g.10gb", 0, bare=True)
    with reading(node) as session:
        device = read_device(session, node.gpus[0].uuid)

    assert [(2, 4, 1), (7, 0, 0)] == [(x.gi, x.start, len(x.compute)) for x in device.instances]
    assert "" == device.instances_why


def test_without_the_right_to_list_the_walk_is_what_is_left() -> None:
    """The instances that can be seen are there without a place, and the list is not whole."""
    node = one("H100-80GB", mig=True)
    put_slice(node.gpus[0], "3g.40gb", 4)
    put_slice(node.gpus[0], "1g.10gb", 0, bare=True)
    node.rights = frozenset()
    with reading(node) as session:
        device = read_device(session, node.gpus[0].uuid)

    assert "no-permission" == device.instances_why
    assert [(2, None, 3)] == [(x.gi, x.start, x.compute[0].slices) for x in device.instances]


@pytest.mark.parametrize("name", [name for name, board in BOARDS.items() if board.shapes])
def test_profiles_and_placements_are_the_devices_own(name: str) -> None:
    """Names, sizes and places are read, with the id to create by."""
    node = one(name, mig=True)
    with reading(node) as session:
        device = read_device(session, node.gpus[0].uuid)

    table = {x.name: (x.enum, x.id, x.slices, x.size, x.starts, x.most) for x in device.profiles}
    assert table == {
        x.name: (x.enum, x.id, x.slices, x.size, x.starts, x.most) for x in BOARDS[name].shapes
    }


def test_several_compute_instances_of_one_share_its_memory() -> None:
    """1c slices of a 3g are named so, and show one memory."""
    node = one("H100-80GB", mig=True)
    gpu = node.gpus[0]
    _, made = gpu.create_gi(9, 0)
    assert made is not None
    for _ in range(3):
        gpu.create_ci(made, 0, None)
    gpu.processes = [Process(5, 100, gi=1, ci=2)]
    with reading(node) as session:
        instance = read_device(session, gpu.uuid).instances[0]
        use = read_use(session, gpu.uuid)

    assert [("1c.3g.40gb", at, 126) for at in range(3)] == [
        (x.name, x.start, x.used_mib) for x in instance.compute
    ]
    assert [(1, 126)] == [(x.gi, x.used_mib) for x in use.instances]


def test_processes_of_all_lists_are_read() -> None:
    """Compute, graphics and MPS; a slice's too, which the device's own list may withhold."""
    node = one("H100-80GB", mig=True)
    gpu = node.gpus[0]
    put_slice(gpu, "1g.10gb", 0)
    gpu.processes = [Process(1, 7, "mps", gi=7, ci=0), Process(2, None, "compute", gi=7, ci=0)]
    expected = {Seen(1, "mps", 7, 7, 0), Seen(2, "compute", None, 7, 0)}
    for rights in (node.rights, frozenset({"mig-config"})):
        node.rights = rights
        with reading(node) as session:
            found = read_processes(session, gpu.uuid)

        assert expected == set(found or ())


def test_a_list_of_processes_that_cannot_be_read_is_not_nobody() -> None:
    """One of the three lists failing makes the answer missing: a release rests on it."""
    node = one("T4")
    node.faults = [Fault("nvmlDeviceGetMPSComputeRunningProcesses_v3", Code.UNKNOWN)]
    with reading(node) as session:
        assert read_processes(session, node.gpus[0].uuid) is None
        assert read_device(session, node.gpus[0].uuid).processes is None


def test_the_rest_of_a_device() -> None:
    """ECC, remapped rows, verdict, links, fabric, vGPU types, encoder: as they are."""
    node = one("H100-80GB")
    gpu = node.gpus[0]
    gpu.ecc_errors = {(1, 0): 3}
    gpu.remapped = (1, 2, 1, 0)
    gpu.recovery_action = 1
    gpu.nvlinks = {0: None, 1: "00000000:02:00.0"}
    gpu.fabric = ("3b9c8ed7-0000-4000-8000-00000000abcd", 5)
    gpu.virtualization = 3
    gpu.vgpu_types = (VgpuType(9, "H100-1-10C", 7, 9_984, 19, creatable=False),)
    gpu.encoder_stats = (2, 60, 900)
    with reading(node) as session:
        device = read_device(session, gpu.uuid)

    assert device.ecc is not None
    assert (True, 0, 3, 0) == (
        device.ecc.enabled,
        device.ecc.corrected,
        device.ecc.uncorrected,
        device.ecc.uncorrected_ever,
    )
    assert Remapped(1, 2, pending=True, failed=False) == device.remapped
    assert 1 == device.recovery_action
    assert (NvLink(0, active=True), NvLink(1, True, "0000:02:00.0")) == device.nvlinks
    assert Fabric("3b9c8ed7-0000-4000-8000-00000000abcd", 5) == device.fabric
    assert (Vgpu(9, "H100-1-10C", 7, 9_984, False, 19),) == device.vgpus
    assert (2, 100) == (device.encoder_sessions, device.encoder_capacity_percent)


@pytest.mark.parametrize("symbol", sorted(FUNCTIONS))
@pytest.mark.parametrize("code", [Code.UNKNOWN, Code.NOT_SUPPORTED, Code.NO_PERMISSION])
def test_no_single_failure_stops_the_reading(symbol: str, code: Code) -> None:
    """Whatever call fails, with whatever code: a device is returned, or why there is none."""
    node = one("H100-80GB", mig=True)
    put_slice(node.gpus[0], "1g.10gb", 0)
    node.faults = [Fault(symbol, code)]
    with reading(node) as session:
        host = session.host()
        device = read_device(session, node.gpus[0].uuid)
        use = read_use(session, node.gpus[0].uuid, slow=True, since_us=0)

    assert node.gpus[0].uuid == device.uuid == use.uuid
    assert host.why or host.listed


def test_a_device_that_is_lost_on_the_way_is_lost() -> None:
    """What was read before does not make it a device that is there."""
    node = one("H100-80GB")
    node.faults = [Fault("nvmlDeviceGetTotalEccErrors", Code.GPU_IS_LOST)]
    with reading(node) as session:
        device = read_device(session, node.gpus[0].uuid)

    assert "gpu-is-lost" == device.why


@pytest.mark.parametrize(
    "code", [Code.LIBRARY_NOT_FOUND, Code.DRIVER_NOT_LOADED, Code.LIB_RM_VERSION_MISMATCH]
)
def test_nvml_that_does_not_start_says_why(code: Code) -> None:
    """No library, no driver, or one of another version."""
    node = one("T4")
    node.faults = [Fault("nvmlInitWithFlags", code)]
    with reading(node) as session:
        assert code.name.lower().replace("_", "-") == session.host().why


def test_a_session_outlives_a_reload_of_the_driver() -> None:
    """Handles of before are taken anew, and the version is the new one."""
    node = one("H100-80GB", mig=True)
    with reading(node) as session:
        session.host()
        node.reload_driver("595.80")
        device = read_device(session, node.gpus[0].uuid)

        assert ("595.80", False) == (session.host().driver, device.mig)


def test_steps_change_one_thing_each() -> None:
    """Mode, GPU instance, compute instance; and back; and what is gone already is gone."""
    node = one("A100-80GB")
    gpu = node.gpus[0]
    with reading(node) as session:
        mode = set_mig_mode(session, gpu.uuid, enabled=True)
        made = create_gi(session, gpu.uuid, profile=9, start=4, size=4)
        slice_ = create_ci(session, gpu.uuid, gi=made["gi"], profile=2, start=0, size=3)
        there = read_device(session, gpu.uuid).instances
        ended = [
            destroy_ci(session, gpu.uuid, gi=made["gi"], ci=slice_["ci"]),
            destroy_ci(session, gpu.uuid, gi=made["gi"], ci=slice_["ci"]),
            destroy_gi(session, gpu.uuid, gi=made["gi"]),
            destroy_gi(session, gpu.uuid, gi=made["gi"]),
        ]

    assert {"activation": "success", "current": True, "pending": True} == mode
    assert [(1, 4, slice_["uuid"])] == [(x.gi, x.start, x.compute[0].uuid) for x in there]
    assert [True, False, True, False] == ended
    assert {} == gpu.instances


def test_c09_a_mode_that_is_pending_is_not_in_force() -> None:
    """The call succeeds, the mode is off now and on after a reboot."""
    node = one("A100-80GB")
    node.gpus[0].clients = 1
    with reading(node) as session:
        mode = set_mig_mode(session, node.gpus[0].uuid, enabled=True)
        device = read_device(session, node.gpus[0].uuid)

    assert {"activation": "in-use", "current": False, "pending": True} == mode
    assert (False, True, ()) == (device.mig, device.mig_pending, device.instances)
