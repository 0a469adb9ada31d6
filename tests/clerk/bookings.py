"""Reservations ahead, as the clerk sees them: nobody else is there (A15)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.clerk.slices import Slices

if TYPE_CHECKING:
    from tests.clerk.asked import Asked

__all__ = ["Bookings"]

_SHORT = "reservation_short"


class Bookings(Slices):
    """Follows reservations, and who is within them."""

    def __init__(self) -> None:
        """Start with none."""
        super().__init__()
        self.bookings: dict[str, dict[str, Any]] = {}
        #: Those of which an alarm says that their nodes cannot serve them.
        self.short: set[str] = set()

    def _reservation_applied(self, event: dict[str, Any], _now: int) -> None:
        assert len(set(event["chosen"])) == event["nodes"]
        assert event["end_us"] > self.now_us, "its time is over"
        self.bookings[event["reservation"]] = dict(event)
        self.short.discard(event["reservation"])

    def _reservation_moved(self, event: dict[str, Any], _now: int) -> None:
        changed = {name: event[name] for name in ("chosen", "model", "device_mib")}
        self.bookings[event["reservation"]] |= changed
        self.short.discard(event["reservation"])

    def _reservation_cancelled(self, event: dict[str, Any], _now: int) -> None:
        self.bookings[event["reservation"]]["cancelled"] = True

    def _reservation_ended(self, event: dict[str, Any], _now: int) -> None:
        name = event["reservation"]
        one = self.bookings.pop(name)
        assert one.get("cancelled") or one["end_us"] <= self.now_us, f"{name} ends too soon"
        self.short.discard(name)

    def _alarm_raised(self, event: dict[str, Any], _now: int) -> None:
        if event["code"] == _SHORT:
            self.short.add(event["about"])

    # -- who is within, and who is not ----------------------------------------------

    def within(self, asked: Asked) -> dict[str, Any] | None:
        """Return the reservation within which a request runs, as long as there is one."""
        return self.bookings.get(asked.reservation or "")

    def overlaps(self, node: str, asked: Asked) -> bool:
        """Say whether others have reserved something of a node before the request would end."""
        until = None if asked.run_us is None else self.now_us + asked.run_us - asked.used_us
        return any(
            node in one["chosen"]
            and name != asked.reservation
            and (until is None or one["start_us"] < until)
            for name, one in self.bookings.items()
        )

    def admits(self, node: str, asked: Asked, *, doubt: bool) -> bool:
        """Say whether reservations let a request on a node; ``doubt`` where it takes counting."""
        if not self.bookings:
            return True
        mine = self.within(asked)
        if mine is not None:
            return doubt and node in mine["chosen"]
        return doubt or not self.overlaps(node, asked)

    def look_at_entry(self, asked: Asked, event: dict[str, Any]) -> None:
        """Whoever names a reservation runs in its time, at its nodes, and for its tenant."""
        one = self.within(asked)
        if one is None:
            return
        name = asked.reservation
        assert asked.tenant == one["tenant"], f"{asked.id} in {name} of {one['tenant']}"
        assert one["start_us"] <= self.now_us < one["end_us"], f"A15: {name} is not open"
        assert not one.get("cancelled"), f"A15: {name} is cancelled"
        assert event["due_us"] <= one["end_us"], f"A15: {asked.id} outlasts {name}"
        for part in event["parts"]:
            assert part["node"] in one["chosen"], f"A15: {name} has nothing on {part['node']}"
            assert all(self._of(one, unit) for unit in part["units"]), f"A15: not of {name}"
            used = self._used(name or "", part["node"]) | set(part["units"])
            assert len(used) <= one["count"], f"A15: {len(used)} of {one['count']} in {name}"

    def _used(self, name: str, node: str) -> set[str]:
        """Return the cards of a node that are used within a reservation, now, and not stopping."""
        return {
            unit
            for lease, units in self.held.items()
            if lease not in self.stopping and self.request_of(lease).reservation == name
            for unit in units
            if self.cards[unit].node == node
            and self._of(self.bookings[name], unit)
            and self.taken_whole(unit, name)
        }

    def _of(self, booking: dict[str, Any], unit: str) -> bool:
        """Say whether the card is of the kind that is reserved."""
        card = self.cards[unit]
        return (card.model, card.mib) == (booking["model"], booking["device_mib"])

    def taken_whole(self, unit: str, name: str) -> bool:
        """Say whether only leases within the reservation have the card."""
        mine = [lease for lease in self.holders(unit) if lease in self.held]
        return all(self.request_of(lease).reservation == name for lease in mine)

    def look_at_bookings(self) -> None:
        """A15: enough of what is reserved is not others', from its start on, or now."""
        for name, one in self.bookings.items():
            if name not in self.short and not one.get("cancelled"):
                for node in one["chosen"]:
                    self._enough(node, one)

    def _enough(self, node: str, booking: dict[str, Any]) -> None:
        at_us = max(booking["start_us"], self.now_us)
        kind = (booking["model"], booking["device_mib"])
        active = {
            name: one["count"]
            for name, one in self.bookings.items()
            if node in one["chosen"]
            and (one["model"], one["device_mib"]) == kind
            and one["start_us"] <= at_us < max(one["end_us"], self.now_us + 1)
            and name not in self.short
            and not one.get("cancelled")
        }
        free = 0
        for uuid, card in self.cards.items():
            if card.node == node:
                theirs, mine = self._had_by(uuid, at_us, active)
                # What runs within it goes on, whatever its node or card is to do next.
                left = self.able(uuid) and (card.model, card.mib) == kind
                free += not theirs and (mine or left)
        needed = sum(active.values())
        assert free >= needed, f"A15: {free} of {needed} are left on {node} for {sorted(active)}"

    def _had_by(self, uuid: str, at_us: int, active: dict[str, int]) -> tuple[bool, bool]:
        """Say whether others have the card at an instant, and whether one of these has."""
        theirs = mine = False
        owner = self.kept_for(uuid)
        if owner is not None:
            # One that has a longest run is looked at again when its place is given.
            asked = self.asked[owner]
            theirs = asked.run_us is None and asked.reservation not in active
        for lease in self.holders(uuid):
            due_us = self.due.get(lease)
            over = due_us is not None and due_us <= at_us
            if lease in self.held and lease not in self.stopping and not over:
                inside = self.request_of(lease).reservation in active
                theirs, mine = theirs or not inside, mine or inside
        return theirs, mine
