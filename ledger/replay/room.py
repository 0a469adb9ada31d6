"""The locked process of `ledger.audit.sandbox`, with the tables of one state in it."""

from __future__ import annotations

from ledger.audit import sandbox
from ledger.replay.sql import TABLES

__all__ = ["main"]


def main() -> None:
    """Serve questions about the tables of the state, until stdin ends."""
    sandbox.main(tuple(TABLES.values()))
