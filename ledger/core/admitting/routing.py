"""Hybrid routing: how a request of a service class is served, as the pool it names says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from schemas.asks import Ask

if TYPE_CHECKING:
    from ledger.core.decisions.turn import Answer
    from ledger.core.state import State
    from schemas.asks import AutoAsk
    from schemas.requests import RequestSubmit

__all__ = ["routed"]

_ASK: TypeAdapter[Any] = TypeAdapter(Ask)

#: What of an ask each mode takes, beside what all have.
_TAKES = {
    "whole": ("memory_mib",),
    "mig": ("memory_mib", "compute_slices"),
    "share": ("memory_mib", "gpu_milli"),
}

#: Task types that are served for latency unless they say otherwise.
_SENSITIVE = frozenset({"online-inference", "interactive"})


def routed(state: State, asked: RequestSubmit) -> tuple[RequestSubmit, str, Answer | None]:
    """Return the request in the mode that its pool's rule gives it, and the rule in words.

    The third is why there is none. Who asks for a mode gets that, whatever the rule.
    """
    ask = asked.ask
    if ask.mode != "auto":
        return asked, "", None
    pool = state.pools.get(ask.pool or "")
    service = asked.service_class
    if service is None:
        service = "latency-sensitive" if asked.task.type in _SENSITIVE else "elastic"
    mode = pool.routing.get(service) if pool is not None else None
    if mode is None:
        whole = asked.model_copy(update={"ask": _as(ask, "whole")})
        return whole, "", ("no_route", {"pool": ask.pool, "service_class": service})
    found = asked.model_copy(update={"ask": _as(ask, mode), "service_class": service})
    return found, f"{service} to {mode}", None


def _as(ask: AutoAsk, mode: str) -> Any:  # noqa: ANN401 - any kind of ask
    left_out = {name for names in _TAKES.values() for name in names} - set(_TAKES[mode])
    plain = ask.model_dump(exclude=left_out | {"mode"}, exclude_unset=True)
    return _ASK.validate_python(plain | {name: getattr(ask, name) for name in _TAKES[mode]}
                                | {"mode": mode})  # fmt: skip
