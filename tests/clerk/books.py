"""What is where, who holds it, who asks, and where something could run: by looking at all of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.clerk.tree import Amounts, Tree
from tests.clerk.where import Where

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from tests.clerk.asked import Asked, Held, Vgpu

__all__ = ["Books", "Card", "Host", "Kind", "Piece", "Plan"]

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
    driver: str = ""
    labels: dict[str, str] = field(default_factory=dict)


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
    pending: bool = False
    #: Profile -> (size, compute slices, MiB, starts, most at once), where it can be changed.
    profiles: dict[str, tuple[int, int, int, tuple[int, ...], int]] = field(default_factory=dict)
    architecture: str = ""
    capability: str = ""
    nvlink: str = ""
    encoders: int = 0
    decoders: int = 0
    iommu: str = ""
    pci: str = ""
    vgpus: tuple[Vgpu, ...] = ()


@dataclass
class Piece:
    """A MIG slice; without ``uuid`` it is ordered, and not there yet.

    ``order`` makes it, or is to destroy it, or was and failed.
    """

    card: str
    profile: str
    parts: int
    mib: int
    start: int
    size: int
    uuid: str = ""
    gi: int = 0
    order: str = ""
    shut: bool = False

    @property
    def places(self) -> set[int]:
        """Where on the card it is."""
        return set(range(self.start, self.start + self.size))


@dataclass
class Plan:
    """Nodes promised to a request that waits."""

    nodes: list[str]
    start_us: int | None


class Books:
    """The clerk's tables. Every question is answered by going through them."""

    def __init__(self) -> None:
        """Start with empty tables."""
        self.pools: dict[str, dict[str, Any]] = {}
        self.queues: dict[str, dict[str, Any]] = {}
        self.tree = Tree()
        self.hosts: dict[str, Host] = {}
        self.cards: dict[str, Card] = {}
        self.pieces: dict[str, Piece] = {}
        self.asked: dict[str, Asked] = {}
        self.plans: dict[str, Plan] = {}
        #: Interrupted gang that waits -> node -> its units there, kept through repair.
        self.repairs: dict[str, dict[str, list[str]]] = {}
        #: Lease -> unit -> thousandths and MiB.
        self.held: dict[str, dict[str, Held]] = {}
        #: Lease -> the nodes on which it was granted.
        self.where: dict[str, set[str]] = {}
        self.dirty: dict[str, dict[str, Held]] = {}
        self.stopping: set[str] = set()
        self.licences: dict[str, int] = {}
        #: What versions of models need; and templates.
        self.rules: dict[str, dict[str, Any]] = {}
        self.templates: dict[str, dict[str, Any]] = {}
        #: (from, to) -> the latest measurement.
        self.links: dict[tuple[str, str], dict[str, Any]] = {}
        #: Lease -> when it is to end.
        self.due: dict[str, int | None] = {}
        self.now_us = 0
        self.at = Where(self)

    # -- who -------------------------------------------------------------------

    def request_of(self, lease: str) -> Asked:
        """Return the request that a live lease belongs to."""
        return self.asked[lease.rpartition("/")[0]]

    def holders(self, unit: str) -> dict[str, Held]:
        """Return the leases that hold a unit, and those that it is not clean after."""
        live = {lease: units[unit] for lease, units in self.held.items() if unit in units}
        return self.dirty.get(unit, {}) | live

    def staying(self, unit: str, gone: Collection[str]) -> dict[str, Held]:
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
        if piece is not None and (piece.shut or (piece.uuid and piece.order)):
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
            if pool not in self.pools or ask.get("pool") not in (None, pool):
                continue
            labels = self.pools[pool]["labels"]
            if not self.at.pool_serves(pool, asked):
                continue
            if any(labels.get(name) != value for name, value in ask.get("labels", {}).items()):
                continue
            if ask.get("models") and card.model not in ask["models"]:
                continue
            if ask["mode"] == "mig" or card.mib >= ask.get("memory_mib", 0):
                found.add((pool, card.model, card.mib))
        return found

    def of_kind(self, kind: Kind) -> dict[str, list[str]]:
        """Return the cards of a kind that are there, by node."""
        found: dict[str, list[str]] = {}
        for uuid, card in self.cards.items():
            same = (self.hosts[card.node].pool, card.model, card.mib) == kind
            if same and card.health != "gone":
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

    def admits(self, node: str, asked: Asked, *, doubt: bool) -> bool:
        """Say whether reservations let a request on a node: there are none in these books."""
        del node, asked, doubt
        return True

    def promised(self, node: str, asked: Asked) -> bool:
        """Say whether a node is planned for somebody who is before this one in line."""
        return any(
            node in plan.nodes and owner != asked.id and self.asked[owner].rank < asked.rank
            for owner, plan in self.plans.items()
        )

    def mended(self, node: str, uuids: list[str], asked: Asked) -> bool:
        """Say whether too little would be left for gangs before this one, in repair (A10).

        ``uuids`` are the node's cards of a kind; what already ends is left, too.
        """
        needed = [
            unit
            for owner, parts in self.repairs.items()
            if owner != asked.id and self.asked[owner].rank < asked.rank
            for unit in parts.get(node, ())
        ]
        if asked.ask["mode"] == "mig":
            return bool(needed)
        kept = sum(unit in uuids and self.able(unit) for unit in needed)
        taken = 1 if asked.ask["mode"] == "share" else asked.ask.get("count", 1)
        free = sum(self._free(uuid, asked) and not self.staying(uuid, ()) for uuid in uuids)
        return 0 < kept > free - taken

    def places(
        self, asked: Asked, gone: Collection[str], *, doubt: bool = True
    ) -> Iterator[Amounts]:
        """Yield what each place would count for, once all that ends and ``gone`` has ended.

        ``doubt``: also where it takes counting whether reservations, and gangs whose place
        is kept through repair, leave enough.
        """
        ask = asked.ask
        for kind in sorted(self.kinds(asked)):
            known = self.of_kind(kind)
            by_node = {
                node: uuids
                for node, uuids in self.of_kind(kind).items()
                if not self.promised(node, asked)
                and self.admits(node, asked, doubt=doubt)
                and (doubt or not self.mended(node, uuids, asked))
                and self.at.all_serve(node, uuids, asked)
                and self.at.reached(node, asked, self.now_us)
                and self.host_fits(node, asked, gone, ended=True)
            }
            if asked.terms.spread:
                taken = self.at.domains_taken(asked)
                spread = asked.terms.spread
                by_node = {n: one for n, one in by_node.items()
                           if self.at.domain(n, spread) not in taken}  # fmt: skip
            if ask["mode"] == "whole":
                if self._wholes(asked, by_node, known, gone):
                    much = ask.get("count", 1) * ask.get("nodes", 1)
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

    def _wholes(
        self,
        asked: Asked,
        by_node: dict[str, list[str]],
        alike: dict[str, list[str]],
        gone: Collection[str],
    ) -> bool:
        """Say whether so many nodes have so many cards, as the terms want them."""
        count, nodes = asked.ask.get("count", 1), asked.ask.get("nodes", 1)
        free = {
            node: [uuid for uuid in uuids if self._empty(uuid, asked, gone)]
            for node, uuids in by_node.items()
        }
        if asked.terms.delivery == "passthrough":
            return any(self.at.group_sums(node, set(uuids), count) for node, uuids in free.items())
        if not asked.terms.nvlink:
            enough = [node for node, uuids in free.items() if len(uuids) >= count]
            return bool(self._domains(asked, enough) >= nodes)
        able: dict[str, set[str]] = {}
        for node, uuids in free.items():
            for name, many in Counter(self.cards[uuid].nvlink for uuid in uuids).items():
                if name and many >= count:
                    able.setdefault(name, set()).add(node)
        wide = self.at.wide(self.cards[uuid] for uuids in alike.values() for uuid in uuids)
        sets = [*able.values()] if wide else [set().union(*able.values())]
        return bool(max((self._domains(asked, one) for one in sets), default=0) >= nodes)

    def _domains(self, asked: Asked, nodes: Iterable[str]) -> int:
        """Count nodes, or the failure domains they are in where they are to be apart."""
        spread = asked.terms.spread
        return len({self.at.domain(node, spread) if spread else node for node in nodes})

    def _free(self, unit: str, asked: Asked) -> bool:
        return self.able(unit) and self.kept_for(unit) in (None, asked.id)

    def _empty(self, uuid: str, asked: Asked, gone: Collection[str]) -> bool:
        return (
            self._free(uuid, asked)
            and not self.staying(uuid, gone)
            and self.sessions_left(uuid, (), asked)
        )

    def _has_room(self, uuid: str, asked: Asked, gone: Collection[str]) -> bool:
        return self._free(uuid, asked) and self.has_room(uuid, self.staying(uuid, gone), asked)

    def has_room(self, uuid: str, there: dict[str, Held], asked: Asked) -> bool:
        """Say whether a share, or an instance, has room beside what is there (A9, A13)."""
        more = asked.held
        milli = sum(one.milli for one in there.values()) + more.milli
        mib = sum(one.mib for one in there.values()) + more.mib
        if milli > 1000 or mib > self.memory_of(uuid):
            return False
        if any(one.vgpu != more.vgpu for one in there.values()):
            return False
        vgpu = asked.terms.vgpu
        if vgpu is not None:
            return vgpu in self.cards[uuid].vgpus and len(there) < vgpu.most
        return self.sessions_left(uuid, there.values(), asked)

    def sessions_left(self, uuid: str, there: Iterable[Held], asked: Asked) -> bool:
        """Say whether a card has the media sessions free that are asked of it (A13)."""
        card, terms = self.cards[uuid], asked.terms
        used = [*there]
        encoders = sum(one.encoders for one in used) + terms.encoders
        decoders = sum(one.decoders for one in used) + terms.decoders
        return (not terms.encoders or encoders <= card.encoders) and (
            not terms.decoders or decoders <= card.decoders
        )

    def memory_of(self, uuid: str) -> int:
        """Return what shares of a card may sum to: its memory, times its pool's factor (A9)."""
        card = self.cards[uuid]
        pool = self.pools.get(self.hosts[card.node].pool, {})
        return card.mib * int(pool.get("memory_overcommit_permille", 1000)) // 1000

    def _slices(
        self, asked: Asked, kind: Kind, by_node: dict[str, list[str]], gone: Collection[str]
    ) -> Iterator[Amounts]:
        count = asked.ask.get("count", 1)
        wanted = self.profile_for(asked, kind)
        charges: dict[tuple[str, int], list[str]] = {}
        for name, piece in self.pieces.items():
            card = self.cards[piece.card]
            if piece.order or piece.card not in by_node.get(card.node, ()):
                continue
            if (
                self._free(name, asked)
                and not self.staying(name, gone)
                # A card that is still whole somebody's has no slice to give.
                and not self.holders(piece.card)
            ):
                charges.setdefault((piece.profile, self.slice_milli(name)), []).append(name)
        for (profile, milli), names in charges.items():
            if (profile, milli) in wanted and len(names) >= count:
                mib = sum(sorted(self.pieces[name].mib for name in names)[:count])
                yield Amounts(milli * count, kind[1], profile, count, mib)

    def profile_for(self, asked: Asked, kind: Kind) -> set[tuple[str, int]]:
        """Return which slices of a kind of card will do, as (profile, thousandths).

        Who asks for sizes gets the smallest profile that gives as much, of what there is
        or could be made.
        """
        sizes: dict[tuple[str, int], set[tuple[int, int]]] = {}
        offers = self.pools[kind[0]].get("partition", "never") != "never"
        for uuids in self.of_kind(kind).values():
            for uuid in uuids:
                card = self.cards[uuid]
                for name, piece in self.pieces.items():
                    if piece.card == uuid:
                        key = (piece.profile, self.slice_milli(name))
                        sizes.setdefault(key, set()).add((piece.mib, piece.parts))
                for name, (_, parts, mib, _, _) in card.profiles.items() if offers else ():
                    if card.mig:
                        milli = -(-1000 * parts // max(1, card.parts))
                        sizes.setdefault((name, milli), set()).add((mib, parts))
        profile = asked.ask.get("profile")
        if profile is not None:
            return {key for key in sizes if key[0] == profile}
        mib, parts = asked.ask.get("memory_mib", 0), asked.ask.get("compute_slices", 0)
        able = [
            (milli, max(found), name)
            for (name, milli), found in sizes.items()
            if all(one >= mib and many >= parts for one, many in found)
        ]
        return {(min(able)[2], min(able)[0])} if able else set()

    def slice_milli(self, name: str) -> int:
        """Return what a slice counts for: its part of the card's compute slices, rounded up."""
        piece = self.pieces[name]
        return min(1000, -(-1000 * piece.parts // max(1, self.cards[piece.card].parts)))
