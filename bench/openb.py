"""``bench openb``: how much of a cluster is allocated when more is asked than there is.

The inflation protocol of FGD (Weng et al., "Beware of Fragmentation", USENIX
ATC'23) on Alibaba's trace v2023: 1,213 empty nodes with 6,212 GPUs; a list's pods
by name, shuffled, then drawn again from the list until the next one would pass
130 % of the GPUs; one after the other, none ends, and what has no place at once is
refused. Every pod goes through `decide` as a request. What a policy knows of the
workload is learned from the log of an earlier pass of the list, as
``gpuledger pool learn`` does it: FGD is told as much.
"""

from __future__ import annotations

import gc
import os
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from bench.openb_trace import POOL, Pod, published, read_pods, sequence
from bench.workload import peak_rss_mib
from collectors.simulation.traces import read_openb_nodes
from ledger.collector import relax
from ledger.core.decide import Decision, decide, to_record
from ledger.core.decisions.turn import Input
from ledger.core.digest import digest
from ledger.core.fold import Fold
from ledger.placement_weights import learn, received
from ledger.wire import claim_entry
from schemas.catalogue import adapter

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from collectors.fleet.description import NodeSpec

__all__ = ["FIRST_SEED", "Cluster", "Outcome", "run", "simulate", "taught"]

#: The authors' seeds are 42 to 51; they drive another generator, so means can be compared only.
FIRST_SEED = 42

CELL = "openb"
TOKEN = "0" * 32
_WHO = {"author": "bench", "reason": "a benchmark"}
_NODES = "openb_node_list_gpu_node.csv"


@dataclass
class Cluster:
    """A cell with the nodes, asked for pods. ``keep``: its records are kept and folded again."""

    specs: Sequence[NodeSpec]
    policy: str
    keep: bool = False
    fold: Fold = field(default_factory=Fold)
    values: list[bytes] = field(default_factory=list)
    allocated_milli: int = 0

    def __post_init__(self) -> None:
        """Make the cell: policy, then every node's inventory."""
        self._now_us = 1_600_000_000_000_000
        self._offsets = {"requests": -1, "observations": -1}
        self._known: dict[Pod, tuple[Any, orjson.Fragment]] = {}
        claim = claim_entry(TOKEN, "bench", "bench", 1).value or b""
        self.fold.apply(0, claim)
        self.values.append(claim)
        self.devices = Counter(one.model for spec in self.specs for one in spec.devices)
        self.capacity_milli = 1000 * self.devices.total()
        quota = {"tenant": "team", "nominal_gpu_milli": 2 * self.capacity_milli}
        self.say("pool.apply", {"pool": POOL, "placement": self.policy, **_WHO})
        self.say("queue.apply", {"queue": "pods", **_WHO})
        self.say("quota.apply", {**quota, **_WHO})
        for spec in self.specs:
            host = {"cpu_milli": spec.cpu_milli, "memory_mib": spec.memory_mib}
            about = {"node": spec.name, "pool": POOL, "incarnation": "boot-1", "epoch": 1}
            devices = [
                {"uuid": one.uuid, "model": one.model, "memory_mib": one.memory_mib}
                for one in spec.devices
            ]
            self.say("node.inventory", {**about, **host, "devices": devices}, f"/nodes/{spec.name}")

    def say(self, name: str, plain: dict[str, Any], source: str = "/bench/operator") -> Decision:
        """Let the cell decide an input."""
        data = adapter(name, 1).validate_json(orjson.dumps(plain))
        return self._decide(name, source, data, plain)

    def ask(self, pod: Pod) -> bool:
        """Ask for what the pod needs; say whether it was granted.

        The request is read and validated once for all pods that ask for the same.
        """
        known = self._known.get(pod.kind)
        if known is None:
            value = orjson.dumps(pod.submission())
            data = adapter("request.submit", 1).validate_json(value)
            known = self._known[pod.kind] = (data, orjson.Fragment(value))
        decision = self._decide("request.submit", "/bench", *known)
        if decision.code != "granted":
            return False
        self.allocated_milli += pod.gpu_milli
        return True

    def _decide(self, name: str, source: str, data: Any, plain: Any) -> Decision:  # noqa: ANN401 - of any type
        topic = "observations" if source.startswith("/nodes/") else "requests"
        self._now_us += 1000
        self._offsets[topic] = offset = self._offsets[topic] + 1
        mark = f"{self._now_us:016x}"
        given = Input(topic, name, 1, source, mark, self._now_us, data, plain, mark)
        decision = decide(self.fold.cell(CELL), given)
        head = self.fold.head
        if self.keep:
            record = to_record(decision, cell=CELL, token=TOKEN, seq=head.seq + 1, offset=offset)
            self.values.append(orjson.dumps(record))
        self.fold.advance(topic, offset, decision.time_us)
        head.offset += 1
        return decision

    def check(self) -> None:
        """Raise RuntimeError when a device is held beyond what it has, or a fold differs."""
        for device in self.fold.cell(CELL).devices.values():
            if sum(hold.milli for hold in device.holds.values()) > 1000:
                raise RuntimeError(f"{device.uuid} is held beyond what it has")
        if self.keep:
            twin = Fold()
            for offset, value in enumerate(self.values):
                twin.apply(offset, value)
            if digest(twin.cells) != digest(self.fold.cells):
                raise RuntimeError("the fold of the records is not the state that decided them")


def taught(specs: Sequence[NodeSpec], pods: Sequence[Pod]) -> dict[str, Any]:
    """Return what is learned of the workload from the log of one pass of the list."""
    earlier = Cluster(specs, "best-fit", keep=True)
    for pod in pods:
        earlier.ask(pod)
    cpu_milli = sum(spec.cpu_milli or 0 for spec in specs)
    needs = received((orjson.loads(value) for value in earlier.values), CELL, POOL, {})
    return learn(POOL, needs.items(), earlier.devices, cpu_milli, **_WHO).model_dump(mode="json")


class Outcome(NamedTuple):
    """What came of one run: % allocated when 100 and 130 % had arrived, and pods by GPU count.

    ``seconds`` are the processor's, since runs go on side by side: from each pod to
    its decision, and to its record's bytes where these are kept.
    """

    pct_100: float
    pct_130: float
    offered: Counter[int]
    accepted: Counter[int]
    decisions: int
    seconds: float
    rss_mib: int


def simulate(cluster: Cluster, order: Sequence[Pod]) -> Outcome:
    """Ask for all pods, one after the other."""
    offered: Counter[int] = Counter()
    accepted: Counter[int] = Counter()
    asked, at_100 = 0, None
    began = time.process_time()
    for pod in order:
        asked += pod.gpu_milli
        offered[pod.gpus] += 1
        accepted[pod.gpus] += cluster.ask(pod)
        if at_100 is None and asked >= cluster.capacity_milli:
            at_100 = cluster.allocated_milli
    seconds = time.process_time() - began
    cluster.check()
    all_milli = cluster.capacity_milli
    return Outcome(
        100 * (at_100 if at_100 is not None else cluster.allocated_milli) / all_milli,
        100 * cluster.allocated_milli / all_milli,
        offered,
        accepted,
        len(order),
        seconds,
        peak_rss_mib(),
    )


class _Job(NamedTuple):
    folder: Path
    name: str
    policy: str
    seed: int
    taught: dict[str, Any]


def _learn(job: tuple[Path, str]) -> dict[str, Any]:
    relax()
    folder, name = job
    return taught(_nodes(folder), read_pods(folder, name))


def _simulate(job: _Job) -> Outcome:
    relax()
    # A relaxed collector leaves the run before this one lying about.
    gc.collect()
    # One seed of each list and policy is folded again from its records: it costs as much again.
    cluster = Cluster(_nodes(job.folder), job.policy, keep=job.seed == FIRST_SEED)
    cluster.say("placement.apply", job.taught)
    pods = read_pods(job.folder, job.name)
    return simulate(cluster, sequence(pods, cluster.capacity_milli, job.seed))


def _nodes(folder: Path) -> list[NodeSpec]:
    return sorted(read_openb_nodes(folder / "openb" / _NODES, pool=POOL), key=lambda one: one.name)


def run(
    folder: Path, lists: Sequence[str], policy: str, seeds: int, *, compare: bool
) -> Iterator[dict[str, Any]]:
    """Yield a row for each list. ``compare``: FGD runs on the same arrivals beside it."""
    policies = [policy, "fgd"] if compare and policy != "fgd" else [policy]
    numbers = range(FIRST_SEED, FIRST_SEED + seeds)
    with ProcessPoolExecutor(min(os.cpu_count() or 1, len(lists) * seeds)) as pool:
        lessons = [pool.submit(_learn, (folder, name)) for name in lists]
        waiting = []
        for name, lesson in zip(lists, lessons, strict=True):
            told = lesson.result()
            jobs = [_Job(folder, name, one, seed, told) for one in policies for seed in numbers]
            waiting.append((name, [pool.submit(_simulate, job) for job in jobs]))
        for name, started in waiting:
            done = [one.result() for one in started]
            row = _row(folder, name, policy, done[:seeds])
            if compare:
                row |= {f"fgd_{key}": value for key, value in _acceptance(done[-seeds:]).items()}
                row["fgd_gpu_allocated_pct_130"] = round(
                    mean(one.pct_130 for one in done[-seeds:]), 2
                )
            yield row


def _row(folder: Path, name: str, policy: str, done: Sequence[Outcome]) -> dict[str, Any]:
    known = published(folder, name)
    at_100, at_130 = [one.pct_100 for one in done], [one.pct_130 for one in done]
    return {
        "bench": "openb",
        "workload": name,
        "protocol": "FGD inflation to 130 %, no departures, refused at once",
        "policy": policy,
        "taught_by": "the log of one earlier pass of the list",
        "tie_rule": "least node name",
        "seeds": len(done),
        "gpu_allocated_pct_100": round(mean(at_100), 2),
        "gpu_allocated_pct_130": round(mean(at_130), 2),
        "sd_pct_100": round(stdev(at_100), 2) if len(done) > 1 else None,
        "sd_pct_130": round(stdev(at_130), 2) if len(done) > 1 else None,
        "published_pct_100": round(known[100], 2) if known else None,
        "published_pct_130": round(known[130], 2) if known else None,
        **_acceptance(done),
        "decisions": sum(one.decisions for one in done),
        "decisions_per_s": round(
            sum(one.decisions for one in done) / sum(one.seconds for one in done)
        ),
        "peak_rss_mib": max(one.rss_mib for one in done),
    }


def _acceptance(done: Sequence[Outcome]) -> dict[str, float | None]:
    """Return how many of the pods with 8 GPUs and with none were accepted; None without any."""
    found: dict[str, float | None] = {}
    for name, count in (("8gpu", 8), ("cpu_only", 0)):
        offered = sum(one.offered[count] for one in done)
        accepted = sum(one.accepted[count] for one in done)
        found[f"accepted_{name}_pct"] = round(100 * accepted / offered, 1) if offered else None
    return found
