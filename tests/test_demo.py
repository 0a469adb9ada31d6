"""The demonstration: what it says is what the log holds, and what the trace asked for."""

from __future__ import annotations

import asyncio
import csv
import shlex
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from collectors.simulation.demo import NotADemo
from collectors.simulation.report import hours
from collectors.simulation.traces import Job, read_helios
from ledger.core.invariants import check
from ledger.log import topics
from ledger.log.sqlite import SqliteLog
from ledger.reading import fold_log
from tests.demo_support import TRACE, US, Run, leases, run, run_whole
from tests.test_tidy import ROOT

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("demo")]

#: Ends of a lease that are not the task's own, written out: not asked of the code under test.
INTERRUPTED = {"node-lost", "node-restarted", "device-gone", "slice-gone", "stop-timed-out"}


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The whole demonstration, run once."""
    return run_whole(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="session")
def short(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The first jobs of the trace, and everything beside it."""
    return run(tmp_path_factory.mktemp("short") / "ledger.sqlite", jobs=120)


def test_gpu_time_is_the_traces_to_the_microsecond(whole: Run) -> None:
    """By tenant: duration x GPUs of every job, and what interrupted leases had held before."""
    lines = (line for line in TRACE.read_text().splitlines() if not line.startswith("#"))
    wanted: Counter[str] = Counter()
    for row in csv.DictReader(lines):
        wanted[row["tenant"]] += int(float(row["duration_s"])) * US * int(row["num_chips"]) * 1000
    interrupted: Counter[str] = Counter()
    for tenant, milli, held_us, reason in leases(whole):
        if reason in INTERRUPTED:
            interrupted[tenant] += milli * held_us
    found = whole.report.tally.tenants
    for tenant in ("vcvGl", "vcvlY"):
        assert interrupted[tenant] > 0
        assert found[tenant].interrupted_milli_us == interrupted[tenant]
        assert found[tenant].held_milli_us == wanted[tenant] + interrupted[tenant]


def test_gpu_time_of_all_tenants_is_in_the_log(whole: Run) -> None:
    """The same from the records' own times, slices and shares included."""
    held: Counter[str] = Counter()
    for tenant, milli, held_us, _ in leases(whole):
        held[tenant] += milli * held_us
    found = {name: one.held_milli_us for name, one in whole.report.tally.tenants.items()}
    assert found == dict(held)
    assert set(found) == {"vcvGl", "vcvlY", "serving"}
    pools = whole.report.tally.pools
    assert sum(pool.held_milli_us for pool in pools.values()) == sum(held.values())


def test_every_job_has_one_final_answer(whole: Run) -> None:
    """Counted on the replies topic, over every request that was submitted."""
    finals = Counter(
        reply["request"]
        for one in whole.records["replies"]
        if (reply := orjson.loads(one.value or b"{}"))["final"]
    )
    submitted = {
        f"{about['ce_source'].decode()}#{about['ce_id'].decode()}"
        for one in whole.records["requests"]
        if (about := dict(one.headers))["ce_type"].endswith(b".request.submit.v1")
    }
    assert set(finals.values()) == {1}
    assert set(finals) == submitted
    assert len(submitted) > 1_867
    assert whole.report.finals == {1: len(submitted)}
    assert not whole.records["dead-letters"]


def test_every_job_of_the_trace_ended_as_it_did(whole: Run) -> None:
    """Completed, failed or cancelled, whatever happened in between."""
    tally = whole.report.tally
    jobs: list[Job] = read_helios(TRACE, queue="train")
    assert len(jobs) == 1_867
    for job in jobs:
        assert tally.requests[f"/users/{job.user}#{job.id}"].end == job.ending.how
    assert not any(one.waiting or one.running for one in tally.tenants.values())


def test_faults_left_their_mark(whole: Run) -> None:
    """Each of the four faults interrupted something, and every such job ran again."""
    report = whole.report
    reasons = Counter(one.reason for one in report.tally.interruptions)
    assert set(reasons) == {"node-restarted", "node-lost", "device-gone"}
    assert reasons["node-lost"] >= 2
    assert all(one["after"].startswith("ran again") for one in report.plain()["interruptions"])


def test_utilisation_has_its_denominator(whole: Run) -> None:
    """Present online: all GPUs all the time, less what the faults took away."""
    tally = whole.report.tally
    span_us = tally.last_us - tally.first_us
    assert {name: pool.gpus for name, pool in tally.pools.items()} == {
        "vcvGl": 160,
        "vcvlY": 16,
        "serving": 16,
    }
    assert tally.pools["serving"].present_us == 16 * span_us
    # One card two days; a node 4 minutes, another 90: from when the silence was noticed.
    away_us = 160 * span_us - tally.pools["vcvGl"].present_us
    silent_us = 8 * (240 + 5_400 - 2 * 30) * US
    assert away_us == 172_800 * US + silent_us
    assert tally.pools["vcvlY"].present_us == 16 * span_us - 8 * (21_600 - 30) * US


async def test_the_ledger_is_sound(whole: Run) -> None:
    """No fault, no void record, every invariant holds, and the digest is that of the state."""
    report = whole.report
    assert report.verified.ok
    counts = report.verified.counts
    assert (counts["claims"], counts["void"], counts["cells"]) == (1, 0, 1)
    assert counts["records"] == len(whole.records["events"]) == report.tally.records
    async with SqliteLog(whole.path, read_only=True) as log:
        (fold,) = (await fold_log(log, "gpuledger")).values()
    (state,) = fold.cells.values()
    assert check(state) == []
    assert not state.requests
    assert not state.leases
    assert not state.orders


def test_the_text_has_all_parts(whole: Run) -> None:
    """What was promised, with the numbers of the run."""
    text = whole.report.text()
    for part in (
        "24 nodes, 192 GPUs",
        "Jobs\n",
        "waiting",
        "exactly one final answer",
        "p50",
        "p99",
        "GPU-hours present online",
        "GPU-hours by tenant, from lease events",
        "Interruptions, and what became of them",
        "exceeds_quota",
        "verify    ok",
        f"digest    {whole.report.verified.digest}",
        f"records   {whole.report.verified.counts['records']:,}",
        " s on this machine",
        f"sqlite:{whole.path}",
    ):
        assert part in text, part
    assert f"{hours(whole.report.tally.tenants['vcvGl'].held_milli_us):,.3f}" in text
    assert len(whole.notes.splitlines()) == 10


def test_the_report_is_json(short: Run) -> None:
    """The same as one object; quantities are integers."""
    plain = orjson.loads(orjson.dumps(short.report.plain()))
    assert plain["verify"]["ok"]
    assert plain["digest"] == short.report.verified.digest
    assert plain["final_answers"] == {"1": 120 + 112}
    tenant = plain["tenants"]["vcvGl"]
    assert isinstance(tenant["held_gpu_milli_us"], int)
    assert isinstance(tenant["wait_p99_us"], int)
    assert plain["tenants"]["serving"]["refusals"] == {
        "exceeds_queue_limit": 1,
        "exceeds_quota": 1,
        "wait_expired": 1,
    }
    assert len(plain["commands"]) == 5


def test_the_commands_work(short: Run) -> None:
    """Each of the five that are printed, as it is printed."""
    commands = short.report.commands()
    assert [shlex.split(one)[1] for one in commands] == ["why", "show", "state", "sql", "verify"]
    for one in commands:
        arguments = shlex.split(one)[1:]
        done = subprocess.run(
            [sys.executable, "-m", "ledger.cli", *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, (one, done.stderr)
        assert done.stdout.strip(), one


def test_the_same_run_twice_is_the_same(short: Run, tmp_path: Path) -> None:
    """Same state, and the same records but for the writer's token."""
    again = run(tmp_path / "ledger.sqlite", jobs=120)
    assert again.report.verified.digest == short.report.verified.digest
    assert again.report.tally == short.report.tally

    def stripped(one: Run) -> list[dict[str, Any]]:
        return [{key: value for key, value in each.items() if key != "token"}
                for each in one.decisions]  # fmt: skip

    assert stripped(again) == stripped(short)


def test_a_ledger_of_a_demonstration_is_replaced(tmp_path: Path) -> None:
    """With a word; what is not one is kept, with a word as well."""
    path = tmp_path / "new" / "ledger.sqlite"
    assert "replacing" not in run(path, jobs=1).notes
    assert f"replacing the ledger of the last demonstration, {path}" in run(path, jobs=1).notes
    other = tmp_path / "other.sqlite"
    other.write_text("not a ledger")
    with pytest.raises(NotADemo, match="kept"):
        run(other, jobs=1)
    assert other.read_text() == "not a ledger"

    async def real() -> None:
        async with SqliteLog(tmp_path / "real.sqlite"):
            pass

    asyncio.run(real())
    with pytest.raises(NotADemo, match=r"real\.sqlite"):
        run(tmp_path / "real.sqlite", jobs=1)

    async def interrupted() -> None:
        async with SqliteLog(tmp_path / "empty.sqlite") as log:
            await topics.apply(log, "gpuledger", 1)

    asyncio.run(interrupted())
    assert "replacing the ledger" in run(tmp_path / "empty.sqlite", jobs=1).notes


def test_openb(tmp_path: Path) -> None:
    """The lists of the other trace: shares, whole cards and CPU-only pods side by side."""
    nodes, pods = tmp_path / "nodes.csv", tmp_path / "pods.csv"
    nodes.write_text("sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,2,P100\n")
    pods.write_text(
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,"
        "deletion_time,scheduled_time\n"
        "p0,1000,1024,1,400,,LS,Running,0,3600,0\n"
        "p1,1000,1024,1,500,P100,LS,Running,0,3600,0\n"
        "p2,1000,1024,2,1000,,BE,Running,10,3610,0\n"
        "p3,1000,1024,0,0,,BE,Failed,10,3610,0\n"
    )
    found = run(tmp_path / "ledger.sqlite", openb_nodes=nodes, openb_pods=pods).report
    assert found.finals == {1: 4}
    held = {name: one.held_milli_us for name, one in found.tally.tenants.items()}
    assert held == {"LS": 900 * 3600 * US, "BE": 2000 * 3600 * US}
    # The two whole cards had to wait for the shares to end and be cleaned.
    assert found.tally.requests["/users/openb#p2"].wait_us == 3592 * US
    assert found.tally.requests["/users/openb#p3"].end == "failed"
