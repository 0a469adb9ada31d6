"""M1 to M8 on logs to which everything happens, and a second count by other means."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from ledger.core.fold import Fold
from ledger.metering.calendar import Period
from ledger.metering.periods import Book
from ledger.metering.policy import KINDS, POLICIES, BadPolicy, MeteringPolicy, policy_from_plain
from ledger.metering.report import NOBODY, Report
from ledger.metering.rows import PARTS, Row
from ledger.metering.stream import PartitionMeter
from ledger.testing import CoreDriver, device
from tests.metering_logs import (
    FOREVER,
    metered,
    owner_of,
    random_log,
    sums,
    with_void_records,
)
from tests.metering_oracle import Oracle

if TYPE_CHECKING:
    from collections.abc import Iterable, Sized

    from ledger.metering.rows import Ended

SEEDS = range(25)
STEPS = 150


def windows(random: Random, last_us: int, count: int = 3) -> list[tuple[int, int]]:
    """Return windows of any length, the whole among them."""
    found = [sorted((random.randrange(last_us), random.randrange(last_us))) for _ in range(count)]
    return [(0, FOREVER), *((start, end) for start, end in found)]


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(8))
def test_a_second_path_finds_the_same_to_the_microsecond(batch: int) -> None:
    """Every unit's time in every state and cause, and the amounts, on 200 logs and any window."""
    for seed in range(batch * 25, batch * 25 + 25):
        values = random_log(seed, STEPS)
        rows, meter = metered(values)
        oracle = Oracle(values)
        random = Random(seed)
        for start, end in windows(random, meter.known_us):
            assert oracle.sums(start, end) == sums(rows, start, end), (seed, start, end)
            report = Report("tenant", start, end)
            for row in rows:
                report.take(row)
            found = {
                name: (
                    one.requested_milli_us, one.requested_mib_us,
                    one.reserved_mib_us, one.delivered_mib_us,
                )
                for name, one in report.groups.items()
                if one.parts["allocated"]
            }  # fmt: skip
            assert oracle.asked(start, end) == found, (seed, start, end)


def test_the_random_logs_have_everything() -> None:
    """Every state and cause but the rarest is among what the properties were tried on."""
    found: Counter[str] = Counter()
    for seed in range(60):
        found.update({f"{row.state} {row.cause}" for row in metered(random_log(seed, STEPS))[0]})
        found["taken back"] += any(row.milli < 0 for row in metered(random_log(seed, STEPS))[0])
    rare = {"unavailable settling", "allocated node-lost"}
    wanted = {*KINDS, "idle free", "idle unpartitioned", "unknown unheard", "absent missing"}
    wanted |= {f"unavailable {one}" for one in ("quarantined", "unhealthy", "maintenance")}
    wanted |= {f"unavailable {one}" for one in ("draining", "node-silent", "node-lost")}
    wanted |= {"unavailable registering", "unavailable repartition", "unknown health-unknown"}
    assert not wanted - rare - found.keys()
    assert not found["taken back"], "nothing is taken back where nothing was told too early"


@pytest.mark.parametrize("seed", SEEDS)
def test_m1_the_parts_of_a_device_are_its_time_and_its_capacity(seed: int) -> None:
    """Presence is counted from the events of discovery and health, the parts from everything."""
    values = random_log(seed, STEPS)
    rows, meter = metered(values)
    oracle = Oracle(values, only=set())
    for start, end in windows(Random(seed), meter.known_us):
        parts: Counter[str] = Counter()
        for (uuid, _, state, *_), amount in sums(rows, start, end).items():
            if state in PARTS:
                assert amount > 0
                parts[uuid] += amount
        present = {uuid: 1000 * us for uuid, us in oracle.present(start, end).items() if us}
        assert present == dict(parts)


@pytest.mark.parametrize("seed", SEEDS)
def test_m1_time_after_the_last_record_is_unknown(seed: int) -> None:
    """A window that ends later has all of it as unknown, of the devices that are present."""
    _, meter = metered(random_log(seed, STEPS))
    later = meter.known_us + 12_345
    more = list(meter.beyond(later))
    present = sum(row.milli_us for row in more if row.state == "present")
    assert present == sum(row.milli_us for row in more if row.state != "present") > 0
    assert {("unknown", "not-yet"), ("present", "")} == {(row.state, row.cause) for row in more}
    assert {(meter.known_us, later)} == {(row.start_us, row.end_us) for row in more}
    assert not list(meter.beyond(meter.known_us))


@pytest.mark.parametrize("seed", SEEDS)
def test_m2_sub_windows_sum_to_the_window(seed: int) -> None:
    """However a window is split, and however often the meter was made to tell."""
    values = random_log(seed, STEPS)
    rows, meter = metered(values)
    random = Random(seed)
    bounds = sorted({0, FOREVER, *(random.randrange(meter.known_us) for _ in range(6))})
    split: Counter[Any] = Counter()
    for start, end in pairwise(bounds):
        split.update(sums(rows, start, end))
    assert sums(rows) == split

    def cut(one: PartitionMeter, offset: int) -> list[Row | Ended]:
        return one.cut(one.known_us) if random.random() < 0.2 else []

    often, _ = metered(values, cut)
    assert len(often) > len(rows)
    for start, end in windows(random, meter.known_us):
        assert sums(rows, start, end) == sums(often, start, end)


@pytest.mark.parametrize("seed", SEEDS)
def test_m3_void_records_and_claims_change_nothing(seed: int) -> None:
    """A log that others have written old decisions into has the same rows."""
    values = random_log(seed, STEPS)
    disturbed = with_void_records(values, Random(seed))
    assert len(disturbed) > len(values)
    assert metered(values)[0] == metered(disturbed)[0]


@pytest.mark.parametrize("seed", SEEDS)
def test_m3_a_lease_has_its_interval_times_what_it_holds(seed: int) -> None:
    """From grant to end, the time included in which its device was gone; slices may go earlier."""
    values = random_log(seed, STEPS)
    oracle = Oracle(values, only=set())
    had: Counter[str] = Counter()
    reserved: Counter[str] = Counter()
    for (_, _, state, cause, owner), amount in sums(metered(values)[0]).items():
        if state == "allocated" or (state, cause) == ("absent", "held"):
            had[owner] += amount
        elif state == "reserved":
            reserved[owner] += amount
    checked = 0
    for lease, amount in had.items():
        if lease in oracle.intervals and lease in oracle.held:
            assert oracle.intervals[lease] * oracle.held[lease] == amount, lease
            checked += 1
    assert checked
    for _, owner, _, milli, start, end in oracle.booked:
        reserved[owner] -= milli * (end - start)
    assert not any(reserved.values())


@pytest.mark.parametrize("seed", SEEDS)
def test_m4_no_unit_is_anybodys_twice_at_once(seed: int) -> None:
    """Pieces of a device never sum to more than it at any instant; a slice has one holder."""
    turns: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for row in metered(random_log(seed, STEPS))[0]:
        assert row.start_us < row.end_us
        if row.state in (*PARTS, "absent"):
            turns[row.device, ""] += [(row.start_us, row.milli), (row.end_us, -row.milli)]
        if row.state == "allocated" and row.unit != row.device:
            turns[row.device, row.unit] += [(row.start_us, 1000), (row.end_us, -1000)]
    for about, changes in turns.items():
        level = 0
        for _, change in sorted(changes):
            level += change
            assert 0 <= level <= 1000, about
        assert level == 0


# -- M6 ------------------------------------------------------------------------

#: Periods and grace in virtual time: the random logs last for hours.
LENGTH_US, GRACE_US = 300_000_000, 120_000_000


def periods(last_us: int) -> list[Period]:
    """Return neighbours from 0 on until the last is not over."""
    return [
        Period(f"p{at}", at * LENGTH_US, (at + 1) * LENGTH_US)
        for at in range(last_us // LENGTH_US + 1)
    ]


def booked(values: Iterable[bytes], last_us: int) -> Book:
    """Return the book of a log."""
    book, meter, fold = Book(periods(last_us), GRACE_US), PartitionMeter(), Fold()
    for offset, value in enumerate(values):
        verdict, record = fold.apply(offset, value)
        if verdict == "effective":
            book.follow(meter, record["time_us"])
        book.take(meter.apply(offset, value))
    book.take(meter.cut(meter.known_us))
    book.settle()
    return book


def test_m6_a_closed_period_never_changes_and_corrections_make_it_true() -> None:
    """At any length of the log: same digest once closed; closed + corrections = counted anew."""
    corrections, closed = 0, 0
    for seed in range(40):
        values = random_log(seed, STEPS)
        rows, meter = metered(values)
        last_us = meter.known_us
        whole = booked(values, last_us)
        half = booked(values[: len(values) // 2], last_us)
        for before, after in zip(half.periods, whole.periods, strict=True):
            if before.state == "closed":
                assert (before.digest, before.lines) == (after.digest, after.lines)
                closed += 1
        told: dict[str, Counter[Any]] = defaultdict(Counter)
        for one in whole.periods:
            for line in one.lines:
                about = line.corrects or one.period.name
                corrections += line.corrects is not None
                assert line.corrects is None or line.corrects != one.period.name
                told[about][_key(line)] += line.milli_us
        for one in whole.periods:
            truth: Counter[Any] = Counter()
            for row in rows:
                length = min(row.end_us, one.period.end_us) - max(row.start_us, one.period.start_us)
                if length > 0:
                    truth[_key(row)] += row.milli * length
            found = told[one.period.name]
            assert +truth == +found, (seed, one.period)
            assert not -found
    assert corrections > 0
    assert closed > 50


def _key(one: Any) -> tuple[Any, ...]:
    return (one.device, one.unit, one.state, one.cause, one.holding)


def test_m6_states_of_a_period() -> None:
    """Open until its end, closing until the grace is over, then closed with a digest."""
    values = random_log(1, STEPS)
    last_us = metered(values)[1].known_us
    book = booked(values, last_us)
    for one in book.periods:
        wanted = (
            "open" if one.period.end_us > last_us
            else "closing" if one.period.end_us + GRACE_US > last_us
            else "closed"
        )  # fmt: skip
        assert wanted == one.state
        assert (one.digest is not None) == (wanted == "closed")
    assert {"closed", "open"} <= {one.state for one in book.periods}
    with pytest.raises(AssertionError, match="never changes"):
        book.periods[0].book(book.periods[0].lines[0], 1)


# -- M7 ------------------------------------------------------------------------


def reported(rows: Iterable[Row], policy: MeteringPolicy, by: str = "tenant") -> Report:
    """Return a report of rows."""
    report = Report(by, policy=policy)
    for row in rows:
        report.take(row)
    report.finish()
    return report


@pytest.mark.parametrize("seed", SEEDS)
def test_m7_nobody_but_the_pool_pays_for_time_that_was_not_used(seed: int) -> None:
    """Without a policy that says so no tenant has idle, unhealthy or cleaning time to pay."""
    rows, _ = metered(random_log(seed, STEPS))
    report = reported(rows, POLICIES["pool"])
    work = {"running", "starting", "over", "node-silent"}
    for tenant, one in report.groups.items():
        paid = sum(amount for (state, cause), amount in one.causes.items()
                   if state == "allocated" and cause in work)  # fmt: skip
        assert one.charged_milli_us == (0 if tenant == NOBODY else paid)
        if tenant != NOBODY:
            assert not one.parts["idle"] + one.parts["unavailable"] + one.parts["unknown"]
    for by in ("project", "queue", "device", "cause"):
        other = reported(rows, POLICIES["pool"], by).total()
        assert report.total().plain() == other.plain()


def test_m7_a_named_policy_lets_time_fall_on_its_holder() -> None:
    """The same rows, other sums: each policy charges what it names and conserves the rest."""
    rows = [row for seed in range(10) for row in metered(random_log(seed, STEPS))[0]]
    totals = {name: reported(rows, one).total() for name, one in POLICIES.items()}
    causes = totals["pool"].causes
    idle, cleaning = causes["allocated", "idle"], causes["unavailable", "cleaning"]
    assert min(idle, cleaning) > 0
    charged = {name: one.charged_milli_us for name, one in totals.items()}
    assert charged["idle-held"] == charged["pool"] + idle
    assert charged["occupancy"] == charged["pool"] + idle + cleaning
    for one in totals.values():
        assert one.parts == totals["pool"].parts
        assert one.parts_milli_us == one.capacity_milli_us
    mine = policy_from_plain({"policy": "mine", "holder_pays": ["unavailable cleaning"]})
    found = reported(rows, mine)
    assert found.total().charged_milli_us == cleaning
    assert sum(one.parts["unavailable"] for name, one in found.groups.items() if name) == cleaning


def test_m7_a_policy_names_what_there_is() -> None:
    """A kind of time that is not known, or a policy without a name, is refused."""
    wrong: tuple[object, ...] = (
        {"policy": "x", "holder_pays": ["allocated sleeping"]},
        {"policy": "", "holder_pays": []},
        {"holder_pays": []},
        {"policy": "x", "holder_pays": "allocated running"},
        [],
    )
    for plain in wrong:
        with pytest.raises(BadPolicy):
            policy_from_plain(plain)


def test_outcomes_sum_to_what_was_allocated() -> None:
    """Completed, interrupted, failed, stopped and live work are all of it, each by its lease."""
    for seed in SEEDS:
        values = random_log(seed, STEPS)
        meter, report = PartitionMeter(), Report("device")
        for offset, value in enumerate(values):
            for one in meter.apply(offset, value):
                report.take(one)
        for one in meter.cut(meter.known_us):
            report.take(one)
        report.finish()
        oracle = Oracle(values)
        wanted: Counter[str] = Counter()
        for (_, _, state, _, owner), amount in oracle.sums(0, FOREVER).items():
            if state == "allocated":
                wanted[BECAME[oracle.ends.get(owner, "live")]] += amount
        assert wanted == +report.total().ends
        for group in report.groups.values():
            assert sum(group.ends.values()) == group.parts["allocated"]


#: Written out, not asked of the code under test.
BECAME = {
    "live": "live", "completed": "completed", "failed": "failed", "cancelled": "stopped",
    "max-run": "stopped", "idle": "stopped", "reclaimed": "interrupted",
    "preempted": "interrupted", "quota-lowered": "interrupted", "node-lost": "interrupted",
    "node-restarted": "interrupted", "device-gone": "interrupted", "device-fault": "interrupted",
    "slice-gone": "interrupted",
    "stop-timed-out": "interrupted",
}  # fmt: skip


def test_what_is_kept_is_bounded_by_what_there_is() -> None:
    """After everything has ended and is clean nothing of a lease is kept."""
    cell = CoreDriver()
    cell.pool(), cell.queue(), cell.quota()
    cell.node("n1", [device("GPU-a"), device("GPU-b")])
    sizes = []
    for number in range(50):
        cell.submit(f"r{number}", {"mode": "whole", "count": 2})
        cell.release(cell.lease(f"r{number}").id)
        cell.answer_all_orders()
        if number in (1, 49):
            meter = metered(cell.records)[1]._meters["c"]
            kept = meter._touched
            pieces = [one.open for one in meter._tracks.values()]
            tables: list[Sized] = [meter._booked, kept._leases, kept._orders, kept._kept]
            sizes.append([len(one) for one in (*tables, *meter._holders.values(), *pieces)])
    assert sizes[0] == sizes[1]
    assert {owner_of(row) for row in metered(cell.records)[0]} != {""}
