"""What nodes measure of the links between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.core.decisions.orders import fenced

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.core.decisions.turn import Answer, Input, Turn
    from schemas.observations import LinkEvidence

__all__ = ["LINKS"]


def _evidence(turn: Turn, given: Input) -> Answer:
    """Put a measurement on record: it takes the place of the one before."""
    refusal = fenced(turn.state, given)
    if refusal is not None:
        return refusal
    fact: LinkEvidence = given.data
    if fact.to_node not in turn.state.nodes:
        return "unknown_node", {"node": fact.to_node}
    turn.emit(
        {
            "type": "link.measured",
            "evidence": turn.new_id("e"),
            "from_node": fact.node,
            "to_node": fact.to_node,
            "p99_us": fact.p99_us,
            "bandwidth_mbps": fact.bandwidth_mbps,
            "tool": fact.tool,
            "version": fact.version,
            "valid_until_us": turn.now_us + fact.valid_s * 1_000_000,
        }
    )
    return "observed", {}


LINKS: dict[str, Callable[[Turn, Input], Answer]] = {"link.evidence": _evidence}
