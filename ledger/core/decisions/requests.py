"""What services ask: submit, cancel, release."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ledger.core.admitting.admission import admitted
from ledger.core.admitting.asked_terms import terms_of
from ledger.core.admitting.routing import routed
from ledger.core.admitting.templates import filled, longest_run_us, refused
from ledger.core.decisions.reservations import not_within, too_long
from ledger.core.decisions.turn import INTERRUPTIONS
from ledger.core.derived.waiting import ShapeKey, run_limit
from ledger.core.limits import MAX_RUN_US
from ledger.core.line.asking import Asker
from ledger.core.line.estimate import expectation
from ledger.core.line.schedule import examine, grant, make_room, reason_to_wait
from ledger.core.need import need_to_plain
from ledger.core.placing.constraints import pool_serves
from ledger.core.placing.placement import Placement, charge_of
from ledger.core.quotas.quota import (
    GPU,
    MOST_MILLI_US,
    budget_left,
    chain,
    holder_of,
    most_ever,
)
from ledger.core.state import WHOLE_MILLI, Need

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.core.decisions.turn import Answer, Input, Numbers, Turn
    from ledger.core.state import State
    from schemas.requests import (
        LeaseExtend,
        LeaseRelease,
        RequestCancel,
        RequestSubmit,
        TaskBegin,
    )

__all__ = ["REQUESTS", "asker_for", "lease_past", "need_of"]

_US = 1_000_000

#: Delivery modes that are counted like another.
_COUNTED_AS = {"passthrough": "whole", "vgpu": "share"}


def need_of(asked: RequestSubmit, source: str = "", route: str = "") -> Need:
    """Return the normalised need of a submission from a source, of no tenant yet."""
    ask = asked.ask
    assert ask.mode != "auto", "a mode is chosen before (`ledger.core.admitting.routing`)"
    labels = tuple(sorted(ask.labels.items())) if ask.labels else ()
    host = (asked.beside.cpu_milli, asked.beside.memory_mib)
    mode = _COUNTED_AS.get(ask.mode, ask.mode)
    common = (mode, ask.pool, labels, ask.models)
    if ask.mode == "whole":
        milli = WHOLE_MILLI
        need = Need(*common, ask.count, ask.nodes, milli, ask.memory_mib, "", *host)
    elif ask.mode == "passthrough":
        need = Need(*common, ask.count, 1, WHOLE_MILLI, ask.memory_mib, "", *host)
    elif ask.mode == "vgpu":
        # How much of a device an instance is, devices say (`ledger.core.placing.vgpu`).
        need = Need(*common, 1, 1, WHOLE_MILLI, 0, "", *host)
    elif ask.mode == "share":
        need = Need(*common, 1, 1, ask.gpu_milli, ask.memory_mib, "", *host)
    else:
        least = (ask.memory_mib, ask.profile or "")
        need = Need(*common, ask.count, 1, WHOLE_MILLI, *least, *host, ask.compute_slices)
    terms = terms_of(asked, source, route)
    return need if terms is None else replace(need, terms=terms)


def _submit(turn: Turn, given: Input) -> Answer:
    state, name, said = turn.state, given.key, given.data
    asked, route, lost = routed(state, filled(state, said) if state.templates else said)
    need, never = admitted(state, asked, need_of(asked, given.source, route))
    refusal = _never(state, said, asked, need) or lost or never
    if refusal is not None:
        return _reject(turn, given, refusal)
    asker = asker_for(state, asked, need, name, turn.now_us)
    # While a pass is cut somebody in line may be entitled to what is free: get in line.
    found = "behind_in_queue" if state.pass_cut else examine(state, asker, turn.now_us)
    if isinstance(found, Placement):
        _receive(turn, name, asked, need)
        grant(turn, state.requests[name], found)
        return "granted", {}
    short = reason_to_wait(state, asker.key, found, turn.now_us)
    if asked.max_wait_s == 0 or state.queues[asked.queue].max_wait_us == 0:
        return _reject(turn, given, (short.code, short.numbers))
    _receive(turn, name, asked, need)
    turn.emit(
        {
            "type": "request.queued",
            "request": name,
            "code": short.code,
            "numbers": short.numbers,
            "again": False,
            **expectation(state, asker, turn.now_us),
        }
    )
    if not state.pass_cut and make_room(turn, asker, found):
        return "reserved", {"reason": short.code, **short.numbers}
    return "queued", {"reason": short.code, **short.numbers}


def asker_for(state: State, asked: RequestSubmit, need: Need, name: str, now_us: int) -> Asker:
    """Return the submission as one that asks now, as its request would once it is received."""
    holder = holder_of(state, asked.tenant, asked.project)
    run_us = run_limit(state, holder, asked.queue, _longest(state, asked))
    key = ShapeKey(holder, asked.queue, need, run_us, asked.reservation)
    return Asker(key, (-asked.priority, now_us, state.arrivals + 1), name)


def _longest(state: State, asked: RequestSubmit) -> int | None:
    """Return the longest run of the request: its own, else its queue's."""
    if asked.max_run_s is not None:
        return asked.max_run_s * _US
    return state.queues[asked.queue].max_run_us


def _never(state: State, said: RequestSubmit, asked: RequestSubmit, need: Need) -> Answer | None:
    """Say why the request could never run as things stand; the first rule in order of codes.

    ``asked`` is the request ``said`` with what its template fills in.
    """
    if asked.tenant not in state.quotas:
        return "unknown_tenant", {"tenant": asked.tenant}
    if said.template is not None and said.template not in state.templates:
        return "unknown_template", {"template": said.template}
    queue = state.queues.get(asked.queue)
    if queue is None:
        return "unknown_queue", {"queue": asked.queue}
    if need.pool is not None and need.pool not in state.pools:
        return "unknown_pool", {"pool": need.pool}
    if queue.tenants and asked.tenant not in queue.tenants:
        return "not_admitted", {"tenant": asked.tenant, "queue": queue.name}
    if need.pool is not None and not pool_serves(state, need.pool, need):
        return "pool_refuses", {"pool": need.pool, "tenant": asked.tenant, "mode": asked.ask.mode}
    charge = charge_of(state, need)
    refusal = not_within(state, asked.tenant, asked.reservation, need)
    refusal = refusal or refused(state, said, asked, charge)
    if refusal is not None:
        return refusal
    if queue.max_gpus is not None and charge > queue.max_gpus * WHOLE_MILLI:
        return "exceeds_queue_limit", {"asked_milli": charge, "max_gpus": queue.max_gpus}
    holder = holder_of(state, asked.tenant, asked.project)
    most = most_ever(state, holder, GPU)
    if most is not None and charge > most:
        return "exceeds_quota", {"asked_milli": charge, "nominal_milli": most}
    longest = _longest(state, asked)
    if queue.max_run_us is not None and longest is not None and longest > queue.max_run_us:
        return "exceeds_max_run", {"max_run_us": longest, "queue_max_run_us": queue.max_run_us}
    if longest is None and state.quotas[holder].budgeted:
        return "needs_max_run", {"quota": holder}
    return None


def _reject(turn: Turn, given: Input, refusal: Answer) -> Answer:
    code, numbers = refusal
    turn.emit(
        {
            "type": "request.rejected",
            "request": given.key,
            "tenant": given.data.tenant,
            "code": code,
            "numbers": numbers,
        }
    )
    return code, numbers


def _receive(turn: Turn, name: str, asked: RequestSubmit, need: Need) -> None:
    event: dict[str, Any] = {
        "type": "request.received",
        "request": name,
        "tenant": asked.tenant,
        "queue": asked.queue,
        "task": asked.task.id,
        "task_type": asked.task.type,
        "need": need_to_plain(need),
    }
    # What stands at its default is left out: a ledger keeps these bytes for ever.
    for stated in sorted(asked.model_fields_set & _KEPT_AS_SAID):
        value = getattr(asked, stated)
        if value:
            event[stated] = value
    wait_us = _longest_wait_us(turn.state, asked)
    if wait_us is not None:
        event["wait_due_us"] = turn.now_us + wait_us
    longest_us = _longest(turn.state, asked)
    if longest_us is not None:
        event["max_run_us"] = longest_us
    if asked.expected_run_s:
        event["expected_run_us"] = asked.expected_run_s * _US
    replicas_min = _replicas_min(asked)
    if replicas_min:
        event["replicas_min"] = replicas_min
    recovery = asked.recovery or _RECOVERY.get(asked.task.type)
    if recovery is not None:
        event["recovery"] = recovery
    if asked.runtime is not None:
        event["runtime"] = asked.runtime.model_dump(exclude_none=True)
    turn.emit(event)


#: Fields that the record has as the request states them.
_KEPT_AS_SAID = frozenset(
    (
        "project",
        "priority",
        "preemptible",
        "retries",
        "template",
        "reservation",
        "checkpoint",
        "rollback",
        "image",
        "environment",
        "service_class",
    )
)

#: What becomes of an evicted task by its type; all others are queued again.
_RECOVERY = {"evaluation": "end", "interactive": "end"}


def _replicas_min(asked: RequestSubmit) -> int:
    """An online service keeps its last replica unless it says otherwise."""
    if asked.replicas_min is not None:
        return asked.replicas_min
    return 1 if asked.task.type == "online-inference" else 0


def _longest_wait_us(state: State, asked: RequestSubmit) -> int | None:
    limit_us = state.queues[asked.queue].max_wait_us
    if asked.max_wait_s is None:
        return limit_us
    own_us = asked.max_wait_s * _US
    return own_us if limit_us is None else min(own_us, limit_us)


def _cancel(turn: Turn, given: Input) -> Answer:
    asked: RequestCancel = given.data
    state = turn.state
    request = state.requests.get(asked.request)
    if request is None:
        entry = state.seen.get(asked.request)
        if entry is None or len(entry) == 3:  # noqa: PLR2004 - an input that was no request
            return "unknown_request", {"request": asked.request}
        if not _owns(given, asked.request):
            return "not_owner", {"source": given.source}
        return "already_ended", {"how": entry[3]}
    if not _owns(given, request.id):
        return "not_owner", {"source": given.source}
    if request.state in ("queued", "reserved"):
        turn.emit({"type": "request.ended", "request": request.id, "how": "cancelled"})
        return "cancelled", {}
    lease = state.leases[request.lease or ""]
    if not turn.change_reason(lease, "cancelled"):
        return "stopping", {"reason": lease.reason}
    return "stopping", {}


def _release(turn: Turn, given: Input) -> Answer:
    """The lease is named, never a device: what came after it is untouched (C27, A7)."""
    asked: LeaseRelease = given.data
    lease = turn.state.leases.get(asked.lease)
    if lease is None:
        past = lease_past(turn.state, asked.lease)
        if past is not None and not _owns(given, asked.lease):
            return "not_owner", {"source": given.source}
        return ("already_released", past) if past is not None else _no_lease(asked.lease)
    if not _owns(given, lease.request):
        return "not_owner", {"source": given.source}
    interrupted = lease.reason in INTERRUPTIONS
    turn.end_lease(lease, asked.how if interrupted else lease.reason or asked.how)
    return "released", {}


def _extend(turn: Turn, given: Input) -> Answer:
    """Lengthen one's own lease, if nobody was promised its place before the new end."""
    asked: LeaseExtend = given.data
    state = turn.state
    lease = state.leases.get(asked.lease)
    if lease is None:
        past = lease_past(state, asked.lease)
        return ("already_released", past) if past is not None else _no_lease(asked.lease)
    if not _owns(given, lease.request):
        return "not_owner", {"source": given.source}
    if lease.state == "stopping":
        return "stopping", {"reason": lease.reason}
    request = state.requests[lease.request]
    if lease.due_us is None or request.max_run_us is None:
        return "unchanged", {}
    most = longest_run_us(state, request)
    longest = request.max_run_us + asked.more_s * _US
    if most is not None and longest > most:
        return "exceeds_max_run", {"max_run_us": longest, "queue_max_run_us": most}
    holder = holder_of(state, request.tenant, request.project)
    for quota in chain(state, holder):
        left = budget_left(quota, turn.now_us)
        more = min(lease.charge_milli * asked.more_s * _US, MOST_MILLI_US)
        if left is not None and more > left:
            return "budget_spent", {"quota": quota.name, "asked": more, "available": left}
    if longest > MAX_RUN_US:
        return "exceeds_max_run", {"max_run_us": longest, "queue_max_run_us": MAX_RUN_US}
    due_us = lease.due_us + asked.more_s * _US
    for node in lease.parts:
        owner = state.index.plans.get(node)
        plan = state.requests[owner].plan if owner is not None else None
        if plan is not None and (plan.start_us is None or plan.start_us < due_us):
            return "planned_for_another", {"node": node, "start_us": plan.start_us}
    refusal = too_long(state, lease, due_us, turn.now_us)
    if refusal is not None:
        return refusal
    turn.emit({"type": "lease.extended", "lease": lease.id, "due_us": due_us})
    return "applied", {"due_us": due_us}


def _begun(turn: Turn, given: Input) -> Answer:
    """The requester tells when its command has started, so that waits can be told whole.

    It changes nothing: what a node has seen running is the node's to say (DESIGN 1.5).
    """
    asked: TaskBegin = given.data
    lease = turn.state.leases.get(asked.lease)
    if lease is None:
        past = lease_past(turn.state, asked.lease)
        return ("already_released", past) if past is not None else _no_lease(asked.lease)
    if not _owns(given, lease.request):
        return "not_owner", {"source": given.source}
    if asked.node not in lease.parts:
        return "wrong_node", {"node": asked.node, "nodes": len(lease.parts)}
    told = {"lease": lease.id, "node": asked.node}
    turn.emit({"type": "task.begun", **told, "said_us": asked.said_us, "after_us": asked.after_us})
    return "applied", {}


def _no_lease(name: str) -> Answer:
    return "unknown_lease", {"lease": name}


def lease_past(state: State, name: str) -> Numbers | None:
    """Return how a lease that is over ended, or None when there never was such a lease."""
    request_id, _, attempt = name.rpartition("/")
    if not attempt.isascii() or not attempt.isdigit():
        return None
    request = state.requests.get(request_id)
    if request is not None:
        return {"attempts": request.attempt} if 1 <= int(attempt) <= request.attempt else None
    entry = state.seen.get(request_id)
    if entry is None or len(entry) == 3 or not 1 <= int(attempt) <= entry[4]:  # noqa: PLR2004
        return None
    return {"how": entry[3]}


def _owns(given: Input, request_id: str) -> bool:
    """A request belongs to the source that made it; its id begins with that source."""
    return request_id.partition("#")[0] == given.source


REQUESTS: dict[str, Callable[[Turn, Input], Answer]] = {
    "request.submit": _submit,
    "request.cancel": _cancel,
    "lease.release": _release,
    "lease.extend": _extend,
    "task.begin": _begun,
}
