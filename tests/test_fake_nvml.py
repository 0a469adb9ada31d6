"""The fake library behind the real pynvml: what a driver does, it does."""

from __future__ import annotations

from ctypes import byref
from typing import TYPE_CHECKING, Any

import pynvml as nv
import pytest

from collectors.fake_nvml.boards import BOARDS
from collectors.fake_nvml.faults import CallHung, Fault
from collectors.fake_nvml.gpu import FakeGpu, Process, VgpuType
from collectors.fake_nvml.library import FUNCTIONS
from collectors.fake_nvml.node import Event, FakeNode, make_node, on
from collectors.fake_nvml.reader import fake_library
from collectors.nvml.codes import NO_VALUE, Code
from tests.nvml_support import put_slice

if TYPE_CHECKING:
    from collections.abc import Iterator

MIG_BOARDS = [name for name, board in BOARDS.items() if board.shapes]
PLAIN_BOARDS = [name for name, board in BOARDS.items() if not board.shapes]


@pytest.fixture
def node() -> Iterator[FakeNode]:
    """Return a node with an H100 in MIG mode and an A100 that is not, opened."""
    made = make_node("n1", ["H100-80GB", "A100-40GB"])
    made.gpus[0].mig = made.gpus[0].mig_pending = 1
    with fake_library(), on(made):
        nv.nvmlInit()
        yield made


def handle(index: int = 0) -> Any:
    """Return a device's handle."""
    return nv.nvmlDeviceGetHandleByIndex(index)


def create(device: Any, profile: int, start: int, size: int) -> Any:
    """Create a GPU instance at a place."""
    wanted = nv.c_nvmlGpuInstancePlacement_t(start, size)
    return nv.nvmlDeviceCreateGpuInstanceWithPlacement(device, profile, byref(wanted))


def ids_of(gpu: FakeGpu) -> dict[int, tuple[int, int]]:
    """Return place by GPU instance id."""
    return {one.id: (one.start, one.shape.size) for one in gpu.instances.values()}


def test_codes_are_those_of_pynvml() -> None:
    """Every code that pynvml knows has the same number here."""
    theirs = {
        name.removeprefix("NVML_ERROR_"): getattr(nv, name)
        for name in dir(nv)
        if name.startswith("NVML_ERROR_")
    }

    assert theirs == {one.name: one.value for one in Code if one is not Code.SUCCESS}


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_every_function_is_one_that_pynvml_calls(name: str) -> None:
    """A function of the fake that pynvml never asks for would be tested by nobody."""
    source = nv.__loader__.get_source("pynvml")

    assert f'"{name}"' in source


@pytest.mark.parametrize("name", MIG_BOARDS)
def test_a_boards_profiles_fit_as_often_as_it_says(name: str) -> None:
    """For each profile, its most instances stand side by side, and no more."""
    board = BOARDS[name]
    for shape in board.shapes:
        gpu = FakeGpu(board, "GPU-x", mig=1)
        made = [gpu.create_gi(shape.id, None)[0] for _ in range(shape.most + 1)]

        assert [Code.SUCCESS] * shape.most + [Code.INSUFFICIENT_RESOURCES] == made, shape.name
        assert all(0 <= start <= board.units - shape.size for start in shape.starts)


def test_ids_to_create_by_are_not_the_numbers_to_ask_by(node: FakeNode) -> None:
    """A caller that mixes up enum and id must fail here, as it does on hardware."""
    info = nv.nvmlDeviceGetGpuInstanceProfileInfo(handle(), nv.NVML_GPU_INSTANCE_PROFILE_1_SLICE)

    assert (19, "MIG 1g.10gb", 9984) == (info.id, info.name, info.memorySizeMB)
    with pytest.raises(nv.NVMLError_InvalidArgument):
        create(handle(), nv.NVML_GPU_INSTANCE_PROFILE_2_SLICE, 0, 2)


def test_order_matters_without_a_place() -> None:
    """The guide's example: 1g 1g 2g 3g fails where 3g 1g 2g 1g works."""
    board = BOARDS["A100-40GB"]
    last = {}
    for order in ((19, 19, 14, 9), (9, 19, 14, 19)):
        gpu = FakeGpu(board, "GPU-x", mig=1)
        last[order] = [gpu.create_gi(one, None)[0] for one in order][-1]

    assert [Code.INSUFFICIENT_RESOURCES, Code.SUCCESS] == list(last.values())


def test_an_occupied_place_is_said_to_be_a_lack_of_resources(node: FakeNode) -> None:
    """NVML does not say that the place is taken: only reading tells."""
    create(handle(), 19, 0, 1)

    with pytest.raises(nv.NVMLError_InsufficientResources):
        create(handle(), 9, 0, 4)
    assert {7: (0, 1)} == ids_of(node.gpus[0])


@pytest.mark.parametrize(
    ("board", "profile", "start", "gi"),
    [
        ("A100-40GB", "3g.20gb", 4, 1),
        ("A100-40GB", "4g.20gb", 0, 2),
        ("A100-40GB", "2g.10gb", 2, 4),
        ("A100-40GB", "1g.5gb", 6, 13),
        ("H100-80GB", "3g.40gb", 4, 2),
        ("A30-24GB", "1g.6gb", 2, 5),
        ("RTX-PRO-6000", "2g.48gb", 0, 1),
        ("RTX-PRO-6000", "1g.24gb", 9, 6),
    ],
)
def test_instance_ids_are_those_seen_on_boards(
    board: str, profile: str, start: int, gi: int
) -> None:
    """A GPU instance's id is mostly a function of its size and place."""
    gpu = FakeGpu(BOARDS[board], "GPU-x", mig=1)
    put_slice(gpu, profile, start)

    assert [gi] == list(gpu.instances)


def test_a_recreated_instance_has_its_old_uuid_or_another(node: FakeNode) -> None:
    """A MIG UUID names no lifetime: it may come back, and it may not."""
    gpu = node.gpus[0]
    seen = []
    for shifted in (0, 0, 1):
        gpu.shifted = shifted
        instance, compute = put_slice(gpu, "1g.10gb", 0)
        assert compute is not None
        seen.append((instance.id, compute.uuid))
        gpu.destroy_ci(instance, compute)
        gpu.destroy_gi(instance)

    assert seen[0] == seen[1]
    assert seen[2][0] == seen[0][0]
    assert seen[2][1] != seen[0][1]


def test_instances_are_destroyed_from_the_inside_out(node: FakeNode) -> None:
    """In use: a compute instance with a process, a GPU instance with a compute instance."""
    gpu, device = node.gpus[0], handle()
    instance = create(device, 14, 0, 2)
    compute = nv.nvmlGpuInstanceCreateComputeInstance(instance, 1)
    gpu.processes.append(Process(4711, 100, gi=3, ci=0))
    with pytest.raises(nv.NVMLError_InUse):
        nv.nvmlComputeInstanceDestroy(compute)
    gpu.processes.clear()
    with pytest.raises(nv.NVMLError_InUse):
        nv.nvmlGpuInstanceDestroy(instance)
    nv.nvmlComputeInstanceDestroy(compute)
    gpu.instances[3].stuck = 1
    with pytest.raises(nv.NVMLError_InUse):
        nv.nvmlGpuInstanceDestroy(instance)
    nv.nvmlGpuInstanceDestroy(instance)

    assert {} == gpu.instances
    with pytest.raises(nv.NVMLError_NotFound):
        nv.nvmlGpuInstanceGetInfo(instance)


@pytest.mark.parametrize(
    ("gpu", "setup", "mode", "status", "after"),
    [
        pytest.param(1, {}, 1, Code.SUCCESS, [1, 1], id="an idle A100 is reset at once"),
        pytest.param(1, {"clients": 1}, 1, Code.IN_USE, [0, 1], id="a hidden client"),
        pytest.param(1, {"virtualization": 1}, 1, Code.RESET_REQUIRED, [0, 1], id="a guest"),
        pytest.param(0, {}, 0, Code.SUCCESS, [0, 0], id="an H100 needs no reset"),
        pytest.param(0, {"clients": 1}, 0, Code.IN_USE, [1, 0], id="a client on an H100"),
    ],
)
def test_a_change_of_mode_succeeds_and_may_not_have_worked(
    node: FakeNode, gpu: int, setup: dict[str, int], mode: int, status: Code, after: list[int]
) -> None:
    """The call's success says nothing: the activation status and the modes do."""
    for name, value in setup.items():
        setattr(node.gpus[gpu], name, value)

    assert status == nv.nvmlDeviceSetMigMode(handle(gpu), mode)
    assert after == nv.nvmlDeviceGetMigMode(handle(gpu))


def test_a_reboot_ends_instances_and_on_hopper_the_mode(node: FakeNode) -> None:
    """Ampere keeps the mode in its InfoROM, Hopper in the kernel module only."""
    node.gpus[1].set_mig(1)
    for gpu in node.gpus:
        gpu.create_gi(19, 0)
    node.reboot()
    with pytest.raises(nv.NVMLError_Uninitialized):
        nv.nvmlDeviceGetCount()
    nv.nvmlInit()

    assert [[0, 0], [1, 1]] == [nv.nvmlDeviceGetMigMode(handle(at)) for at in (0, 1)]
    assert [{}, {}] == [gpu.instances for gpu in node.gpus]


def test_process_lists_of_all_kinds_come_through(node: FakeNode) -> None:
    """Compute, graphics and MPS lists hold their own, with unknown memory as None."""
    node.gpus[0].processes = [
        Process(1, 100, gi=2, ci=0),
        Process(2, None, "graphics"),
        Process(3, 5, "mps", gi=2, ci=0),
    ]
    lists = [
        nv.nvmlDeviceGetComputeRunningProcesses(handle()),
        nv.nvmlDeviceGetGraphicsRunningProcesses(handle()),
        nv.nvmlDeviceGetMPSComputeRunningProcesses(handle()),
    ]
    seen = [(one.pid, one.usedGpuMemory, one.gpuInstanceId) for each in lists for one in each]

    assert [(1, 100 << 20, 2), (2, None, NO_VALUE), (3, 5 << 20, 2)] == seen


def test_without_rights_lists_of_processes_are_empty_and_instances_denied(node: FakeNode) -> None:
    """NVML withholds processes in silence, and refuses instances aloud."""
    put_slice(node.gpus[0], "1g.10gb", 0)
    node.gpus[0].processes = [Process(1, 100, gi=7, ci=0)]
    node.rights = frozenset()

    assert [] == nv.nvmlDeviceGetComputeRunningProcesses(handle())
    with pytest.raises(nv.NVMLError_NoPermission):
        create(handle(), 19, 1, 1)
    with pytest.raises(nv.NVMLError_NoPermission):
        nv.nvmlDeviceSetMigMode(handle(), 0)


def test_events_come_in_their_scopes_and_only_from_registration_on(node: FakeNode) -> None:
    """Whole GPU, GPU instance, compute instance; what was before is not told."""
    gpu = node.gpus[0]
    events = nv.nvmlEventSetCreate()
    xid = nv.nvmlEventTypeXidCriticalError
    node.happen(Event(gpu, xid, 13))
    nv.nvmlDeviceRegisterEvents(handle(), xid, events)
    for scope in ((), (2,), (2, 0)):
        node.happen(Event(gpu, xid, 94, *scope))
    node.happen(Event(gpu, nv.nvmlEventTypeClock, 1))
    seen = [nv.nvmlEventSetWait_v2(events, 0) for _ in range(3)]

    scopes = [(one.eventData, one.gpuInstanceId, one.computeInstanceId) for one in seen]
    assert [(94, NO_VALUE, NO_VALUE), (94, 2, NO_VALUE), (94, 2, 0)] == scopes
    assert gpu.uuid == nv.nvmlDeviceGetUUID(seen[0].device)
    with pytest.raises(nv.NVMLError_Timeout):
        nv.nvmlEventSetWait_v2(events, 0)
    node.lose(gpu)
    with pytest.raises(nv.NVMLError_GpuIsLost):
        nv.nvmlEventSetWait_v2(events, 0)


@pytest.mark.parametrize(
    ("fault", "expected"),
    {
        "a code": (Fault("nvmlDeviceGetPowerUsage", Code.UNKNOWN), nv.NVMLError_Unknown),
        "a lost GPU": (Fault("nvmlDeviceGetPowerUsage", Code.GPU_IS_LOST), nv.NVMLError_GpuIsLost),
        "a hang": (Fault("nvmlDeviceGetPowerUsage", "hang"), CallHung),
    }.items(),
)
def test_faults_strike_as_often_as_they_should(
    node: FakeNode, fault: str, expected: tuple[Fault, type[Exception]]
) -> None:
    """After so many good calls, so many bad ones, on that device only."""
    wrong, error = expected
    wrong.gpu, wrong.skip, wrong.times = node.gpus[0].uuid, 1, 1
    node.faults.append(wrong)

    nv.nvmlDeviceGetPowerUsage(handle(0))
    nv.nvmlDeviceGetPowerUsage(handle(1))
    with pytest.raises(error):
        nv.nvmlDeviceGetPowerUsage(handle(0))
    nv.nvmlDeviceGetPowerUsage(handle(0))


def test_a_call_can_work_and_fail_to_say_so(node: FakeNode) -> None:
    """What was done stays done: the device has to be read to know."""
    node.faults.append(
        Fault("nvmlDeviceCreateGpuInstanceWithPlacement", Code.UNKNOWN, "after", times=1)
    )
    with pytest.raises(nv.NVMLError_Unknown):
        create(handle(), 19, 0, 1)

    assert {7: (0, 1)} == ids_of(node.gpus[0])


def test_a_missing_symbol_is_missing_on_that_node_only(node: FakeNode) -> None:
    """Pynvml keeps what it has found for the process, so both ways to miss it are needed."""
    other = make_node("n2", ["T4"])
    other.missing = frozenset({"nvmlDeviceGetPowerUsage"})
    for order in ((other, node), (node, other)):
        nv._nvmlGetFunctionPointer_cache.clear()
        for one in order:
            with on(one):
                nv.nvmlInit()
                if one is other:
                    with pytest.raises(nv.NVMLError_FunctionNotFound):
                        nv.nvmlDeviceGetPowerUsage(handle())
                else:
                    assert 60_000 == nv.nvmlDeviceGetPowerUsage(handle())


def test_vgpu_types_are_those_of_a_vgpu_host(node: FakeNode) -> None:
    """A type backed by MIG names its profile; elsewhere there are no types."""
    gpu = node.gpus[0]
    with pytest.raises(nv.NVMLError_NotSupported):
        nv.nvmlDeviceGetSupportedVgpus(handle())
    gpu.virtualization = 3
    gpu.vgpu_types = (VgpuType(9, "NVIDIA H100-1-10C", 7, 9_984, 19), VgpuType(8, "X", 4, 100))

    assert [9, 8] == nv.nvmlDeviceGetSupportedVgpus(handle())
    assert "NVIDIA H100-1-10C" == nv.nvmlVgpuTypeGetName(9)
    assert [19, NO_VALUE] == [nv.nvmlVgpuTypeGetGpuInstanceProfileId(one) for one in (9, 8)]


@pytest.mark.parametrize("name", PLAIN_BOARDS)
def test_boards_without_mig_say_so(name: str) -> None:
    """MIG calls of a T4 or L40S are not supported, which is no error of theirs."""
    with fake_library(), on(make_node("n1", [name])):
        nv.nvmlInit()
        with pytest.raises(nv.NVMLError_NotSupported):
            nv.nvmlDeviceGetMigMode(handle())
        with pytest.raises(nv.NVMLError_NotSupported):
            nv.nvmlDeviceGetMaxMigDeviceCount(handle())


def test_one_process_is_many_nodes() -> None:
    """Which node answers is chosen by context, with one library for all."""
    nodes = [make_node(f"n{at}", ["T4"] * at) for at in range(3)]
    counts = []
    with fake_library():
        for one in nodes:
            with on(one):
                nv.nvmlInit()
                counts.append(nv.nvmlDeviceGetCount())

    assert [0, 1, 2] == counts
