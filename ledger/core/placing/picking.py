"""Which devices and nodes a need with terms gets, where those of a class are not alike for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.core.placing.constraints import domain_of, spans_nodes
from ledger.core.placing.media import sessions_fit
from ledger.core.placing.passthrough import whole_groups

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ledger.core.derived.places import ClassKey
    from ledger.core.state import Need, State

__all__ = ["Apart", "whole_parts"]

Parts = list[tuple[str, tuple[str, ...]]]


class Apart:
    """The failure domains that one placement has used so far; nothing where none is asked."""

    __slots__ = ("_by_domain", "_state", "_terms")

    def __init__(self, state: State, need: Need) -> None:
        """Begin with none used."""
        self._state = state
        self._terms = need.terms if need.terms is not None and need.terms.spread else None
        self._by_domain: dict[str | None, str] = {}

    def takes(self, nodes: Iterable[str]) -> bool:
        """Use the nodes' domains if each is free or the same node's; say whether they were."""
        if self._terms is None:
            return True
        found: dict[str | None, str] = {}
        for name in nodes:
            domain = domain_of(self._state, self._state.nodes[name], self._terms)
            if self._by_domain.get(domain, name) != name or found.setdefault(domain, name) != name:
                return False
        self._by_domain |= found
        return True


def whole_parts(state: State, need: Need, key: ClassKey, nodes: Sequence[str]) -> Parts | None:
    """Return whole devices on as many of the nodes as are asked, the first that will do."""
    terms = need.terms
    domains: Sequence[str | None] = (None,)
    linked = terms is not None and terms.same_nvlink_domain and need.nodes > 1
    if linked and spans_nodes(state, key):
        free = state.index.cards[key].free
        domains = sorted({_domain(state, uuid) for name in nodes for uuid in free[name]} - {""})
    for domain in domains:
        parts = _parts(state, need, key, nodes, domain)
        if parts is not None:
            return parts
    return None


def _parts(
    state: State, need: Need, key: ClassKey, nodes: Sequence[str], domain: str | None
) -> Parts | None:
    parts: Parts = []
    apart = Apart(state, need)
    for name in nodes:
        units = _pick(state, need, state.index.cards[key].free[name], domain)
        if units is not None and apart.takes((name,)):
            parts.append((name, units))
            if len(parts) == need.nodes:
                return parts
    return None


def _pick(
    state: State, need: Need, free: Sequence[str], domain: str | None
) -> tuple[str, ...] | None:
    """Return the node's devices: of one domain where that is asked, the fullest that will do."""
    terms = need.terms
    if terms is not None and terms.delivery == "passthrough" and free:
        node = state.nodes[state.devices[free[0]].node]
        return whole_groups(state, node, free, need.count)
    if terms is not None and terms.by_device:
        free = [uuid for uuid in free if sessions_fit(state.devices[uuid], need)]
    if terms is None or not terms.same_nvlink_domain:
        return tuple(free[: need.count]) if len(free) >= need.count else None
    linked: dict[str, list[str]] = {}
    for uuid in free:
        linked.setdefault(_domain(state, uuid), []).append(uuid)
    linked.pop("", None)
    able = [
        (len(uuids), name)
        for name, uuids in linked.items()
        if len(uuids) >= need.count and domain in (None, name)
    ]
    return tuple(linked[min(able)[1]][: need.count]) if able else None


def _domain(state: State, uuid: str) -> str:
    facts = state.devices[uuid].facts
    return "" if facts is None else facts.nvlink_domain
