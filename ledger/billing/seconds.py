"""From metered microseconds to whole seconds, losing nothing (M5).

What a device is at an instant is its *layout*: all its pieces, which sum to one device.
A second goes to one layout as a whole: to the one that had the most of it, the earlier of
two that had as much. That is the method of the largest remainder, second by second: what
is rounded away from one is what its neighbour gets, no bound moves by a second or more, and
however often a device changes hands its billed time is its present time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ledger.metering.rows import PARTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ledger.metering.rows import Holding, Row

__all__ = ["Layout", "Piece", "Run", "apportion", "layouts", "whole_seconds"]

SECOND_US = 1_000_000

#: States whose pieces tile a device, present or absent.
TILES = frozenset({*PARTS, "absent"})


class Piece(NamedTuple):
    """One piece of a layout: the fields of a row that are not its time."""

    cell: str
    node: str
    pool: str
    model: str
    device: str
    unit: str
    state: str
    cause: str
    milli: int
    holding: Holding | None


Layout: TypeAlias = "tuple[Piece, ...]"


class Run(NamedTuple):
    """A layout that lasted from one time until before another, in µs or in seconds."""

    start: int
    end: int
    layout: Layout


def layouts(rows: Iterable[Row]) -> Iterator[Run]:
    """Yield what one device was, in µs and in order; what rows take back is not in it.

    Where nothing is known of the device there is no run.
    """
    changes: dict[int, dict[Piece, int]] = {}
    for row in rows:
        if row.state not in TILES:
            continue
        piece = Piece(
            row.cell, row.node, row.pool, row.model, row.device, row.unit, row.state, row.cause,
            abs(row.milli), row.holding,
        )  # fmt: skip
        sign = 1 if row.milli > 0 else -1
        for at_us, change in ((row.start_us, sign), (row.end_us, -sign)):
            there = changes.setdefault(at_us, {})
            there[piece] = there.get(piece, 0) + change
    now: dict[Piece, int] = {}
    last_us, last = 0, Run(0, 0, ())
    for at_us in sorted(changes):
        if now:
            layout = tuple(sorted(now, key=_order))
            if layout == last.layout and last.end == last_us:
                last = last._replace(end=at_us)
            else:
                if last.layout:
                    yield last
                last = Run(last_us, at_us, layout)
        for piece, change in changes[at_us].items():
            count = now.pop(piece, 0) + change
            assert count in (0, 1), "a piece is there once, or not"
            if count:
                now[piece] = count
        last_us = at_us
    if last.layout:
        yield last


def _order(piece: Piece) -> tuple[str, str, str, str]:
    held = piece.holding
    return piece.unit, "" if held is None else held.lease or held.request, piece.state, piece.cause


def whole_seconds(runs: Iterable[Run]) -> Iterator[Run]:
    """Yield runs of whole seconds, in seconds; neighbours of one layout are one run."""
    last = Run(0, 0, ())
    for one in _seconds(runs):
        if one.layout == last.layout and one.start == last.end:
            last = last._replace(end=one.end)
            continue
        if last.layout:
            yield last
        last = one
    if last.layout:
        yield last


def _seconds(runs: Iterable[Run]) -> Iterator[Run]:
    shared, parts = 0, dict[Layout, int]()
    for start_us, end_us, layout in runs:
        for second, count, us in _torn(start_us, end_us):
            if count or second != shared:
                yield from _winner(shared, parts)
                shared, parts = second, {}
            if count:
                yield Run(second, second + count, layout)
            else:
                parts[layout] = parts.get(layout, 0) + us
    yield from _winner(shared, parts)


def _torn(start_us: int, end_us: int) -> Iterator[tuple[int, int, int]]:
    """Yield (second, how many whole ones from it on, else 0 and how much of it it is)."""
    first, last = -(-start_us // SECOND_US), end_us // SECOND_US
    if first > last:
        yield last, 0, end_us - start_us
        return
    if start_us < first * SECOND_US:
        yield first - 1, 0, first * SECOND_US - start_us
    if first < last:
        yield first, last - first, 0
    if last * SECOND_US < end_us:
        yield last, 0, end_us - last * SECOND_US


def _winner(second: int, parts: dict[Layout, int]) -> Iterator[Run]:
    """Yield the second as its winner's; nothing is a contender too, and wins no tie."""
    if not parts:
        return
    best = max(parts, key=parts.__getitem__)
    if parts[best] >= SECOND_US - sum(parts.values()):
        yield Run(second, second + 1, best)


def apportion(amounts: list[int], unit: int) -> list[int]:
    """Return amounts in whole units whose sum is that of the amounts, rounded to a unit.

    Each is rounded down, and what is missing from the sum goes to the largest remainders,
    the first of equals: each is less than a unit from what it was.
    """
    found = [amount // unit for amount in amounts]
    missing = (2 * sum(amounts) + unit) // (2 * unit) - sum(found)
    order = sorted(range(len(amounts)), key=lambda at: -(amounts[at] % unit))
    for at in order[:missing]:
        found[at] += 1
    return found
