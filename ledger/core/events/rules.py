"""What the events about compatibility, licences, links, prices and faults do to the state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ledger.core.admitting.compatibility import Compatibility
from ledger.core.admitting.licences import Licence
from ledger.core.placing.links import Link
from ledger.core.prices import PriceBook, price_id

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.core.state import State

__all__ = ["RULES"]

Event = dict[str, Any]

#: What of the event is not the heading of a price book.
_APART = ("type", "book", "prices", "author", "reason")


def _compatibility_applied(state: State, event: Event, _now: int) -> None:
    name, get = event["model_version"], event.get
    lists = (list(get("architectures", ())), get("driver_min", ""), list(get("frameworks", ())))
    state.compatibilities[name] = Compatibility(name, *lists)


def _licence_applied(state: State, event: Event, _now: int) -> None:
    name = event["licence"]
    licence = state.licences.setdefault(name, Licence(name, 0))
    licence.count = event["count"]
    state.index.loosen(f"licence {name}")
    state.index.ripen()


def _link_measured(state: State, event: Event, now: int) -> None:
    from_node, to_node = event["from_node"], event["to_node"]
    state.links[f"{from_node} {to_node}"] = Link(
        event["evidence"], from_node, to_node, event["p99_us"], event["bandwidth_mbps"],
        event["tool"], event["version"], now, event["valid_until_us"],
    )  # fmt: skip
    state.next_id += 1
    state.index.loosen(f"link {from_node}")


def _prices_applied(state: State, event: Event, _now: int) -> None:
    heading = {name: value for name, value in event.items() if name not in _APART}
    prices = {price_id(one): one for one in event["prices"]}
    state.price_books[event["book"]] = PriceBook(event["book"], heading, prices)


def _device_fault(_state: State, _event: Event, _now: int) -> None:
    """A fault is on record; what follows from it are events of their own."""


RULES: dict[str, Callable[[State, Event, int], None]] = {
    "compatibility.applied": _compatibility_applied,
    "licence.applied": _licence_applied,
    "link.measured": _link_measured,
    "prices.applied": _prices_applied,
    "device.fault": _device_fault,
}
