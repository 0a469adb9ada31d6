"""Which orders a node's agent takes, and why it refuses the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from collectors.agent.ledger_clock import is_past

if TYPE_CHECKING:
    from collectors.agent.journal import Journal, OrderRow
    from schemas.messages import Order

__all__ = ["is_another", "not_for_this"]


#: What an order of each kind cannot be carried out without.
_NEEDED = {
    "prepare": ("lease", "units"),
    "stop": ("lease",),
    "clean": ("lease", "units"),
    "partition": ("units",),
    "mode": ("units", "enabled"),
}


def not_for_this(
    order: Order, journal: Journal, cell: str, node: str
) -> tuple[str, dict[str, Any]]:
    """Say why an order is none for this boot of this node, by a code; empty: it is one."""
    said = {
        "other-cell": (order.cell, cell),
        "other-node": (order.node, node),
        "other-incarnation": (order.incarnation, journal.fact("incarnation")),
    }
    for code, (named, mine) in said.items():
        if named != mine:
            return code, {"named": named, "here": mine}
    lacks = [name for name in _NEEDED[order.kind] if getattr(order, name) in ("", (), None)]
    if lacks:
        return "malformed", {"lacks": lacks[0]}
    if order.kind not in ("partition", "mode"):
        return "", {}
    newest = journal.fact(f"newest {order.units[0]}")
    if newest is not None and _number(order.order) < _number(newest):
        # The ledger has ordered something else of the device since, on another plan.
        return "older-order", {"newest": newest}
    late = is_past(journal, order.due_us)
    return ("past-due", {"due_us": order.due_us}) if late else ("", {})


def is_another(order: Order, known: OrderRow) -> bool:
    """Say whether an order that was answered under this id was another one.

    Ids are counted up in one log. Where that was begun anew they come again, and the answer of
    before would prove what nobody has looked at.
    """
    names = ("kind", "lease") if order.kind == "prepare" else ("kind", "lease", "due_us")
    said = order.model_dump(mode="json", include=set(names))
    return known.state != "open" and any(said[name] != known.plain.get(name) for name in names)


def _number(order: str) -> int:
    """Return the number in an order's id, which the ledger counts up; 0 where there is none."""
    number = order.rpartition("-o")[2]
    return int(number) if number.isascii() and number.isdigit() else 0
