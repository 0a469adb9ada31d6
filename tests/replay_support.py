"""Logs to replay: a drawn history, as it stands in each kind of log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from ledger.archive.follow import Follower, Options
from ledger.core.fold import Fold
from ledger.log.archive import ArchiveLog
from ledger.log.memory import MemoryLog
from ledger.log.port import Record, TopicState
from ledger.log.sqlite import SqliteLog
from tests.ledgers import PREFIX
from tests.metering_logs import random_log

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ledger.log.port import Log

__all__ = ["EVENTS", "KINDS", "drawn", "folds_of", "log_of", "put"]

EVENTS = f"{PREFIX}.events"
KINDS = ("memory", "sqlite", "archive")


def drawn(seed: int = 3, steps: int = 120) -> tuple[bytes, ...]:
    """Return the records of a cell to which everything happens."""
    return random_log(seed, steps)


async def put(log: Log, prefix: str, *partitions: Sequence[bytes]) -> None:
    """Write a ledger's records, each with the time at which it was decided."""
    topic = f"{prefix}.events"
    await log.create_topics({topic: TopicState(len(partitions), 1)})
    for number, values in enumerate(partitions):
        records = [
            Record(topic, number, offset, orjson.loads(value)["time_us"], b"c", value)
            for offset, value in enumerate(values)
        ]
        await log.restore(topic, number, records)


async def log_of(kind: str, folder: Path, *partitions: Sequence[bytes]) -> Log:
    """Return a log of one of `KINDS` with the records of each partition in it."""
    log: Log = SqliteLog(folder / "log.sqlite") if kind == "sqlite" else MemoryLog()
    await put(log, PREFIX, *partitions)
    if kind != "archive":
        return log
    await Follower(log, PREFIX, folder / "archive", Options(("events",), every=50)).once()
    return ArchiveLog(folder / "archive")


def folds_of(values: Sequence[bytes], count: int) -> Fold:
    """Return the fold of the first records, made without any of what is tested."""
    fold = Fold()
    for offset, value in enumerate(values[:count]):
        fold.apply(offset, value)
    return fold
