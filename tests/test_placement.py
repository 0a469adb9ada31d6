"""Where a need is met: best fit, then least name; all or nothing; and why not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.testing import CoreDriver, device, mig_slice


def cell_of(*free: int, **node: object) -> CoreDriver:
    """Return a cell of nodes n1, n2, … with so many devices each."""
    cell = CoreDriver()
    cell.pool()
    cell.queue()
    cell.quota()
    for at, count in enumerate(free, 1):
        devices = [device(f"GPU-{at}-{one}") for one in range(count)]
        cell.feed(
            "node.inventory",
            {"node": f"n{at}", "incarnation": "b1", "epoch": 1, "pool": "main"}
            | {"devices": devices, **node},
            source=f"/nodes/n{at}",
        )
    return cell


def places(cell: CoreDriver, name: str) -> dict[str, list[str]]:
    """Return the units that a request holds, by node."""
    return {part.node: part.units for part in cell.lease(name).parts.values()}


def whole(count: int, nodes: int = 1, **more: object) -> dict[str, Any]:
    """Return an ask for whole devices."""
    return {"mode": "whole", "count": count, "nodes": nodes, **more}


def test_best_fit_leaves_the_large_node_whole() -> None:
    """One device is taken where the fewest are free that are enough."""
    cell = cell_of(8, 2, 4)
    cell.submit("one", whole(1))
    assert {"n2": ["GPU-2-0"]} == places(cell, "one")
    cell.submit("three", whole(3))
    assert {"n3": ["GPU-3-0", "GPU-3-1", "GPU-3-2"]} == places(cell, "three")
    cell.submit("eight", whole(8))
    assert ["n1"] == list(places(cell, "eight"))


def test_ties_go_to_the_least_name() -> None:
    """Equal nodes: by name. Devices of a node: by UUID. So a replay chooses the same."""
    cell = cell_of(2, 2, 2)
    cell.submit("one", whole(1))
    assert {"n1": ["GPU-1-0"]} == places(cell, "one")


def test_a_gang_has_distinct_nodes_and_is_whole() -> None:
    """Each part on a node of its own; one node too few and nothing is taken."""
    cell = cell_of(2, 2, 1)
    assert "queued" == cell.submit("three", whole(2, 3)).code
    assert not cell.state.leases
    cell.submit("two", whole(2, 2))
    assert {"n1", "n2"} == set(places(cell, "two"))


@given(
    free=st.lists(st.integers(0, 4), min_size=1, max_size=6),
    count=st.integers(1, 4),
    nodes=st.integers(1, 4),
)
def test_a_place_is_found_exactly_when_there_is_one(
    free: list[int], count: int, nodes: int
) -> None:
    """Granted if and only if enough nodes have enough free devices (C21), and as tightly."""
    cell = cell_of(*free)
    answer = cell.submit("r", whole(count, nodes))
    enough = sorted(one for one in free if one >= count)
    if len(enough) < nodes:
        assert "queued" == answer.code
        if answer.numbers["reason"] == "no_capacity":
            assert (len(enough), sum(free)) == (
                answer.numbers["places"],
                answer.numbers["free_gpus"],
            )
        return
    taken = places(cell, "r")
    assert [count] * nodes == [len(units) for units in taken.values()]
    assert enough[:nodes] == sorted(free[int(node[1:]) - 1] for node in taken)


def test_memory_model_pool_and_labels_are_kept() -> None:
    """The least device memory that will do; exact models; all labels of the pool."""
    cell = cell_of()
    cell.pool("gold", labels={"zone": "1", "tier": "gold"})
    cell.node("n1", [device("GPU-80"), device("GPU-40", memory_mib=40_960)])
    cell.node("n2", [device("GPU-g", model="H200", memory_mib=143_771)], pool="gold")
    cell.submit("small", whole(1, memory_mib=30_000))
    assert {"n1": ["GPU-40"]} == places(cell, "small")
    cell.submit("label", whole(1, labels={"tier": "gold"}))
    assert {"n2": ["GPU-g"]} == places(cell, "label")
    for name, more, reason in (
        ("model", {"models": ["B200"]}, "no_such_hardware"),
        ("both", {"labels": {"zone": "1", "tier": "tin"}}, "no_such_hardware"),
        ("huge", {"memory_mib": 200_000}, "no_such_hardware"),
        ("taken", {"pool": "gold"}, "no_capacity"),
    ):
        assert reason == cell.submit(name, whole(1, **more)).numbers["reason"]
    assert "unknown_pool" == cell.submit("none", whole(1, pool="none")).code


def test_cpu_and_memory_beside_are_counted() -> None:
    """What is asked beside the devices is taken per node and given back at the end."""
    cell = cell_of(4, cpu_milli=8_000, memory_mib=100)
    beside = {"cpu_milli": 5_000, "memory_mib": 40}
    assert "granted" == cell.submit("one", whole(1), beside=beside).code
    answer = cell.submit("two", whole(1), beside=beside)
    assert "no_beside" == answer.numbers["reason"]
    assert "granted" == cell.submit("three", whole(1), beside={"cpu_milli": 3_000}).code
    cell.release(cell.lease("one").id)
    assert ["n1"] == list(places(cell, "two")), "CPU comes back before the device is clean"


def test_a_node_that_grows_serves_who_waits() -> None:
    """More CPU in a later inventory is enough to start who waited for it."""
    cell = cell_of(4, cpu_milli=1_000)
    assert "queued" == cell.submit("one", whole(1), beside={"cpu_milli": 5_000}).code
    devices = [device(f"GPU-1-{at}") for at in range(4)]
    cell.node("n1", devices, epoch=2, cpu_milli=8_000)
    assert ["n1"] == list(places(cell, "one"))


def test_a_node_without_devices_serves_cpu_only_tasks() -> None:
    """``count`` 0 asks for CPU alone: a bare node first, and only while it is in service."""
    cell = cell_of(1, cpu_milli=4_000)
    cell.node("bare", cpu_milli=4_000)
    beside = {"cpu_milli": 3_000}
    for name, node in (("one", "bare"), ("two", "n1")):
        assert "granted" == cell.submit(name, whole(0), beside=beside).code
        assert {node: []} == places(cell, name)
    assert "no_beside" == cell.submit("three", whole(0), beside=beside).numbers["reason"]
    assert 0 == cell.state.quotas["t"].used.get("gpu", 0)
    cell.release(cell.lease("one").id)
    assert {"bare": []} == places(cell, "three")
    cell.node_set("bare", "draining")
    cell.release(cell.lease("three").id)
    assert "queued" == cell.submit("four", whole(0), beside=beside).code


def test_bare_nodes_are_no_hardware_for_others() -> None:
    """A pool of bare nodes has no device, and says so."""
    cell = cell_of()
    cell.node("bare", cpu_milli=4_000)
    assert "no_such_hardware" == cell.submit("one", whole(1)).numbers["reason"]


def test_shares_fill_the_fullest_device_that_has_room() -> None:
    """A share goes where the least room is left that is enough, by memory too."""
    cell = cell_of(2)
    for name, milli, memory, uuid in (
        ("a", 600, 10_000, "GPU-1-0"),
        ("b", 500, 10_000, "GPU-1-1"),
        ("c", 400, 10_000, "GPU-1-0"),
        ("d", 100, 70_000, "GPU-1-1"),
    ):
        ask = {"mode": "share", "gpu_milli": milli, "memory_mib": memory}
        assert "granted" == cell.submit(name, ask).code
        assert {"n1": [uuid]} == places(cell, name)
    ask = {"mode": "share", "gpu_milli": 100, "memory_mib": 5_000}
    answer = cell.submit("e", ask)
    assert ("queued", "no_capacity") == (answer.code, answer.numbers["reason"])
    assert 400 == answer.numbers["most_free_gpu_milli"]


@pytest.mark.parametrize("mig_enabled", [True, False])
def test_a_sliced_device_is_not_leased_whole(mig_enabled: bool) -> None:
    """Slices are reported: whole and shares wait, even if the report forgets the MIG mode (A3)."""
    cell = cell_of()
    slices = [mig_slice("MIG-1", 1, 0)]
    cell.node("n1", [device("GPU-m", mig_enabled=mig_enabled, compute_slices=7, slices=slices)])
    assert "queued" == cell.submit("whole", whole(1)).code
    assert "queued" == cell.submit("share", {"mode": "share", "gpu_milli": 1}).code
    assert "granted" == cell.submit("mig", {"mode": "mig", "profile": "1g.10gb"}).code


def test_slices_are_charged_by_their_part() -> None:
    """A 1g of seven counts 143 thousandths, rounded up; neighbours fill first."""
    cell = cell_of()
    slices = [mig_slice(f"MIG-{at}", at, at) for at in (2, 0, 1)]
    cell.node("n1", [device("GPU-m", mig_enabled=True, compute_slices=7, slices=slices)])
    cell.submit("two", {"mode": "mig", "profile": "1g.10gb", "count": 2})
    assert 286 == cell.state.quotas["t"].used.get("gpu", 0)
    units = places(cell, "two")["n1"]
    assert ["MIG-0", "MIG-1"] == [cell.state.slices[unit].mig_uuid for unit in units]
    answer = cell.submit("more", {"mode": "mig", "profile": "1g.10gb", "count": 2})
    assert {"reason": "no_capacity", "needs_slices": 2, "free_slices": 1} == answer.numbers


def test_the_charge_does_not_depend_on_who_was_seen_first() -> None:
    """Two devices alike but for their compute slices: each slice counts as its own part."""
    totals = []
    for order in ((7, 4), (4, 7)):
        cell = cell_of()
        for at in order:
            slices = [mig_slice(f"MIG-{at}", at, 0)]
            card = device(f"GPU-{at}", mig_enabled=True, compute_slices=at, slices=slices)
            cell.node(f"n{at}", [card])
        cell.submit("a", {"mode": "mig", "profile": "1g.10gb"})
        cell.submit("b", {"mode": "mig", "profile": "1g.10gb"})
        totals.append([cell.lease("a").charge_milli, cell.lease("b").charge_milli])
    assert [[143, 250], [143, 250]] == totals


def test_what_is_gone_leaves_no_class_behind() -> None:
    """When the last device of a kind is of another kind, the cell has no such hardware."""
    cell = CoreDriver(check=True)
    cell.pool()
    cell.queue()
    cell.quota()
    slices = [mig_slice("MIG-1", 1, 0)]
    cell.node("n1", [device("GPU-m", mig_enabled=True, compute_slices=7, slices=slices)])
    cell.node("n1", [device("GPU-m", model="H200")])
    mig = cell.submit("mig", {"mode": "mig", "profile": "1g.10gb"})
    old = cell.submit("old", whole(1, models=["H100"]))
    assert ["no_such_hardware"] * 2 == [mig.numbers["reason"], old.numbers["reason"]]
    assert "granted" == cell.submit("new", whole(1, models=["H200"])).code
