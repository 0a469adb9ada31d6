"""The workload of the core benches: one-GPU requests under a quota, as a stream of inputs.

Each request is submitted, granted, released some time later, and its device
proved clean: three inputs, three decisions, three records.
"""

from __future__ import annotations

import random
import resource
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from ledger.core.decide import Decision, decide, to_record
from ledger.core.decisions.turn import Input
from ledger.core.fold import Fold
from ledger.wire import claim_entry, decision_entry
from schemas.catalogue import adapter

if TYPE_CHECKING:
    from ledger.log.port import Entry

__all__ = ["Cell", "device_uuid", "inventory", "peak_rss_mib", "policy"]

CELL = "bench"
TOKEN = "0" * 32
_MEMORY_MIB = 81_559


def peak_rss_mib() -> int:
    """Return the most memory that this process has had, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def device_uuid(node: str, index: int) -> str:
    """Return the UUID of a benchmark device."""
    return f"GPU-{node}-{index:02d}"


def inventory(node: str, gpus: int) -> dict[str, Any]:
    """Return what a benchmark node reports."""
    return {
        "node": node,
        "incarnation": "boot-1",
        "epoch": 1,
        "pool": "main",
        "devices": [
            {"uuid": device_uuid(node, index), "model": "H100", "memory_mib": _MEMORY_MIB}
            for index in range(gpus)
        ],
    }


def policy(gpus: int) -> list[tuple[str, str, dict[str, Any]]]:
    """Return (type, id, data) of a pool, a queue and a tenant's quota."""
    who = {"author": "bench", "reason": "a benchmark"}
    return [
        ("pool.apply", "pool", {"pool": "main", **who}),
        ("queue.apply", "queue", {"queue": "train", **who}),
        ("quota.apply", "quota", {"tenant": "team", "nominal_gpu_milli": gpus * 1000, **who}),
    ]


@dataclass
class Cell:
    """One cell, driven in this process; keeps the bytes of its records when asked to."""

    seed: int = 1
    keep: bool = False
    fold: Fold = field(default_factory=Fold)
    entries: list[Entry] = field(default_factory=list)
    now_us: int = 1_600_000_000_000_000
    offsets: dict[str, int] = field(default_factory=lambda: {"requests": -1, "observations": -1})

    live: list[tuple[str, str]] = field(default_factory=list)
    started: int = 0

    def __post_init__(self) -> None:
        """Seed the choices."""
        self.chance = random.Random(self.seed)

    def claim(self) -> None:
        """Begin with a claim, as a log does."""
        entry = claim_entry(TOKEN, "bench", "bench", 1)
        self.fold.apply(0, entry.value)
        if self.keep:
            self.entries.append(entry)

    def read(self, topic: str, name: str, source: str, event_id: str, data: bytes) -> Input:
        """Make an input of its JSON bytes, a millisecond after the last one."""
        self.now_us += 1000
        return Input(
            topic,
            name,
            1,
            source,
            event_id,
            self.now_us,
            adapter(name, 1).validate_json(data),
            orjson.loads(data),
            f"{self.now_us:016x}",
        )

    def feed(self, topic: str, name: str, source: str, event_id: str, data: bytes) -> Decision:
        """Decide one input and build its record's bytes."""
        given = self.read(topic, name, source, event_id, data)
        decision = decide(self.fold.cell(CELL), given)
        self.offsets[topic] += 1
        if decision.recorded:
            head = self.fold.head
            offset = self.offsets[topic]
            record = to_record(decision, cell=CELL, token=TOKEN, seq=head.seq + 1, offset=offset)
            entry = decision_entry(CELL, record)
            self.fold.advance(topic, offset, decision.time_us)
            head.offset += 1
            if self.keep:
                self.entries.append(entry)
        return decision

    def build(self, nodes: int, gpus_per_node: int) -> None:
        """Make the cell: policy, then every node's inventory."""
        for name, event_id, data in policy(nodes * gpus_per_node):
            self.feed("requests", name, "/bench/operator", event_id, orjson.dumps(data))
        for number in range(nodes):
            node = f"n{number:05d}"
            report = orjson.dumps(inventory(node, gpus_per_node))
            self.feed("observations", "node.inventory", f"/nodes/{node}", "boot", report)

    def churn(self, requests: int, held: int) -> int:
        """Run further requests through their lives with about ``held`` leases at once.

        Return the number of decisions. Which lease ends next is random, seeded.
        """
        decisions = 0
        for number in range(self.started, self.started + requests):
            name = f"r{number}"
            data = (
                b'{"tenant":"team","queue":"train","task":{"id":"'
                + name.encode()
                + b'"},"ask":{"mode":"whole"}}'
            )
            granted = self.feed("requests", "request.submit", "/bench", name, data).events[-1]
            if granted["type"] != "lease.granted":
                raise RuntimeError(f"request {name} was not granted: {granted}")
            self.live.append((granted["lease"], granted["parts"][0]["node"]))
            decisions += 1
            if len(self.live) > held:
                at = self.chance.randrange(len(self.live))
                self.live[at], self.live[-1] = self.live[-1], self.live[at]
                decisions += self._finish(*self.live.pop(), name)
        self.started += requests
        return decisions

    def _finish(self, lease: str, node: str, name: str) -> int:
        data = orjson.dumps({"lease": lease})
        released = self.feed("requests", "lease.release", "/bench", f"end-{name}", data)
        order = next(event["order"] for event in released.events if event["type"] == "order.issued")
        clean = {
            "node": node,
            "incarnation": "boot-1",
            "order": order,
            "evidence": {"processes": 0, "memory_mib": 9, "baseline_mib": 9},
        }
        self.feed(
            "observations", "order.done", f"/nodes/{node}", f"clean-{name}", orjson.dumps(clean)
        )
        return 2
