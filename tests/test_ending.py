"""Ctrl-C ends a command that awaits nothing, and the process that it has for its questions."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ledger.cli.common import EXIT_INTERRUPTED
from ledger.cli.ending import run_until_interrupted

ROOT = Path(__file__).parent.parent

#: Whoever runs the tests may ignore Ctrl-C, and that is inherited.
START = """
import signal
import sys
from ledger.cli.common import run
signal.signal(signal.SIGINT, signal.default_int_handler)
"""

#: What is interrupted after it has said that it is ready; each would go on for longer.
WORK = {
    "it counts, and awaits nothing": """
async def work():
    print("ready", flush=True)
    for number in range(10**11):
        pass
""",
    "it asks a question of the copy": """
from ledger.audit.auditor import Room
from ledger.audit.sql import Limits

async def work():
    with Room(Limits()) as room:
        room.settle()
        print("ready", flush=True)
        room.ask("SELECT count(*) FROM range(100000000000) a, range(100) b")
""",
    "it gives back what it holds, which takes longer": """
import asyncio

async def work():
    print("ready", flush=True)
    try:
        await asyncio.sleep(600)
    finally:
        await asyncio.sleep(1)
        sys.stdout.write("given back")
""",
}


@pytest.mark.parametrize("name", WORK)
def test_ctrl_c_ends_it_soon_and_without_a_traceback(name: str) -> None:
    """Exit 130, of the whole group of processes, as a terminal does it."""
    program = f"{START}{WORK[name]}\nsys.exit(run(work))"
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert "ready\n" == process.stdout.readline()
        os.killpg(process.pid, signal.SIGINT)
        try:
            said, complaint = process.communicate(timeout=20)
        finally:
            process.kill()
    assert (EXIT_INTERRUPTED, "") == (process.returncode, complaint)
    assert "given back" * ("gives back" in name) == said


def test_signals_are_left_as_they_were() -> None:
    """Whoever runs a command in its own process keeps its alarm and its Ctrl-C."""
    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGALRM)]
    run_until_interrupted(asyncio.sleep(0))
    assert before == [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGALRM)]
