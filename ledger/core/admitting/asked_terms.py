"""The terms of a submission: what it asks beside how much (`ledger.core.terms`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.core.terms import Terms

if TYPE_CHECKING:
    from schemas.requests import RequestSubmit

__all__ = ["terms_of"]

_NONE = Terms()

#: Modes whose asks have no terms while they set nothing but these.
_MODES = frozenset({"whole", "mig", "share"})
_SIZES = frozenset(
    {
        "mode",
        "pool",
        "labels",
        "models",
        "count",
        "nodes",
        "memory_mib",
        "gpu_milli",
        "profile",
        "compute_slices",
    }
)

#: Modes that are given in a way of their own, and counted like another.
_OWN_WAY = frozenset({"passthrough", "vgpu"})


def terms_of(asked: RequestSubmit, source: str, route: str = "") -> Terms | None:
    """Return the terms of a submission from a source; None when it states none."""
    ask = asked.ask
    if not (asked.licences or route) and ask.mode in _MODES and ask.model_fields_set <= _SIZES:
        return None
    spread = ask.spread or ""
    remote = getattr(ask, "remote", None)
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
        "remote" if remote is not None else ask.mode if ask.mode in _OWN_WAY else "",
        ask.type if ask.mode == "vgpu" else "",
        0,
        () if remote is None else (remote.from_node, remote.p99_us_max, remote.bandwidth_mbps_min),
        route,
    )
    return None if found == _NONE else found
