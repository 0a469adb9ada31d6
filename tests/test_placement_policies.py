"""Placement policies: what each chooses, the tie rule, and that nothing kept changes a choice."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.core.digest import digest
from ledger.core.evolve import empty, evolve
from ledger.core.invariants import check
from ledger.core.placing.placement import place
from ledger.core.policies.logarithm import SCALE, log_ratio
from ledger.core.state import Need
from ledger.testing import CoreDriver, device, mig_slice

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

OPERATOR = {"author": "ops", "reason": "test"}
SCORED = ("first-fit", "fgd", "least-waste")
POLICIES = ("best-fit", *SCORED)


def cell_of(policy: str, *, check: bool = True, **free: int) -> CoreDriver:
    """Return a cell with one pool under the policy, its nodes with so many devices each."""
    cell = CoreDriver(check=check)
    cell.pool(placement=policy)
    cell.queue()
    cell.quota()
    for name, count in free.items():
        cell.node(name, devices(name, count))
    return cell


def devices(node: str, count: int, **more: object) -> list[dict[str, Any]]:
    """Return devices of a node."""
    return [device(f"GPU-{node}-{at}", **more) for at in range(count)]


def teach(cell: CoreDriver, **more: object) -> str:
    """Tell the pool of a workload: nothing, except as said; return the answer's code."""
    record = {
        "pool": "main",
        "shapes": [],
        "holes": [],
        "cpu_milli_per_gpu": 0,
        "memory_mib_per_gpu": 0,
        "cpu_load_milli": 0,
        "loads_milli": {},
    }
    return cell.feed("placement.apply", {**record, **OPERATOR, **more}, source="/operator").code


def share(milli: int, **more: object) -> dict[str, Any]:
    """Return an ask for a share."""
    return {"mode": "share", "gpu_milli": milli, **more}


def whole(count: int, **more: object) -> dict[str, Any]:
    """Return an ask for whole devices."""
    return {"mode": "whole", "count": count, **more}


def place_of(cell: CoreDriver, name: str, ask: Mapping[str, Any], **more: Any) -> str:
    """Submit a request; return the first device that it got, or the node when it has none."""
    decision = cell.submit(name, dict(ask), **more)
    assert "granted" == decision.code, decision
    part = decision.events[-1]["parts"][0]
    return str(part["units"][0] if part["units"] else part["node"])


# -- what each policy chooses ---------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_ties_go_to_the_least_name(policy: str) -> None:
    """Equal nodes: the name that sorts first, whichever was there first."""
    cell = cell_of(policy, n3=2, n1=2, n2=2)
    assert "GPU-n1-0" == place_of(cell, "whole", whole(1))
    cell = cell_of(policy, n3=2, n1=2, n2=2)
    assert "GPU-n1-0" == place_of(cell, "share", share(300))


@pytest.mark.parametrize(
    ("policy", "first"), [("best-fit", "n2"), ("first-fit", "n1"), ("least-waste", "n2")]
)
def test_a_policy_is_the_pools(policy: str, first: str) -> None:
    """First fit takes the first node; the others fill the fuller one; the record says which."""
    cell = cell_of(policy, n1=8, n2=2)
    granted = cell.submit("one", whole(1)).events[-1]
    assert [first] == [part["node"] for part in granted["parts"]]
    assert policy == granted["why"]["rule"]


def test_a_pool_on_an_old_record_is_best_fit() -> None:
    """Records from before there were policies have no such field."""
    state = empty("c")
    old = {"type": "pool.applied", "pool": "p", "labels": {}, "author": "o", "reason": "r"}
    evolve(state, {**old, "silent_grace_us": 1, "order_timeout_us": 1}, 1)
    assert "best-fit" == state.pools["p"].placement


@pytest.mark.parametrize("policy", SCORED)
def test_equal_devices_of_a_node_fill_up(policy: str) -> None:
    """On one node a share goes to the device with the least room that is enough."""
    cell = cell_of(policy, n1=3)
    assert ["GPU-n1-0", "GPU-n1-1"] == [place_of(cell, f"a{at}", share(600)) for at in (1, 2)]
    assert "GPU-n1-0" == place_of(cell, "b", share(100))
    assert "GPU-n1-0" == place_of(cell, "c", share(200)), "rooms of 300, 400 and 1000"
    assert "GPU-n1-1" == place_of(cell, "d", share(400))
    assert "GPU-n1-2" == place_of(cell, "e", share(200))


def test_fgd_leaves_what_the_workload_can_use() -> None:
    """A hole of 300 is fragmented when all ask for 500, so a free device is broken instead."""
    for shapes, expected in (([], "GPU-n1-0"), ([half()], "GPU-n2-0")):
        cell = cell_of("fgd", n1=1, n2=1)
        assert "GPU-n1-0" == place_of(cell, "first", share(400))
        assert "applied" == teach(cell, shapes=shapes)
        assert expected == place_of(cell, "second", share(300))


def test_fgd_counts_by_whole_hundredths() -> None:
    """A thousandth more of fragments is no reason: the tie rule decides, as published."""
    cell = cell_of("fgd", n1=1, n2=1)
    place_of(cell, "a", share(998))
    place_of(cell, "b", share(999))
    teach(cell, shapes=[half()])
    assert "GPU-n1-0" == place_of(cell, "c", share(1))
    cell = cell_of("fgd", n1=1, n2=1)
    place_of(cell, "a", share(500))
    place_of(cell, "b", share(600))
    teach(cell, shapes=[half()])
    assert "GPU-n2-0" == place_of(cell, "c", share(100)), "a tenth of a device is one"


def half(**more: object) -> dict[str, Any]:
    """Return a workload of one shape: half a device."""
    return {"count": 1, "gpu_milli": 500, "share_ppm": 1_000_000, "worth_ppm": 1_000_000, **more}


#: What 810, 470 and little else are worth: a hole of 190 nothing, one of 530 half a device.
HOLES = [(0, 0), (460, 500), (810, 1000)]


def test_least_waste_uses_the_hole_that_is_worth_nothing() -> None:
    """A share of 160 goes where 810 left 190, not where it would spoil a place for 470."""
    for holes, expected in (
        (HOLES, "GPU-n2-0"),
        ([], "GPU-n2-0"),
        ([(0, 0), (190, 900)], "GPU-n1-0"),
    ):
        cell = cell_of("least-waste", n1=1, n2=1)
        place_of(cell, "a", share(470))
        place_of(cell, "b", share(810, models=["H100"]))
        teach(cell, holes=holes)
        assert expected == place_of(cell, "c", share(160))
    cell = cell_of("least-waste", n1=1, n2=1, n3=1)
    for name, milli in (("a", 470), ("b", 810)):
        place_of(cell, name, share(milli))
    teach(cell, holes=HOLES)
    assert "GPU-n1-0" == place_of(cell, "c", share(470)), "halves pair up"


def test_least_waste_sends_others_away_from_models_that_are_asked_for_by_name() -> None:
    """Who does not care about the model leaves the contested one alone, who names it gets it."""
    cell = cell_of("least-waste", n1=1)
    cell.node("n2", devices("n2", 2, model="A100"))
    teach(cell, loads_milli={"H100": 2_000})
    assert "GPU-n2-0" == place_of(cell, "any", whole(1))
    assert "GPU-n1-0" == place_of(cell, "named", whole(1, models=["H100"]))


def test_least_waste_keeps_cpu_beside_free_devices() -> None:
    """A task without devices goes where CPU is left over, or to a node that has no device."""
    beside = {"cpu_milli": 5_000}
    cell = cell_of("least-waste")
    cell.node("n1", devices("n1", 1), cpu_milli=10_000)
    cell.node("n2", devices("n2", 1), cpu_milli=100_000)
    teach(cell, cpu_milli_per_gpu=10_000)
    assert "n2" == place_of(cell, "a", whole(0), beside=beside)
    cell.node("n3", cpu_milli=10_000)
    cell.node_set("n2", "draining")
    assert "n3" == place_of(cell, "b", whole(0), beside=beside)


def test_least_waste_keeps_room_for_copies_of_the_usual_shapes() -> None:
    """The last place for a usual shape is worth more than one of several."""
    cell = cell_of("least-waste")
    cell.node("n1", devices("n1", 1), cpu_milli=4_000)
    cell.node("n2", devices("n2", 1), cpu_milli=40_000)
    teach(cell, shapes=[half(cpu_milli=4_000, share_ppm=0)])
    assert "n2" == place_of(cell, "a", whole(0), beside={"cpu_milli": 1_000})


def test_least_waste_minds_the_copies_more_where_cpu_is_short() -> None:
    """Taking n1 costs 0.085 more in copies, n2 0.425 devices without memory: the choice turns.

    0.085 x 0.4 is less than 0.425 x 0.1, 0.085 x 0.6 is more.
    """
    for load, expected in ((1_000, "n1"), (1_001, "n2")):
        cell = cell_of("least-waste")
        cell.node("n1", devices("n1", 1), cpu_milli=4_000)
        cell.node("n2", devices("n2", 1), cpu_milli=8_000, memory_mib=700)
        shape = half(cpu_milli=4_000, share_ppm=0)
        teach(cell, shapes=[shape], memory_mib_per_gpu=1_000, cpu_load_milli=load)
        beside = {"cpu_milli": 1_000, "memory_mib": 319}
        assert expected == place_of(cell, "a", whole(0), beside=beside)


@pytest.mark.parametrize("policy", SCORED)
def test_all_models_are_looked_at(policy: str) -> None:
    """The tie rule holds over all devices that match, not within each model first."""
    cell = cell_of(policy, n2=2)
    cell.node("n1", devices("n1", 2, model="H200", memory_mib=143_771))
    assert "GPU-n1-0" == place_of(cell, "a", whole(1))
    assert "GPU-n2-0" == place_of(cell, "b", whole(1, models=["H100"]))


@pytest.mark.parametrize("policy", SCORED)
def test_gangs_and_slices_are_placed_as_ever(policy: str) -> None:
    """A policy chooses one place on one node; what needs more is best fit under all of them."""
    cell = cell_of(policy, n1=8, n2=2, n3=2)
    granted = cell.submit("gang", whole(2, nodes=2)).events[-1]
    assert ["n2", "n3"] == [part["node"] for part in granted["parts"]]
    assert "best-fit" == granted["why"]["rule"]
    sliced = device("GPU-m", mig_enabled=True, compute_slices=7, slices=[mig_slice("MIG-1", 1, 0)])
    cell.node("n4", [sliced])
    assert "granted" == cell.submit("mig", {"mode": "mig", "profile": "1g.10gb"}).code


@pytest.mark.parametrize("policy", SCORED)
def test_memory_of_devices_and_hosts_counts(policy: str) -> None:
    """Room alone is no place: not without device memory, CPU or memory beside."""
    cell = cell_of(policy)
    cell.node("n1", devices("n1", 2), cpu_milli=8_000, memory_mib=1_000)
    assert "GPU-n1-0" == place_of(cell, "a", share(100, memory_mib=80_000))
    assert "GPU-n1-1" == place_of(cell, "b", share(100, memory_mib=10_000))
    assert "no_capacity" == cell.submit("c", share(1, memory_mib=75_000)).numbers["reason"]
    for beside in ({"cpu_milli": 9_000}, {"memory_mib": 1_001}):
        assert "no_beside" == cell.submit(None, share(1), beside=beside).numbers["reason"]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("mode", ["whole", "share"])
def test_nodes_that_are_not_allowed_are_passed_over(policy: str, mode: str) -> None:
    """The best of those allowed is found; saying no once is not remembered."""
    cell = cell_of(policy, n1=1, n2=1, n3=1)
    need = Need(mode, count=1, gpu_milli=1000 if mode == "whole" else 200)

    def node(*shut: str) -> str | None:
        found = place(cell.state, need, allowed=lambda name: name not in shut)
        return None if found is None else found.parts[0][0]

    assert ["n1", "n3", None, "n2", "n1"] == [
        node(),
        node("n1", "n2"),
        node("n1", "n2", "n3"),
        node("n1"),
        node(),
    ]


def test_a_workload_for_no_pool_is_refused() -> None:
    """There is nothing that it could be told to."""
    assert "unknown_pool" == teach(cell_of("fgd"), pool="other")


@pytest.mark.parametrize(
    "wrong",
    [
        {"holes": [(10, 5), (10, 6)]},
        {"holes": [(10, 5), (20, 4)]},
        {"shapes": [half(), half(share_ppm=1)]},
        {"shapes": [half(gpu_milli=0)]},
    ],
)
def test_a_workload_must_add_up(wrong: dict[str, Any]) -> None:
    """Holes ascend, and shapes are no more than all requests."""
    with pytest.raises(ValueError, match="validation error"):
        teach(cell_of("fgd"), **wrong)


# -- nothing that is kept decides --------------------------------------------------------


def shapes_of(chance: random.Random) -> list[dict[str, Any]]:
    """Return some workload."""
    return [
        half(
            count=count,
            gpu_milli=1000 if count > 1 else chance.choice([190, 470, 500, 810, 1000]),
            cpu_milli=chance.choice([0, 2_000, 8_000]),
            models=chance.choice([[], ["H100"], ["A100", "H100"]]),
            share_ppm=200_000,
            worth_ppm=chance.randrange(300_000),
        )
        for count in chance.choices([0, 1, 1, 1, 2, 4], k=5)
    ]


class Churn:
    """Random requests, ends, faults and policy on one cell, with all invariants after each step.

    One of them is that kept scores choose as ones made anew (`ledger.core.policies.choice.faults`).
    """

    def __init__(self, policy: str, seed: int) -> None:
        self.chance = random.Random(seed)
        self.cell = CoreDriver(check=True)
        self.cell.pool(placement=policy)
        self.cell.queue()
        self.cell.quota()
        self.policy = policy
        for at in range(5):
            self.report(at, cpu_milli=20_000)

    def report(self, at: int, **more: Any) -> None:
        """Let a node report; devices come, go, move from node to node and turn into others."""
        name = f"n{at}"
        state = self.cell.state
        here = []
        for uuid in self.chance.sample([f"GPU-{one:02}" for one in range(12)], k=5):
            known = state.devices.get(uuid)
            if known is None or known.node == name or known.health == "gone":
                here.append(device(uuid, model=self.chance.choice(["A100", "H100", "H100"])))
        before = state.nodes.get(name)
        epoch = 1 if before is None else before.epoch + 1
        self.cell.node(name, here[: self.chance.randrange(4)], epoch=epoch, **more)

    def step(self) -> None:
        """Do one thing."""
        cell, chance = self.cell, self.chance
        what = chance.choices(
            ("submit", "end", "clean", "report", "drain", "sick", "teach", "pool"),
            (40, 15, 20, 8, 3, 3, 3, 1),
        )[0]
        if what == "submit":
            self.submit()
        elif what == "end" and cell.state.leases:
            cell.release(chance.choice(sorted(cell.state.leases)))
        elif what == "clean" and cell.state.orders:
            cell.order_done(chance.choice(sorted(cell.state.orders)))
        elif what == "report":
            self.report(chance.randrange(5), cpu_milli=chance.choice([None, 10_000, 30_000]))
        elif what == "drain":
            cell.node_set(f"n{chance.randrange(5)}", chance.choice(["online", "draining"]))
        elif what == "sick" and cell.state.devices:
            healthy = chance.choice(["healthy", "unhealthy"])
            uuid = chance.choice(sorted(cell.state.devices))
            cell.health(uuid, healthy)
        elif what == "teach":
            teach(cell, shapes=shapes_of(chance), holes=HOLES, cpu_milli_per_gpu=4_000)
        elif what == "pool":
            self.policy = chance.choice(SCORED)
            cell.pool(placement=self.policy)

    def submit(self) -> None:
        """Ask for something, with or without patience."""
        chance = self.chance
        ask = chance.choice(
            [share(chance.choice([100, 190, 470, 810])), whole(chance.randrange(3))]
        )
        if ask["mode"] == "share" and chance.random() < 0.3:
            ask["memory_mib"] = chance.choice([1_000, 60_000])
        if chance.random() < 0.3:
            ask["models"] = ["H100"]
        beside = {"cpu_milli": chance.choice([0, 2_000])}
        self.cell.submit(None, ask, beside=beside, max_wait_s=chance.choice([0, None]))


@pytest.mark.parametrize("policy", SCORED)
@pytest.mark.parametrize("seed", [1, 2])
def test_kept_scores_choose_as_new_ones_and_a_replay_comes_to_the_same(
    policy: str, seed: int
) -> None:
    """Same state, same choice, whatever the history; every step is folded again (S1, S2)."""
    churn = Churn(policy, seed)
    for _ in range(150):
        churn.step()
    assert any(event["why"]["rule"] in SCORED for event in granted_of(churn.cell)), (
        "the policy was asked"
    )
    assert churn.cell.digest() == digest(churn.cell.replayed().cells)


def found(cell: CoreDriver, need: Need) -> str | None:
    """Return the node on which the need would be placed now."""
    place_now = place(cell.state, need)
    return None if place_now is None else place_now.parts[0][0]


@pytest.mark.parametrize("policy", SCORED)
def test_a_node_that_leaves_a_class_or_comes_into_one_is_followed(policy: str) -> None:
    """A device turns out to be of another model, then moves, and its old node has none left."""
    cell = cell_of(policy, n1=1, n2=1, n3=0)
    old, bare = Need("whole", models=("H100",)), Need("whole", count=0)
    assert ["n1", "n1"] == [found(cell, old), found(cell, bare)]
    cell.node("n1", [device("GPU-n1-0", model="A100")])
    assert "n2" == found(cell, old)
    cell.node("n1", [])
    cell.node("n2", [device("GPU-n1-0"), *devices("n2", 1)])
    assert [] == cell.state.nodes["n1"].devices
    assert ["n2", "n1"] == [found(cell, old), found(cell, bare)]


def granted_of(cell: CoreDriver) -> Sequence[dict[str, Any]]:
    """Return the leases that were granted, as events."""
    import orjson  # noqa: PLC0415

    return [
        event
        for value in cell.records
        for event in orjson.loads(value).get("events", ())
        if event["type"] == "lease.granted"
    ]


def test_a_kept_score_that_is_wrong_is_found() -> None:
    """S2 holds kept scores against new ones, so a change that was missed does not stay hidden."""
    cell = cell_of("first-fit", check=False, n1=1, n2=1)
    place_of(cell, "a", whole(1))
    assert [] == check(cell.state)
    for scores in cell.state.index.scores.values():
        scores.changes.last.clear()
        scores.changes.count = 10
    cell.release(cell.lease("a").id)
    cell.answer_all_orders()
    for scores in cell.state.index.scores.values():
        scores.changes.last.clear()
    assert {"S2"} == {one.invariant for one in check(cell.state)}


# -- logarithms ---------------------------------------------------------------------------


@given(above=st.integers(1, 10**6), below=st.integers(1, 10**6))
def test_logarithms_are_right_to_the_last_digit_but_one(above: int, below: int) -> None:
    """Integers, and as exact as a float can tell."""
    assert abs(log_ratio(above, below) - SCALE * math.log(above / below)) < 2


def test_logarithms_that_are_known() -> None:
    """Of 1, 2, 10 and a half, rounded."""
    assert [0, 693_147_181, 2_302_585_093, -693_147_181] == [
        log_ratio(1, 1),
        log_ratio(2, 1),
        log_ratio(10, 1),
        log_ratio(1, 2),
    ]
