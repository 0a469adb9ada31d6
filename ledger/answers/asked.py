"""What else the requester could ask for, and would be given now. Each is tried out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.amounts import mib_text, per_cent, seconds_text
from ledger.answers.trials import Change, runs, with_need, with_run
from ledger.core.line.asking import over_quota
from ledger.core.placing.placement import charge_of, shortfall
from ledger.core.promises.plans import allowed_nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ledger.answers.rules import Asking
    from ledger.core.placing.placement import Placement
    from ledger.core.state import State

__all__ = ["asked_otherwise"]

#: How many other MIG profiles are named.
_MOST_PROFILES = 3


def asked_otherwise(state: State, asking: Asking) -> Iterator[Change]:
    """Yield smaller or other requests that would run now."""
    yield from _FINDERS[asking.need.mode](state, asking)
    yield from _elsewhere(state, asking)
    yield from _shorter(state, asking)


def _change(kind: str, text: str, found: Placement, **numbers: int | str | None) -> Change:
    told = {**numbers, "pool": found.of_class[0], "model": found.of_class[1]}
    return Change(kind, "requester", text, told)


def _whole(state: State, asking: Asking) -> Iterator[Change]:
    """Fewer devices a node, or fewer nodes; a slice instead of one device."""
    need = asking.need
    for count in range(need.count - 1, 0, -1):
        found = runs(state, with_need(asking, count=count))
        if found is not None:
            each = " on each node" if need.nodes > 1 else ""
            yield _change("fewer", f"{count} instead of {need.count} devices{each}", found,
                          count=count, nodes=need.nodes)  # fmt: skip
            break
    low, high = 0, need.nodes - 1
    while low < high:
        middle = (low + high + 1) // 2
        if runs(state, with_need(asking, nodes=middle)) is None:
            high = middle - 1
        else:
            low = middle
    found = runs(state, with_need(asking, nodes=low)) if low else None
    if found is not None:
        yield _change("fewer", f"{low} instead of {need.nodes} nodes", found,
                      count=need.count, nodes=low)  # fmt: skip
    if need.count == need.nodes == 1:
        yield from _profiles(state, asking, count=1)


def _share(state: State, asking: Asking) -> Iterator[Change]:
    """As much as the emptiest device has left; a slice."""
    need = asking.need
    most = shortfall(state, need).numbers.get("most_free_gpu_milli")
    if isinstance(most, int) and 0 < most < need.gpu_milli:
        found = runs(state, with_need(asking, gpu_milli=most))
        if found is not None:
            asked = per_cent(need.gpu_milli, 1000)
            text = f"a share of {per_cent(most, 1000)} of a device instead of {asked}"
            yield _change("fewer", text, found, gpu_milli=most)
    yield from _profiles(state, asking, count=1)


def _mig(state: State, asking: Asking) -> Iterator[Change]:
    """Fewer slices, or slices of another profile."""
    need = asking.need
    for count in range(need.count - 1, 0, -1):
        found = runs(state, with_need(asking, count=count))
        if found is not None:
            yield _change("fewer", f"{count} instead of {need.count} slices", found, count=count)
            break
    yield from _profiles(state, asking, count=need.count)


def _profiles(state: State, asking: Asking, *, count: int) -> Iterator[Change]:
    """Profiles that are there and free, what is nearest in size to what was asked first."""
    need = asking.need
    asked = charge_of(state, need)
    sizes = {key[3]: key[4] * count for key in state.index.slices if key[3] != need.profile}
    named = 0
    for profile in sorted(sizes, key=lambda one: (abs(sizes[one] - asked), one)):
        found = runs(
            state, with_need(asking, mode="mig", profile=profile, count=count, memory_mib=0)
        )
        if found is None or (need.mode != "mig" and _slice_memory(state, found) < need.memory_mib):
            continue
        yield _change("profile", f"{count} x MIG {profile}", found, profile=profile, count=count)
        named += 1
        if named == _MOST_PROFILES:
            return


def _slice_memory(state: State, found: Placement) -> int:
    return min(state.slices[unit].memory_mib for _, units in found.parts for unit in units)


def _elsewhere(state: State, asking: Asking) -> Iterator[Change]:
    """Any other model, pool, label or memory, each alone and then all together."""
    need = asking.need
    free: dict[str, dict[str, object]] = {
        "model": {"models": ()} if need.models else {},
        "pool": {"pool": None, "labels": ()} if need.pool or need.labels else {},
        "memory": {"memory_mib": 0} if need.memory_mib and need.mode == "whole" else {},
        "beside": (
            {"cpu_milli": 0, "host_memory_mib": 0} if need.cpu_milli or need.host_memory_mib else {}
        ),
    }
    found = None
    for kind, change in free.items():
        found = runs(state, with_need(asking, **change)) if change else None
        if found is not None:
            yield _change(kind, _told(kind, found), found)
            return
    every = {name: value for change in free.values() for name, value in change.items()}
    found = runs(state, with_need(asking, **every)) if every else None
    if found is not None:
        yield _change("elsewhere", f"any device will do: {_told('', found)}", found)


def _told(kind: str, found: Placement) -> str:
    pool, model, memory_mib = found.of_class[:3]
    return {
        "model": f"model {model} instead",
        "pool": f"pool {pool} instead",
        "memory": f"devices of {mib_text(memory_mib)} instead ({model})",
        "beside": "less CPU or memory beside the devices",
    }.get(kind, f"{model} in pool {pool}")


def _shorter(state: State, asking: Asking) -> Iterator[Change]:
    """A longest run that ends before a plan's start, or that the budget still covers."""
    key, now_us = asking.asker.key, state.now_us
    runs_us = []
    allowed = allowed_nodes(state, asking.asker, now_us)
    if allowed is not None:
        plans = [state.requests[name].plan for name in set(state.index.plans.values())]
        starts = [one.start_us for one in plans if one is not None and one.start_us is not None]
        starts += [one.start_us for one in state.reservations.values()]
        runs_us += [start_us - now_us for start_us in starts]
    short = over_quota(state, key, now_us)
    charge = charge_of(state, key.need)
    if short is not None and short.resource == "gpu_time" and charge:
        runs_us.append(short.available // charge)
    for run_us in sorted(runs_us, reverse=True):
        limit = run_us // 1_000_000 * 1_000_000
        if limit <= 0 or (key.run_us is not None and limit >= key.run_us):
            continue
        found = runs(state, with_run(asking, limit))
        if found is not None:
            yield _change("run", f"a longest run of {seconds_text(limit)}", found, run_us=limit)
            return


_FINDERS: dict[str, Callable[[State, Asking], Iterator[Change]]] = {
    "whole": _whole,
    "share": _share,
    "mig": _mig,
}
