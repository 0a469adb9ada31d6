"""The quotas of the ledger as Kueue counts them: flavor by flavor, each level its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ledger.formats.documents import NotTheFormat
from ledger.formats.fields import Note
from ledger.formats.kueue_amounts import ANY, WHOLE_MILLI, Amount, factor, plus, times
from ledger.formats.names import GPU, PRODUCT, dns_name, product_label, resource_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = [
    "ANY_FLAVOR",
    "MIG_FLAVOR",
    "Written",
    "WrittenQuota",
    "add_quota",
    "groups",
    "link",
    "named",
]

Object = dict[str, Any]

#: The flavors of devices of any model, and of slices: neither has node labels.
ANY_FLAVOR = "any-device"
MIG_FLAVOR = "mig-slices"

_MAX_DEPTH = 32


@dataclass(slots=True)
class WrittenQuota:
    """A quota as it is written: its name in Kueue, its amounts, and those below it."""

    path: str
    name: str
    data: Mapping[str, Any]
    parent: str | None
    total: Amount
    stated: dict[str, Amount]
    below: list[WrittenQuota] = field(default_factory=list)
    queues: list[Mapping[str, Any]] = field(default_factory=list)


@dataclass(slots=True)
class Written:
    """What has been written so far; ``flavors`` are node labels by name."""

    version: str
    notes: list[Note] = field(default_factory=list)
    flavors: dict[str, dict[str, str]] = field(default_factory=dict)
    quotas: dict[str, WrittenQuota] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)


def named(written: Written, path: str, name: str, taken: Iterable[str]) -> str | None:
    """Return the name that an object gets, or None after a note that it is left out."""
    found = dns_name(name)
    if found is None:
        written.notes.append(Note(path, f"left out: Kubernetes takes no name like {name!r}"))
    elif found in taken:
        written.notes.append(Note(path, f"left out: {found} is the name of another already"))
        found = None
    elif found != name:
        written.notes.append(Note(path, f"is called {found} there"))
    return found


def _key(data: Mapping[str, Any]) -> str:
    return f"{data['tenant']}/{data['project']}" if data.get("project") else str(data["tenant"])


def add_quota(written: Written, data: Mapping[str, Any]) -> None:
    """Add one quota; it is left out, with a note, where Kubernetes takes no such name."""
    key = _key(data)
    path = f"quota.apply/{key}:"
    above = data["tenant"] if data.get("project") else data.get("parent")
    name = named(written, f"{path}tenant", key.replace("/", "."), written.names)
    if name is None:
        return
    written.names.add(name)
    stated = {}
    for limit in data.get("limits") or []:
        resource = limit["resource"]
        if resource.partition(":")[0] in ("model", "profile"):
            stated[resource] = _limited(written, path, resource, above, limit)
        else:
            written.notes.append(Note(f"{path}limits", f"Kueue has no quota of {resource}"))
    gpu = {
        "nominal": data["nominal_gpu_milli"],
        "borrowing": data.get("borrowing_gpu_milli"),
        "lending": data.get("lending_gpu_milli"),
    }
    total = _limited(written, path, "gpu", above, gpu)
    written.quotas[key] = WrittenQuota(path, name, data, above, total, stated)


def _limited(
    written: Written, path: str, resource: str, above: str | None, limit: Mapping[str, Any]
) -> Amount:
    borrowing, lending = limit.get("borrowing"), limit.get("lending")
    if above is None and (borrowing, lending) != (None, None):
        reason = f"limits on {resource} left out: without a parent nothing is lent or borrowed"
        written.notes.append(Note(f"{path}parent", reason))
        return Amount(limit["nominal"])
    return Amount(limit["nominal"], borrowing, lending)


def link(written: Written) -> None:
    """Let each quota know those below it; a parent that is not there is only named.

    Raises `NotTheFormat` when they are above one another in a circle, or too many are.
    """
    for quota in written.quotas.values():
        above = written.quotas.get(quota.parent or "")
        if above is not None:
            above.below.append(quota)
        elif quota.parent is not None:
            reason = f"{quota.parent} has no quota here; only its name is written"
            written.notes.append(Note(f"{quota.path}parent", reason))
    for quota in written.quotas.values():
        at, depth = quota, 0
        while (above := written.quotas.get(at.parent or "")) is not None:
            at, depth = above, depth + 1
            if depth > _MAX_DEPTH:
                raise NotTheFormat(f"in a circle, or below more than {_MAX_DEPTH}", quota.path)


def _total(quota: WrittenQuota, kind: str) -> int:
    """Return the quota's total of a kind: what it states, else what is below it."""
    if kind in quota.stated:
        return quota.stated[kind].nominal
    return sum(_total(each, kind) for each in quota.below)


def _kinds(quota: WrittenQuota) -> list[str]:
    found = set(quota.stated).union(*(_kinds(each) for each in quota.below))
    return sorted(found)


def _governed(written: Written, quota: WrittenQuota) -> list[str]:
    """Return what the quota or one above it limits.

    Who is silent here may borrow from above; who is silent in Kueue gets nothing. So
    a ClusterQueue says that it has none of its own.
    """
    found = set(quota.stated)
    while (above := written.quotas.get(quota.parent or "")) is not None:
        found |= set(above.stated)
        quota = above
    return sorted(found)


def _rest_total(quota: WrittenQuota) -> int:
    """Return what the total has beside the kinds: devices of any model."""
    return quota.total.nominal - sum(_total(quota, kind) * factor(kind) for kind in _kinds(quota))


def _rest(total: int | None, parts: list[int | None]) -> int | None:
    """Return what is left of a limit for devices of any model."""
    if total is None or None in parts:
        return total
    return max(0, total - sum(part or 0 for part in parts))


def _entries(written: Written, quota: WrittenQuota) -> dict[str, Amount]:
    """Return the quota's own amounts, as `read_kueue` would read them back."""
    kinds = _kinds(quota) if quota.below else _governed(written, quota)
    own: dict[str, Amount] = {}
    for kind in kinds:
        stated = quota.stated.get(kind, Amount())
        nominal = _total(quota, kind) - sum(_total(each, kind) for each in quota.below)
        own[kind] = Amount(
            _positive(written, quota, kind, nominal), stated.borrowing, stated.lending
        )
    terms = [times(amount, factor(kind)) for kind, amount in own.items()]
    left = _rest_total(quota) - sum(_rest_total(each) for each in quota.below)
    rest = Amount(
        _positive(written, quota, "gpu", left),
        _rest(quota.total.borrowing, [one.borrowing for one in terms]),
        _rest(quota.total.lending, [one.lending for one in terms]),
    )
    if _says_more(written, quota, terms, rest):
        own[ANY] = rest
    return own


def _positive(written: Written, quota: WrittenQuota, kind: str, nominal: int) -> int:
    if nominal < 0:
        reason = f"{kind}: its parts come to {-nominal} more than the total, which Kueue cannot say"
        written.notes.append(Note(f"{quota.path}nominal_gpu_milli", reason))
    return max(0, nominal)


def _says_more(written: Written, quota: WrittenQuota, terms: list[Amount], rest: Amount) -> bool:
    """Say whether a flavor of any model is needed to say what the quota says."""
    given = Amount(0, 0, 0)
    for term in terms:
        given = plus(given, term)
    for name in ("borrowing", "lending"):
        limit = getattr(quota.total, name)
        if terms and limit is not None and getattr(given, name) is None:
            reason = (
                f"{limit} in all cannot be said: Kueue limits each flavor, and one has no limit"
            )
            written.notes.append(Note(f"{quota.path}{name}_gpu_milli", reason))
    if rest.nominal and terms:
        reason = f"the flavor {ANY_FLAVOR} is of any model; give it labels of the others"
        written.notes.append(Note(f"{quota.path}limits", reason))
    limits = (quota.total.borrowing, quota.total.lending)
    if not quota.below:
        derived = quota.parent is None or (given.borrowing, given.lending) == limits
        return not terms or rest.nominal > 0 or not derived
    silent = limits == (None, None) and (not terms or (given.borrowing, given.lending) == limits)
    return rest.nominal > 0 or not (quota.parent is None or silent)


def groups(written: Written, quota: WrittenQuota) -> list[Object]:
    """Return the quota's resource groups, and add the flavors that they name."""
    devices, slices = [], []
    for kind, amount in _entries(written, quota).items():
        what, _, name = kind.partition(":")
        if quota.below and amount == Amount():
            continue  # what a cohort does not list, it has none of, without a limit
        if what == "profile":
            slices.append(_amount(written, quota, resource_of(name), amount, 1))
            written.flavors.setdefault(MIG_FLAVOR, {})
        else:
            flavor = _flavor(written, quota, name if what == "model" else None)
            if flavor is not None:
                devices.append((flavor, _amount(written, quota, GPU, amount, WHOLE_MILLI)))
    found = []
    if devices:
        flavors = [{"name": name, "resources": [amount]} for name, amount in devices]
        found.append({"coveredResources": [GPU], "flavors": flavors})
    if slices:
        names = [one["name"] for one in slices]
        flavors = [{"name": MIG_FLAVOR, "resources": slices}]
        found.append({"coveredResources": names, "flavors": flavors})
    return found


def _flavor(written: Written, quota: WrittenQuota, model: str | None) -> str | None:
    """Return the flavor of a model, or of any; None after a note that it has no name."""
    if model is None:
        written.flavors.setdefault(ANY_FLAVOR, {})
        return ANY_FLAVOR
    labels = {PRODUCT: product_label(model)}
    name = dns_name(model)
    if name is None or written.flavors.get(name, labels) != labels:
        reason = f"{model!r} left out: no name is free for its flavor"
        written.notes.append(Note(f"{quota.path}limits", reason))
        return None
    written.flavors[name] = labels
    return name


def _amount(
    written: Written, quota: WrittenQuota, resource: str, amount: Amount, unit: int
) -> Object:
    found: Object = {"name": resource}
    for name, value in (
        ("nominalQuota", amount.nominal),
        ("borrowingLimit", amount.borrowing),
        ("lendingLimit", amount.lending),
    ):
        if value is None or (name != "nominalQuota" and quota.parent is None):
            continue
        found[name] = value // unit
        if value % unit:
            reason = (
                f"{name} of {value} thousandths becomes {value // unit}: Kueue counts whole devices"
            )
            written.notes.append(Note(f"{quota.path}nominal_gpu_milli", reason))
    return found
