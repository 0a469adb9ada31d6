"""Logs to meter: drawn by the simulation's generator, or a cell that is driven by hand."""

from __future__ import annotations

from collections import Counter
from functools import cache
from random import Random
from typing import TYPE_CHECKING, Any

import orjson

from ledger.metering.rows import Ended, Row
from ledger.metering.stream import PartitionMeter
from tests.simulation.acts import draw
from tests.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["FOREVER", "metered", "owner_of", "random_log", "sums", "with_void_records"]

FOREVER = 10**18


class _Unwatched(World):
    """The world without its clerk: only the log matters here."""

    def feed(self, name: str, plain: dict[str, Any], **more: Any) -> str:
        """Feed an input, and remember what later acts are about."""
        decision = self.cell.feed(name, plain, **more)
        self.remember(decision)
        return decision.code

    def hear(self, node: str, what: str) -> None:
        """Stop hearing a node whose last heartbeat was a while ago, or hear it again."""
        last_us = max(0, self.cell.now_us - 1_000_000 * (1 + self.steps_ahead() % 90))
        more: dict[str, Any] = {"last_heartbeat_us": last_us} if what == "silent" else {}
        self.says(f"node.{what}", node, **more)

    def steps_ahead(self) -> int:
        """Return a number that differs from act to act."""
        return len(self.cell.records)


@cache
def random_log(seed: int, steps: int) -> tuple[bytes, ...]:
    """Return the records of a cell to which everything happens, as the seed has it."""
    random, world = Random(seed), _Unwatched(check=False)
    world.start(late=bool(seed % 2), nominal=(3_000, 20_000)[seed % 3 > 0])
    for _ in range(steps):
        name, args, words = draw(random, world, seed)
        if name in _NEEDS_THE_CLERK:
            continue
        getattr(world, name)(*args, **words)
        if random.random() < 0.02:
            world.cell.claim()
    return tuple(world.cell.records)


#: Acts that ask the clerk which request they are about.
_NEEDS_THE_CLERK = frozenset({"cancel_reserved", "submit_again"})


def metered(
    values: Iterable[bytes],
    before: Callable[[PartitionMeter, int], list[Row | Ended]] | None = None,
) -> tuple[list[Row], PartitionMeter]:
    """Return the rows of a log up to its last record; ``before`` each record more may be had."""
    meter, found = PartitionMeter(), list[Row | Ended]()
    for offset, value in enumerate(values):
        if before is not None:
            found += before(meter, offset)
        found += meter.apply(offset, value)
    found += meter.cut(meter.known_us)
    return [one for one in found if isinstance(one, Row)], meter


def owner_of(row: Row) -> str:
    """Return the lease that a row is of, or the request that it is kept for."""
    return "" if row.holding is None else row.holding.lease or row.holding.request


def sums(rows: Iterable[Row], start_us: int = 0, end_us: int = FOREVER) -> Counter[Any]:
    """Return thousandths x µs in a window by (device, unit, state, cause, owner), not presence."""
    found: Counter[Any] = Counter()
    for row in rows:
        length = min(row.end_us, end_us) - max(row.start_us, start_us)
        if length > 0 and row.state != "present":
            key = (row.device, row.unit, row.state, row.cause, owner_of(row))
            found[key] += row.milli * length
    return Counter({key: amount for key, amount in found.items() if amount})


def with_void_records(values: tuple[bytes, ...], random: Random) -> list[bytes]:
    """Return the log as others would have disturbed it: earlier decisions written again."""
    found: list[bytes] = []
    decisions: list[bytes] = []
    for value in values:
        found.append(value)
        if orjson.loads(value)["kind"] == "decision":
            decisions.append(value)
        if decisions and random.random() < 0.3:
            found.append(random.choice(decisions))
    return found
