"""Cases from the field that the core alone can answer, each named by its id in cases.md."""

from __future__ import annotations

import orjson
import pytest

from ledger.core.digest import digest
from ledger.core.fold import Fold
from ledger.core.line import schedule
from ledger.core.placing.room import free_memory
from ledger.core.state import device_state
from ledger.testing import TEAM, CoreDriver, device, mig_slice

MINUTE = 60_000_000


def cell_with(gpus: int, *, nodes: int = 1, quota: int = 1_000_000) -> CoreDriver:
    """Return a cell of ``nodes`` nodes n1, n2, … with GPU-0, GPU-1, … each."""
    cell = CoreDriver(check=True)
    cell.pool(silent_grace_s=60, order_timeout_s=300)
    cell.queue()
    cell.quota(nominal_gpu_milli=quota)
    for node in range(nodes):
        uuids = [f"GPU-{node * gpus + at}" for at in range(gpus)]
        cell.node(f"n{node + 1}", [device(uuid) for uuid in uuids])
    return cell


def free(cell: CoreDriver) -> list[str]:
    """Return the devices that could be leased whole now."""
    cards = cell.state.index.cards.values()
    return sorted(uuid for one in cards for uuids in one.free.values() for uuid in uuids)


def held(cell: CoreDriver, tenant: str = "t") -> int:
    """Return what the tenant is charged."""
    return cell.state.quotas[tenant].used.get("gpu", 0)


def _four_with_two_leased() -> CoreDriver:
    cell = CoreDriver(check=True)
    cell.pool()
    cell.queue()
    cell.quota()
    cell.node("n1", [device(uuid, index=at) for at, uuid in enumerate(["U-b", "U-d"])])
    cell.submit("J1")
    cell.submit("J2")
    names = ["U-a", "U-b", "U-c", "U-d"]
    cell.node("n1", [device(uuid, index=at) for at, uuid in enumerate(names)])
    return cell


def test_c01_index_shifts_after_a_card_disappears() -> None:
    """A number is a sighting: the lease stays on its UUID, the missing card's lease ends."""
    cell = _four_with_two_leased()
    listed = [device(uuid, index=at) for at, uuid in enumerate(["U-a", "U-c", "U-d"])]
    cell.node("n1", listed, epoch=2)
    assert ["U-d"] == cell.lease("J2").parts["n1"].units
    assert 2 == cell.state.devices["U-d"].index
    assert "granted" == cell.lease("J2").state
    assert "missing" == device_state(cell.state.devices["U-b"])
    assert ("stopping", "device-gone") == (cell.lease("J1").state, cell.lease("J1").reason)
    assert ["U-a", "U-c"] == free(cell)
    cell.answer_all_orders()
    assert "device-gone" == cell.state.seen[cell.key("J1")][3]
    assert ["U-a", "U-c"] == free(cell)


def test_c01_the_others_are_discovered_when_one_entry_fails() -> None:
    """An inventory with three of four is three devices; the fourth comes back unproved."""
    cell = _four_with_two_leased()
    three = [device("U-a", index=0), device("U-c", index=2), device("U-d", index=3)]
    cell.node("n1", three)
    cell.answer_all_orders()
    assert {"U-a", "U-b", "U-c", "U-d"} == set(cell.state.devices)
    cell.node("n1", [*three, device("U-b", index=1)])
    assert "cleaning" == device_state(cell.state.devices["U-b"])
    assert 1 == cell.answer_all_orders()
    assert ["U-a", "U-b", "U-c"] == free(cell)


def test_c03_what_was_not_read_stays_unknown() -> None:
    """Three of seven slots hold slices; fields that were not available stay absent, not 0."""
    cell = CoreDriver(check=True)
    cell.pool()
    slices = [
        mig_slice(f"MIG-{at}", gi=at + 7, start=at, **({} if at else {"ci": None}))
        for at in (0, 2, 5)
    ]
    cell.node("n1", [device("U-a", mig_enabled=True, compute_slices=7, slices=slices)])
    found = sorted(cell.state.slices.values(), key=lambda one: one.start)
    assert [0, 2, 5] == [one.start for one in found]
    assert [None, 0, 0] == [one.ci for one in found]
    card = cell.state.devices["U-a"]
    assert (None, None) == (card.index, card.architecture)
    node = cell.state.nodes["n1"]
    assert (None, None) == (node.cpu_milli, node.memory_mib)


def test_c05_two_agents_register_the_same_card() -> None:
    """The first agent's view stands, the other's is refused, one alarm stands, no lease ends."""
    cell = cell_with(1)
    asks = [cell.submit(f"s{at}", {"mode": "share", "gpu_milli": 100}).code for at in range(3)]
    assert ["granted"] * 3 == asks
    raised = 0
    for _ in range(5):
        other = cell.node("n1", [device("GPU-0")], agent="/stock/agent")
        assert "wrong_agent" == other.code
        raised += len(other.events)
        elsewhere = cell.node("n9", [device("GPU-0")])
        raised += sum(one["type"] == "alarm.raised" for one in elsewhere.events)
        cell.node("n1", [device("GPU-0")])
    assert {"wrong_agent n1", "duplicate_device GPU-0"} == set(cell.state.alarms)
    assert 2 == raised, "one alarm for each fault, not one for each report"
    assert 3 == len(cell.state.leases)
    more = [cell.submit(f"m{at}", {"mode": "share", "gpu_milli": 100}).code for at in range(8)]
    assert [*["granted"] * 7, "queued"] == more


def test_c05_after_a_reboot_the_stock_agent_does_not_take_over() -> None:
    """A new boot makes no owner of the other agent; the owner's own report ends the leases."""
    cell = cell_with(1)
    cell.submit("s", {"mode": "share", "gpu_milli": 100})
    other = cell.node("n1", [device("GPU-0")], agent="/stock/agent", incarnation="b2")
    assert "wrong_agent" == other.code
    assert 1 == len(cell.state.leases)
    cell.node("n1", [device("GPU-0")], incarnation="b2")
    assert not cell.state.leases


def test_c11_charge_once_release_once() -> None:
    """A copy charges nothing; the end gives back once; a later copy of it gives back nothing."""
    cell = cell_with(4, quota=2_000)
    assert "granted" == cell.submit("R1").code
    assert "duplicate" == cell.submit("R1").code
    assert "id_conflict" == cell.submit("R1", {"mode": "whole", "count": 2}).code
    assert 1_000 == held(cell)
    lease = cell.lease("R1").id
    cell.task_ended(lease, "n1")
    assert 0 == held(cell)
    assert "already_released" == cell.release(lease).code
    assert "already_released" == cell.release(lease).code
    assert "already_released" == cell.task_ended(lease, "n1").code
    assert 0 == held(cell)


def test_c15_shares_round_against_the_requester() -> None:
    """23 of 24 requests of 2,000 MiB fit a card of 46,068 MiB; 68 MiB are left."""
    cell = CoreDriver(check=True)
    cell.pool()
    cell.queue()
    cell.quota()
    cell.node("n1", [device("U-a", model="L40S", memory_mib=46_068)])
    ask = {"mode": "share", "gpu_milli": 1, "memory_mib": 2_000}
    codes = [cell.submit(f"R{at}", ask).code for at in range(24)]
    assert [*["granted"] * 23, "queued"] == codes
    assert 68 == free_memory(cell.state, cell.state.devices["U-a"])
    assert "no_capacity" == cell.state.requests[cell.key("R23")].code


def test_c15_ten_tenths_are_given_back_exactly() -> None:
    """Ten leases of a tenth, all given back, leave exactly nothing: a whole card fits."""
    cell = cell_with(1)
    for at in range(10):
        assert "granted" == cell.submit(f"s{at}", {"mode": "share", "gpu_milli": 100}).code
    assert 1_000 == held(cell)
    for at in range(10):
        cell.release(cell.lease(f"s{at}").id)
    cell.answer_all_orders()
    assert 0 == held(cell)
    assert "granted" == cell.submit("whole").code


def _h100_and_a10(ordering: str) -> CoreDriver:
    cell = CoreDriver(check=True)
    cell.pool()
    cell.queue(ordering=ordering)
    cell.quota()
    cell.node("n1", [device("H-0", model="H100")])
    cell.node("n2", [device(f"A-{at}", model="A10", memory_mib=24_000) for at in range(4)])
    assert "queued" == cell.submit("R1", {"mode": "whole", "count": 8, "models": ["H100"]}).code
    return cell


@pytest.mark.parametrize(("ordering", "third"), [("strict", "queued"), ("best-effort", "granted")])
def test_c17_a_waiting_request_blocks_its_own_kind_only(ordering: str, third: str) -> None:
    """R2 starts on other hardware; R3 waits behind R1 under strict order, and only there."""
    cell = _h100_and_a10(ordering)
    assert "granted" == cell.submit("R2", {"mode": "whole", "models": ["A10"]}).code
    assert third == cell.submit("R3", {"mode": "whole", "models": ["H100"]}).code


def test_c17_a_higher_priority_is_not_behind() -> None:
    """Under strict order a newcomer of higher priority stands before those who wait."""
    cell = _h100_and_a10("strict")
    ask = {"mode": "whole", "models": ["H100"]}
    assert "granted" == cell.submit("R4", ask, priority=1).code


def test_c17_what_its_own_quota_holds_back_blocks_nobody() -> None:
    """When R1 comes to wait for its tenant's quota, those behind it in the strict queue go on."""
    cell = _h100_and_a10("strict")
    cell.quota("u")
    ask = {"mode": "whole", "models": ["H100"]}
    assert "queued" == cell.submit("R3", ask, tenant="u").code
    cell.quota(nominal_gpu_milli=1_000)
    assert ["H-0"] == cell.lease("R3").parts["n1"].units


def test_c17_a_grant_elsewhere_can_use_up_what_blocked() -> None:
    """R1's tenant gets a lease through another queue; R1 then waits for quota and blocks nobody."""
    cell = _h100_and_a10("strict")
    cell.quota(nominal_gpu_milli=8_000)
    cell.queue("other")
    cell.quota("u")
    ask = {"mode": "whole", "models": ["H100"]}
    assert "queued" == cell.submit("R3", ask, tenant="u").code
    cell.submit("R5", {"mode": "whole", "models": ["A10"]}, queue="other")
    assert ["H-0"] == cell.lease("R3").parts["n1"].units


@pytest.mark.parametrize("first", ["newcomer", "clean"])
def test_c19_a_freed_device_goes_to_the_first_in_line(first: str) -> None:
    """Freeing and giving are one step: whatever comes when, the high priority gets the GPU."""
    cell = cell_with(1)
    cell.submit("J1")
    cell.submit("high", priority=10)
    cell.release(cell.lease("J1").id)
    if first == "newcomer":
        assert "queued" == cell.submit("low").code
        cell.answer_all_orders()
    else:
        cell.answer_all_orders()
        assert "queued" == cell.submit("low").code
    assert ["GPU-0"] == cell.lease("high").parts["n1"].units


def test_c19_quota_freed_by_a_deadline_goes_to_the_first_in_line() -> None:
    """A newcomer whose own arrival carries the clock past a deadline does not profit from it."""
    cell = cell_with(1, nodes=2, quota=1_000)
    cell.submit("J1")
    cell.submit("high", priority=10)
    cell.silent("n1")
    late = cell.submit("low", at_us=cell.now_us + 2 * MINUTE)
    assert "queued" == late.code
    assert ["GPU-1"] == cell.lease("high").parts["n2"].units


def test_c19_a_cut_pass_gives_nothing_to_a_newcomer(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a pass has more to give than one record holds, a newcomer gets in line."""
    monkeypatch.setattr(schedule, "MAX_GIVEN", 0)
    cell = cell_with(1, nodes=4, quota=1_000)
    for name in ("first", "second", "third", "fourth"):
        cell.submit(name)
    cell.quota(nominal_gpu_milli=5_000)
    cut = [cell.state.pass_cut]
    assert "queued" == cell.submit("newcomer", max_wait_s=9).code
    cell.tick()
    cell.tick()
    cut.append(cell.state.pass_cut)
    waiting = [one.id for one in cell.state.requests.values() if one.state == "queued"]
    assert ([True, False], [cell.key("newcomer")]) == (cut, waiting)


def test_c21_capacity_adds_up_and_the_tasks_do_not_fit() -> None:
    """A gang of 12 x 4 on ten nodes of 6: not admitted, nothing held, counted place by place."""
    cell = cell_with(6, nodes=10)
    answer = cell.submit("gang", {"mode": "whole", "count": 4, "nodes": 12})
    assert "queued" == answer.code
    assert {
        "reason": "no_capacity",
        "needs_places": 12,
        "gpus_per_place": 4,
        "places": 10,
        "free_gpus": 60,
    } == answer.numbers
    assert not cell.state.leases
    assert 60 == len(free(cell))


def test_c27_a_late_signal_frees_nobody_elses_gpu() -> None:
    """What is said late about J1 names J1's lease: J2 keeps the GPU and nothing becomes free."""
    cell = cell_with(1)
    cell.submit("J1")
    old = cell.lease("J1").id
    cell.task_ended(old, "n1", "failed")
    cell.answer_all_orders()
    cell.submit("J2")
    before = free(cell)
    assert "already_released" == cell.reclaim(old).code
    assert "already_released" == cell.release(old).code
    assert "already_released" == cell.task_ended(old, "n1").code
    assert "already_ended" == cell.cancel("J1").code
    assert "queued" == cell.submit("J1-again").code
    assert before == free(cell) == []
    assert ["GPU-0"] == cell.lease("J2").parts["n1"].units


def test_c29_cancelled_while_being_created() -> None:
    """R1 ends as cancelled when its node has stopped it, and is not queued again; R2 at once."""
    cell = cell_with(1)
    cell.submit("R1", retries=3)
    cell.submit("R2")
    assert "cancelled" == cell.cancel("R2").code
    assert cell.key("R2") not in cell.state.requests
    lease = cell.lease("R1").id
    assert "stopping" == cell.cancel("R1").code
    cell.task_ended(lease, "n1", "never-started")
    cell.answer_all_orders()
    assert "cancelled" == cell.state.seen[cell.key("R1")][3]
    assert not cell.state.requests
    assert not cell.state.orders
    assert ["GPU-0"] == free(cell)
    assert 0 == held(cell)


def test_c29_a_cancel_that_lost_the_race_is_too_late() -> None:
    """The task had finished before: the request stays completed, the cancel is told so."""
    cell = cell_with(1)
    cell.submit("R1")
    cell.task_ended(cell.lease("R1").id, "n1")
    answer = cell.cancel("R1")
    assert ("already_ended", {"how": "completed"}) == (answer.code, answer.numbers)


def test_c31_a_running_time_limit_across_an_interruption() -> None:
    """40 minutes, a lost node, 30 minutes of waiting: the limit of 60 comes after 20 more."""
    ten = 600 * MINUTE
    cell = CoreDriver(check=True, now_us=ten - 1_000_000)
    cell.pool(silent_grace_s=0)
    cell.queue()
    cell.quota()
    cell.node("n1", [device("GPU-0")])
    cell.submit("J1", max_run_s=3_600, retries=1, at_us=ten)
    said = {"node": "n1", "incarnation": "b1", "last_heartbeat_us": ten}
    cell.feed("node.silent", said, source="/liveness", at_us=ten + 39 * MINUTE)
    cell.tick(ten + 40 * MINUTE)
    assert "queued" == cell.state.requests[cell.key("J1")].state
    assert 40 * MINUTE == cell.state.requests[cell.key("J1")].used_us
    cell.now_us = ten + 70 * MINUTE - 1_000
    cell.node("n2", [device("GPU-1")])
    lease = cell.lease("J1")
    assert ten + 90 * MINUTE == lease.due_us
    cell.claim()
    cell.tick(ten + 90 * MINUTE - 1)
    assert "granted" == cell.lease("J1").state
    late = cell.tick(ten + 92 * MINUTE)
    stop = next(one for one in late.events if one["type"] == "lease.stopping")
    assert ("max-run", ten + 90 * MINUTE) == (stop["reason"], stop["due_us"])
    cell.answer_all_orders()
    assert "max-run" == cell.state.seen[cell.key("J1")][3]


def test_c33_more_in_use_than_exists() -> None:
    """Two of eight leased devices fail, then labels change: free is 0 before and after."""
    cell = cell_with(8)
    cell.submit("J0", {"mode": "whole", "count": 8})
    six = [device(f"GPU-{at}") for at in range(6)]
    sick = [device(f"GPU-{at}", health="unhealthy") for at in (6, 7)]
    cell.node("n1", [*six, *sick])
    assert [] == free(cell)
    assert "granted" == cell.lease("J0").state, "sick is for its own policy; the lease goes on"
    assert "queued" == cell.submit("R1", {"mode": "whole", "count": 6}).code
    cell.pool(labels={"harmless": "update"})
    assert [] == free(cell)
    assert "queued" == cell.state.requests[cell.key("R1")].state
    cell.release(cell.lease("J0").id)
    cell.answer_all_orders()
    assert 6 == len(cell.lease("R1").parts["n1"].units)


def test_c35_a_node_before_its_pool_is_parked() -> None:
    """Nothing is leased of a node whose pool is not known yet; when it is, all of it counts."""
    cell = CoreDriver(check=True)
    cell.queue()
    cell.quota()
    cell.node("n1", [device(f"GPU-{at}") for at in range(8)])
    assert "registering" == cell.state.nodes["n1"].state
    assert [] == free(cell)
    answer = cell.submit("J1", {"mode": "whole", "count": 2})
    assert ("queued", "no_such_hardware") == (answer.code, answer.numbers["reason"])
    cell.pool()
    assert "online" == cell.state.nodes["n1"].state
    assert 2 == len(cell.lease("J1").parts["n1"].units)
    assert 6 == len(free(cell))


def test_c37_the_same_id_counts_once() -> None:
    """An id is known only once its record is in the log: a lost write leaves no mark."""
    cell = cell_with(4)
    before = cell.replayed()
    assert "granted" == cell.submit("e1").code
    del cell.records[-1]
    # The write failed: the worker drops its state and reads the log again.
    cell.fold, cell.check = before, False
    assert "granted" == cell.submit("e1").code
    assert "duplicate" == cell.submit("e1").code
    assert "id_conflict" == cell.submit("e1", {"mode": "whole", "count": 3}).code
    assert 1_000 == held(cell)


def _folded(records: list[bytes]) -> Fold:
    fold = Fold()
    for at, value in enumerate(records):
        fold.apply(at, value)
    return fold


def test_c45_the_log_takes_the_later_claim() -> None:
    """P decides on under token 7 after S has claimed with 8: only S's lease is in the state."""
    cell = cell_with(1)
    base = list(cell.records)
    cell.submit("R1")
    from_p = cell.records[-1]
    other = CoreDriver(check=False)
    other.fold = _folded(base)
    other.records = list(base)
    other._offsets = {"requests": 2, "observations": 0}
    other.claim()
    claim = orjson.loads(other.records[-1]) | {"token": "8" * 32}
    other.submit("R2")
    from_s = orjson.dumps(orjson.loads(other.records[-1]) | {"token": "8" * 32})

    log = [*base, orjson.dumps(claim), from_p, from_s, from_p]
    fold = Fold()
    verdicts = [fold.apply(at, value)[0] for at, value in enumerate(log)]
    assert ["claim", "void", "effective", "void"] == verdicts[len(base) :]
    state = fold.cell("c")
    assert {f"{TEAM}#R2/1"} == set(state.leases) == set(state.devices["GPU-0"].holds)
    assert f"{TEAM}#R1" not in state.requests
    assert 2 == fold.head.void


def test_c47_an_input_is_decided_once() -> None:
    """After a crash inputs 5 to 10 come again: void, for the position is the log's."""
    cell = cell_with(1)
    for at in range(10):
        cell.submit(f"R{at}", {"mode": "share", "gpu_milli": 50})
    live = cell.digest()
    assert 12 == cell.fold.head.sources["requests"]
    fold = cell.replayed()
    for again in cell.records[-6:]:
        moved = orjson.loads(again) | {"seq": fold.head.seq + 1}
        assert "void" == fold.apply(fold.head.offset, orjson.dumps(moved))[0]
    assert fold.head.decisions == fold.head.seq == len(cell.records) - 1
    assert live == digest(fold.cells)


def test_c51_what_was_put_aside_leaves_a_gap_in_sources_only() -> None:
    """Unreadable inputs never reach the log: the next one decides on, and totals stay numbers."""
    cell = cell_with(2)
    cell.submit("one")
    cell._offsets["requests"] += 1
    cell.submit("two")
    cell.release(cell.lease("one").id)
    cell.answer_all_orders()
    assert 1_000 == held(cell)
    assert cell.digest() == digest(cell.replayed().cells)
    assert 6 == cell.fold.head.sources["requests"]
