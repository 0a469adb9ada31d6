"""What is where, who holds it, who asks, and where something could run: by looking at all of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.clerk.tree import Amounts, Tree

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

__all__ = ["Asked", "Books", "Card", "Host", "Kind", "Piece", "Plan"]

#: (pool, model, memory in MiB): cards that are alike.
Kind = tuple[str, str, int]


@dataclass
class Host:
    """A node."""

    pool: str
    cpu: int | None
    memory: int | None
    mode: str = "online"
    away: bool = False


@dataclass
class Card:
    """A device."""

    node: str
    model: str
    mib: int
    mig: bool
    parts: int
    health: str = "healthy"
    shut: bool = False


@dataclass
class Piece:
    """A MIG slice."""

    card: str
    profile: str
    parts: int
    mib: int
    shut: bool = False


@dataclass
class Plan:
    """Nodes promised to a request that waits."""

    nodes: list[str]
    start_us: int | None


@dataclass
class Asked:
    """A request that is not over."""

    id: str
    tenant: str
    project: str | None
    queue: str
    task: str
    ask: dict[str, Any]
    cpu: int
    memory: int
    priority: int
    preemptible: bool
    replicas_min: int
    run_us: int | None
    rank: tuple[int, int, int]
    amounts: Amounts | None = None
    lease: str | None = None
    evicted: bool = False
    kept: dict[str, str] = field(default_factory=dict)
    used_us: int = 0

    @property
    def group(self) -> tuple[str, str]:
        """Requests of one source with one task id are replicas of it."""
        return self.id.partition("#")[0], self.task


class Books:
    """The clerk's tables. Every question is answered by going through them."""

    def __init__(self) -> None:
        """Start with empty tables."""
        self.pools: dict[str, dict[str, str]] = {}
        self.queues: dict[str, dict[str, Any]] = {}
        self.tree = Tree()
        self.hosts: dict[str, Host] = {}
        self.cards: dict[str, Card] = {}
        self.pieces: dict[str, Piece] = {}
        self.asked: dict[str, Asked] = {}
        self.plans: dict[str, Plan] = {}
        #: Lease -> unit -> thousandths and MiB.
        self.held: dict[str, dict[str, tuple[int, int]]] = {}
        #: Lease -> the nodes on which it was granted.
        self.where: dict[str, set[str]] = {}
        self.dirty: dict[str, dict[str, tuple[int, int]]] = {}
        self.stopping: set[str] = set()

    # -- who -------------------------------------------------------------------

    def request_of(self, lease: str) -> Asked:
        """Return the request that a live lease belongs to."""
        return self.asked[lease.rpartition("/")[0]]

    def holders(self, unit: str) -> dict[str, tuple[int, int]]:
        """Return the leases that hold a unit, and those that it is not clean after."""
        live = {lease: units[unit] for lease, units in self.held.items() if unit in units}
        return self.dirty.get(unit, {}) | live

    def staying(self, unit: str, gone: Collection[str]) -> dict[str, tuple[int, int]]:
        """Return who still has a unit when all that ends has ended, and ``gone`` too."""
        return {
            lease: units[unit]
            for lease, units in self.held.items()
            if unit in units and lease not in self.stopping and lease not in gone
        }

    def kept_for(self, unit: str) -> str | None:
        """Return the request for which a unit is kept."""
        return next((one.id for one in self.asked.values() if unit in one.kept), None)

    def live(self, group: tuple[str, str]) -> list[Asked]:
        """Return the requests of a task that run and were not told to stop."""
        return [
            one
            for one in self.asked.values()
            if one.group == group and one.lease is not None and one.lease not in self.stopping
        ]

    def holder(self, asked: Asked) -> str:
        """Return the quota that a request counts against."""
        return self.tree.holder(asked.tenant, asked.project)

    def usage(
        self, resource: str, without: Collection[str] = (), leaving: str | None = None
    ) -> Counter[str]:
        """Return what is used of a resource, by quota: leased or kept, and not evicted.

        ``leaving`` names the quota for which evicted leases that last count, too.
        """
        found: Counter[str] = Counter()
        for one in self.asked.values():
            holder = self.holder(one)
            if one.amounts is None or (one.lease or "") in without:
                continue
            if not one.evicted or holder == leaving:
                found[holder] += one.amounts.of(resource)
        return found

    # -- where -------------------------------------------------------------------

    def able(self, unit: str) -> bool:
        """Say whether anything may be placed on a device or slice, whoever has it."""
        piece = self.pieces.get(unit)
        if piece is not None and piece.shut:
            return False
        card = self.cards.get(unit if piece is None else piece.card)
        if card is None or card.shut or card.health != "healthy":
            return False
        host = self.hosts[card.node]
        if piece is None and (card.mig or any(one.card == unit for one in self.pieces.values())):
            return False
        return host.mode == "online" and not host.away

    def kinds(self, asked: Asked) -> set[Kind]:
        """Return the kinds of cards that would do."""
        ask = asked.ask
        found = set()
        for card in self.cards.values():
            pool = self.hosts[card.node].pool
            labels = self.pools.get(pool)
            if labels is None or ask.get("pool") not in (None, pool):
                continue
            if any(labels.get(name) != value for name, value in ask.get("labels", {}).items()):
                continue
            if ask.get("models") and card.model not in ask["models"]:
                continue
            if ask["mode"] == "mig" or card.mib >= ask.get("memory_mib", 0):
                found.add((pool, card.model, card.mib))
        return found

    def of_kind(self, kind: Kind) -> dict[str, list[str]]:
        """Return the cards of a kind by node."""
        found: dict[str, list[str]] = {}
        for uuid, card in self.cards.items():
            if (self.hosts[card.node].pool, card.model, card.mib) == kind and card.health != "gone":
                found.setdefault(card.node, []).append(uuid)
        return found

    def host_fits(
        self, node: str, asked: Asked, gone: Collection[str] = (), *, ended: bool
    ) -> bool:
        """Say whether a node has the CPU and memory beside; ``ended``: once what ends has ended."""
        host = self.hosts[node]
        cpu, memory = asked.cpu, asked.memory
        for lease, nodes in self.where.items():
            if lease in gone or (ended and lease in self.stopping):
                continue
            if node in nodes:
                other = self.request_of(lease)
                cpu, memory = cpu + other.cpu, memory + other.memory
        for other in self.asked.values():
            if other.id != asked.id and node in other.kept.values():
                cpu, memory = cpu + other.cpu, memory + other.memory
        return (not asked.cpu or host.cpu is None or cpu <= host.cpu) and (
            not asked.memory or host.memory is None or memory <= host.memory
        )

    def promised(self, node: str, asked: Asked) -> bool:
        """Say whether a node is planned for somebody who is before this one in line."""
        return any(
            node in plan.nodes and owner != asked.id and self.asked[owner].rank < asked.rank
            for owner, plan in self.plans.items()
        )

    def places(self, asked: Asked, gone: Collection[str]) -> Iterator[Amounts]:
        """Yield what each place would count for, once all that ends and ``gone`` has ended."""
        ask = asked.ask
        for kind in sorted(self.kinds(asked)):
            by_node = {
                node: uuids
                for node, uuids in self.of_kind(kind).items()
                if not self.promised(node, asked) and self.host_fits(node, asked, gone, ended=True)
            }
            if ask["mode"] == "whole":
                count, nodes = ask.get("count", 1), ask.get("nodes", 1)
                free = [
                    node
                    for node, uuids in by_node.items()
                    if sum(self._empty(uuid, asked, gone) for uuid in uuids) >= count
                ]
                if len(free) >= nodes:
                    much = count * nodes
                    yield Amounts(1000 * much, kind[1], "", much, kind[2] * much)
            elif ask["mode"] == "share":
                if any(
                    self._has_room(uuid, asked, gone)
                    for uuids in by_node.values()
                    for uuid in uuids
                ):
                    yield Amounts(ask["gpu_milli"], kind[1], "", 1, ask.get("memory_mib", 0))
            else:
                yield from self._slices(asked, kind, by_node, gone)

    def _free(self, unit: str, asked: Asked) -> bool:
        return self.able(unit) and self.kept_for(unit) in (None, asked.id)

    def _empty(self, uuid: str, asked: Asked, gone: Collection[str]) -> bool:
        return self._free(uuid, asked) and not self.staying(uuid, gone)

    def _has_room(self, uuid: str, asked: Asked, gone: Collection[str]) -> bool:
        held = self.staying(uuid, gone).values()
        milli = sum(one for one, _ in held) + asked.ask["gpu_milli"]
        mib = sum(one for _, one in held) + asked.ask.get("memory_mib", 0)
        return self._free(uuid, asked) and milli <= 1000 and mib <= self.cards[uuid].mib

    def _slices(
        self, asked: Asked, kind: Kind, by_node: dict[str, list[str]], gone: Collection[str]
    ) -> Iterator[Amounts]:
        count = asked.ask.get("count", 1)
        charges: dict[int, list[str]] = {}
        for name, piece in self.pieces.items():
            card = self.cards[piece.card]
            if piece.profile != asked.ask["profile"] or piece.card not in by_node.get(
                card.node, ()
            ):
                continue
            if (
                self._free(name, asked)
                and not self.staying(name, gone)
                # A card that is still whole somebody's has no slice to give.
                and not self.holders(piece.card)
            ):
                charges.setdefault(self.slice_milli(name), []).append(name)
        for milli, names in charges.items():
            if len(names) >= count:
                mib = sum(sorted(self.pieces[name].mib for name in names)[:count])
                yield Amounts(milli * count, kind[1], asked.ask["profile"], count, mib)

    def slice_milli(self, name: str) -> int:
        """Return what a slice counts for: its part of the card's compute slices, rounded up."""
        piece = self.pieces[name]
        return min(1000, -(-1000 * piece.parts // max(1, self.cards[piece.card].parts)))
