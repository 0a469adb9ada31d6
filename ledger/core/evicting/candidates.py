"""A lease that may have to end for another, and a place that would be there without some."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ledger.core.placing.placement import host_fits

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ledger.core.state import Need, Node, State

__all__ = ["Candidate", "Room", "ending", "host_would_fit"]


class Candidate(NamedTuple):
    """A lease that may be evicted: the rule, where it comes in order, and of which replicas.

    ``spare`` is how many of its ``group`` may go. ``owed``: only to a request within
    what is nominally its own.
    """

    lease: str
    rule: str
    order: tuple[bool, int, int, str]
    group: tuple[str, str] | None
    spare: int
    owed: bool = False


class Room(NamedTuple):
    """A node (or device, or several nodes' slices) that would do, and the leases that must end."""

    victims: tuple[str, ...]
    parts: tuple[tuple[str, tuple[str, ...]], ...]


def host_would_fit(state: State, node: Node, need: Need, victims: Iterable[str]) -> bool:
    """Say whether the node has the CPU and memory beside, once the victims have ended.

    What ends already costs nothing here either.
    """
    if not need.cpu_milli and not need.host_memory_mib:
        return True
    gone = set(victims)
    if host_fits(state, node, need, ended=gone):
        return True
    if node.cpu_milli is not None and need.cpu_milli > node.cpu_milli:
        return False
    return host_fits(state, node, need, ended={*gone, *ending(state)})


def ending(state: State) -> list[str]:
    """Return the leases that were told to stop."""
    return [name for name, lease in state.leases.items() if lease.state == "stopping"]
