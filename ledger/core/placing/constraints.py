"""Where the terms of a need can be met: pools, classes and nodes that will do.

A class is alike in pool, model and memory only. What else differs is asked node by
node: every device of the class there must have what is asked, and what a device or a
node does not report it does not have (DESIGN 1.10).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from ledger.core.derived.places import NO_DEVICE
from ledger.core.placing.passthrough import whole_groups
from ledger.core.state import WHOLE_MILLI
from ledger.core.terms import Terms, version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ledger.core.derived.places import ClassKey
    from ledger.core.state import Device, Need, Node, Part, State

__all__ = [
    "class_serves",
    "domain_of",
    "domains_of_task",
    "eligible",
    "for_tenant",
    "narrowed",
    "pool_serves",
    "spans_nodes",
    "terms_fault",
]


def for_tenant(state: State, need: Need, tenant: str) -> Need:
    """Return the need as the tenant's, where it matters who asks.

    Elsewhere needs of several tenants are one, and looked at once.
    """
    who = tenant if state.pools_limited else ""
    return need if need.tenant == who else replace(need, tenant=who)


def pool_serves(state: State, name: str, need: Need) -> bool:
    """Say whether the pool serves the need's delivery mode, and who asks."""
    pool = state.pools.get(name)
    if pool is None:
        return False
    if pool.allowed_modes and need.count and need.delivery not in pool.allowed_modes:
        return False
    return not pool.allowed_tenants or need.tenant in pool.allowed_tenants


def class_serves(state: State, key: ClassKey, need: Need) -> bool:
    """Say whether any node has devices of the class that meet the terms, free or not."""
    base = key if key[3] == NO_DEVICE else (*key[:3], "", WHOLE_MILLI)
    cards = state.index.cards.get(base)
    return cards is not None and any(
        eligible(state, key, state.nodes[name], need) for name in cards.members
    )


def eligible(state: State, key: ClassKey, node: Node, need: Need) -> bool:
    """Say whether the node's devices of the class meet the need's terms."""
    terms = need.terms
    if terms is None:
        return True
    if terms.driver_min and not _at_least(node.driver, terms.driver_min):
        return False
    if terms.remote and node.name == terms.remote[0]:
        return False
    if terms.spread and domain_of(state, node, terms) is None:
        return False
    devices = _devices(state, node, key)
    if need.count and not devices:
        return False
    if not all(_has(device, terms) for device in devices):
        return False
    if terms.encoder_sessions or terms.decoder_sessions:
        devices = [one for one in devices if _has_media(one, terms)]
    if terms.same_nvlink_domain:
        return _largest_domain(devices) >= need.count
    if terms.delivery == "passthrough":
        return whole_groups(state, node, [one.uuid for one in devices], need.count) is not None
    if terms.delivery == "vgpu":
        wanted = (need.memory_mib, terms.vgpu_most, terms.vgpu_type)
        devices = [one for one in devices if one.facts and wanted in one.facts.vgpu_types]
    return not terms.by_device or len(devices) >= need.count


def _devices(state: State, node: Node, key: ClassKey) -> list[Device]:
    """Return the node's devices of the class; one that is gone speaks for nothing any more."""
    here = [state.devices[uuid] for uuid in node.devices]
    wanted = key[1:3]
    return [one for one in here if (one.model, one.memory_mib) == wanted and one.health != "gone"]


def _has(device: Device, terms: Terms) -> bool:
    if terms.architectures and device.architecture not in terms.architectures:
        return False
    capability = device.facts.capability if device.facts is not None else ""
    return not terms.capability or _at_least(capability, terms.capability)


def _has_media(device: Device, terms: Terms) -> bool:
    """Say whether the device has as many sessions as are asked, in use or not."""
    facts = device.facts
    return (
        facts is not None
        and facts.encoder_sessions >= terms.encoder_sessions
        and facts.decoder_sessions >= terms.decoder_sessions
    )


def _at_least(found: str, least: str) -> bool:
    has, asked = version(found), version(least)
    return has is not None and asked is not None and has >= asked


def _largest_domain(devices: Iterable[Device]) -> int:
    counted = Counter(one.facts.nvlink_domain for one in devices if one.facts is not None)
    counted.pop("", None)
    return max(counted.values(), default=0)


def domain_of(state: State, node: Node, terms: Terms) -> str | None:
    """Return the failure domain that the node is in; None when nothing says which."""
    if terms.spread == "node":
        return node.name
    label = terms.spread.removeprefix("label:")
    pool = state.pools.get(node.pool)
    return node.labels.get(label) or (pool.labels.get(label) if pool is not None else None)


def domains_of_task(state: State, terms: Terms, but: str = "") -> set[str]:
    """Return the failure domains in which replicas of the task but one are, or are to be."""
    source, _, task = terms.apart.partition("#")
    index = state.index
    nodes = [
        node
        for name in index.replicas_of(state, (source, task))
        for node in state.leases[name].parts
    ]
    nodes += [
        node
        for name in index.apart.get(terms.apart, ())
        if name != but
        for node in state.requests[name].kept
    ]
    found = (domain_of(state, state.nodes[name], terms) for name in nodes)
    return {one for one in found if one is not None}


def narrowed(
    state: State, need: Need, key: ClassKey, allowed: Callable[[str], bool] | None
) -> Callable[[str], bool] | None:
    """Return which of the allowed nodes meet the need's terms with devices of the class."""
    terms = need.terms
    if terms is None:
        return allowed
    taken = domains_of_task(state, terms) if terms.apart else ()

    def may(name: str) -> bool:
        if allowed is not None and not allowed(name):
            return False
        node = state.nodes[name]
        if taken and domain_of(state, node, terms) in taken:
            return False
        return eligible(state, key, node, need)

    return may


def spans_nodes(state: State, key: ClassKey) -> bool:
    """Say whether a NVLink domain of the class has devices on more than one node."""
    homes: dict[str, str] = {}
    cards = state.index.cards.get(key)
    for name in cards.members if cards is not None else ():
        for device in _devices(state, state.nodes[name], key):
            domain = device.facts.nvlink_domain if device.facts is not None else ""
            if domain and homes.setdefault(domain, name) != name:
                return True
    return False


def terms_fault(state: State, need: Need, parts: Iterable[Part], of: str = "") -> str | None:
    """Say which term a place of request ``of`` does not meet; None when it meets all."""
    terms = need.terms
    domains: Counter[str | None] = Counter()
    for part in parts:
        name, node = part.node, state.nodes[part.node]
        if not pool_serves(state, node.pool, need):
            return f"pool {node.pool} does not serve it"
        if terms is None:
            continue
        if terms.driver_min and not _at_least(node.driver, terms.driver_min):
            return f"{name} has the driver {node.driver or 'unknown'}"
        domains[domain_of(state, node, terms) if terms.spread else None] += 1
        devices = [
            state.devices[state.slices[unit].device if unit in state.slices else unit]
            for unit in part.units
        ]
        if not all(_has(device, terms) for device in devices):
            return f"a device on {name} is of another architecture or capability"
        passed = terms.delivery == "passthrough"
        if passed and whole_groups(state, node, part.units, len(part.units)) is None:
            return f"the devices on {name} are not whole IOMMU groups"
        if terms.same_nvlink_domain and _largest_domain(devices) < len(devices):
            return f"the devices on {name} are not of one NVLink domain"
    if terms is not None and terms.spread:
        taken = domains_of_task(state, terms, of) if terms.apart else set()
        for domain, count in domains.items():
            if domain is None or count > 1 or domain in taken:
                return f"two are in one failure domain, {domain}"
    return None
