"""Kueue's objects as they stand in a text, each field taken or reported.

The API is ``kueue.x-k8s.io`` in its versions v1beta1 and v1beta2, which differ in
what they call the cohort of a queue and of a cohort.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from ledger.formats.documents import NotTheFormat, shown
from ledger.formats.fields import Fields, Note
from ledger.formats.kueue_amounts import Amount, read_amounts
from ledger.formats.manifests import read_manifests
from ledger.formats.names import (
    MAX_NAME,
    NAMESPACE,
    PRODUCT,
    Product,
    is_name,
    product_of,
)

__all__ = [
    "GROUP",
    "VERSIONS",
    "Local",
    "Objects",
    "Quota",
    "read_objects",
]

GROUP = "kueue.x-k8s.io"
#: The versions, and what each calls the cohort of a ClusterQueue and of a Cohort.
VERSIONS = {"v1beta1": ("cohort", "parent"), "v1beta2": ("cohortName", "parentName")}

_NO_HOLD = "the ledger does not hold a queue back; drain its nodes or lower its quota"
_NO_TAINTS = "the ledger has no taints"
_NO_CHECKS = "the ledger asks nobody else before it admits"
_STATUS = {"status": "what was observed is no policy"}
_QUEUE_REASONS = {
    "admissionChecks": _NO_CHECKS,
    "admissionChecksStrategy": _NO_CHECKS,
    "admissionScope": "fair share by past use is the field fair_share of a queue here",
    "concurrentAdmissionPolicy": "a request is placed once and does not move",
    "excludeResourcePrefixes": "only devices count in a quota here",
    "flavorFungibility": "flavors are not tried in turn; every device that fits is looked at",
}
_LOCAL_REASONS = {
    "fairSharing": "fair share is between quotas, not between the ways into a queue",
    "wallTimePolicy": "give the tenant's quota a budget of GPU-hours instead",
}
_FLAVOR_REASONS = {
    "nodeTaints": _NO_TAINTS,
    "tolerations": _NO_TAINTS,
    "topologyName": "topology is what nodes report",
    "resourceWeights": "fair share has no weight for each resource",
}
_ORDERINGS = {"StrictFIFO": "strict", "BestEffortFIFO": "best-effort"}
_RECLAIMS = {"Never": "never", "LowerPriority": "lower-priority", "Any": "any"}
_WITHIN = {
    "Never": "never",
    "LowerPriority": "same-tenant",
    "LowerOrNewerEqualPriority": "same-tenant",
}


@dataclass(slots=True)
class Quota:
    """A Cohort or a ClusterQueue.

    ``entries``: its own amounts, by `ANY`, ``model:NAME`` (thousandths) or
    ``profile:NAME`` (slices). ``rules``: ordering, preemption and reclaim.
    ``eligible``: the namespaces that may use a ClusterQueue; None is nobody and
    an empty set everybody.
    """

    path: str
    name: str
    parent: str | None
    is_cohort: bool
    weight: Fraction = Fraction(1)
    entries: dict[str, Amount] = field(default_factory=dict)
    rules: dict[str, str] = field(default_factory=dict)
    eligible: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Local:
    """A LocalQueue: the way into a ClusterQueue for one namespace."""

    path: str
    name: str
    namespace: str
    line: int


@dataclass(slots=True)
class Objects:
    """What one text holds; ``notes`` grows while it is read."""

    notes: list[Note] = field(default_factory=list)
    models: tuple[str, ...] = ()
    flavors: dict[str, Product | None] = field(default_factory=dict)
    pools: dict[str, dict[str, str]] = field(default_factory=dict)
    cohorts: dict[str, Quota] = field(default_factory=dict)
    queues: dict[str, Quota] = field(default_factory=dict)
    #: LocalQueues by the ClusterQueue that they name, which may not be there.
    locals: dict[str, list[Local]] = field(default_factory=dict)


def read_objects(text: str, models: tuple[str, ...]) -> Objects:
    """Read all objects of the text; raise `NotTheFormat` when it has none of Kueue's."""
    objects = Objects(models=models)
    found = _find(text, objects.notes)
    # Flavors go first: what a quota counts depends on the labels of its flavor.
    for kind, fields, version in sorted(found, key=lambda one: one[0] != "ResourceFlavor"):
        _KINDS[kind](objects, fields, version)
    return objects


def _find(text: str, notes: list[Note]) -> list[tuple[str, Fields, str]]:
    found = []
    for kind, api, fields in read_manifests(text, notes):
        group, _, version = api.rpartition("/")
        if group == GROUP and kind in _KINDS and version in VERSIONS:
            found.append((kind, fields, version))
        else:
            what = f"{shown(kind)} of {shown(api)} is no policy that is read here"
            notes.append(Note(fields.path, what, fields.line))
    if not found:
        raise NotTheFormat(f"holds no {', '.join(_KINDS)} of {GROUP}, {' or '.join(VERSIONS)}")
    return found


def _opened(fields: Fields, kind: str) -> tuple[str, str, Fields]:
    """Return name, namespace and spec of an object, whose path is its name from here on."""
    metadata = fields.fields("metadata")
    if metadata is None:
        raise fields.wrong("metadata", "is missing; every object has a name")
    name, namespace = metadata.needed("name"), metadata.text("namespace") or ""
    fields.path = f"{kind}/{name if name.isprintable() else ascii(name)}:"
    metadata.path = fields.at("metadata")
    metadata.rest("what Kubernetes keeps about the object is no policy")
    spec = fields.fields("spec") or fields.empty("spec")
    fields.rest("no field of the object", _STATUS)
    return name, namespace, spec


def _fits(objects: Objects, name: str, spec: Fields, what: str) -> bool:
    if is_name(name):
        return True
    reason = f"{what}: a name here has letters, digits, . _ - and at most {MAX_NAME} characters"
    objects.notes.append(Note(spec.path, reason, spec.line))
    return False


def _read_flavor(objects: Objects, fields: Fields, _version: str) -> None:
    name, _, spec = _opened(fields, "ResourceFlavor")
    labels = spec.pairs("nodeLabels")
    product = labels.pop(PRODUCT, None)
    objects.flavors[name] = None
    if product:
        objects.flavors[name] = found = product_of(product, objects.models)
        if not found.known:
            spec.note("nodeLabels", f"the model {shown(product)} stays as the label spells it")
        if found.shared:
            spec.note("nodeLabels", "replicas of shared devices are counted as whole devices")
    fit = {key: value for key, value in labels.items() if is_name(key)}
    for key in labels:
        if key not in fit:
            spec.note("nodeLabels", f"{shown(key)} left out: a pool's labels have plain names")
    if fit and _fits(objects, name, spec, "no pool is made of it"):
        objects.pools[name] = fit
    spec.rest("no field of a ResourceFlavor", _FLAVOR_REASONS)


def _read_cohort(objects: Objects, fields: Fields, version: str) -> None:
    name, _, spec = _opened(fields, "Cohort")
    quota = _quota(objects, name, spec, VERSIONS[version][1], is_cohort=True)
    spec.rest("no field of a Cohort")
    if _fits(objects, name, spec, "left out"):
        _once(objects.cohorts, quota)


def _read_queue(objects: Objects, fields: Fields, version: str) -> None:
    name, _, spec = _opened(fields, "ClusterQueue")
    quota = _quota(objects, name, spec, VERSIONS[version][0], is_cohort=False)
    ordering = _one_of(spec, "queueingStrategy", _ORDERINGS, "BestEffortFIFO")
    quota.rules = {"ordering": ordering, **_preemption(spec)}
    quota.eligible = _eligible(spec)
    _stopped(spec)
    spec.rest("no field of a ClusterQueue", _QUEUE_REASONS)
    if _fits(objects, name, spec, "left out"):
        _once(objects.queues, quota)


def _read_local(objects: Objects, fields: Fields, _version: str) -> None:
    name, namespace, spec = _opened(fields, "LocalQueue")
    queue = spec.text("clusterQueue") or ""
    _stopped(spec)
    spec.rest("no field of a LocalQueue", _LOCAL_REASONS)
    if not namespace:
        raise fields.wrong("metadata.namespace", "is missing; a LocalQueue is in a namespace")
    fit = [_fits(objects, each, spec, "left out") for each in (name, namespace)]
    if all(fit):
        local = Local(spec.path, name, namespace, spec.line)
        objects.locals.setdefault(queue, []).append(local)


_KINDS = {
    "ResourceFlavor": _read_flavor,
    "Cohort": _read_cohort,
    "ClusterQueue": _read_queue,
    "LocalQueue": _read_local,
}


def _once(found: dict[str, Quota], quota: Quota) -> None:
    if quota.name in found:
        raise NotTheFormat("stands twice in the text; keep one of them", quota.path)
    found[quota.name] = quota


def _one_of(fields: Fields, name: str, known: dict[str, str], default: str) -> str:
    text = fields.text(name) or default
    if text not in known:
        raise fields.wrong(name, f"must be one of {', '.join(known)}, not {shown(text)}")
    return known[text]


def _stopped(spec: Fields) -> None:
    if (spec.text("stopPolicy") or "None") != "None":
        spec.note("stopPolicy", _NO_HOLD)


def _preemption(spec: Fields) -> dict[str, str]:
    found = spec.fields("preemption") or spec.empty("preemption")
    within = found.text("withinClusterQueue") or "Never"
    if within not in _WITHIN:
        raise found.wrong("withinClusterQueue", f"must be one of {', '.join(_WITHIN)}")
    if within == "LowerOrNewerEqualPriority":
        found.note("withinClusterQueue", "newer leases of the same priority are never evicted")
    reclaim = _one_of(found, "reclaimWithinCohort", _RECLAIMS, "Never")
    borrow = found.fields("borrowWithinCohort")
    if borrow is not None and (borrow.text("policy") or "Never") != "Never":
        found.note("borrowWithinCohort", "who borrows evicts nobody of another quota")
    if borrow is not None:
        borrow.rest("goes with a policy that does not map")
    found.rest("no field of preemption")
    return {"preemption": _WITHIN[within], "reclaim": reclaim}


def _eligible(spec: Fields) -> frozenset[str] | None:
    """Return who may submit; a selector that needs the namespaces' labels counts as everybody."""
    selector = spec.fields("namespaceSelector")
    if selector is None:
        return None
    labels = selector.pairs("matchLabels")
    named = {labels.pop(NAMESPACE)} if NAMESPACE in labels else None
    for each in selector.each("matchExpressions"):
        key, operator, values = each.text("key"), each.text("operator"), each.texts("values")
        if key == NAMESPACE and operator == "In":
            named = set(values) if named is None else named & set(values)
        else:
            each.note("key", f"{shown(key or '')}: what labels a namespace has is not known here")
        each.rest("no field of a selector")
    if labels:
        names = ", ".join(map(shown, labels))
        selector.note("matchLabels", f"{names}: what labels a namespace has is not known here")
    selector.rest("no field of a selector")
    if named is not None and not named:
        return None
    return frozenset(named or ())


def _quota(objects: Objects, name: str, spec: Fields, above: str, *, is_cohort: bool) -> Quota:
    parent = spec.text(above) or None
    if parent and not _fits(objects, parent, spec, f"{above} is left out"):
        parent = None
    quota = Quota(spec.path, name, parent, is_cohort)
    sharing = spec.fields("fairSharing")
    if sharing is not None:
        weight = sharing.quantity("weight")
        quota.weight = Fraction(1) if weight is None else weight
        sharing.rest("no field of fair sharing")
    for group in spec.each("resourceGroups"):
        group.take("coveredResources")  # what the flavors list again
        for flavor in group.each("flavors"):
            if read_amounts(flavor, objects.flavors, quota.entries) in objects.pools:
                flavor.note("name", "is a pool; a quota counts the devices of all pools together")
        group.rest("no field of a resource group")
    return quota
