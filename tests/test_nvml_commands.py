"""``gpuledger collector --dry-run`` and ``gpuledger doctor``, from outside."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from collectors.nvml.doctor import Check
from ledger.cli.nodes import _shown
from schemas.catalogue import adapter

ROOT = Path(__file__).parent.parent

DESCRIBED = """
name = "n1"

[[gpu]]
board = "H100-80GB"
layout = ["3g.40gb@4", "1g.10gb@0"]
bare = ["1g.10gb@1"]

[[gpu]]
board = "T4"
processes = [{ pid = 4711, memory_mib = 100 }]
"""

NO_LIBRARY = """
[[fault]]
function = "nvmlInitWithFlags"
does = "library-not-found"
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "ledger.cli", *arguments],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_dry_run_prints_what_would_be_reported(tmp_path: Path) -> None:
    """The observation is one that the ledger takes, and nothing is put on a log."""
    (tmp_path / "node.toml").write_text(DESCRIBED)
    arguments = ("--node", "gpu-07", "--pool", "lab", "--label", "rack=a7", "--json")
    result = run(tmp_path, "collector", "--dry-run", "--fake", "node.toml", *arguments)
    printed: dict[str, Any] = orjson.loads(result.stdout)
    report = adapter("node.inventory", 1).validate_json(orjson.dumps(printed["data"]))

    assert 0 == result.returncode
    assert ("gpu-07", "lab", {"rack": "a7"}) == (report.node, report.pool, report.labels)
    assert [["3g.40gb", "1g.10gb"], []] == [[x.profile for x in y.slices] for y in report.devices]
    assert ["GPU instance 8 at 1:1 has no compute instance: its place is lost"] == [
        x["text"] for x in printed["notes"]
    ]
    assert ["node.toml"] == [x.name for x in tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    {
        "no library: a dry run cannot reach it": (
            ["collector", "--dry-run", "--fake", "no.toml"], 3, "gpuledger doctor",
        ),
        "no library: the doctor says no": (
            ["doctor", "--fake", "no.toml"], 1, "install the NVIDIA driver",
        ),
        "a node": (["doctor", "--fake", "node.toml"], 0, ""),
        "no such board": (["doctor", "--fake", "bad.toml"], 2, "no board 'V100'"),
        "no library: the agent cannot begin": (
            ["collector", "--fake", "no.toml"], 3, "gpuledger doctor",
        ),
        "no mode": (["collector", "--fake", "node.toml", "--mig-mode", "GPU-a=1"], 2, "UUID=on"),
    }.values(),
)  # fmt: skip
def test_exit_statuses_are_those_of_all_commands(
    tmp_path: Path, arguments: list[str], status: int, said: str
) -> None:
    """0 ok, 1 no, 2 usage, 3 cannot reach; the reason is on stderr."""
    (tmp_path / "node.toml").write_text(DESCRIBED)
    (tmp_path / "no.toml").write_text(NO_LIBRARY)
    (tmp_path / "bad.toml").write_text('[[gpu]]\nboard = "V100"\n')
    result = run(tmp_path, *arguments)

    assert status == result.returncode, result.stderr
    assert said in result.stderr


def test_the_doctor_says_what_a_missing_right_of_the_host_costs() -> None:
    """A file that is not there is told like one that may not be read; not so a board's lack."""
    absent = Check("MIG instances", "absent", "no /proc/driver", "devices stay unknown")
    denied = Check("MIG mode", "denied", "without CAP_SYS_ADMIN", "MIG cannot be turned on")
    board = Check("fabric", "absent", "not-supported", "NVLink over nodes is not seen", "GPU-a")
    told = _shown([absent, denied, board])
    assert "host   MIG instances  no /proc/driver        devices stay unknown" in told
    assert "host   MIG mode       without CAP_SYS_ADMIN  MIG cannot be turned on" in told
    assert "not on this device: fabric" in told
    assert "NVLink over nodes" not in told


def test_the_doctor_prints_a_check_a_line(tmp_path: Path) -> None:
    """With --json every check is an object with its state and its price."""
    (tmp_path / "node.toml").write_text(DESCRIBED)
    result = run(tmp_path, "doctor", "--fake", "node.toml", "--json")
    checks = [orjson.loads(line) for line in result.stdout.splitlines()]

    assert {"ok", "absent"} <= {one["state"] for one in checks}
    assert 3 == len({one["device"] for one in checks})
    assert all(one["costs"] for one in checks)
    # A described node has what it has, whatever rights are missing on this host.
    assert ["NVML"] == [one["name"] for one in checks if not one["device"]]
