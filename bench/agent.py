"""``bench agent``: what an agent costs its node, in percent of a core.

An agent with its NVML process on a described node of eight H100, plain and in seven slices
each, on a log in a file: it looks at every device each second, hears events, and sends
heartbeats; with use, it also samples every whole device each second, and slices once a window.
CPU time is of both processes, the fake library's included. That one is no part of an agent: how
much of the NVML process's time it takes is measured beside it, over the same questions, in this
process (``stand_in_ms_per_s``); ``own_pct`` is without it.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from bench.quiet import quiet
from collectors.agent.agent import NodeAgent, NodeOptions
from collectors.agent.journal import Clock, Journal
from collectors.agent.processes import HostProcesses
from collectors.agent.shell import NodeShell, ShellOptions
from collectors.fake_nvml.described import Described, node_of
from collectors.fake_nvml.library import FakeLibrary
from collectors.fake_nvml.node import on
from collectors.nvml import calls
from collectors.nvml.host_facts import host_facts
from collectors.nvml.ops import OPS
from collectors.nvml.report import Standing
from collectors.nvml.session import Session
from collectors.nvml.watchdog import NvmlChild
from collectors.use.watch import UseOptions
from ledger.cli.node_agent import LOOK_US, PASS_US, POLL_S
from ledger.log.sqlite import SqliteLog
from ledger.log.topics import apply

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["LIMIT_PCT", "run", "stand_in_share", "weigh"]

#: What an agent may cost with 8 GPUs and a round a second.
LIMIT_PCT = 0.5

_BOARD, _SLICES = "H100-80GB", [f"1g.10gb@{at}" for at in range(7)]
#: Time before counting begins, after everything was read and told for the first time.
_WARM_S, _WARM_MOST = 2.0, 30


def run(gpus: int, seconds: float) -> Iterator[dict[str, Any]]:
    """Yield a row for each of plain and MIG, without and with use; takes 4 x (seconds + 2)."""
    quiet()
    for mig in (False, True):
        for use in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                yield asyncio.run(weigh(Path(folder), gpus, seconds, mig=mig, use=use))


async def weigh(folder: Path, gpus: int, seconds: float, *, mig: bool, use: bool) -> dict[str, Any]:
    """Let an agent run for so long, in a folder of its own; return its row."""
    board = {"board": _BOARD, "count": gpus, "mig": mig, "layout": _SLICES if mig else []}
    described = orjson.dumps({"gpu": [board]})
    (folder / "node.json").write_bytes(described)
    child = NvmlChild(fake=folder / "node.json")
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
    share = stand_in_share(Described.model_validate_json(described), mig=mig, use=use)
    return {
        "bench": "agent",
        "workload": f"{gpus} x {_BOARD}, {'7 slices each' if mig else 'whole'}, a round a second",
        "gpus": gpus,
        "mig": mig,
        "use": use,
        "seconds": round(took_s, 1),
        "agent_ms_per_s": round(1000 * own / took_s, 2),
        "nvml_ms_per_s": round(1000 * nvml / took_s, 2),
        "stand_in_ms_per_s": round(1000 * nvml * share / took_s, 2),
        "core_pct": round(100 * (own + nvml) / took_s, 3),
        "own_pct": round(100 * (own + nvml * (1 - share)) / took_s, 3),
        "limit_pct": LIMIT_PCT,
    }


class _Timed(FakeLibrary):
    """The fake library, which sums up how long it is in its functions (ns)."""

    def __init__(self) -> None:
        self.ns = 0

    def __getattr__(self, name: str) -> Callable[..., int]:
        work = super().__getattr__(name)

        def call(*arguments: object) -> int:
            began = time.thread_time_ns()
            answer = work(*arguments)
            self.ns += time.thread_time_ns() - began
            return answer

        return call


def stand_in_share(described: Described, *, mig: bool, use: bool) -> float:
    """Return which part of what NVML's process does is the fake library's, from 0 to 1.

    Over the questions of a pass, in which each device is read whole once, in this process.
    """
    timed, session = _Timed(), Session(pause=lambda _: False)
    with calls.library(timed), on(node_of(described)):
        listed = [one.uuid for one in OPS["host"](session).listed]
        questions = [
            one for at in range(_WINDOWS) for one in _of_window(listed, at, mig=mig, use=use)
        ]
        _answer(session, questions)
        timed.ns, began = 0, time.thread_time_ns()
        _answer(session, questions)
        share = timed.ns / (time.thread_time_ns() - began)
        session.close()
    return share


def _answer(session: Session, questions: list[tuple[str, dict[str, Any]]]) -> None:
    for name, arguments in questions:
        orjson.dumps(OPS[name](session, **arguments))


_WINDOW_S = UseOptions().window_us // 1_000_000
_WINDOWS = PASS_US // UseOptions().window_us


def _of_window(
    uuids: list[str], number: int, *, mig: bool, use: bool
) -> list[tuple[str, dict[str, Any]]]:
    """Return what an agent at rest asks in one window of a pass: all rounds but one, and that."""
    whole = [uuid for at, uuid in enumerate(uuids) if at % _WINDOWS == number]
    sampled = [] if mig else uuids
    alone = {"uses": sampled if use else None, "uuids": uuids, "events": uuids}
    sample = {"uuids": uuids, "since_us": dict.fromkeys(uuids, 0)}
    last: list[tuple[str, dict[str, Any]]] = [("uses", sample)] if use else []
    last += [("pulse", {"uuids": uuids, "whole": whole})]
    last += [("signs", {"uuid": uuid}) for uuid in uuids]
    last += [("events", {"uuids": uuids, "wait_ms": 0})]
    rounds = {"rounds": _WINDOW_S - 1, "every_us": 1_000_000}
    return [("vigil", alone | rounds), ("several", {"questions": last})]


def _cpu_s(child: NvmlChild) -> float:
    """Return the CPU time of the NVML process so far (Linux: by its own clock)."""
    if child.pid is None:
        return 0.0
    return time.clock_gettime((~child.pid << 3) | 2)
