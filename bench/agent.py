"""``bench agent``: what an agent costs its node, in percent of a core.

An agent with its NVML process on a described node of eight H100, plain and in seven slices
each, on a log in a file: it looks at every device each second, hears events, and sends
heartbeats; with use, it also samples every device and slice each second, at the same question.
CPU time is of both processes, the fake library's included, which stands in for what a driver
takes.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import structlog

from collectors.agent.agent import NodeAgent, NodeOptions
from collectors.agent.journal import Clock, Journal
from collectors.agent.processes import HostProcesses
from collectors.agent.shell import NodeShell, ShellOptions
from collectors.nvml.host_facts import host_facts
from collectors.nvml.report import Standing
from collectors.nvml.watchdog import NvmlChild
from collectors.use.watch import UseOptions
from ledger.cli.node_agent import LOOK_US, PASS_US, POLL_S
from ledger.log.sqlite import SqliteLog
from ledger.log.topics import apply

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["LIMIT_PCT", "run", "weigh"]

#: What an agent may cost with 8 GPUs and a round a second.
LIMIT_PCT = 0.5

_BOARD, _SLICES = "H100-80GB", [f"1g.10gb@{at}" for at in range(7)]
#: Time before counting begins, after everything was read and told for the first time.
_WARM_S, _WARM_MOST = 2.0, 30


def run(gpus: int, seconds: float) -> Iterator[dict[str, Any]]:
    """Yield a row for each of plain and MIG, without and with use; takes 4 x (seconds + 2)."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(open(os.devnull, "w")))  # noqa: SIM115, PTH123 - for the life of the process
    for mig in (False, True):
        for use in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                yield asyncio.run(weigh(Path(folder), gpus, seconds, mig=mig, use=use))


async def weigh(folder: Path, gpus: int, seconds: float, *, mig: bool, use: bool) -> dict[str, Any]:
    """Let an agent run for so long, in a folder of its own; return its row."""
    described = folder / "node.json"
    board = {"board": _BOARD, "count": gpus, "mig": mig, "layout": _SLICES if mig else []}
    described.write_bytes(orjson.dumps({"gpu": [board]}))
    child = NvmlChild(fake=described)
    clock = Clock(lambda: time.time_ns() // 1000, lambda: time.monotonic_ns() // 1000)
    journal = Journal(folder / "agent.db", clock)
    stop = asyncio.Event()
    async with SqliteLog(folder / "log.db") as log:
        await apply(log, "gpuledger", 1)
        log.poll_s = POLL_S
        agent = NodeAgent(
            child,
            journal,
            Standing("n1", "main"),
            "main",
            facts=host_facts(),
            processes=HostProcesses(),
            options=NodeOptions(look_us=LOOK_US, on_the_second=True, pass_us=PASS_US),
        )
        shell = NodeShell(log, agent, ShellOptions(use=UseOptions() if use else None))
        task = asyncio.create_task(shell.run(stop))
        for _ in range(_WARM_MOST):
            await asyncio.sleep(_WARM_S)
            if task.done() or journal.fact("inventory") is not None:
                break
        await asyncio.sleep(_WARM_S)
        began, own, nvml = time.perf_counter(), time.process_time(), _cpu_s(child)
        await asyncio.sleep(seconds)
        took_s = time.perf_counter() - began
        own, nvml = time.process_time() - own, _cpu_s(child) - nvml
        stop.set()
        await task
    journal.close()
    await child.close()
    return {
        "bench": "agent",
        "workload": f"{gpus} x {_BOARD}, {'7 slices each' if mig else 'whole'}, a round a second",
        "gpus": gpus,
        "mig": mig,
        "use": use,
        "seconds": round(took_s, 1),
        "agent_ms_per_s": round(1000 * own / took_s, 2),
        "nvml_ms_per_s": round(1000 * nvml / took_s, 2),
        "core_pct": round(100 * (own + nvml) / took_s, 3),
        "limit_pct": LIMIT_PCT,
    }


def _cpu_s(child: NvmlChild) -> float:
    """Return the CPU time of the NVML process so far (Linux: by its own clock)."""
    if child.pid is None:
        return 0.0
    return time.clock_gettime((~child.pid << 3) | 2)
