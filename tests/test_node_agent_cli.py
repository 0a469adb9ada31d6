"""``gpuledger collector`` as the agent of a host: the command, a worker, and a described node."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
NODE = """
name = "n1"

[[gpu]]
board = "H100-80GB"
mig = true

[[gpu]]
board = "L40S"
"""


class Shell:
    """Runs the command on one log in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            **{name: value for name, value in os.environ.items() if "GPULEDGER" not in name},
            "PYTHONPATH": str(ROOT),
            "GPULEDGER_LOG": "sqlite:log.sqlite",
            "GPULEDGER_SOURCE": "/cli/tester",
        }

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run one command to its end."""
        return subprocess.run(
            [sys.executable, "-m", "ledger.cli", *arguments],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def json(self, *arguments: str) -> dict[str, Any]:
        """Run one command; return the object that it prints."""
        done = self(*arguments, "--json")
        assert 0 == done.returncode, done.stderr
        found: dict[str, Any] = orjson.loads(done.stdout)
        return found

    @contextmanager
    def running(self, *arguments: str, by: int = signal.SIGTERM) -> Iterator[None]:
        """Keep a command running for the block, and end it by a signal."""
        process = subprocess.Popen(
            [sys.executable, "-m", "ledger.cli", *arguments],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield
        finally:
            process.send_signal(by)
            assert process.wait(30) in (0, -by)

    def until(self, what: str, condition: Any) -> None:
        """Wait until a condition of the cell's state holds."""
        deadline = time.monotonic() + 60
        while not condition(self.json("state")):
            assert time.monotonic() < deadline, what
            time.sleep(0.2)


@pytest.mark.slow
def test_a_host_is_an_agent_over_any_log(tmp_path: Path) -> None:
    """Inventory, a slice made and leased, a crash of the agent, the same lease, proved clean."""
    shell = Shell(tmp_path)
    (tmp_path / "node.toml").write_text(NODE)
    agent = ("collector", "--fake", "node.toml", "--node", "n1", "--pool", "p")
    assert 0 == shell("topics", "apply").returncode
    with shell.running("worker"):
        for command in (
            ("pool", "apply", "p", "--partition", "create", "--reason", "test"),
            ("queue", "apply", "q", "--reason", "test"),
            ("quota", "apply", "t", "--gpus", "9", "--reason", "test"),
        ):
            done = shell(*command)
            assert 0 == done.returncode, done.stderr
        asked = ("submit", "--tenant", "t", "--queue", "q", "--max-wait-s", "60", "--wait")
        with shell.running(*agent, by=signal.SIGKILL):
            whole = shell.json(*asked, "--model", "NVIDIA L40S")
            sliced = shell.json(*asked, "--mig", "3g.40gb")
            unit = sliced["parts"][0]["environment"]["CUDA_VISIBLE_DEVICES"]
            assert unit.startswith("MIG-")
            # One journal has one agent.
            other = shell(*agent)
            assert (2, True) == (other.returncode, "journal" in other.stderr)
        with shell.running(*agent):
            # The described node is made anew with the process, and its slice with it is gone;
            # the card is there, and so is its lease.
            shell.until("the slice is gone", lambda state: set(state["leases"]) == {whole["lease"]})
            assert 0 == shell("release", whole["lease"]).returncode
            shell.until("all is clean", lambda state: not state["leases"] and not state["orders"])
    assert 0 == shell("verify").returncode
