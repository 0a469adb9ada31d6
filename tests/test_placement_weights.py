"""What is learned of a workload: prices that can be worked out by hand, shapes, the command."""

from __future__ import annotations

import asyncio
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from bench.openb import run, taught
from bench.openb_trace import published, read_pods, sequence
from collectors.fleet.description import DeviceSpec, NodeSpec
from ledger.bin_packing import best_fill, prices
from ledger.cli import app
from ledger.core.state import Need
from ledger.log.sqlite import SqliteLog
from ledger.placement_weights import hole_prices, learn, received
from tests.ledgers import OPERATOR, Site

if TYPE_CHECKING:
    from pathlib import Path

    from ledger.core.policies.workload import Workload
    from schemas.placement import PlacementApply


def cost(demand: dict[int, int], size: int = 1000) -> Fraction:
    """Return what the demanded items are worth at their prices: the program's optimum."""
    found = prices(demand, size)
    return sum((found[item] * many for item, many in demand.items()), Fraction(0))


# -- prices ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("demand", "expected"),
    [
        ({500: 4}, {500: "1/2"}),
        ({1000: 3}, {1000: "1"}),
        ({810: 10, 190: 5}, {810: "1", 190: "0"}),
        ({810: 10, 190: 60}, {810: "4/5", 190: "1/5"}),
        ({650: 10, 320: 15}, {650: "2/3", 320: "1/3"}),
        ({810: 9, 500: 4, 190: 1}, {810: "1", 500: "1/2", 190: "0"}),
    ],
)
def test_prices_that_can_be_worked_out_by_hand(
    demand: dict[int, int], expected: dict[int, str]
) -> None:
    """An item is worth what it adds to the bins that are needed."""
    assert {item: Fraction(price) for item, price in expected.items()} == prices(demand, 1000)


def test_every_bin_of_pairs_is_one_bin() -> None:
    """As many of 810 as of 190: who of a pair is worth what is open, both together are a bin."""
    assert Fraction(10) == cost({810: 10, 190: 10})


DEMANDS = st.dictionaries(st.integers(1, 20), st.integers(1, 30), min_size=1, max_size=6)


@given(demand=DEMANDS)
def test_prices_are_fair_and_tight(demand: dict[int, int]) -> None:
    """No filled bin is worth more than one; in sum: the volume at least, a packing at most."""
    found = prices(demand, 20)
    assert all(price >= 0 for price in found.values())
    assert best_fill(found, 20)[20] <= 1
    total = cost(demand, 20)
    assert Fraction(sum(item * many for item, many in demand.items()), 20) <= total
    assert total <= first_fit_decreasing(demand, 20)


def first_fit_decreasing(demand: dict[int, int], size: int) -> int:
    """Return how many bins a simple packing uses."""
    rooms: list[int] = []
    for item in sorted(demand, reverse=True):
        for _ in range(demand[item]):
            at = next((at for at, room in enumerate(rooms) if room >= item), None)
            if at is None:
                rooms.append(size - item)
            else:
                rooms[at] -= item
    return len(rooms)


@pytest.mark.parametrize("demand", [{0: 1}, {11: 1}, {5: 0}])
def test_what_cannot_be_packed_has_no_price(demand: dict[int, int]) -> None:
    """Items fit into a bin, and there is at least one of each."""
    with pytest.raises(ValueError, match="every item"):
        prices(demand, 10)


def test_holes_are_worth_what_fits_into_them() -> None:
    """810 alone fills a device; 470 pairs with itself; what is left beside 810 is worth nothing."""
    assert [(0, 0), (470, 500), (810, 1000)] == hole_prices({810: 20, 470: 10, 160: 1})
    assert [] == hole_prices({})
    assert [(0, 0), (600, 1000)] == hole_prices({600: 1})


def test_a_whole_device_is_worth_one_whatever_is_asked() -> None:
    """Sizes of which many go into a device are priced by their part of it, and it is full at 1."""
    steps = hole_prices({300: 10})
    assert [(0, 0), (300, 333), (600, 667), (900, 1000)] == steps


def test_many_sizes_are_rounded_up() -> None:
    """Beyond 40 sizes they count as the next multiple of 25."""
    steps = hole_prices(dict.fromkeys(range(501, 545), 1))
    assert [(0, 0), (525, 1000)] == steps


# -- what is learned -----------------------------------------------------------------------


def learned(*asked: tuple[Need, int], cpu_milli: int = 0, **devices: int) -> PlacementApply:
    """Return the record for the pool ``main``."""
    return learn("main", asked, devices or {"H100": 8}, cpu_milli, **OPERATOR)


def test_shapes_are_the_commonest_that_make_up_95_percent() -> None:
    """Shares are of those kept; the rare one counts for the averages only."""
    record = learned(
        (Need("share", gpu_milli=500, cpu_milli=4_000), 75),
        (Need("whole", count=2, cpu_milli=20_000, host_memory_mib=100), 21),
        (Need("whole", count=4, models=("H100",)), 4),
    )
    assert [(500, 1, 781_250), (1000, 2, 218_750)] == [
        (one.gpu_milli, one.count, one.share_ppm) for one in record.shapes
    ]
    gpus = Fraction(75, 2) + 42 + 16
    assert record.cpu_milli_per_gpu == (75 * 4_000 + 21 * 20_000) // gpus
    assert record.memory_mib_per_gpu == 21 * 100 // gpus
    assert ((0, 0), (500, 500), (1000, 1000)) == record.holes
    # 16 of 95.5 GPUs are asked of H100 by name; scaled to all 8 there are.
    assert {"H100": 16 * 1000 * 2 // 191} == record.loads_milli


def test_the_load_on_the_cpu_is_of_all_requests() -> None:
    """Two CPU-only tasks for each device: 8 devices, 24 CPUs asked for, of 16 or unknown."""
    asked = ((Need("whole", cpu_milli=1_000), 5), (Need("whole", count=0, cpu_milli=1_000), 10))
    assert [1_500, 0] == [learned(*asked, cpu_milli=cpu).cpu_load_milli for cpu in (16_000, 0)]


def test_worth_grows_with_share_and_devices() -> None:
    """A shape with more devices counts for more than its share; one without for nothing."""
    record = learned(
        (Need("whole", count=0, cpu_milli=1), 50),
        (Need("whole", count=1), 25),
        (Need("whole", count=8), 25),
    )
    worth = {one.count: one.worth_ppm for one in record.shapes}
    assert 0 == worth[0]
    assert round(worth[1] * 8**0.8) == pytest.approx(worth[8], abs=5)


def test_gangs_count_for_each_node_and_slices_not_at_all() -> None:
    """Four nodes of one gang are four places."""
    record = learned((Need("whole", count=2, nodes=4), 1), (Need("mig", profile="1g.10gb"), 9))
    assert [(2, 1_000_000)] == [(one.count, one.share_ppm) for one in record.shapes]
    with pytest.raises(ValueError, match="pool main"):
        learned((Need("mig", profile="1g.10gb"), 9))


def test_what_names_several_models_is_spread_by_how_many_there_are() -> None:
    """Half of what is asked names both models: each has half a load; unknown ones do not count."""
    record = learned(
        (Need("whole", models=("A100", "H100", "B9")), 10), (Need("whole"), 10), A100=2, H100=6
    )
    assert {"A100": 500, "H100": 500} == record.loads_milli


def test_only_requests_that_the_pool_could_serve_count() -> None:
    """Another pool's, another cell's, other labels' and what is no request are passed over."""

    def record(cell: str, ask: dict[str, Any], code: str = "granted") -> dict[str, Any]:
        data = {"tenant": "t", "queue": "q", "task": {"id": "x"}, "ask": ask}
        given = {"type": "request.submit", "data": data}
        return {"kind": "decision", "cell": cell, "input": given, "outcome": {"code": code}}

    mine = {"mode": "share", "gpu_milli": 300}
    records: list[dict[str, Any]] = [
        {"kind": "claim"},
        {"kind": "decision", "cell": "c", "input": {"type": "pool.apply"}, "outcome": {}},
        record("c", mine),
        record("c", {**mine, "pool": "main"}, "no_capacity"),
        record("c", {**mine, "labels": {"zone": "1"}}, "queued"),
        record("c", {**mine, "labels": {"zone": "2"}}),
        record("c", {**mine, "pool": "other"}),
        record("c", mine, "id_conflict"),
        record("d", mine),
    ]
    found = received(records, "c", "main", {"zone": "1", "tier": "gold"})
    assert 3 == found.total()
    assert {300} == {need.gpu_milli for need in found}


# -- the command ---------------------------------------------------------------------------


async def asked_for(log: SqliteLog) -> Site:
    """Return a site on the log that was asked for four shares."""
    site = Site(log)
    await site.start()
    for at, milli in enumerate((300, 300, 700, 700)):
        await site.submit(f"r{at}", ask={"mode": "share", "gpu_milli": milli})
    return site


def test_pool_learn_prints_what_it_would_apply(tmp_path: Path) -> None:
    """It reads the requests in the log; a pool that is not there is a no (exit 1)."""
    path = tmp_path / "log.sqlite"

    async def fill() -> None:
        async with SqliteLog(str(path)) as log:
            await asked_for(log)

    asyncio.run(fill())
    command = ["pool", "learn", "main", "--log", f"sqlite:{path}", "--cell", "c"]
    done = CliRunner().invoke(app, [*command, "--json"])
    assert 0 == done.exit_code, done.output
    found = orjson.loads(done.stdout)
    assert "learned from 4 requests" == found["reason"]
    assert [(300, 500_000), (700, 500_000)] == [
        (one["gpu_milli"], one["share_ppm"]) for one in found["shapes"]
    ]
    assert "2 usual shapes" in CliRunner().invoke(app, command).stdout
    command[2] = "other"
    assert 1 == CliRunner().invoke(app, command).exit_code


def test_pool_learn_puts_it_on_the_log(tmp_path: Path) -> None:
    """With --apply it is sent as any policy is; without a worker nobody answers (exit 3)."""
    path = tmp_path / "log.sqlite"
    command = ["pool", "learn", "main", "--log", f"sqlite:{path}", "--cell", "c", "--apply"]

    async def pumped(*, fill: bool) -> dict[str, Workload]:
        async with SqliteLog(str(path)) as log:
            site = await asked_for(log) if fill else Site(log)
            await site.shard.load()
            await site.pump()
            return site.state.workloads

    assert {} == asyncio.run(pumped(fill=True))
    assert 3 == CliRunner().invoke(app, [*command, "--timeout-s", "0.1"]).exit_code
    workload = asyncio.run(pumped(fill=False))["main"]
    assert [300, 700] == [shape["gpu_milli"] for shape in workload.shapes]


# -- the bench -----------------------------------------------------------------------------


def small_trace(folder: Path) -> Path:
    """Write a trace of four nodes and 60 pods in the files that openb has."""
    home = folder / "openb"
    home.mkdir()
    nodes = ["sn,cpu_milli,memory_mib,gpu,model"]
    nodes += [f"node-{at},64000,262144,{2 + 2 * (at % 2)},T4" for at in range(4)]
    (home / "openb_node_list_gpu_node.csv").write_text("\n".join(nodes))
    pods = ["name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec"]
    kinds = ("4000,1024,1,810,", "4000,1024,1,190,", "8000,2048,1,1000,T4", "4000,1024,0,0,")
    pods += [f"pod-{at:02},{kinds[at * 7 % 10 % 4]}" for at in range(18)]
    (home / "openb_pod_list_default.csv").write_text("\n".join(pods))
    return folder


def test_a_small_trace_runs_through_the_ledger(tmp_path: Path) -> None:
    """A row for the list, FGD beside it; nothing beyond a device, and the fold is the same."""
    (row,) = run(small_trace(tmp_path), ["default"], "least-waste", 2, compare=True)
    assert ("default", "least-waste", 2) == (row["workload"], row["policy"], row["seeds"])
    assert 0 < row["gpu_allocated_pct_100"] <= row["gpu_allocated_pct_130"] <= 100
    assert None is row["published_pct_130"]
    assert 0 < row["fgd_gpu_allocated_pct_130"] <= 100
    assert 100 == row["accepted_cpu_only_pct"] == row["fgd_accepted_cpu_only_pct"]
    assert None is row["accepted_8gpu_pct"]


def test_arrivals_are_the_list_and_then_more_until_the_next_would_be_too_much(
    tmp_path: Path,
) -> None:
    """All pods once, in an order of the seed's, then draws, up to 130 %."""
    pods = read_pods(small_trace(tmp_path), "default")
    order = sequence(pods, 12_000, 42)
    assert sorted(order[: len(pods)]) == pods
    assert 12_000 * 13 // 10 - 1000 <= sum(pod.gpu_milli for pod in order) <= 12_000 * 13 // 10
    assert order == sequence(pods, 12_000, 42)
    assert order != sequence(pods, 12_000, 43)


def test_published_results_are_averaged_over_their_seeds(tmp_path: Path) -> None:
    """FGD's rows of the list only; none where the file is not."""
    assert {} == published(tmp_path, "default")
    home = tmp_path / "fgd-published"
    home.mkdir()
    rows = [
        "workload,sc_policy,seed,100,130",
        "openb_pod_list_default,06-FGD,42,95.0,95.5",
        "openb_pod_list_default,06-FGD,43,96.0,96.5",
        "openb_pod_list_default,05-BestFit,42,1.0,1.0",
        "openb_pod_list_cpu050,06-FGD,42,2.0,2.0",
    ]
    (home / "analysis_allo_discrete.csv").write_text("\n".join(rows))
    assert {100: 95.5, 130: 96.0} == published(tmp_path, "default")


def test_what_is_taught_is_what_the_log_holds(tmp_path: Path) -> None:
    """Refused or granted, every pod of the earlier pass is in the log and counts."""
    pods = read_pods(small_trace(tmp_path), "default")
    specs = [NodeSpec("n1", "openb", (DeviceSpec("GPU-1", "T4", 16_384, 0),), 8_000, 4_096)]
    found = taught(specs, pods)
    kinds = {pod.kind for pod in pods}
    assert len(kinds) == len(found["shapes"])
    assert 999_990 < sum(one["share_ppm"] for one in found["shapes"]) <= 1_000_000
