"""Values that a person reads in captures of real ``nvidia-smi`` are the values that are read.

Each row of `SEEN` names its capture and what its lines say. A fake board is put into the
state that the capture shows (places, processes, memory, what is N/A); all that is read of
it, names and sums among it, has to be what the capture prints. The captures are public
test data of nvidia_gpu_exporter (H100, L40S), telegraf (A100, T4, RTX 3090) and are not
part of this repository.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from collectors.fake_nvml.boards import BOARDS, Board
from collectors.fake_nvml.gpu import FakeGpu, Process
from collectors.fake_nvml.node import FakeNode
from collectors.nvml.inventory import read_device
from collectors.nvml.use import read_use
from tests.nvml_support import put_slice, reading

if TYPE_CHECKING:
    from collections.abc import Callable

    from collectors.nvml.readings import Device, DeviceUse, Host

_ZEROS = "GPU-00000000-0000-0000-0000-000000000000"

_RTX_3090 = Board(
    "RTX-3090", "NVIDIA GeForce RTX 3090", 24_576, 316, 7, (8, 6), 0x220410DE, 350_000, remaps=False
)


def h100_mig(*, load: bool) -> FakeNode:
    """nvidia-h100-mig__590.48.01.txt: 3g, 2g, 1g, 1g; idle, and with three processes."""
    gpu = FakeGpu(
        BOARDS["H100-80GB"],
        _ZEROS,
        bus=0,
        slot=9,
        mig=1,
        serial="0000000000000",
        virtualization=1,
        pcie_replays=9,
        clocks_mhz=(1980, 1980, 2619, 1545) if load else (345, 345, 2619, 765),
        temperature_c=53 if load else 42,
        memory_temperature_c=58 if load else 48,
        power_mw=432_210 if load else 71_270,
        clock_reasons=0 if load else 1,
        pcie_kb_s=(9139, 19191) if load else (359, 329),
    )
    for profile, start in (("3g.40gb", 4), ("2g.20gb", 0), ("1g.10gb", 2), ("1g.10gb", 3)):
        put_slice(gpu, profile, start)
    if load:
        sizes = {21180: 2296, 21181: 1272, 21198: 7484}
        gpu.processes = [Process(pid, size, gi=2, ci=0) for pid, size in sizes.items()]
        gpu.instances[2].leaked_mib = 13  # what the context itself takes, beside the processes'
    gpu.base_mib = 60 if load else 59
    return FakeNode([gpu])


def a100_mig() -> FakeNode:
    """a100-sxm4-v12.xml: the first of four GPUs, with four instances of 1g and double memory."""
    gpu = FakeGpu(
        BOARDS["A100-80GB"],
        "GPU-513536b6-7d19-9063-b049-1e69664bb298",
        minor=1,
        mig=1,
        serial="1650522003820",
        persistence=False,
        base_mib=50,
        clocks_mhz=(1275, 1275, 1593, 1275),
        temperature_c=27,
        memory_temperature_c=44,
        power_mw=67_030,
        clock_reasons=0,
        pcie_kb_s=(4000, 0),
    )
    for start in (0, 2, 4, 6):
        put_slice(gpu, "1g.20gb", start)
    return FakeNode([gpu], driver="535.54.03", cuda=12_020)


def tesla_t4() -> FakeNode:
    """tesla-t4.xml: a T4 with a display server and a Python process."""
    gpu = FakeGpu(
        BOARDS["T4"],
        "GPU-d37e67a5-91dd-3774-a5cb-99096249601a",
        bus=0,
        slot=0x1E,
        serial="0000000000000",
        persistence=False,
        virtualization=1,
        pcie_width=8,
        recovery_action=None,
        processes=[Process(675, 22, "graphics"), Process(5762, 1005)],
        base_mib=5,
        clocks_mhz=(585, 585, 5000, 810),
        temperature_c=40,
        power_mw=26_780,
        clock_reasons=0,
    )
    return FakeNode([gpu], driver="515.105.01", cuda=11_070)


def l40s() -> FakeNode:
    """nvidia-l40s__595.80.txt, idle section: 100 % although nothing runs, rows are remapped."""
    gpu = FakeGpu(
        BOARDS["L40S"],
        _ZEROS,
        serial="0000000000000",
        persistence=False,
        virtualization=1,
        utilization=(100, 9),
        clocks_mhz=(2520, 2520, 9001, 1965),
        temperature_c=64,
        power_mw=183_280,
        clock_reasons=0,
        pcie_kb_s=(585, 244),
    )
    return FakeNode([gpu], driver="595.80", cuda=13_020)


def rtx_3090() -> FakeNode:
    """rtx-3090-v12.xml: no ECC, no serial number, no remapped rows."""
    gpu = FakeGpu(
        _RTX_3090, "GPU-12345678-aaaa-bbbb-cccc-0123456789ab", bus=0, slot=16, ecc=None, base_mib=1
    )
    return FakeNode([gpu], driver="525.147.05", cuda=12_000)


#: Capture -> what makes its state, and the values that a person reads in it.
SEEN: dict[str, tuple[Callable[[], FakeNode], dict[str, Any]]] = {
    "nvidia-h100-mig__590.48.01.txt idle": (
        lambda: h100_mig(load=False),
        {
            "driver": "590.48.01",
            "cuda": 13_010,
            "model": "NVIDIA H100 80GB HBM3",
            "address": "0000:00:09.0",
            "device_id": 0x233010DE,
            "link": (5, 16),
            "memory": (81_559, 479, 59),
            "mig": (True, True),
            "instances": {
                2: ("3g.40gb", 26, 40_448),
                3: ("2g.20gb", 17, 20_096),
                9: ("1g.10gb", 9, 9_984),
                10: ("1g.10gb", 9, 9_984),
            },
            "persistence": True,
            "processes": [],
            "ecc": True,
            "remapped": None,
            "recovery_action": 0,
            "utilization": (None, None, None, None),
            "temperature": (42, 48),
            "power_mw": 71_270,
            "clocks": (345, 345, 2619, 765),
            "clock_reasons": 1,
            "pcie": (359, 329, 9),
        },
    ),
    "nvidia-h100-mig__590.48.01.txt load": (
        lambda: h100_mig(load=True),
        {
            "memory": (81_559, 479, 11_125),
            "instances": {
                2: ("3g.40gb", 11_091, 40_448),
                3: ("2g.20gb", 17, 20_096),
                9: ("1g.10gb", 9, 9_984),
                10: ("1g.10gb", 9, 9_984),
            },
            "processes": [
                (21180, "compute", 2296, 2, 0),
                (21181, "compute", 1272, 2, 0),
                (21198, "compute", 7484, 2, 0),
            ],
            "utilization": (None, None, None, None),
            "temperature": (53, 58),
            "power_mw": 432_210,
            "clocks": (1980, 1980, 2619, 1545),
            "clock_reasons": 0,
            "pcie": (9139, 19191, 9),
        },
    ),
    "a100-sxm4-v12.xml": (
        a100_mig,
        {
            "driver": "535.54.03",
            "cuda": 12_020,
            "model": "NVIDIA A100-SXM4-80GB",
            "serial": "1650522003820",
            "minor": 1,
            "address": "0000:01:00.0",
            "device_id": 0x20B210DE,
            "link": (4, 16),
            "memory": (81_920, 869, 50),
            "mig": (True, True),
            "instances": dict.fromkeys((3, 4, 5, 6), ("1g.20gb", 12, 19968)),
            "persistence": False,
            "processes": [],
            "ecc": True,
            "remapped": None,
            "utilization": (None, None, None, None),
            "temperature": (27, 44),
            "power_mw": 67_030,
            "clocks": (1275, 1275, 1593, 1275),
            "pcie": (4000, 0, 0),
        },
    ),
    "tesla-t4.xml": (
        tesla_t4,
        {
            "driver": "515.105.01",
            "cuda": 11_070,
            "model": "Tesla T4",
            "address": "0000:00:1e.0",
            "device_id": 0x1EB810DE,
            "link": (3, 8),
            "memory": (15_360, 388, 1_032),
            "mig": (None, None),
            "instances": {},
            "processes": [(675, "graphics", 22, None, None), (5762, "compute", 1005, None, None)],
            "ecc": True,
            "remapped": None,
            "recovery_action": None,
            "utilization": (0, 0, 0, 0),
            "temperature": (40, None),
            "power_mw": 26_780,
            "clocks": (585, 585, 5000, 810),
        },
    ),
    "nvidia-l40s__595.80.txt idle": (
        l40s,
        {
            "driver": "595.80",
            "cuda": 13_020,
            "model": "NVIDIA L40S",
            "device_id": 0x26B910DE,
            "link": (4, 16),
            "memory": (46_068, 609, 0),
            "mig": (None, None),
            "remapped": (0, 0, False, False),
            "recovery_action": 0,
            "utilization": (100, 9, 0, 0),
            "temperature": (64, None),
            "power_mw": 183_280,
            "clocks": (2520, 2520, 9001, 1965),
            "pcie": (585, 244, 0),
        },
    ),
    "rtx-3090-v12.xml": (
        rtx_3090,
        {
            "driver": "525.147.05",
            "model": "NVIDIA GeForce RTX 3090",
            "serial": None,
            "memory": (24_576, 316, 1),
            "mig": (None, None),
            "ecc": None,
            "remapped": None,
            "utilization": (0, 0, 0, 0),
            "persistence": True,
        },
    ),
}


def facts(host: Host, device: Device, use: DeviceUse) -> dict[str, Any]:
    """Return what was read, by the names that `SEEN` has."""
    memory, pci, remapped = device.memory, device.pci, device.remapped
    assert memory is not None
    assert pci is not None
    totals = {one.gi: one.total_mib for one in use.instances}
    return {
        "driver": host.driver,
        "cuda": host.cuda,
        "model": device.model,
        "serial": device.serial,
        "minor": device.minor,
        "address": pci.address,
        "device_id": pci.device_id,
        "link": (pci.generation, pci.width),
        "memory": (memory.total_mib, memory.reserved_mib, memory.used_mib),
        "mig": (device.mig, device.mig_pending),
        "instances": {
            one.gi: (one.compute[0].name, one.compute[0].used_mib, totals[one.gi])
            for one in device.instances
        },
        "persistence": device.persistence,
        "processes": [
            (one.pid, one.kind, one.used_mib, one.gi, one.ci)
            for one in sorted(device.processes or (), key=lambda one: one.pid)
        ],
        "ecc": None if device.ecc is None else device.ecc.enabled,
        "remapped": remapped
        and (remapped.corrected, remapped.uncorrected, remapped.pending, remapped.failed),
        "recovery_action": device.recovery_action,
        "utilization": (
            use.gpu_percent,
            use.memory_percent,
            use.encoder_percent,
            use.decoder_percent,
        ),
        "temperature": (use.temperature_c, use.memory_temperature_c),
        "power_mw": use.power_mw,
        "clocks": (use.graphics_mhz, use.sm_mhz, use.memory_mhz, use.video_mhz),
        "clock_reasons": use.clock_reasons,
        "pcie": (use.pcie_sent_kb_s, use.pcie_received_kb_s, use.pcie_replays),
    }


@pytest.mark.parametrize("capture", SEEN)
def test_what_a_person_reads_is_what_is_read(capture: str) -> None:
    """Every value of the table, and nothing that the capture prints as N/A as a value."""
    make, expected = SEEN[capture]
    node = make()
    with reading(node) as session:
        host = session.host()
        device = read_device(session, node.gpus[0].uuid)
        use = read_use(session, node.gpus[0].uuid, slow=True)
    read = facts(host, device, use)

    assert expected == {name: read[name] for name in expected}
