"""A Kubernetes pod as a request.

What the scheduler reserves for a pod is counted as Kubernetes does: app containers and
sidecars together, or the hungriest moment of initialisation, whichever is more, resource
by resource, and the pod's overhead. CPU and memory are the requests, and the limits where
there are none; devices are the limits. Amounts stay exact until the end and are rounded
up once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from ledger.formats.asks import Beside, Devices, Options, Said, ask_of, request_of
from ledger.formats.documents import NotTheFormat, shown
from ledger.formats.fields import Fields, Note
from ledger.formats.manifests import read_manifests
from ledger.formats.names import GPU, PRODUCT, SHARED, is_name, product_of, profile_of
from ledger.formats.quantities import MIB, up

__all__ = ["read_pods"]

_QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
_CLASS_LABEL = "kueue.x-k8s.io/priority-class"
_TIME_LABEL = "kueue.x-k8s.io/max-exec-time-seconds"
_CLASSES = {
    "scheduling.k8s.io": "PriorityClass",
    "kueue.x-k8s.io": "WorkloadPriorityClass",
}
_MILLI = 1000
_VENDOR = "nvidia.com/"

_HOW = "how and where it runs is not the ledger's"
_POD_REASONS = {
    "affinity": "not read: give the models or labels that it allows",
    "resourceClaims": "not read: devices asked for by claims are missing from the request",
    "preemptionPolicy": "what a request may evict is said by its queue",
    "tolerations": "the ledger has no taints",
    "topologySpreadConstraints": "not read; spread of an ask keeps replicas of a task apart",
}
_CLAIMS = {"claims": "not read: devices asked for by claims are missing from the request"}


@dataclass(slots=True)
class _Needs:
    """Amounts by resource, in base units, as one step of the sum has them."""

    amounts: dict[str, Fraction] = field(default_factory=dict)

    def plus(self, other: _Needs) -> _Needs:
        names = self.amounts.keys() | other.amounts.keys()
        return _Needs({name: self.of(name) + other.of(name) for name in names})

    def most(self, other: _Needs) -> _Needs:
        names = self.amounts.keys() | other.amounts.keys()
        return _Needs({name: max(self.of(name), other.of(name)) for name in names})

    def of(self, name: str) -> Fraction:
        return self.amounts.get(name, Fraction(0))


def read_pods(text: str, options: Options | None = None) -> tuple[list[dict[str, Any]], list[Note]]:
    """Return a request for each pod of the text, and what did not map.

    A pod that cannot be one request has a note instead. Priority classes in the
    same text are used. Raises `NotTheFormat` when there is no pod.
    """
    options = options or Options()
    notes: list[Note] = []
    pods, classes = _sorted_out(text, notes)
    requests = [_request(pod, options, classes | dict(options.priorities)) for pod in pods]
    return [request for request in requests if request is not None], notes


def _sorted_out(text: str, notes: list[Note]) -> tuple[list[Fields], dict[str, int]]:
    """Return the pods of a text, and what its priority classes are worth."""
    pods, classes = [], {}
    for kind, api, fields in read_manifests(text, notes):
        if kind == "Pod" and api == "v1":
            pods.append(fields)
        elif _CLASSES.get(api.partition("/")[0]) == kind:
            metadata = fields.fields("metadata")
            name = metadata.text("name") if metadata else None
            classes[name or ""] = fields.whole("value", least=-(1 << 31)) or 0
        else:
            notes.append(Note(fields.path, f"{shown(kind)} of {shown(api)} is no pod", fields.line))
    if not pods:
        raise NotTheFormat("holds no Pod of apiVersion v1; of a workload give its pod")
    return pods, classes


def _request(fields: Fields, options: Options, classes: dict[str, int]) -> dict[str, Any] | None:
    metadata = fields.fields("metadata") or fields.empty("metadata")
    name = metadata.text("name") or ""
    fields.path = f"Pod/{name if name.isprintable() else ascii(name)}:"
    metadata.path = fields.at("metadata")
    spec = fields.fields("spec")
    if spec is None:
        raise fields.wrong("spec", "is missing")
    labels = metadata.pairs("labels")
    said = Said(
        tenant=metadata.text("namespace"),
        queue=labels.pop(_QUEUE_LABEL, None),
        task=name,
        priority=_priority(spec, labels, classes),
        max_run_s=_max_run(spec, labels),
    )
    if labels:
        metadata.note("labels", f"{', '.join(map(shown, labels))}: a request has no labels")
    needs = _pod_needs(spec)
    devices = _devices(needs, spec, options)
    metadata.rest("what Kubernetes keeps about the object is no part of a request")
    spec.rest(_HOW, _POD_REASONS)
    fields.rest("no part of a request", {"status": "what was observed is no part of a request"})
    path = fields.path.removesuffix(":")
    beside = Beside(up(needs.of("cpu") * _MILLI), up(needs.of("memory") / MIB))
    ask = ask_of(devices, path, fields.notes)
    if ask is None:
        return None
    return request_of(ask, beside, said, options, path, fields.notes)


def _priority(spec: Fields, labels: dict[str, str], classes: dict[str, int]) -> int | None:
    """Return the priority: of Kueue's class, else the number, else of the pod's class."""
    number = spec.whole("priority", least=-(1 << 31))
    pods, kueues = spec.text("priorityClassName"), labels.pop(_CLASS_LABEL, None)
    for name in (kueues, pods):
        if name in classes:
            return classes[name]
        if name is not None and (number is None or name == kueues):
            reason = f"what {shown(name)} is worth is not known here; give its number"
            spec.note("priorityClassName", reason)
    return number


def _max_run(spec: Fields, labels: dict[str, str]) -> int | None:
    deadline = spec.whole("activeDeadlineSeconds", least=1)
    kueues = labels.pop(_TIME_LABEL, "")
    limit = int(kueues) if re.fullmatch("[0-9]{1,9}", kueues) else None
    found = [each for each in (deadline, limit) if each is not None]
    return min(found) if found else None


# -- what the scheduler reserves ----------------------------------------------------------


def _pod_needs(spec: Fields) -> _Needs:
    together = _Needs()
    for each in spec.each("containers"):
        together = together.plus(_container(each))
        each.rest(_HOW)
    sidecars, starting = _Needs(), _Needs()
    for each in spec.each("initContainers"):
        own = _container(each)
        if each.text("restartPolicy") == "Always":
            sidecars = sidecars.plus(own)
            starting = starting.most(sidecars)
        else:
            starting = starting.most(sidecars.plus(own))
        each.rest(_HOW)
    needs = together.plus(sidecars).most(starting)
    whole = spec.fields("resources")
    if whole is not None:
        # What the pod says for itself goes before what its containers come to.
        own = _resources(whole)
        needs = _Needs(needs.amounts | own.amounts)
    overhead = spec.fields("overhead")
    return needs if overhead is None else needs.plus(_Needs(overhead.quantities()))


def _container(fields: Fields) -> _Needs:
    fields.take("name")
    resources = fields.fields("resources")
    return _Needs() if resources is None else _resources(resources)


def _resources(fields: Fields) -> _Needs:
    limits, requests = (
        inner.quantities() if (inner := fields.fields(name)) is not None else {}
        for name in ("limits", "requests")
    )
    found = limits | {name: amount for name, amount in requests.items() if "/" not in name}
    for name, amount in requests.items():
        if "/" in name and limits.get(name, amount) != amount:
            fields.note("requests", f"{shown(name)} differs from its limit, which is taken")
        found.setdefault(name, amount)
    fields.rest("no amount", _CLAIMS)
    return _Needs(found)


# -- devices ------------------------------------------------------------------------------


def _devices(needs: _Needs, spec: Fields, options: Options) -> Devices:
    selector = spec.pairs("nodeSelector")
    product = selector.pop(PRODUCT, None)
    found = Devices(shares_of=options.shares)
    for name, amount in sorted(needs.amounts.items()):
        profile = profile_of(name)
        if name in (GPU, SHARED) or profile is not None:
            number = _pieces(spec, name, amount)
            if name == SHARED:
                found.shares += number
            elif profile is not None:
                found.slices[profile] = number
            else:
                found.whole += number
        elif name not in ("cpu", "memory") and amount:
            what = "devices that are not counted here" if name.startswith(_VENDOR) else "left out"
            spec.note("containers", f"{shown(name)}: {what}")
    if product is not None:
        _apply_product(found, product, spec, options)
    if found.shares > 1:
        spec.note("containers", "more than one replica of a shared device may give no larger part")
    for key, value in selector.items():
        if is_name(key):
            found.labels[key] = value
        else:
            spec.note("nodeSelector", f"{shown(key)} left out: a pool's labels have plain names")
    return found


def _pieces(spec: Fields, name: str, amount: Fraction) -> int:
    if amount.denominator != 1:
        raise spec.wrong("containers", f"{shown(name)} must be a whole number")
    return int(amount)


def _apply_product(found: Devices, label: str, spec: Fields, options: Options) -> None:
    product = product_of(label, options.models)
    found.models = (product.model,)
    if not product.known:
        reason = f"the model {shown(product.model)} stays as the label spells it"
        spec.note("nodeSelector", f"{reason}; the ledger has it as NVML does")
    if product.profile is not None and found.whole:
        # Under the MIG strategy "single" each slice is advertised as a GPU.
        found.slices[product.profile] = found.slices.get(product.profile, 0) + found.whole
        found.whole = 0
    if product.shared and found.whole:
        found.shares += found.whole
        found.whole = 0
