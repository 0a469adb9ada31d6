"""A bench prints its rows and no log lines."""

from __future__ import annotations

import os

import structlog

__all__ = ["quiet"]


def quiet() -> None:
    """Let log lines of this process go nowhere, for as long as it lives."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(open(os.devnull, "w")))  # noqa: SIM115, PTH123 - for the life of the process
