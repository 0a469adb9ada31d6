"""Plans: a place promised to the first that waits, and who may use it until then.

In a queue with back-fill the first request that waits for whole devices is given
a plan: the nodes on which it will run, and the time from which they are all free,
as far as the leases there have known ends. Others may start on planned nodes only
if they are earlier in line, or end before that time; so the planned start is never
put off by what was let in after it. Without a known end the nodes are kept as they
become free, and the large request that never starts does start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.core.line.asking import asker_of
from ledger.core.placing.constraints import eligible, narrowed
from ledger.core.placing.picking import Apart
from ledger.core.promises.repair import beside_repairs
from ledger.core.promises.reservations import clash, outside_reservations

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.core.decisions.turn import Turn
    from ledger.core.derived.places import ClassKey
    from ledger.core.line.asking import Asker
    from ledger.core.state import Device, Need, Node, State

__all__ = [
    "allowed_nodes",
    "drop_broken",
    "drop_plan",
    "plan_for",
    "plan_stands",
    "unpromised_nodes",
]

#: Later than every time; stands for an end that nobody knows.
_NEVER = 1 << 62


def allowed_nodes(state: State, asker: Asker, now_us: int) -> Callable[[str], bool] | None:
    """Return on which nodes the asker may start now, as far as anything was promised there.

    They are not planned for an earlier one, enough is left for gangs whose place is kept
    (A10), and no reservation is broken. None: nothing is promised anywhere.
    """
    index = state.index
    if not (index.plans or index.repairs or state.reservations):
        return None
    found = (
        _unplanned(state, asker, now_us),
        beside_repairs(state, asker),
        outside_reservations(state, asker, now_us),
    )
    rules = [rule for rule in found if rule is not None]
    if len(rules) < 2:  # noqa: PLR2004 - one rule needs no other around it
        return rules[0] if rules else None
    return lambda node: all(rule(node) for rule in rules)


def _unplanned(state: State, asker: Asker, now_us: int) -> Callable[[str], bool] | None:
    plans = state.index.plans
    if not plans:
        return None

    def allowed(node: str) -> bool:
        owner = plans.get(node)
        if owner is None or owner == asker.request:
            return True
        other = state.requests[owner]
        if asker.rank < other.rank:
            return True
        start_us = other.plan.start_us if other.plan is not None else None
        run_us = asker.key.run_us
        return start_us is not None and run_us is not None and now_us + run_us <= start_us

    return allowed


def unpromised_nodes(
    state: State, asker: Asker, now_us: int, *, ended: bool = False
) -> Callable[[str], bool]:
    """Return who of the nodes may be cleared for the asker: not for one later in line.

    ``ended``: nobody is to be evicted there, and what ends already is waited for.
    """
    plans = state.index.plans
    beside = beside_repairs(state, asker, ended=ended)
    outside = outside_reservations(state, asker, now_us)

    def unpromised(node: str) -> bool:
        owner = plans.get(node)
        if owner not in (None, asker.request) and asker.rank >= state.requests[owner].rank:
            return False
        return (beside is None or beside(node)) and (outside is None or outside(node))

    return unpromised


def plan_stands(state: State, request: str) -> bool:
    """Say whether the request has a plan whose nodes can all still serve it."""
    known = state.requests[request]
    if known.plan is None:
        return False
    need = known.need
    classes = state.index.matches(state, need)
    asker = asker_of(state, known)
    start_us = max(known.plan.start_us or 0, state.now_us)
    return all(
        any(_best(state, state.nodes[name], need, key) is not None for key in classes)
        and clash(state, asker, name, start_us, state.now_us) is None
        for name in known.plan.nodes
    )


def plan_for(turn: Turn, asker: Asker) -> None:
    """Plan a place for the request if it is the first in its queue that needs one."""
    state = turn.state
    need = asker.key.need
    request = state.requests.get(asker.request)
    if request is None or request.state != "queued":
        return
    if state.queues[asker.key.queue].ordering != "backfill":
        # If it has a plan, its queue had another order then.
        drop_plan(turn, request.id)
        return
    if asker.key.reservation is not None:
        # Its place is reserved already.
        return
    if need.mode != "whole" or not need.count or (need.terms and need.terms.by_device):
        return
    if _planned_before(state, asker) or plan_stands(state, asker.request):
        return
    found = _plan(state, asker, turn.now_us)
    nodes, start_us = found if found is not None else ([], None)
    if not nodes and request.plan is None:
        return
    for owner in dict.fromkeys(state.index.plans.get(node) for node in nodes):
        if owner is not None and owner != asker.request:
            drop_plan(turn, owner)
    turn.emit(
        {
            "type": "request.planned",
            "request": asker.request,
            "nodes": nodes,
            "start_us": start_us,
        }
    )


def drop_broken(turn: Turn) -> None:
    """Let go the plans of which a node cannot serve any more: the others are there for all."""
    index = turn.state.index
    shaken = index.shaken
    if index.booked:
        # Who starts later than planned may run into a reservation, by time alone.
        shaken.update(owner for node, owner in index.plans.items() if node in index.booked)
    for name in sorted(shaken):
        request = turn.state.requests.get(name)
        if request is not None and request.plan is not None and not plan_stands(turn.state, name):
            drop_plan(turn, name)
    shaken.clear()


def drop_plan(turn: Turn, name: str) -> None:
    """Let go what is planned for the request, if anything is."""
    request = turn.state.requests.get(name)
    if request is not None and request.plan is not None:
        turn.emit({"type": "request.planned", "request": name, "nodes": [], "start_us": None})


def _planned_before(state: State, asker: Asker) -> bool:
    """One plan a queue: an earlier request of it that has one is enough."""
    return any(
        other.queue == asker.key.queue and other.rank < asker.rank
        for name in set(state.index.plans.values())
        if (other := state.requests[name]).id != asker.request
    )


def _plan(state: State, asker: Asker, now_us: int) -> tuple[list[str], int | None] | None:
    """Return the nodes that are free soonest and not planned for an earlier one, and when."""
    need = asker.key.need
    best: tuple[int, list[str]] | None = None
    for key in state.index.matches(state, need):
        ready = []
        may = narrowed(state, need, key, None)
        for name in state.index.cards[key].members:
            if may is not None and not may(name):
                continue
            owner = state.index.plans.get(name)
            if owner not in (None, asker.request) and state.requests[owner].rank < asker.rank:
                continue
            when = _best(state, state.nodes[name], need, key)
            start_us = max(when[0], now_us) if when is not None else now_us
            if when is not None and clash(state, asker, name, start_us, now_us) is None:
                ready.append((start_us, -when[1], name))
        if len(ready) < need.nodes:
            continue
        ready.sort()
        apart = Apart(state, need)
        chosen = [one for one in ready if apart.takes((one[2],))][: need.nodes]
        if len(chosen) < need.nodes:
            continue
        start_us = chosen[-1][0]
        if best is None or start_us < best[0]:
            best = (start_us, [name for _, _, name in chosen])
    if best is None:
        return None
    return sorted(best[1]), None if best[0] >= _NEVER else best[0]


def _best(state: State, node: Node, need: Need, key: ClassKey) -> tuple[int, int] | None:
    """Return when the node has enough devices of the class free, and how many are free now.

    None when it never will as things stand.
    """
    if not node.open or node.pool != key[0] or not eligible(state, key, node, need):
        return None
    if node.cpu_milli is not None and need.cpu_milli > node.cpu_milli:
        return None
    if node.memory_mib is not None and need.host_memory_mib > node.memory_mib:
        return None
    ends = []
    for uuid in node.devices:
        device = state.devices[uuid]
        if (device.model, device.memory_mib) == (key[1], key[2]):
            end = _free_at(state, device)
            if end is not None:
                ends.append(end)
    if len(ends) < need.count:
        return None
    ends.sort()
    return ends[need.count - 1], sum(end == 0 for end in ends)


def _free_at(state: State, device: Device) -> int | None:
    """Return when all that holds the device has ended: 0 now, `_NEVER` unknown, None out of use."""
    if device.health != "healthy" or device.quarantine is not None:
        return None
    if device.mig_enabled or device.slices:
        return None
    if device.kept_for is not None:
        return _NEVER
    latest = 0
    for name in device.holds:
        lease = state.leases.get(name)
        if lease is None or lease.state == "stopping":
            continue
        if lease.due_us is None:
            return _NEVER
        latest = max(latest, lease.due_us)
    return latest
