"""The openb trace (Alibaba, cluster trace v2023) as its authors' inflation protocol uses it."""

from __future__ import annotations

import csv
import gzip
import random
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

__all__ = ["LISTS", "POOL", "Pod", "published", "read_pods", "sequence"]

#: The lists of the paper's figures.
LISTS = (
    "default",
    *("cpu050", "cpu100", "cpu200", "cpu250"),
    *("gpushare40", "gpushare60", "gpushare80", "gpushare100"),
    *("gpuspec10", "gpuspec20", "gpuspec25", "gpuspec33"),
    *("multigpu20", "multigpu30", "multigpu40", "multigpu50"),
)

POOL = "openb"

#: Pods arrive until they ask for this part of the GPUs.
_ARRIVED_PERCENT = 130


class Pod(NamedTuple):
    """One row of a list: ``milli`` thousandths on each of ``gpus`` GPUs of one node."""

    name: str
    cpu_milli: int
    memory_mib: int
    gpus: int
    milli: int
    models: tuple[str, ...]

    @property
    def gpu_milli(self) -> int:
        """Return what it asks for, in thousandths of a GPU."""
        return self.gpus * self.milli

    @property
    def kind(self) -> Pod:
        """Return what it has in common with pods that ask for the same."""
        return self._replace(name="")

    def submission(self) -> dict[str, Any]:
        """Return the data of a request for it, which is answered at once."""
        ask: dict[str, Any] = {"mode": "whole", "count": self.gpus}
        if self.gpus == 1 and self.milli < 1000:
            ask = {"mode": "share", "gpu_milli": self.milli}
        return {
            "tenant": "team",
            "queue": "pods",
            "task": {"id": "pod"},
            "ask": {"pool": POOL, "models": list(self.models), **ask},
            "beside": {"cpu_milli": self.cpu_milli, "memory_mib": self.memory_mib},
            "max_wait_s": 0,
        }


def read_pods(folder: Path, name: str) -> list[Pod]:
    """Return the pods of a list, by name. Raises FileNotFoundError."""
    return sorted(
        Pod(
            row["name"],
            int(row["cpu_milli"]),
            int(row["memory_mib"]),
            int(row["num_gpu"]),
            int(row["gpu_milli"]),
            tuple(sorted({one for one in (row.get("gpu_spec") or "").split("|") if one})),
        )
        for row in _rows(folder / "openb" / f"openb_pod_list_{name}.csv")
    )


def sequence(pods: Sequence[Pod], capacity_milli: int, seed: int) -> list[Pod]:
    """Return the arrivals: all pods shuffled, then drawn until the next would be too much.

    The check counts one GPU of the next pod, as the authors' code does.
    """
    chance = random.Random(seed)
    order = list(pods)
    chance.shuffle(order)
    most = capacity_milli * _ARRIVED_PERCENT // 100
    asked = sum(pod.gpu_milli for pod in order)
    while True:
        pod = chance.choice(pods)
        if asked + (pod.milli if pod.gpus else 0) > most:
            return order
        order.append(pod)
        asked += pod.gpu_milli


def published(folder: Path, name: str) -> dict[int, float]:
    """Return what FGD's authors published for the list: mean of % allocated, by % arrived.

    Empty when their results are not there.
    """
    try:
        rows = [
            row
            for row in _rows(folder / "fgd-published" / "analysis_allo_discrete.csv")
            if row["workload"] == f"openb_pod_list_{name}" and row["sc_policy"].endswith("FGD")
        ]
    except FileNotFoundError:
        return {}
    return {at: sum(float(row[str(at)]) for row in rows) / len(rows) for at in (100, 130) if rows}


def _rows(path: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of a file, which may be compressed."""
    packed = path.with_name(path.name + ".gz")
    opener: Any = gzip.open if packed.exists() else open
    with opener(packed if packed.exists() else path, "rt", encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)
