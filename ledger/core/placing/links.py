"""Evidence of the link between two nodes, and whether it is good enough and fresh (A12)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ledger.core.state import Need, State

__all__ = ["Link", "evidence_fault", "evidence_of", "link_numbers", "over_links"]

Numbers = dict[str, int | str | None]


@dataclass(slots=True)
class Link:
    """The latest measurement from one node to another (`schemas.observations.LinkEvidence`)."""

    id: str
    from_node: str
    to_node: str
    p99_us: int
    bandwidth_mbps: int
    tool: str
    version: str
    measured_us: int
    valid_until_us: int


def _link(state: State, need: Need, node: str) -> Link | None:
    return state.links.get(f"{need.terms.remote[0]} {node}") if need.terms is not None else None


def _good(link: Link | None, need: Need, now_us: int) -> bool:
    if link is None or need.terms is None:
        return False
    _, p99_us_max, bandwidth_mbps_min = need.terms.remote
    quick = link.p99_us <= p99_us_max and link.bandwidth_mbps >= bandwidth_mbps_min
    return quick and link.measured_us <= now_us < link.valid_until_us


def over_links(
    state: State, need: Need, allowed: Callable[[str], bool] | None, now_us: int
) -> Callable[[str], bool] | None:
    """Return which of the allowed nodes the task can reach well enough, by fresh evidence."""
    if need.terms is None or not need.terms.remote:
        return allowed

    def reached(node: str) -> bool:
        return (allowed is None or allowed(node)) and _good(_link(state, need, node), need, now_us)

    return reached


def evidence_of(state: State, need: Need, nodes: Iterable[str]) -> dict[str, list[str]]:
    """Return the evidence that a grant on the nodes rests on; nothing where none is asked."""
    if need.terms is None or not need.terms.remote:
        return {}
    links = (_link(state, need, node) for node in nodes)
    return {"evidence": [link.id for link in links if link is not None]}


def evidence_fault(
    state: State, need: Need, nodes: Iterable[str], named: Iterable[str], now_us: int
) -> str | None:
    """Say which node of a grant had no fresh evidence, or not the one that is named."""
    if need.terms is None or not need.terms.remote:
        return None
    known = set(named)
    for node in nodes:
        link = _link(state, need, node)
        if link is None or not _good(link, need, now_us) or link.id not in known:
            return f"no fresh evidence of the link from {need.terms.remote[0]} to {node}"
    return None


def link_numbers(state: State, need: Need, now_us: int) -> Numbers:
    """Return what was asked of the link, and how many links are known and are fresh."""
    if need.terms is None or not need.terms.remote:
        return {}
    from_node, p99_us_max, bandwidth_mbps_min = need.terms.remote
    known = [link for link in state.links.values() if link.from_node == from_node]
    fresh = [link for link in known if now_us < link.valid_until_us]
    return {
        "from_node": from_node,
        "p99_us_max": p99_us_max,
        "bandwidth_mbps_min": bandwidth_mbps_min,
        "links_known": len(known),
        "links_fresh": len(fresh),
    }
