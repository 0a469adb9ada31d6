"""What is asked to be otherwise: policy, capacity; and what becomes of the recorded inputs.

A record of policy that is given stands in the place of all that the log has under its name:
at once where it is in force when the replay begins, else where the log first applies it.
Rules that are set for all pools or queues change what is in force and what the log applies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ledger.core.quotas.quota import quota_name
from ledger.core.terms import to_plain
from ledger.policy_files import KINDS, PolicyRecord, policy_record
from schemas.catalogue import adapter
from schemas.observations import DeviceReport, NodeInventory, SliceReport
from schemas.requests import PoolApply, QueueApply, Route

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ledger.core.state import Device, Node, Pool, Queue, State
    from schemas.base import Model

__all__ = ["SOURCE", "AddedNodes", "Changes", "policy_name", "slices_of", "twin_of"]

#: Who speaks in a replay where nobody did in the log.
SOURCE = "/gpuledger/whatif"

_US = 1_000_000
_WHO = {"author": "whatif", "reason": "what-if replay"}
_TYPES = {kind.type: name for name, kind in KINDS.items()}


@dataclass(frozen=True, slots=True)
class AddedNodes:
    """So many nodes more that are as ``like`` is when it is first known."""

    count: int
    like: str


@dataclass(frozen=True, slots=True)
class Changes:
    """What is to be otherwise; as it stands, nothing.

    ``policy`` has whole records; ``pools`` and ``queues`` are fields that all of them get,
    those of ``policy`` too. ``removed`` nodes get nothing from the start on, and never come
    where they were not there yet.
    """

    policy: tuple[PolicyRecord, ...] = ()
    pools: tuple[tuple[str, Any], ...] = ()
    queues: tuple[tuple[str, Any], ...] = ()
    added: tuple[AddedNodes, ...] = ()
    removed: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Return what is otherwise, a line each."""
        found = [f"{one.kind} {one.name} as the file has it" for one in self.policy]
        found += [f"every pool has {name} {value}" for name, value in self.pools]
        found += [f"every queue has {name} {value}" for name, value in self.queues]
        for one in self.added:
            nodes = "node" if one.count == 1 else "nodes"
            found.append(f"{one.count} more {nodes} like {one.like}")
        return found + [f"node {name} is in maintenance, or never comes" for name in self.removed]

    def nodes(self) -> tuple[str, ...]:
        """Return the nodes that are named: removed, or to be more of."""
        return (*self.removed, *(one.like for one in self.added))

    # -- at the start ------------------------------------------------------------------

    def at_start(self, state: State, applied: set[tuple[str, str]]) -> Iterator[Model]:
        """Yield what is applied before the first record; ``applied`` is what the log applies."""
        for one in self.policy:
            known = one.name in getattr(state, KINDS[one.kind].section)
            if known or (one.type, one.name) not in applied:
                yield self.ruled(one.data)
        given = {(one.kind, one.name) for one in self.policy}
        if self.pools:
            for pool in state.pools.values():
                if ("pool", pool.name) not in given:
                    yield self.ruled(_pool(pool))
        if self.queues:
            for queue in state.queues.values():
                if ("queue", queue.name) not in given:
                    yield self.ruled(_queue(queue))
        for name in self.removed:
            if name in state.nodes:
                data = {"node": name, "mode": "maintenance", **_WHO}
                yield adapter("node.set", 1).validate_python(data)

    # -- recorded inputs ---------------------------------------------------------------

    def drops(self, kind: str, data: dict[str, Any], state: State) -> bool:
        """Say whether a recorded input is left out."""
        if data.get("node") in self.removed:
            return kind == "node.set" or data["node"] not in state.nodes
        if kind == "quota.answer":
            # What would change a quota that is given.
            ask = state.quota_asks.get(data["ask"])
            name = "" if ask is None else quota_name(ask.tenant, ask.project)
            return self._given("quota.apply", name) is not None
        mine = self._given(kind, policy_name(kind, data))
        return mine is not None and mine.name in getattr(state, KINDS[mine.kind].section)

    def instead(self, kind: str, data: dict[str, Any]) -> Model | None:
        """Return what stands in the place of a recorded input; None for the input itself."""
        mine = self._given(kind, policy_name(kind, data))
        if mine is not None:
            return self.ruled(mine.data)
        if (kind == "pool.apply" and self.pools) or (kind == "queue.apply" and self.queues):
            return self.ruled(adapter(kind, 1).validate_python(data, strict=False))
        return None

    def _given(self, kind: str, name: str | None) -> PolicyRecord | None:
        found = (one for one in self.policy if (one.type, one.name) == (kind, name))
        return next(found, None)

    def ruled(self, data: Model) -> Model:
        """Return a record with the fields that all pools or queues are to have."""
        fields = self.pools if isinstance(data, PoolApply) else ()
        fields = self.queues if isinstance(data, QueueApply) else fields
        if not fields:
            return data
        plain = data.model_dump() | dict(fields)
        return type(data).model_validate(plain, strict=False)


def policy_name(kind: str, data: dict[str, Any]) -> str | None:
    """Return under which name an input applies policy; None for one that applies none."""
    named = _TYPES.get(kind)
    if named is None:
        return None
    return policy_record(named, adapter(kind, 1).validate_python(data, strict=False)).name


def _pool(pool: Pool) -> PoolApply:
    """Return the record that applies a pool as it is."""
    return PoolApply.model_validate(
        {
            "pool": pool.name,
            "labels": pool.labels,
            "silent_grace_s": pool.silent_grace_us // _US,
            "order_timeout_s": pool.order_timeout_us // _US,
            "placement": pool.placement,
            "partition": pool.partition,
            "slices_warning": pool.slices_warning,
            "allowed_modes": pool.allowed_modes,
            "allowed_tenants": pool.allowed_tenants,
            "memory_overcommit_permille": pool.memory_overcommit_permille,
            "routing": [Route(when=when, mode=mode) for when, mode in pool.routing.items()],  # type: ignore[arg-type]
            **_WHO,
        },
        strict=False,
    )


def _queue(queue: Queue) -> QueueApply:
    """Return the record that applies a queue as it is."""

    def seconds(name: str) -> int | None:
        value: int | None = getattr(queue, f"{name}_us")
        return None if value is None else value // _US

    names = ("max_wait", "max_run", "idle_remind", "idle_reclaim", "repair_hold")
    plain = {
        name: getattr(queue, name)
        for name in ("ordering", "tenants", "max_gpus", "fair_share", "preemption", "reclaim")
    }
    times = {f"{name}_s": seconds(name) for name in names}
    return QueueApply.model_validate({"queue": queue.name, **plain, **times, **_WHO}, strict=False)


# -- nodes that are not there ------------------------------------------------------------


def twin_of(state: State, like: Node, name: str) -> NodeInventory:
    """Return the inventory of a node that has what another has now, all of it healthy."""
    devices = (state.devices[uuid] for uuid in like.devices)
    return NodeInventory(
        node=name,
        incarnation="whatif",
        epoch=1,
        pool=like.pool,
        cpu_milli=like.cpu_milli,
        memory_mib=like.memory_mib,
        driver=like.driver or None,
        cuda=like.cuda or None,
        labels=like.labels,
        devices=tuple(_device(state, one, name) for one in devices if one.health != "gone"),
    )


def _device(state: State, device: Device, node: str) -> DeviceReport:
    geometry = device.geometry
    profiles: Iterable[Any] = () if geometry is None else geometry.profiles
    plain: dict[str, Any] = {} if device.facts is None else to_plain(device.facts)
    vgpus = plain.pop("vgpu_types", ())
    return DeviceReport.model_validate(
        {
            "uuid": f"{device.uuid}-{node}",
            "model": device.model,
            "memory_mib": device.memory_mib,
            "architecture": device.architecture,
            "compute_slices": device.compute_slices,
            "mig_enabled": device.mig_enabled,
            "index": device.index,
            "profiles": [
                {
                    "profile": one.name, "size": one.size, "compute_slices": one.compute_slices,
                    "memory_mib": one.memory_mib, "starts": one.starts, "most": one.most,
                }
                for one in profiles
            ],
            "vgpu_types": [
                {"memory_mib": mib, "most": most, "type": name} for mib, most, name in vgpus
            ],
            "slices": [
                report.model_copy(update={"mig_uuid": f"{report.mig_uuid}-{node}"})
                for report in slices_of(state, device)
            ],
            **plain,
        },
        strict=False,
    )  # fmt: skip


def slices_of(state: State, device: Device) -> list[SliceReport]:
    """Return the slices of a device as its node would report them."""
    items = (state.slices[name] for name in device.slices)
    return [
        SliceReport(
            mig_uuid=one.mig_uuid, profile=one.profile, gi=one.gi, ci=one.ci, start=one.start,
            size=one.size, compute_slices=one.compute_slices, memory_mib=one.memory_mib,
        )
        for one in items
        if one.mig_uuid
    ]  # fmt: skip
