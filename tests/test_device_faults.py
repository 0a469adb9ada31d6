"""A fault on a device: which leases end, which go on, and what of it is on record."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from ledger.core.state import device_state
from ledger.testing import CoreDriver, device, mig_slice
from tests.metering_logs import metered, sums
from tests.metering_oracle import Oracle

if TYPE_CHECKING:
    from ledger.core.decide import Decision

MIG = {"mode": "mig", "profile": "1g.10gb"}


@pytest.fixture
def cell() -> CoreDriver:
    """A cell of n1 with two whole devices and one with three slices, two of them in one GI."""
    cell = CoreDriver(check=True)
    cell.pool(), cell.queue(), cell.quota()
    slices = [
        mig_slice("MIG-1", 3, 0) | {"ci": 0},
        mig_slice("MIG-2", 3, 0) | {"ci": 1},
        mig_slice("MIG-3", 4, 1) | {"ci": 0},
    ]
    sliced = device("GPU-m", mig_enabled=True, compute_slices=7, slices=slices)
    cell.node("n1", [device("GPU-a"), device("GPU-b"), sliced])
    return cell


def fault(cell: CoreDriver, uuid: str, health: str = "healthy", /, **about: Any) -> Decision:
    """Tell a fault of a device."""
    known = {"code": "xid-94", "xid": 94} | about
    return cell.says(
        "device.health", "n1", device=uuid, health=health, reason="a memory error",
        evidence={"pid": 7}, fault=known,
    )  # fmt: skip


def ending(decision: Decision) -> dict[str, str]:
    """Return the leases that the decision begins to end, with the reason."""
    return {
        event["lease"].rpartition("#")[2]: event["reason"]
        for event in decision.events
        if event["type"] == "lease.stopping"
    }


def on_slices(cell: CoreDriver) -> dict[str, str]:
    """Lease all three slices; return the lease on each MIG UUID."""
    for name in ("m1", "m2", "m3"):
        assert "granted" == cell.submit(name, MIG).code
    found = {}
    for item in cell.state.slices.values():
        assert item.lease is not None
        found[item.mig_uuid] = item.lease.rpartition("#")[2]
    return found


@pytest.mark.parametrize(
    ("scope", "hit"),
    {
        "a compute instance": ({"gi": 3, "ci": 1}, {"MIG-2"}),
        "a GPU instance": ({"gi": 3}, {"MIG-1", "MIG-2"}),
        "the whole device": ({}, {"MIG-1", "MIG-2", "MIG-3"}),
        "an instance that nobody knows": ({"gi": 9}, set()),
    }.values(),
)  # fmt: skip
def test_a_fault_ends_the_leases_in_its_scope(
    cell: CoreDriver, scope: dict[str, int], hit: set[str]
) -> None:
    """Each lease in scope names the fault; no other is touched, and the device stays in use."""
    leases = on_slices(cell)
    decision = fault(cell, "GPU-m", ends="scope", **scope)
    assert {leases[uuid]: "device-fault" for uuid in hit} == ending(decision)
    told = decision.events[0]
    assert ("device.fault", "xid-94", 94) == tuple(told[name] for name in ("type", "code", "xid"))
    assert len(hit) == len(told["units"]) or not scope
    stops = [event for event in decision.events if event["type"] == "lease.stopping"]
    assert all("xid-94: a memory error" == event["rule"] for event in stops)
    assert "healthy" == cell.state.devices["GPU-m"].health


def test_a_fault_may_end_more_than_where_it_was_seen(cell: CoreDriver) -> None:
    """Seen in one instance, and the whole device needs a reset: all work on it ends."""
    leases = on_slices(cell)
    decision = fault(cell, "GPU-m", "unhealthy", ends="device", gi=3, ci=0)
    assert set(leases.values()) == set(ending(decision))
    kinds = [event["type"] for event in decision.events]
    assert kinds.index("device.health") < kinds.index("lease.stopping")
    assert "unhealthy" == device_state(cell.state.devices["GPU-m"])


def test_work_that_uses_links_ends_and_other_work_goes_on(cell: CoreDriver) -> None:
    """A fault of the links ends what has another device too, whole; a single card goes on."""
    cell.submit("one")
    (unit,) = cell.lease("one").parts["n1"].units
    assert {} == ending(fault(cell, unit, ends="linked"))
    cell.release(cell.lease("one").id)
    cell.answer_all_orders()
    cell.submit("two", {"mode": "whole", "count": 2})
    assert {"two/1": "device-fault"} == ending(fault(cell, unit, ends="linked"))


def test_a_fault_that_ends_nothing_is_on_record(cell: CoreDriver) -> None:
    """A note: the lease goes on, and the record has what was seen."""
    cell.submit("one")
    (unit,) = cell.lease("one").parts["n1"].units
    decision = fault(cell, unit, code="xid-13", xid=13)
    assert ["device.fault"] == [event["type"] for event in decision.events]
    assert "observed" == decision.code
    assert "granted" == cell.lease("one").state


def test_a_request_with_a_retry_is_served_elsewhere(cell: CoreDriver) -> None:
    """The fault is no doing of the request: it goes back in line, and gets a sound device."""
    cell.submit("one", retries=1)
    (unit,) = cell.lease("one").parts["n1"].units
    fault(cell, unit, "unhealthy", ends="device")
    cell.answer_all_orders()
    (other,) = cell.lease("one").parts["n1"].units
    assert {"GPU-a", "GPU-b"} == {unit, other}
    cell.submit("next")
    assert "queued" == cell.state.requests[cell.key("next")].state, "the sick one is nobody's"


def test_a_device_that_is_gone_takes_the_fault_along(cell: CoreDriver) -> None:
    """Its leases end as the device's loss has it, and name the fault all the same."""
    cell.submit("one")
    (unit,) = cell.lease("one").parts["n1"].units
    decision = fault(cell, unit, "gone", code="xid-79", xid=79, ends="device")
    assert {"one/1": "device-gone"} == ending(decision)
    stop = next(event for event in decision.events if event["type"] == "lease.stopping")
    assert "xid-79: a memory error" == stop["rule"]
    assert "missing" == device_state(cell.state.devices[unit])
    again = fault(cell, unit, "gone", code="xid-79", xid=79, ends="device")
    assert ["device.fault"] == [event["type"] for event in again.events]
    assert "illegal_transition" == fault(cell, unit, "healthy").code


_ASKS = (
    MIG,
    {"mode": "whole"},
    {"mode": "whole", "count": 2},
    {"mode": "share", "gpu_milli": 300, "memory_mib": 10_000},
)


@pytest.mark.parametrize("seed", range(8))
def test_no_rule_is_broken_by_any_order_of_faults(cell: CoreDriver, seed: int) -> None:
    """Every invariant after every step, and a meter that agrees with the slow one of the tests."""
    random, uuids = Random(seed), ("GPU-a", "GPU-b", "GPU-m")
    for step in range(60):
        cell.now_us += random.randrange(20) * 1_000_000
        what = random.random()
        if what < 0.4:
            cell.submit(f"r{step}", random.choice(_ASKS), retries=random.randrange(3))
        elif what < 0.8:
            uuid = random.choice(uuids)
            scope = random.choice(({}, {"gi": 3}, {"gi": 3, "ci": 1}, {"gi": 4, "ci": 0}))
            fault(
                cell, uuid, random.choice(("healthy", "unhealthy", "unknown")),
                ends=random.choice(("none", "scope", "linked", "device")),
                **(scope if uuid == "GPU-m" else {}),
            )  # fmt: skip
        elif what < 0.9:
            cell.answer_all_orders()
        else:
            cell.health(random.choice(uuids), "healthy")
    rows, _ = metered(cell.records)
    assert Oracle(tuple(cell.records)).sums(0, 10**18) == sums(rows)
    assert any(row.cause == "unhealthy" for row in rows)
