"""Who has what a request needs, who is before it in line, and what is out of use."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING

from ledger.answers.outages import Outages
from ledger.core.derived.deadlines import expected_end
from ledger.core.derived.makers import FAILED
from ledger.core.quotas.quota import borrowing, chain, holder_of, root_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ledger.answers.outages import Outage
    from ledger.answers.rules import Asking
    from ledger.core.state import Device, Lease, State

__all__ = ["NAMED", "OF_QUOTA", "Holder", "Line", "holders_of", "line_of", "out_of_use"]

#: (pool, model, memory_mib, MIG profile or empty): devices that are alike for every request.
DeviceKind = tuple[str, str, int, str]

#: How many leases, and how many requests ahead, an explanation names.
NAMED = 10

#: Codes that are a matter of quota: who holds it stands in the way, whatever they have.
OF_QUOTA = frozenset({"quota_in_use", "budget_spent", "exceeds_quota"})


@dataclass(frozen=True, slots=True)
class Line:
    """A place in the line of those that wait for the same; ``ahead`` names the first of them."""

    place: int
    length: int
    ahead: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Holder:
    """A lease that has what the request needs.

    ``ends_us`` is its latest end, if it has one, and ``expected_us`` when it should
    end. ``borrows``: the quota of the lease, or one above it, uses more than its own.
    """

    lease: str
    tenant: str
    state: str
    units: tuple[str, ...]
    since_us: int
    ends_us: int | None
    expected_us: int | None = None
    borrows: bool = False


def line_of(state: State, asking: Asking, code: str) -> Line:
    """Count those that wait for the same devices; for quota, those of the same quota."""
    waiting, key = state.index.waiting, asking.asker.key
    mine = state.index.matches(state, key.need)
    if code in OF_QUOTA or not mine:
        lines = [
            shape.line
            for shape in waiting.in_tree(root_of(state, key.holder))
            if shape.key.holder == key.holder
        ]
    else:
        lines = [shape.line for shape in waiting.for_classes(mine)]
    me = (asking.asker.rank, asking.asker.request)
    before = [bisect_left(line, me) for line in lines]
    first = merge(*(line[: min(at, NAMED)] for line, at in zip(lines, before, strict=True)))
    known = state.requests.get(asking.asker.request)
    waits = known is not None and known.state == "queued"
    return Line(
        sum(before) + 1,
        sum(map(len, lines)) + (not waits),
        tuple(name for _, name in islice(first, NAMED)),
    )


def holders_of(state: State, asking: Asking, code: str) -> list[Holder]:
    """Return who holds what the request needs, ending soonest first.

    For a quota that is in use those are the leases that count against it, and those
    of the same tree that borrow.
    """
    quota = code in OF_QUOTA
    mine = frozenset(key[:4] for key in state.index.matches(state, asking.need))
    tree = _Tree(state, asking.holder)
    found = []
    for lease in state.leases.values():
        request = state.requests[lease.request]
        holder = holder_of(state, request.tenant, request.project)
        borrows = tree.borrows(holder)
        if quota:
            if holder != asking.holder and not borrows:
                continue
            units = _all_units(lease)
        else:
            units = tuple(one for one in _all_units(lease) if _kind_of(state, one) in mine)
            if not units:
                continue
        found.append(
            Holder(
                lease.id, lease.tenant, lease.state, units, lease.granted_us, lease.due_us,
                state.now_us if lease.state == "stopping" else expected_end(state, lease), borrows,
            )
        )  # fmt: skip
    found.sort(key=lambda one: (one.expected_us is None, one.expected_us or 0, one.lease))
    return found


def _all_units(lease: Lease) -> tuple[str, ...]:
    return tuple(unit for part in lease.parts.values() for unit in part.units)


class _Tree:
    """Which quotas of the asker's tree, others than its own, use more than their own."""

    def __init__(self, state: State, holder: str) -> None:
        self._state = state
        self._root = root_of(state, holder)
        self._shared = frozenset(quota.name for quota in chain(state, holder))
        self._known: dict[str, bool] = {}

    def borrows(self, holder: str) -> bool:
        """Say whether the quota has borrowed what the asker's tree could lend to the asker."""
        found = self._known.get(holder)
        if found is None:
            same = root_of(self._state, holder) == self._root
            found = same and bool(borrowing(self._state, holder, self._shared))
            self._known[holder] = found
        return found


def _kind_of(state: State, unit: str) -> DeviceKind | None:
    """Return (pool, model, memory, profile) of a device or slice, the kind its class is of."""
    item = state.slices.get(unit)
    device = state.devices.get(unit if item is None else item.device)
    if device is None:
        return None
    pool = state.nodes[device.node].pool
    return (pool, device.model, device.memory_mib, "" if item is None else item.profile)


def out_of_use(
    state: State, asking: Asking, outages: Outages | None = None
) -> Iterator[tuple[str, Outage | None]]:
    """Name devices of the kinds asked for that nobody may have now, and why.

    With what the records say of it (``outages``), where it is on record.
    """
    wanted = {key[:3] for key in state.index.matches(state, asking.need)}
    told = Outages() if outages is None else outages
    for uuid, device in sorted(state.devices.items()):
        node = state.nodes[device.node]
        if (node.pool, device.model, device.memory_mib) not in wanted:
            continue
        why = _out(state, device, asking)
        if why is None or not _has_slices(state, device, asking):
            continue
        kind, about, short = why
        cause = told.of(state.cell, kind, about)
        whose = f"node {about}: " if kind == "node" else f"slice {about}: " if about != uuid else ""
        yield f"{uuid}: {short}" if cause is None else f"{uuid}: {whose}{cause.text}", cause


def _has_slices(state: State, device: Device, asking: Asking) -> bool:
    """Say whether a device could matter to who asks: of slices it has some, or they can be made.

    Of one that is gone it is not known what it will have.
    """
    if asking.need.mode != "mig" or device.health == "gone":
        return True
    profiles = {key[3] for key in state.index.matches(state, asking.need)}
    offered = {key[3] for key in state.index.makers.offers.get(device.uuid, ())}
    return not profiles.isdisjoint(
        {*offered, *(state.slices[name].profile for name in device.slices)}
    )


def _out(state: State, device: Device, asking: Asking) -> tuple[str, str, str] | None:
    """Return what keeps a device from the asker: in which way, what of it, and in short."""
    node, uuid = state.nodes[device.node], device.uuid
    if device.quarantine is not None:
        return "quarantine", uuid, f"in quarantine: {device.quarantine}"
    if device.health != "healthy":
        return "health", uuid, device.health
    if node.state != "online":
        return "node", node.name, f"node {node.name} is {node.state}"
    if device.kept_for not in (None, asking.asker.request):
        return "", uuid, f"kept for {device.kept_for}"
    if any(hold.cleaning for hold in device.holds.values()):
        return "", uuid, "being cleaned"
    if asking.need.mode == "mig":
        for name in device.slices:
            item = state.slices[name]
            if item.quarantine is not None:
                return "quarantine", name, f"slice {name} in quarantine: {item.quarantine}"
        if f"{FAILED} {uuid}" in state.alarms:
            return "partition", uuid, "a change of its partitions has failed"
    return None
