"""Templates: what a request of a task type gets, must say, and may not ask."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from schemas.asks import Ask, Mode
from schemas.base import Count, Model, Name, Seconds, Text
from schemas.requests import Beside, Policy, TaskType

__all__ = ["RequiredField", "TemplateApply", "TemplateDefaults", "TemplateLimits"]

Priority = Annotated[int, Field(ge=-1_000_000, le=1_000_000)]
RunSeconds = Annotated[int, Field(ge=1, le=1_000_000_000)]

#: Fields of `schemas.requests.RequestSubmit` that a template may want said by each request.
RequiredField = Literal[
    "project",
    "ask",
    "beside",
    "priority",
    "max_wait_s",
    "max_run_s",
    "expected_run_s",
    "retries",
    "replicas_min",
    "recovery",
    "checkpoint",
    "rollback",
    "image",
    "environment",
]


class TemplateDefaults(Model):
    """What a request gets where it says nothing, under the request's own names."""

    queue: Name | None = None
    ask: Ask | None = None
    beside: Beside | None = None
    priority: Priority | None = None
    preemptible: bool | None = None
    max_wait_s: Seconds | None = None
    max_run_s: RunSeconds | None = None
    expected_run_s: Seconds | None = None
    retries: Annotated[int, Field(ge=0, le=1000)] | None = None
    replicas_min: Annotated[int, Field(ge=0, le=10_000)] | None = None
    recovery: Literal["requeue", "end"] | None = None
    image: Text | None = None
    environment: Text | None = None


class TemplateLimits(Model):
    """What a request may not go beyond; None and an empty ``modes`` are without limit.

    ``max_gpus`` in whole devices, ``max_run_s`` also for requests that state none.
    """

    max_gpus: Count | None = None
    max_run_s: RunSeconds | None = None
    max_priority: Priority | None = None
    modes: Annotated[tuple[Mode, ...], Field(max_length=8)] = ()


class TemplateApply(Policy):
    """Create or change a template of a task type.

    With ``default`` it is for all requests of the type that name no template, instead
    of the one that was; others get it by its name. ``required`` names fields that a
    request must state itself.
    """

    template: Name
    task_type: TaskType
    default: bool = False
    defaults: TemplateDefaults = TemplateDefaults()
    required: Annotated[tuple[RequiredField, ...], Field(max_length=32)] = ()
    limits: TemplateLimits = TemplateLimits()

    @model_validator(mode="after")
    def _can_be_met(self) -> Self:
        """A template that its own defaults break would refuse every request."""
        given, limits = self.defaults, self.limits
        both = [name for name in self.required if getattr(given, name, None) is not None]
        if both:
            raise ValueError(f"{both[0]} has a default, so no request has to state it")
        for what, default, limit in (
            ("max_run_s", given.max_run_s, limits.max_run_s),
            ("priority", given.priority, limits.max_priority),
        ):
            if default is not None and limit is not None and default > limit:
                raise ValueError(f"the default {what} is beyond the template's own limit")
        if given.ask is not None and limits.modes and given.ask.mode not in limits.modes:
            raise ValueError("the default ask is of a mode that the template forbids")
        return self
