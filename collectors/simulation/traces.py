"""Readers of published traces: what was asked of a cluster, and when.

A trace becomes jobs (who asks for what, when, for how long, and how it ended) and
nodes; times are microseconds from the trace's start. Files may be compressed
(``.gz``). Rows that cannot be read end the reading with the line and the reason:
a trace that was read in part would prove nothing.
"""

from __future__ import annotations

import csv
import gzip
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from collectors.files import BadFile
from collectors.fleet.description import DeviceSpec, NodeSpec, device_uuid
from collectors.light.node import Ending

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["GPU_MEMORY_MIB", "Job", "read_helios", "read_openb_nodes", "read_openb_pods"]

_US: Final = 1_000_000
_WHOLE_MILLI: Final = 1000

#: GPU memory by model as NVIDIA's data sheets give it, in MiB. What the traces call by
#: other names (G1 to G3 of openb are undisclosed) has none here.
GPU_MEMORY_MIB: Final = {
    "P100": 16_384,
    "T4": 16_384,
    "V100M16": 16_384,
    "V100M32": 32_768,
    "A10": 24_576,
}

_OPENB_USER: Final = "openb"

_HELIOS_ENDS: Final[dict[str, tuple[Literal["completed", "failed", "cancelled"], int | None]]] = {
    "COMPLETED": ("completed", 0),
    "CANCELED": ("cancelled", None),
    "FAILED": ("failed", 1),
    "TIMEOUT": ("failed", None),
    "NODE_FAIL": ("failed", None),
}


@dataclass(frozen=True, slots=True)
class Job:
    """One request of a user, and how its task will end once it runs.

    ``at_us`` counts from the start. ``submission`` is the data of a
    `schemas.requests.RequestSubmit`, whose task has the id ``id``.
    """

    id: str
    user: str
    at_us: int
    submission: dict[str, Any]
    ending: Ending


def _rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield line numbers and rows of a CSV file; lines that begin with # are comments."""
    opener: Callable[..., Any] = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8", newline="") as file:
            kept = (line for line in file if not line.startswith("#"))
            reader = csv.DictReader(kept, strict=True)
            for row in reader:
                yield reader.line_num, row
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise BadFile(f"{path} cannot be read: {error}") from error


def _read(path: Path, convert: Callable[[dict[str, str]], Any]) -> list[Any]:
    found = []
    for line, row in _rows(path):
        try:
            found.append(convert(row))
        except (KeyError, ValueError, TypeError) as error:
            what = f"there is no column {error}" if isinstance(error, KeyError) else str(error)
            raise BadFile(f"{path}: row {line} (comments not counted): {what}") from error
    if not found:
        raise BadFile(f"{path} has no rows")
    return found


def read_helios(path: Path, *, queue: str, retries: int = 0) -> list[Job]:
    """Read jobs of Helios in the columns of ``examples/helios``, in order of submission.

    A virtual cluster is a tenant with a pool of that name. GPUs are spread evenly
    over the job's nodes, as they were. Raise `BadFile`.
    """

    def convert(row: dict[str, str]) -> Job:
        chips, nodes = int(row["num_chips"]), int(row["num_nodes"])
        if chips % nodes:
            raise ValueError(f"{chips} GPUs do not spread evenly over {nodes} nodes")
        how, code = _HELIOS_ENDS[row["final_status"]]
        run_us = _seconds(row["duration_s"])
        submission = {
            "tenant": row["tenant"],
            "queue": queue,
            "task": {"id": row["job_id"], "type": "training"},
            "ask": {
                "mode": "whole",
                "pool": row["tenant"],
                "count": chips // nodes,
                "nodes": nodes,
            },
            "expected_run_s": run_us // _US,
            "retries": retries,
        }
        ending = Ending(run_us, how, code)
        return Job(row["job_id"], row["user"], int(row["submit_time"]), submission, ending)

    return sorted(_read(path, convert), key=lambda job: (job.at_us, job.id))


def _seconds(text: str) -> int:
    """Return seconds that a trace states, in microseconds; they are whole there."""
    whole, _, rest = text.partition(".")
    if rest.strip("0"):
        raise ValueError(f"{text!r} is not a whole number of seconds")
    return int(whole) * _US


def read_openb_nodes(path: Path, *, pool: str) -> list[NodeSpec]:
    """Read the node list of Alibaba's trace v2023 (openb); raise `BadFile`.

    The list has no GPU memory: it is the model's where the model is known, else 0.
    """

    def convert(row: dict[str, str]) -> NodeSpec:
        name, model = row["sn"], row["model"]
        devices = tuple(
            DeviceSpec(device_uuid(name, index), model, GPU_MEMORY_MIB.get(model, 0), index)
            for index in range(int(row["gpu"]))
        )
        return NodeSpec(name, pool, devices, int(row["cpu_milli"]), int(row["memory_mib"]))

    return _read(path, convert)


def read_openb_pods(path: Path, *, pool: str, queue: str) -> list[Job]:
    """Read a pod list of Alibaba's trace v2023 (openb), in order of creation; raise `BadFile`.

    A pod with less than a whole GPU is a share without a memory limit; one without
    GPU needs CPU and memory only. The tenant is the pod's quality of service: the
    list names no users. Lists without times (``multigpu``) are refused.
    """

    def convert(row: dict[str, str]) -> Job:
        count, milli = int(row["num_gpu"]), int(row["gpu_milli"])
        ask: dict[str, Any] = {"pool": pool}
        if row["gpu_spec"]:
            ask["models"] = row["gpu_spec"].split("|")
        if count == 1 and milli < _WHOLE_MILLI:
            ask |= {"mode": "share", "gpu_milli": milli, "memory_mib": 0}
        else:
            ask |= {"mode": "whole", "count": count}
        created, deleted = int(row["creation_time"]), int(row["deletion_time"])
        run_s = max(1, deleted - created)
        submission = {
            "tenant": row["qos"],
            "queue": queue,
            "task": {"id": row["name"], "type": "training"},
            "ask": ask,
            "beside": {"cpu_milli": int(row["cpu_milli"]), "memory_mib": int(row["memory_mib"])},
            "expected_run_s": run_s,
        }
        failed = row["pod_phase"] == "Failed"
        ending = Ending(run_s * _US, "failed", 1) if failed else Ending(run_s * _US)
        return Job(row["name"], _OPENB_USER, created * _US, submission, ending)

    return sorted(_read(path, convert), key=lambda job: (job.at_us, job.id))
