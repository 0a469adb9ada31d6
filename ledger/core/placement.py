"""Where a need could be met now, or by how much it falls short.

Placement only looks. The rule here is *best fit, then least name*: the node
with the fewest free devices that still has enough, ties to the node whose name
sorts first, devices of a node in UUID order. It depends on nothing but the
state, so a replay makes the same choice (C07, C19).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ledger.core.state import WHOLE_MILLI, free_memory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ledger.core.places import Cards, ClassKey
    from ledger.core.state import Need, Node, State

__all__ = ["Placement", "Shortfall", "charge_of", "could_fit", "host_fits", "place", "shortfall"]


#: Says of a node, by its name, whether it may be used.
Allowed = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Placement:
    """Complete and free now: nothing is taken before all of it is known (A10)."""

    parts: tuple[tuple[str, tuple[str, ...]], ...]
    charge_milli: int
    of_class: ClassKey


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Why not: the code and the numbers that were compared."""

    code: str
    numbers: dict[str, int | str | None]


def charge_of(state: State, need: Need) -> int:
    """Return the least that the need can be charged, in thousandths of a device."""
    if need.mode == "whole":
        return WHOLE_MILLI * need.count * need.nodes
    if need.mode == "share":
        return need.gpu_milli
    charges = [key[4] for key in state.index.matches(state, need)]
    return min(charges, default=0) * need.count


def could_fit(state: State, need: Need, key: ClassKey) -> bool:
    """Say quickly whether the class may hold the need; a yes is no promise."""
    if need.mode == "mig":
        return len(state.index.slices[key].free) >= need.count
    cards = state.index.cards[key]
    if need.mode == "share":
        roomy = bool(cards.partial) and cards.partial[-1][0] >= need.gpu_milli
        return roomy or cards.most_free() > 0
    return need.count == 0 or cards.most_free() >= need.count


def place(
    state: State,
    need: Need,
    fits: Callable[[ClassKey], bool] | None = None,
    allowed: Allowed | None = None,
) -> Placement | None:
    """Find a place for all of the need, or None.

    Classes that do not fit the quota (``fits``) and nodes that are not ``allowed`` are passed over.
    """
    finder = _FINDERS[need.mode]
    for key in state.index.matches(state, need):
        if fits is not None and not fits(key):
            continue
        if could_fit(state, need, key):
            found = finder(state, need, key, allowed)
            if found is not None:
                return found
    return None


def _whole(state: State, need: Need, key: ClassKey, allowed: Allowed | None) -> Placement | None:
    cards = state.index.cards[key]
    parts: list[tuple[str, tuple[str, ...]]] = []
    for node in _nodes_with(state, cards, need, need.count):
        if allowed is not None and not allowed(node):
            continue
        parts.append((node, tuple(cards.free[node][: need.count])))
        if len(parts) == need.nodes:
            return Placement(tuple(parts), WHOLE_MILLI * need.count * need.nodes, key)
    return None


def _share(state: State, need: Need, key: ClassKey, allowed: Allowed | None) -> Placement | None:
    cards = state.index.cards[key]
    for at in range(bisect_left(cards.partial, (need.gpu_milli, "")), len(cards.partial)):
        uuid = cards.partial[at][1]
        device = state.devices[uuid]
        if allowed is not None and not allowed(device.node):
            continue
        if free_memory(device) >= need.memory_mib and host_fits(state.nodes[device.node], need):
            return Placement(((device.node, (uuid,)),), need.gpu_milli, key)
    for node in _nodes_with(state, cards, need, 1):
        if allowed is not None and not allowed(node):
            continue
        return Placement(((node, (cards.free[node][0],)),), need.gpu_milli, key)
    return None


def _mig(state: State, need: Need, key: ClassKey, allowed: Allowed | None) -> Placement | None:
    slices = state.index.slices[key]
    parts: dict[str, list[str]] = {}
    left = need.count
    for node, _device, _start, name in slices.free:
        if allowed is not None and not allowed(node):
            continue
        if node in parts or host_fits(state.nodes[node], need):
            parts.setdefault(node, []).append(name)
            left -= 1
            if left == 0:
                done = tuple((node, tuple(units)) for node, units in parts.items())
                return Placement(done, key[4] * need.count, key)
    return None


#: As much of a list as one line of text takes.
_MOST_TEXT = 500

_FINDERS = {"whole": _whole, "share": _share, "mig": _mig}


def _nodes_with(state: State, cards: Cards, need: Need, count: int) -> Iterator[str]:
    """Yield nodes with at least ``count`` free devices and what is asked beside them."""
    plain = not need.cpu_milli and not need.host_memory_mib
    for bucket in cards.buckets[count:]:
        for node in bucket:
            if (plain and count) or _fits_host(state.nodes[node], need):
                yield node


def _fits_host(node: Node, need: Need) -> bool:
    return node.state == "online" and host_fits(node, need)


def host_fits(node: Node, need: Need) -> bool:
    """Say whether the node has what is asked beside the devices."""
    cpu, memory = node.cpu_milli, node.memory_mib
    return (not need.cpu_milli or cpu is None or cpu - node.cpu_used >= need.cpu_milli) and (
        not need.host_memory_mib
        or memory is None
        or memory - node.memory_used >= need.host_memory_mib
    )


def _asked(need: Need) -> dict[str, int | str | None]:
    asked: dict[str, int | str | None] = {"mode": need.mode}
    if need.models:
        asked["models"] = "|".join(need.models)[:_MOST_TEXT]
    if need.pool is not None:
        asked["pool"] = need.pool
    if need.profile:
        asked["profile"] = need.profile
    if need.memory_mib:
        asked["memory_mib"] = need.memory_mib
    return asked


def shortfall(state: State, need: Need) -> Shortfall:
    """Say what is short for a need that has no place: counted place by place (C21)."""
    index = state.index
    classes = index.matches(state, need)
    if not classes:
        return Shortfall("no_such_hardware", _asked(need))
    if need.mode == "mig":
        free = sum(len(index.slices[key].free) for key in classes)
        numbers: dict[str, int | str | None] = {"needs_slices": need.count, "free_slices": free}
        return Shortfall("no_capacity" if free < need.count else "no_beside", numbers)
    if need.mode == "share":
        partial = [at for key in classes for at in index.cards[key].partial]
        whole = sum(len(free) for key in classes for free in index.cards[key].free.values())
        most = max((room for room, _ in partial), default=0)
        fits = whole > 0 or most >= need.gpu_milli
        return Shortfall(
            "no_beside" if fits and need.memory_mib == 0 else "no_capacity",
            {
                "needs_gpu_milli": need.gpu_milli,
                "needs_memory_mib": need.memory_mib,
                "most_free_gpu_milli": WHOLE_MILLI if whole else most,
                "free_whole": whole,
            },
        )
    places = free = 0
    for key in classes:
        cards = index.cards[key]
        places = max(places, sum(len(bucket) for bucket in cards.buckets[need.count :]))
        free += sum(len(one) for one in cards.free.values())
    return Shortfall(
        "no_capacity" if places < need.nodes else "no_beside",
        {
            "needs_places": need.nodes,
            "gpus_per_place": need.count,
            "places": places,
            "free_gpus": free,
        },
    )
