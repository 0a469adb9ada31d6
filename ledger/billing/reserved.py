"""The unused part of advance reservations, told of the idle rows that it is.

A reservation names no device: so many devices of a model, on each of its nodes, from one
instant to another. What runs within it is its used part. The rest is unused, and stands in
the bill already, as the pool's idle devices of those nodes: as many of these as are reserved
there and not taken are marked, the first by their ids. So nothing is billed twice and no sum
changes; a charge is cut where the mark begins or ends.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ledger.billing.charges import Origin
from ledger.billing.seconds import apportion
from ledger.core.state import WHOLE_MILLI

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ledger.billing.charges import Charge

__all__ = ["ByDevice", "Reservations", "Reserved", "mark_unused"]

#: (cell, device) -> its origins, in order.
ByDevice: TypeAlias = "dict[tuple[str, str], list[Origin]]"

_NEVER_US = 1 << 62


class Reserved(NamedTuple):
    """``devices`` of a model on one node, from one second until before another."""

    cell: str
    node: str
    name: str
    model: str
    devices: int
    start_s: int
    end_s: int


class Reservations:
    """What was reserved, where and when, as the records tell it one after the other."""

    def __init__(self) -> None:
        """Know of none."""
        #: (cell, reservation) -> the event that counts, and since when it does (µs).
        self._open: dict[tuple[str, str], tuple[dict[str, Any], int]] = {}
        self._over: list[Reserved] = []

    def take(self, record: Mapping[str, Any]) -> None:
        """Follow an effective record."""
        for event in record["events"]:
            if event["type"] not in _EVENTS:
                continue
            now_us, key = record["time_us"], (record["cell"], event["reservation"])
            had = self._open.pop(key, None)
            if had is not None:
                self._over += _spans(key, *had, now_us)
            if event["type"] == "reservation.applied":
                self._open[key] = (event, now_us)
            elif event["type"] == "reservation.moved" and had is not None:
                self._open[key] = (had[0] | event, now_us)

    def known(self) -> list[Reserved]:
        """Return all that was reserved, with what still is."""
        still = (
            one
            for key, (event, since_us) in self._open.items()
            for one in _spans(key, event, since_us, _NEVER_US)
        )
        return sorted([*self._over, *still])

    def nodes(self) -> set[tuple[str, str]]:
        """Return cell and name of the nodes on which something is or was reserved."""
        return {(one.cell, one.node) for one in self.known()}


#: After one that is cancelled has ended, nothing is open of it.
_EVENTS = frozenset(
    {"reservation.applied", "reservation.moved", "reservation.cancelled", "reservation.ended"}
)


def _spans(
    key: tuple[str, str], event: Mapping[str, Any], since_us: int, until_us: int
) -> list[Reserved]:
    start_s = _second(max(since_us, event["start_us"]))
    end_s = _second(min(until_us, event["end_us"]))
    if start_s >= end_s:
        return []
    cell, name = key
    return [
        Reserved(cell, node, name, event["model"], event["count"], start_s, end_s)
        for node in event["chosen"]
    ]


def _second(at_us: int) -> int:
    return (at_us + 500_000) // 1_000_000


def mark_unused(origins: ByDevice, reserved: Iterable[Reserved]) -> ByDevice:
    """Return the origins with the unused part of what is reserved marked; sums are the same.

    ``origins`` are those of all devices of the nodes on which something is reserved.
    """
    spans: defaultdict[tuple[str, str], list[Reserved]] = defaultdict(list)
    for one in reserved:
        spans[one.cell, one.node].append(one)
    nodes: defaultdict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for key, found in origins.items() if spans else ():
        for node in {one.charges[0].piece.node for one in found}:
            nodes[key[0], node].append(key)
    marked = dict(origins)
    for (cell, node), there in sorted(spans.items()):
        keys = sorted(nodes[cell, node])
        marks = _marks(node, {key: origins[key] for key in keys}, there)
        for key, cuts in marks.items():
            marked[key] = [part for one in marked[key] for part in _cut(one, cuts)]
    return marked


#: (start, end, reservation), in seconds and in order.
_Cuts: TypeAlias = "list[tuple[int, int, str]]"


def _marks(node: str, origins: ByDevice, spans: list[Reserved]) -> dict[tuple[str, str], _Cuts]:
    """Return by device when it is the unused part of which reservation."""
    here = {
        key: [one for one in found if one.charges[0].piece.node == node]
        for key, found in origins.items()
    }
    bounds = {at for one in spans for at in (one.start_s, one.end_s)}
    bounds |= {
        at
        for found in here.values()
        for one in found
        for at in (one.charges[0].start_s, one.charges[0].end_s)
    }
    at: dict[tuple[str, str], int] = dict.fromkeys(here, 0)
    marks: defaultdict[tuple[str, str], _Cuts] = defaultdict(list)
    for start_s, end_s in pairwise(sorted(bounds)):
        open_ = [one for one in spans if one.start_s <= start_s < one.end_s]
        if not open_:
            continue
        now: dict[tuple[str, str], Origin] = {}
        for key, found in here.items():
            while at[key] < len(found) and found[at[key]].charges[0].end_s <= start_s:
                at[key] += 1
            if at[key] < len(found) and found[at[key]].charges[0].start_s <= start_s:
                now[key] = found[at[key]]
        for one in open_:
            for key in _unused(one, now):
                del now[key]
                marks[key].append((start_s, end_s, one.name))
    return {key: _joined(cuts) for key, cuts in marks.items()}


def _unused(one: Reserved, now: Mapping[tuple[str, str], Origin]) -> list[tuple[str, str]]:
    """Return the idle devices that are what is left of a reservation at one time."""
    taken, idle = 0, []
    for key, origin in now.items():
        piece = origin.charges[0].piece
        holdings = [each.piece.holding for each in origin.charges]
        if any(held is not None and held.reservation == one.name for held in holdings):
            taken += piece.state in ("allocated", "idle")
        elif piece.model == one.model and _free(origin):
            idle.append(key)
    return idle[: max(0, one.devices - taken)]


def _free(origin: Origin) -> bool:
    """Say whether an origin is a whole device that nobody has, and that could be had."""
    piece = origin.charges[0].piece
    return (piece.state, piece.cause, piece.milli) == ("idle", "free", WHOLE_MILLI)


def _joined(cuts: _Cuts) -> _Cuts:
    found: _Cuts = []
    for start_s, end_s, name in cuts:
        if found and found[-1][1:] == (start_s, name):
            found[-1] = (found[-1][0], end_s, name)
        else:
            found.append((start_s, end_s, name))
    return found


def _cut(origin: Origin, cuts: _Cuts) -> list[Origin]:
    """Return an origin in parts, each marked with one reservation or none."""
    charge = origin.charges[0]
    inside = [one for one in cuts if one[0] < charge.end_s and one[1] > charge.start_s]
    if not inside or not _free(origin):
        return [origin]
    bounds = {charge.start_s, charge.end_s}
    for start_s, end_s, _ in inside:
        bounds |= {max(start_s, charge.start_s), min(end_s, charge.end_s)}
    parts = list(pairwise(sorted(bounds)))
    names = [
        next((name for start_s, end_s, name in inside if start_s <= first_s < end_s), None)
        for first_s, _ in parts
    ]
    named = list(zip(parts, names, strict=True))
    return [Origin(part.origin, (part,)) for part in _parts(charge, named)]


def _parts(charge: Charge, parts: list[tuple[tuple[int, int], str | None]]) -> list[Charge]:
    """Return a charge in parts whose quantities are together its own, to the last digit."""
    lengths = [end_s - start_s for (start_s, end_s), _ in parts]
    nanos = apportion([charge.priced_nano * one for one in lengths], sum(lengths))
    cell, device = charge.piece.cell, charge.piece.device
    return [
        replace(
            charge, start_s=start_s, end_s=end_s, origin=f"{cell}/{device}/{start_s}",
            metered_milli_s=charge.piece.milli * (end_s - start_s), priced_nano=nano, unused=name,
        )
        for ((start_s, end_s), name), nano in zip(parts, nanos, strict=True)
    ]  # fmt: skip
