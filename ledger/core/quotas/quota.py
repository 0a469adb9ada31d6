"""The quota tree: who may hold how much of what, who lends and who borrows (Q1-Q3).

Quotas form trees: an organisation or cohort, its tenants, their projects. Each
has a nominal amount of a resource; a parent's is the total of its own and so at
least the sum of its children's (Q3). What a quota does not use, its siblings may
borrow through the parent, up to their borrowing limit, except for what it keeps
back beyond its lending limit. Usage that a quota covers by what it keeps back
stays with it; the rest counts at its parent too, so a sum is never taken twice
and two requests in flight can never pass together (Q2).

Resources: ``gpu`` in thousandths of a device; ``model:NAME`` the same on devices
of one model; ``profile:NAME`` in MIG slices; ``memory_mib`` in MiB of device
memory. Beside them a quota may have a budget of GPU time for each period.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ledger.core.state import State

__all__ = [
    "GPU",
    "MOST_MILLI_US",
    "Charge",
    "Limit",
    "Over",
    "Quota",
    "QuotaAsk",
    "add",
    "amount",
    "available",
    "borrowing",
    "budget_left",
    "chain",
    "entitled",
    "holder_of",
    "leave",
    "most_ever",
    "over",
    "over_gpu",
    "quota_name",
    "remove",
    "root_of",
    "take",
    "total",
]

#: The resource that every quota has.
GPU = "gpu"

#: The most GPU time that is told or counted, 2.5 million GPU-hours: what 64 bits hold, as
#: records, snapshots and digests do. No budget has so much, so nothing above it fits one.
MOST_MILLI_US = (1 << 63) - 1


@dataclass(slots=True)
class Limit:
    """A quota's amount of one resource. None: no limit on borrowing, or on lending."""

    nominal: int
    borrowing: int | None = None
    lending: int | None = None


@dataclass(slots=True)
class Quota:
    """One quota of the tree: an organisation's, a tenant's, or a project's (``tenant/project``).

    What is worked out from the tree and the leases (`ledger.core.quotas.quota`): its
    ``capacity``, what it has ``kept`` from lending, what is ``used`` of it, and what
    is ``leaving`` because it was evicted and has not ended yet.
    """

    name: str
    parent: str | None
    limits: dict[str, Limit]
    weight: int = 1
    half_life_us: int = 604_800_000_000
    period_us: int | None = None
    budget_milli_us: int = 0
    spent_period: int = 0
    spent_milli_us: int = 0
    used_window: int = 0
    used_milli_us: int = 0
    governed: list[str] = field(default_factory=list)
    budgeted: bool = False
    #: Nothing is above it, and it limits nothing but ``gpu``: most quotas of a small site.
    simple: bool = False
    #: Others are below it.
    inner: bool = False
    #: It, or one below it, keeps something back from lending.
    keeps_below: bool = False
    capacity: dict[str, int] = field(default_factory=dict)
    kept: dict[str, int] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)
    leaving: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Charge:
    """What a lease counts for: thousandths of a device, on which model, in how many units.

    ``profile`` is empty but for MIG slices; ``time_us`` is the longest time it may
    last, for quotas with a budget of GPU time. Made for every grant, so not frozen,
    which costs as much as the rest of it; nobody changes one.
    """

    milli: int
    model: str = ""
    profile: str = ""
    units: int = 1
    memory_mib: int = 0
    time_us: int = 0


@dataclass(slots=True)
class QuotaAsk:
    """A larger quota that waits for a second person's word."""

    id: str
    tenant: str
    project: str | None
    nominal_milli: int
    author: str
    reason: str


@dataclass(slots=True)
class Over:
    """The first limit that a charge does not fit under, and the numbers compared.

    Made for most that wait whenever they are looked at, so not frozen (`Charge`).
    """

    quota: str
    resource: str
    asked: int
    available: int


def amount(resource: str, charge: Charge) -> int:
    """Return how much of the resource the charge takes."""
    if resource == GPU:
        return charge.milli
    kind, _, name = resource.partition(":")
    if kind == "model":
        return charge.milli if charge.model == name else 0
    if kind == "profile":
        return charge.units if charge.profile == name else 0
    return charge.memory_mib


def quota_name(tenant: str, project: str | None) -> str:
    """Return the name of a tenant's quota, or of one of its projects'."""
    return tenant if project is None else f"{tenant}/{project}"


def holder_of(state: State, tenant: str, project: str | None) -> str:
    """Return the name of the quota that a request of the tenant counts against.

    A project without a quota of its own counts against its tenant's.
    """
    if project is not None:
        name = quota_name(tenant, project)
        if name in state.quotas:
            return name
    return tenant


def chain(state: State, name: str) -> Iterator[Quota]:
    """Yield the quota and everything above it, itself first."""
    at: str | None = name
    while at is not None:
        quota = state.quotas[at]
        yield quota
        at = quota.parent


def root_of(state: State, name: str) -> str:
    """Return the name of the topmost quota of the tree."""
    quota = state.quotas[name]
    while quota.parent is not None:
        quota = state.quotas[quota.parent]
    return quota.name


def total(quota: Quota, resource: str) -> int | None:
    """Return the nominal amount; None when the quota says nothing of the resource."""
    limit = quota.limits.get(resource)
    return None if limit is None else limit.nominal


def available(state: State, name: str, resource: str) -> int | None:
    """Return how much more of the resource may be held here now; None is without limit.

    What is borrowed counts: the answer is the quota's own rest, and what those
    above have left, as far as its borrowing limit reaches.
    """
    quota = state.quotas[name]
    capacity = quota.capacity.get(resource)
    used = quota.used.get(resource, 0)
    if quota.parent is None:
        return None if capacity is None else capacity - used
    above = available(state, quota.parent, resource)
    kept = quota.kept.get(resource, 0)
    limit = quota.limits.get(resource)
    if limit is not None and limit.borrowing is not None:
        most = (capacity or 0) - kept - max(0, used - kept) + limit.borrowing
        above = most if above is None else min(above, most)
    if above is None:
        return None
    rest = max(0, kept - used)
    # What it keeps back is there, however much is lacking above since a quota was lowered.
    return rest if rest and above < 0 else rest + above


def most_ever(state: State, name: str, resource: str) -> int | None:
    """Return how much could be held here if nobody else held anything; None without limit."""
    quota = state.quotas[name]
    capacity = quota.capacity.get(resource)
    if quota.parent is None:
        return capacity
    above = most_ever(state, quota.parent, resource)
    kept = quota.kept.get(resource, 0)
    limit = quota.limits.get(resource)
    if limit is not None and limit.borrowing is not None:
        most = (capacity or 0) - kept + limit.borrowing
        above = most if above is None else min(above, most)
    return None if above is None else kept + above


def over(state: State, name: str, charge: Charge, now_us: int) -> Over | None:
    """Return the first limit that the charge would break, or None when it fits.

    An evicted lease that has not ended yet still counts where it was held, so a
    tenant never holds more than its quota while its devices are being freed.
    """
    quota = state.quotas[name]
    if quota.simple:
        return over_gpu(quota, charge.milli)
    for resource in quota.governed:
        asked = amount(resource, charge)
        if asked:
            left = available(state, name, resource)
            if left is not None:
                left -= quota.leaving.get(resource, 0)
                if asked > left:
                    return Over(name, resource, asked, left)
    for one in chain(state, name) if quota.budgeted else ():
        left = budget_left(one, now_us)
        asked = min(charge.milli * charge.time_us, MOST_MILLI_US)
        if left is not None and asked > left:
            return Over(one.name, "gpu_time", asked, left)
    return None


def over_gpu(quota: Quota, milli: int) -> Over | None:
    """Return the limit of a ``simple`` quota where so much would break it (`over`)."""
    left = quota.capacity[GPU] - quota.used.get(GPU, 0) - quota.leaving.get(GPU, 0)
    return None if milli <= left else Over(quota.name, GPU, milli, left)


def add(state: State, name: str, charge: Charge) -> None:
    """Count the charge here, and above as far as nothing kept back covers it."""
    quota = state.quotas[name]
    if quota.simple:
        quota.used[GPU] = quota.used.get(GPU, 0) + charge.milli
        return
    for resource in quota.governed:
        _add(state, name, resource, amount(resource, charge))


def _add(state: State, name: str, resource: str, more: int) -> None:
    at: str | None = name
    while at is not None and more:
        quota = state.quotas[at]
        used = quota.used.get(resource, 0)
        covered = max(0, quota.kept.get(resource, 0) - used)
        quota.used[resource] = used + more
        more = max(0, more - covered)
        at = quota.parent


def take(state: State, name: str, charge: Charge) -> Over | None:
    """Count the charge as `add` does; where a limit forbids it, return that and count nothing."""
    quota = state.quotas[name]
    if quota.simple:
        used = quota.used.get(GPU, 0)
        left = quota.capacity[GPU] - used
        if charge.milli > left:
            return Over(name, GPU, charge.milli, left)
        quota.used[GPU] = used + charge.milli
        return None
    for resource in quota.governed:
        asked = amount(resource, charge)
        room = available(state, name, resource) if asked else None
        if room is not None and asked > room:
            return Over(name, resource, asked, room)
    add(state, name, charge)
    return None


def remove(state: State, name: str, charge: Charge) -> None:
    """Count the charge no longer."""
    quota = state.quotas[name]
    if quota.simple:
        quota.used[GPU] -= charge.milli
        return
    for resource in quota.governed:
        less = amount(resource, charge)
        at: str | None = name
        while at is not None and less:
            quota = state.quotas[at]
            used = quota.used.get(resource, 0)
            above = max(0, used - quota.kept.get(resource, 0))
            quota.used[resource] = used - less
            less = min(less, above)
            at = quota.parent


def borrowing(state: State, name: str, below: frozenset[str]) -> frozenset[str]:
    """Return the resources of which the quota, or one above it, uses more than its own.

    ``below`` holds the names at which to stop: what the lender shares with the
    borrower is not borrowed between the two. Only resources for which the quota's
    leases count: whoever is evicted must give something of them back.
    """
    found: set[str] | None = None
    at: str | None = name
    while at is not None and at not in below:
        quota = state.quotas[at]
        for resource, capacity in quota.capacity.items():
            if quota.used.get(resource, 0) > capacity:
                found = found or set()
                found.add(resource)
        at = quota.parent
    return _NOTHING if found is None else frozenset(found.intersection(state.quotas[name].governed))


_NOTHING: frozenset[str] = frozenset()


def entitled(state: State, name: str, charge: Charge, below: frozenset[str]) -> bool:
    """Say whether the charge is within what is nominally the quota's own, up to ``below``."""
    more = {resource: amount(resource, charge) for resource in state.quotas[name].governed}
    for quota in chain(state, name):
        if quota.name in below:
            return True
        for resource, asked in more.items():
            used = quota.used.get(resource, 0)
            capacity = quota.capacity.get(resource)
            if asked and capacity is not None and used + asked > capacity:
                return False
            more[resource] = max(0, asked - max(0, quota.kept.get(resource, 0) - used))
    return True


def budget_left(quota: Quota, now_us: int) -> int | None:
    """Return the GPU time left in the period, in thousandths of a device times µs.

    Periods are counted from the epoch. A lease counts with its longest time in
    the period in which it was granted, and with its real one after its end.
    """
    if quota.period_us is None:
        return None
    fresh = quota.spent_period != now_us // quota.period_us
    return quota.budget_milli_us - (0 if fresh else quota.spent_milli_us)


def leave(quota: Quota, charge: Charge, sign: int) -> None:
    """Count an evicted lease as leaving (+1), or as gone (-1)."""
    for resource in quota.governed:
        left = quota.leaving.get(resource, 0) + sign * amount(resource, charge)
        if left:
            quota.leaving[resource] = left
        else:
            quota.leaving.pop(resource, None)
