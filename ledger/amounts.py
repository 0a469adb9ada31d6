"""Amounts as people read them: the only place where integers are rounded and get their unit."""

from __future__ import annotations

from datetime import UTC, datetime

from ledger.metering.rows import GPU_HOUR_MILLI_US

__all__ = [
    "decimal",
    "duration_text",
    "gib_hours",
    "gpu_hours",
    "gpus",
    "mib_text",
    "money",
    "per_cent",
    "permyriad",
    "seconds_text",
    "short",
    "time_text",
]

_US = 1_000_000
#: Unit of time -> seconds of it, the largest first.
_SIZES = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
#: A GiB for an hour.
_GIB_HOUR_MIB_US = 1024 * 3_600 * _US


def decimal(amount: int, one: int, digits: int) -> str:
    """Return an amount in units of ``one`` with so many digits, rounded to the nearest."""
    scale: int = 10**digits
    rounded = _nearest(abs(amount) * scale, one)
    sign = "-" if amount < 0 and rounded else ""
    whole, rest = divmod(rounded, scale)
    return f"{sign}{whole:,}.{rest:0{digits}d}" if digits else f"{sign}{whole:,}"


def _nearest(amount: int, one: int) -> int:
    """Return how many times ``one`` an amount is, to the nearest; a half is rounded up."""
    return (2 * amount + one) // (2 * one)


def short(amount: int, one: int, digits: int = 3) -> str:
    """Return the same without needless digits."""
    whole, point, rest = decimal(amount, one, digits).partition(".")
    rest = rest.rstrip("0")
    return f"{whole}{point}{rest}" if rest else whole


def gpu_hours(milli_us: int, digits: int = 2) -> str:
    """Return capacity x time as a number of GPU-hours."""
    return decimal(milli_us, GPU_HOUR_MILLI_US, digits)


def gpus(milli: int) -> str:
    """Return thousandths of devices as a number of devices."""
    return short(milli, 1000)


def gib_hours(mib_us: int) -> str:
    """Return memory x time as a number of GiB-hours."""
    return decimal(mib_us, _GIB_HOUR_MIB_US, 2)


def mib_text(mib: int) -> str:
    """Return memory in MiB."""
    return f"{mib:,} MiB"


def money(amount: int, one: int = 1_000_000_000) -> str:
    """Return money with two digits, of which ``one`` are the currency's unit: nanos by default."""
    return decimal(amount, one, 2)


def permyriad(parts: int | None, of: int | None) -> int | None:
    """Return parts of ``of`` in ten-thousandths, as `per_cent` tells them; None of nothing."""
    return None if parts is None or not of else _nearest(parts * 10_000, of)


def per_cent(parts: int | None, of: int = 10_000) -> str:
    """Return parts of ``of`` as per cent; a dash where there is nothing to be a part of."""
    return "-" if parts is None or not of else f"{decimal(parts * 100, of, 2)} %"


def duration_text(duration_us: int) -> str:
    """Return a duration in its two largest units; below a minute in seconds."""
    sign, seconds = ("-" if duration_us < 0 else ""), abs(duration_us) // _US
    for at, (name, size) in enumerate(_SIZES[:-1]):
        if seconds >= size:
            smaller, small = _SIZES[at + 1]
            return f"{sign}{seconds // size} {name} {seconds % size // small} {smaller}"
    return f"{sign}{decimal(abs(duration_us), _US, 3)} s"


def seconds_text(duration_us: int) -> str:
    """Return a duration in seconds, without needless digits."""
    return f"{short(duration_us, _US)} s"


def time_text(time_us: int) -> str:
    """Return UTC microseconds as RFC 3339 with milliseconds."""
    return datetime.fromtimestamp(time_us / _US, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"
