"""What the property tests of the log and of the stream share: drawn histories, and their owners."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import orjson
from hypothesis import Phase, settings
from hypothesis import strategies as st

from ledger.core.digest import load_fold, save_fold
from ledger.core.fold import Fold
from ledger.log.memory import MemoryLog
from ledger.log.sqlite import SqliteLog
from ledger.log.wakeup import wall_clock_us
from ledger.testing import CoreDriver
from ledger.wire import input_entry
from tests.metering_logs import random_log

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from ledger.core.decide import Decision
    from ledger.log.port import Entry, Log

__all__ = [
    "KINDS",
    "chances",
    "decisions",
    "driver_at",
    "few",
    "folded",
    "histories",
    "history",
    "new_log",
    "redecide",
    "submission",
]

_SEEDS, _STEPS = 6, 80
KINDS = ("memory", "sqlite")

#: A history costs milliseconds, not microseconds: a tenth of what the profile asks for, and
#: no shrinking, which would take minutes to say little more than the seed does.
few = settings(
    max_examples=settings().max_examples // 10,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)

#: Chance by a drawn seed: a draw of Hypothesis for each use of it costs more than the ledger.
chances = st.integers(0, 2**32 - 1).map(Random)


def history(seed: int) -> tuple[bytes, ...]:
    """Return the records of a cell ``c`` to which everything happens; all of them count."""
    return random_log(seed, _STEPS)


histories = st.integers(0, _SEEDS - 1).map(history)


def folded(values: Sequence[bytes]) -> Fold:
    """Return the fold of records, made without a log or a reader."""
    fold = Fold()
    for offset, value in enumerate(values):
        fold.apply(offset, value)
    return fold


def decisions(values: Sequence[bytes]) -> list[int]:
    """Return the offsets of the decisions among records."""
    return [at for at, value in enumerate(values) if orjson.loads(value)["kind"] == "decision"]


def driver_at(values: Sequence[bytes], count: int) -> CoreDriver:
    """Return an owner of the cell who has read the first ``count`` records, from a snapshot."""
    cell = CoreDriver()
    cell.fold = load_fold(save_fold(folded(values[:count]))).ready()
    cell.records = list(values[:count])
    cell.token = cell.fold.head.token
    cell.now_us = cell.state.now_us
    cell._offsets.update(cell.fold.head.sources)
    return cell


def redecide(cell: CoreDriver, value: bytes) -> Decision | None:
    """Let an owner decide the input of a record anew; a claim is claimed anew (None)."""
    record: dict[str, Any] = orjson.loads(value)
    if record["kind"] == "claim":
        cell.now_us = record["time_us"]
        cell.claim()
        return None
    given, (topic, offset) = record["input"], record["source"]
    # What left no record has an offset too.
    cell._offsets[topic] = offset - 1
    return cell.feed(
        given["type"], given["data"], source=given["source"], id=given["id"],
        at_us=record["time_us"],
    )  # fmt: skip


def new_log(kind: str, folder: Path, clock: Callable[[], int] | None = None) -> Log:
    """Return an empty log of one of `KINDS`; ``clock`` returns UTC microseconds."""
    use = clock or wall_clock_us
    return SqliteLog(folder / "log.sqlite", clock=use) if kind == "sqlite" else MemoryLog(use)


def submission(number: int, chance: Random, source: str = "/team/a") -> Entry:
    """Return a request for one or two devices of the cell of `tests.ledgers.Site`."""
    ask = {"mode": "whole", "count": chance.randint(1, 2)}
    data = {"tenant": "t", "queue": "q", "task": {"id": f"r{number}"}, "ask": ask}
    return input_entry("c", "request.submit", source, f"r{number}", data)
