"""Readers of published traces, and of scenarios that name them."""

from __future__ import annotations

import csv
import gzip
from typing import TYPE_CHECKING

import pytest

from collectors.files import BadFile
from collectors.fleet.description import read_fleet
from collectors.light.node import Ending
from collectors.simulation.openb import openb_scenario
from collectors.simulation.scenario import read_scenario
from collectors.simulation.traces import read_helios, read_openb_nodes, read_openb_pods
from schemas.catalogue import adapter
from tests.test_tidy import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from collectors.simulation.traces import Job

US = 1_000_000
HELIOS = ROOT / "examples" / "helios"
TRACE = HELIOS / "helios_venus_2vc_sept.csv"

_HELIOS_HEAD = (
    "job_id,user,tenant,class,submit_time,num_chips,chip_type,num_nodes,duration_s,"
    "walltime_limit_s,final_status\n"
)
_NODES = "sn,cpu_milli,memory_mib,gpu,model\nnode-0,64000,262144,2,P100\nnode-1,96000,393216,1,G2\n"
_PODS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,"
    "deletion_time,scheduled_time\n"
    "whole,12000,16384,2,1000,,LS,Running,20,50,20\n"
    "share,6000,12288,1,460,P100|G2,BE,Failed,10,10,10\n"
    "cpu,2000,1024,0,0,,LS,Pending,30,90,\n"
)


def valid(jobs: list[Job]) -> None:
    """Check that every job is a submission that the requests topic takes."""
    for job in jobs:
        asked = adapter("request.submit", 1).validate_python(job.submission, strict=False)
        assert asked.task.id == job.id


def test_the_helios_slice_is_read_whole() -> None:
    """Every row, in order of time, with what was asked, for how long and how it ended."""
    jobs = read_helios(TRACE, queue="train", retries=2)
    lines = (line for line in TRACE.read_text().splitlines() if not line.startswith("#"))
    rows = {row["job_id"]: row for row in csv.DictReader(lines)}
    assert len(jobs) == len(rows) == 1_867
    assert len({job.user for job in jobs}) == 12
    assert [job.at_us for job in jobs] == sorted(job.at_us for job in jobs)
    for job in jobs:
        row, ask = rows[job.id], job.submission["ask"]
        assert ask["count"] * ask["nodes"] == int(row["num_chips"])
        assert ask["nodes"] == int(row["num_nodes"])
        assert job.ending.run_us == float(row["duration_s"]) * US
        assert job.ending.how[:5].upper() == row["final_status"].replace("NODE_FAIL", "FAILED")[:5]
        assert job.submission["tenant"] == ask["pool"] == row["tenant"]
    valid(jobs)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ("1,u,t,c,0,8,,1,1.5,1.5,COMPLETED", "whole number of seconds"),
        ("1,u,t,c,0,9,,2,1.0,1.0,COMPLETED", "evenly"),
        ("1,u,t,c,0,8,,1,1.0,1.0,VANISHED", "VANISHED"),
        ("1,u,t,c,x,8,,1,1.0,1.0,COMPLETED", "invalid literal"),
    ],
)
def test_a_row_that_cannot_be_read_ends_the_reading(tmp_path: Path, row: str, told: str) -> None:
    """Named by line: a trace that was read in part would prove nothing."""
    path = tmp_path / "trace.csv"
    path.write_text(f"# a comment\n{_HELIOS_HEAD}{row}\n")
    with pytest.raises(BadFile, match=f"row 2 .*{told}"):
        read_helios(path, queue="train")


def test_files_that_are_no_trace_are_told(tmp_path: Path) -> None:
    """Missing, empty, other columns, not compressed though named so."""
    for name, data, told in (
        ("none.csv", None, "cannot be read"),
        ("empty.csv", b"", "no rows"),
        ("other.csv", b"a,b\n1,2\n", "no column 'num_chips'"),
        ("not.csv.gz", b"a,b\n1,2\n", "cannot be read"),
    ):
        path = tmp_path / name
        if data is not None:
            path.write_bytes(data)
        with pytest.raises(BadFile, match=told):
            read_helios(path, queue="train")


@pytest.mark.parametrize("compressed", [False, True])
def test_openb_lists(tmp_path: Path, compressed: bool) -> None:
    """Whole cards, shares and CPU-only pods, with models, CPU and memory beside; .gz too."""
    suffix = ".csv.gz" if compressed else ".csv"
    nodes, pods = tmp_path / f"nodes{suffix}", tmp_path / f"pods{suffix}"
    for path, text in ((nodes, _NODES), (pods, _PODS)):
        path.write_bytes(gzip.compress(text.encode()) if compressed else text.encode())
    first, second = read_openb_nodes(nodes, pool="p")
    assert (first.name, first.cpu_milli, first.memory_mib) == ("node-0", 64_000, 262_144)
    assert [(one.model, one.memory_mib, one.index) for one in first.devices] == [
        ("P100", 16_384, 0),
        ("P100", 16_384, 1),
    ]
    # The models G1 to G3 are undisclosed: unknown stays 0 and is not guessed.
    assert [one.memory_mib for one in second.devices] == [0]
    share, whole, cpu = found = read_openb_pods(pods, pool="p", queue="q")
    assert share.submission["ask"] == {
        "pool": "p",
        "models": ["P100", "G2"],
        "mode": "share",
        "gpu_milli": 460,
        "memory_mib": 0,
    }
    assert share.ending == Ending(1 * US, "failed", 1)
    assert whole.submission["ask"] == {"pool": "p", "mode": "whole", "count": 2}
    assert whole.submission["beside"] == {"cpu_milli": 12_000, "memory_mib": 16_384}
    assert (whole.at_us, whole.ending.run_us) == (20 * US, 30 * US)
    assert cpu.submission["ask"]["count"] == 0
    valid(found)
    scenario = openb_scenario(nodes, pods, jobs=2)
    assert [job.id for job in scenario.jobs] == ["share", "whole"]
    assert [act.type for act in scenario.acts] == [
        "pool.apply",
        "queue.apply",
        "quota.apply",
        "quota.apply",
    ]


def test_a_pod_list_without_times_is_refused(tmp_path: Path) -> None:
    """The multigpu lists have the first five columns only."""
    path = tmp_path / "pods.csv"
    path.write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\npod,1,1,1,1000\n")
    with pytest.raises(BadFile, match="no column 'gpu_spec'"):
        read_openb_pods(path, pool="p", queue="q")


def test_the_demonstration_is_as_it_says() -> None:
    """24 nodes and 192 GPUs, each virtual cluster with its own quota, and all requests valid."""
    scenario = read_scenario(HELIOS / "scenario.toml")
    sizes: dict[str, int] = {}
    for node in scenario.nodes:
        sizes[node.pool] = sizes.get(node.pool, 0) + len(node.devices)
    assert sizes == {"vcvGl": 160, "vcvlY": 16, "serving": 16}
    assert len(scenario.nodes) == 24
    quotas = {
        act.data["tenant"]: act.data["nominal_gpu_milli"]
        for act in scenario.acts
        if act.type == "quota.apply"
    }
    assert quotas == {"vcvGl": 160_000, "vcvlY": 16_000, "serving": 8_000}
    valid(list(scenario.jobs))
    assert len({job.id for job in scenario.jobs}) == len(scenario.jobs)
    assert (
        len(read_scenario(HELIOS / "scenario.toml", jobs=10).jobs)
        == 10 + len(scenario.jobs) - 1_867
    )


def test_a_scenario_that_does_not_fit_is_told(tmp_path: Path) -> None:
    """A fault on a node that is not there, and a request whose name no ledger takes."""
    for name in ("fleet.toml", "scenario.toml", "faults.toml"):
        (tmp_path / name).write_text((HELIOS / name).read_text())
    (tmp_path / TRACE.name).write_bytes(TRACE.read_bytes())
    path = tmp_path / "scenario.toml"
    assert read_scenario(path).cell == "venus"
    text = path.read_text()
    path.write_text(text.replace('"pretraining"', '"pre training"'))
    with pytest.raises(BadFile, match="beside the trace"):
        read_scenario(path)
    path.write_text(text)
    faults = tmp_path / "faults.toml"
    faults.write_text(faults.read_text().replace("vcvgl-07", "vcvgl-77"))
    with pytest.raises(BadFile, match="vcvgl-77"):
        read_scenario(path)


def test_a_fleet_names_its_nodes(tmp_path: Path) -> None:
    """By pattern; two of one name, or a pattern that is none, are refused."""
    path = tmp_path / "fleet.toml"
    nodes = '[[nodes]]\nname = "{}"\npool = "p"\ncount = 2\n'
    path.write_text('cell = "dc1"\n' + nodes.replace("{}", "gpu-{:03}"))
    assert [one.name for one in read_fleet(path).specs()] == ["gpu-001", "gpu-002"]
    for bad, told in (("gpu", "two nodes"), ("gpu-{name}", "pattern"), ("gpu {}", "cannot")):
        path.write_text('cell = "dc1"\n' + nodes.replace("{}", bad, 1))
        with pytest.raises(BadFile, match=told):
            read_fleet(path)
