"""What a ledger's records add up to: requests, waits, GPU time, interruptions.

Everything is counted from the records of the events topic alone, never from a
counter of the simulation: a lease counts what its ``lease.granted`` charged for as
long as its ``lease.ended`` says it was held. Quantities are integers: microseconds,
and GPU time as thousandths of a GPU times microseconds (``milli_us``).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ledger.core.decisions.turn import INTERRUPTIONS
from ledger.core.fold import Fold
from ledger.reading import read_events
from schemas.topics import full_name

if TYPE_CHECKING:
    from ledger.core.state import State
    from ledger.log.port import Log
    from ledger.reading import Seen

__all__ = ["Interruption", "PoolTally", "RequestTally", "Tally", "TenantTally", "tally_log"]

_WHOLE_MILLI = 1000


@dataclass(slots=True)
class RequestTally:
    """One request: when it came, how long it waited for its first lease, how it ended.

    ``end`` is None while it waits or runs. ``wait_us`` is None when it never had a lease.
    """

    id: str
    tenant: str
    received_us: int
    wait_us: int | None = None
    leases: int = 0
    end: str | None = None
    end_us: int | None = None


@dataclass(slots=True)
class TenantTally:
    """One tenant. ``ends`` counts ended requests by how, refused ones by code in ``refused``."""

    name: str
    requests: int = 0
    granted: int = 0
    waiting: int = 0
    running: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    waits_us: list[int] = field(default_factory=list)
    held_milli_us: int = 0
    interrupted_milli_us: int = 0

    def wait_us(self, per_cent: int) -> int | None:
        """Return the wait that so many per cent of the granted requests did not exceed."""
        if not self.waits_us:
            return None
        ordered = sorted(self.waits_us)
        return ordered[-(-len(ordered) * per_cent // 100) - 1]


@dataclass(slots=True)
class PoolTally:
    """One pool: GPU time present on online nodes and healthy, and GPU time held by leases.

    ``present`` is how many GPUs are there now, ``gpus`` the most that ever were.
    """

    name: str
    present: int = 0
    gpus: int = 0
    present_us: int = 0
    held_milli_us: int = 0


@dataclass(frozen=True, slots=True)
class Interruption:
    """A lease that ended for a reason that was not the request's own."""

    time_us: int
    request: str
    lease: str
    reason: str
    charge_milli: int
    held_us: int


@dataclass(slots=True)
class _Grant:
    tenant: str
    pool: str
    charge_milli: int
    granted_us: int
    request: str


@dataclass(slots=True)
class Tally:
    """Everything counted, from the record at ``first_us`` to that at ``last_us``."""

    records: int = 0
    first_us: int = 0
    last_us: int = 0
    requests: dict[str, RequestTally] = field(default_factory=dict)
    tenants: dict[str, TenantTally] = field(default_factory=dict)
    pools: dict[str, PoolTally] = field(default_factory=dict)
    interruptions: list[Interruption] = field(default_factory=list)
    open: dict[str, _Grant] = field(default_factory=dict)
    #: (cell, node) -> (pool, how many devices are present now).
    _present: dict[tuple[str, str], tuple[str, int]] = field(default_factory=dict)

    def take(self, seen: Seen, state: State | None) -> None:
        """Count one record; ``state`` is its cell's after it."""
        self.records += 1
        if seen.verdict != "effective" or state is None:
            return
        now_us = seen.data["time_us"]
        self._pass_time(now_us)
        for event in seen.data["events"]:
            rule = _RULES.get(event["type"])
            if rule is not None:
                rule(self, event, now_us)
        self._look_at_supply(seen.data, state)

    def finish(self) -> None:
        """Count what has not ended: requests that wait or run, leases up to the last record."""
        for grant in self.open.values():
            self._hold(grant, self.last_us - grant.granted_us)
        running = {grant.request for grant in self.open.values()}
        for request in self.requests.values():
            tenant = self.tenant(request.tenant)
            tenant.requests += 1
            if request.leases:
                tenant.granted += 1
                tenant.waits_us.append(request.wait_us or 0)
            if request.id in running:
                tenant.running += 1
            elif request.end is None:
                tenant.waiting += 1

    def tenant(self, name: str) -> TenantTally:
        """Return a tenant's tally, empty at first."""
        return self.tenants.setdefault(name, TenantTally(name))

    def pool(self, name: str) -> PoolTally:
        """Return a pool's tally, empty at first."""
        return self.pools.setdefault(name, PoolTally(name))

    # -- demand ----------------------------------------------------------------

    def received(self, event: dict[str, Any], now_us: int) -> None:
        """Count a request that was let in."""
        name = event["request"]
        self.requests[name] = RequestTally(name, event["tenant"], now_us)

    def rejected(self, event: dict[str, Any], now_us: int) -> None:
        """Count a request that was refused."""
        name, tenant = event["request"], event["tenant"]
        self.requests[name] = RequestTally(name, tenant, now_us, end=event["code"], end_us=now_us)
        self.tenant(tenant).refused[event["code"]] += 1

    def ended(self, event: dict[str, Any], now_us: int) -> None:
        """Count the end of a request."""
        request = self.requests[event["request"]]
        request.end, request.end_us = event["how"], now_us
        self.tenant(request.tenant).ends[event["how"]] += 1

    def granted(self, event: dict[str, Any], now_us: int) -> None:
        """Begin to count a lease."""
        request = self.requests[event["request"]]
        request.leases += 1
        if request.wait_us is None:
            request.wait_us = now_us - request.received_us
        self.open[event["lease"]] = _Grant(
            request.tenant, event["why"]["pool"], event["charge_milli"], now_us, request.id
        )

    def lease_ended(self, event: dict[str, Any], now_us: int) -> None:
        """Count the GPU time of a lease, at its end."""
        grant = self.open.pop(event["lease"])
        self._hold(grant, event["held_us"])
        if event["reason"] in INTERRUPTIONS:
            held_milli_us = grant.charge_milli * event["held_us"]
            self.tenant(grant.tenant).interrupted_milli_us += held_milli_us
            self.interruptions.append(
                Interruption(
                    now_us,
                    grant.request,
                    event["lease"],
                    event["reason"],
                    grant.charge_milli,
                    event["held_us"],
                )
            )

    def _hold(self, grant: _Grant, held_us: int) -> None:
        self.tenant(grant.tenant).held_milli_us += grant.charge_milli * held_us
        self.pool(grant.pool).held_milli_us += grant.charge_milli * held_us

    # -- supply ----------------------------------------------------------------

    def _pass_time(self, now_us: int) -> None:
        self.first_us = self.first_us or now_us
        passed_us = now_us - max(self.last_us, self.first_us)
        if passed_us > 0:
            for pool in self.pools.values():
                pool.present_us += pool.present * passed_us
        self.last_us = max(self.last_us, now_us)

    def _look_at_supply(self, record: dict[str, Any], state: State) -> None:
        """Count again the devices of the nodes that the record's events speak of."""
        names: set[str] = set()
        for event in record["events"]:
            kind = event["type"]
            if kind in ("node.registered", "node.changed", "device.discovered"):
                names.add(event["node"])
            elif kind == "device.health":
                names.add(state.devices[event["device"]].node)
            elif kind == "pool.applied":
                names.update(state.nodes)
        for name in names:
            node = state.nodes[name]
            online = node.state == "online"
            count = sum(online and state.devices[one].health == "healthy" for one in node.devices)
            before = self._present.get((state.cell, name))
            if before is not None:
                self.pool(before[0]).present -= before[1]
            self._present[state.cell, name] = (node.pool, count)
            pool = self.pool(node.pool)
            pool.present += count
            pool.gpus = max(pool.gpus, pool.present)


_RULES = {
    "request.received": Tally.received,
    "request.rejected": Tally.rejected,
    "request.ended": Tally.ended,
    "lease.granted": Tally.granted,
    "lease.ended": Tally.lease_ended,
}


async def tally_log(log: Log, prefix: str) -> Tally:
    """Read a whole ledger and count it; raise as `ledger.reading.read_events` does."""
    tally = Tally()
    for partition in range(await log.partitions(full_name(prefix, "events"))):
        fold = Fold().reading()
        async for seen in read_events(log, prefix, partition, fold):
            tally.take(seen, fold.cells.get(seen.data.get("cell", "")))
    tally.finish()
    return tally
