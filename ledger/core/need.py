"""A need as an event carries it, and back."""

from __future__ import annotations

from dataclasses import fields
from operator import attrgetter
from typing import Any

from ledger.core.state import WHOLE_MILLI, Need
from ledger.core.terms import terms_from_plain, to_plain

__all__ = ["need_from_plain", "need_to_plain"]

#: The tenant stands in the request; the others are not plain values.
_APART = ("mode", "labels", "tenant", "terms")
_NAMES = tuple(one.name for one in fields(Need) if one.name not in _APART)
_DEFAULTS = tuple(one.default for one in fields(Need) if one.name not in _APART)
_values = attrgetter(*_NAMES)


def need_to_plain(need: Need) -> dict[str, Any]:
    """Return the need as an event carries it: what stands at its default is left out."""
    plain: dict[str, Any] = {"mode": need.mode}
    if need.labels:
        plain["labels"] = dict(need.labels)
    values = _values(need)
    if values != _DEFAULTS:
        stated = zip(_NAMES, values, _DEFAULTS, strict=True)
        plain |= {name: value for name, value, default in stated if value != default}
    if need.terms is not None:
        plain["terms"] = to_plain(need.terms)
    return plain


def need_from_plain(plain: dict[str, Any]) -> Need:
    """Return the need that an event carries, of no tenant."""
    if len(plain) == 1:
        return Need(plain["mode"])
    terms = plain.get("terms")
    return Need(
        plain["mode"],
        plain.get("pool"),
        tuple(sorted(plain["labels"].items())) if "labels" in plain else (),
        tuple(plain.get("models", ())),
        plain.get("count", 1),
        plain.get("nodes", 1),
        plain.get("gpu_milli", WHOLE_MILLI),
        plain.get("memory_mib", 0),
        plain.get("profile", ""),
        plain.get("cpu_milli", 0),
        plain.get("host_memory_mib", 0),
        plain.get("compute_slices", 0),
        "",
        None if terms is None else terms_from_plain(terms),
    )
