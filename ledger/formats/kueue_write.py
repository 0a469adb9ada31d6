"""The ledger's policy written as Kueue's objects.

A quota that is above another becomes a Cohort, any other a ClusterQueue, and a queue
becomes a LocalQueue in the namespace of each tenant that may submit to it. A parent's
nominal amount is the total of its own, a cohort's what it has beside its members, so
the members' are subtracted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ledger.formats.documents import written as written_text
from ledger.formats.fields import Note
from ledger.formats.kueue_objects import GROUP, VERSIONS
from ledger.formats.kueue_write_quota import (
    ANY_FLAVOR,
    MIG_FLAVOR,
    Written,
    WrittenQuota,
    add_quota,
    groups,
    link,
    named,
)
from ledger.formats.names import NAMESPACE, dns_name
from schemas import requests

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ledger.formats.kueue import Record
    from schemas.base import Model

__all__ = ["kueue_yaml", "write_kueue"]

Object = dict[str, Any]

_STRATEGIES = {"strict": "StrictFIFO", "best-effort": "BestEffortFIFO"}
_WITHIN = {"never": "Never", "same-tenant": "LowerPriority", "any-tenant": "LowerPriority"}
_RECLAIMS = {"never": "Never", "lower-priority": "LowerPriority", "any": "Any"}
#: As many labels as a ResourceFlavor has at most.
_MAX_LABELS = 8

_MODELS: dict[str, type[Model]] = {
    "pool.apply": requests.PoolApply,
    "queue.apply": requests.QueueApply,
    "quota.apply": requests.QuotaApply,
}
_MAPPED = {
    "pool.apply": {"pool", "labels"},
    "queue.apply": {"queue", "ordering", "tenants", "preemption", "reclaim"},
    "quota.apply": {
        "tenant",
        "project",
        "parent",
        "nominal_gpu_milli",
        "borrowing_gpu_milli",
        "lending_gpu_milli",
        "limits",
        "weight",
    },
}


def write_kueue(
    records: Sequence[Record], version: str = "v1beta2"
) -> tuple[list[Object], list[Note]]:
    """Return Kueue's objects for policy records, and what they cannot say.

    The records are as `read_kueue` returns them, or with all fields of their types.
    """
    written = Written(version)
    for record in records:
        _report_unmapped(written, record)
    of_type: dict[str, list[Mapping[str, Any]]] = {name: [] for name in _MODELS}
    for record in records:
        if record["type"] in of_type:
            of_type[record["type"]].append(record["data"])
    for data in of_type["pool.apply"]:
        _add_pool(written, data)
    for data in of_type["quota.apply"]:
        add_quota(written, data)
    link(written)
    locals_ = [one for data in of_type["queue.apply"] for one in _add_queue(written, data)]
    quotas = [_write_quota(written, quota) for quota in written.quotas.values()]
    flavors = [
        _object(written, "ResourceFlavor", name, {"nodeLabels": labels} if labels else {})
        for name, labels in written.flavors.items()
    ]
    return [*flavors, *quotas, *locals_], written.notes


def kueue_yaml(objects: Iterable[Object]) -> str:
    """Return the objects as one YAML stream."""
    return written_text(objects)


def _object(
    written: Written, kind: str, name: str, spec: Object, namespace: str | None = None
) -> Object:
    metadata = {"name": name} if namespace is None else {"name": name, "namespace": namespace}
    api = f"{GROUP}/{written.version}"
    return {"apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec}


def _report_unmapped(written: Written, record: Record) -> None:
    kind, data = record["type"], record["data"]
    if kind not in _MODELS:
        written.notes.append(Note(kind, "is no policy that Kueue has"))
        return
    defaults = {name: one.get_default() for name, one in _MODELS[kind].model_fields.items()}
    name = data.get("pool") or data.get("queue") or data.get("tenant")
    for each, value in data.items():
        if each in _MAPPED[kind] or each in ("author", "reason"):
            continue
        plain = tuple(value) if isinstance(value, list) else value
        if plain != defaults.get(each):
            written.notes.append(Note(f"{kind}/{name}:{each}", f"Kueue has nothing for {value!r}"))


def _add_pool(written: Written, data: Mapping[str, Any]) -> None:
    path, labels = f"pool.apply/{data['pool']}:", dict(data.get("labels") or {})
    if not 0 < len(labels) <= _MAX_LABELS:
        reason = f"left out: a flavor is told by 1 to {_MAX_LABELS} node labels"
        written.notes.append(Note(f"{path}labels", reason))
        return
    name = named(written, f"{path}pool", data["pool"], [*written.flavors, ANY_FLAVOR, MIG_FLAVOR])
    if name is not None:
        written.flavors[name] = labels


def _write_quota(written: Written, quota: WrittenQuota) -> Object:
    cohort, parent = VERSIONS[written.version]
    spec: Object = {}
    if quota.parent is not None:
        above = written.quotas.get(quota.parent)
        name = above.name if above else dns_name(quota.parent)
        spec |= {parent if quota.below else cohort: name} if name else {}
    if not quota.below:
        spec |= _rules(written, quota)
    quotas = groups(written, quota)
    if quotas:
        spec["resourceGroups"] = quotas
    if quota.data.get("weight", 1) != 1:
        spec["fairSharing"] = {"weight": str(quota.data["weight"])}
    return _object(written, "Cohort" if quota.below else "ClusterQueue", quota.name, spec)


# -- queues -------------------------------------------------------------------------------


def _add_queue(written: Written, data: Mapping[str, Any]) -> list[Object]:
    """Return the queue's LocalQueues, and let each tenant's quota know the queue."""
    path = f"queue.apply/{data['queue']}:"
    name = named(written, f"{path}queue", data["queue"], ())
    if name is None:
        return []
    if data["ordering"] not in _STRATEGIES:
        reason = f"{data['ordering']} becomes BestEffortFIFO, which plans no place for the first"
        written.notes.append(Note(f"{path}ordering", reason))
    if data.get("preemption") == "any-tenant":
        reason = "becomes LowerPriority: Kueue evicts in one ClusterQueue only"
        written.notes.append(Note(f"{path}preemption", reason))
    tenants = list(data.get("tenants") or [])
    if not tenants:
        tenants = [key for key, one in written.quotas.items() if not (one.below or "/" in key)]
        reason = "everybody: written for each tenant that has a quota"
        written.notes.append(Note(f"{path}tenants", reason))
    found = []
    for tenant in tenants:
        quota = written.quotas.get(tenant)
        if quota is None or quota.below:
            reason = f"{tenant} left out: it has no quota of its own, or it is above others"
            written.notes.append(Note(f"{path}tenants", reason))
            continue
        quota.queues.append(data)
        spec = {"clusterQueue": quota.name}
        found.append(_object(written, "LocalQueue", name, spec, namespace=quota.name))
    return found


def _rules(written: Written, quota: WrittenQuota) -> Object:
    """Return what a ClusterQueue says of waiting: the rules of its tenant's first queue."""
    if not quota.queues:
        return {}
    rules = [
        (
            _STRATEGIES.get(one["ordering"], "BestEffortFIFO"),
            _WITHIN[one.get("preemption", "never")],
            _RECLAIMS[one.get("reclaim", "never")],
        )
        for one in quota.queues
    ]
    for queue, rule in zip(quota.queues, rules, strict=True):
        if rule != rules[0]:
            reason = (
                f"the rules of {quota.queues[0]['queue']} are written: a ClusterQueue has one set"
            )
            written.notes.append(Note(f"queue.apply/{queue['queue']}:tenants", reason))
    strategy, within, reclaim = rules[0]
    return {
        "queueingStrategy": strategy,
        "namespaceSelector": {"matchLabels": {NAMESPACE: quota.name}},
        "preemption": {"withinClusterQueue": within, "reclaimWithinCohort": reclaim},
    }
