"""Which nodes have fallen silent, and which are heard again. No I/O, no clock of its own.

Heartbeats never reach the decision path (DESIGN 2): only the change from heard
to silent and back becomes an observation, which the ledger then judges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ledger.core.state import Node, State

__all__ = ["Liveness", "Verdict"]

#: States in which a node is expected to be heard.
_EXPECTED = frozenset({"online", "draining", "maintenance"})

#: A heartbeat of an incarnation that the ledger does not know is forgotten after so many limits.
_FORGET_LIMITS = 10


class Verdict(NamedTuple):
    """An observation to be written: the cell, ``node.silent`` or ``node.back``, and its data."""

    cell: str
    type: str
    data: dict[str, Any]


class Liveness:
    """What has been heard of the nodes, and since when anybody listens.

    ``limit_us`` is how long a node may go unheard, ``repeat_us`` how long to wait
    for the ledger's state to follow a verdict before it is given once more.
    """

    def __init__(self, limit_us: int, *, repeat_us: int = 10_000_000) -> None:
        """Hear nothing yet: `listen_from` says when listening begins."""
        self._limit_us = limit_us
        self._repeat_us = repeat_us
        self._since_us: int | None = None
        #: (cell, node, incarnation) -> append time of the latest heartbeat, µs.
        self._heard: dict[tuple[str, str, str], int] = {}
        #: (cell, node) -> the verdict given last and when, µs.
        self._given: dict[tuple[str, str], tuple[str, int]] = {}
        #: Cell -> when its next node falls silent, as the last look found it, µs.
        self._next_us: dict[str, int | None] = {}

    def listen_from(self, now_us: int) -> None:
        """Count silence from ``now_us`` at the earliest: before it nobody was listening.

        Called at the start, and again after the log could not be read: what the
        nodes said or could not say in between is no evidence of silence.
        """
        self._since_us = now_us

    def heard(self, cell: str, node: str, incarnation: str, at_us: int) -> None:
        """Note a heartbeat with the log's append time (UTC µs)."""
        key = (cell, node, incarnation)
        self._heard[key] = max(at_us, self._heard.get(key, 0))

    def verdicts(self, cells: Mapping[str, State], now_us: int) -> list[Verdict]:
        """Return the changes that ``cells`` do not know of yet, in order of cell and node.

        Each is given once, until the state has followed or the repeat interval
        has passed. ``now_us`` is the time up to which all heartbeats were heard.
        The same pass over the nodes finds what `next_us` tells.
        """
        if self._since_us is None:
            return []
        self._forget(now_us)
        return [
            verdict
            for cell in sorted(cells)
            for verdict in self._look(cells[cell], cell, self._since_us, now_us)
        ]

    def next_us(self, cells: Iterable[str]) -> int | None:
        """Return when the next node falls silent, if it is not heard until then (UTC µs).

        As of the last `verdicts`. Of nodes that were past their limit by then the verdict is given.
        """
        dues = [due for cell in cells if (due := self._next_us.get(cell)) is not None]
        return min(dues, default=None)

    def _look(self, state: State, cell: str, since_us: int, now_us: int) -> Iterator[Verdict]:
        next_us: int | None = None
        for name, node in sorted(state.nodes.items()):
            heard_us = self._heard.get((cell, name, node.incarnation))
            verdict = None
            if node.state in _EXPECTED:
                silent_us = max(heard_us or 0, since_us) + self._limit_us
                if now_us >= silent_us:
                    known_us = heard_us if heard_us is not None else since_us
                    more = {"last_heartbeat_us": known_us}
                    verdict = Verdict(cell, "node.silent", _about(node) | more)
                elif next_us is None or silent_us < next_us:
                    next_us = silent_us
            # Heard within the limit, not merely after it fell silent: `silent_since_us` is when
            # the silence was told, which may be after a late heartbeat.
            elif (
                node.state == "silent"
                and heard_us is not None
                and now_us - heard_us < self._limit_us
            ):
                verdict = Verdict(cell, "node.back", _about(node))
            if verdict is None:
                self._given.pop((cell, name), None)
            elif self._is_new(verdict.type, (cell, name), now_us):
                yield verdict
        self._next_us[cell] = next_us

    def _is_new(self, kind: str, key: tuple[str, str], now_us: int) -> bool:
        given = self._given.get(key)
        # A clock that was set back must not keep a verdict for hours.
        if given is not None and given[0] == kind and 0 <= now_us - given[1] < self._repeat_us:
            return False
        self._given[key] = (kind, now_us)
        return True

    def _forget(self, now_us: int) -> None:
        """Drop heartbeats too old to decide anything, so that names made up cost no memory."""
        oldest = now_us - _FORGET_LIMITS * self._limit_us
        stale = [key for key, at_us in self._heard.items() if at_us < oldest]
        for key in stale:
            del self._heard[key]


def _about(node: Node) -> dict[str, Any]:
    return {"node": node.name, "incarnation": node.incarnation}
