"""Templates: what a request of a task type gets, must say itself, and may not ask.

Two tables say it all: what a template may want is a field of the request, what it
may forbid is a row of ``_FORBIDS``. A default stands for what the request leaves
out; what it says, even that there is none, is its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import orjson

from ledger.core.state import WHOLE_MILLI

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import TypeAdapter

    from ledger.core.decisions.turn import Answer, Numbers
    from ledger.core.state import Request, State
    from schemas.requests import RequestSubmit

__all__ = ["Template", "filled", "longest_run_us", "missing", "refused", "template_for"]

_US = 1_000_000


@cache
def _models() -> dict[str, TypeAdapter[Any]]:
    """Return what reads the defaults that are models; all others are plain values.

    Made when the first is needed: who only reads a log would wait for it in vain.
    """
    from pydantic import TypeAdapter  # noqa: PLC0415 - see above

    from schemas.asks import Ask  # noqa: PLC0415 - see above
    from schemas.requests import Beside  # noqa: PLC0415 - see above

    return {"ask": TypeAdapter(Ask), "beside": TypeAdapter(Beside)}


@dataclass(slots=True)
class Template:
    """A template of a task type (`schemas.templates.TemplateApply` says what it means).

    ``defaults`` and ``limits`` are plain, and hold what is set only.
    """

    name: str
    task_type: str
    default: bool
    defaults: dict[str, Any]
    required: list[str]
    limits: dict[str, Any]


def template_for(state: State, asked: RequestSubmit) -> Template | None:
    """Return the template that the request names, or the default one of its task's type.

    None when there is none of that name, or no default.
    """
    if not state.templates:
        return None
    if asked.template is not None:
        return state.templates.get(asked.template)
    for template in state.templates.values():
        if template.default and template.task_type == asked.task.type:
            return template
    return None


def filled(state: State, asked: RequestSubmit) -> RequestSubmit:
    """Return the request with what its template says where it says nothing.

    Its ``template`` is then the name of the one that applied. A limit of the run
    time is also the run time of who states none, as a queue's is.
    """
    template = template_for(state, asked)
    if template is None:
        return asked
    stated = asked.model_fields_set
    more: dict[str, Any] = {"template": template.name}
    for name, value in template.defaults.items():
        if name not in stated:
            model = _models().get(name)
            more[name] = value if model is None else model.validate_json(orjson.dumps(value))
    if "type" not in asked.task.model_fields_set:
        more["task"] = asked.task.model_copy(update={"type": template.task_type})
    found = asked.model_copy(update=more)
    limit = template.limits.get("max_run_s")
    if found.max_run_s is None and limit is not None:
        queue = state.queues.get(found.queue)
        if queue is not None and queue.max_run_us is not None:
            # A queue's limit may be finer than a second only in theory: it is set in seconds.
            limit = min(limit, queue.max_run_us // _US)
        found = found.model_copy(update={"max_run_s": limit})
    return found


def missing(template: Template, said: RequestSubmit) -> list[str]:
    """Return the fields that the template wants said and the request, as it came, does not say."""
    stated = said.model_fields_set
    return [one for one in template.required if one not in stated or _empty(getattr(said, one))]


def _empty(value: object) -> bool:
    return value is None or value == ""


def refused(
    state: State, said: RequestSubmit, whole: RequestSubmit, charge_milli: int
) -> Answer | None:
    """Return what its template has against the request, required fields first.

    ``said`` is the request as it came, ``whole`` as `filled` made it.
    """
    template = template_for(state, said)
    if template is None:
        return None
    about: Numbers = {"template": template.name}
    if lacks := missing(template, said):
        # The first is the one that a reader of older records knows.
        also: Numbers = {"also": ", ".join(lacks[1:])} if lacks[1:] else {}
        return "template_requires", about | {"field": lacks[0]} | also
    if whole.task.type != template.task_type:
        compared: Numbers = {"asked": whole.task.type, "allowed": template.task_type}
        return "template_forbids", about | {"field": "task.type"} | compared
    for name, limit in template.limits.items():
        numbers = _FORBIDS[name](whole, charge_milli, limit)
        if numbers is not None:
            return "template_forbids", about | {"field": name} | numbers
    return None


def _gpus(_whole: RequestSubmit, charge_milli: int, limit: int) -> Numbers | None:
    over = charge_milli > limit * WHOLE_MILLI
    return {"asked_milli": charge_milli, "max_gpus": limit} if over else None


def _run(whole: RequestSubmit, _charge_milli: int, limit: int) -> Numbers | None:
    return _above(whole.max_run_s, limit)


def _priority(whole: RequestSubmit, _charge_milli: int, limit: int) -> Numbers | None:
    return _above(whole.priority, limit)


def _above(asked: int | None, limit: int) -> Numbers | None:
    return {"asked": asked, "allowed": limit} if asked is not None and asked > limit else None


def _mode(whole: RequestSubmit, _charge_milli: int, limit: list[str]) -> Numbers | None:
    mode = whole.ask.mode
    return None if mode in limit else {"asked": mode, "allowed": ", ".join(limit)}


#: Limit of a template -> the numbers compared where a request goes beyond it, or None.
_FORBIDS: dict[str, Callable[[RequestSubmit, int, Any], Numbers | None]] = {
    "max_gpus": _gpus,
    "max_run_s": _run,
    "max_priority": _priority,
    "modes": _mode,
}


def longest_run_us(state: State, request: Request) -> int | None:
    """Return the longest run that the request's queue and template allow, in µs."""
    template = state.templates.get(request.template or "")
    limit = None if template is None else template.limits.get("max_run_s")
    limits = (state.queues[request.queue].max_run_us, None if limit is None else limit * _US)
    return min((one for one in limits if one is not None), default=None)
