"""The terms of a submission: what it asks beside how much (`ledger.core.terms`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.core.terms import Terms

if TYPE_CHECKING:
    from schemas.requests import RequestSubmit

__all__ = ["terms_of"]

_NONE = Terms()


def terms_of(asked: RequestSubmit, source: str) -> Terms | None:
    """Return the terms of a submission from a source; None when it states none."""
    ask = asked.ask
    spread = ask.spread or ""
    found = Terms(
        ask.architectures,
        ask.capability or "",
        ask.driver_min or "",
        spread,
        f"{source}#{asked.task.id}" if spread else "",
        getattr(ask, "same_nvlink_domain", False),
        tuple(sorted(asked.licences.items())),
        getattr(ask, "encoder_sessions", 0),
        getattr(ask, "decoder_sessions", 0),
        ask.mode if ask.mode in ("passthrough", "vgpu") else "",
        ask.type if ask.mode == "vgpu" else "",
    )
    return None if found == _NONE else found
