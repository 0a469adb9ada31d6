"""Amounts as other systems write them, exactly; whoever rounds, rounds a demand up (C15)."""

from __future__ import annotations

import re
from fractions import Fraction

__all__ = [
    "KIB",
    "MIB",
    "kubernetes",
    "nomad_bytes",
    "slurm_count",
    "slurm_mib",
    "slurm_seconds",
    "up",
]

KIB = 1024
MIB = 1024 * 1024

_SCALES = {
    "": Fraction(1),
    **{letter: Fraction(1, 1000**power) for power, letter in enumerate("mun", 1)},
    **{letter: Fraction(1000**power) for power, letter in enumerate("kMGTPE", 1)},
    **{f"{letter}i": Fraction(KIB**power) for power, letter in enumerate("KMGTPE", 1)},
}
#: Digits are bounded, so that no text of a few bytes is a number of a gigabyte.
_NUMBER = r"([0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})"
_KUBERNETES = re.compile(
    rf"([+-]?){_NUMBER}(?:([KMGTPE]i|[numkMGTPE])|[eE]([+-]?[0-9]{{1,2}}))?", re.ASCII
)
_NOMAD = re.compile(rf"{_NUMBER} ?([kKMGTPE]i?B)", re.ASCII)
_SLURM_SIZE = re.compile(r"([0-9]{1,15})(?:([KMGT])B?)?", re.ASCII | re.IGNORECASE)
_SLURM_COUNT = re.compile(r"([0-9]{1,9})([KMGTP]?)", re.ASCII | re.IGNORECASE)
_SLURM_TIME = re.compile(
    r"(?:([0-9]{1,6})-([0-9]{1,6})(?::([0-9]{1,6})(?::([0-9]{1,6}))?)?"
    r"|([0-9]{1,8})(?::([0-9]{1,6})(?::([0-9]{1,6}))?)?)",
    re.ASCII,
)


def up(amount: Fraction) -> int:
    """Return the least integer that is not less: a demand never gets smaller."""
    return -(-amount.numerator // amount.denominator)


def kubernetes(text: str) -> Fraction | None:
    """Return a Kubernetes quantity in its base unit (cores, bytes, pieces); None for others.

    ``500m`` is one half, ``1Ki`` is 1024, ``1E`` is 10^18 and ``1E2`` is 100.
    """
    match = _KUBERNETES.fullmatch(text)
    if match is None:
        return None
    sign, number, suffix, exponent = match.groups()
    amount = Fraction(number) * _SCALES[suffix or ""] * Fraction(10) ** int(exponent or 0)
    return -amount if sign == "-" else amount


def nomad_bytes(text: str) -> Fraction | None:
    """Return a Nomad size such as ``1.5 GiB`` or ``500 MB`` in bytes; None for others.

    ``KB`` is Nomad's other spelling of ``kB``.
    """
    match = _NOMAD.fullmatch(text)
    if match is None:
        return None
    unit = match[2].removesuffix("B")
    return Fraction(match[1]) * _SCALES["k" if unit == "K" else "Ki" if unit == "ki" else unit]


def slurm_mib(text: str) -> int | None:
    """Return a Slurm size (``--mem``) in MiB, rounded up; without a unit it is in MiB.

    Slurm calls them megabytes and means 1024 kilobytes.
    """
    match = _SLURM_SIZE.fullmatch(text)
    if match is None:
        return None
    kib = int(match[1]) * int(KIB ** " KMGT".index((match[2] or "M").upper())) // KIB
    return -(-kib // KIB)


def slurm_count(text: str) -> int | None:
    """Return a Slurm count of generic resources; ``k`` is 1024, ``m`` its square and so on."""
    match = _SLURM_COUNT.fullmatch(text)
    if match is None:
        return None
    return int(match[1]) * int(KIB ** (" KMGTP".index(match[2].upper()) if match[2] else 0))


def slurm_seconds(text: str) -> int | None:
    """Return a Slurm time limit in seconds: minutes, m:s, h:m:s, d-h, d-h:m or d-h:m:s."""
    match = _SLURM_TIME.fullmatch(text)
    if match is None:
        return None
    days, *of_day, first, second, third = match.groups()
    if days is not None:
        hours, minutes, seconds = (int(part or 0) for part in of_day)
        return ((int(days) * 24 + hours) * 60 + minutes) * 60 + seconds
    if third is not None:
        return (int(first) * 60 + int(second)) * 60 + int(third)
    return int(first) * 60 + int(second or 0)
