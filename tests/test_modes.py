"""Constraints on where, and the delivery modes beside whole cards, slices and shares."""

from __future__ import annotations

from typing import Any

import pytest

from ledger.core.evolve import RuleBroken, evolve
from ledger.testing import CoreDriver, device

H100 = {"architecture": "hopper", "capability": "9.0"}


def cell_of(**pool: object) -> CoreDriver:
    """Return a checked cell with a pool, a queue and a quota that never binds."""
    cell = CoreDriver(check=True)
    cell.pool(**pool)  # type: ignore[arg-type]
    cell.queue()
    cell.quota()
    return cell


def whole(count: int = 1, **more: object) -> dict[str, Any]:
    """Return an ask for whole devices."""
    return {"mode": "whole", "count": count, **more}


def nodes_of(cell: CoreDriver, name: str) -> list[str]:
    """Return the nodes that a request holds something on."""
    return list(cell.lease(name).parts)


def give_back(cell: CoreDriver, name: str) -> None:
    """Release a request's lease and have it proved clean."""
    cell.release(cell.lease(name).id)
    cell.answer_all_orders()


# -- of which devices -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("ask", "node"),
    [
        ({"architectures": ["hopper"]}, "n2"),
        ({"architectures": ["blackwell", "hopper"]}, "n2"),
        ({"architectures": ["blackwell"]}, None),
        ({"capability": "8.0"}, "n1"),
        ({"capability": "8.1"}, "n2"),
        ({"capability": "9"}, "n2"),
        ({"capability": "10.0"}, None),
        ({"driver_min": "535.104.5"}, "n1"),
        ({"driver_min": "550.54"}, "n2"),
        ({"driver_min": "550.54.15"}, "n2"),
        ({"driver_min": "550.100"}, None),
    ],
)
def test_a_constraint_is_met_or_nothing_is_given(ask: dict[str, Any], node: str | None) -> None:
    """Versions are compared part by part as numbers: 550.100 is after 550.54."""
    cell = cell_of()
    cell.node(
        "n1",
        [device("U-1", architecture="ampere", capability="8.0", model="A100")],
        driver="535.104.05",
    )
    cell.node("n2", [device("U-2", **H100)], driver="550.54.15")

    answer = cell.submit("r", whole(**ask))

    if node is None:
        assert "no_such_hardware" == answer.numbers["reason"]
        (name,) = ask
        assert name in answer.numbers
    else:
        assert [node] == nodes_of(cell, "r")


def test_what_is_not_reported_does_not_do() -> None:
    """A device of unknown capability and a node of unknown driver serve who asks nothing."""
    cell = cell_of()
    cell.node("n1", [device("U-1")])

    for ask in ({"capability": "1.0"}, {"architectures": ["hopper"]}, {"driver_min": "1"}):
        assert "no_such_hardware" == cell.submit(None, whole(**ask)).numbers["reason"]
    assert "granted" == cell.submit("plain", whole()).code


def test_nodes_of_one_class_may_differ() -> None:
    """Half a pool has the new driver: who needs it gets that half, and waits when it is full."""
    cell = cell_of()
    cell.node("n1", [device("U-1", **H100)], driver="535.1")
    cell.node("n2", [device("U-2", **H100)], driver="550.1")

    cell.submit("first", whole(driver_min="550"))
    waits = cell.submit("second", whole(driver_min="550"))

    assert ["n2"] == nodes_of(cell, "first")
    assert ("queued", "constraints_unmet") == (waits.code, waits.numbers["reason"])
    cell.node("n1", [device("U-1", **H100)], driver="550.2", epoch=2)
    assert ["n1"] == nodes_of(cell, "second")


def test_a_wait_for_hardware_ends_when_it_comes() -> None:
    """A node that joins a known class is looked at by who waits for what only it has."""
    cell = cell_of()
    cell.node("n1", [device("U-1")])
    assert "queued" == cell.submit("r", whole(architectures=["hopper"])).code

    cell.node("n2", [device("U-2", **H100)])

    assert ["n2"] == nodes_of(cell, "r")


def test_a_lease_that_breaks_a_term_stops_every_reader() -> None:
    """A14: the fold refuses a grant on a device of another architecture."""
    cell = cell_of()
    cell.node("n1", [device("U-1")])
    cell.submit("r", whole(architectures=["hopper"]))
    name = cell.key("r")
    event = {
        "type": "lease.granted",
        "lease": f"{name}/1",
        "request": name,
        "attempt": 1,
        "charge_milli": 1000,
        "parts": [{"node": "n1", "units": ["U-1"]}],
        "model": "H100",
        "memory_mib": 81_920,
        "why": {},
    }

    with pytest.raises(RuleBroken, match="A14"):
        evolve(cell.state, event, cell.now_us)


# -- whose, and how -------------------------------------------------------------------


def test_a_pool_is_for_some_tenants_and_modes() -> None:
    """Others get nothing of it, whether they name it or not; and it may be opened again."""
    cell = cell_of(allowed_tenants=["vip"], allowed_modes=["whole"])
    cell.quota("vip")
    cell.node("n1", [device("U-1"), device("U-2")])
    share = {"mode": "share", "gpu_milli": 100}

    assert "no_such_hardware" == cell.submit("other", whole()).numbers["reason"]
    assert "pool_refuses" == cell.submit("named", whole(pool="main")).code
    assert "granted" == cell.submit("vip", whole(pool="main"), tenant="vip").code
    assert "pool_refuses" == cell.submit("share", share | {"pool": "main"}, tenant="vip").code
    assert "granted" == cell.submit("cpu", whole(0), tenant="vip").code

    cell.pool()
    assert ["n1"] == nodes_of(cell, "other")


def test_a_pool_that_is_closed_keeps_who_waits_out() -> None:
    """The rule in force counts, not the one at the time of the request; leases stay (Q1)."""
    cell = cell_of()
    cell.node("n1", [device("U-1")])
    cell.submit("holds")
    cell.submit("waits")

    cell.pool(allowed_tenants=["vip"])
    give_back(cell, "holds")

    assert "queued" == cell.state.requests[cell.key("waits")].state
    cell.quota("vip")
    assert "granted" == cell.submit("vip", whole(), tenant="vip").code


# -- how far apart --------------------------------------------------------------------


def racks(*names: str, devices: int = 2) -> CoreDriver:
    """Return a cell of nodes n1, n2, … in these racks; the pool says of the rest: r0."""
    cell = cell_of(labels={"rack": "r0"})
    for at, name in enumerate(names, 1):
        uuids = [device(f"U-{at}-{one}") for one in range(devices)]
        cell.node(f"n{at}", uuids, labels={"rack": name} if name else {})
    return cell


def test_a_gang_is_spread_over_racks() -> None:
    """Never two of its nodes in one rack; too few racks and it waits, with nodes to spare."""
    cell = racks("r1", "r1", "r2", "")

    cell.submit("three", whole(1, nodes=3, spread="label:rack"))
    waits = cell.submit("four", whole(1, nodes=4, spread="label:rack"))

    assert ["n1", "n3", "n4"] == nodes_of(cell, "three")
    assert "constraints_unmet" == waits.numbers["reason"]


def test_without_the_label_a_domain_is_unknown() -> None:
    """Unknown is not different: such a node takes no part in a spread."""
    cell = racks("r1", "r2")

    answer = cell.submit("r", whole(spread="label:feed"))

    assert ("queued", "no_such_hardware") == (answer.code, answer.numbers["reason"])


@pytest.mark.parametrize("mode", ["whole", "share"])
def test_replicas_are_spread_until_one_ends(mode: str) -> None:
    """Never two replicas of one task on a node; other tasks do not matter."""
    cell = racks("", "", devices=3)
    ask = {"mode": mode, "spread": "node"} | ({"gpu_milli": 200} if mode == "share" else {})

    cell.submit("a", ask)
    cell.submit("b", ask)
    cell.submit("other", ask, task={"id": "another"})
    assert "queued" == cell.submit("c", ask).code
    assert {"n1", "n2"} == {*nodes_of(cell, "a"), *nodes_of(cell, "b")}

    # Its device is not clean yet: another device of the same node does.
    cell.release(cell.lease("a").id)
    assert nodes_of(cell, "c") == ["n1"]


def test_an_eviction_keeps_the_spread() -> None:
    """Where a replica is already, nobody is evicted for the next one."""
    cell = racks("", "", devices=1)
    cell.queue("high", preemption="any-tenant")
    ask = whole(spread="node")
    cell.submit("low-1", whole(), preemptible=True, task={"id": "x"})
    cell.submit("low-2", whole(), preemptible=True, task={"id": "y"})

    for name in ("a", "b", "c"):
        cell.submit(name, ask, queue="high", priority=9)
    cell.answer_all_orders()

    assert {"n1", "n2"} == {*nodes_of(cell, "a"), *nodes_of(cell, "b")}
    assert "queued" == cell.state.requests[cell.key("c")].state


# -- one NVLink domain ----------------------------------------------------------------


def linked(node: str, *domains: str) -> list[dict[str, Any]]:
    """Return devices of a node in these NVLink domains."""
    return [
        device(f"U-{node}-{at}", **({"nvlink_domain": name} if name else {}))
        for at, name in enumerate(domains)
    ]


def test_devices_of_a_node_are_of_one_domain() -> None:
    """Two islands on a node: the smallest that is enough; never one device of each."""
    cell = cell_of()
    cell.node("n1", linked("1", "a", "a", "a", "b", "b", ""))

    cell.submit("two", whole(2, same_nvlink_domain=True))
    cell.submit("three", whole(3, same_nvlink_domain=True))
    cell.submit("last", whole(1, same_nvlink_domain=True))

    assert ["U-1-3", "U-1-4"] == cell.lease("two").parts["n1"].units
    assert ["U-1-0", "U-1-1", "U-1-2"] == cell.lease("three").parts["n1"].units
    assert "queued" == cell.state.requests[cell.key("last")].state
    assert "granted" == cell.submit("any", whole()).code


def test_a_gang_is_in_one_domain_where_domains_span_nodes() -> None:
    """Rack-wide domains: all nodes of one; domains within nodes: each node by itself."""
    rack = cell_of()
    for name, domain in (("n1", "a"), ("n2", "b"), ("n3", "b"), ("n4", "a")):
        rack.node(name, linked(name, domain))
    rack.submit("gang", whole(1, nodes=2, same_nvlink_domain=True))
    rack.submit("next", whole(1, nodes=2, same_nvlink_domain=True))
    boxes = cell_of()
    for name in ("n1", "n2"):
        boxes.node(name, linked(name, name, name))
    boxes.submit("gang", whole(2, nodes=2, same_nvlink_domain=True))

    assert ["n1", "n4"] == nodes_of(rack, "gang")
    assert ["n2", "n3"] == nodes_of(rack, "next")
    assert ["n1", "n2"] == nodes_of(boxes, "gang")
