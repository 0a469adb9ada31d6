"""Natural logarithms as integers: the same on every machine, as floats need not be."""

from __future__ import annotations

from functools import cache

__all__ = ["SCALE", "log_ratio"]

#: What stands for 1.
SCALE = 10**9
#: The digits that are worked with, so that the last one of `SCALE` is right.
_FINE = 10**6


@cache
def log_ratio(above: int, below: int) -> int:
    """Return ln(above / below) in units of 1 / `SCALE`, rounded to nearest; both are positive."""
    twos = 0
    while above >= 2 * below:
        below *= 2
        twos += 1
    while above < below:
        above *= 2
        twos -= 1
    total = _series(above, below) + twos * _series(2, 1)
    return (total + _FINE // 2) // _FINE


@cache
def _series(above: int, below: int) -> int:
    """Sum ln x = 2 artanh((x - 1) / (x + 1)) for 1 <= x <= 2: twenty terms are enough."""
    ratio = (above - below) * SCALE * _FINE // (above + below)
    square = ratio * ratio // (SCALE * _FINE)
    total, power, odd = 0, ratio, 1
    while power:
        total += power // odd
        power = power * square // (SCALE * _FINE)
        odd += 2
    return 2 * total
