"""Delivery modes beside whole cards, slices and shares; and memory beyond what there is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ledger.asked_words import need_text
from ledger.core.evolve import RuleBroken, evolve
from ledger.core.invariants import check
from ledger.testing import CoreDriver, device, mig_slice
from tests.modes import cell_of, give_back, granted, nodes_of, whole

# -- memory overcommit ----------------------------------------------------------------


def share(mib: int, milli: int = 100, **more: object) -> dict[str, Any]:
    """Return an ask for a share."""
    return {"mode": "share", "gpu_milli": milli, "memory_mib": mib, **more}


def test_memory_is_overcommitted_device_by_device() -> None:
    """A9: 1.5 times 1000 MiB on each of two devices; 900 left over on neither is not 1000."""
    cell = cell_of(memory_overcommit_permille=1500)
    cell.node("n1", [device("U-1", memory_mib=1000), device("U-2", memory_mib=1000)])

    events = [granted(cell, cell.submit(str(at), share(700))) for at in range(4)]

    assert {"U-1", "U-2"} == {event["parts"][0]["units"][0] for event in events}
    assert "queued" == cell.submit("more", share(200)).code
    assert "granted" == cell.submit("fits", share(100)).code
    for event in events:
        assert ("none", 1500) == (event["isolation"], event["memory_overcommit_permille"])


def test_one_share_has_no_more_than_the_device() -> None:
    """The factor is for the sum: a task that alone needs more would never run."""
    cell = cell_of(memory_overcommit_permille=3000)
    cell.node("n1", [device("U-1", memory_mib=1000)])

    assert "no_such_hardware" == cell.submit("r", share(1001)).numbers["reason"]


def test_a_factor_of_one_is_the_memory_itself() -> None:
    """And isolation is told: none in memory for a share, hardware for a whole device."""
    cell = cell_of()
    cell.node("n1", [device("U-1", memory_mib=1000), device("U-2", memory_mib=1000)])

    event = granted(cell, cell.submit("a", share(600)))
    card = granted(cell, cell.submit("b", whole()))

    assert "queued" == cell.submit("c", share(401)).code
    assert "none" == event["isolation"]
    assert "memory_overcommit_permille" not in event
    assert "isolation" not in card
    cell.pool(memory_overcommit_permille=1001)
    assert ["n1"] == nodes_of(cell, "c")


def test_the_fold_refuses_more_memory_than_the_factor_allows() -> None:
    """A9: the lowered factor counts for the next grant, and for whoever writes it."""
    cell = cell_of(memory_overcommit_permille=2000)
    cell.node("n1", [device("U-1", memory_mib=1000)])
    event = granted(cell, cell.submit("a", share(900)))
    cell.submit("b", share(900))
    cell.release(cell.lease("b").id)
    cell.answer_all_orders()
    cell.pool()
    cell.submit("c", share(900))

    name = cell.key("c")
    forged = event | {"lease": f"{name}/1", "request": name}
    with pytest.raises(RuleBroken, match="A9"):
        evolve(cell.state, forged, cell.now_us)


# -- media engines --------------------------------------------------------------------


def media(uuid: str, encoders: int, decoders: int) -> dict[str, Any]:
    """Return a device with so many sessions."""
    return device(uuid, encoder_sessions=encoders, decoder_sessions=decoders)


def test_sessions_are_counted_apart_from_compute() -> None:
    """A13: compute is there for ten, encoders for three; who encodes nothing still fits."""
    cell = cell_of()
    cell.node("n1", [device("U-0"), media("U-1", 3, 8)])

    for name in ("a", "b", "c"):
        cell.submit(name, share(0, encoder_sessions=1))
        assert ["U-1"] == cell.lease(name).parts["n1"].units
    waits = cell.submit("d", share(0, encoder_sessions=1))
    cell.submit("decodes", share(0, decoder_sessions=8))

    assert ("queued", "constraints_unmet") == (waits.code, waits.numbers["reason"])
    assert ["U-1"] == cell.lease("decodes").parts["n1"].units
    assert "granted" == cell.submit("none", share(0)).code
    give_back(cell, "b")
    assert ["U-1"] == cell.lease("d").parts["n1"].units


def test_whole_devices_have_the_sessions_each() -> None:
    """Two devices with eight each are not one with sixteen, and unknown is none."""
    cell = cell_of()
    cell.node("n1", [device("U-0"), media("U-1", 8, 0), media("U-2", 2, 0), media("U-3", 8, 0)])

    assert "no_such_hardware" == cell.submit(None, whole(encoder_sessions=9)).numbers["reason"]
    assert "no_such_hardware" == cell.submit(None, whole(3, encoder_sessions=8)).numbers["reason"]
    cell.submit("two", whole(2, encoder_sessions=8))
    assert ["U-1", "U-3"] == cell.lease("two").parts["n1"].units


def test_the_fold_refuses_more_sessions_than_there_are() -> None:
    """A13: whoever writes it."""
    cell = cell_of()
    cell.node("n1", [media("U-1", 1, 0)])
    event = granted(cell, cell.submit("a", share(0, encoder_sessions=1)))
    cell.submit("b", share(0, encoder_sessions=1))
    name = cell.key("b")

    with pytest.raises(RuleBroken, match="A13"):
        evolve(cell.state, event | {"lease": f"{name}/1", "request": name}, cell.now_us)


def test_sessions_in_use_that_are_no_longer_reported() -> None:
    """A13: the state is checked, and a device that reports fewer than are in use is shut away."""
    cell = cell_of()
    cell.node("n1", [media("U-1", 2, 0)])
    cell.submit("a", share(0, encoder_sessions=2))
    cell.state.devices["U-1"].holds[cell.lease("a").id].encoder_sessions = 3
    assert ["A2"] == [one.invariant for one in check(cell.state)]
    cell.state.devices["U-1"].holds[cell.lease("a").id].encoder_sessions = 2

    cell.node("n1", [media("U-1", 1, 0)])

    assert "1 more encoder sessions" in (cell.state.devices["U-1"].quarantine or "")


# -- passthrough ----------------------------------------------------------------------


def passable(uuid: str, group: str) -> dict[str, Any]:
    """Return a device in an IOMMU group; its address is its UUID's number."""
    return device(uuid, iommu_group=group, pci_address=f"0000:{uuid[-2:]}:00.0")


def passthrough(count: int = 1) -> dict[str, Any]:
    """Return an ask for devices that are passed through."""
    return {"mode": "passthrough", "count": count}


def test_an_iommu_group_goes_whole_or_not_at_all() -> None:
    """One of a pair is never given alone, nor a group of which another lease holds a device."""
    cell = cell_of()
    groups = {"U-01": "1", "U-02": "1", "U-03": "2", "U-04": "3", "U-05": "3"}
    cell.node("n1", [passable(uuid, group) for uuid, group in groups.items()] + [device("U-06")])
    cell.submit("card", whole(1, models=["H100"]))
    assert ["U-01"] == cell.lease("card").parts["n1"].units

    event = granted(cell, cell.submit("pair", passthrough(2)))
    cell.submit("single", passthrough(1))
    waits = cell.submit("again", passthrough(2))

    assert [
        {
            "node": "n1",
            "units": ["U-04", "U-05"],
            "pci_addresses": ["0000:04:00.0", "0000:05:00.0"],
        }
    ] == event["parts"]
    assert ["U-03"] == cell.lease("single").parts["n1"].units
    assert "queued" == waits.code
    give_back(cell, "card")
    assert ["U-01", "U-02"] == cell.lease("again").parts["n1"].units


def test_groups_must_add_up() -> None:
    """Three of groups of two and two is no such hardware; so is what reports no group."""
    cell = cell_of()
    cell.node("n1", [passable(f"U-0{at}", str(at // 2)) for at in range(4)])
    cell.node("n2", [device("U-10")])

    assert "no_such_hardware" == cell.submit(None, passthrough(3)).numbers["reason"]
    assert "no_such_hardware" == cell.submit(None, passthrough(1)).numbers["reason"]
    cell.submit("all", passthrough(4))
    assert ["n1"] == nodes_of(cell, "all")


def test_a_pool_may_be_for_passthrough_only() -> None:
    """The mode is the one that was asked, not the one it is counted as."""
    cell = cell_of(allowed_modes=["passthrough"])
    cell.node("n1", [passable("U-01", "1")])

    assert "pool_refuses" == cell.submit(None, whole(pool="main")).code
    assert "granted" == cell.submit("r", passthrough()).code


def test_the_fold_refuses_part_of_a_group() -> None:
    """A14: whoever writes it."""
    cell = cell_of()
    cell.node("n1", [passable("U-01", "1"), passable("U-02", "1"), passable("U-03", "2")])
    event = granted(cell, cell.submit("a", passthrough()))
    cell.submit("b", passthrough())
    name = cell.key("b")
    parts = [{"node": "n1", "units": ["U-01"]}]
    forged = event | {"lease": f"{name}/1", "request": name, "parts": parts}

    with pytest.raises(RuleBroken, match="A14"):
        evolve(cell.state, forged, cell.now_us)


# -- vGPU -----------------------------------------------------------------------------


def virtual(uuid: str, **types: int) -> dict[str, Any]:
    """Return a device that offers vGPU types, each with how many of it at once."""
    offers = [{"type": name, "most": most, "memory_mib": 1000} for name, most in types.items()]
    return device(uuid, vgpu_types=offers)


def vgpu(name: str) -> dict[str, Any]:
    """Return an ask for a vGPU."""
    return {"mode": "vgpu", "type": name}


def test_one_type_at_a_time_and_no_more_than_the_device_takes() -> None:
    """Three thirds fit, a fourth does not, and neither do another type, a share or the card."""
    cell = cell_of()
    cell.node("n1", [virtual("U-1", thirds=3, halves=2)])

    events = [granted(cell, cell.submit(f"t{at}", vgpu("thirds"))) for at in range(2)]
    assert "queued" == cell.submit("half", vgpu("halves")).code
    assert "queued" == cell.submit("share", share(0)).code
    assert "queued" == cell.submit("card", whole()).code
    cell.cancel("card")
    cell.cancel("share")
    cell.submit("t2", vgpu("thirds"))
    assert "queued" == cell.submit("t3", vgpu("thirds")).code

    assert [334, 334] == [event["charge_milli"] for event in events]
    assert {"node": "n1", "units": ["U-1"], "vgpu_type": "thirds"} == events[0]["parts"][0]
    assert ("scheduler", 1000) == (events[0]["isolation"], events[0]["memory_mib"])
    give_back(cell, "t0")
    assert ["n1"] == nodes_of(cell, "t3")
    for name in ("t1", "t2", "t3"):
        give_back(cell, name)
    assert ["n1"] == nodes_of(cell, "half")


def test_vgpus_fill_the_fullest_device() -> None:
    """The other stays whole for those who need it so; a share beside vGPUs goes elsewhere."""
    cell = cell_of()
    cell.node("n1", [virtual("U-1", q=4), virtual("U-2", q=4), device("U-3")])

    for name in ("a", "b"):
        cell.submit(name, vgpu("q"))
        assert ["U-1"] == cell.lease(name).parts["n1"].units
    cell.submit("share", share(0))
    assert ["U-2"] == cell.lease("share").parts["n1"].units
    cell.submit("card", whole())
    assert ["U-3"] == cell.lease("card").parts["n1"].units


def test_a_type_that_nobody_offers_is_refused() -> None:
    """A final no, with the name."""
    cell = cell_of()
    cell.node("n1", [virtual("U-1", q=4)])

    answer = cell.submit("a", vgpu("other"))

    assert ("unknown_vgpu_type", {"vgpu_type": "other"}) == (answer.code, answer.numbers)


def test_the_fold_refuses_a_vgpu_beside_another_type() -> None:
    """A9: whoever writes it; and the state is checked."""
    cell = cell_of()
    cell.node("n1", [virtual("U-1", a=2, b=4)])
    event = granted(cell, cell.submit("one", vgpu("a")))
    cell.submit("two", vgpu("b"))
    name = cell.key("two")

    with pytest.raises(RuleBroken, match="A9"):
        evolve(cell.state, event | {"lease": f"{name}/1", "request": name}, cell.now_us)


def test_two_types_on_a_device_are_found() -> None:
    """A9: what is held is checked on the state."""
    cell = cell_of()
    cell.node("n1", [virtual("U-1", a=3, b=4)])
    cell.submit("one", vgpu("a"))
    cell.submit("two", vgpu("a"))
    cell.state.devices["U-1"].holds[cell.lease("two").id].vgpu_type = "b"

    found = check(cell.state)

    assert ["A9"] == [one.invariant for one in found]
    assert "['a', 'b']" in found[0].detail


# -- remote ---------------------------------------------------------------------------


def remote(p99_us_max: int = 50, bandwidth_mbps_min: int = 10_000) -> dict[str, Any]:
    """Return an ask for a device that a task on n1 uses over the network."""
    link = {"p99_us_max": p99_us_max, "bandwidth_mbps_min": bandwidth_mbps_min}
    return whole(remote={"from_node": "n1", **link})


def measured(cell: CoreDriver, to_node: str, p99_us: int, mbps: int, valid_s: int = 60) -> str:
    """Report a measurement from n1; return its id."""
    more: dict[str, Any] = {"tool": "ib_send_lat", "version": "4.5", "valid_s": valid_s}
    answer = cell.says(
        "link.evidence", "n1", to_node=to_node, p99_us=p99_us, bandwidth_mbps=mbps, **more
    )
    return str(answer.events[0]["evidence"])


def far() -> CoreDriver:
    """Return a cell with a node n1 and devices on it and on two others."""
    cell = cell_of()
    for name in ("n1", "n2", "n3"):
        cell.node(name, [device(f"U-{name}")])
    return cell


def test_remote_needs_fresh_evidence_that_is_good_enough() -> None:
    """A12: none, too slow, too narrow: it waits; then it is granted, and says by what."""
    cell = far()
    waits = cell.submit("r", remote())
    assert ("queued", "no_fresh_evidence") == (waits.code, waits.numbers["reason"])
    assert (0, 50) == (waits.numbers["links_known"], waits.numbers["p99_us_max"])
    measured(cell, "n2", 51, 20_000)
    measured(cell, "n3", 10, 9_999)
    assert "queued" == cell.state.requests[cell.key("r")].state

    name = measured(cell, "n3", 50, 10_000)

    assert ["n3"] == nodes_of(cell, "r")
    event = next(
        one
        for value in cell.records
        for one in json.loads(value).get("events", ())
        if one["type"] == "lease.granted"
    )
    assert [name] == event["evidence"]


def test_old_evidence_is_none() -> None:
    """Valid for a minute: a microsecond before its end it counts, at its end no more."""
    cell = far()
    measured(cell, "n2", 10, 20_000)
    measured(cell, "n3", 10, 20_000)
    end = cell.now_us + 60_000_000 - 1_000

    assert "granted" == cell.submit("a", remote(), at_us=end - 1).code
    assert "queued" == cell.submit("b", remote(), at_us=end + 1_000).code


def test_the_own_node_is_not_remote() -> None:
    """The device is on another node, whatever was measured."""
    cell = cell_of()
    cell.node("n1", [device("U-1")])
    measured(cell, "n1", 1, 100_000)

    assert "no_such_hardware" == cell.submit("r", remote()).numbers["reason"]


def test_the_fold_refuses_a_remote_lease_without_its_evidence() -> None:
    """A12: whoever writes it."""
    cell = far()
    measured(cell, "n2", 10, 20_000)
    event = granted(cell, cell.submit("a", remote()))
    cell.submit("b", remote())
    name = cell.key("b")
    parts = [{"node": "n3", "units": ["U-n3"]}]
    forged = event | {"lease": f"{name}/1", "request": name, "parts": parts}

    with pytest.raises(RuleBroken, match="A12"):
        evolve(cell.state, forged, cell.now_us)


# -- hybrid ---------------------------------------------------------------------------

ROUTES = [{"when": "latency-sensitive", "mode": "mig"}, {"when": "elastic", "mode": "share"}]


def auto(**more: object) -> dict[str, Any]:
    """Return an ask that leaves the mode to the pool."""
    sizes = {"gpu_milli": 300, "compute_slices": 1, "memory_mib": 9_000}
    return {"mode": "auto", "pool": "main", **sizes, **more}


def test_the_pool_routes_by_service_class() -> None:
    """Latency-sensitive gets a slice, elastic a share; on record with the request and the grant."""
    cell = cell_of(routing=ROUTES)
    sliced = device("U-m", mig_enabled=True, compute_slices=7, slices=[mig_slice("M-1", 1, 0)])
    cell.node("n1", [device("U-1"), sliced])

    quick = cell.submit("quick", auto(), service_class="latency-sensitive")
    typed = cell.submit("typed", auto(), task={"id": "x", "type": "online-inference"})
    slow = cell.submit("slow", auto())

    assert "latency-sensitive to mig" == granted(cell, quick)["why"]["route"]
    assert "mig" == cell.state.requests[cell.key("typed")].need.mode, "queued for a slice"
    assert "queued" == typed.code
    event = granted(cell, slow)
    assert ("elastic to share", 300, 9_000) == (
        event["why"]["route"],
        event["charge_milli"],
        event["memory_mib"],
    )
    received = slow.events[0]
    assert ("elastic", "share") == (received["service_class"], received["need"]["mode"])
    assert "elastic to share" == received["need"]["terms"]["route"]


def test_without_a_route_there_is_no_mode() -> None:
    """A final no that names the class; and a pool that is not there is told first."""
    cell = cell_of(routing=ROUTES[:1])

    answer = cell.submit("r", auto())

    assert ("no_route", {"pool": "main", "service_class": "elastic"}) == (
        answer.code,
        answer.numbers,
    )
    assert "unknown_pool" == cell.submit("s", auto(pool="other")).code


# -- in words -------------------------------------------------------------------------


def test_terms_are_told() -> None:
    """Every term of a need is in the sentence about it; a vGPU of a whole device too."""
    terms = {"architectures": ["hopper"], "licences": [["lic", 2]], "same_nvlink_domain": True}

    assert (
        "2 whole device(s), architectures hopper, licences lic 2, same nvlink domain yes"
        == need_text({"mode": "whole", "count": 2, "terms": terms | {"apart": "/team#x"}})
    )
    assert "100.00 % of a device, delivery vgpu, vgpu type all" == need_text(
        {"mode": "share", "terms": {"delivery": "vgpu", "vgpu_type": "all"}}
    )


@pytest.mark.parametrize("firm", [False, True])
def test_a_share_has_all_vgpus_of_a_device_evicted_or_none(firm: bool) -> None:
    """Beside a vGPU there are only others of its type: one that may not go keeps them all (Q6)."""
    cell = cell_of()
    cell.queue("high", preemption="any-tenant")
    cell.node("n1", [virtual("U-1", q=2)])
    cell.submit("a", vgpu("q"), preemptible=True, task={"id": "a"})
    cell.submit("b", vgpu("q"), preemptible=not firm, task={"id": "b"})

    answer = cell.submit("share", share(0), queue="high", priority=5)

    stopping = [one for one in cell.state.leases.values() if one.state == "stopping"]
    assert (("queued", 0) if firm else ("reserved", 2)) == (answer.code, len(stopping))
    cell.answer_all_orders()
    if not firm:
        assert ["n1"] == nodes_of(cell, "share")
