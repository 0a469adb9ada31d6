"""``gpuledger fleet``: what it refuses before it starts, and that it starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner

from ledger.cli import app

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--board", "H1000"], "no board 'H1000'; there are A100-40GB"),
        (["--name", "node"], "gives two machines one name"),
        (["--name", "n{:x.}"], "is no pattern"),
        (["--faults", "missing.toml"], "missing.toml: No such file"),
        (["--faults", str(ROOT / "examples" / "fleet-faults.toml")], "which is not in the fleet"),
    ],
)
def test_what_makes_no_fleet(arguments: list[str], told: str) -> None:
    """It is said before any log is opened, and is wrong usage."""
    done = CliRunner().invoke(app, ["fleet", *arguments])
    assert (2, True) == (done.exit_code, told in done.stderr), done.stderr


@pytest.mark.parametrize("arguments", [["fleet"], ["cancel", "x"], ["release", "x/1"]])
def test_a_log_that_is_not_there_is_not_made(tmp_path: Path, arguments: list[str]) -> None:
    """A name that was mistyped leaves no file behind, whatever would be written."""
    done = CliRunner().invoke(app, [*arguments, "--log", f"sqlite:{tmp_path / 'typo.sqlite'}"])
    assert (3, []) == (done.exit_code, list(tmp_path.iterdir()))
    assert "there is no log" in done.stderr


@pytest.mark.slow
def test_machines_of_two_kinds_on_one_file(tmp_path: Path) -> None:
    """Machine by machine in turn; they end in good order when they are told to."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GPULEDGER_LOG": "sqlite:log.sqlite"}
    command = [sys.executable, "-m", "ledger.cli"]
    subprocess.run(
        [*command, "topics", "apply"], cwd=tmp_path, env=environment, check=True, timeout=60
    )
    sizes = ["--nodes", "3", "--gpus", "2", "--board", "A30", "--board", "T4", "--json"]
    fleet = subprocess.Popen(
        [*command, "fleet", *sizes], cwd=tmp_path, env=environment, stdout=subprocess.PIPE
    )
    assert fleet.stdout is not None
    assert {"cell": "main", "nodes": 3, "devices": 6} == orjson.loads(fleet.stdout.readline())
    worker = subprocess.Popen(
        [*command, "worker"], cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 60
        boards: dict[str, str] = {}
        while len(boards) < 6:
            assert time.monotonic() < deadline
            done = subprocess.run(
                [*command, "state", "--json"],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                check=False,
                timeout=60,
            )
            found = orjson.loads(done.stdout or b"{}").get("devices", {})
            boards = {uuid: one["model"] for uuid, one in found.items()}
    finally:
        for process in (fleet, worker):
            process.send_signal(signal.SIGTERM)
        ends = [fleet.wait(60), worker.wait(60)]
        fleet.stdout.close()
    assert [0, 0] == ends
    assert ["NVIDIA A30"] * 4 + ["Tesla T4"] * 2 == sorted(boards.values())
