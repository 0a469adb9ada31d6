"""Constraints on where: devices, pools, distance, links, what runs there, licences."""

from __future__ import annotations

from typing import Any

import pytest

from ledger.core.evolve import RuleBroken, evolve
from ledger.core.invariants import check
from ledger.testing import CoreDriver, device
from tests.modes import H100, cell_of, give_back, nodes_of, whole

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


# -- what runs where, and how often ---------------------------------------------------

OPERATOR = {"author": "operator", "reason": "test"}


def rule(cell: CoreDriver, **more: object) -> None:
    """Set what version m1 of a model needs."""
    plain = {"model_version": "m1", **more, **OPERATOR}
    assert "applied" == cell.feed("compatibility.apply", plain, source="/operator").code


def licence(cell: CoreDriver, count: int) -> None:
    """Set how many of the licence may be in use."""
    plain = {"licence": "lic", "count": count, **OPERATOR}
    assert "applied" == cell.feed("licence.apply", plain, source="/operator").code


def two_kinds() -> CoreDriver:
    """Return a cell with a Hopper under driver 550 and an Ampere under 535."""
    cell = cell_of()
    cell.node("n1", [device("U-1", model="A100", architecture="ampere")], driver="535.1")
    cell.node("n2", [device("U-2", **H100)], driver="550.1")
    return cell


def test_a_rule_narrows_what_is_asked() -> None:
    """The model goes where it runs, and what it needs is on record with the request."""
    cell = two_kinds()
    rule(cell, architectures=["hopper", "blackwell"], driver_min="545")

    cell.submit("r", whole(), runtime={"model": "m1"})

    assert ["n2"] == nodes_of(cell, "r")
    terms = cell.state.requests[cell.key("r")].need.terms
    assert terms is not None
    assert (("hopper", "blackwell"), "545") == (terms.architectures, terms.driver_min)


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "no device of the architecture": (
        {"architectures": ["blackwell"]},
        {},
        {"runs_on": "blackwell", "architectures": "ampere|hopper"},
    ),
    "no driver so new": (
        {"driver_min": "560.2"},
        {},
        {"driver_min": "560.2", "drivers": "535.1|550.1"},
    ),
    "asked for another architecture": (
        {"architectures": ["hopper"]},
        {"ask": whole(architectures=["ampere"])},
        {"asked": "ampere", "runs_on": "hopper"},
    ),
    "another framework": (
        {"frameworks": ["torch-2.6", "jax"]},
        {"runtime": {"model": "m1", "framework": "torch-2.5"}},
        {"framework": "torch-2.5", "runs_in": "torch-2.6|jax"},
    ),
    "no framework said": ({"frameworks": ["jax"]}, {}, {"framework": None, "runs_in": "jax"}),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_run_is_refused_with_what_was_compared(case: str) -> None:
    """The no is final and says what is needed and what there is."""
    needs, request, compared = REFUSED[case]
    cell = two_kinds()
    rule(cell, **needs)

    answer = cell.submit("r", **({"runtime": {"model": "m1"}} | request))

    assert "incompatible" == answer.code
    assert {"model": "m1"} | compared == {
        name: answer.numbers[name] for name in ("model", *compared)
    }


def test_a_rule_is_for_its_model_and_from_then_on() -> None:
    """Another model, a framework that fits, and who came before are let in."""
    cell = two_kinds()
    cell.submit("before", whole(), runtime={"model": "m1"})
    rule(cell, architectures=["hopper"], frameworks=["jax"])

    assert (
        "granted" == cell.submit("fits", whole(), runtime={"model": "m1", "framework": "jax"}).code
    )
    assert "queued" == cell.submit("other", whole(), runtime={"model": "m2"}).code
    assert ["n1"] == nodes_of(cell, "before")


def test_licences_are_counted_like_quota() -> None:
    """Who needs more than are left waits, while who needs none does not; an end gives back."""
    cell = cell_of()
    cell.node("n1", [device(f"U-{at}") for at in range(5)])
    licence(cell, 3)

    cell.submit("two", whole(), licences={"lic": 2})
    waits = cell.submit("too", whole(), licences={"lic": 2})
    cell.submit("one", whole(), licences={"lic": 1})
    cell.submit("none", whole())

    assert ("queued", "licences_in_use") == (waits.code, waits.numbers["reason"])
    assert {"licence": "lic", "asked": 2, "used": 2, "count": 3} == {
        name: waits.numbers[name] for name in ("licence", "asked", "used", "count")
    }
    assert 3 == cell.state.licences["lic"].used
    # Its device is not clean yet; the licence is free at once, and devices are.
    cell.release(cell.lease("two").id)
    assert ["n1"] == nodes_of(cell, "too")
    assert 3 == cell.state.licences["lic"].used


def test_a_lowered_count_takes_nothing_and_grants_nothing() -> None:
    """And who waits is served as soon as the count is raised."""
    cell = cell_of()
    cell.node("n1", [device("U-1"), device("U-2")])
    licence(cell, 2)
    cell.submit("a", whole(), licences={"lic": 1})
    licence(cell, 1)

    assert "queued" == cell.submit("b", whole(), licences={"lic": 1}).code
    licence(cell, 2)
    assert ["n1"] == nodes_of(cell, "b")


def test_licences_that_can_never_be_had() -> None:
    """Unknown, or more than there are: a final no."""
    cell = cell_of()
    cell.node("n1", [device("U-1")])
    licence(cell, 2)

    assert "unknown_licence" == cell.submit("a", whole(), licences={"other": 1}).code
    answer = cell.submit("b", whole(), licences={"lic": 3})
    assert ("exceeds_licences", {"licence": "lic", "asked": 3, "count": 2}) == (
        answer.code,
        answer.numbers,
    )


def test_a_kept_place_is_let_go_when_its_licence_is_gone() -> None:
    """An evictor counts its licence from the start; a count lowered meanwhile ends that."""
    cell = cell_of()
    cell.queue("high", preemption="any-tenant")
    cell.node("n1", [device("U-1")])
    licence(cell, 1)
    cell.submit("low", whole(), preemptible=True, task={"id": "x"})
    cell.submit("high", whole(), queue="high", priority=9, licences={"lic": 1})
    assert 1 == cell.state.licences["lic"].used

    licence(cell, 0)
    cell.answer_all_orders()

    assert "queued" == cell.state.requests[cell.key("high")].state
    assert ["n1"] == nodes_of(cell, "low")


def test_used_licences_are_counted_again() -> None:
    """Q2: what is kept as used is held against the requests."""
    cell = cell_of()
    licence(cell, 2)
    cell.state.licences["lic"].used = 1

    assert [("Q2", "lic")] == [(one.invariant, one.about) for one in check(cell.state)]


def test_a_kept_place_is_let_go_when_its_nodes_come_together() -> None:
    """A place was kept in two racks; by the time it is clean they are one: it waits again."""
    cell = racks("r1", "r2", devices=1)
    cell.queue("high", preemption="any-tenant")
    for name in ("low-1", "low-2"):
        cell.submit(name, whole(), preemptible=True, task={"id": name})
    gang = cell.submit("gang", whole(1, nodes=2, spread="label:rack"), queue="high", priority=9)
    assert "reserved" == gang.code

    cell.node("n2", [device("U-2-0")], labels={"rack": "r1"})
    cell.answer_all_orders()

    assert "queued" == cell.state.requests[cell.key("gang")].state
    assert {"n1", "n2"} == {*nodes_of(cell, "low-1"), *nodes_of(cell, "low-2")}


def test_replicas_that_are_kept_a_place_are_apart() -> None:
    """Two replicas evict at once: each keeps a node of its own, and a third finds none."""
    cell = racks("", "", devices=2)
    cell.queue("high", preemption="any-tenant")
    for at in range(4):
        cell.submit(f"low-{at}", whole(), preemptible=True, task={"id": f"low-{at}"})
    codes = [
        cell.submit(name, whole(spread="node"), queue="high", priority=9).code
        for name in ("a", "b", "c")
    ]
    cell.answer_all_orders()

    assert ["reserved", "reserved", "queued"] == codes
    assert {"n1", "n2"} == {*nodes_of(cell, "a"), *nodes_of(cell, "b")}
