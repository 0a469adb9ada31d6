"""The worker's own log: structured, on stderr only, libraries' lines included."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

import structlog

from ledger.log.quiet import RepeatFilter

if TYPE_CHECKING:
    from structlog.typing import Processor

    from processors.settings import Settings

__all__ = ["configure_logs"]

#: Libraries that tell every step at level info, which is noise beside our own lines.
_TALKATIVE = ("aiokafka", "faust", "mode", "asyncio")


def configure_logs(settings: Settings) -> None:
    """Send this process's log lines to stderr, as ``settings`` say. Call it once, at the start.

    Data goes to stdout (DESIGN section 5), so nothing here ever does.
    """
    as_json = settings.log_format == "json" or (
        settings.log_format == "auto" and not sys.stderr.isatty()
    )
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last: list[Processor] = (
        [structlog.processors.dict_tracebacks, structlog.processors.JSONRenderer()]
        if as_json
        else [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    )
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.PositionalArgumentsFormatter()],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    # While a broker is away every client says so several times a second. On the handler the
    # filter sees the lines of loggers that do not exist yet.
    handler.addFilter(RepeatFilter())
    root = logging.getLogger()
    root.handlers = [handler]
    level = settings.log_level.upper()
    root.setLevel(level)
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel("DEBUG" if level == "DEBUG" else "WARNING")
