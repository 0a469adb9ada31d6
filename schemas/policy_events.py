"""The events of what operators set: pools, queues, quotas."""

from __future__ import annotations

from typing import Literal

from schemas.asks import Mode
from schemas.base import Count, Milli, Model, Name, Reference, Text, TimeUs, WholeMib
from schemas.placement import HolePrice, TypicalShape
from schemas.prices import PriceBook
from schemas.requests import LimitSet, Partition, Placement, Route, TaskType
from schemas.templates import RequiredField, TemplateDefaults, TemplateLimits

__all__ = [
    "CompatibilityApplied",
    "LicenceApplied",
    "PlacementApplied",
    "PoolApplied",
    "PricesApplied",
    "QueueApplied",
    "QuotaAnswered",
    "QuotaApplied",
    "QuotaAsked",
    "QuotaRenewed",
    "TemplateApplied",
]


class PoolApplied(Model):
    """A pool was created or changed."""

    type: Literal["pool.applied"]
    pool: Name
    labels: dict[Name, Text]
    silent_grace_us: TimeUs
    order_timeout_us: TimeUs
    placement: Placement = "best-fit"
    partition: Partition = "never"
    slices_warning: Count = 4
    allowed_modes: tuple[Mode, ...] = ()
    allowed_tenants: tuple[Name, ...] = ()
    memory_overcommit_permille: Count = 1000
    routing: tuple[Route, ...] = ()
    author: Name
    reason: Text


class PlacementApplied(Model):
    """A pool's placement policy was told what requests come (`schemas.placement`)."""

    type: Literal["placement.applied"]
    pool: Name
    shapes: tuple[TypicalShape, ...]
    holes: tuple[HolePrice, ...]
    cpu_milli_per_gpu: Milli
    memory_mib_per_gpu: WholeMib
    cpu_load_milli: Milli
    loads_milli: dict[Text, Milli]
    author: Name
    reason: Text


class QueueApplied(Model):
    """A queue was created or changed."""

    type: Literal["queue.applied"]
    queue: Name
    ordering: Literal["strict", "best-effort", "backfill"]
    max_gpus: Count | None
    max_wait_us: TimeUs | None
    author: Name
    reason: Text
    tenants: tuple[Name, ...] = ()
    max_run_us: TimeUs | None = None
    fair_share: bool = False
    preemption: Literal["never", "same-tenant", "any-tenant"] = "never"
    reclaim: Literal["never", "lower-priority", "any"] = "never"
    idle_remind_us: TimeUs | None = None
    idle_reclaim_us: TimeUs | None = None
    repair_hold_us: TimeUs | None = 600_000_000


class QuotaApplied(Model):
    """A quota was set (`schemas.requests.QuotaApply`)."""

    type: Literal["quota.applied"]
    tenant: Name
    nominal_gpu_milli: Milli
    author: Name
    reason: Text
    project: Name | None = None
    parent: Name | None = None
    borrowing_gpu_milli: Milli | None = None
    lending_gpu_milli: Milli | None = None
    limits: tuple[LimitSet, ...] = ()
    period_us: TimeUs | None = None
    budget_milli_us: int | None = None
    weight: Count = 1
    half_life_us: TimeUs = 604_800_000_000


class QuotaAsked(Model):
    """A larger nominal quota was asked for; a second person has to say yes or no."""

    type: Literal["quota.asked"]
    ask: Reference
    tenant: Name
    project: Name | None = None
    nominal_gpu_milli: Milli
    author: Name
    reason: Text


class QuotaAnswered(Model):
    """A quota asked for was refused, or approved and is in force."""

    type: Literal["quota.answered"]
    ask: Reference
    approve: bool
    author: Name
    reason: Text


class QuotaRenewed(Model):
    """A period has passed: the quota's budget of GPU time is whole again."""

    type: Literal["quota.renewed"]
    quota: Reference


class CompatibilityApplied(Model):
    """What a version of a model needs (`schemas.compatibility.CompatibilityApply`)."""

    type: Literal["compatibility.applied"]
    model_version: Text
    architectures: tuple[Text, ...] = ()
    driver_min: Text = ""
    frameworks: tuple[Text, ...] = ()
    author: Name
    reason: Text


class LicenceApplied(Model):
    """How many of a licence may be in use at once."""

    type: Literal["licence.applied"]
    licence: Name
    count: Count
    author: Name
    reason: Text


class PricesApplied(PriceBook):
    """A price book was put on record, or more prices into it (`schemas.prices.PricesApply`)."""

    type: Literal["prices.applied"]
    author: Name
    reason: Text


class TemplateApplied(Model):
    """A template was created or changed (`schemas.templates.TemplateApply`)."""

    type: Literal["template.applied"]
    template: Name
    task_type: TaskType
    author: Name
    reason: Text
    default: bool = False
    defaults: TemplateDefaults = TemplateDefaults()
    required: tuple[RequiredField, ...] = ()
    limits: TemplateLimits = TemplateLimits()
