"""The site of an audit bench: what is there, and how its records are written."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from bench.workload import CELL, TOKEN, device_uuid

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["CARD", "START_US", "Made", "Place", "Writer"]

#: 2026-10-01T00:00:00Z.
START_US = 1_790_812_800_000_000

#: The ask of one whole card.
CARD = '"mode":"whole"'

_MEMORY_MIB = 81_559


class Made(NamedTuple):
    """One record's bytes, when it was decided, and how many events it has."""

    value: bytes
    time_us: int
    events: int


@dataclass(slots=True)
class Place:
    """Something that is leased as a whole, and how it is with it. Texts are JSON."""

    node: int
    name: str
    ask: str
    granted: str
    units: str
    lease: str = ""
    request: str = ""
    waiting: str = ""
    since_us: int = 0
    order: int = 0
    #: The lease that is to be idle for a while.
    idle: str = ""
    #: Until when its card is unhealthy.
    sick_us: int = 0


@dataclass(slots=True)
class Writer:
    """Writes records of one writer, with their numbers; notes what can be leased."""

    places: list[Place] = field(default_factory=list)
    seq: int = 0
    _sources: dict[str, int] = field(default_factory=lambda: {"requests": -1, "observations": -1})
    _slices: int = 0

    def record(
        self, topic: str, time_us: int, given: str, code: str, events: str, count: int
    ) -> Made:
        """Return the decision of an input, both as the JSON that stands between the braces."""
        self.seq += 1
        self._sources[topic] += 1
        value = (
            f'{{"v":1,"kind":"decision","token":"{TOKEN}","seq":{self.seq},"cell":"{CELL}",'
            f'"source":["{topic}",{self._sources[topic]}],"time_us":{time_us},"input":{{{given},'
            f'"fp":"{self.seq:016x}"}},"outcome":{{"code":"{code}"}},"events":[{events}]}}'
        )
        return Made(value.encode(), time_us, count)

    def supply(self, nodes: int, tenants: int) -> Iterator[Made]:
        """Yield policy, then what each node reports."""
        who = '"author":"bench","reason":"a benchmark"'
        operator = '"version":1,"source":"/bench/operator"'
        yield self.record(
            "requests", START_US,
            f'"type":"pool.apply",{operator},"id":"pool","data":{{"pool":"main",{who}}}', "applied",
            '{"type":"pool.applied","pool":"main","labels":{},"silent_grace_us":60000000,'
            f'"order_timeout_us":300000000,{who}}}', 1,
        )  # fmt: skip
        yield self.record(
            "requests", START_US,
            f'"type":"queue.apply",{operator},"id":"queue","data":{{"queue":"train",{who}}}',
            "applied",
            '{"type":"queue.applied","queue":"train","ordering":"best-effort","max_gpus":null,'
            f'"max_wait_us":null,{who},"preemption":"never","reclaim":"never"}}', 1,
        )  # fmt: skip
        for number in range(tenants):
            quota = f'"tenant":"t{number:02d}","nominal_gpu_milli":{nodes * 8000},{who}'
            yield self.record(
                "requests", START_US,
                f'"type":"quota.apply",{operator},"id":"quota-{number}","data":{{{quota}}}',
                "applied", f'{{"type":"quota.applied",{quota}}}', 1,
            )  # fmt: skip
        for number in range(nodes):
            yield self._inventory(number)

    def _inventory(self, number: int) -> Made:
        node = f"n{number:05d}"
        sliced = number % 100 == 1
        registered = (
            f'{{"type":"node.registered","node":"{node}","incarnation":"boot-1","epoch":1,'
            f'"agent":"/nodes/{node}","pool":"main","cpu_milli":null,"memory_mib":null}}'
        )
        events = [registered]
        devices = [device_uuid(node, index) for index in range(8)]
        slices: list[str] = []
        for uuid in devices:
            events.append(
                f'{{"type":"device.discovered","device":"{uuid}","node":"{node}","model":"H100",'
                f'"memory_mib":{_MEMORY_MIB},"architecture":null,"index":null,'
                f'"compute_slices":{7 * sliced},"mig_enabled":{"true" if sliced else "false"}}}'
            )
            for start in range(7 * sliced):
                self._slices += 1
                slices.append(f"{CELL}-s{self._slices}")
                events.append(
                    f'{{"type":"slice.present","slice":"{slices[-1]}","device":"{uuid}",'
                    f'"mig_uuid":"MIG-{uuid}-{start}","profile":"1g.10gb","gi":{start + 7},"ci":0,'
                    f'"start":{start},"size":1,"compute_slices":1,"memory_mib":9856}}'
                )
        self._add_places(number, node, devices, slices)
        given = (
            f'"type":"node.inventory","version":1,"source":"/nodes/{node}","id":"boot",'
            f'"data":{{"node":"{node}","incarnation":"boot-1","epoch":1,"pool":"main","devices":[]}}'
        )
        return self.record(
            "observations", START_US, given, "observed", ",".join(events), len(events)
        )

    def _add_places(self, number: int, node: str, devices: list[str], slices: list[str]) -> None:
        """Note what of a node is leased: of a hundred nodes one in slices, one in shares,
        two as a whole, the others card by card.
        """  # noqa: D205 - one sentence
        kind = number % 100
        if kind == 1:
            named = [[one] for one in slices]
            ask, milli, mib, more = '"mode":"mig","profile":"1g.10gb"', 143, 9856, ""
        elif kind == 2:
            named = [[one] for one in devices for _ in range(4)]
            ask, milli, mib, more = (
                '"mode":"share","gpu_milli":250,"memory_mib":20000', 250, 20000,
                ',"isolation":"none"',
            )  # fmt: skip
        elif kind in (3, 4):
            named = [devices]
            ask, milli, mib, more = '"mode":"whole","count":8', 8000, 8 * _MEMORY_MIB, ""
        else:
            named = [[one] for one in devices]
            ask, milli, mib, more = CARD, 1000, _MEMORY_MIB, ""
        for units in named:
            listed = ",".join(f'"{unit}"' for unit in units)
            granted = (
                f'"attempt":1,"charge_milli":{milli},"parts":[{{"node":"{node}",'
                f'"units":[{listed}]}}],"model":"H100","memory_mib":{mib},'
                f'"why":{{"rule":"best-fit","pool":"main","model":"H100","waited_us":0}}{more}'
            )
            self.places.append(Place(number, node, ask, granted, listed))
