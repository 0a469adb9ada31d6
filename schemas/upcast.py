"""Upcasters: old records read as new ones (L7).

One function for each step, applied in a chain until the current version is
reached. A version that no chain leads from stops the reader: a ledger never
skips.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from schemas.limits import RECORD_VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["UPCASTERS", "UnknownVersion", "upcast"]

#: From version -> function that returns the record as the next version.
UPCASTERS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}


class UnknownVersion(ValueError):
    """The record's version is neither current nor one that can be upcast."""


def upcast(
    record: dict[str, Any],
    *,
    upcasters: Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]] = UPCASTERS,
    current: int = RECORD_VERSION,
) -> dict[str, Any]:
    """Return the record as the current version; raise `UnknownVersion`."""
    version = record.get("v")
    while version != current:
        step = upcasters.get(version) if isinstance(version, int) else None
        if step is None:
            raise UnknownVersion(f"record version {version!r}: this code reads up to {current}")
        record = step(record)
        version = record.get("v")
    return record
