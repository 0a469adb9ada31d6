"""The virtual clock: the one time that the log, the nodes and the ledger of a simulation have."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["VirtualClock"]


@dataclass(slots=True)
class VirtualClock:
    """UTC microseconds that move only when told to. Called, it returns them, as a log asks."""

    now_us: int

    def __call__(self) -> int:
        """Return the time."""
        return self.now_us

    def move_to(self, time_us: int) -> None:
        """Go on to ``time_us``; a time that has passed leaves the clock where it is."""
        self.now_us = max(self.now_us, time_us)
