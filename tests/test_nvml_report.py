"""From what was read to what the ledger is told: nothing that is not known to be there."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from collectors.fake_nvml.boards import BOARDS
from collectors.fake_nvml.faults import Fault
from collectors.fake_nvml.gpu import VgpuType
from collectors.fake_nvml.library import FUNCTIONS
from collectors.fake_nvml.node import FakeNode, make_node
from collectors.fake_nvml.reader import FakeAsker, fake_library
from collectors.nvml.codes import Code
from collectors.nvml.doctor import device_checks, host_checks, nvml_check
from collectors.nvml.host_facts import (
    HostFacts,
    host_facts,
    incarnation_of,
    iommu_group,
    process_there,
)
from collectors.nvml.reader import Inventory, NvmlReader
from collectors.nvml.readings import Device, Fabric, Host, Memory, NvLink, Pci, Remapped, Vgpu
from collectors.nvml.report import (
    Note,
    Standing,
    device_report,
    health_of,
    links_of,
    node_inventory,
)
from ledger.core.derived.makers import read_geometry
from ledger.core.mig.layouts import Instance, legal_starts, occupation_fault
from ledger.testing import CoreDriver
from schemas.catalogue import adapter
from tests.nvml_support import put_slice

if TYPE_CHECKING:
    from pathlib import Path

    from schemas.observations import DeviceReport, NodeInventory

STANDING = Standing("gpu-01", "main", {"rack": "a7"}, {"NVIDIA L40S": (3, 6)})
FACTS = HostFacts("abc-1", 64_000, 524_288)
MEMORY = Memory(81_559, 479, 0, 81_080)
HEALTHY = Device("GPU-1", model="NVIDIA H100 80GB HBM3", memory=MEMORY, recovery_action=0)


async def told(node: FakeNode, **more: Any) -> tuple[NodeInventory, list[Note]]:
    """Return the observation of a fake node, as it crosses a topic, and the notes."""
    with fake_library():
        inventory = await NvmlReader(FakeAsker(node)).inventory()
    report, notes = node_inventory(inventory, STANDING, FACTS, epoch=3, **more)
    assert report is not None
    kept = adapter("node.inventory", 1).validate_json(orjson.dumps(report.model_dump(mode="json")))
    assert report == kept
    return report, notes


async def one(gpu_of: str, *, mig: bool = False) -> DeviceReport:
    """Return the report of a node's only device."""
    report, _ = await told(make_node("n1", [gpu_of], mig=mig))
    return report.devices[0]


@pytest.mark.parametrize("name", BOARDS)
async def test_what_a_board_reports_can_be_planned_with(name: str) -> None:
    """The ledger's geometry of each board takes every profile as often as the board does."""
    device = await one(name, mig=True)
    geometry = read_geometry([x.model_dump() for x in device.profiles], device.compute_slices)
    if not BOARDS[name].shapes:
        assert (False, (), 0) == (device.mig_enabled, device.profiles, device.compute_slices)
        return

    assert geometry is not None
    for shape in BOARDS[name].shapes:
        placed: list[Instance] = []
        while starts := legal_starts(geometry, placed, shape.name):
            placed.append(Instance(max(starts), shape.size, shape.name))
        assert shape.most == len(placed), shape.name
        assert occupation_fault(geometry, placed) is None


async def test_a_node_as_the_ledger_has_it() -> None:
    """Host, driver and each device's facts; slices with their place; PCI as sysfs has it."""
    node = make_node("n1", ["H100-80GB", "L40S"])
    gpu = node.gpus[0]
    gpu.set_mig(1)
    _, compute = put_slice(gpu, "3g.40gb", 4)
    gpu.virtualization = 3
    gpu.vgpu_types = (VgpuType(9, "NVIDIA H100-1-10C", 7, 9_984, 19),)
    report, notes = await told(node, group_of={"0000:02:00.0": "41"}.get)
    first, second = report.devices
    assert compute is not None

    assert [] == notes
    assert ("gpu-01", "abc-1", 3, "main", 64_000, 524_288, "590.48.01", {"rack": "a7"}) == (
        report.node,
        report.incarnation,
        report.epoch,
        report.pool,
        report.cpu_milli,
        report.memory_mib,
        report.driver,
        report.labels,
    )
    assert {
        "uuid": gpu.uuid,
        "model": "NVIDIA H100 80GB HBM3",
        "memory_mib": 81_559,
        "health": "healthy",
        "index": 0,
        "architecture": "hopper",
        "capability": "9.0",
        "compute_slices": 7,
        "mig_enabled": True,
        "pci_address": "0000:01:00.0",
    }.items() <= first.model_dump().items()
    assert [(compute.uuid, "3g.40gb", 2, 0, 4, 4, 3, 40_448)] == [
        tuple(x.model_dump().values()) for x in first.slices
    ]
    assert [("H100-1-10C", 7, 9_984)] == [(x.type, x.most, x.memory_mib) for x in first.vgpu_types]
    assert (False, "ada", "41", 3, 6) == (
        second.mig_enabled,
        second.architecture,
        second.iommu_group,
        second.encoder_sessions,
        second.decoder_sessions,
    )


async def test_a_bare_instance_takes_its_place_from_what_can_be_made() -> None:
    """It is no slice, and nothing that would overlap it is offered; the rest is."""
    node = make_node("n1", ["H100-80GB"], mig=True)
    put_slice(node.gpus[0], "3g.40gb", 4, bare=True)
    put_slice(node.gpus[0], "1g.10gb", 0)
    report, notes = await told(node)
    device = report.devices[0]
    starts = {x.profile: (x.starts, x.most) for x in device.profiles}

    assert ["1g.10gb"] == [x.profile for x in device.slices]
    assert ((0, 1, 2, 3), 7) == starts["1g.10gb"]
    assert ((0,), 1) == starts["3g.40gb"]
    assert ((0,), 1) == starts["4g.40gb"]
    assert ((), 1) == starts["7g.80gb"]
    assert ["GPU instance 2 at 4:4 has no compute instance: its place is lost"] == [
        x.text for x in notes
    ]


async def test_a_bare_instance_counts_among_the_most_of_its_kind() -> None:
    """A set of media extensions that is taken is not offered, wherever there is room."""
    node = make_node("n1", ["H100-80GB"], mig=True)
    put_slice(node.gpus[0], "1g.10gb+me", 6, bare=True)
    report, _ = await told(node)
    starts = {x.profile: x.starts for x in report.devices[0].profiles}

    assert () == starts["1g.10gb+me"]
    assert (0, 1, 2, 3, 4, 5) == starts["1g.10gb"]


async def test_what_no_observation_has_room_for_is_left_out_and_noted() -> None:
    """A newer driver's name or number costs that, and not the node its agent."""
    node = make_node("n1", ["H100-80GB"], mig=True)
    put_slice(node.gpus[0], "1g.10gb", 0)
    put_slice(node.gpus[0], "2g.20gb", 2)
    with fake_library():
        (device,) = (await NvmlReader(FakeAsker(node)).inventory()).devices
    first, *rest = device.profiles
    types = tuple(Vgpu(at, f"NVIDIA X-{at}Q", 1, 1024, creatable=True) for at in range(70))
    odd = replace(types[0], name="?" * 80)
    report, notes = device_report(
        replace(
            device,
            profiles=(replace(first, name="New Kind"), replace(rest[0], most=65), *rest[1:]),
            instances=(
                replace(device.instances[0], start=64),
                *device.instances[1:],
            ),
            vgpus=(odd, *types),
        ),
        STANDING,
    )
    assert report is not None
    assert "healthy" == report.health
    assert len(device.profiles) - 2 == len(report.profiles)
    assert 1 == len(report.slices)
    assert 64 == len(report.vgpu_types)
    texts = [one.text for one in notes]
    assert 2 == len([text for text in texts if text.startswith("ProfileReport left out")])
    assert any(text.startswith("SliceReport left out: start") for text in texts)
    assert "6 types of vGPU left out: there are too many" in texts


async def test_without_the_right_to_list_a_device_is_unknown() -> None:
    """A list that is not whole must not pass for a device with room."""
    node = make_node("n1", ["H100-80GB"], mig=True)
    put_slice(node.gpus[0], "3g.40gb", 4)
    node.rights = frozenset()
    report, notes = await told(node)

    assert ("unknown", ()) == (report.devices[0].health, report.devices[0].slices)
    assert ["unknown: MIG instances cannot be listed: no-permission"] == [x.text for x in notes][:1]


@pytest.mark.parametrize("symbol", sorted(FUNCTIONS))
@pytest.mark.parametrize("code", [Code.UNKNOWN, Code.NOT_SUPPORTED, Code.NOT_FOUND])
async def test_no_failure_of_a_call_makes_room(symbol: str, code: Code) -> None:
    """Whatever fails: a device that passes for healthy has all its slices, and no more room."""
    node = make_node("n1", ["H100-80GB"], mig=True)
    put_slice(node.gpus[0], "3g.40gb", 4)
    put_slice(node.gpus[0], "1g.10gb", 0, bare=True)
    whole, _ = await told(node)
    node.faults = [Fault(symbol, code)]
    with fake_library():
        inventory = await NvmlReader(FakeAsker(node)).inventory()
    report, _ = node_inventory(inventory, STANDING, FACTS, epoch=3)

    for device in [] if report is None else report.devices:
        if device.health == "healthy" and device.mig_enabled:
            assert whole.devices[0].slices == device.slices
            offered = {x.profile: set(x.starts) for x in whole.devices[0].profiles}
            assert all(set(x.starts) <= offered[x.profile] for x in device.profiles)


async def test_c01_the_lost_card_is_missing_and_the_others_are_themselves() -> None:
    """U-b vanishes, the numbers shift: the inventory names the other three by UUID."""
    node = make_node("n1", ["T4"] * 4)
    before, _ = await told(node)
    node.gpus[1].listed = False
    after, _ = await told(node)
    a, _, c, d = (x.uuid for x in before.devices)

    assert [(a, 0), (c, 1), (d, 2)] == [(x.uuid, x.index) for x in after.devices]
    assert {"healthy"} == {x.health for x in after.devices}


async def test_c01_an_entry_with_an_error_leaves_the_others() -> None:
    """Four entries, one of them an error: three devices, and a note."""
    node = make_node("n1", ["T4"] * 4)
    node.lose(node.gpus[1])
    report, notes = await told(node)

    assert [0, 2, 3] == [x.index for x in report.devices]
    assert [Note("", "entry 1 of the listing: gpu-is-lost")] == notes


async def test_c09_a_mode_that_waits_for_a_reboot_offers_no_slices() -> None:
    """Off now and on after a reboot: not enabled, pending, nothing there."""
    node = make_node("n1", ["A100-80GB"])
    node.gpus[0].clients = 1
    node.gpus[0].set_mig(1)
    report, _ = await told(node)
    device = report.devices[0]

    assert (False, True, ()) == (device.mig_enabled, device.mig_pending, device.slices)


async def test_a_device_that_hangs_stays_what_it_was_and_is_unknown() -> None:
    """Left out it would be gone, and its leases ended, for a reading that failed."""
    node = make_node("n1", ["H100-80GB", "T4"], mig=True)
    put_slice(node.gpus[0], "3g.40gb", 4)
    with fake_library():
        before = await NvmlReader(FakeAsker(node)).inventory()
    known = {x.uuid: x for x in before.devices}
    node.faults = [Fault("nvmlDeviceGetName", "hang", gpu=node.gpus[0].uuid)]
    report, _ = await told(node, known=known)
    unseen, notes = await told(node)

    assert [("unknown", 1), ("healthy", 0)] == [(x.health, len(x.slices)) for x in report.devices]
    # Who was never read has no model to be told; the note says that there is something.
    assert [node.gpus[1].uuid] == [x.uuid for x in unseen.devices]
    assert [node.gpus[0].uuid] == [x.device for x in notes]


def test_a_host_whose_nvml_does_not_work_reports_no_inventory() -> None:
    """An inventory is whole: an empty one would end every lease."""
    report, notes = node_inventory(Inventory(Host("driver-not-loaded")), STANDING, FACTS, epoch=1)

    assert report is None
    assert [Note("", "NVML: driver-not-loaded")] == notes


@pytest.mark.parametrize(
    ("change", "health", "part"),
    {
        "as it should be": ({}, "healthy", ""),
        "lost": ({"why": "gpu-is-lost"}, "unhealthy", "lost"),
        "hung": ({"why": "hung: x has not returned"}, "unknown", "hung"),
        "no memory told": ({"memory": None}, "unknown", "memory"),
        "the driver's verdict": ({"recovery_action": 4}, "unhealthy", "drain and reset"),
        "a verdict of a newer driver": ({"recovery_action": 12}, "unhealthy", "action 12"),
        "no verdict told": ({"recovery_action": None}, "healthy", ""),
        "a failed remap": ({"remapped": Remapped(0, 1, False, True)}, "unhealthy", "remapped"),
        "a pending remap": ({"remapped": Remapped(0, 1, True, False)}, "healthy", ""),
        "instances denied": (
            {"mig": True, "instances_why": "no-permission"}, "unknown", "no-permission",
        ),
    }.values(),
)  # fmt: skip
def test_health_is_the_drivers_verdict_first(
    change: dict[str, Any], health: str, part: str
) -> None:
    """What is lost or condemned is unhealthy, what cannot be said is unknown."""
    found, reason = health_of(replace(HEALTHY, **change))

    assert health == found
    assert part in reason


def linked(number: int, links: tuple[NvLink, ...] | None, fabric: Fabric | None = None) -> Device:
    """Return a device with links."""
    pci = Pci(f"0000:0{number}:00.0", 0, 0)
    return Device(f"GPU-{number}", pci=pci, nvlinks=links, fabric=fabric)


def to(*numbers: int) -> tuple[NvLink, ...]:
    """Return links to other devices."""
    return tuple(NvLink(at, True, f"0000:0{each}:00.0") for at, each in enumerate(numbers))


@pytest.mark.parametrize(
    ("devices", "domains"),
    {
        "none": ([linked(1, ()), linked(2, None)], {}),
        "a fabric over nodes": (
            [linked(1, (NvLink(0, True),), Fabric("c-1", 7)), linked(2, ())],
            {"GPU-1": "c-1.7"},
        ),
        "switches of this node": (
            [linked(at, (NvLink(0, True),)) for at in (1, 2)],
            {"GPU-1": "n.switch", "GPU-2": "n.switch"},
        ),
        "bridges between pairs": (
            [linked(1, to(2)), linked(2, to(1)), linked(3, to(4)), linked(4, to(3))],
            {
                "GPU-1": "n.0000:01:00.0",
                "GPU-2": "n.0000:01:00.0",
                "GPU-3": "n.0000:03:00.0",
                "GPU-4": "n.0000:03:00.0",
            },
        ),
        "a chain is one": (
            [linked(1, to(2)), linked(2, to(1, 3)), linked(3, to(2))],
            dict.fromkeys(("GPU-1", "GPU-2", "GPU-3"), "n.0000:01:00.0"),
        ),
        "a link that is down": ([linked(1, (NvLink(0, False),)), linked(2, ())], {}),
    }.values(),
)
def test_nvlink_domains_are_who_reaches_whom(
    devices: list[Device], domains: dict[str, str]
) -> None:
    """Over nodes by fabric, within a node by switches or by what is linked to what."""
    assert domains == links_of(devices, "n")


# -- the host, and what the doctor says of it ---------------------------------------------


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a root with what an agent reads of a host."""
    for path, text in {
        "proc/sys/kernel/random/boot_id": "0c4f1f0e-0000-4000-8000-000000000001\n",
        "etc/machine-id": "3d1219c7c4c5deadbeef\n",
        "proc/meminfo": "MemTotal:       65831234 kB\nMemFree:  1 kB\n",
        "proc/self/status": "Name:\tx\nCapEff:\t000001ffffffffff\n",
        "proc/1/stat": "1 (init (odd) name) S 0 1",
        "proc/77/stat": "77 (python) Z 1 77",
        "sys/kernel/iommu_groups/41/x": "",
    }.items():
        at = tmp_path / path
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_text(text)
    device = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
    device.mkdir(parents=True)
    (device / "iommu_group").symlink_to("../../../../kernel/iommu_groups/41")
    return tmp_path


def test_a_boot_has_a_name_of_its_own(root: Path) -> None:
    """Machine and boot: either of them being another makes another incarnation."""
    first = incarnation_of(root)
    (root / "proc/sys/kernel/random/boot_id").write_text("0c4f1f0e-0000-4000-8000-000000000002\n")
    second = incarnation_of(root)
    (root / "etc/machine-id").write_text("4444444444444444\n")

    assert "3d1219c7c4c5-0c4f1f0e-0000-4000-8000-000000000001" == first
    assert 3 == len({first, second, incarnation_of(root)})
    assert 64_288 == host_facts(root).memory_mib


def test_groups_and_processes_are_the_hosts(root: Path) -> None:
    """An IOMMU group by PCI address; a zombie is no process that holds a device."""
    assert ["41", None] == [iommu_group(f"0000:0{at}:00.0", root) for at in (1, 2)]
    assert [True, False, False] == [process_there(pid, root) for pid in (1, 77, 4711)]


def test_the_doctor_says_what_each_missing_right_costs(root: Path) -> None:
    """What is there, what is not, and what is denied, each with its price."""
    before = {x.name: x.state for x in host_checks(root)}
    (root / "proc/self/status").write_text("Name:\tx\nCapEff:\t0000000000000000\n")
    (root / "proc/1/stat").unlink()
    (root / "proc/sys/kernel/random/boot_id").unlink()
    after = {x.name: x for x in host_checks(root)}

    assert {
        "boot id": "ok",
        "MIG mode": "ok",
        "MIG instances": "absent",
        "MIG device nodes": "absent",
        "processes": "ok",
        "open files": "absent",
        "kernel log": "absent",
        "IOMMU": "ok",
    } == before
    assert ["denied", "denied", "broken"] == [
        after[name].state for name in ("MIG mode", "processes", "boot id")
    ]
    assert all(x.costs for x in after.values())


async def test_the_doctor_surveys_a_device() -> None:
    """What a board has not is absent, what a right is missing for is denied."""
    node = make_node("n1", ["H100-80GB"], mig=True)
    node.rights = frozenset()
    node.faults = [Fault("nvmlDeviceGetPowerUsage", Code.UNKNOWN)]
    with fake_library():
        reader = NvmlReader(FakeAsker(node))
        checks = device_checks("GPU-1", await reader.survey(node.gpus[0].uuid))
    states = {x.name: x.state for x in checks}

    assert ["ok", "absent", "denied", "broken"] == [
        states[name] for name in ("memory", "utilization", "gi_list", "power")
    ]


@pytest.mark.parametrize(
    ("host", "state"),
    [
        (Host("library-not-found"), "broken"),
        (Host(driver="1"), "broken"),
    ],
)
def test_a_host_without_gpus_is_broken(host: Host, state: str) -> None:
    """No library, or a driver without a device: nothing can be reported."""
    assert state == nvml_check(host).state


# -- and the ledger, told so ---------------------------------------------------------------


async def test_c07_the_ledger_plans_around_what_no_walk_sees() -> None:
    """A bare instance is at 0; the plan for a 4g finds no place, the one for a 3g does."""
    node = make_node("n1", ["H100-80GB"], mig=True)
    put_slice(node.gpus[0], "1g.10gb", 0, bare=True)
    report, _ = await told(node)
    cell = CoreDriver(check=True)
    cell.pool(partition="create")
    cell.queue()
    cell.quota()
    cell.node("gpu-01", [one.model_dump(mode="json") for one in report.devices])
    codes = [
        cell.submit(name, {"mode": "mig", "profile": name, "count": 1}).code
        for name in ("4g.40gb", "3g.40gb")
    ]
    steps = [
        (step["profile"], step["start"])
        for order in cell.state.orders.values()
        for step in order.steps
    ]

    assert ["reserved"] == [code for code in codes if code == "reserved"]
    assert [("3g.40gb", 4)] == steps
