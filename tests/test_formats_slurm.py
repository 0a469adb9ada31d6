"""Options of sbatch as a request."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from ledger.formats.asks import Options
from ledger.formats.documents import NotTheFormat
from ledger.formats.slurm import read_slurm
from schemas.requests import RequestSubmit


def read(line: str, **options: Any) -> tuple[dict[str, Any], list[str]]:
    """Return the request of a line, checked, and the notes; tenant, queue and task are said."""
    said = {"tenant": "t", "queue": "q", "task": "x", **options}
    request, notes = read_slurm(line, Options(**said))
    assert request is not None, notes
    RequestSubmit.model_validate_json(orjson.dumps(request))
    return request, [str(note) for note in notes]


def test_a_line_by_hand() -> None:
    """Account, partition and name are tenant, queue and task; resources are for each node."""
    line = (
        "sbatch --nodes=2 --gres=gpu:h200:4 --time=1-12:30:00 --mem=64G -c 8"
        " --ntasks-per-node 2 -A vision -p train -J run-42"
    )

    request, notes = read_slurm(line)

    assert {
        "tenant": "vision",
        "queue": "train",
        "task": {"id": "run-42"},
        "ask": {
            "mode": "whole",
            "count": 4,
            "nodes": 2,
            "memory_mib": 0,
            "models": ["NVIDIA H200", "NVIDIA H200 NVL"],
            "labels": {},
        },
        "beside": {"cpu_milli": 16000, "memory_mib": 65536},
        "max_run_s": 131_400,
    } == request
    assert ["--gres: the type 'h200' is taken to be NVIDIA H200, NVIDIA H200 NVL"] == [
        str(note) for note in notes
    ]


@pytest.mark.parametrize(
    ("line", "ask"),
    {
        "no device": ("-N 1", {"mode": "whole", "count": 0, "nodes": 1}),
        "of gres": ("--gres=gpu", {"count": 1}),
        "of gres and a count": ("--gres=gpu:3", {"count": 3}),
        "of a job on two nodes": ("--gpus=8 -N2", {"count": 4, "nodes": 2}),
        "short": ("-G 2", {"count": 2}),
        "of a node": ("--gpus-per-node=t4:2", {"count": 2, "models": ["Tesla T4"]}),
        "of a task": ("--gpus-per-task=2 --ntasks-per-node=3", {"count": 6}),
        "as TRES": ("--tres-per-node=gres/gpu:2", {"count": 2}),
        "as TRES with a sign": ("--tres-per-node=gres/gpu:t4=2", {"count": 2}),
        "said twice alike": ("--gres=gpu:2 --gpus-per-node=2", {"count": 2}),
        "a range of nodes": ("--nodes=2-4 --gres=gpu:1", {"nodes": 2}),
        "slices": ("--gres=gpu:1g.10gb:2", {"mode": "mig", "profile": "1g.10gb", "count": 2}),
        "slices of a model": (
            "--gres=gpu:a100_3g.20gb:1",
            {"mode": "mig", "profile": "3g.20gb"},
        ),
        "half a device of MPS": ("--gres=mps:50", {"mode": "share", "gpu_milli": 500}),
        "none": ("--gres=none", {"count": 0}),
    }.values(),
)
def test_devices_become_one_mode(line: str, ask: dict[str, Any]) -> None:
    """Each way in which Slurm asks for devices has its mode."""
    assert ask.items() <= read(line)[0]["ask"].items()


def test_shares_have_the_size_that_a_site_gives_them() -> None:
    """A shard of three is a third, rounded up; units of MPS may be more than 100."""
    assert 334 == read("--gres=shard:1", shares=3)[0]["ask"]["gpu_milli"]
    assert 154 == read("--gres=mps:200", shares=1300)[0]["ask"]["gpu_milli"]


@pytest.mark.parametrize(
    ("line", "reason"),
    {
        "shards of no known size": ("--gres=shard:2", "how large a share is"),
        "two kinds": ("--gres=gpu:t4:1,gpu:a30:1", "two kinds"),
        "devices and slices": ("--gres=gpu:1,gpu:1g.10gb:1", "one kind"),
        "two counts": ("--gres=gpu:1 --gpus=2", "ask for different devices"),
        "slices on two nodes": ("--gres=gpu:1g.10gb:1 -N2", "a request for each node"),
        "more than a node has": ("--gpus=32", "at most 16"),
        "more than a device": ("--gres=mps:150", "more than one device"),
    }.values(),
)
def test_what_one_request_cannot_say_is_none(line: str, reason: str) -> None:
    """There is a note that says why, and no request that asks for something else."""
    request, notes = read_slurm(line)

    assert request is None
    assert 1 == sum(reason in note.reason for note in notes)


@pytest.mark.parametrize(
    ("line", "beside"),
    {
        "nothing": ("-G1", (0, 0)),
        "cores of a task": ("-G1 -c4", (4000, 0)),
        "tasks on nodes": ("-G2 -n5 -N2", (3000, 0)),
        "cores of a device": ("-G2 --cpus-per-gpu=6", (12000, 0)),
        "memory of a core": ("-G1 -c4 --mem-per-cpu=2G", (4000, 8192)),
        "memory of a device": ("-G2 --mem-per-gpu=10G", (0, 20480)),
        "kilobytes": ("-G1 --mem=1025K", (0, 2)),
    }.values(),
)
def test_what_is_beside_the_devices(line: str, beside: tuple[int, int]) -> None:
    """CPU and memory are for each node, and never rounded down."""
    found = read(line)[0]["beside"]

    assert beside == (found["cpu_milli"], found["memory_mib"])


def test_no_limit_of_time_is_none() -> None:
    """0, UNLIMITED and INFINITE ask for none, as no option does."""
    for line in ("-G1", "-G1 -t 0", "-G1 -t UNLIMITED", "-G1 --time=infinite"):
        assert "max_run_s" not in read(line)[0]


def test_a_script_is_its_directives() -> None:
    """Lines of a script count that begin with #SBATCH, and only those."""
    script = "#!/bin/bash\n#SBATCH --gres=gpu:2\n#SBATCH --time=10\n##SBATCH -N 4\nsrun -N 9 x\n"

    request, notes = read(script)

    assert (2, 1, 600) == (request["ask"]["count"], request["ask"]["nodes"], request["max_run_s"])
    assert [] == notes


@pytest.mark.parametrize(
    ("line", "reason"),
    {
        "a constraint": ("-C skylake", "--constraint: features of nodes"),
        "a flag": ("--exclusive", "--exclusive: a lease is for devices"),
        "an unknown option with a sign": ("--foo=bar", "--foo: does not say"),
        "an unknown option": ("--foo bar", "--foo: does not say"),
        "short flags together": ("-HQ", "Q: does not say"),
        "what runs": ("job.sh --gres=gpu:9", "'job.sh --gres=gpu:9': what runs"),
        "another resource": ("--gres=nic:1", "'nic' is no device"),
        "all memory": ("--mem=0", "0 is all memory of a node"),
        "two partitions": ("-p a,b", "'b' left out"),
        "given twice": ("-G2", "--gpus: given twice; '2' is taken"),
        "an unknown model": ("--gres=gpu:mi300:1", "no model known here"),
    }.values(),
)
def test_what_does_not_map_has_a_note(line: str, reason: str) -> None:
    """The request stands, and the note names the option."""
    first = "" if "mi300" in line else "-G1 "

    request, notes = read(f"{first}{line}")

    assert 1 == sum(reason in note for note in notes)
    assert request["ask"]["count"] == (2 if "-G2" in line else 1)


def test_an_unknown_type_never_gets_another_model() -> None:
    """The type stays as the model's name, which no device has, rather than any model."""
    assert ["mi300"] == read("--gres=gpu:mi300:1")[0]["ask"]["models"]
    assert ["AMD MI300X"] == read("-G mi300x:1", models=("AMD MI300X",))[0]["ask"]["models"]


@pytest.mark.parametrize(
    ("line", "reason"),
    {
        "nothing": ("", "no option"),
        "no option": ("job.sh", "no option"),
        "an open quote": ('-J "x', "not a command line"),
        "an option without its value": ("--gres", "needs a value"),
        "an unknown letter": ("-Z", "is no option"),
        "an unknown sign": ("--exclusive\x01", "is no option"),
        "a count of letters": ("--gpus=a:b", "must be"),
        "gres of four parts": ("--gres=gpu:a:b:1", "must be name"),
        "no nodes": ("-N 0 -G1", "must be a number"),
        "a list of nodes": ("-N 2,4 -G1", "must be a number"),
        "a time": ("-t soon -G1", "must be minutes"),
        "a size": ("--mem=lots -G1", "must be a size"),
        "tasks": ("-n many -G1", "whole number"),
        "devices that do not divide": ("-G 5 -N 2", "cannot be divided"),
        "memory beyond any machine": ("-G1 --mem=999999999999T", "than any machine"),
    }.values(),
)
def test_what_sbatch_would_refuse_is_refused(line: str, reason: str) -> None:
    """The error names the option."""
    with pytest.raises(NotTheFormat, match=reason):
        read_slurm(line)
