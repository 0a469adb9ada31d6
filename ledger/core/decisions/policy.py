"""What operators set: pools, queues, quotas, nodes in and out of service, words given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.core.decisions.mig_mode import mode_order
from ledger.core.decisions.requests import lease_past
from ledger.core.derived.makers import FAILED
from ledger.core.placing.layout import layout_fault

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.core.decisions.turn import Answer, Input, Turn
    from schemas.placement import PlacementApply
    from schemas.requests import (
        DeviceClear,
        LeaseReclaim,
        NodeSet,
        PoolApply,
        QueueApply,
    )

__all__ = ["POLICY"]

_US = 1_000_000

#: How long a gang's place is kept where nothing else is said.
_REPAIR_S = 600

#: Fields of a pool that are on record where they are not at their default.
_IF_SAID = {
    "placement",
    "partition",
    "slices_warning",
    "allowed_modes",
    "allowed_tenants",
    "memory_overcommit_permille",
    "routing",
}


def _pool(turn: Turn, given: Input) -> Answer:
    asked: PoolApply = given.data
    turn.emit(
        {
            "type": "pool.applied",
            "pool": asked.pool,
            "labels": dict(sorted(asked.labels.items())),
            "silent_grace_us": asked.silent_grace_s * _US,
            "order_timeout_us": asked.order_timeout_s * _US,
            "author": asked.author,
            "reason": asked.reason,
        }
        | asked.model_dump(mode="json", include=_IF_SAID, exclude_defaults=True)
    )
    for _, node in sorted(turn.state.nodes.items()):
        if node.pool == asked.pool and node.state == "registering":
            reason = "its pool was created"
            turn.emit(
                {"type": "node.changed", "node": node.name, "state": node.mode, "reason": reason}
            )
    return "applied", {}


def _placement(turn: Turn, given: Input) -> Answer:
    """It takes part from the next placement on; what is placed stays where it is."""
    asked: PlacementApply = given.data
    if asked.pool not in turn.state.pools:
        return "unknown_pool", {"pool": asked.pool}
    turn.emit({"type": "placement.applied", **asked.model_dump(mode="json")})
    return "applied", {}


def _queue(turn: Turn, given: Input) -> Answer:
    asked: QueueApply = given.data
    more = {
        "tenants": list(asked.tenants),
        "max_run_us": _us(asked.max_run_s),
        "fair_share": asked.fair_share,
        "preemption": asked.preemption,
        "reclaim": asked.reclaim,
        "idle_remind_us": _us(asked.idle_remind_s),
        "idle_reclaim_us": _us(asked.idle_reclaim_s),
    }
    turn.emit(
        {
            "type": "queue.applied",
            "queue": asked.queue,
            "ordering": asked.ordering,
            "max_gpus": asked.max_gpus,
            "max_wait_us": _us(asked.max_wait_s),
            "author": asked.author,
            "reason": asked.reason,
        }
        | {name: value for name, value in more.items() if value not in (None, False, [])}
        | ({} if asked.repair_hold_s == _REPAIR_S else {"repair_hold_us": _us(asked.repair_hold_s)})
    )
    return "applied", {}


def _us(seconds: int | None) -> int | None:
    return None if seconds is None else seconds * _US


def _node(turn: Turn, given: Input) -> Answer:
    asked: NodeSet = given.data
    node = turn.state.nodes.get(asked.node)
    if node is None:
        return "unknown_node", {"node": asked.node}
    if node.mode == asked.mode:
        return "unchanged", {}
    changing = mode_order(turn.state, node) if asked.mode == "online" else None
    if changing is not None:
        # The device may be reset at any moment: nothing is leased there meanwhile.
        return "mode_changing", {"node": node.name, "order": changing}
    away = node.state in ("silent", "lost", "registering")
    turn.emit(
        {
            "type": "node.changed",
            "node": node.name,
            "state": node.state if away else asked.mode,
            "mode": asked.mode,
            "reason": asked.reason,
            "author": asked.author,
        }
    )
    return "applied", {}


def _clear(turn: Turn, given: Input) -> Answer:
    asked: DeviceClear = given.data
    state = turn.state
    device = state.devices.get(asked.device)
    if device is None:
        return "unknown_device", {"device": asked.device}
    shut = [name for name in device.slices if state.slices[name].quarantine is not None]
    failed = f"{FAILED} {device.uuid}" in state.alarms
    if device.quarantine is None and not shut and not failed:
        return "not_quarantined", {"device": asked.device}
    fault = layout_fault(state, device)
    if fault is not None:
        return "illegal_transition", {"device": asked.device, "fault": fault}
    turn.emit(
        {
            "type": "device.cleared",
            "device": device.uuid,
            "author": asked.author,
            "reason": asked.reason,
        }
    )
    return "applied", {}


def _reclaim(turn: Turn, given: Input) -> Answer:
    asked: LeaseReclaim = given.data
    lease = turn.state.leases.get(asked.lease)
    if lease is None:
        past = lease_past(turn.state, asked.lease)
        if past is None:
            return "unknown_lease", {"lease": asked.lease}
        return "already_released", past
    if not turn.change_reason(lease, "reclaimed", author=asked.author):
        return "stopping", {"reason": lease.reason}
    return "stopping", {}


POLICY: dict[str, Callable[[Turn, Input], Answer]] = {
    "pool.apply": _pool,
    "placement.apply": _placement,
    "queue.apply": _queue,
    "node.set": _node,
    "device.clear": _clear,
    "lease.reclaim": _reclaim,
}
