"""How a node's agent says something: kept in its journal first, with both its clocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from collectors.agent.ledger_clock import is_past
from schemas.observations import NodeInventory

if TYPE_CHECKING:
    from collectors.agent.journal import Journal, OrderRow, Stamp
    from collectors.said import Said

__all__ = ["Teller", "keep_told", "last_told"]

#: How long after a change of partitions failed its node tells all it has once more, in
#: microseconds, and again after twice as long each time. Its ledger plans such a device again by
#: what is told no sooner than a minute after the second failure in a row, two after the third
#: (`ledger.core.decisions.partition.reopen`): it is told soon after each of those.
_AGAIN_US = 65_000_000

#: From which difference between the two clocks on the wall clock was set meanwhile (C43).
_STEPPED_US = 1_000_000


class Teller:
    """Speaks for one incarnation of a node."""

    def __init__(self, journal: Journal, node: str, incarnation: str) -> None:
        """Put what is said into this journal."""
        self.node = node
        self.incarnation = incarnation
        self._journal = journal

    def say(self, kind: str, **data: object) -> Said:
        """Put an observation among what is to be sent."""
        about = {
            "node": self.node,
            "incarnation": self.incarnation,
            "node_time_us": self._journal.clock.wall_us(),
        }
        return self._journal.say(kind, about | data)

    def inventory(self, now: NodeInventory) -> None:
        """Say the whole inventory, as of this start of the agent."""
        about = {"node", "incarnation", "node_time_us", "epoch"}
        plain = now.model_dump(mode="json", exclude=about, exclude_none=True)
        self.say("node.inventory", **plain, epoch=self._journal.fact("epoch"))

    def again_us(self) -> int | None:
        """Return when the inventory is to be told again for a change that failed; None: never.

        By the steady clock, like the last failure of this boot that the journal has.
        """
        failed_us = self._journal.fact("failed")
        if failed_us is None:
            return None
        now_us, wait_us = self._journal.clock.steady_us(), _AGAIN_US
        while failed_us + wait_us <= now_us:
            wait_us *= 2
        return int(failed_us + wait_us)

    def took_us(self, since: Stamp) -> int:
        """Return how long it is since then, by the steady clock of this boot."""
        return max(0, self._journal.clock.steady_us() - since.steady_us)

    def done(self, row: OrderRow, evidence: dict[str, Any], **more: object) -> None:
        """Answer an order that was carried out."""
        self._answer(row, "order.done", evidence, took_us=self.took_us(row.heard), **more)

    def fail(self, row: OrderRow, reason: str, evidence: dict[str, Any]) -> None:
        """Answer an order that was refused or could not be carried out; ``reason`` is a code."""
        self._answer(row, "order.failed", evidence, reason=reason)

    def _answer(self, row: OrderRow, kind: str, evidence: dict[str, Any], **more: object) -> None:
        with self._journal.transaction():
            due_us = row.plain.get("due_us")
            if row.kind == "partition" and (
                kind == "order.failed" or is_past(self._journal, due_us)
            ):
                # What is answered too late has failed, too, for the ledger.
                self._journal.keep("failed", self._journal.clock.steady_us())
            whole = evidence | self._clock_step(row.heard)
            said = self.say(kind, order=row.id, evidence=whole, **more)
            self._journal.close_order(row.id, said)

    def _clock_step(self, since: Stamp) -> dict[str, int]:
        """Say by how much the wall clock was set while an order was carried out."""
        now = self._journal.stamp()
        step_us = (now.wall_us - since.wall_us) - (now.steady_us - since.steady_us)
        return {"clock_step_us": step_us} if abs(step_us) >= _STEPPED_US else {}


def last_told(journal: Journal) -> NodeInventory | None:
    """Return the inventory as this boot has told it last, None: not yet."""
    plain = journal.fact("inventory")
    return None if plain is None else NodeInventory.model_validate(plain, strict=False)


def keep_told(journal: Journal, now: NodeInventory) -> None:
    """Keep the inventory as it is told now."""
    journal.keep("inventory", now.model_dump(mode="json"))
