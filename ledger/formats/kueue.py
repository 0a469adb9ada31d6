"""Kueue's objects read as policy: pools, quotas and queues.

A ClusterQueue is two things, rules for waiting and a quota. The rules become a queue
under the name of the LocalQueue through which a namespace submits. The quota becomes
that of the namespace, which is the tenant; where several namespaces share it, it
becomes one above theirs. Cohorts become quotas above those. A cohort's nominal quota
is what it has beside its members, while that of a parent here is the total of its
own: the members' are added.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from math import lcm
from typing import TYPE_CHECKING, Any

from ledger.formats.documents import NotTheFormat
from ledger.formats.fields import Note
from ledger.formats.kueue_amounts import ANY, MAX_MILLI, Amount, factor, plus, times
from ledger.formats.kueue_objects import Objects, Quota, read_objects
from ledger.formats.names import is_name
from ledger.formats.quantities import up

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Record", "read_kueue"]

#: A record of the ledger: its ``type`` and its ``data``, plain.
Record = dict[str, Any]

_MAX_DEPTH = 32
_MAX_WEIGHT = 1_000_000
_MAX_LIMITS = 64
_MAX_TENANTS = 256


def read_kueue(text: str, models: Iterable[str] = ()) -> tuple[list[Record], list[Note]]:
    """Return the policy in Kueue's objects, parents first, and what did not map.

    ``models`` are device models to know by their product labels, beside the usual
    ones. The records lack ``author`` and ``reason``: whoever applies them says those.
    """
    objects = read_objects(text, tuple(models))
    _imply_cohorts(objects)
    tenants = _tenants(objects)
    pools = [
        {"type": "pool.apply", "data": {"pool": name, "labels": labels}}
        for name, labels in objects.pools.items()
    ]
    records = [*pools, *_quotas(objects, tenants), *_queues(objects, tenants)]
    return records, objects.notes


def _imply_cohorts(objects: Objects) -> None:
    """Make the cohorts that are only named, and see that none is above itself."""
    for quota in [*objects.cohorts.values(), *objects.queues.values()]:
        if quota.parent is not None and quota.parent not in objects.cohorts:
            reason = f"{quota.parent} has no object; it gets the total of its members"
            objects.notes.append(Note(quota.path, reason))
            objects.cohorts[quota.parent] = Quota(quota.path, quota.parent, None, is_cohort=True)
    for cohort in objects.cohorts.values():
        seen = {cohort.name}
        at = cohort.parent
        while at is not None:
            if at in seen:
                raise NotTheFormat("cohorts are above one another in a circle", cohort.path)
            seen.add(at)
            at = objects.cohorts[at].parent
        if len(seen) > _MAX_DEPTH:
            raise NotTheFormat(f"more than {_MAX_DEPTH} cohorts are above one another", cohort.path)


# -- who is the tenant --------------------------------------------------------------------


def _users(objects: Objects) -> dict[str, list[str]]:
    """Return the namespaces that may and can submit to each ClusterQueue."""
    found: dict[str, list[str]] = {}
    for name, quota in objects.queues.items():
        named = dict.fromkeys(one.namespace for one in objects.locals.get(name, []))
        if quota.eligible:
            everybody = list(named) or sorted(quota.eligible)
            found[name] = [each for each in everybody if each in quota.eligible and is_name(each)]
        else:
            found[name] = [] if quota.eligible is None else list(named)
    return found


@dataclass(slots=True)
class _Tenants:
    """For each ClusterQueue: who uses it, what its quota is called, and whose are below that."""

    users: dict[str, list[str]]
    name: dict[str, str] = field(default_factory=dict)
    below: dict[str, list[str]] = field(default_factory=dict)


def _tenants(objects: Objects) -> _Tenants:
    tenants = _Tenants(_users(objects))
    uses = Counter(each for users in tenants.users.values() for each in users)
    reserved = objects.cohorts.keys() | objects.queues.keys()
    taken = set(objects.cohorts)
    for name, users in tenants.users.items():
        quota = users[0] if len(users) == 1 and uses[users[0]] == 1 else name
        if quota != name and quota in reserved:
            quota = name
        if quota in taken:
            quota = next(each for at in count(1) if (each := f"{name[:50]}.{at}") not in taken)
            reason = f"its quota is called {quota}: a cohort is called {name} too"
            objects.notes.append(Note(objects.queues[name].path, reason))
        tenants.name[name] = quota
        taken.add(quota)
    for name, users in tenants.users.items():
        others = [each for each in users if each != tenants.name[name]]
        for each in taken.intersection(others):
            reason = f"what {each} asks for counts against another quota, which has its name"
            objects.notes.append(Note(objects.queues[name].path, reason))
        tenants.below[name] = [each for each in others if each not in taken]
        taken.update(others)
        if tenants.below[name] and objects.queues[name].rules["preemption"] != "never":
            reason = "evicts within a namespace only, not all that share the ClusterQueue"
            objects.notes.append(Note(f"{objects.queues[name].path}.preemption", reason))
    return tenants


# -- quotas -------------------------------------------------------------------------------


class _Tree:
    """The quotas of a text, each with those below it."""

    def __init__(self, objects: Objects, tenants: _Tenants) -> None:
        self.tenants = tenants
        self.members: dict[str | None, list[Quota]] = {}
        quotas = [*objects.cohorts.values(), *objects.queues.values()]
        for quota in quotas:
            self.members.setdefault(quota.parent, []).append(quota)
        self.scale = min(lcm(*(each.weight.denominator for each in quotas)), _MAX_WEIGHT)
        if self.scale > 1:
            reason = f"times {self.scale} to be whole: only how weights compare counts"
            objects.notes.append(Note("spec.fairSharing.weight", reason))
        self.notes = objects.notes

    def below(self, quota: Quota) -> list[Quota]:
        return self.members.get(quota.name, []) if quota.is_cohort else []

    def kinds(self, quota: Quota) -> set[str]:
        """Return everything that the quota or one below it lists."""
        return set(quota.entries).union(*(self.kinds(each) for each in self.below(quota)))


def _quotas(objects: Objects, tenants: _Tenants) -> list[Record]:
    tree = _Tree(objects, tenants)
    return [
        record
        for root in tree.members.get(None, [])
        for record in _branch(tree, root, tree.kinds(root))[0]
    ]


def _branch(tree: _Tree, quota: Quota, kinds: set[str]) -> tuple[list[Record], dict[str, int]]:
    """Return the records of the quota and all below it, and its totals of each kind."""
    own = _own(quota, kinds)
    totals = {kind: amount.nominal for kind, amount in own.items()}
    below: list[Record] = []
    for each in tree.below(quota):
        records, theirs = _branch(tree, each, kinds)
        below += records
        for kind, total in theirs.items():
            totals[kind] = totals.get(kind, 0) + total
    name = quota.name if quota.is_cohort else tree.tenants.name[quota.name]
    records = [_record(tree, quota, name, own, totals), *below]
    if not quota.is_cohort:
        records += [_child(each, name) for each in tree.tenants.below[quota.name]]
    return records, totals


def _own(quota: Quota, kinds: set[str]) -> dict[str, Amount]:
    """Return what the quota says of each kind, and what its silence about one means.

    A cohort that is silent has nothing of its own and no limit. A ClusterQueue that
    is silent gets nothing, except that devices of no named model are of any model.
    """
    silent = Amount() if quota.is_cohort else Amount(0, 0, 0)
    open_to = not quota.is_cohort and ANY in quota.entries
    wanted = {kind for kind in kinds if not (open_to and kind.startswith("model:"))}
    return {kind: quota.entries.get(kind, silent) for kind in wanted.union(quota.entries)}


def _record(
    tree: _Tree, quota: Quota, name: str, own: dict[str, Amount], totals: dict[str, int]
) -> Record:
    free = quota.parent is None
    silent = Amount() if quota.is_cohort and not own else Amount(0, 0, 0)
    gpu = silent
    for kind, amount in own.items():
        gpu = plus(gpu, times(amount, factor(kind)))
    nominal = sum(total * factor(kind) for kind, total in totals.items())
    limits = [
        {
            "resource": kind,
            "nominal": _fit(quota, totals[kind]),
            "borrowing": None if free else _fit(quota, amount.borrowing),
            "lending": None if free else _fit(quota, amount.lending),
        }
        for kind, amount in sorted(own.items())
        if kind != ANY
    ]
    if len(limits) > _MAX_LIMITS:
        raise NotTheFormat(f"has more than {_MAX_LIMITS} models and profiles", quota.path)
    data = {
        "tenant": name,
        "parent": quota.parent,
        "nominal_gpu_milli": _fit(quota, nominal),
        "borrowing_gpu_milli": None if free else _fit(quota, gpu.borrowing),
        "lending_gpu_milli": None if free else _fit(quota, gpu.lending),
        "limits": limits,
        "weight": _weight(tree, quota),
    }
    return {"type": "quota.apply", "data": data}


def _fit(quota: Quota, amount: Any) -> Any:  # noqa: ANN401 - an integer, or None
    if amount is not None and amount > MAX_MILLI:
        raise NotTheFormat(f"comes to more than {MAX_MILLI} thousandths of a device", quota.path)
    return amount


def _child(tenant: str, parent: str) -> Record:
    """Return the quota of a namespace that shares a ClusterQueue: all it has, it borrows."""
    data = {
        "tenant": tenant,
        "parent": parent,
        "nominal_gpu_milli": 0,
        "borrowing_gpu_milli": None,
        "lending_gpu_milli": None,
        "limits": [],
        "weight": 1,
    }
    return {"type": "quota.apply", "data": data}


def _weight(tree: _Tree, quota: Quota) -> int:
    exact = quota.weight * tree.scale
    weight = max(1, min(up(exact), _MAX_WEIGHT))
    if weight != exact:
        reason = f"{quota.weight} becomes {weight}: a weight is from 1 to {_MAX_WEIGHT}"
        tree.notes.append(Note(f"{quota.path}.fairSharing.weight", reason))
    return weight


# -- queues -------------------------------------------------------------------------------


def _queues(objects: Objects, tenants: _Tenants) -> list[Record]:
    """Return one queue for each name of a LocalQueue, as long as its ClusterQueues agree."""
    ways: dict[str, list[tuple[Quota, list[str]]]] = {}
    for name, quota in objects.queues.items():
        users = tenants.users[name]
        mine = objects.locals.get(name, [])
        for one in mine:
            if one.namespace in users:
                ways.setdefault(one.name, []).append((quota, [one.namespace]))
            else:
                reason = "left out: the ClusterQueue's namespaceSelector does not select it"
                objects.notes.append(Note(one.path, reason, one.line))
        if not mine:
            _without_local(objects, quota, users, ways)
    lost = [each for name, each in objects.locals.items() if name not in objects.queues]
    for one in (one for each in lost for one in each):
        reason = "left out: its ClusterQueue is not in the text"
        objects.notes.append(Note(f"{one.path}.clusterQueue", reason, one.line))
    return [record for name, found in ways.items() for record in _queue(objects, name, found)]


def _without_local(
    objects: Objects, quota: Quota, users: list[str], ways: dict[str, list[Any]]
) -> None:
    if quota.eligible is None:
        reason = "selects no namespace: it is a quota without a queue"
    elif users:
        reason = "no LocalQueue leads to it: the queue has its own name"
        ways.setdefault(quota.name, []).append((quota, users))
    else:
        reason = "no LocalQueue leads to it, and every namespace may make one: everybody may submit"
        ways.setdefault(quota.name, []).append((quota, []))
    objects.notes.append(Note(f"{quota.path}.namespaceSelector", reason))


def _queue(objects: Objects, name: str, ways: list[tuple[Quota, list[str]]]) -> list[Record]:
    alike = {(*quota.rules.values(), bool(users)) for quota, users in ways}
    if len(alike) == 1:
        tenants = list(dict.fromkeys(each for _, users in ways for each in users))
        return [_queue_record(ways[0][0], name, tenants)]
    found: dict[str, tuple[Quota, list[str]]] = {}
    for quota, users in ways:
        found.setdefault(quota.name, (quota, []))[1].extend(users)
    for quota, _ in found.values():
        reason = f"its queue is called {name}.{quota.name}: others called {name} have other rules"
        objects.notes.append(Note(quota.path, reason))
        if not is_name(f"{name}.{quota.name}"):
            raise NotTheFormat(f"{name}.{quota.name} is too long for a name", quota.path)
    return [
        _queue_record(quota, f"{name}.{quota.name}", tenants) for quota, tenants in found.values()
    ]


def _queue_record(quota: Quota, name: str, tenants: list[str]) -> Record:
    if len(tenants) > _MAX_TENANTS:
        raise NotTheFormat(f"more than {_MAX_TENANTS} namespaces use it", quota.path)
    data = {"queue": name, "ordering": quota.rules["ordering"], "tenants": tenants}
    data |= {rule: quota.rules[rule] for rule in ("preemption", "reclaim")}
    return {"type": "queue.apply", "data": data}
