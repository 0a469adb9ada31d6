"""What an acceptance pack needs beside the figures: a second account, stories, the digest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.metering.policy import POLICIES, MeteringPolicy
from ledger.operations.boundary import Boundary
from ledger.operations.gather import Gathered
from ledger.operations.stories import Stories

if TYPE_CHECKING:
    from ledger.core.state import State
    from ledger.operations.measure import Window
    from ledger.reading import Seen

__all__ = ["Trial"]


class Trial(Gathered):
    """Gathers all that a report of operations has, and what a proof of concept is judged by.

    ``digest`` is that of the state at the last record read; whoever reads on sets it.
    """

    def __init__(
        self,
        window: Window,
        zone: str = "UTC",
        until_us: int | None = None,
        policy: MeteringPolicy = POLICIES["pool"],
    ) -> None:
        """Begin with nothing; ``policy`` is that of `Gathered`."""
        super().__init__(window, zone, until_us, policy)
        self.boundary = Boundary(window)
        self.stories = Stories(window)
        self.digest = ""

    def take(self, seen: Seen, state: State | None) -> None:
        """Follow one record; ``state`` is its cell's after it."""
        super().take(seen, state)
        if seen.verdict == "effective":
            self.boundary.take(seen)
            self.stories.take(seen)
