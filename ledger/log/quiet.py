"""Keep a library from repeating one log line many times a second.

While a broker is down aiokafka logs about ten lines a second for each client.
The first line of a kind passes; its repetitions are counted and told by the
next line of that kind which passes.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RepeatFilter", "quiet_loggers"]

#: One line of a kind (logger, level, message template) passes in this many seconds.
EVERY_S = 10.0

#: The most kinds remembered; with more, all are forgotten and may pass again.
MAX_KINDS = 256


class RepeatFilter(logging.Filter):
    """Let one warning or error of a kind pass in each span of ``every_s`` seconds."""

    def __init__(
        self, every_s: float = EVERY_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Start with nothing seen. ``clock`` returns seconds that never go back."""
        super().__init__()
        self._every_s = every_s
        self._clock = clock
        #: For each kind: when it passed last, and how many were held back since.
        self._kinds: dict[tuple[str, int, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the line passes; add the count of those held back to it."""
        if record.levelno < logging.WARNING:
            return True
        kind = (record.name, record.levelno, str(record.msg))
        now = self._clock()
        passed_at, held = self._kinds.get(kind, (None, 0))
        if passed_at is not None and now - passed_at < self._every_s:
            self._kinds[kind] = (passed_at, held + 1)
            return False
        if len(self._kinds) >= MAX_KINDS:
            self._kinds.clear()
        self._kinds[kind] = (now, 0)
        if held:
            record.msg = f"{record.getMessage()} ({held} more like it since the last one)"
            record.args = None
        return True


def quiet_loggers(package: str) -> None:
    """Attach one `RepeatFilter` to every logger of ``package`` that exists by now.

    A filter on a parent logger does not see its children's lines, so each gets it.
    """
    shared = RepeatFilter()
    for name in [package, *logging.root.manager.loggerDict]:
        if name != package and not name.startswith(f"{package}."):
            continue
        logger = logging.getLogger(name)
        if not any(isinstance(known, RepeatFilter) for known in logger.filters):
            logger.addFilter(shared)
