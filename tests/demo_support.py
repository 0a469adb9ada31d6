"""The demonstration, run for tests: the whole of it once for all that look at it."""

from __future__ import annotations

import asyncio
import io
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import orjson

from collectors.simulation.demo import DemoOptions, run_demo
from ledger.log.sqlite import SqliteLog
from processors.embedded import EmbeddedLoop
from tests.processor_support import settings
from tests.test_tidy import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from collectors.simulation.report import RunReport
    from ledger.log.port import Log, Record

TRACE = ROOT / "examples" / "helios" / "helios_venus_2vc_sept.csv"

US = 1_000_000


def make_loop(log: Log, url: str, clock: Callable[[], int], heartbeat_limit_s: int) -> EmbeddedLoop:
    """Return the real loop, as the command makes it."""
    return EmbeddedLoop(log, settings(log=url, heartbeat_limit_s=heartbeat_limit_s), clock)


@dataclass(frozen=True)
class Run:
    """A demonstration that was run: its report, what it told meanwhile, its records."""

    path: Path
    report: RunReport
    notes: str
    records: dict[str, list[Record]]

    @property
    def decisions(self) -> list[dict[str, Any]]:
        """Every decision, decoded."""
        decoded = [orjson.loads(one.value or b"{}") for one in self.records["events"]]
        return [one for one in decoded if one["kind"] == "decision"]


def run(path: Path, **more: Any) -> Run:
    """Run a demonstration and read back what it wrote."""
    notes = io.StringIO()

    async def work() -> tuple[RunReport, dict[str, list[Record]]]:
        report = await run_demo(DemoOptions(path=path, notes=notes, **more), make_loop)
        async with SqliteLog(path, read_only=True) as log:
            records = {
                topic: await log.read(f"gpuledger.{topic}", 0, 0, 10_000_000)
                for topic in ("events", "requests", "replies", "dead-letters")
            }
        return report, records

    report, records = asyncio.run(work())
    return Run(path, report, notes.getvalue(), records)


@cache
def run_whole(folder: Path) -> Run:
    """Run all of it in a folder below this one, once in a process: it takes a while."""
    return run(folder / "demonstration" / "ledger.sqlite")


def leases(run: Run) -> Iterator[tuple[str, int, int, str]]:
    """Yield tenant, thousandths charged, time held (µs) and reason of every lease.

    Time held is between the times of two records; what ``held_us`` says is not used.
    """
    tenants: dict[str, str] = {}
    granted: dict[str, tuple[str, int, int]] = {}
    for decision in run.decisions:
        for event in decision["events"]:
            kind, now_us = event["type"], decision["time_us"]
            if kind == "request.received":
                tenants[event["request"]] = event["tenant"]
            elif kind == "lease.granted":
                tenant = tenants[event["request"]]
                granted[event["lease"]] = (tenant, event["charge_milli"], now_us)
            elif kind == "lease.ended":
                tenant, milli, from_us = granted.pop(event["lease"])
                yield tenant, milli, now_us - from_us, event["reason"]
    assert not granted
