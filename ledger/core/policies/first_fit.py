"""``first-fit``: the tie rule and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ledger.core.policies.spot import Ask, Spot

__all__ = ["FirstFit"]


class FirstFit:
    """Every place is as good as any other."""

    def worth(self, _spot: Spot) -> int:
        """Return zero."""
        return 0

    def toll(self, _ask: Ask) -> int:
        """Return zero."""
        return 0

    def grade(self, score: int) -> int:
        """Return the score."""
        return score
