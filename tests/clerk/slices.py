"""Partition changes as the clerk sees them: nothing overlaps, nothing leaks, what is used stays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.clerk.books import Books, Piece

if TYPE_CHECKING:
    from ledger.core.state import State
    from tests.clerk.asked import Asked
    from tests.clerk.books import Kind

__all__ = ["Slices"]


class Slices(Books):
    """Follows slices and the orders that make and destroy them (A1-A3, C09, C29)."""

    def __init__(self) -> None:
        """Start with none ordered."""
        super().__init__()
        #: Open partition orders.
        self.changing: dict[str, dict[str, Any]] = {}

    def on_card(self, uuid: str) -> dict[str, Piece]:
        """Return the slices of a card."""
        return {name: piece for name, piece in self.pieces.items() if piece.card == uuid}

    def _change_ordered(self, event: dict[str, Any]) -> None:
        """C09: nothing that is used is destroyed, and nobody changes what the pool forbids."""
        (uuid,) = event["units"]
        card = self.cards[uuid]
        assert card.node == event["node"], f"{uuid} is elsewhere"
        assert card.mig, f"{uuid} is not in MIG mode"
        assert not card.pending, f"{uuid} waits for a reboot"
        assert card.profiles, f"{uuid} cannot be changed"
        assert not self.holders(uuid), f"C09: {uuid} is held whole"
        assert event["steps"], "an order of nothing"
        destroyed = 0
        for step in event["steps"]:
            if step["do"] != "destroy":
                continue
            destroyed += 1
            found = [
                name
                for name, piece in self.on_card(uuid).items()
                if piece.uuid == step["mig_uuid"] and piece.start == step["start"]
            ]
            assert len(found) == 1, f"{step['mig_uuid']} is {len(found)} times on {uuid}"
            assert not self.holders(found[0]), f"C09: {found[0]} is in use"
            assert self.kept_for(found[0]) is None, f"C09: {found[0]} is kept"
            assert not self.pieces[found[0]].order, f"{found[0]} is changed twice"
            self.pieces[found[0]].order = event["order"]
        wanted = self.asked.get(event.get("request") or "")
        if wanted is not None:
            policy = self.pools.get(self.hosts[card.node].pool, {}).get("partition", "never")
            assert policy != "never", f"{uuid} is not to be changed"
            assert not destroyed or policy == "relayout", f"nothing is to be destroyed on {uuid}"
        self.changing[event["order"]] = event

    def _slice_ordered(self, event: dict[str, Any], _now: int) -> None:
        """A2: a place is promised that is legal beside all that is or comes there."""
        name, uuid, order = event["slice"], event["device"], event["order"]
        assert name not in self.pieces, f"{name} twice"
        assert order in self.changing, f"{name} of no order"
        piece = Piece(
            uuid, event["profile"], event["compute_slices"], event["memory_mib"],
            event["start"], event["size"], order=order,
        )  # fmt: skip
        card = self.cards[uuid]
        size, compute, mib, starts, most = card.profiles[piece.profile]
        assert (size, compute, mib) == (piece.size, piece.parts, piece.mib), f"{name} is no such"
        assert piece.start in starts, f"A2: {piece.profile} cannot be at {piece.start}"
        beside = [one for one in self.on_card(uuid).values() if not one.uuid or one.order != order]
        for one in beside:
            assert not one.places & piece.places, f"A2: {name} is promised an occupied place"
        alike = sum(one.profile == piece.profile for one in beside) + 1
        assert not most or alike <= most, f"A2: {alike} of {piece.profile} on {uuid}"
        used = sum(one.parts for one in beside) + piece.parts
        assert used <= card.parts, f"A2: {used} of {card.parts} compute slices on {uuid}"
        self.pieces[name] = piece

    def _slice_present(self, event: dict[str, Any], _now: int) -> None:
        name = event["slice"]
        known = self.pieces.get(name)
        if known is not None:
            assert known.order, f"{name} is there already"
            assert (known.card, known.profile, known.start) == (
                event["device"], event["profile"], event["start"],
            ), f"{name} is not what was ordered"  # fmt: skip
        self.pieces[name] = Piece(
            event["device"], event["profile"], event["compute_slices"], event["memory_mib"],
            event["start"], event["size"], event["mig_uuid"], event["gi"],
        )  # fmt: skip

    def _slice_gone(self, event: dict[str, Any], _now: int) -> None:
        del self.pieces[event["slice"]]

    def alone(self, unit: str) -> str | None:
        """Say what overlaps a slice that is to be given, or None (A2)."""
        mine = self.pieces[unit]
        for name, piece in self.on_card(mine.card).items():
            same = name == unit or (piece.uuid and piece.gi == mine.gi)
            used = self.holders(name) or self.kept_for(name) or not piece.uuid
            if not same and used and piece.places & mine.places:
                return f"{unit} overlaps {name}"
        return None

    def makeable(self, uuid: str, profile: str) -> int:
        """Return how many slices of a profile an idle card could have."""
        card = self.cards[uuid]
        if profile not in card.profiles or not card.mig or card.pending or card.shut:
            return 0
        if any(piece.shut or piece.order for piece in self.on_card(uuid).values()):
            return 0
        _, compute, _, starts, most = card.profiles[profile]
        return min(most or len(starts), len(starts), card.parts // max(1, compute))

    def could_be_made(self, asked: Asked) -> bool:
        """Say whether idle cards and what else is there could give all slices asked, if any."""
        ask = asked.ask
        if ask["mode"] != "mig":
            return False
        count = ask.get("count", 1)
        return any(
            self._most(asked, kind, profile, milli) >= count
            for kind in self.kinds(asked)
            for profile, milli in self.profile_for(asked, kind)
        )

    def _most(self, asked: Asked, kind: Kind, profile: str, milli: int) -> int:
        """Return how many slices the idle cards of a kind give, on nodes that may be used."""
        by_domain: dict[str | None, int] = {}
        for node, uuids in self.of_kind(kind).items():
            if not self.at.all_serve(node, uuids, asked):
                continue
            if not self.host_fits(node, asked, ended=True):
                continue
            many = 0
            for uuid in uuids:
                made = self.makeable(uuid, profile)
                there = sum(
                    piece.profile == profile and self.able(name) and self.slice_milli(name) == milli
                    for name, piece in self.on_card(uuid).items()
                )
                many += made or there
            spread = asked.terms.spread
            at = self.at.domain(node, spread) if spread else node
            by_domain[at] = max(many, by_domain.get(at, 0))
        return sum(by_domain.values())

    def look_at_slices(self, closed: set[str]) -> None:
        """After a decision: what a closed order has not made is promised to nobody."""
        for name, piece in self.pieces.items():
            if not piece.uuid:
                assert piece.order not in closed, f"{name} is left of {piece.order}"
                assert piece.order in self.changing, f"{name} is of no open order"

    def compare_slices(self, state: State) -> None:
        """Hold the slices and the open changes against the ledger's."""
        mine = {
            name: (piece.card, piece.profile, piece.start, piece.uuid, piece.shut)
            for name, piece in self.pieces.items()
        }
        assert mine == {
            one.id: (one.device, one.profile, one.start, one.mig_uuid, one.quarantine is not None)
            for one in state.slices.values()
        }
        open_now = {one.id for one in state.orders.values() if one.kind == "partition"}
        assert open_now == set(self.changing)
