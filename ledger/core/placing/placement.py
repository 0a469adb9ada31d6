"""Where a need could be met now, or by how much it falls short.

Placement only looks. The rule here is *best fit, then least name*: the node
with the fewest free devices that still has enough, ties to the node whose name
sorts first, devices of a node in UUID order. A pool may have another policy for
what fits on one node (`ledger.core.policies`). Either way the choice depends on
nothing but the state, so a replay makes the same one (C07, C19).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ledger.core.placing.constraints import narrowed
from ledger.core.placing.media import sessions_fit
from ledger.core.placing.picking import Apart, whole_parts
from ledger.core.placing.room import free_memory
from ledger.core.placing.vgpu import vgpu_spot
from ledger.core.policies.choice import choose
from ledger.core.state import NO_POOL, WHOLE_MILLI
from ledger.core.terms import told
from schemas.limits import MAX_LISTED_TEXT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ledger.core.derived.places import Cards, ClassKey
    from ledger.core.state import Need, Node, State

__all__ = ["Placement", "Shortfall", "charge_of", "could_fit", "host_fits", "place", "shortfall"]


#: Says of a node, by its name, whether it may be used.
Allowed = Callable[[str], bool]


@dataclass(slots=True)
class Placement:
    """Complete and free now: nothing is taken before all of it is known (A10).

    Not frozen for the reason `ledger.core.state.Need` is not.
    """

    parts: tuple[tuple[str, tuple[str, ...]], ...]
    charge_milli: int
    of_class: ClassKey
    rule: str = "best-fit"


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
    if need.mode == "whole":
        return need.count == 0 or any(cards.buckets[need.count :])
    if need.delivery == "vgpu":
        return True
    return cards.most_room() >= need.gpu_milli or cards.most_free() > 0


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
    # What a pool's policy chooses is one place on one node, among all classes of the pool.
    by_device = need.terms is not None and need.terms.by_device
    single = need.mode != "mig" and need.nodes == 1 and not by_device
    chosen_in: set[str] = set()
    classes = state.index.matches(state, need)
    for key in classes:
        pool = key[0]
        rule = state.pools.get(pool, NO_POOL).placement if single else _BEST_FIT
        if rule == _BEST_FIT:
            able = (fits is None or fits(key)) and could_fit(state, need, key)
            found = None
            if able:
                on = allowed if need.terms is None else narrowed(state, need, key, allowed)
                found = finder(state, need, key, on)
        elif pool in chosen_in:
            continue
        else:
            chosen_in.add(pool)
            able_too = [
                one
                for one in classes
                if one[0] == pool and (fits is None or fits(one)) and could_fit(state, need, one)
            ]
            found = _by_policy(state, need, able_too, rule, allowed)
        if found is not None:
            return found
    return None


def _by_policy(
    state: State, need: Need, classes: list[ClassKey], rule: str, allowed: Allowed | None
) -> Placement | None:
    """Let the policy of a pool choose among classes of it."""
    found = choose(state, need, classes, allowed)
    if found is None:
        return None
    charge = need.gpu_milli if need.mode == "share" else WHOLE_MILLI * need.count
    return Placement(((found.node, found.units),), charge, found.of_class, rule)


def _whole(state: State, need: Need, key: ClassKey, allowed: Allowed | None) -> Placement | None:
    cards = state.index.cards[key]
    parts: list[tuple[str, tuple[str, ...]]] = []
    if need.terms is not None:
        nodes = [one for one in _nodes_with(state, cards, need, need.count)
                 if allowed is None or allowed(one)]  # fmt: skip
        found = whole_parts(state, need, key, nodes)
        milli = WHOLE_MILLI * need.count * need.nodes
        return None if found is None else Placement(tuple(found), milli, key)
    for node in _nodes_with(state, cards, need, need.count):
        if allowed is not None and not allowed(node):
            continue
        parts.append((node, tuple(cards.free[node][: need.count])))
        if len(parts) == need.nodes:
            return Placement(tuple(parts), WHOLE_MILLI * need.count * need.nodes, key)
    return None


def _share(state: State, need: Need, key: ClassKey, allowed: Allowed | None) -> Placement | None:
    cards = state.index.cards[key]
    if need.delivery == "vgpu":
        nodes = [one for one in cards.members if (allowed is None or allowed(one))
                 and _fits_host(state, state.nodes[one], need)]  # fmt: skip
        spot = vgpu_spot(state, need, key, nodes)
        return None if spot is None else Placement(((spot[0], spot[1:]),), need.gpu_milli, key)
    for at in range(bisect_left(cards.partial, (need.gpu_milli, "")), len(cards.partial)):
        uuid = cards.partial[at][1]
        device = state.devices[uuid]
        if allowed is not None and not allowed(device.node):
            continue
        roomy = free_memory(state, device) >= need.memory_mib and sessions_fit(device, need)
        if roomy and host_fits(state, state.nodes[device.node], need):
            return Placement(((device.node, (uuid,)),), need.gpu_milli, key)
    for node in _nodes_with(state, cards, need, 1):
        if allowed is not None and not allowed(node):
            continue
        for uuid in cards.free[node]:
            if need.terms is None or sessions_fit(state.devices[uuid], need):
                return Placement(((node, (uuid,)),), need.gpu_milli, key)
    return None


def _mig(state: State, need: Need, key: ClassKey, allowed: Allowed | None) -> Placement | None:
    slices = state.index.slices[key]
    parts: dict[str, list[str]] = {}
    apart = Apart(state, need)
    left = need.count
    for node, _device, _start, name in state.index.makers.by_scarcity(key, slices.free, state):
        if allowed is not None and not allowed(node):
            continue
        if node in parts or (host_fits(state, state.nodes[node], need) and apart.takes((node,))):
            parts.setdefault(node, []).append(name)
            left -= 1
            if left == 0:
                done = tuple((node, tuple(units)) for node, units in parts.items())
                return Placement(done, key[4] * need.count, key)
    return None


_BEST_FIT = "best-fit"


_FINDERS = {"whole": _whole, "share": _share, "mig": _mig}


def _nodes_with(state: State, cards: Cards, need: Need, count: int) -> Iterator[str]:
    """Yield nodes with at least ``count`` free devices and what is asked beside them."""
    plain = not need.cpu_milli and not need.host_memory_mib
    for bucket in cards.buckets[count:]:
        for node in bucket:
            if (plain and count) or _fits_host(state, state.nodes[node], need):
                yield node


def _fits_host(state: State, node: Node, need: Need) -> bool:
    return node.open and host_fits(state, node, need)


def host_fits(
    state: State, node: Node, need: Need, *, ended: Collection[str] = (), own: bool = False
) -> bool:
    """Say whether the node has what is asked beside the devices, once ``ended`` leases have ended.

    What is kept for requests that have a place here is not there for others;
    ``own``: the need is one of those.
    """
    if not need.cpu_milli and not need.host_memory_mib:
        return True
    cpu, memory = state.index.beside.get(node.name, (0, 0))
    cpu += node.cpu_used + (0 if own else need.cpu_milli)
    memory += node.memory_used + (0 if own else need.host_memory_mib)
    for name in ended:
        lease = state.leases[name]
        if node.name in lease.parts:
            other = state.requests[lease.request].need
            cpu -= other.cpu_milli
            memory -= other.host_memory_mib
    return (not need.cpu_milli or node.cpu_milli is None or cpu <= node.cpu_milli) and (
        not need.host_memory_mib or node.memory_mib is None or memory <= node.memory_mib
    )


def _asked(need: Need) -> dict[str, int | str | None]:
    asked: dict[str, int | str | None] = {"mode": need.mode}
    if need.models:
        asked["models"] = "|".join(need.models)[:MAX_LISTED_TEXT]
    if need.pool is not None:
        asked["pool"] = need.pool
    if need.profile:
        asked["profile"] = need.profile
    if need.memory_mib:
        asked["memory_mib"] = need.memory_mib
    if need.compute_slices:
        asked["compute_slices"] = need.compute_slices
    return asked | (told(need.terms) if need.terms is not None else {})


def shortfall(state: State, need: Need) -> Shortfall:
    """Say what is short for a need that has no place: counted place by place (C21)."""
    index = state.index
    classes = index.matches(state, need)
    pending = index.makers.pending_for(state, need) if need.mode == "mig" else 0
    if pending:
        return Shortfall("partition_pending", _asked(need) | {"devices": pending})
    if not classes:
        return Shortfall("no_such_hardware", _asked(need))
    if need.terms is not None and place(state, replace(need, terms=None)) is not None:
        return Shortfall("constraints_unmet", _asked(need))
    if need.mode == "mig":
        free = sum(len(index.slices[key].free) for key in classes)
        numbers: dict[str, int | str | None] = {"needs_slices": need.count, "free_slices": free}
        return Shortfall("no_capacity" if free < need.count else "no_beside", numbers)
    if need.mode == "share":
        whole = sum(index.cards[key].all_free() for key in classes)
        most = max((index.cards[key].most_room() for key in classes), default=0)
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
        free += cards.all_free()
    return Shortfall(
        "no_capacity" if places < need.nodes else "no_beside",
        {
            "needs_places": need.nodes,
            "gpus_per_place": need.count,
            "places": places,
            "free_gpus": free,
        },
    )
