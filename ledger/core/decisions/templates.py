"""What operators set of templates."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.core.decisions.turn import Answer, Input, Turn
    from schemas.templates import TemplateApply

__all__ = ["TEMPLATES"]


def _apply(turn: Turn, given: Input) -> Answer:
    """Set a template; what was let in under the one before keeps what it got."""
    asked: TemplateApply = given.data
    queue = asked.defaults.queue
    if queue is not None and queue not in turn.state.queues:
        return "unknown_queue", {"queue": queue}
    event = {
        "type": "template.applied",
        "template": asked.template,
        "task_type": asked.task_type,
        "author": asked.author,
        "reason": asked.reason,
    }
    more = {
        "default": asked.default,
        "defaults": asked.defaults.model_dump(mode="json", exclude_unset=True, exclude_none=True),
        "required": list(asked.required),
        "limits": asked.limits.model_dump(mode="json", exclude_defaults=True),
    }
    turn.emit(event | {name: value for name, value in more.items() if value})
    return "applied", {}


TEMPLATES: dict[str, Callable[[Turn, Input], Answer]] = {"template.apply": _apply}
