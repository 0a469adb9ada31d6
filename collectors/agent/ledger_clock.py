"""What the ledger's clock says, told on a node without comparing it to the node's own.

An order is due by the ledger's clock, which is the broker's; the wall clock of a node may be
hours off. A record that is read was appended before: by the stamp that the broker gave it and
the time since by the node's steady clock, the ledger's clock says at least so much now. It is
kept within one boot, in which the steady clock goes on, and only ever moves forward.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from collectors.agent.journal import Journal

__all__ = ["is_past", "learn_time", "time_is_known"]

_FACT = "ledger-ahead"

#: What is learned anew is written down when it differs by so much: writing has its cost.
_WORTH_US = 50_000


def learn_time(journal: Journal, stamps_us: Iterable[int]) -> None:
    """Learn from the broker's stamps on records that were read just now."""
    ahead_us = max(stamps_us) - journal.clock.steady_us()
    known = _ahead_us(journal)
    if known is None or ahead_us >= known + _WORTH_US:
        journal.keep(_FACT, {"incarnation": journal.fact("incarnation"), "us": ahead_us})


def time_is_known(journal: Journal) -> bool:
    """Say whether this boot has read any record of the ledger's."""
    return _ahead_us(journal) is not None


def is_past(journal: Journal, due_us: int | None, margin_us: int = 0) -> bool:
    """Say whether the ledger's clock is ``margin_us`` before ``due_us``, or later.

    Not before it is known: an order that was heard just now is taken as it comes.
    """
    ahead_us = _ahead_us(journal)
    if due_us is None or ahead_us is None:
        return False
    return journal.clock.steady_us() + ahead_us > due_us - margin_us


def _ahead_us(journal: Journal) -> int | None:
    known = journal.fact(_FACT)
    if known is None or known["incarnation"] != journal.fact("incarnation"):
        return None
    return int(known["us"])
