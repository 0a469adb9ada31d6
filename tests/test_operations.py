"""Reports of operations, capacity and weeks: against other counts, and as they are told."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from html.parser import HTMLParser
from random import Random
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from typer.testing import CliRunner

from ledger.amounts import permyriad
from ledger.billing.prices import read_prices
from ledger.cli import app
from ledger.log.kafka import KafkaLog
from ledger.log.port import Record, TopicState
from ledger.log.sqlite import SqliteLog
from ledger.metering.calendar import zone_of
from ledger.metering.rows import GPU_HOUR_MILLI_US
from ledger.operations.capacity import capacity_report
from ledger.operations.causes import CAUSES, FREE, KINDS, USED
from ledger.operations.demand import LEAST_US, Demand, advise
from ledger.operations.measure import Metric, Window
from ledger.operations.ops import ops_report
from ledger.operations.page import report_page
from ledger.operations.weekly import days_before, weekly_report
from ledger.operations.words import amount_text
from ledger.percentile import percentile, time_percentile
from ledger.testing import CoreDriver, device, mig_slice
from tests.billing_support import book, price
from tests.ledgers import PREFIX
from tests.metering_logs import random_log, with_void_records
from tests.metering_oracle import Oracle
from tests.replay_support import KINDS as LOGS
from tests.replay_support import log_of, put
from tests.report_support import Plain, gathered, trial_of, windows_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ledger.operations.measure import Report

S = 1_000_000
HOUR = 3_600 * S
DAY = 24 * HOUR
SEEDS = range(12)
STEPS = 120


def cell_at(now_us: int, *devices: dict[str, Any]) -> CoreDriver:
    """Return a cell with these devices on n1."""
    cell = CoreDriver(now_us=now_us)
    cell.pool(silent_grace_s=7_200)
    cell.queue()
    cell.quota()
    cell.node("n1", list(devices) or [device("GPU-a")])
    return cell


def known(cell: CoreDriver, at_us: int) -> None:
    """Let a record be written, so that everything until then is known."""
    plain = {"tenant": "other", "nominal_gpu_milli": 0, "author": "ops", "reason": "test"}
    cell.feed("quota.apply", plain, source="/operator", at_us=at_us)


# -- time ------------------------------------------------------------------------


def oracle_kinds(values: tuple[bytes, ...]) -> Counter[str]:
    """Return kinds of time by a second count; used and what was too much of it are one."""
    found: Counter[str] = Counter()
    for (_, _, state, cause, _), amount in Oracle(values).sums(0, 10**18).items():
        if state in ("allocated", "idle", "unavailable", "unknown"):
            found[CAUSES.get((state, cause), "unknown")] += amount
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_kinds_of_time_sum_to_what_was_there(seed: int) -> None:
    """Used + free + lost by cause is present time x capacity; so by bar, and by hardware."""
    values = random_log(seed, STEPS)
    time = trial_of(values).time
    present_us = sum(Oracle(values).present(0, 10**18).values())
    assert 1000 * present_us == time.kinds.total() == time.present_milli_us
    assert time.waste_milli_us == present_us * 1000 - time.kinds[USED] - time.kinds[FREE]
    bars: Counter[str] = Counter()
    for (_, kind), amount in time.bars.items():
        bars[kind] += amount
    hardware = sum(time.of_hardware.values(), Counter[str]())
    for name in KINDS:
        assert time.kinds[name] == bars[name] == hardware[name]


@pytest.mark.parametrize("seed", SEEDS)
def test_each_kind_of_time_is_what_a_second_count_finds(seed: int) -> None:
    """By the oracle of metering, which shares no code; what was asked for, by the meter's rows."""
    values = random_log(seed, STEPS)
    wanted, found = oracle_kinds(values), trial_of(values).time.kinds
    assert wanted[USED] == found[USED] + found["fragmentation"]
    for name in KINDS:
        if name not in (USED, "fragmentation"):
            assert wanted[name] == found[name], name


def test_random_logs_have_every_kind_of_time() -> None:
    """The two tests above are about all of them."""
    found: Counter[str] = Counter()
    for seed in SEEDS:
        found.update(trial_of(random_log(seed, STEPS)).time.kinds)
    assert {"fragmentation"} == KINDS.keys() - {name for name, amount in found.items() if amount}


def test_what_is_delivered_beyond_the_ask_is_fragmentation() -> None:
    """Two sevenths asked, a slice of three given: 286 thousandths used, 143 too much."""
    made = mig_slice("MIG-1", 1, 0, profile="3g.40gb", size=4, compute_slices=3, memory_mib=40_448)
    cell = cell_at(0, device("GPU-a", mig_enabled=True, compute_slices=7, slices=[made]))
    ask = {"mode": "mig", "memory_mib": 1_000, "compute_slices": 2}
    assert "granted" == cell.submit("R1", ask).code
    cell.task_started(cell.lease("R1").id, "n1")
    started_us = cell.now_us
    known(cell, cell.now_us + HOUR)
    kinds = trial_of(cell.records).time.kinds
    assert (286 * HOUR, 143 * HOUR) == (kinds[USED], kinds["fragmentation"])
    assert 571 * (cell.now_us - started_us) <= kinds["unpartitioned"]


def made_log() -> CoreDriver:
    """Return two devices for ten hours: one held, idle for a while, and cleaned; one that broke."""
    cell = cell_at(0, device("GPU-a"), device("GPU-b"))
    start = cell.now_us
    cell.submit("R1", at_us=start + HOUR)
    lease = cell.lease("R1").id
    cell.now_us = start + HOUR + 5 * S
    cell.task_started(lease, "n1")
    cell.now_us = start + 4 * HOUR
    cell.says("task.use", "n1", lease=lease, idle=True, idle_s=3600)
    cell.feed("lease.release", {"lease": lease}, at_us=start + 5 * HOUR)
    cell.now_us = start + 5 * HOUR + 90 * S
    cell.answer_all_orders()
    cell.now_us = start + 7 * HOUR
    cell.health("GPU-b", "unhealthy")
    known(cell, start + 10 * HOUR)
    return cell


def test_a_made_log_has_the_figures_that_were_made() -> None:
    """To the microsecond, from the times of its records; money to the nano."""
    cell = made_log()
    times: dict[str, int] = {}
    since_us = 0
    for record in map(orjson.loads, cell.records):
        for event in record.get("events", ()):
            times[event["type"]] = record["time_us"]
            since_us = event.get("since_us", since_us)
    there, last = times["device.discovered"], cell.now_us
    wanted = {
        "starting": times["lease.started"] - times["lease.granted"],
        USED: since_us - times["lease.started"],
        "idle-held": times["lease.ended"] - since_us,
        "cleaning": times["order.done"] - times["lease.ended"],
        "unhealthy": last - times["device.health"],
    }
    assert HOUR < wanted["idle-held"] < 2 * HOUR + S
    wanted[FREE] = 2 * (last - there) - sum(wanted.values())
    nanos = 2_000_000_001
    found = trial_of(cell.records, prices=read_prices(book(price("gpu", "GPU-Hours", nanos)))).time
    assert {name: 1000 * us for name, us in wanted.items()} == +found.kinds
    money = found.money()
    assert money is not None
    for name, us in wanted.items():
        assert abs(money[name] * HOUR - us * nanos) < HOUR, name
    assert (2 * 2 * (last - there) * nanos + HOUR) // (2 * HOUR) == sum(money.values())
    tenants = found.tenant_money()
    assert tenants is not None
    worked = wanted["starting"] + wanted[USED]
    assert abs(tenants["t"] * HOUR - worked * nanos) <= HOUR // 2


@pytest.mark.parametrize("policy", ["pool", "idle-held"])
def test_a_tenants_money_is_what_its_bill_says(site: str, tmp_path: Path, policy: str) -> None:
    """By the same policy, but for what is rounded to seconds; idle-held time is dearer."""
    path = tmp_path / "prices.json"
    path.write_bytes(book(price("gpu", "GPU-Hours", 3_600 * 10**9)))
    options = ["--policy", policy, "--prices", str(path), "--json"]
    report = orjson.loads(call(site, "ops", *options))
    bill = ["--log", site, "bill", "--period", "1970-01", *options]
    payers = orjson.loads(CliRunner().invoke(app, bill, catch_exceptions=False).stdout)["payers"]
    (billed,) = (float(one["contracted_cost"]) for one in payers if one["payer"] == "t")
    (section,) = (one for one in report["sections"] if one["name"] == "tenants")
    (row,) = (one for one in section["rows"] if one["tenant"] == "t")
    assert policy == report["policy"]
    assert abs(row["money"] / 10**9 - billed) <= 2
    assert (policy == "idle-held") == (row["charged"] == row["allocated"])


def test_the_whole_log_has_its_first_records_in_it(tmp_path: Path) -> None:
    """Also where they came in before the claim was appended; and so has a log cut there."""
    values = made_log().records
    late_us = orjson.loads(values[-1])["time_us"]
    path = tmp_path / "log.sqlite"

    async def write() -> None:
        async with SqliteLog(path) as log:
            topic = f"{PREFIX}.events"
            await log.create_topics({topic: TopicState(1, 1)})
            await log.restore(
                topic,
                0,
                [Record(topic, 0, at, late_us, b"c", one) for at, one in enumerate(values)],
            )

    asyncio.run(write())
    for cut, records in (([], len(values)), (["--log-at", "2"], 3)):
        report = orjson.loads(call(f"sqlite:{path}", "ops", "--json", *cut))
        assert records == metric_of(report, "records")["numerator"]
        assert records - 1 == metric_of(report, "records.effective")["numerator"]
        assert report["from_us"] < report["to_us"]


def metric_of(report: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a figure of a report in JSON."""
    sections = (section.get("metrics", ()) for section in report["sections"])
    (found,) = (one for metrics in sections for one in metrics if one["name"] == name)
    return dict(found)


def test_a_share_is_the_same_wherever_it_is_told(site: str) -> None:
    """Rounded half up: four of seventeen are 23.53 %; meter and ops have the same text."""
    four = Metric("x", "x", "x", 4, denominator=17, of="x")
    assert (2353, "23.53 %") == (four.permyriad, four.cells()[2])
    assert (1, 0, None) == (permyriad(1, 20_000), permyriad(1, 20_001), permyriad(1, 0))
    busy = ["--log", site, "meter"]
    (line,) = (
        one for one in CliRunner().invoke(app, busy).stdout.splitlines() if "bought" in one[:6]
    )
    (told,) = (one for one in call(site, "ops").splitlines() if "busy of bought" in one)
    assert re.findall(r"[\d.]+ %", line)[1] == re.findall(r"[\d.]+ %", told)[0]


def test_money_follows_a_price_that_changes() -> None:
    """A stretch over a change is paid at both prices; the parts sum to the whole."""
    cell = cell_at(0)
    known(cell, 30 * 60 * S)
    values = cell.records
    prices = read_prices(
        book(price("gpu", "GPU-Hours", 3_600_000_000), price("gpu", "GPU-Hours", 0, 600))
    )
    time = trial_of(values, prices=prices).time
    first = Oracle(values).seen["GPU-a"][0]
    money = time.money()
    assert money is not None
    assert 600 * S - first == money[FREE] == sum(money.values())
    assert trial_of(values).time.money() is None


def test_the_book_on_record_is_used_and_a_file_goes_before_it(tmp_path: Path) -> None:
    """Of several the one that is named; a name that is not there is a no."""
    cell = cell_at(0)
    head = orjson.loads(book(price("gpu", "GPU-Hours", 3_600_000_000)))
    for name, nanos in (("first", 3_600_000_000), ("second", 7_200_000_000)):
        prices = [price(f"gpu-{name}", "GPU-Hours", nanos)]
        plain = {**head, "book": name, "prices": prices, "author": "finance", "reason": "a test"}
        assert "applied" == cell.feed("prices.apply", plain, source="/operator").code
    known(cell, HOUR)
    asyncio.run(_write(tmp_path / "log.sqlite", cell.records))
    url = f"sqlite:{tmp_path / 'log.sqlite'}"
    assert "on record, first, second: --book" in call(url, "ops", status=1)
    assert "has: first, second" in call(url, "ops", "--book", "third", status=1)
    (tmp_path / "file.json").write_bytes(book(price("gpu", "GPU-Hours", 0)))
    money = {}
    for name, arguments in (
        ("first", ["--book", "first"]),
        ("second", ["--book", "second"]),
        ("prices", ["--prices", str(tmp_path / "file.json")]),
    ):
        report = orjson.loads(call(url, "ops", "--json", *arguments))
        assert (name, "EUR") == (report["price_book"], report["currency"])
        (metric,) = (one for one in report["sections"][0]["metrics"] if one["name"] == "money.free")
        money[name] = metric["numerator"]
    assert 2 * money["first"] == money["second"] > 0 == money["prices"]
    both = ["--book", "first", "--prices", str(tmp_path / "file.json")]
    assert "one of them" in call(url, "ops", *both, status=2)


async def _write(path: Path, values: Sequence[bytes]) -> None:
    async with SqliteLog(path) as log:
        await put(log, PREFIX, values)


def test_without_prices_there_is_no_money_and_that_is_said() -> None:
    """Missing, and never 0."""
    metric = ops_report(trial_of(made_log().records)).metric("money")
    assert metric.numerator is None
    assert "no price book is on record, and none was given" == metric.missing == metric.cells()[1]


# -- counts ----------------------------------------------------------------------


def assert_counts(values: tuple[bytes, ...] | list[bytes], window: Window) -> None:
    """Compare a window's counts with those of plain Python."""
    (found,) = gathered(values, window)
    plain, tasks = Plain(values, *window), found.tasks
    assert plain.types["request.received"] == tasks.counts["received"]
    assert plain.refused == tasks.refused
    assert +plain.ends == +tasks.ends
    assert sorted(plain.waits_us) == sorted(tasks.waits_us)
    assert sorted(plain.repairs_us) == sorted(tasks.repairs_us)
    assert plain.counts["interrupted"] == tasks.interruptions.total()
    assert plain.counts["waiting"] == tasks.counts["waiting"]
    assert plain.counts["running"] == tasks.counts["running"]
    assert plain.types["lease.granted"] == tasks.counts["leases"] == tasks.grants.total()
    for kind, count in plain.types.items():
        assert count == found.register.counts[kind], kind


def middle_of(values: tuple[bytes, ...]) -> int:
    """Return a time in the middle of a log."""
    return int(orjson.loads(values[len(values) // 2])["time_us"])


@pytest.mark.parametrize("seed", SEEDS)
def test_counts_are_those_of_plain_python(seed: int) -> None:
    """Of a whole log, and of each of two windows of it."""
    values = random_log(seed, STEPS)
    middle = middle_of(values)
    for window in (Window(0, 10**17), Window(0, middle), Window(middle, 10**17)):
        assert_counts(values, window)


def test_void_records_are_counted_and_change_nothing() -> None:
    """Who wrote without the partition is on record, without effect."""
    values = random_log(5, STEPS)
    disturbed = with_void_records(values, Random(1))
    (whole,), (found,) = gathered(values), gathered(disturbed)
    assert len(disturbed) - len(values) == found.register.counts["record void"] > 0
    assert whole.time.kinds == found.time.kinds
    assert whole.tasks.counts == found.tasks.counts


def test_percentiles_are_nearest_ranks() -> None:
    """Of none there is none."""
    assert None is percentile([], 50)
    assert [1, 5, 10] == [percentile(list(range(1, 11)), per) for per in (1, 50, 100)]
    assert 7 == percentile([7], 95)
    assert 3 == time_percentile(Counter({1: 10, 3: 85, 9: 5}), 95)
    assert None is time_percentile(Counter(), 95)


# -- weeks -----------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_weekly_is_the_difference_of_two_windows(seed: int) -> None:
    """Each figure is that of the report of its own window, and the change is their difference."""
    values = random_log(seed, STEPS)
    middle = middle_of(values)
    last = Oracle(values).now_us
    windows = Window(middle, last), Window(2 * middle - last, middle)
    this, before = gathered(values, *windows)
    reports = [ops_report(gathered(values, one)[0]) for one in windows]
    changed = 0
    for section in weekly_report(this, before).sections[:4]:
        for row in section.rows:
            one, other = (report.metric(row["name"]) for report in reports)
            assert (one.numerator, other.numerator) == (row["this"], row["before"])
            assert (one.denominator, other.denominator) == (row["this_of"], row["before_of"])
            if row["change"] is None:
                assert None in (one.numerator, other.numerator)
            else:
                assert row["change"] == (one.numerator or 0) - (other.numerator or 0)
                changed += row["change"] != 0
    assert changed > 10


def test_two_weeks_together_are_the_two_weeks() -> None:
    """Time and counts of neighbours sum to those of both."""
    values = random_log(2, STEPS)
    middle, last = middle_of(values), Oracle(values).now_us
    one, other, both = gathered(
        values, Window(0, middle), Window(middle, last), Window(0, last)
    )  # fmt: skip
    for name in KINDS:
        assert one.time.kinds[name] + other.time.kinds[name] == both.time.kinds[name]
    for count in ("received", "rejected", "granted", "leases", "leases_ended"):
        assert one.tasks.counts[count] + other.tasks.counts[count] == both.tasks.counts[count], (
            count
        )


def test_a_week_is_seven_days_of_its_place() -> None:
    """In Berlin the week of the change of the clocks has an hour less."""
    berlin = zone_of("Europe/Berlin")
    # Monday, 30 March 2026, 00:00 in Berlin is 22:00 UTC the day before.
    monday = 1_774_821_600 * S
    assert 7 * 24 - 1 == (monday - days_before(monday, 7, berlin)) // HOUR
    assert 7 * 24 == (monday - days_before(monday, 7, zone_of("UTC"))) // HOUR


# -- capacity --------------------------------------------------------------------


def busy_site(days: int, *, quota_milli: int = 1_000_000, requests: int = 40) -> CoreDriver:
    """Return one device, and requests of two days each that come every hour."""
    cell = CoreDriver(now_us=DAY)
    cell.pool()
    cell.queue()
    cell.quota(nominal_gpu_milli=quota_milli)
    cell.node("n1", [device("GPU-a")])
    for number in range(requests):
        cell.submit(f"R{number}", at_us=cell.now_us + HOUR)
    known(cell, (days + 1) * DAY)
    return cell


def advice_of(cell: CoreDriver) -> list[dict[str, Any]]:
    """Return the rows of advice of a whole log."""
    return list(capacity_report(trial_of(cell.records)).section("advice").rows)


def test_too_little_is_no_basis_for_advice() -> None:
    """Neither six days nor twenty requests; both are said."""
    for cell in (busy_site(6), busy_site(20, requests=20)):
        (row,) = advice_of(cell)
        assert ("none", None) == (row["advice"], row["devices"])
        assert row["text"].startswith("no advice: it takes 7 d 0 h and 30 requests")
        assert " requests and waits; leased " in row["basis"]


def test_what_was_missing_is_advised_with_its_basis() -> None:
    """39 requests wait for the one device; 39 more would have been enough for 95 % of 20 days."""
    (row,) = advice_of(busy_site(20))
    assert ("add", 39) == (row["advice"], row["devices"])
    assert "39 more would have been enough for 95 % of the time" == row["text"]
    assert "20 d" in row["basis"] or "19 d 23 h" in row["basis"]
    assert "waited for devices" in row["basis"]


def test_waiting_for_a_quota_is_no_demand_for_devices() -> None:
    """Two devices, a quota of one: one was free all the time while others waited."""
    cell = CoreDriver(now_us=DAY)
    cell.pool()
    cell.queue()
    cell.quota(nominal_gpu_milli=1000)
    cell.node("n1", [device("GPU-a"), device("GPU-b")])
    for number in range(40):
        cell.submit(f"R{number}", at_us=cell.now_us + HOUR)
    known(cell, 21 * DAY)
    rows = {row["advice"]: row for row in advice_of(cell)}
    assert {"quota", "add-and-quota"} == set(rows)
    assert "look at quotas before buying" in rows["quota"]["text"]
    report = capacity_report(trial_of(cell.records))
    assert [("quota_in_use", "quota")] == [
        (row["code"], row["for"]) for row in report.section("held-back").rows
    ]


def demand(**more: Any) -> Demand:
    """Return what was wanted of a hardware: nothing but what is said."""
    nothing = Counter({0: LEAST_US})
    one = Demand(
        ("p", "m"), nothing, nothing, nothing, nothing, nothing, Counter[str](), requests=30
    )
    for name, value in more.items():
        setattr(one, name, value)
    return one


ADVICE: dict[str, tuple[dict[str, Any], list[tuple[str, int | None]]]] = {
    "nothing was missing and nothing to spare": ({}, [("enough", 0)]),
    "more for 5 % of the time only": (
        {"short": Counter({0: 95, 9000: 5})}, [("enough", 0)]
    ),
    "a part of a device is a device": ({"short": Counter({0: 94, 143: 6})}, [("add", 1)]),
    "two, and three with quotas": (
        {"short": Counter({2000: 1}), "entitled_short": Counter({2500: 1})},
        [("add", 2), ("add-and-quota", 3)],
    ),
    "enough in sum": (
        {"scattered_milli_us": 11, "leased_milli_us": 1000}, [("layout", None)]
    ),
    "below a part in a hundred is noise": (
        {"scattered_milli_us": 10, "held_back_milli_us": 10, "leased_milli_us": 1000},
        [("enough", 0)],
    ),
    "to spare": ({"spare": Counter({2999: 6, 9000: 94})}, [("spare", 2)]),
}  # fmt: skip


@pytest.mark.parametrize("name", ADVICE)
def test_advice_follows_from_what_was_wanted(name: str) -> None:
    """The table: what is known of a hardware, and what is said of it."""
    more, wanted = ADVICE[name]
    found = advise(demand(**more), LEAST_US)
    assert wanted == [(one.advice, one.devices) for one in found]
    assert all(one.basis for one in found)


def test_shapes_say_what_was_not_had_and_why() -> None:
    """Refused, expired, withdrawn, still waiting: each is one not had; a grant is had."""
    cell = cell_at(0)
    cell.submit("had")
    cell.submit("waits")
    cell.submit("gone")
    cell.submit("late", max_wait_s=60)
    cell.submit("refused", {"mode": "whole", "count": 16, "nodes": 1000})
    cell.cancel("gone")
    cell.tick(cell.now_us + 120 * S)
    known(cell, cell.now_us + HOUR)
    report = capacity_report(trial_of(cell.records))
    numbers = {one.name: one.numerator for one in report.sections[0].metrics}
    wanted = {"asked": 5, "had": 1, "refused": 1, "expired": 1, "withdrawn": 1, "waiting": 1}
    assert wanted == {name: numbers[name] for name in wanted}
    rows = {row["shape"]: row for row in report.section("shapes").rows}
    one = rows["1 whole device(s)"]
    assert (4, 1, 3) == (one["asked"], one["had"], one["not_had"])
    assert ["no_capacity 3"] == one["codes"]
    (refused,) = (row for name, row in rows.items() if name.startswith("16 whole"))
    assert (1, 0, 1, ["exceeds_quota 1"]) == (
        refused["asked"], refused["had"], refused["not_had"], refused["codes"]
    )  # fmt: skip


# -- as they are told --------------------------------------------------------------


class Page(HTMLParser):
    """Reads a page: every element that is opened is closed, and what they refer to."""

    VOID = frozenset({"meta"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.outside: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag and what it refers to."""
        self.tags[tag] += 1
        if tag not in self.VOID:
            self.open.append(tag)
        self.outside += [
            f"{name}={value}"
            for name, value in attrs
            if name in {"src", "href", "srcset", "action", "data", "xlink:href"}
            or "url(" in (value or "")
            or name.startswith("on")
        ]

    def handle_endtag(self, tag: str) -> None:
        """Close the last one that was opened."""
        assert tag == self.open.pop()

    def handle_data(self, data: str) -> None:
        """Keep what is written."""
        self.text += data


def page_of(report: Report) -> tuple[Page, str]:
    """Return a report's page as it is read, and its bytes."""
    text = report_page(report)
    page = Page()
    page.feed(text)
    page.close()
    assert [] == page.open
    return page, text


def test_a_page_is_whole_and_needs_nothing_from_outside() -> None:
    """No script, no reference, pictures within; the same report is the same page."""
    found = trial_of(random_log(3, STEPS))
    for report in (ops_report(found), capacity_report(found), weekly_report(found, found)):
        page, text = page_of(report)
        assert [] == page.outside
        assert 0 == page.tags["script"] + page.tags["link"] + page.tags["img"] + page.tags["iframe"]
        assert "http" not in text
        assert "@import" not in text
        assert text == report_page(report)
        assert {section.title for section in report.sections} <= set(page.text.split("\n")) or all(
            section.title in page.text for section in report.sections
        )
    page, _ = page_of(ops_report(found))
    assert page.tags["svg"] == 2
    assert page.tags["rect"] > 5


def test_a_page_escapes_what_others_have_named() -> None:
    """A device's model is any text."""
    hostile = "<script>alert('x')</script> & \"H100\""
    cell = cell_at(0, device("GPU-a", model=hostile))
    cell.submit("R1", {"mode": "whole", "models": [hostile]})
    known(cell, cell.now_us + HOUR)
    found = trial_of(cell.records)
    for report in (ops_report(found), capacity_report(found)):
        page, text = page_of(report)
        assert 0 == page.tags["script"]
        assert "<script" not in text
        assert hostile in page.text


async def told_of(log: Any, prefix: str) -> list[dict[str, Any]]:
    """Return the reports of a log, as JSON has them."""
    (found,) = await windows_of(log, prefix, [])
    return [ops_report(found).plain(), capacity_report(found).plain()]


async def in_memory(folder: Path, values: tuple[bytes, ...]) -> list[dict[str, Any]]:
    """Return the reports that the others must be."""
    async with await log_of("memory", folder, values) as log:
        return await told_of(log, PREFIX)


@pytest.mark.parametrize("kind", LOGS)
async def test_every_kind_of_log_gives_the_same_report(kind: str, tmp_path: Path) -> None:
    """To the last figure."""
    values = random_log(4, STEPS)
    async with await log_of(kind, tmp_path, values) as log:
        found = await told_of(log, PREFIX)
    assert await in_memory(tmp_path, values) == found
    assert f"events/0@{len(values) - 1}" == found[0]["log"]["read"][0]["to"]


@pytest.mark.kafka
async def test_kafka_gives_the_same_report(kafka: str, kafka_prefix: str, tmp_path: Path) -> None:
    """From a real broker."""
    values = random_log(4, STEPS)
    async with KafkaLog(kafka) as log:
        await put(log, kafka_prefix, values)
        found = await told_of(log, kafka_prefix)
    assert await in_memory(tmp_path, values) == found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the URL of a log of a few hours."""
    path = tmp_path_factory.mktemp("reports") / "log.sqlite"
    asyncio.run(_write(path, made_log().records))
    return f"sqlite:{path}"


def call(url: str, *arguments: str, status: int = 0) -> str:
    """Run one command in this process; return what it prints, or what it complains of."""
    done = CliRunner().invoke(app, ["--log", url, "report", *arguments], catch_exceptions=False)
    assert done.exit_code == status, done.stderr
    return done.stdout if status == 0 else done.stderr


def test_each_figure_can_be_traced(site: str) -> None:
    """JSON has its formula, both its numbers, what it is a part of, and the records."""
    for name in ("ops", "capacity"):
        report = orjson.loads(call(site, name, "--json"))
        metrics = [one for section in report["sections"] for one in section.get("metrics", ())]
        assert len(metrics) > 5
        for one in metrics:
            assert one["formula"]
            assert {"numerator", "denominator", "of", "unit", "permyriad"} <= one.keys()
            assert (one["numerator"] is None) == (one["missing"] is not None)
            assert (one["of"] is None) == (one["denominator"] is None)
            assert all(one["from"].startswith("events/0@") for one in one["log"])
            assert one["log"][0]["to"].startswith("events/0@")
        for section in report["sections"]:
            assert all(one["formula"] for one in section.get("columns", ()))
        assert {"resource", "task"} <= {one.get("group") for one in report["sections"]}
        assert all(not isinstance(value, float) for value in _leaves(report))


def _leaves(plain: Any) -> list[Any]:
    if isinstance(plain, dict):
        return [leaf for one in plain.values() for leaf in _leaves(one)]
    if isinstance(plain, list):
        return [leaf for one in plain for leaf in _leaves(one)]
    return [plain]


def test_utilisation_names_what_it_is_a_part_of(site: str) -> None:
    """Bought, online, available: three numbers, and none without its name."""
    report = orjson.loads(call(site, "ops", "--json"))
    (section,) = (one for one in report["sections"] if one["name"] == "resources")
    shares = {
        one["name"]: (one["numerator"], one["denominator"])
        for one in section["metrics"]
        if one["name"].startswith("utilisation.allocated.")
    }
    first = Oracle(tuple(made_log().records)).seen["GPU-a"][0]
    span = made_log().now_us - first
    assert 2 * 1000 * span == shares["utilisation.allocated.bought"][1]
    assert shares["utilisation.allocated.available"][1] < 2 * 1000 * span
    assert 1 == len({numerator for numerator, _ in shares.values()})


def test_the_command_writes_a_page_and_says_what_is_wrong(site: str, tmp_path: Path) -> None:
    """A page beside the text; usage is 2, a price that is missing 1."""
    page = tmp_path / "report.html"
    text = call(site, "ops", "--html", str(page))
    assert page.read_text().startswith("<!doctype html>")
    assert "Where the time went" in text
    assert "used + free + lost by cause" in text
    (tmp_path / "late.json").write_bytes(book(price("gpu", "GPU-Hours", 1, 3599)))
    assert "no price" in call(site, "ops", "--prices", str(tmp_path / "late.json"), status=1)
    (tmp_path / "bad.json").write_text("{}")
    assert "bad.json" in call(site, "ops", "--prices", str(tmp_path / "bad.json"), status=2)
    there = "; the ledger has records from 1970-01-01T00:00:00.000Z to "
    for asked, wrong in {
        ("ops", "--from", "2030-01"): "--from 2030-01 is after the last record",
        ("weekly", "--to", "1969-12"): "--to 1969-12 is before the first record",
        ("ops", "--from", "1970-02", "--to", "1970-01"): "--to 1970-01 is not after --from 1970-02",
    }.items():
        assert f"{wrong}{there}" in " ".join(call(site, *asked, status=2).split())
    cut = call(site, "ops", "--log-at", "0@6", "--json")
    assert cut != call(site, "ops", "--json")
    assert "Weekly report" in call(site, "weekly", "--days", "1")


def test_a_ledger_without_a_decision_has_nothing_to_report(tmp_path: Path) -> None:
    """That is a no, not an empty page."""
    asyncio.run(_write(tmp_path / "log.sqlite", CoreDriver().records))
    for name in ("ops", "capacity", "weekly", "acceptance"):
        said = call(f"sqlite:{tmp_path / 'log.sqlite'}", name, status=1)
        assert "nothing to report" in said


def test_amounts_are_rounded_only_when_they_are_told() -> None:
    """The nearest of two digits; what is missing is a dash."""
    assert "1.50 GPU-h" == amount_text(GPU_HOUR_MILLI_US * 3 // 2, "milli_us")
    assert "-" == amount_text(None, "milli_us")
    assert "0.00" == amount_text(-4_000_000, "nanos")
    assert "-0.01" == amount_text(-5_000_000, "nanos")
    assert "1 d 1 h" == amount_text(DAY + HOUR, "us")
    assert "3.000 s" == amount_text(3 * S, "us")
    assert "12.34 %" == amount_text(1234, "permyriad")
