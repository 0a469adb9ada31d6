"""Why a request was answered as it was: every rule in order, with the numbers compared.

Pure. For a request that waits the rules are looked at again on the state as it
is now, by the same functions that decide; for one that has its answer the
recorded code and numbers tell, because the state it was decided on is gone.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ledger.core.placement import charge_of, place, shortfall
from ledger.core.schedule import examine, reason_to_wait
from ledger.steps import REFUSED, steps
from schemas.codes import CODES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ledger.core.state import Request, State
    from ledger.reading import Seen
    from ledger.steps import Step

__all__ = ["Ambiguous", "Explanation", "Holder", "Line", "Rule", "resolve", "why"]

Numbers = dict[str, int | str | None]

#: (pool, model, memory_mib, MIG profile or empty): devices that are alike for every request.
DeviceKind = tuple[str, str, int, str]

#: How many leases, and how many requests ahead, an explanation names.
NAMED = 10

#: Every rule a submission passes, in the order in which they are asked (`schemas.codes`).
_RULES = {
    "unknown_tenant": "the tenant has a quota",
    "unknown_queue": "the queue exists",
    "unknown_pool": "the pool asked for exists",
    "exceeds_queue_limit": "it is no larger than the queue's largest request",
    "exceeds_quota": "it is no larger than the tenant's whole quota",
    "quota_in_use": "the tenant's quota has room beside its other leases",
    "behind_in_queue": "no earlier request of a strict queue waits for the same kind",
    "no_such_hardware": "the cell has devices of that kind",
    "no_capacity": "enough of them are free, counted place by place",
    "no_beside": "their nodes have the CPU and memory asked beside them",
}

_ADVICE = {
    "unknown_tenant": "an operator gives the tenant a quota: gpuledger quota apply",
    "unknown_queue": "name an existing queue, or an operator makes it: gpuledger queue apply",
    "unknown_pool": "name an existing pool, or an operator makes it: gpuledger pool apply",
    "exceeds_queue_limit": "ask for less, or use a queue with a larger limit",
    "exceeds_quota": "ask for less, or an operator raises the quota: gpuledger quota apply",
    "quota_in_use": "a lease of the same tenant ends, or its quota is raised",
    "behind_in_queue": "the requests ahead in the queue are served or withdrawn",
    "no_such_hardware": "a node with such devices joins, or other models are asked for",
    "no_capacity": "a lease on such devices ends and they are proved clean",
    "no_beside": "a lease on those nodes ends, or less CPU or memory is asked",
}


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: ``verdict`` is ``met``, ``not met`` or ``not reached``; with what it compared."""

    code: str
    text: str
    verdict: str
    numbers: Numbers


@dataclass(frozen=True, slots=True)
class Line:
    """A place in the line of those that wait for the same; ``ahead`` names the first of them."""

    place: int
    length: int
    ahead: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Holder:
    """A lease that has what the request needs. ``ends_us`` is its latest end, if it has one."""

    lease: str
    tenant: str
    state: str
    units: tuple[str, ...]
    since_us: int
    ends_us: int | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """The whole answer. ``holders_more`` and ``out_of_use`` complete what keeps a request waiting.

    ``status`` is ``waiting``, ``granted``, ``running``, ``stopping``, ``refused``
    or how the request ended.
    """

    request: str
    cell: str
    status: str
    code: str
    advice: str | None
    rules: tuple[Rule, ...]
    steps: tuple[Step, ...]
    line: Line | None = None
    holders: tuple[Holder, ...] = ()
    holders_more: int = 0
    out_of_use: tuple[str, ...] = ()

    def plain(self) -> dict[str, Any]:
        """Return the explanation as one JSON object."""
        return asdict(self)


class Ambiguous(ValueError):
    """A short id stands for several things; ``candidates`` are their whole ids."""

    def __init__(self, name: str, candidates: Iterable[str]) -> None:
        self.candidates = tuple(sorted(candidates))
        super().__init__(f"{name} is {len(self.candidates)} things: {', '.join(self.candidates)}")


def resolve(states: Iterable[State], name: str) -> str:
    """Return the whole id of a request or lease named without its source; others as they are.

    Raise `Ambiguous` when several sources have used the id.
    """
    if "#" in name:
        return name
    short, slash, attempt = name.partition("/")
    ending = f"#{short}"
    found = {
        key
        for state in states
        for kept in (state.requests, state.seen)
        for key in kept
        if key.endswith(ending)
    }
    if len(found) > 1:
        raise Ambiguous(name, found)
    return f"{found.pop()}{slash}{attempt}" if found else name


def why(state: State, history: Iterable[Seen], request: str) -> Explanation | None:
    """Explain a request (``source#id``) of the cell; None when the cell has never seen it.

    ``state`` is the cell as it is now, ``history`` the records of its partition
    (others than the request's may be among them).
    """
    happened = tuple(steps(history, request))
    known = state.requests.get(request)
    if known is not None and known.state == "queued":
        return _waiting(state, known, happened)
    if known is not None:
        lease = state.leases[known.lease or ""]
        return Explanation(
            request, state.cell, lease.state, "granted", None, _all_met(happened), happened
        )
    entry = state.seen.get(request)
    if entry is None and not happened:
        return None
    return _over(state, request, happened)


def _over(state: State, request: str, happened: tuple[Step, ...]) -> Explanation:
    """Explain a request that has ended, or an input that never was one, by its records."""
    refused = next((step for step in happened if step.text.startswith(REFUSED)), None)
    if refused is not None and refused.code is not None:
        rules = _up_to(refused.code, dict(refused.numbers or {}))
        advice = _ADVICE.get(refused.code)
        return Explanation(request, state.cell, "refused", refused.code, advice, rules, happened)
    entry = state.seen.get(request)
    status = str(entry[3]) if entry is not None and len(entry) > _INPUT_ONLY else "ended"
    granted = any(step.code == "granted" for step in happened)
    queued = [step for step in happened if step.code in _RULES]
    if not granted and queued:
        code = queued[-1].code or ""
        rules = _up_to(code, dict(queued[-1].numbers or {}))
    else:
        code = "granted" if granted else ""
        rules = _all_met(happened) if granted else ()
    return Explanation(request, state.cell, status, code, None, rules, happened)


#: How long an entry of ``State.seen`` is that is no request's.
_INPUT_ONLY = 3


def _up_to(code: str, numbers: Numbers) -> tuple[Rule, ...]:
    """Return the rules as they were asked up to the one that said no."""
    if code not in _RULES:
        return (Rule(code, CODES[code].meaning, "not met", numbers),) if code in CODES else ()
    found = []
    verdict = "met"
    for name, text in _RULES.items():
        if name == code:
            found.append(Rule(name, text, "not met", numbers))
            verdict = "not reached"
        else:
            found.append(Rule(name, text, verdict, {}))
    return tuple(found)


def _all_met(happened: tuple[Step, ...]) -> tuple[Rule, ...]:
    """Return all rules as met, the last with what the grant's record says."""
    granted = [step for step in happened if step.code == "granted"]
    numbers = dict(granted[-1].numbers or {}) if granted else {}
    return tuple(
        Rule(name, text, "met", numbers if name == "no_capacity" else {})
        for name, text in _RULES.items()
    )


# -- requests that wait -----------------------------------------------------------


def _waiting(state: State, request: Request, happened: tuple[Step, ...]) -> Explanation:
    found = examine(state, request.tenant, request.queue, request.need, request.rank)
    code = (
        reason_to_wait(state, request.tenant, request.need, found).code
        if isinstance(found, str)
        else "granted"
    )
    holders, out = _in_the_way(state, request, code)
    return Explanation(
        request.id,
        state.cell,
        "waiting",
        code,
        _ADVICE.get(code),
        tuple(_live(state, request)),
        happened,
        _line(state, request, code),
        tuple(holders[:NAMED]),
        max(0, len(holders) - NAMED),
        tuple(out),
    )


def _live(state: State, request: Request) -> Iterator[Rule]:
    """Ask every rule on the state as it is, each by itself."""
    need, tenant = request.need, state.tenants[request.tenant]
    queue, charge = state.queues[request.queue], charge_of(state, need)
    limit = queue.max_gpus
    ahead = _strictly_ahead(state, request) if queue.ordering == "strict" else []
    room = tenant.nominal_milli - tenant.held_milli
    classes = state.index.matches(state, need)
    short = shortfall(state, need)
    fits = place(state, need) is not None
    found: dict[str, tuple[bool, Numbers]] = {
        "unknown_tenant": (True, {"tenant": tenant.name}),
        "unknown_queue": (True, {"queue": queue.name}),
        "unknown_pool": (need.pool is None or need.pool in state.pools, {"pool": need.pool}),
        "exceeds_queue_limit": (
            limit is None or charge <= limit * 1000,
            {"asked_milli": charge, "max_gpus": limit},
        ),
        "exceeds_quota": (
            charge <= tenant.nominal_milli,
            {"asked_milli": charge, "nominal_milli": tenant.nominal_milli},
        ),
        "quota_in_use": (
            charge <= room,
            {
                "asked_milli": charge,
                "held_milli": tenant.held_milli,
                "nominal_milli": tenant.nominal_milli,
            },
        ),
        "behind_in_queue": (not ahead, {"ordering": queue.ordering, "ahead": len(ahead)}),
        "no_such_hardware": (bool(classes), {"kinds": len(classes)}),
        "no_capacity": (fits or short.code == "no_beside", short.numbers),
        "no_beside": (fits or short.code != "no_beside", {}),
    }
    for code, (met, numbers) in found.items():
        yield Rule(code, _RULES[code], "met" if met else "not met", numbers)


def _strictly_ahead(state: State, request: Request) -> list[str]:
    """Return who waits before the request in its queue for the same kind of device."""
    mine = frozenset(state.index.matches(state, request.need))
    return [
        name
        for shape in state.index.waiting.in_queue(request.queue)
        if not mine.isdisjoint(shape.classes)
        for rank, name in shape.line
        if rank < request.rank
    ]


def _line(state: State, request: Request, code: str) -> Line:
    """Count those that wait for the same devices; for quota, those of the same tenant."""
    mine = frozenset(state.index.matches(state, request.need))
    waiting = sorted(
        entry
        for shape in state.index.waiting.shapes.values()
        if (
            shape.key[0] == request.tenant
            if code == "quota_in_use" or not mine
            else not mine.isdisjoint(shape.classes)
        )
        for entry in shape.line
    )
    place = waiting.index((request.rank, request.id))
    return Line(place + 1, len(waiting), tuple(name for _, name in waiting[:place][:NAMED]))


def _in_the_way(state: State, request: Request, code: str) -> tuple[list[Holder], list[str]]:
    """Return who holds what the request needs, ending soonest first, and what is out of use."""
    mine = frozenset(key[:4] for key in state.index.matches(state, request.need))
    holders = []
    for lease in state.leases.values():
        units = tuple(
            unit
            for part in lease.parts.values()
            for unit in part.units
            if code == "quota_in_use" or _kind_of(state, unit) in mine
        )
        if lease.tenant == request.tenant if code == "quota_in_use" else units:
            ends = lease.due_us
            holders.append(
                Holder(lease.id, lease.tenant, lease.state, units, lease.granted_us, ends)
            )
    holders.sort(key=lambda one: (one.ends_us is None, one.ends_us or 0, one.lease))
    return holders, [] if code == "quota_in_use" else list(_out_of_use(state, mine))


def _kind_of(state: State, unit: str) -> DeviceKind | None:
    """Return (pool, model, memory, profile) of a device or slice, the kind its class is of."""
    item = state.slices.get(unit)
    device = state.devices.get(unit if item is None else item.device)
    if device is None:
        return None
    pool = state.nodes[device.node].pool
    return (pool, device.model, device.memory_mib, "" if item is None else item.profile)


def _out_of_use(state: State, kinds: frozenset[DeviceKind]) -> Iterator[str]:
    """Name devices of these kinds that nobody may have now, and why."""
    wanted = {kind[:3] for kind in kinds}
    for uuid, device in sorted(state.devices.items()):
        node = state.nodes[device.node]
        if (node.pool, device.model, device.memory_mib) not in wanted:
            continue
        if device.quarantine is not None:
            yield f"{uuid}: in quarantine: {device.quarantine}"
        elif device.health != "healthy":
            yield f"{uuid}: {device.health}"
        elif node.state != "online":
            yield f"{uuid}: node {node.name} is {node.state}"
        elif any(hold.cleaning for hold in device.holds.values()):
            yield f"{uuid}: being cleaned"
