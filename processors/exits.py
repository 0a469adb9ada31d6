"""The number with which a worker's process ends, and the line that says why."""

from __future__ import annotations

import structlog

from ledger.log.port import LogUnavailable
from ledger.log.url import BadLogUrl
from ledger.shard import Fenced
from processors.engine import DAMAGED
from processors.setup import Refused

__all__ = ["exit_status"]

_log = structlog.get_logger(__name__)

_NO = 1
_USAGE = 2
_UNREACHABLE = 3
_DAMAGED = 4
#: BSD's EX_SOFTWARE: a fault of ours, not one of those that DESIGN section 5 names.
_BUG = 70


def exit_status(error: Exception) -> int:
    """Say why a worker ends, and return the number for it."""
    if isinstance(error, DAMAGED):
        _log.critical("the log is damaged", error=str(error))
        return _DAMAGED
    if isinstance(error, LogUnavailable):
        _log.critical("the log cannot be reached", error=str(error))
        return _UNREACHABLE
    if isinstance(error, Fenced):
        _log.critical("another worker has taken the log over", error=str(error))
        return _NO
    if isinstance(error, (Refused, BadLogUrl)):
        _log.critical(str(error))
        return _USAGE
    _log.critical("worker failed", exc_info=error)
    return _BUG
