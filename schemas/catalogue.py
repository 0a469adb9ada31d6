"""The catalogue: every record type, its version, its model and its topic.

On the wire a CloudEvents ``type`` is ``io.gpuledger.<type>.v<version>``.
"""

from __future__ import annotations

import builtins
import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from schemas import (
    audit,
    compatibility,
    evidence,
    messages,
    observations,
    placement,
    prices,
    records,
    requests,
    reservations,
    templates,
    usage,
)
from schemas.events import EVENT_MODELS

if TYPE_CHECKING:
    from schemas.base import Model

__all__ = ["TYPES", "TypeSpec", "adapter", "parse_type", "wire_type"]

WIRE_PREFIX = "io.gpuledger."
_WIRE = re.compile(r"^io\.gpuledger\.([a-z]+(?:[.-][a-z]+)*)\.v([0-9]{1,4})$")


@dataclass(frozen=True, slots=True)
class TypeSpec:
    """One version of a record type: its model, the topic that carries it, its meaning."""

    type: str
    version: int
    topic: str
    model: builtins.type[Model]

    @property
    def doc(self) -> str:
        """The first line of the model's docstring."""
        return (self.model.__doc__ or "").strip().splitlines()[0]


_CURRENT: dict[str, dict[str, type[Model]]] = {
    "requests": {
        "request.submit": requests.RequestSubmit,
        "request.cancel": requests.RequestCancel,
        "lease.release": requests.LeaseRelease,
        "lease.reclaim": requests.LeaseReclaim,
        "pool.apply": requests.PoolApply,
        "placement.apply": placement.PlacementApply,
        "queue.apply": requests.QueueApply,
        "quota.apply": requests.QuotaApply,
        "quota.ask": requests.QuotaAsk,
        "quota.answer": requests.QuotaAnswer,
        "lease.extend": requests.LeaseExtend,
        "task.begin": requests.TaskBegin,
        "template.apply": templates.TemplateApply,
        "compatibility.apply": compatibility.CompatibilityApply,
        "licence.apply": compatibility.LicenceApply,
        "prices.apply": prices.PricesApply,
        "node.set": requests.NodeSet,
        "device.clear": requests.DeviceClear,
        "device.partition": requests.DevicePartition,
        "device.mode": requests.DeviceMode,
        "reservation.apply": reservations.ReservationApply,
        "reservation.cancel": reservations.ReservationCancel,
    },
    "observations": {
        "node.inventory": observations.NodeInventory,
        "node.silent": observations.NodeSilent,
        "node.back": observations.NodeBack,
        "device.health": observations.DeviceHealth,
        "task.started": observations.TaskStarted,
        "task.ended": observations.TaskEnded,
        "task.use": observations.TaskUse,
        "link.evidence": observations.LinkEvidence,
        "order.done": observations.OrderDone,
        "order.failed": observations.OrderFailed,
        "tick": observations.Tick,
    },
    "heartbeats": {"node.heartbeat": observations.Heartbeat},
    "usage": {"node.usage": usage.NodeUsage, "device.evidence": evidence.DeviceEvidence},
    "events": {"ledger.claim": records.Claim, "ledger.decision": records.Decision},
    "orders": {"order": messages.Order},
    "replies": {"reply": messages.Reply},
    "dead-letters": {"dead-letter": messages.DeadLetter},
    "audit": {"audit.query": audit.AuditQuery},
}

#: Every (type, version) that may stand on a topic, the events inside decisions included.
TYPES: dict[tuple[str, int], TypeSpec] = {
    (name, 1): TypeSpec(name, 1, topic, model)
    for topic, models in _CURRENT.items()
    for name, model in models.items()
} | {
    (f"event.{name}", 1): TypeSpec(f"event.{name}", 1, "events", model)
    for name, model in EVENT_MODELS.items()
}


def wire_type(name: str, version: int = 1) -> str:
    """Return the CloudEvents type of a catalogued type."""
    return f"{WIRE_PREFIX}{name}.v{version}"


@cache
def parse_type(wire: str) -> tuple[str, int] | None:
    """Take a CloudEvents type apart; None when it is not one of ours in form."""
    match = _WIRE.match(wire)
    return (match[1], int(match[2])) if match else None


@cache
def adapter(name: str, version: int) -> TypeAdapter[Any]:
    """Return the validator of a catalogued type; raise KeyError for others."""
    return TypeAdapter(TYPES[name, version].model)
