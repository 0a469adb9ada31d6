"""How a device is, in some eight calls: cheap enough for every few seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collectors.nvml.codes import GONE, word
from collectors.nvml.readings import Signs

if TYPE_CHECKING:
    from collectors.nvml.session import Session

__all__ = ["read_signs"]

_LOST = frozenset(map(word, GONE))

#: Field of `Signs` -> the call that gives it.
_FIELDS = {
    "recovery_action": "recovery_action",
    "temperature_c": "temperature",
    "slowdown_c": "slowdown",
    "clock_reasons": "clock_reasons",
    "corrected": "ecc_corrected",
    "uncorrected": "ecc_uncorrected",
}


def read_signs(session: Session, uuid: str) -> Signs:
    """Read the signs of a device; what it does not tell is None, which is not zero."""
    handle = session.handle(uuid)
    if handle.why:
        return Signs(uuid, handle.why)
    kept = session.kept(uuid)
    found = {}
    for field, call in _FIELDS.items():
        one = kept.unless_absent(call, handle.value, about=uuid)
        if one.why in _LOST:
            return Signs(uuid, one.why)
        found[field] = one.value
    rows = kept.unless_absent("remapped_rows", handle.value, about=uuid).value
    pending, failed = (None, None) if rows is None else (bool(rows[2]), bool(rows[3]))
    return Signs(uuid, **found, rows_pending=pending, rows_failed=failed)
