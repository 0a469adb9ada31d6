"""What each size is worth when sizes are packed into bins: the dual of the packing program.

The linear program "fewest bins for this many of each size" has one column for
each way to fill a bin (Gilmore and Gomory, 1961). Columns are made when they are
needed, by a knapsack over the prices so far; all arithmetic is exact, so equal
demands give equal prices on every machine.
"""

from __future__ import annotations

from fractions import Fraction
from math import gcd, lcm
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["best_fill", "prices"]

_ONE = Fraction(1)
_ZERO = Fraction(0)


def prices(demand: Mapping[int, int], size: int) -> dict[int, Fraction]:
    """Return the price of each item size, in bins, for so many of each; bins hold ``size``.

    Raise ValueError for an item that is no part of a bin or a demand that is not positive.
    """
    unit = gcd(size, *demand)
    if unit > 1:
        smaller = {item // unit: many for item, many in demand.items()}
        return {item * unit: price for item, price in prices(smaller, size // unit).items()}
    items = sorted(demand)
    if any(not 0 < item <= size for item in items) or any(many <= 0 for many in demand.values()):
        raise ValueError("every item fits into a bin and is wanted at least once")
    # One pattern for each item, filled with it alone, is where the search starts.
    inverse = [
        [Fraction(1, size // item) if row == column else _ZERO for column in range(len(items))]
        for row, item in enumerate(items)
    ]
    used = [inverse[row][row] * demand[item] for row, item in enumerate(items)]
    while True:
        found = [sum((line[column] for line in inverse), _ZERO) for column in range(len(items))]
        pattern = _most_valuable(items, found, size)
        worth = sum((many * price for many, price in zip(pattern, found, strict=True)), _ZERO)
        if worth <= _ONE:
            return dict(zip(items, found, strict=True))
        _pivot(inverse, used, pattern)


def best_fill(worth: Mapping[int, Fraction], size: int) -> list[Fraction]:
    """Return for each room from 0 to ``size`` the most that items put into it are worth."""
    below, whole = _as_integers(worth.values())
    best = _fill(list(worth), whole, size)
    return [Fraction(one, below) for one in best]


def _as_integers(values: Iterable[Fraction]) -> tuple[int, list[int]]:
    """Return a common denominator and the numerators over it."""
    kept = list(values)
    below = lcm(*(one.denominator for one in kept))
    return below, [one.numerator * (below // one.denominator) for one in kept]


def _fill(items: Sequence[int], worth: Sequence[int], size: int) -> list[int]:
    """Work out `best_fill` in integers, one room after the other."""
    pairs = list(zip(items, worth, strict=True))
    best = [0]
    for room in range(1, size + 1):
        most = best[room - 1]
        for item, price in pairs:
            if item <= room and best[room - item] + price > most:
                most = best[room - item] + price
        best.append(most)
    return best


def _most_valuable(items: Sequence[int], prices: Sequence[Fraction], size: int) -> list[int]:
    _, worth = _as_integers(prices)
    best = _fill(items, worth, size)
    pattern = [0] * len(items)
    room = size
    while best[room] > 0:
        if best[room] == best[room - 1]:
            room -= 1
            continue
        # The first that attains the best: any would do, but it must always be the same.
        at = next(
            at
            for at, item in enumerate(items)
            if item <= room and best[room - item] + worth[at] == best[room]
        )
        pattern[at] += 1
        room -= items[at]
    return pattern


def _pivot(inverse: list[list[Fraction]], used: list[Fraction], pattern: Sequence[int]) -> None:
    """Let the pattern take the place of one in the basis (simplex method, exact)."""
    into = [
        sum((value * many for value, many in zip(line, pattern, strict=True) if many), _ZERO)
        for line in inverse
    ]
    # Ties by the rows of the inverse, least first: the lexicographic rule never cycles.
    out = min(
        (row for row, value in enumerate(into) if value > 0),
        key=lambda row: [used[row] / into[row], *(value / into[row] for value in inverse[row])],
    )
    scale = into[out]
    inverse[out] = [value / scale for value in inverse[out]]
    used[out] /= scale
    for row, value in enumerate(into):
        if row != out and value:
            inverse[row] = [
                mine - value * its for mine, its in zip(inverse[row], inverse[out], strict=True)
            ]
            used[row] -= value * used[out]
