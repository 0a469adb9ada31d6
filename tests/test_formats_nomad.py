"""Nomad jobs as requests, in JSON and in HCL."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from ledger.formats.asks import Options
from ledger.formats.documents import NotTheFormat
from ledger.formats.hcl import read_hcl
from ledger.formats.nomad import read_nomad
from schemas.requests import RequestSubmit

#: The job of `HCL` as the API has it.
JOB: dict[str, Any] = {
    "Job": {
        "ID": "docs",
        "Name": "docs",
        "Namespace": "vision",
        "NodePool": "gpu",
        "Priority": 70,
        "TaskGroups": [
            {
                "Name": "example",
                "Count": 2,
                "Tasks": [
                    {
                        "Name": "server",
                        "Driver": "docker",
                        "Resources": {
                            "Cores": 4,
                            "MemoryMB": 512,
                            "Devices": [
                                {
                                    "Name": "nvidia/gpu",
                                    "Count": 2,
                                    "Constraints": [
                                        {
                                            "LTarget": "${device.attr.memory}",
                                            "RTarget": "1.5 GiB",
                                            "Operand": ">=",
                                        },
                                        {
                                            "LTarget": "${device.model}",
                                            "RTarget": "Tesla T4",
                                            "Operand": "=",
                                        },
                                    ],
                                    "Affinities": [{"LTarget": "x"}],
                                }
                            ],
                        },
                    },
                    {"Name": "log", "Resources": {"Cores": 1, "MemoryMB": 64}},
                ],
            }
        ],
    }
}

HCL = r"""
# A comment, // another, and /* one more
variable "image" { default = "x" }
job "docs" {
  namespace = "vision"   // the tenant
  node_pool = "gpu"
  priority  = 70
  group "example" {
    count = 2
    task "server" {
      driver = "docker"
      config {
        image = "${var.image}:1"
        args  = [for a in ["x", "}"] : upper(a)]
        text  = <<EOF
resources { this is } text {
EOF
      }
      resources {
        cores  = 4
        memory = 512
        device "nvidia/gpu" {
          count = 2
          constraint {
            attribute = "${device.attr.memory}"
            operator  = ">="
            value     = "1.5 GiB"
          }
          constraint {
            attribute = "${device.model}"
            value     = "Tesla T4"
          }
          affinity { attribute = "x" }
        }
      }
    }
    task "log" { resources {
       cores = 1
       memory = 64
    } }
  }
}
"""


def read(text: str, **options: Any) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the requests of a job, checked, and the reasons of the notes."""
    found, notes = read_nomad(
        text, Options(**{"queue": "q", "tenant": "t", "task": "x", **options})
    )
    for one in found:
        RequestSubmit.model_validate_json(orjson.dumps(one))
    return found, [f"{note.path}: {note.reason}" for note in notes]


def job(*devices: Any, **resources: Any) -> str:
    """Return a job of one task with the devices."""
    task = {"Name": "t", "Resources": {"Devices": list(devices), **resources}}
    return orjson.dumps({"ID": "j", "TaskGroups": [{"Name": "g", "Tasks": [task]}]}).decode()


@pytest.mark.parametrize("text", [orjson.dumps(JOB).decode(), HCL], ids=["json", "hcl"])
def test_a_job_by_hand(text: str) -> None:
    """One group is one request; its tasks are added up; both spellings are the same."""
    requests, notes = read_nomad(text)

    assert [
        {
            "tenant": "vision",
            "task": {"id": "docs"},
            "ask": {
                "mode": "whole",
                "count": 2,
                "nodes": 1,
                "memory_mib": 1536,
                "pool": "gpu",
                "models": ["Tesla T4"],
                "labels": {},
            },
            "beside": {"cpu_milli": 5000, "memory_mib": 576},
            "priority": 70,
        }
    ] == requests
    for reason in ("a preference", "for one allocation", "names no queue"):
        assert 1 == sum(reason in note.reason for note in notes)


@pytest.mark.parametrize(
    ("device", "ask"),
    {
        "a type": ({"Name": "gpu"}, {"count": 1}),
        "a vendor": ({"Name": "nvidia/gpu", "Count": 3}, {"count": 3}),
        "a model": ({"Name": "nvidia/gpu/Tesla T4"}, {"models": ["Tesla T4"]}),
        "a slice": (
            {"Name": "nvidia/gpu/NVIDIA A100-SXM4-40GB MIG 1g.5gb", "Count": 2},
            {"mode": "mig", "profile": "1g.5gb", "models": ["NVIDIA A100-SXM4-40GB"]},
        ),
        "memory beyond": (
            {
                "Name": "gpu",
                "Constraints": [
                    {"LTarget": "${device.attr.memory}", "Operand": ">", "RTarget": "2 GiB"},
                    {"LTarget": "${device.vendor}", "RTarget": "nvidia"},
                ],
            },
            {"memory_mib": 2049},
        ),
        "memory of base ten": (
            {
                "Name": "gpu",
                "Constraints": [
                    {"LTarget": "${device.attr.memory}", "Operand": ">=", "RTarget": "1 GB"}
                ],
            },
            {"memory_mib": 954},
        ),
    }.values(),
)
def test_devices_become_one_mode(device: dict[str, Any], ask: dict[str, Any]) -> None:
    """A device's name has type, vendor and model; memory is rounded up."""
    requests, _ = read(job(device))

    assert ask.items() <= requests[0]["ask"].items()


@pytest.mark.parametrize(
    ("devices", "reason"),
    {
        "another vendor": ([{"Name": "amd/gpu"}], "no device that is counted here"),
        "another type": ([{"Name": "fpga"}], "no device that is counted here"),
        "another vendor by constraint": (
            [{"Name": "gpu", "Constraints": [{"LTarget": "${device.vendor}", "RTarget": "amd"}]}],
            "no device that is counted here",
        ),
        "two models": (
            [{"Name": "nvidia/gpu/a"}, {"Name": "nvidia/gpu/b"}],
            "devices of different kinds",
        ),
        "none": ([], "asks for no device"),
    }.values(),
)
def test_what_one_request_cannot_say_is_none(devices: list[Any], reason: str) -> None:
    """There is a note that says why, and no request that asks for something else."""
    requests, notes = read(job(*devices))

    assert [] == requests
    assert 1 == sum(reason in note for note in notes)


@pytest.mark.parametrize(
    ("device", "resources", "reason"),
    {
        "megahertz": ({"Name": "gpu"}, {"CPU": 500}, "CPU: is in MHz"),
        "oversubscribed memory": ({"Name": "gpu"}, {"MemoryMaxMB": 9}, "beyond what is reserved"),
        "another constraint": (
            {"Name": "gpu", "Constraints": [{"LTarget": "${device.ids}", "RTarget": "GPU-1"}]},
            {},
            "'${device.ids}' '=' 'GPU-1'",
        ),
        "memory that is no least": (
            {
                "Name": "gpu",
                "Constraints": [
                    {"LTarget": "${device.attr.memory}", "Operand": "<", "RTarget": "2 GiB"}
                ],
            },
            {},
            "not read: '${device.attr.memory}' '<'",
        ),
    }.values(),
)
def test_what_does_not_map_has_a_note(
    device: dict[str, Any], resources: dict[str, Any], reason: str
) -> None:
    """The request stands, and the note says what is not in it."""
    requests, notes = read(job(device, **resources))

    assert 1 == len(requests)
    assert 1 == sum(reason in note for note in notes)


def test_several_groups_are_several_requests() -> None:
    """Each group has its own task id; a group without devices has a note."""
    two = orjson.loads(job({"Name": "gpu"}))
    two["TaskGroups"] += [{**two["TaskGroups"][0], "Name": "h"}, {"Name": "web", "Tasks": []}]

    requests, notes = read_nomad(orjson.dumps(two).decode())

    assert ["j.g", "j.h"] == [one["task"]["id"] for one in requests]
    assert 1 == sum("asks for no device" in note.reason for note in notes)


def test_a_bare_device_block_is_enough() -> None:
    """What is copied from a job's documentation is read: a device block alone, in HCL."""
    requests, _ = read('device "nvidia/gpu" {\n  count = 2\n}\n')

    assert 2 == requests[0]["ask"]["count"]


# -- HCL ----------------------------------------------------------------------------------


def test_hcl_literals_by_hand() -> None:
    """Strings are unescaped, numbers and words stay text, lists nest, lines are kept."""
    block = read_hcl(
        'a = "x\\"y\\n" // c\nb = [1, ["z"],\n]\nc = true\nd = null\ne "l" m { f = -1.5 }'
    )

    assert {"a": 'x"y\n', "c": "true", "d": None} == {
        name: block.attributes[name].value for name in "acd"
    }
    items = block.attributes["b"].value
    assert isinstance(items, list)
    assert "1" == items[0].value
    inner = block.blocks[0]
    assert (["l", "m"], "-1.5", 6) == (inner.labels, inner.attributes["f"].value, inner.line)


def test_what_must_be_worked_out_is_skipped_and_remembered() -> None:
    """An expression ends where its line does, outside brackets; the next field is read."""
    block = read_hcl("a = var.x\nb = f(\n 1,\n {\n}) # c\nc = 1 + 2\nd = x ? 1 : 2\ne = 5\n")

    assert {"a": 1, "b": 2, "c": 6, "d": 7} == block.skipped
    assert ["e"] == list(block.attributes)


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    {
        "a needed field that must be worked out": (
            'device "gpu" {\n  count = var.n\n}',
            2,
            "has to be worked out; nomad job run -output",
        ),
        "no block": ("a = 1", 1, "has no job"),
        "two jobs": ('job "a" {}\njob "b" {}', 2, "more than one job"),
        "an open block": ('job "a" {\n', 2, "is not closed"),
        "an open expression": ("a = f(1\n", 2, "is not closed"),
        "an open heredoc": ("a = <<E\nx\n", 2, "is not closed"),
        "a name twice": ("a = 1\na = 2\n", 2, "stands twice"),
        "a sign for a name": ("= 1", 1, "is no name"),
        "a name alone": ("job\n", 1, "followed by"),
        "too deep": ("a {" * 60, 1, "levels deep"),
        "too deep a list": ("a = " + "[" * 60, 1, "levels deep"),
        "JSON without a group": ("{}", 1, "has no task group"),
        "JSON of something else": ('{"Job": []}', 1, "must be a mapping"),
    }.values(),
)
def test_what_is_no_job_is_refused(text: str, line: int, reason: str) -> None:
    """The error has the line, and says what to do."""
    with pytest.raises(NotTheFormat, match=reason) as error:
        read_nomad(text)

    assert line == error.value.line
