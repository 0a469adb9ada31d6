"""The invariants bite: each damage done to a good state is found under its id."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ledger.core.derived.index import rebuild
from ledger.core.digest import load_fold, save_fold
from ledger.core.invariants import check
from ledger.core.state import Hold, Need
from ledger.testing import TEAM, CoreDriver, device, mig_slice

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.core.state import State


@pytest.fixture(scope="module")
def cell() -> CoreDriver:
    """A cell with whole devices, a gang, a share, slices, CPU beside, and all kinds of orders."""
    cell = CoreDriver(check=True)
    cell.pool()
    cell.queue()
    cell.quota()
    slices = [mig_slice(f"MIG-{at}", at, at) for at in range(3)]
    cell.node("n1", [device(f"GPU-{at}") for at in range(4)], cpu_milli=8_000)
    cell.node("n2", [device(f"GPU-{at}") for at in (7, 8)])
    cell.node("n3", [device("GPU-m", mig_enabled=True, compute_slices=7, slices=slices)])
    cell.submit("gang", {"mode": "whole", "nodes": 2}, beside={"cpu_milli": 1_000})
    cell.submit("share", {"mode": "share", "gpu_milli": 300})
    cell.submit("mig", {"mode": "mig", "profile": "1g.10gb"})
    cell.submit("stopping")
    cell.submit("over")
    cell.submit("waits", {"mode": "whole", "count": 8}, max_wait_s=60)
    cell.reclaim(cell.lease("stopping").id)
    cell.release(cell.lease("over").id)
    return cell


GANG = f"{TEAM}#gang/1"
WAITS = f"{TEAM}#waits"
OVER = f"{TEAM}#over/1"
STOPPING = f"{TEAM}#stopping/1"


def _unit(state: State, request: str) -> str:
    parts = state.leases[f"{TEAM}#{request}/1"].parts
    return next(iter(parts.values())).units[0]


def _forget_hold(state: State) -> None:
    del state.devices[_unit(state, "gang")].holds[GANG]


def _second_holder(state: State) -> None:
    state.devices[_unit(state, "gang")].holds["ghost"] = Hold(1_000, 0)


def _clean_while_it_runs(state: State) -> None:
    state.devices[_unit(state, "gang")].holds[GANG].cleaning = True


def _slice_of_another(state: State) -> None:
    state.slices[_unit(state, "mig")].lease = GANG


def _cleaning_for_nobody(state: State) -> None:
    next(one for one in state.slices.values() if one.lease is None).cleaning = True


def _sliced_and_whole(state: State) -> None:
    state.devices["GPU-m"].holds[OVER] = Hold(1_000, 0, cleaning=True)


def _overlap(state: State) -> None:
    for item in state.slices.values():
        item.start = 0


def _listed_twice(state: State) -> None:
    state.nodes["n2"].devices.append("GPU-0")


def _unsorted(state: State) -> None:
    state.nodes["n1"].devices.reverse()


def _elsewhere(state: State) -> None:
    state.devices["GPU-0"].node = "n2"


def _slice_lost(state: State) -> None:
    state.devices["GPU-m"].slices.pop()


def _cpu(state: State) -> None:
    state.nodes["n1"].cpu_used += 1


def _half_gang(state: State) -> None:
    del state.leases[GANG].parts["n2"]


def _queued_with_lease(state: State) -> None:
    state.requests[f"{TEAM}#gang"].state = "queued"


def _granted_without(state: State) -> None:
    state.requests[WAITS].state = "granted"


def _odd_state(state: State) -> None:
    state.requests[WAITS].state = "wishing"


def _attempt(state: State) -> None:
    state.requests[f"{TEAM}#gang"].attempt = 2


def _request_lost(state: State) -> None:
    del state.requests[f"{TEAM}#gang"]


def _device_lost(state: State) -> None:
    del state.devices["GPU-m"]


def _node_lost(state: State) -> None:
    del state.nodes["n1"]


def _runs_nowhere(state: State) -> None:
    for part in state.leases[GANG].parts.values():
        part.state = "ended"


def _no_reason(state: State) -> None:
    state.leases[STOPPING].reason = None


def _stop_lost(state: State) -> None:
    for order in list(state.orders.values()):
        if order.kind == "stop":
            del state.orders[order.id]


def _clean_lost(state: State) -> None:
    for order in list(state.orders.values()):
        if order.kind == "clean":
            del state.orders[order.id]


def _clean_of_the_living(state: State) -> None:
    next(one for one in state.orders.values() if one.kind == "clean").lease = GANG


def _node_state(state: State) -> None:
    state.nodes["n3"].state = "asleep"


def _silent_since(state: State) -> None:
    state.nodes["n3"].silent_since_us = 1


def _quota(state: State) -> None:
    state.quotas["t"].used["gpu"] -= 1


def _from_the_future(state: State) -> None:
    state.now_us = 1


DAMAGE: dict[str, list[Callable[[State], None]]] = {
    "A1": [_forget_hold, _second_holder, _slice_of_another],
    "A2": [_overlap, _cpu],
    "A3": [_sliced_and_whole],
    "A4": [_odd_state, _no_reason, _node_state, _silent_since],
    "A5": [
        _queued_with_lease,
        _granted_without,
        _request_lost,
        _device_lost,
        _node_lost,
        _runs_nowhere,
    ],
    "A7": [_attempt, _clean_of_the_living],
    "A8": [_listed_twice, _unsorted, _elsewhere, _slice_lost],
    "A9": [_second_holder],
    "A10": [_half_gang],
    "A11": [_clean_while_it_runs, _cleaning_for_nobody, _clean_lost],
    "Q1": [_quota],
    "L5": [_from_the_future],
    "V1": [_stop_lost],
}


@pytest.mark.parametrize(
    ("invariant", "damage"),
    [pytest.param(name, one, id=one.__name__) for name, many in DAMAGE.items() for one in many],
)
def test_damage_is_found(cell: CoreDriver, invariant: str, damage: Callable[[State], None]) -> None:
    """A good state has no violation; a damaged one has one under the id of the rule."""
    state = load_fold(save_fold(cell.fold)).ready().cells["c"]
    assert [] == check(state)
    damage(state)
    assert invariant in {found.invariant for found in check(state)}


def _forget_card(state: State) -> None:
    cards = next(one for one in state.index.cards.values() if one.free)
    cards.free[next(name for name, uuids in cards.free.items() if uuids)].pop()


def _forget_waiting(state: State) -> None:
    state.index.waiting.discard(state.requests[WAITS])


def _forget_deadline(state: State) -> None:
    state.index.deadlines = type(state.index.deadlines)()


def _forget_slices(state: State) -> None:
    for slices in state.index.slices.values():
        slices.free.clear()


@pytest.mark.parametrize(
    "damage", [_forget_card, _forget_waiting, _forget_deadline, _forget_slices]
)
def test_a_wrong_index_is_found(cell: CoreDriver, damage: Callable[[State], None]) -> None:
    """What is kept beside the state is held against what the state gives (S2)."""
    state = load_fold(save_fold(cell.fold)).ready().cells["c"]
    damage(state)
    assert {"S2"} == {found.invariant for found in check(state)}
    rebuild(state)
    assert [] == check(state)


def test_waiting_for_what_is_free_is_found(cell: CoreDriver) -> None:
    """Somebody who waits for what could be had is a fault of the schedule (V1)."""
    state = load_fold(save_fold(cell.fold)).ready().cells["c"]
    state.requests[WAITS].need = Need("whole")
    rebuild(state)
    assert ["V1"] == [found.invariant for found in check(state)]
