"""Cases of the field on metering and time, windows and months of a place, and the command."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from typer.testing import CliRunner

from ledger import reading
from ledger.cli import app
from ledger.core.fold import LogDamaged
from ledger.log.memory import MemoryLog
from ledger.log.sqlite import SqliteLog
from ledger.metering.calendar import BadTime, months, span_of, zone_of
from ledger.metering.periods import book_log
from ledger.metering.policy import BadPolicy, policy_from_plain
from ledger.metering.report import Report
from ledger.metering.rows import GPU_HOUR_MILLI_US, Row
from ledger.metering.stream import PartitionMeter, meter_log
from ledger.metering.usage import Sample, UsageBook
from ledger.testing import CoreDriver, device, mig_slice
from tests.ledgers import PREFIX, Site
from tests.metering_logs import metered, sums

if TYPE_CHECKING:
    from pathlib import Path

S = 1_000_000
MINUTE, HOUR = 60 * S, 3_600 * S
#: Ten in the morning, in virtual time.
TEN = 10 * HOUR


def cell_at(time_us: int, *devices: dict[str, Any]) -> CoreDriver:
    """Return a cell with these devices on n1, before ``time_us``."""
    cell = CoreDriver(check=True, now_us=time_us - HOUR)
    cell.pool(silent_grace_s=7_200)
    cell.queue()
    cell.quota()
    cell.node("n1", devices or [device("GPU-a")])
    return cell


def known(cell: CoreDriver, at_us: int) -> None:
    """Let a record be written, so that everything until then is known."""
    plain = {"tenant": "other", "nominal_gpu_milli": 0, "author": "ops", "reason": "test"}
    cell.feed("quota.apply", plain, source="/operator", at_us=at_us)


def run(cell: CoreDriver, name: str, start_us: int, end_us: int, **ask: Any) -> str:
    """Let a request hold what it asks from one time to another; return its lease."""
    assert cell.submit(name, {"mode": "whole", **ask}, at_us=start_us).code == "granted"
    lease = cell.lease(name).id
    cell.feed("lease.release", {"lease": lease}, source="/team/a", at_us=end_us)
    cell.answer_all_orders()
    return lease


def report(
    cell: CoreDriver, start_us: int | None = None, end_us: int | None = None, **more: Any
) -> Report:
    """Return the report of a window of the cell's log."""
    found = Report(start_us=start_us, end_us=end_us, **more)
    meter = PartitionMeter()
    for offset, value in enumerate(cell.records):
        for one in meter.apply(offset, value):
            found.take(one)
    for one in meter.cut(meter.known_us):
        found.take(one)
    found.finish()
    return found


def gpu_s(amount_milli_us: int) -> float:
    """Return GPU-seconds."""
    return amount_milli_us / (1000 * S)


def allocated(cell: CoreDriver, start_us: int | None = None, end_us: int | None = None) -> float:
    """Return allocated GPU-seconds of a window."""
    return gpu_s(report(cell, start_us, end_us).total().parts["allocated"])


def test_c03_unknown_and_idle_stay_apart() -> None:
    """A card that nobody can tell the health of is not idle, and its use is not 0."""
    cell = cell_at(TEN, device("GPU-a"), device("GPU-b", health="unknown"))
    known(cell, TEN)
    parts = report(cell, TEN - MINUTE, TEN, by="device").groups
    assert {"idle": 60_000 * S} == {name: n for name, n in parts["GPU-a"].parts.items()
                                    if name != "present"}  # fmt: skip
    assert {"unknown": 60_000 * S} == {name: n for name, n in parts["GPU-b"].parts.items()
                                       if name != "present"}  # fmt: skip
    assert parts["GPU-a"].used_milli_us is None


def test_c15_charges_round_up_and_capacity_does_not() -> None:
    """Seven slices of a seventh: each counts 143 against the quota, all of them are one device."""
    slices = [mig_slice(f"MIG-{at}", at, at) for at in range(7)]
    cell = cell_at(TEN, device("GPU-m", mig_enabled=True, compute_slices=7, slices=slices))
    cell.submit("R", {"mode": "mig", "profile": "1g.10gb", "count": 7}, at_us=TEN)
    known(cell, TEN + MINUTE)
    total = report(cell, TEN, TEN + MINUTE).total()
    assert 7 * 143 * MINUTE == total.parts["reserved"]
    assert 1000 * MINUTE == total.parts["allocated"] == total.capacity_milli_us
    assert 0 == total.fragmentation_milli_us == total.parts["idle"]


def test_c15_ten_tenths_are_one_card() -> None:
    """Shares are whole thousandths: ten leases of 0.1 leave exactly nothing idle."""
    cell = cell_at(TEN)
    for at in range(10):
        cell.submit(f"s{at}", {"mode": "share", "gpu_milli": 100}, at_us=TEN)
    known(cell, TEN + HOUR)
    total = report(cell, TEN, TEN + HOUR).total()
    assert GPU_HOUR_MILLI_US == total.parts["allocated"]
    assert 0 == total.parts["idle"]


def test_c15_overcommitted_memory_makes_no_capacity() -> None:
    """1.5 times the memory is promised; the device is still one device."""
    cell = cell_at(TEN)
    cell.pool(memory_overcommit_permille=1500, silent_grace_s=7_200)
    for at in range(2):
        ask = {"mode": "share", "gpu_milli": 500, "memory_mib": 60_000}
        assert "granted" == cell.submit(f"s{at}", ask, at_us=TEN).code
    known(cell, TEN + MINUTE)
    total = report(cell, TEN, TEN + MINUTE).total()
    assert 1000 * MINUTE == total.capacity_milli_us == total.parts["allocated"]
    assert 120_000 * MINUTE == total.reserved_mib_us > 81_920 * MINUTE
    assert 0 == total.delivered_mib_us, "nothing keeps the memory of shares apart"


def test_c25_a_preempted_task_is_charged_until_it_has_stopped() -> None:
    """Told to stop at 10:00, over at 10:00:05: charged until then, and its work interrupted."""
    cell = cell_at(TEN)
    cell.queue(preemption="any-tenant")
    cell.submit("low", at_us=TEN - MINUTE, preemptible=True)
    lease = cell.lease("low").id
    cell.task_started(lease, "n1")
    cell.submit("high", at_us=TEN, priority=9)
    said = {"node": "n1", "incarnation": "b1", "lease": lease, "how": "completed", "exit_code": 0}
    cell.feed("task.ended", said, source="/nodes/n1", at_us=TEN + 5 * S)
    known(cell, TEN + MINUTE)
    assert 5 == allocated(cell, TEN, TEN + MINUTE)
    ends = report(cell).total().ends
    assert 65_000 * S == ends["interrupted"]
    assert 0 == ends["completed"]


def test_c29_cancelled_while_being_created() -> None:
    """It was never granted: no running second, what was kept for it is nobody's charge."""
    profiles = [{"profile": "1g.10gb", "size": 1, "compute_slices": 1, "memory_mib": 9_856,
                 "starts": [0, 1, 2, 3, 4, 5, 6]}]  # fmt: skip
    more = {"mig_enabled": True, "compute_slices": 7, "profiles": profiles}
    cell = cell_at(TEN, device("GPU-m", **more))
    cell.pool(partition="create", silent_grace_s=7_200)
    assert "reserved" == cell.submit("R1", {"mode": "mig", "profile": "1g.10gb"}, at_us=TEN).code
    cell.cancel("R1", at_us=TEN + S)
    (order,), (item,) = cell.state.orders, cell.state.slices.values()
    said = {"node": "n1", "incarnation": "b1", "order": order}
    made = mig_slice("MIG-1", 1, item.start)
    cell.feed("order.done", {**said, "slices": [made]}, source="/nodes/n1", at_us=TEN + 3 * S)
    (removal,) = cell.state.orders
    cell.feed("order.done", said | {"order": removal}, source="/nodes/n1", at_us=TEN + 4 * S)
    known(cell, TEN + MINUTE)
    total = report(cell, TEN, TEN + MINUTE).total()
    assert 0 == total.parts["allocated"] == total.charged_milli_us
    assert 143 * S == total.parts["reserved"]
    assert 4 * S * 143 == total.causes["unavailable", "repartition"]
    assert 1000 * MINUTE - 4 * S * 143 == total.causes["idle", "unpartitioned"]
    assert 1000 * MINUTE == total.parts_milli_us


async def test_c37_a_retry_after_a_failed_write_counts_once() -> None:
    """Sent again before and after the answer was lost: ten seconds, not 0 and not 20."""
    site = Site(MemoryLog())
    await site.start(gpus=1)
    for _ in range(3):
        await site.says("request.submit", event_id="e1", tenant="t", queue="q",
                        task={"id": "e1"}, ask={"mode": "whole"})  # fmt: skip
    lease = next(iter(site.state.leases))
    await site.finish(lease)
    await site.finish(lease)
    values = await site.values("events")
    rows, _ = metered(values)
    held = [row for row in rows if row.state == "allocated"]
    granted, ended = (
        next(record["time_us"] for value in values for record in [orjson.loads(value)]
             for event in record.get("events", ()) if event["type"] == kind)
        for kind in ("lease.granted", "lease.ended")
    )  # fmt: skip
    assert 1000 * (ended - granted) == sum(row.milli_us for row in held)


def test_c37_samples_of_use_count_once_and_conflicts_are_told() -> None:
    """The same id again is no more; with another amount it is a conflict and changes nothing."""
    book = UsageBook()
    one = Sample(0, 10 * S, 1000, "e1")
    assert ["counted", "duplicate"] == [book.add("l", "GPU-a", one) for _ in range(2)]
    assert "conflict" == book.add("l", "GPU-a", Sample(0, 10 * S, 500, "e1"))
    assert "conflict" == book.add("l", "GPU-a", Sample(5 * S, 15 * S, 500, "e2"))
    assert "counted" == book.add("l", "GPU-a", Sample(10 * S, 15 * S, 500, "e3"))
    assert ["e1", "e2"] == book.conflicts
    assert (10_000 * S + 2_500 * S, 15 * S) == book.used("l", "GPU-a", 0, HOUR)
    assert (None, 0) == book.used("l", "GPU-a", HOUR, 2 * HOUR)


def test_c39_the_last_interval_short_jobs_and_odd_windows() -> None:
    """Cut to the window as half-open intervals; never negative; neighbours sum to the whole."""
    cell = cell_at(TEN)
    run(cell, "J1", TEN + 3 * S, TEN + 14 * MINUTE + 41 * S)
    run(cell, "J2", TEN + 20 * MINUTE + S, TEN + 20 * MINUTE + 11 * S)
    known(cell, TEN + HOUR)
    asked = {
        878: (TEN, TEN + 15 * MINUTE),
        10: (TEN + 20 * MINUTE, TEN + 21 * MINUTE),
        41: (TEN + 14 * MINUTE, TEN + 15 * MINUTE + 16 * S),
        0: (TEN + 30 * MINUTE, TEN + 31 * MINUTE + 16 * S),
    }
    for seconds, (start, end) in asked.items():
        assert seconds == allocated(cell, start, end)
    assert 888 == sum(allocated(cell, TEN + at * S, TEN + (at + 7) * S) for at in range(0, 1300, 7))


def outage(*, same: bool) -> CoreDriver:
    """Two GPUs from 10:00 to 11:00; the node is not heard from 10:10 to 10:20."""
    cell = cell_at(TEN, device("GPU-a"), device("GPU-b"), device("GPU-c"))
    cell.submit("J1", {"mode": "whole", "count": 2}, at_us=TEN)
    lease = cell.lease("J1").id
    cell.task_started(lease, "n1")
    about = {"node": "n1", "incarnation": "b1"}
    silent = {**about, "last_heartbeat_us": TEN + 10 * MINUTE}
    cell.feed("node.silent", silent, source="/liveness", at_us=TEN + 10 * MINUTE + 30 * S)
    if same:
        cell.feed("node.back", about, source="/liveness", at_us=TEN + 20 * MINUTE)
        cell.feed("lease.release", {"lease": lease}, source="/team/a", at_us=TEN + HOUR)
    else:
        cell.now_us = TEN + 20 * MINUTE
        cell.node("n1", [device(f"GPU-{one}") for one in "abc"], incarnation="b2")
    return cell


def test_c41_an_outage_of_the_meter_is_not_zero_usage() -> None:
    """7,200 GPU-seconds leased; 10 minutes of them unconfirmed; the average is over 50."""
    cell = outage(same=True)
    book = UsageBook()
    lease = "/team/a#J1/1"
    for unit in ("GPU-a", "GPU-b"):
        book.add(lease, unit, Sample(TEN, TEN + 10 * MINUTE, 800, f"{unit}-1"))
        book.add(lease, unit, Sample(TEN + 20 * MINUTE, TEN + HOUR, 800, f"{unit}-2"))
    total = report(cell, TEN, TEN + HOUR, usage=book).total()
    assert 7_200 == gpu_s(total.parts["allocated"])
    assert 1_200 == gpu_s(total.causes["allocated", "node-silent"])
    assert 2 * 50 * MINUTE == total.measured_us
    assert 20 * MINUTE == total.held_us - total.measured_us, "10 minutes of each are unknown"
    assert total.used_milli_us == 800 * total.measured_us
    nothing = report(cell, TEN + 10 * MINUTE, TEN + 20 * MINUTE, usage=book).total()
    assert nothing.used_milli_us is None


def test_c41_a_card_of_a_node_that_is_not_heard_is_unknown_and_not_idle() -> None:
    """From the last heartbeat until the silence was told unknown, from then on out of use."""
    total = report(outage(same=True), TEN + 10 * MINUTE, TEN + 20 * MINUTE).total()
    assert 30 == gpu_s(total.causes["unknown", "unheard"])
    assert 570 == gpu_s(total.causes["unavailable", "node-silent"])
    assert 0 == total.parts["idle"]


def test_c41_after_a_restart_the_gap_is_interrupted_work() -> None:
    """Another start of the node: the lease ended, and its gap stays shown as unconfirmed."""
    total = report(outage(same=False)).total()
    assert 1_200 == round(gpu_s(total.causes["allocated", "node-silent"]))
    assert total.ends["interrupted"] == total.parts["allocated"]


def test_c43_a_clock_that_is_set_back_changes_no_duration() -> None:
    """The node stamps the end before the start: the interval is by the log's time, 40 seconds."""
    cell = cell_at(TEN)
    cell.submit("J1", at_us=TEN + 30 * S)
    lease = cell.lease("J1").id
    said = {"node": "n1", "incarnation": "b1", "lease": lease}
    stamped = {**said, "node_time_us": TEN + 30 * S}
    cell.feed("task.started", stamped, source="/nodes/n1", at_us=TEN + 30 * S)
    stamped = {**said, "node_time_us": TEN + 10 * S, "how": "completed", "took_us": 40 * S}
    cell.feed("task.ended", stamped, source="/nodes/n1", at_us=TEN + 70 * S)
    assert 40 == allocated(cell)


def test_c43_an_input_with_an_earlier_time_takes_nothing_back() -> None:
    """A worker's clock behind the log's: the cell's clock stands still and no row is negative."""
    cell = cell_at(TEN)
    cell.submit("J1", at_us=TEN)
    known(cell, TEN + 60 * S)
    cell.feed("lease.release", {"lease": cell.lease("J1").id}, source="/team/a", at_us=TEN + 30 * S)
    rows, _ = metered(cell.records)
    assert 60 == allocated(cell)
    assert all(row.start_us < row.end_us and row.milli > 0 for row in rows)


def test_c45_of_two_leaders_only_one_is_metered() -> None:
    """What the old leader still wrote is void: one lease on the card, counted once."""
    cell = cell_at(TEN)
    cell.submit("R2", at_us=TEN)
    grant = orjson.loads(cell.records[-1])
    assert any(event["type"] == "lease.granted" for event in grant["events"])
    known(cell, TEN + MINUTE)
    cell.claim()
    zombie = grant | {"seq": grant["seq"] + 2, "source": ["requests", grant["source"][1] + 9]}
    text = orjson.dumps(zombie).replace(b"R2", b"R1")
    values = [*cell.records, text]
    rows, meter = metered(values)
    assert sums(metered(cell.records)[0]) == sums(rows)
    assert 1 == meter.fold.head.void
    assert {"R2"} == {row.holding.request[-2:] for row in rows if row.holding is not None}


@pytest.mark.parametrize("chunk", [1, 7, 5000])
async def test_c47_a_log_read_in_pieces_is_the_same(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However it is read, and when the reader begins again after a crash, all counts once."""
    monkeypatch.setattr(reading, "_CHUNK", chunk)
    site = Site(MemoryLog())
    await site.start()
    for number in range(12):
        request = await site.submit(f"r{number}", number % 3 + 1)
        if number % 2:
            await site.finish(f"{request}/1")
    rows: list[Any] = []
    await meter_log(site.log, PREFIX, rows.append)
    wanted, _ = metered(await site.values("events"))
    assert sums(wanted) == sums(one for one in rows if isinstance(one, Row))


def test_c49_a_log_with_a_hole_is_not_metered_past_it() -> None:
    """The position of the hole is named; no total is given as if nothing were missing."""
    cell = cell_at(TEN)
    run(cell, "J1", TEN, TEN + MINUTE)
    meter = PartitionMeter()
    for offset, value in enumerate(cell.records[:5]):
        meter.apply(offset, value)
    with pytest.raises(LogDamaged, match="gap"):
        meter.apply(6, cell.records[6])


def test_m8_requested_reserved_and_delivered_are_three_numbers() -> None:
    """6 GB asked and a slice of 9,856 MiB delivered: what is more is fragmentation, and shown."""
    slices = [mig_slice(f"MIG-{at}", at, at) for at in range(2)]
    cell = cell_at(TEN, device("GPU-m", mig_enabled=True, compute_slices=7, slices=slices))
    cell.submit("R", {"mode": "mig", "memory_mib": 6_144}, at_us=TEN)
    known(cell, TEN + HOUR)
    plain = report(cell, TEN, TEN + HOUR).groups["t"].plain()
    assert 6_144 * HOUR == plain["requested_mib_us"]
    assert 9_856 * HOUR == plain["reserved_mib_us"] == plain["delivered_mib_us"]
    assert 3_712 * HOUR == plain["fragmentation_mib_us"]
    assert 143 * HOUR == plain["allocated_milli_us"] == plain["reserved_milli_us"]
    assert plain["used_milli_us"] is None


def test_m8_a_place_that_is_kept_is_reserved_and_not_delivered() -> None:
    """From the place kept on it counts against the quota; the card is idle, kept, and unpaid."""
    cell = cell_at(TEN, device("GPU-a"), device("GPU-b"))
    cell.queue(preemption="any-tenant")
    cell.submit("low", at_us=TEN - MINUTE, preemptible=True)
    assert "reserved" == cell.submit("two", {"mode": "whole", "count": 2}, at_us=TEN,
                                     priority=9).code  # fmt: skip
    known(cell, TEN + 10 * S)
    total = report(cell, TEN, TEN + 10 * S).total()
    assert 10_000 * S == total.causes["idle", "kept"]
    assert 30_000 * S == total.parts["reserved"], "two of the one that waits, one of the other"
    assert 10_000 * S == total.parts["allocated"] == total.charged_milli_us


def test_idle_time_reaches_back_to_when_it_began() -> None:
    """Reported idle after 50 seconds: those are idle too, and the busy report ends it."""
    cell = cell_at(TEN)
    cell.submit("J1", at_us=TEN)
    lease = cell.lease("J1").id
    said = {"node": "n1", "incarnation": "b1", "lease": lease}
    cell.feed("task.started", said, source="/nodes/n1", at_us=TEN + 1)
    idle = {**said, "idle": True, "idle_s": 50}
    cell.feed("task.use", idle, source="/nodes/n1", at_us=TEN + 90 * S)
    cell.feed("task.use", {**said, "idle": False}, source="/nodes/n1", at_us=TEN + 120 * S)
    known(cell, TEN + 150 * S)
    causes = report(cell, TEN, TEN + 150 * S).total().causes
    assert 80 == gpu_s(causes["allocated", "idle"])
    assert 70 == gpu_s(causes["allocated", "running"] + causes["allocated", "starting"])


# -- places and months ------------------------------------------------------------


def test_months_of_a_place_have_their_own_length() -> None:
    """743 hours in March, 745 in October; twelve of them are the year, without a gap."""
    zone = zone_of("Europe/Berlin")
    start = span_of("2026-01", zone).start_us
    year = months(start, start + 364 * 24 * HOUR, zone)
    assert [744, 672, 743, 720, 744, 720, 744, 744, 720, 745, 720, 744] == [
        (one.end_us - one.start_us) // HOUR for one in year
    ]
    for one, after in pairwise(year):
        assert one.end_us == after.start_us
    assert 23 == (day := span_of("2026-03-29", zone)).end_us // HOUR - day.start_us // HOUR
    assert span_of("2026-01-01T00:00:00+01:00", zone)[1:] == (start, start)
    assert start + HOUR == span_of("2026-01", zone_of("UTC")).start_us


@pytest.mark.parametrize("text", ["2026-13", "2026-3", "yesterday", "2026-02-30", ""])
def test_what_is_no_time_is_told(text: str) -> None:
    """Neither a month nor a day nor a time."""
    with pytest.raises(BadTime, match="is no month"):
        span_of(text, zone_of("UTC"))
    with pytest.raises(BadTime, match="no time zone"):
        zone_of("Europe/Atlantis")


async def test_the_same_log_has_the_same_total_in_every_zone() -> None:
    """A zone cuts time otherwise and changes none of it; nothing of it is in the log."""
    site = Site(MemoryLog())
    await site.start()
    for number in range(6):
        request = await site.submit(f"r{number}", 1)
        await site.finish(f"{request}/1")
    wanted = sum(row.milli_us for row in metered(await site.values("events"))[0])
    for name in ("UTC", "Europe/Berlin", "Asia/Kathmandu"):
        (found,) = (await book_log(site.log, PREFIX, zone_of(name))).values()
        assert wanted == sum(line.milli_us for one in found for line in one.lines)


# -- the command ------------------------------------------------------------------


def gpuledger(*arguments: str, status: int = 0) -> str:
    """Run the command; return what it prints."""
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == status, done.output
    return done.stdout


@pytest.fixture
def site_url(tmp_path: Path) -> str:
    """A ledger with a few leases in SQLite."""
    path = tmp_path / "log.sqlite"

    async def fill() -> None:
        async with SqliteLog(path) as log:
            site = Site(log)
            await site.start()
            random = Random(1)
            for number in range(8):
                request = await site.submit(f"r{number}", random.randint(1, 3))
                if f"{request}/1" in site.state.leases and number % 3:
                    await site.finish(f"{request}/1")

    asyncio.run(fill())
    return f"sqlite:{path}"


@pytest.mark.parametrize("by", ["tenant", "project", "queue", "device", "cause"])
def test_the_command_states_the_sum(site_url: str, by: str) -> None:
    """As a table and as JSON: the parts are what was present, exactly."""
    text = gpuledger("meter", "--log", site_url, "--by", by)
    assert "exactly: " in text
    assert "IS NOT" not in text
    plain = orjson.loads(gpuledger("meter", "--log", site_url, "--by", by, "--json"))
    assert plain["conservation"]["equal"] is True
    assert plain["conservation"]["parts_milli_us"] == plain["total"]["present_milli_us"] > 0
    for name in ("allocated_milli_us", "charged_milli_us", "reserved_milli_us"):
        assert plain["total"][name] == sum(group[name] for group in plain["groups"])
    assert plain["policy"] == "pool"
    assert 4 == plain["devices"]
    assert plain["total"]["used_milli_us"] is None


def test_the_command_takes_months_policies_and_places(site_url: str, tmp_path: Path) -> None:
    """A window after the last record is unknown; a policy may be a file; months have digests."""
    after = orjson.loads(gpuledger("meter", "--log", site_url, "--from", "2199-01",
                                   "--to", "2199-01", "--json"))  # fmt: skip
    assert after["to_us"] - after["from_us"] == 744 * HOUR
    assert after["total"]["unknown_milli_us"] == 4 * 1000 * 744 * HOUR
    assert after["conservation"]["equal"] is True
    mine = tmp_path / "mine.json"
    mine.write_text('{"policy": "mine", "holder_pays": ["unavailable cleaning"]}')
    found = orjson.loads(gpuledger("meter", "--log", site_url, "--policy", str(mine), "--json"))
    cleaning = found["total"]["causes"].get("unavailable cleaning", 0)
    assert ("mine", cleaning) == (found["policy"], found["total"]["charged_milli_us"])
    lines = gpuledger("meter", "--log", site_url, "--periods", "--zone", "Europe/Berlin", "--json")
    (month, *_) = map(orjson.loads, lines.splitlines())
    assert "open" == month["state"]
    assert month["digest"] is None


def test_the_first_hours_of_the_calendar_are_a_time_too() -> None:
    """In the east they are in no year of UTC."""
    found = span_of("0001-01-01T00:00:00+14:00", zone_of("UTC"))
    assert found.start_us == found.end_us < 0
    with pytest.raises(BadPolicy, match="no holder can pay for"):
        policy_from_plain({"policy": "x", "holder_pays": [["idle kept"]]})
