"""A what-if replay: nothing changed is no difference; what is changed is as it would have been."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pytest

from collectors.fleet.fault_plan import DeviceFault, Down, FaultPlan, Silent
from collectors.simulation.demo import SCENARIO
from collectors.simulation.scenario import read_scenario
from ledger.billing.charges import Tariff
from ledger.billing.prices import read_prices
from ledger.core.invariants import check
from ledger.counterfactual.changes import AddedNodes, Changes
from ledger.counterfactual.compare import compared
from ledger.counterfactual.peaks import read_peaks
from ledger.counterfactual.replay import NoCell, NoNode, Options
from ledger.counterfactual.sums import Sums
from ledger.counterfactual.world import Refused
from ledger.log.memory import MemoryLog
from ledger.log.port import TopicState
from ledger.metering.policy import POLICIES
from ledger.testing import CoreDriver, device
from ledger.wire import input_entry
from schemas.catalogue import TYPES
from schemas.topics import full_name
from tests.billing_support import book, price
from tests.metering_logs import random_log
from tests.replay_support import put
from tests.whatif_sites import (
    PREFIX,
    WHY,
    Cell,
    act,
    drawn_jobs,
    fleet,
    job,
    pairs,
    policy,
    replayed,
    run,
    simulated,
    waits,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from collectors.simulation.cluster import Act
    from ledger.counterfactual.replay import Outcome
    from ledger.log.port import Log

_US = 1_000_000


def quotas(t: int, u: int) -> list[Act]:
    """Return what sets the quotas of tenants t and u, in devices."""
    return [
        act("quota.apply", tenant=name, nominal_gpu_milli=1000 * gpus)
        for name, gpus in (("t", t), ("u", u))
    ]


async def log_of(values: Sequence[bytes]) -> Log:
    """Return a log that holds these records."""
    log = MemoryLog()
    await put(log, PREFIX, values)
    return log


def differences(outcome: Outcome, tariff: Tariff | None = None) -> dict[str, int]:
    """Return what differs of a comparison; unknown on one side only is a difference too."""
    found = {}
    plain = compared(outcome, (), tariff)
    for path, pair in pairs(plain):
        assert pair["difference"] is not None or pair["recorded"] == pair["whatif"], path
        if pair["difference"]:
            found[path] = pair["difference"]
    for at, group in enumerate(plain["requests"]):
        for name in ("wait_longer", "wait_shorter"):
            if group[name]:
                found[f"requests.{at}.{name}"] = group[name]
    return found


TARIFF = Tariff(read_prices(book(price("gpu", "GPU-Hours", 2_000_000_000))), POLICIES["pool"])


# -- nothing is changed -------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
async def test_nothing_changed_is_no_difference(seed: int) -> None:
    """On random logs of all modes every decision is the recorded one, from any record on."""
    values = random_log(seed, 300)
    log = await log_of(values)
    for first in (0, len(values) // 3, len(values) - 5):
        outcome = await replayed(log, None, first, options=Options(rows=True))
        assert outcome.world.first_difference is None
        assert {} == differences(outcome, TARIFF)
        assert outcome.recorded.asked == outcome.changed.asked
        assert outcome.recorded.rows == outcome.changed.rows


async def test_nothing_changed_up_to_any_record() -> None:
    """What the log cuts off in the middle ends in the middle."""
    values = random_log(7, 200)
    log = await log_of(values)
    for end in range(40, len(values), 17):
        outcome = await replayed(log, None, 20, end)
        assert outcome.world.first_difference is None, end
        assert {} == differences(outcome), end


async def test_nothing_changed_on_a_site_with_faults() -> None:
    """Nodes that restart, fall silent and lose devices are as the log has them."""
    plan = FaultPlan(
        fault=(
            Down(kind="down", node="n1", at_s=300, for_s=400, incarnation="new"),
            Silent(kind="silent", node="n2", at_s=500, for_s=45),
            Silent(kind="silent", node="n3", at_s=900, for_s=900),
            DeviceFault(kind="device", node="n2", device=1, at_s=700, for_s=300, health="gone"),
        )
    )
    acts = [*quotas(12, 12), act("queue.apply", queue="q", preemption="any-tenant")]
    log = await simulated(drawn_jobs(5, 60), fleet("n1", "n2", "n3"), acts, plan)
    end = await log.end(f"{PREFIX}.events", 0)
    for first in (0, end // 2):
        outcome = await replayed(log, None, first)
        assert outcome.world.first_difference is None
        assert {} == differences(outcome)
        assert outcome.recorded.interrupted


def told_by_hand() -> Cell:
    """Return a cell that is told what random logs are not: commands begun, modes, layouts."""
    cell = Cell(2)
    cell.feed("prices.apply", orjson.loads(book(price("gpu", "GPU-Hours", 1))) | WHY)
    cell.feed(
        "placement.apply",
        {"pool": "main", "shapes": [], "holes": [], "cpu_milli_per_gpu": 0,
         "memory_mib_per_gpu": 0, "cpu_load_milli": 0, "loads_milli": {}, **WHY},
    )  # fmt: skip
    cell.submit("a", at_us=10 * _US)
    lease = cell.lease("a").id
    begin = {"lease": lease, "node": "n1", "said_us": 77, "after_us": 250_000}
    cell.task_started(lease, "n1")
    assert "applied" == cell.feed("task.begin", begin, at_us=12 * _US).code
    # Refused, of a lease that runs on: from another, and of a node that it is not on.
    assert "not_owner" == cell.feed("task.begin", begin, source="/stranger").code
    assert "wrong_node" == cell.feed("task.begin", begin | {"node": "n2"}).code
    assert "wrong_agent" == cell.feed(
        "task.started", {"node": "n1", "incarnation": "b1", "lease": lease}, source="/stranger"
    ).code  # fmt: skip
    cell.release(lease, at_us=20 * _US)
    assert "already_released" == cell.feed("task.begin", begin).code
    cell.answer_all_orders()
    cell.node_set("n1", "draining")
    assert "applied" == cell.feed("device.mode", {"device": "GPU-0", "enabled": True, **WHY}).code
    cell.tick(at_us=cell.now_us + _US)
    cell.answer_all_orders()
    cell.feed("device.partition", {"device": "GPU-0", "layout": [], **WHY})
    cell.node_set("n1", "online")
    cell.silent("n1")
    assert "observed" == cell.back("n1").code
    return cell


async def test_nothing_changed_whatever_a_cell_is_told() -> None:
    """Every type of input is fed again, none passed over, from any record on."""
    cell = told_by_hand()
    logs = [random_log(seed, 300) for seed in range(4)] + [tuple(cell.records)]
    given = (orjson.loads(value).get("input", {}).get("type") for log in logs for value in log)
    inputs = ("requests", "observations")
    assert {name for (name, _), one in TYPES.items() if one.topic in inputs} == {*given} - {None}
    log = await log_of(cell.records)
    for first in range(len(cell.records)):
        outcome = await replayed(log, None, first)
        assert outcome.world.first_difference is None, first
        assert {} == outcome.world.passed_over
        assert {} == differences(outcome)


async def test_a_command_begins_where_and_when_its_lease_is_granted() -> None:
    """It comes as long after the grant as it did, on the node that the lease has there."""
    cell = Cell()
    first = len(cell.records)
    cell.submit("a", at_us=10 * _US)
    cell.runs(cell.lease("a").id, 100)
    cell.submit("b", at_us=110 * _US)
    begin = {"lease": cell.lease("b").id, "node": "n1", "said_us": 77, "after_us": 250_000}
    cell.feed("task.begin", begin, at_us=113 * _US)
    cell.runs(cell.lease("b").id, 200)
    begun: list[tuple[int, str]] = []
    learned = Sums.take

    def take(sums: Sums, now_us: int, kind: str, data: Any, events: list[Any]) -> None:
        begun.extend((now_us, one["node"]) for one in events if one["type"] == "task.begun")
        learned(sums, now_us, kind, data, events)

    more = Changes(added=(AddedNodes(1, "n1"),), removed=("n1",))
    log = await log_of(cell.records)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Sums, "take", take)
        outcome = await replayed(log, more, first)
    assert outcome.world.first_difference is not None
    assert {} == {why: n for why, n in outcome.world.passed_over.items() if "lease" in why}
    assert [(113 * _US, "n1"), (113 * _US, "n1-whatif-1")] == begun


async def test_nothing_changed_in_the_demo() -> None:
    """The first jobs of the demo's month: gangs, slices and shares, with its faults."""
    scenario = read_scenario(SCENARIO, jobs=80)
    outcome = await replayed(await run(scenario), options=Options(rows=True))
    assert outcome.world.first_difference is None
    assert {} == differences(outcome, TARIFF)
    assert outcome.recorded.granted > 150


# -- as it would have been ------------------------------------------------------------------

EVICTING = act("queue.apply", queue="q", preemption="any-tenant")
NODES = ("n1", "n2", "n3")

#: What is changed, and the site that is run with it: its nodes and acts.
TRUTHS: dict[str, tuple[Changes, tuple[str, ...], list[Act]]] = {
    "a lower quota": (
        Changes(policy=policy("quotas: [{tenant: t, nominal_gpu_milli: 4000}]")),
        NODES,
        [*quotas(4, 12), EVICTING],
    ),
    "no preemption": (
        Changes(queues=(("preemption", "never"),)),
        NODES,
        quotas(12, 12),
    ),
    "another placement": (
        Changes(pools=(("placement", "first-fit"),)),
        NODES,
        [*quotas(12, 12), EVICTING, act("pool.apply", pool="p", placement="first-fit")],
    ),
    "a node less": (Changes(removed=("n3",)), NODES[:2], [*quotas(12, 12), EVICTING]),
    "a node more": (
        Changes(added=(AddedNodes(1, "n3"),)),
        (*NODES, "n3-whatif-1"),
        [*quotas(12, 12), EVICTING],
    ),
}


@pytest.mark.parametrize("name", TRUTHS)
async def test_as_it_would_have_been(name: str) -> None:
    """A replay under other rules is what a site does that is run under them.

    All work came to its end in the log, so nothing has to be assumed. To the microsecond:
    when each request came and had its first lease.
    """
    changes, nodes, acts = TRUTHS[name]
    jobs = drawn_jobs(1, 60)
    log = await simulated(jobs, fleet(*NODES), [*quotas(12, 12), EVICTING])
    truth = await simulated(jobs, fleet(*nodes), acts)
    outcome = await replayed(log, changes)
    real = (await replayed(truth)).recorded
    last_us = outcome.recorded.end_us - 1_600_000_000 * _US
    wanted = {
        request: (came, None if got is None or got > last_us else got)
        for request, (came, got) in waits(real).items()
    }
    assert wanted == waits(outcome.changed)
    assert wanted != waits(outcome.recorded), "the change made no difference"
    assert {"recorded", "other-lease"} >= set(outcome.work.bases)


async def test_a_lower_quota_lengthens_its_tenants_waits_only() -> None:
    """Where there is enough for both tenants, nobody but the one with less waits longer."""
    jobs = [job(f"{who}{at}", 10 * at, 300, tenant=who) for at in range(12) for who in "tu"]
    log = await simulated(jobs, fleet("n1", "n2", devices=8), quotas(8, 8))
    changes = Changes(policy=policy("quotas: [{tenant: t, nominal_gpu_milli: 2000}]"))
    outcome = await replayed(log, changes)
    plain = compared(outcome, changes.lines(), None)
    groups = {(one["tenant"], one["type"]): one for one in plain["requests"]}
    assert groups["t", None]["wait_total_us"]["difference"] > 0
    assert groups["t", "training"]["wait_longer"] > 0
    assert 0 == groups["t", None]["wait_shorter"]
    # Devices of the other's that are not being cleaned are there sooner.
    assert groups["u", None]["wait_total_us"]["difference"] <= 0
    assert 0 == groups["u", None]["wait_longer"]
    assert ["quota t as the file has it"] == plain["changes"]


async def test_without_preemption_nothing_is_interrupted_by_it() -> None:
    """Nobody is evicted where no queue lets anybody; the log has some who were."""
    log = await simulated(drawn_jobs(2, 60), fleet(*NODES), [*quotas(12, 12), EVICTING])
    changes = Changes(queues=(("preemption", "never"), ("reclaim", "never")))
    outcome = await replayed(log, changes)
    assert outcome.recorded.ends["preempted"] > 0
    assert 0 == outcome.changed.ends["preempted"]
    reasons = compared(outcome, (), None)["interruptions"]["by_reason"]
    assert -outcome.recorded.ends["preempted"] == reasons["preempted"]["difference"]


async def test_capacity_that_is_removed_gets_nothing_new() -> None:
    """What runs on the node goes on to its end; from the start of the replay on nothing begins."""
    jobs = [job(f"j{at}", 60 * at, 200) for at in range(20)]
    log = await simulated(jobs, fleet("n1", "n2", devices=1), quotas(9, 9))
    outcome = await replayed(log, Changes(removed=("n2",)), 40)
    assert "maintenance" == outcome.world.state.nodes["n2"].state
    assert outcome.changed.ends == {"completed": outcome.changed.ends["completed"]}
    plain = compared(outcome, (), None)
    assert plain["requests"][0]["wait_total_us"]["difference"] > 0
    assert plain["use"]["in_service_milli_us"]["difference"] < 0
    whole = await replayed(log, Changes(removed=("n2",)))
    assert "n2" not in whole.world.state.nodes


#: Changes that a random log is replayed under.
CHANGES = {
    "placement and memory": Changes(
        pools=(("placement", "first-fit"), ("memory_overcommit_permille", 2000))
    ),
    "evictions": Changes(queues=(("preemption", "any-tenant"), ("reclaim", "any"))),
    "other nodes": Changes(added=(AddedNodes(2, "n1"), AddedNodes(1, "n4")), removed=("n2",)),
    "more quota": Changes(policy=policy("quotas: [{tenant: v, nominal_gpu_milli: 90000}]")),
}


@pytest.mark.parametrize("name", CHANGES)
async def test_every_world_keeps_the_invariants(name: str) -> None:
    """Whatever is changed of a random log, the state is one that the ledger can be in."""
    values = random_log(3, 250)
    log = await log_of(values)
    found = [await replayed(log, CHANGES[name], len(values) // part) for part in (3, 3, 1_000_000)]
    for outcome in found:
        assert [] == check(outcome.world.state)
        assert outcome.world.first_difference is not None
    assert found[0].changed.asked == found[1].changed.asked, "not the same twice"


# -- what has to be assumed ---------------------------------------------------------------


def at(outcome: Outcome, request: str) -> tuple[int | None, int | None]:
    """Return when a request had its first lease and was over, in whole seconds."""
    one = outcome.changed.asked[f"/team/a#{request}"]
    times = one.granted_us, one.over_us
    granted, over = (None if us is None else us // _US for us in times)
    return granted, over


async def test_what_never_ran_is_taken_to_run_as_expected() -> None:
    """Its own word comes first, then what its tenant's tasks of its type took."""
    cell = Cell()
    cell.submit("a", at_us=10 * _US)
    cell.runs(cell.lease("a").id, 110)
    cell.submit("b", at_us=200 * _US)
    cell.submit("said", at_us=210 * _US, expected_run_s=30)
    cell.submit("unsaid", at_us=220 * _US)
    cell.tick(at_us=1000 * _US)
    cell.submit("last", at_us=1000 * _US)
    log = await log_of(cell.records)
    outcome = await replayed(log, Changes(added=(AddedNodes(2, "n1"),)))
    assert (210, 240) == at(outcome, "said")
    assert (220, 320) == at(outcome, "unsaid")
    assert 1 == outcome.work.bases["expected"]
    plain = compared(outcome, (), None)
    assert plain["runs"]["tenant-type"]["leases"] >= 1
    assert plain["assumptions"]


@pytest.mark.parametrize(
    ("stated", "until"), [({}, 500), ({"checkpoint": "s3://ckpt"}, 700)], ids=["anew", "goes on"]
)
async def test_interrupted_work_takes_what_it_took_whole(
    stated: dict[str, Any], until: int
) -> None:
    """Without the interruption: as long as its last lease; with a checkpoint all of its leases."""
    cell = Cell(preemption="any-tenant")
    cell.submit("low", at_us=100 * _US, preemptible=True, **stated)
    cell.task_started(cell.lease("low").id, "n1")
    cell.submit("high", at_us=300 * _US, priority=5)
    cell.answer_all_orders()
    high = cell.lease("high").id
    cell.runs(high, 350)
    low = cell.lease("low")
    cell.runs(low.id, low.granted_us // _US + 400)
    cell.tick(at_us=2000 * _US)
    cell.submit("last", at_us=2000 * _US)
    log = await log_of(cell.records)
    outcome = await replayed(log, Changes(queues=(("preemption", "never"),)))
    granted, over = at(outcome, "low")
    assert 100 == granted
    assert over in (until - 1, until, until + 1)


async def test_who_gave_up_waiting_does_not_where_it_runs() -> None:
    """The cancellation of a request that waited is not fed where it has its lease."""
    cell = Cell()
    cell.submit("a", at_us=10 * _US)
    cell.submit("b", at_us=20 * _US, expected_run_s=60)
    cell.cancel("b", at_us=50 * _US)
    cell.tick(at_us=200 * _US)
    cell.submit("last", at_us=200 * _US)
    log = await log_of(cell.records)
    outcome = await replayed(log, Changes(added=(AddedNodes(1, "n1"),)))
    assert (20, 80) == at(outcome, "b")
    assert {"given up while it waited, but here it runs": 1} == outcome.world.passed_over


# -- memory -------------------------------------------------------------------------------


def share(name: str, at_s: int, run_s: int) -> Any:
    """Return a request for 300 thousandths and 40,000 MiB of a device."""
    return job(name, at_s, run_s, ask={"mode": "share", "gpu_milli": 300, "memory_mib": 40_000})


async def test_peaks_against_hand_computed_sums() -> None:
    """Two shares of 40,000 MiB fit on 81,559; overcommitted a third does, and the peaks do not."""
    jobs = [share("a", 0, 100), share("b", 10, 100), share("c", 20, 100)]
    log = await simulated(jobs, fleet("n1", devices=1), quotas(9, 9))
    peaks = {f"/users/t#{name}": mib for name, mib in (("a", 30_000), ("b", 30_000), ("c", 25_000))}
    changes = Changes(pools=(("memory_overcommit_permille", 1500),))
    outcome = await replayed(log, changes, options=Options(peaks=peaks))
    memory = compared(outcome, (), None)["memory"]
    assert (0, 1) == (memory["devices_over"]["recorded"], memory["devices_over"]["whatif"])
    # From c's grant at 20 s until a ends at 100 s.
    assert 80 * _US == memory["device_us_over"]["whatif"]
    assert 30_000 + 30_000 + 25_000 - 81_559 == memory["most_mib_over"]["whatif"]
    assert 0 == memory["shares_unmeasured"]["whatif"]
    gained = outcome.recorded.asked["/users/t#c"], outcome.changed.asked["/users/t#c"]
    # Without it, c waits until a has ended and is proved clean: 2 s.
    assert [82 * _US, 0] == [one.wait_us(0) for one in gained]


async def test_what_was_not_measured_is_unknown() -> None:
    """A share without a peak is counted as unmeasured, not as nothing."""
    jobs = [share("a", 0, 100), share("b", 10, 100)]
    log = await simulated(jobs, fleet("n1", devices=1), quotas(9, 9))
    outcome = await replayed(log, options=Options(peaks={"/users/t#a": 81_560}))
    memory = compared(outcome, (), None)["memory"]
    assert 1 == memory["shares_unmeasured"]["recorded"]
    assert (1, 1) == (memory["devices_over"]["recorded"], memory["most_mib_over"]["recorded"])


async def test_peaks_are_read_from_what_nodes_measured() -> None:
    """The processes of a lease on one device are added; the most of all records counts."""
    log = await simulated([], fleet("n1", devices=1), quotas(9, 9))
    topic = full_name(PREFIX, "usage")
    for used in ((100, 50), (120, 10)):
        processes = [
            {"pid": 1 + at, "lease": "/users/t#a/1", "memory_mib": mib}
            for at, mib in enumerate(used)
        ]
        processes.append({"pid": 9, "lease": None, "memory_mib": 7})
        processes.append({"pid": 8, "lease": "/users/t#b/2", "memory_mib": None})
        data = {"node": "n1", "devices": [{"uuid": "GPU-1", "processes": processes}]}
        entry = input_entry("n1", "task.use", "/nodes/n1/agent", f"u{used[0]}", data)
        await log.append(topic, 0, [entry])
    assert {"/users/t#a": 150} == await read_peaks(log, PREFIX)
    assert {} == await read_peaks(MemoryLog(), PREFIX)


# -- cost, cells, refusals ----------------------------------------------------------------


async def test_cost_is_hours_times_price() -> None:
    """A request that runs an hour more in one world costs its tenant that hour more."""
    jobs = [job("a", 0, 3600), job("b", 0, 3600), job("end", 10_000, 1)]
    log = await simulated(jobs, fleet("n1", devices=1), quotas(9, 9))
    changes = Changes(policy=policy("quotas: [{tenant: t, nominal_gpu_milli: 0}]"))
    outcome = await replayed(log, changes, options=Options(rows=True))
    cost = compared(outcome, (), TARIFF)["cost"]["payers"]
    assert 2 * 3600 + 1 == cost["t"]["gpu_seconds_milli"]["recorded"] // 1000
    assert 0 == cost["t"]["contracted_atto"]["whatif"]
    assert -(4 * 10**18) == round(cost["t"]["contracted_atto"]["difference"], -17)
    total = sum(one["gpu_seconds_milli"]["difference"] for one in cost.values())
    assert 0 == total, "what no tenant pays the pool pays"


def two_cells() -> Iterable[bytes]:
    """Yield the records of a partition with cells c and d, one after the other."""
    last = {"seq": 0, "requests": -1, "observations": -1}
    for name in ("c", "d"):
        cell = CoreDriver(name)
        for kind in (cell.pool, cell.queue, cell.quota):
            kind()
        cell.node("n1", [device(f"GPU-{name}")])
        cell.submit("a")
        before = dict(last)
        for value in cell.records:
            record = orjson.loads(value)
            if record["kind"] == "decision":
                record["seq"] += before["seq"]
                record["source"][1] += before[record["source"][0]] + 1
                last["seq"] = record["seq"]
                last[record["source"][0]] = record["source"][1]
            yield orjson.dumps(record)


async def test_one_cell_of_several() -> None:
    """Cells are worlds of their own; one of several must be named, and be there."""
    log = await log_of(list(two_cells()))
    for name in ("c", "d"):
        outcome = await replayed(log, options=Options(cell=name))
        assert (name, 1) == (outcome.cell, len(outcome.recorded.asked))
        assert {} == differences(outcome)
    with pytest.raises(NoCell) as found:
        await replayed(log)
    assert ["c", "d"] == found.value.cells
    with pytest.raises(NoCell):
        await replayed(log, options=Options(cell="e"))


async def test_policy_that_the_ledger_would_refuse() -> None:
    """It is said and not passed over."""
    log = await simulated([job("a", 0, 10)], fleet("n1"), quotas(9, 9))
    orphan = policy("quotas: [{tenant: x, parent: nobody, nominal_gpu_milli: 1}]")
    with pytest.raises(Refused, match=r"quota.apply is refused: unknown_parent"):
        await replayed(log, Changes(policy=orphan))


@pytest.mark.parametrize(
    "changes",
    [Changes(added=(AddedNodes(1, "n9"),)), Changes(removed=("n1", "n9"))],
    ids=["like it", "without it"],
)
async def test_a_node_that_never_was_is_named_with_those_that_were(changes: Changes) -> None:
    """Nothing is replayed without, or with more of, what the log does not have."""
    log = await simulated([job("a", 0, 10)], fleet("n1", "n2"), quotas(9, 9))
    with pytest.raises(NoNode) as caught:
        await replayed(log, changes)
    assert (["n9"], ["n1", "n2"]) == (caught.value.names, caught.value.known)


async def test_a_file_stands_in_the_place_of_what_the_log_applies() -> None:
    """At its time where it was not there yet, and nothing that the log applies later counts."""
    later = act("quota.apply", 500, tenant="t", nominal_gpu_milli=9000)
    jobs = [job("a", 10, 100), job("b", 20, 100), job("c", 1000, 10)]
    log = await simulated(jobs, fleet("n1"), [*quotas(9, 9), later])
    changes = Changes(policy=policy("quotas: [{tenant: t, nominal_gpu_milli: 1000}]"))
    for first in (0, 12):
        outcome = await replayed(log, changes, first)
        assert 1000 == outcome.world.state.quotas["t"].limits["gpu"].nominal
        assert outcome.world.passed_over["quota.apply"] >= 1


async def test_c51_what_is_no_measure_of_use_is_passed_over() -> None:
    """Records that are JSON and not what a node says end nothing, and are no peaks."""
    log = MemoryLog()
    await log.create_topics({f"{PREFIX}.usage": TopicState(1)})
    bad: list[Any] = [[1], {"devices": 5}, {"devices": [1, {"processes": {"lease": "a"}}]}]
    bad.append({"devices": [{"processes": [{"lease": 1, "memory_mib": 1},
                                           {"lease": "x#a/1", "memory_mib": "7"}]}]})  # fmt: skip
    entries = [input_entry("n1", "node.usage", "/nodes/n1", f"u{at}", one)
               for at, one in enumerate(bad)]  # fmt: skip
    await log.append(f"{PREFIX}.usage", 0, entries)
    assert {} == await read_peaks(log, PREFIX)
