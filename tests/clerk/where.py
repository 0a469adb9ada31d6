"""Where the terms of a request can be met, by going through all cards (A9, A12-A14).

Every card of a kind on a node must have what is asked of architecture and capability:
what is reported of some only does not do for the node.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from tests.clerk.asked import Vgpu, numbers

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.clerk.asked import Asked
    from tests.clerk.books import Books, Card

__all__ = ["Where"]


class Where:
    """Looks at the clerk's books."""

    def __init__(self, books: Books) -> None:
        """Look at these."""
        self.books = books

    # -- of which cards -----------------------------------------------------------

    def offer(self, name: str) -> Vgpu | None:
        """Return what a type of vGPU is where devices offer it: the least memory counts."""
        cards = self.books.cards.values()
        return min((one for card in cards for one in card.vgpus if one.type == name), default=None)

    def pool_serves(self, pool: str, asked: Asked) -> bool:
        """Say whether the pool is for the tenant and for the way of delivery."""
        rules = self.books.pools[pool]
        modes, tenants = rules.get("allowed_modes"), rules.get("allowed_tenants")
        by_mode = not modes or not asked.ask.get("count", 1) or asked.terms.delivery in modes
        return by_mode and (not tenants or asked.tenant in tenants)

    def node_serves(self, node: str, asked: Asked) -> bool:
        """Say whether the node itself meets the terms."""
        terms, host = asked.terms, self.books.hosts[node]
        if terms.driver and numbers(host.driver) < numbers(terms.driver):
            return False
        if terms.remote and node == terms.remote[0]:
            return False
        return not terms.spread or self.domain(node, terms.spread) is not None

    def card_serves(self, card: Card, asked: Asked) -> bool:
        """Say whether a card is of an architecture and capability that will do."""
        terms = asked.terms
        if terms.architectures and card.architecture not in terms.architectures:
            return False
        return not terms.capability or numbers(card.capability) >= numbers(terms.capability)

    def all_serve(self, node: str, uuids: Iterable[str], asked: Asked) -> bool:
        """Say whether the node, with all its cards of a kind, meets the terms."""
        cards = [self.books.cards[uuid] for uuid in uuids]
        return self.node_serves(node, asked) and all(self.card_serves(one, asked) for one in cards)

    # -- how far apart --------------------------------------------------------------

    def domain(self, node: str, spread: str) -> str | None:
        """Return the failure domain that a node is in, or None."""
        if spread == "node":
            return node
        label, host = spread.removeprefix("label:"), self.books.hosts[node]
        pool = self.books.pools.get(host.pool, {})
        return host.labels.get(label) or pool.get("labels", {}).get(label)

    def domains_taken(self, asked: Asked) -> set[str | None]:
        """Return where other replicas of the task are, or are to be."""
        spread, books = asked.terms.spread, self.books
        nodes: list[str] = []
        for other in books.asked.values():
            if other.group == asked.group and other.id != asked.id:
                nodes += books.where.get(other.lease or "", ())
                nodes += other.kept.values() if other.terms.spread else ()
        return {self.domain(node, spread) for node in nodes} if spread else set()

    def apart(self, nodes: Iterable[str], asked: Asked) -> str | None:
        """Say which two would be in one failure domain, or None."""
        if not asked.terms.spread:
            return None
        taken = self.domains_taken(asked)
        for node in sorted(set(nodes)):
            domain = self.domain(node, asked.terms.spread)
            if domain is None or domain in taken:
                return f"{asked.id} has two in {domain}"
            taken.add(domain)
        return None

    # -- together ---------------------------------------------------------------------

    def linked(self, by_node: dict[str, list[str]], kind_cards: Iterable[Card]) -> str | None:
        """Say which cards are not in one NVLink domain with the others, or None."""
        found = [{self.books.cards[uuid].nvlink for uuid in uuids} for uuids in by_node.values()]
        if any(len(one) != 1 or "" in one for one in found):
            return f"not of one NVLink domain: {by_node}"
        if self.wide(kind_cards) and len(set().union(*found)) > 1:
            return f"a gang in several NVLink domains: {by_node}"
        return None

    def wide(self, cards: Iterable[Card]) -> bool:
        """Say whether any NVLink domain has cards on more than one node."""
        homes: dict[str, set[str]] = {}
        for card in cards:
            homes.setdefault(card.nvlink, set()).add(card.node)
        return any(len(nodes) > 1 for name, nodes in homes.items() if name)

    def groups(self, node: str) -> dict[str, list[str]]:
        """Return the IOMMU groups of a node: all its cards in each."""
        found: dict[str, list[str]] = {}
        for uuid, card in self.books.cards.items():
            if card.node == node and card.health != "gone" and card.iommu:
                found.setdefault(card.iommu, []).append(uuid)
        return found

    def whole_groups(self, node: str, units: Iterable[str]) -> bool:
        """Say whether units are whole IOMMU groups, each with its address."""
        mine = set(units)
        inside = [set(group) for group in self.groups(node).values() if mine & set(group)]
        there = all(self.books.cards[uuid].pci for uuid in mine)
        return there and all(group <= mine for group in inside) and set().union(*inside) == mine

    def group_sums(self, node: str, free: set[str], count: int) -> bool:
        """Say whether whole groups of free cards add up to so many."""
        cards = self.books.cards
        sizes = [
            len(group)
            for group in self.groups(node).values()
            if set(group) <= free and all(cards[uuid].pci for uuid in group)
        ]
        return any(
            sum(chosen) == count
            for many in range(1, len(sizes) + 1)
            for chosen in combinations(sizes, many)
        )

    # -- over the network ---------------------------------------------------------------

    def reached(self, node: str, asked: Asked, now_us: int) -> bool:
        """Say whether fresh evidence shows the node near enough (A12)."""
        if asked.terms.remote is None:
            return True
        here, p99_us_max, mbps_min = asked.terms.remote
        link = self.books.links.get((here, node))
        if link is None or node == here:
            return False
        good = link["p99_us"] <= p99_us_max and link["bandwidth_mbps"] >= mbps_min
        fresh = link["measured_us"] <= now_us < link["valid_until_us"]
        return bool(good and fresh)

    # -- licences -------------------------------------------------------------------------

    def licences_used(self, name: str) -> int:
        """Return how many of a licence are in use by who has a place, kept or leased."""
        return sum(
            one.terms.licences.get(name, 0)
            for one in self.books.asked.values()
            if one.amounts is not None
        )

    def licence_lacking(self, asked: Asked) -> str | None:
        """Return the first licence of which more are in use than there are, or None."""
        for name in sorted(asked.terms.licences):
            if self.licences_used(name) > self.books.licences[name]:
                return name
        return None
