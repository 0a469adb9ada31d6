"""What a decision has to say to others: replies to requesters, orders to nodes.

Computed from the decision and the state it left, before the append; sent only
after it (DESIGN 2.1). What a restart may have swallowed can be said again:
`open_orders` from the state, `answer_again` for an input that comes once more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ledger.core.placing.grant import reply_parts, unit_names
from ledger.core.placing.isolation import given_by
from schemas.codes import CODES, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ledger.core.decide import Decision
    from ledger.core.state import Lease, Part, State

__all__ = [
    "Message",
    "answer_again",
    "answered",
    "conflict_of",
    "malformed_reply",
    "messages",
    "open_orders",
    "refused_reply",
]

#: (topic without prefix, key, type, payload).
Message = tuple[str, str, str, dict[str, Any]]

_ANSWERS = {"cancelled": "cancelled", "released": "released", "stopping": "stopping"}


def messages(state: State, decision: Decision, position: str | None) -> list[Message]:
    """Return what the decision at ``position`` (None: it left no record) has to say, in order."""
    found: list[Message] = []
    for event in decision.events:
        rule = _EVENTS.get(event["type"])
        if rule is not None:
            found.extend(rule(state, event, position))
    given = decision.input
    if given.topic == "requests" and given.type != "request.submit":
        found.append(_reply(given.key, given.key, *_outcome(decision), position))
    elif decision.code == "id_conflict":
        found.append(_conflict(given.key, decision.numbers, position))
    return found


def _conflict(key: str, numbers: dict[str, Any], position: str | None) -> Message:
    return _reply(key, key, "refused", "id_conflict", numbers, position)


def _outcome(decision: Decision) -> tuple[str, str, dict[str, Any]]:
    yes = CODES[decision.code].kind is Kind.YES
    answer = _ANSWERS.get(decision.code, "applied") if yes else "refused"
    return answer, decision.code, decision.numbers


def _reply(
    request: str,
    about: str,
    answer: str,
    code: str,
    numbers: dict[str, Any],
    position: str | None,
    *,
    final: bool = False,
    **more: object,
) -> Message:
    payload: dict[str, Any] = {
        "request": request,
        "input": about,
        "answer": answer,
        "final": final,
        "code": code,
    }
    if numbers:
        payload["numbers"] = numbers
    if position is not None:
        payload["position"] = position
    payload.update(more)
    return ("replies", about.partition("#")[0], "reply", payload)


def _rejected(_state: State, event: dict[str, Any], position: str | None) -> Iterator[Message]:
    name = event["request"]
    yield _reply(name, name, "rejected", event["code"], event["numbers"], position, final=True)


def _queued(state: State, event: dict[str, Any], position: str | None) -> Iterator[Message]:
    name = event["request"]
    more = _attempt(state, name)
    yield _reply(name, name, "queued", event["code"], event["numbers"], position, **more)


def _attempt(state: State, name: str) -> dict[str, Any]:
    """Tell one wait from another: how many leases the request has had, when it had any."""
    request = state.requests.get(name)
    return {"attempt": request.attempt} if request is not None and request.attempt else {}


def _ended(state: State, event: dict[str, Any], position: str | None) -> Iterator[Message]:
    """A request that never had a lease ends with its answer; another with a notice."""
    name, how = event["request"], event["how"]
    entry = state.seen.get(name)
    attempts = entry[4] if entry is not None else 0
    if attempts:
        yield _reply(name, name, "ended", _code(how), {"how": how}, position, attempt=attempts)
    else:
        yield _reply(name, name, _word(how), _code(how), {}, position, final=True)


def _word(how: str) -> str:
    """Return the answer of a request without a lease: one whose reservation is over expired."""
    return "expired" if how == "reservation-over" else how


def _code(how: str) -> str:
    return _ENDS.get(how, "observed")


#: How a request may end without ever having had a lease -> the code of its answer.
_ENDS = {
    "expired": "wait_expired",
    "cancelled": "cancelled",
    "reservation-over": "reservation_over",
}


def _granted(state: State, event: dict[str, Any], position: str | None) -> Iterator[Message]:
    request = state.requests.get(event["request"])
    if request is None:
        # It has ended in the same decision; the grant was its final answer all the same.
        yield from _first_grant(event["request"], event["attempt"], position)
        return
    yield _reply(
        request.id,
        request.id,
        "granted",
        "granted",
        {},
        position,
        final=event["attempt"] == 1,
        lease=event["lease"],
        attempt=event["attempt"],
        parts=reply_parts(state, request.need, event["parts"]),
    )
    lease = state.leases.get(event["lease"])
    if lease is not None:
        for part in lease.parts.values():
            yield _prepare(state, lease, part)


def _prepare(state: State, lease: Lease, part: Part) -> Message:
    """A lease that nobody has seen running is itself an open order to make it ready."""
    request = state.requests[lease.request]
    order = {
        "order": f"{lease.id}/prepare/{part.node}",
        "kind": "prepare",
        "node": part.node,
        "incarnation": state.nodes[part.node].incarnation,
        "cell": state.cell,
        "lease": lease.id,
        "request": request.id,
        "task": request.task,
        "units": unit_names(state, part.units),
        "gpu_milli": request.need.gpu_milli,
        "due_us": lease.due_us,
    }
    if request.need.delivery != request.need.mode:
        order["delivery"] = request.need.delivery
        order |= given_by(state, request.need, part.units)
    if request.expected_run_us is not None:
        order["expected_run_us"] = request.expected_run_us
    return ("orders", part.node, "order", order)


def _stopping(_state: State, event: dict[str, Any], position: str | None) -> Iterator[Message]:
    request = event["lease"].rpartition("/")[0]
    numbers = {"reason": event["reason"]}
    numbers |= {name: event[name] for name in ("by", "rule") if name in event}
    code = "stopping"
    more = {"lease": event["lease"], "attempt": int(event["lease"].rpartition("/")[2])}
    yield _reply(request, request, "stopping", code, numbers, position, **more)


def _reserved(_state: State, event: dict[str, Any], position: str | None) -> Iterator[Message]:
    name = event["request"]
    yield _reply(name, name, "reserved", "reserved", event["why"], position)


def _reminded(_state: State, event: dict[str, Any], position: str | None) -> Iterator[Message]:
    request, _, attempt = event["lease"].rpartition("/")
    named: tuple[str, ...] = ("idle_us", "reclaim_us")
    numbers = {name: event[name] for name in named if name in event}
    more = {"lease": event["lease"], "attempt": int(attempt)}
    yield _reply(request, request, "reminded", "observed", numbers, position, **more)


def _quota_answered(
    _state: State, event: dict[str, Any], position: str | None
) -> Iterator[Message]:
    answer = "applied" if event["approve"] else "refused"
    numbers = {"author": event["author"], "reason": event["reason"]}
    yield _reply(event["ask"], event["ask"], answer, "applied", numbers, position)


def _issued(state: State, event: dict[str, Any], _position: str | None) -> Iterator[Message]:
    if event["order"] in state.orders:
        yield _order(state, event["order"])


def _order(state: State, name: str) -> Message:
    order = state.orders[name]
    plain: dict[str, Any] = {
        "order": order.id,
        "kind": order.kind,
        "node": order.node,
        "incarnation": state.nodes[order.node].incarnation,
        "cell": state.cell,
        "lease": order.lease,
        "units": unit_names(state, order.units),
        "due_us": order.due_us,
    }
    if order.kind == "mode":
        del plain["lease"]
        plain["enabled"] = order.enabled
    if order.kind == "partition":
        del plain["lease"]
        plain["steps"] = order.steps
        if order.request is not None:
            plain["request"] = order.request
    return ("orders", order.node, "order", plain)


_EVENTS: dict[str, Callable[[State, dict[str, Any], str | None], Iterator[Message]]] = {
    "request.rejected": _rejected,
    "request.queued": _queued,
    "request.ended": _ended,
    "lease.granted": _granted,
    "request.reserved": _reserved,
    "quota.answered": _quota_answered,
    "lease.reminded": _reminded,
    "lease.stopping": _stopping,
    "order.issued": _issued,
}


def open_orders(state: State, node: str | None = None) -> list[Message]:
    """Return every order that is still open, of one node or of all: said again after a load.

    In the order in which they were given, which a node goes by; a loaded state has them by id.
    """
    found = [
        _order(state, order.id)
        for order in sorted(state.orders.values(), key=lambda one: (len(one.id), one.id))
        if node is None or order.node == node
    ]
    for lease in state.leases.values():
        if lease.state != "stopping":
            found.extend(
                _prepare(state, lease, part)
                for part in lease.parts.values()
                if part.state == "granted" and (node is None or part.node == node)
            )
    return found


def answer_again(state: State, key: str, fingerprint: str | None = None) -> list[Message]:
    """Answer an input (``source#id``) that was decided: the same as far as it still holds.

    With ``fingerprint`` the input has come once more itself, and is refused when
    it is not what was decided under its id.
    """
    request = state.requests.get(key)
    if fingerprint is not None:
        entry = state.seen.get(key)
        first = request.fp if request is not None else entry[0] if entry else fingerprint
        if first != fingerprint:
            return [_conflict(key, {"first": first, "now": fingerprint}, None)]
    if request is not None:
        if request.state in ("queued", "reserved"):
            more = _attempt(state, key)
            word = request.state
            queued = _reply(request.id, request.id, word, word, {}, None, **more)
            return [*_first_grant(key, request.attempt), queued]
        lease = state.leases[request.lease or ""]
        event = {
            "request": request.id,
            "lease": lease.id,
            "attempt": request.attempt,
            "parts": [{"node": one.node, "units": one.units} for one in lease.parts.values()],
        }
        first = _first_grant(key, request.attempt - 1)
        return [*first, *(one for one in _granted(state, event, None) if one[0] == "replies")]
    entry = state.seen.get(key)
    if entry is None:
        return []
    if len(entry) == 3:  # noqa: PLR2004 - an input that was no request
        kind = CODES[entry[1]].kind
        answer = _ANSWERS.get(entry[1], "applied") if kind is Kind.YES else "refused"
        return [_reply(key, key, answer, entry[1], {}, None)]
    how, attempts = entry[3], entry[4]
    if how == "rejected":
        return [_reply(key, key, "rejected", entry[1], {}, None, final=True)]
    if not attempts:
        return [_reply(key, key, _word(how), _code(how), {}, None, final=True)]
    ended = _reply(key, key, "ended", _code(how), {"how": how}, None, attempt=attempts)
    return [*_first_grant(key, attempts), ended]


def _first_grant(key: str, past: int, position: str | None = None) -> list[Message]:
    """Give a request's final answer, the first grant, when it has leases behind it.

    Its id is that of the answer given first, so whoever had that sees a copy;
    what was granted is over and not told again.
    """
    if past < 1:
        return []
    more = {"lease": f"{key}/1", "attempt": 1}
    return [_reply(key, key, "granted", "granted", {}, position, final=True, **more)]


def answered(record: dict[str, Any]) -> list[tuple[str, str]]:
    """Return (cell, ``source#id``) of every input or request that a decision's record answers."""
    cell, given = record["cell"], record["input"]
    found = [
        (cell, event["request"])
        for event in record["events"]
        if event["type"] in ("request.queued", "lease.granted", "request.ended")
    ]
    if record["source"][0] == "requests" and record["outcome"]["code"] != "id_conflict":
        found.append((cell, f"{given['source']}#{given['id']}"))
    return found


def conflict_of(record: dict[str, Any]) -> list[Message]:
    """Return the refusal that a decision's record gave to an id used before, if it did."""
    given, outcome = record["input"], record["outcome"]
    if outcome["code"] != "id_conflict":
        return []
    return [_conflict(f"{given['source']}#{given['id']}", outcome.get("numbers", {}), None)]


def refused_reply(source: str, name: str, code: str, numbers: dict[str, Any]) -> Message:
    """Answer a request that is refused without a record."""
    key = f"{source}#{name}"
    return _reply(key, key, "refused", code, numbers, None, final=True)


def malformed_reply(source: str, name: str, code: str, detail: str) -> Message:
    """Answer a record that was put aside but whose identity could be read."""
    key = f"{source}#{name}"
    return _reply(key, key, "malformed", code, {"detail": detail}, None, final=True)
