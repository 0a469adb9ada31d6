"""What a request asks for, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ledger.amounts import mib_text, per_cent

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["need_text"]


def need_text(need: Mapping[str, Any]) -> str:
    """Return what an event says is needed, in words."""
    count, nodes = need.get("count", 1), need.get("nodes", 1)
    if need["mode"] == "mig":
        text = f"{count} x MIG {need.get('profile', 'slice')}"
        if need.get("compute_slices"):
            text += f", at least {need['compute_slices']} compute slices"
    elif need["mode"] == "share":
        text = f"{per_cent(need.get('gpu_milli', 1000), 1000)} of a device"
    else:
        text = f"{count} whole device(s)" + (f" on each of {nodes} nodes" if nodes > 1 else "")
    if need.get("memory_mib"):
        text += f", at least {mib_text(need['memory_mib'])}"
    if need.get("models"):
        text += f", model {' or '.join(need['models'])}"
    if need.get("pool"):
        text += f", pool {need['pool']}"
    if need.get("labels"):
        text += ", labels " + ", ".join(f"{key}={value}" for key, value in need["labels"].items())
    return text + _terms_text(need.get("terms", {}))


def _terms_text(terms: Mapping[str, Any]) -> str:
    """Return what is asked beside how much, field by field; which task it is stands elsewhere."""
    told = {name: value for name, value in terms.items() if name != "apart"}
    return "".join(f", {name.replace('_', ' ')} {_listed(told[name])}" for name in told)


def _listed(value: object) -> str:
    """Return a value of a term in a few words."""
    if isinstance(value, (list, tuple)):
        return " ".join(_listed(one) for one in value)
    return "yes" if value is True else str(value)
