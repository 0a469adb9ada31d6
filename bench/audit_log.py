"""Plausible logs of any length, made from templates: a month of a site's records in seconds.

The core decides 13,000 inputs a second; ten million events would take it a quarter of an hour.
What it would have recorded is known beforehand, as long as nothing is asked that is not there:
so each place of a site (a card, a slice, a share, all cards of a node) lives its lives by
itself, and the records are those of the core, to the field. `tests/test_audit_bench.py` folds
such a log with every rule of the domain.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

import orjson

from bench.audit_site import CARD, START_US, Made, Place, Writer
from bench.workload import CELL, TOKEN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["CELL_KEY", "DAYS", "FAULTS", "HEADERS", "START_US", "Made", "Site", "site_of"]

#: The log is of the month that begins at `START_US`, if the site is as `site_of` has it.
DAYS = 31

#: What can be planted, and what it is.
FAULTS = {
    "duplicate": "a request is decided twice: received and granted again under a new number",
    "gap": "a decision is missing: a number is left out, and nothing after it counts",
    "overlap": "a card is leased to somebody else while it is held",
    "held": "a lease's recorded time is one microsecond more than it lasted",
}

_S = 1_000_000
#: Phases of a place's life that others follow from, and how rarely.
_END, _CLEAN, _BACK, _WELL = 3, 4, 7, 8
_RARE = 0.0005
_EVENTS_A_NODE = 18_000
HEADERS = (
    ("ce_id", b"0000000000000000-1"),
    ("ce_source", b"/gpuledger"),
    ("ce_type", b"io.gpuledger.ledger.decision.v1"),
    ("ce_specversion", b"1.0"),
    ("content-type", b"application/json"),
)
CELL_KEY = CELL.encode()


Draw: TypeAlias = "Callable[[], float]"
#: A record, and what comes after it at its place: in how many µs, which phase of its life.
Step: TypeAlias = "tuple[Made | None, list[tuple[int, int]]]"


@dataclass(slots=True)
class Site:
    """A site of so many nodes of 8 cards; `records` is its log."""

    nodes: int
    seed: int = 1
    tenants: int = 20
    #: What to plant, once each, in the middle of the log.
    plant: tuple[str, ...] = ()
    _writer: Writer = field(default_factory=Writer)
    _requests: int = 0
    _orders: int = 0
    #: By how much the next lease's time is told wrong.
    _wrong_us: int = 0

    def records(self, events: int) -> Iterator[Made]:
        """Yield records until they have ``events`` events: the same for the same seed."""
        chance = random.Random(self.seed)
        claim = {
            "v": 1, "kind": "claim", "token": TOKEN, "worker": "bench", "host": "bench",
            "generation": 1, "time_us": START_US,
        }  # fmt: skip
        yield Made(orjson.dumps(claim), START_US, 0)
        done = 0
        for one in self._writer.supply(self.nodes, self.tenants):
            done += one.events
            yield one
        lives = self._lives(chance)
        left = list(self.plant)
        for one in lives:
            done += one.events
            yield one
            if left and done >= events // 2:
                for bad in self._fault(left.pop(0), one.time_us):
                    done += bad.events
                    yield bad
            if done >= events:
                return

    # -- lives -------------------------------------------------------------------

    def _lives(self, chance: random.Random) -> Iterator[Made]:
        """Yield what happens at all places, in the order of time."""
        draw = chance.random
        places = self._writer.places
        queue = [(START_US + _S + int(draw() * 7200 * _S), at, 0) for at in range(len(places))]
        heapq.heapify(queue)
        silent: dict[int, tuple[int, int]] = {}
        steps = (
            self._submit, self._started, self._wait, self._ended, self._clean, self._idle,
            self._busy, self._back, self._well,
        )  # fmt: skip
        while True:
            time_us, at, phase = queue[0]
            place = places[at]
            since_us, until_us = silent.get(place.node, (0, 0))
            if until_us > time_us:
                # Nobody answers there now.
                later_us = until_us + 1 + (time_us - since_us) // 100
                heapq.heapreplace(queue, (later_us, at, phase))
                continue
            heapq.heappop(queue)
            made, following = steps[phase](place, time_us, draw)
            if made is not None:
                yield made
            if phase == _END and draw() < _RARE:
                until_us = time_us + int((120 + draw() * 600) * _S)
                silent[place.node] = (time_us, until_us)
                heapq.heappush(queue, (until_us, at, _BACK))
                yield self._silence(place, time_us)
            elif phase == _CLEAN and draw() < _RARE and place.ask == CARD and not place.lease:
                place.sick_us = time_us + int((600 + draw() * 3000) * _S)
                heapq.heappush(queue, (place.sick_us, at, _WELL))
                yield self._sick(place, time_us)
            for wait_us, then in following:
                heapq.heappush(queue, (time_us + wait_us, at, then))

    def _ask(self, place: Place, draw: Draw) -> tuple[str, str, str, str]:
        """Return lease, request, tenant, and the input and event of a new request."""
        self._requests += 1
        tenant = f"t{int(draw() * draw() * self.tenants):02d}"
        name = f"r{self._requests}"
        source = f"/team/{tenant}"
        given = (
            f'"type":"request.submit","version":1,"source":"{source}","id":"{name}",'
            f'"data":{{"tenant":"{tenant}","queue":"train","task":{{"id":"{name}"}},'
            f'"ask":{{{place.ask}}}}}'
        )
        event = (
            f'{{"type":"request.received","request":"{source}#{name}","tenant":"{tenant}",'
            f'"queue":"train","task":"{name}","task_type":"training","need":{{{place.ask}}}}}'
        )
        return f"{source}#{name}", tenant, given, event

    def _granted(self, place: Place, request: str, time_us: int) -> str:
        place.request, place.lease, place.since_us = request, f"{request}/1", time_us
        return (
            f'{{"type":"lease.granted","lease":"{place.lease}","request":"{request}",'
            f"{place.granted}}}"
        )

    def _submit(self, place: Place, time_us: int, draw: Draw) -> Step:
        if place.sick_us > time_us:
            return None, [(place.sick_us - time_us + _S, 0)]
        request, _, given, event = self._ask(place, draw)
        events = f"{event},{self._granted(place, request, time_us)}"
        made = self._writer.record("requests", time_us, given, "granted", events, 2)
        return made, [(int((2 + draw() * 58) * _S), 1)]

    def _started(self, place: Place, time_us: int, draw: Draw) -> Step:
        given = self._of_lease(place, "task.started", "")
        event = f'{{"type":"lease.started","lease":"{place.lease}","node":"{place.name}"}}'
        length_us = int((60 + draw() * 28_740) * _S)
        then = [(length_us, 3)]
        if draw() < 0.5:
            then.append((int(length_us * draw()), 2))
        if draw() < 0.01:
            place.idle = place.lease
            then.append((int(length_us * 0.5), 5))
            then.append((int(length_us * 0.7), 6))
        return self._writer.record("observations", time_us, given, "observed", event, 1), then

    def _of_lease(self, place: Place, name: str, more: str) -> str:
        return (
            f'"type":"{name}","version":1,"source":"/nodes/{place.name}",'
            f'"id":"{name}-{self._writer.seq}","data":{{"node":"{place.name}","incarnation":"boot-1",'
            f'"lease":"{place.lease}"{more}}}'
        )

    def _wait(self, place: Place, time_us: int, draw: Draw) -> Step:
        request, _, given, event = self._ask(place, draw)
        place.waiting = request
        events = (
            f'{event},{{"type":"request.queued","request":"{request}","code":"no_capacity",'
            '"numbers":{"needs_places":1,"places":0},"again":false}'
        )
        return self._writer.record("requests", time_us, given, "queued", events, 2), []

    def _ended(self, place: Place, time_us: int, draw: Draw) -> Step:
        how = "completed" if draw() < 0.9 else "failed"
        self._orders += 1
        place.order = self._orders
        held_us = time_us - place.since_us + self._wrong_us
        self._wrong_us = 0
        events = (
            f'{{"type":"part.ended","lease":"{place.lease}","node":"{place.name}","how":"{how}"}},'
            f'{{"type":"lease.ended","lease":"{place.lease}","reason":"{how}",'
            f'"held_us":{held_us}}},'
            f'{{"type":"order.issued","order":"{CELL}-o{place.order}","kind":"clean",'
            f'"node":"{place.name}","lease":"{place.lease}","units":[{place.units}],'
            f'"due_us":{time_us + 300 * _S}}},'
            f'{{"type":"request.ended","request":"{place.request}","how":"{how}"}}'
        )
        given = self._of_lease(place, "task.ended", f',"how":"{how}"')
        made = self._writer.record("observations", time_us, given, "observed", events, 4)
        return made, [(int((1 + draw() * 89) * _S), 4)]

    def _clean(self, place: Place, time_us: int, draw: Draw) -> Step:
        given = (
            f'"type":"order.done","version":1,"source":"/nodes/{place.name}",'
            f'"id":"done-{place.order}","data":{{"node":"{place.name}","incarnation":"boot-1",'
            f'"order":"{CELL}-o{place.order}","evidence":{{"processes":0,"memory_mib":9}}}}'
        )
        events = f'{{"type":"order.done","order":"{CELL}-o{place.order}","clean_us":1}}'
        place.lease = ""
        if place.waiting:
            request, place.waiting = place.waiting, ""
            events += f",{self._granted(place, request, time_us)}"
            made = self._writer.record("observations", time_us, given, "observed", events, 2)
            return made, [(int((2 + draw() * 58) * _S), 1)]
        made = self._writer.record("observations", time_us, given, "observed", events, 1)
        return made, [(int(draw() * 1200 * _S), 0)]

    def _idle(self, place: Place, time_us: int, draw: Draw) -> Step:
        if place.idle != place.lease or not place.lease:
            return None, []
        idle_s = int(draw() * 30)
        given = self._of_lease(place, "task.use", f',"idle":true,"idle_s":{idle_s}')
        since_us = max(place.since_us, time_us - idle_s * _S)
        event = f'{{"type":"lease.idle","lease":"{place.lease}","since_us":{since_us}}}'
        return self._writer.record("observations", time_us, given, "observed", event, 1), []

    def _busy(self, place: Place, time_us: int, _draw: Draw) -> Step:
        if place.idle != place.lease or not place.lease:
            return None, []
        given = self._of_lease(place, "task.use", ',"idle":false')
        event = f'{{"type":"lease.idle","lease":"{place.lease}"}}'
        return self._writer.record("observations", time_us, given, "observed", event, 1), []

    def _silence(self, place: Place, time_us: int) -> Made:
        last_us = time_us - 30 * _S
        given = (
            '"type":"node.silent","version":1,"source":"/liveness","id":"silent-'
            f'{self._writer.seq}","data":{{"node":"{place.name}","incarnation":"boot-1",'
            f'"last_heartbeat_us":{last_us}}}'
        )
        event = (
            f'{{"type":"node.changed","node":"{place.name}","state":"silent",'
            f'"reason":"last heard at {last_us}"}}'
        )
        return self._writer.record("observations", time_us, given, "observed", event, 1)

    def _back(self, place: Place, time_us: int, _draw: Draw) -> Step:
        given = (
            f'"type":"node.back","version":1,"source":"/liveness","id":"back-{self._writer.seq}",'
            f'"data":{{"node":"{place.name}","incarnation":"boot-1"}}'
        )
        event = (
            f'{{"type":"node.changed","node":"{place.name}","state":"online",'
            '"reason":"heard again"}'
        )
        return self._writer.record("observations", time_us, given, "observed", event, 1), []

    def _health(self, place: Place, time_us: int, health: str) -> Made:
        device = place.units
        said = f'"device":{device},"health":"{health}","reason":"xid 79","evidence":{{}}'
        given = (
            f'"type":"device.health","version":1,"source":"/nodes/{place.name}",'
            f'"id":"health-{self._writer.seq}","data":{{"node":"{place.name}","incarnation":"boot-1",'
            f"{said}}}"
        )
        event = f'{{"type":"device.health",{said}}}'
        return self._writer.record("observations", time_us, given, "observed", event, 1)

    def _sick(self, place: Place, time_us: int) -> Made:
        return self._health(place, time_us, "unhealthy")

    def _well(self, place: Place, time_us: int, _draw: Draw) -> Step:
        return self._health(place, time_us, "healthy"), []

    # -- faults ------------------------------------------------------------------

    def _fault(self, kind: str, time_us: int) -> Iterator[Made]:
        """Yield what is wrong, as `FAULTS` has it."""
        held = next(one for one in self._writer.places if one.lease and one.ask == CARD)
        if kind == "gap":
            self._writer.seq += 1
        elif kind == "duplicate":
            name = held.request.rpartition("#")[2]
            tenant = held.request.split("/")[2].split("#")[0]
            given = (
                f'"type":"request.submit","version":1,"source":"/team/{tenant}","id":"{name}",'
                f'"data":{{"tenant":"{tenant}","queue":"train","task":{{"id":"{name}"}},'
                f'"ask":{{{held.ask}}}}}'
            )
            event = (
                f'{{"type":"request.received","request":"{held.request}","tenant":"{tenant}",'
                f'"queue":"train","task":"{name}","task_type":"training",'
                f'"need":{{{held.ask}}}}}'
            )
            yield self._writer.record("requests", time_us, given, "granted", event, 1)
        elif kind == "overlap":
            other = replace(held, waiting="")
            for step in (self._submit, self._ended, self._clean):
                made, _ = step(other, time_us, lambda: 0.5)
                assert made is not None
                yield made
        else:
            self._wrong_us = 1


def site_of(events: int, seed: int = 1, plant: tuple[str, ...] = ()) -> Site:
    """Return the site whose month has about so many events: a node makes 18,000."""
    return Site(max(10, events // _EVENTS_A_NODE), seed, plant=plant)
