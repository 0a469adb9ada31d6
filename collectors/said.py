"""What an agent says of its node, and who it is to the log: of real nodes and of light ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ledger.wire import input_entry

if TYPE_CHECKING:
    from ledger.log.port import Entry

__all__ = ["Said", "agent_source"]


def agent_source(node: str) -> str:
    """Return the CloudEvents source of a node's agent."""
    return f"/nodes/{node}/agent"


@dataclass(frozen=True, slots=True)
class Said:
    """One observation or heartbeat: its type, its CloudEvents id, and its data."""

    type: str
    id: str
    data: dict[str, Any]

    def entry(self, key: str, node: str) -> Entry:
        """Return the record for its topic: ``key`` is the cell, or the node for heartbeats."""
        return input_entry(key, self.type, agent_source(node), self.id, self.data)
