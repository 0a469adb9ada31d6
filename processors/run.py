"""Start a worker, end it in good order on a signal, and say with a number how it went."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import structlog

from ledger.collector import relax
from ledger.log.port import LogUnavailable
from ledger.log.url import BadLogUrl, open_log
from processors.exits import exit_status
from processors.logs import configure_logs
from processors.metrics import Metrics, MetricsServer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ledger.log.port import Log
    from processors.settings import Settings

    Serve = Callable[[Log, Settings, asyncio.Event, Metrics], Awaitable[None]]

__all__ = ["Runner", "run_worker"]

Runner = Literal["faust", "plain", "embedded"]

_log = structlog.get_logger(__name__)


def run_worker(settings: Settings, runner: Runner) -> int:
    """Serve ``settings.log`` until SIGTERM or SIGINT; return the exit status.

    0: ended as asked. 1: another embedded loop has taken the log over. 2: the log,
    its topics or the metrics port are not as they must be. 3: the log cannot be
    reached. 4: it is damaged. 70: a fault of ours; the process must end.
    """
    configure_logs(settings)
    relax()
    try:
        _with_uvloop(_serve(settings, runner))
    except Exception as error:  # noqa: BLE001 - every end of a worker gets its number here
        return exit_status(error)
    return 0


def _with_uvloop(main: Awaitable[None]) -> None:
    if sys.platform == "win32":
        asyncio.run(_awaited(main))
    else:
        import uvloop  # noqa: PLC0415 - does not exist everywhere

        uvloop.run(_awaited(main))


async def _awaited(main: Awaitable[None]) -> None:
    await main


async def _serve(settings: Settings, runner: Runner) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    serve = _runner(runner)
    if runner != "embedded" and not settings.log.startswith("kafka:"):
        raise BadLogUrl(f"the {runner} runner needs a log on Kafka, found {settings.log!r}")
    scheme, _, path = settings.log.partition(":")
    if scheme == "sqlite" and path and not Path(path).exists():  # noqa: ASYNC240 - once, at the start
        # To open it would make it: a file that was named wrongly is told, not made.
        raise LogUnavailable(f"there is no log {path}; `gpuledger topics apply` makes one")
    metrics = Metrics()
    with MetricsServer(metrics, settings.metrics_port):
        async with open_log(settings.log) as log:
            _log.info("worker starts", runner=runner, log=settings.log, worker=settings.worker)
            await serve(log, settings, stop, metrics)
    _log.info("worker ended")


def _runner(name: Runner) -> Serve:
    # Imported when asked for: Faust and aiokafka take a second that the others need not pay.
    if name == "faust":
        from processors import faust_app  # noqa: PLC0415

        return faust_app.run
    if name == "plain":
        from processors import plain  # noqa: PLC0415

        return plain.run
    from processors import embedded  # noqa: PLC0415

    return embedded.run
