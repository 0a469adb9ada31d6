"""What services ask: submit, cancel, release."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.core.placement import Placement, charge_of
from ledger.core.schedule import examine, grant, reason_to_wait
from ledger.core.state import WHOLE_MILLI, Need, need_to_plain
from ledger.core.turn import INTERRUPTIONS

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.core.state import State
    from ledger.core.turn import Answer, Input, Numbers, Turn
    from schemas.requests import LeaseRelease, RequestCancel, RequestSubmit

__all__ = ["REQUESTS", "lease_past", "need_of"]

_US = 1_000_000


def need_of(asked: RequestSubmit) -> Need:
    """Return the normalised need of a submission."""
    ask = asked.ask
    labels = tuple(sorted(ask.labels.items()))
    cpu, memory = asked.beside.cpu_milli, asked.beside.memory_mib
    common = (ask.mode, ask.pool, labels, ask.models)
    if ask.mode == "whole":
        milli = WHOLE_MILLI
        return Need(*common, ask.count, ask.nodes, milli, ask.memory_mib, "", cpu, memory)
    if ask.mode == "share":
        return Need(*common, 1, 1, ask.gpu_milli, ask.memory_mib, "", cpu, memory)
    return Need(*common, ask.count, 1, WHOLE_MILLI, 0, ask.profile, cpu, memory)


def _submit(turn: Turn, given: Input) -> Answer:
    asked: RequestSubmit = given.data
    need = need_of(asked)
    refusal = _never(turn.state, asked, need)
    if refusal is not None:
        return _reject(turn, given, refusal)
    rank = (-asked.priority, turn.now_us, turn.state.arrivals + 1)
    # While a pass is cut somebody in line may be entitled to what is free: get in line.
    cut = turn.state.pass_cut
    found = "behind_in_queue" if cut else examine(turn.state, asked.tenant, asked.queue, need, rank)
    if isinstance(found, Placement):
        _receive(turn, given, need)
        grant(turn, turn.state.requests[given.key], found)
        return "granted", {}
    short = reason_to_wait(turn.state, asked.tenant, need, found)
    if asked.max_wait_s == 0 or turn.state.queues[asked.queue].max_wait_us == 0:
        return _reject(turn, given, (short.code, short.numbers))
    _receive(turn, given, need)
    turn.emit(
        {
            "type": "request.queued",
            "request": given.key,
            "code": short.code,
            "numbers": short.numbers,
            "again": False,
        }
    )
    return "queued", {"reason": short.code, **short.numbers}


def _never(state: State, asked: RequestSubmit, need: Need) -> Answer | None:
    """Say why the request could never run as things stand; the first rule in order of codes."""
    tenant = state.tenants.get(asked.tenant)
    if tenant is None:
        return "unknown_tenant", {"tenant": asked.tenant}
    queue = state.queues.get(asked.queue)
    if queue is None:
        return "unknown_queue", {"queue": asked.queue}
    if need.pool is not None and need.pool not in state.pools:
        return "unknown_pool", {"pool": need.pool}
    charge = charge_of(state, need)
    if queue.max_gpus is not None and charge > queue.max_gpus * WHOLE_MILLI:
        return "exceeds_queue_limit", {"asked_milli": charge, "max_gpus": queue.max_gpus}
    if charge > tenant.nominal_milli:
        return "exceeds_quota", {"asked_milli": charge, "nominal_milli": tenant.nominal_milli}
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


def _receive(turn: Turn, given: Input, need: Need) -> None:
    asked: RequestSubmit = given.data
    queue = turn.state.queues[asked.queue]
    waits = [limit for limit in (_us(asked.max_wait_s), queue.max_wait_us) if limit is not None]
    event = {
        "type": "request.received",
        "request": given.key,
        "tenant": asked.tenant,
        "queue": asked.queue,
        "task": asked.task.id,
        "task_type": asked.task.type,
        "need": need_to_plain(need),
    }
    more = {
        "project": asked.project,
        "priority": asked.priority,
        "preemptible": asked.preemptible,
        "wait_due_us": turn.now_us + min(waits) if waits else None,
        "max_run_us": _us(asked.max_run_s),
        "expected_run_us": _us(asked.expected_run_s),
        "retries": asked.retries,
    }
    # What stands at its default is left out: a ledger keeps these bytes for ever.
    turn.emit(event | {name: value for name, value in more.items() if value})


def _us(seconds: int | None) -> int | None:
    return None if seconds is None else seconds * _US


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
    if request.state == "queued":
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
}
