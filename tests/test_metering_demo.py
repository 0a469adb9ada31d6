"""The demonstration's month, metered: against the trace's own hours, and a second count."""

from __future__ import annotations

import asyncio
import csv
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from ledger.log.sqlite import SqliteLog
from ledger.metering.calendar import span_of, zone_of
from ledger.metering.periods import book_log
from ledger.metering.report import Report
from ledger.metering.rows import PARTS
from tests.books import by_books, by_ledger_lines, of_oracle
from tests.demo_support import TRACE, US, Run, leases, run_whole
from tests.metering_logs import FOREVER, metered, sums
from tests.metering_oracle import Oracle

if TYPE_CHECKING:
    from ledger.metering.periods import BookedPeriod
    from ledger.metering.rows import Row

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("demo")]


@pytest.fixture(scope="module")
def month(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The whole demonstration, run once: also for `tests.test_demo`, in the same group."""
    return run_whole(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="module")
def rows(month: Run) -> list[Row]:
    """Its rows."""
    return metered(values(month))[0]


def values(month: Run) -> list[bytes]:
    """Return the ledger's records."""
    return [one.value or b"" for one in month.records["events"]]


def test_gpu_hours_are_the_traces_to_the_microsecond(month: Run, rows: list[Row]) -> None:
    """By tenant: duration x GPUs of every job, and what interrupted leases had held before.

    What a job held of the card that was gone is told apart: it was not there.
    """
    lines = (line for line in TRACE.read_text().splitlines() if not line.startswith("#"))
    wanted: Counter[str] = Counter()
    for job in csv.DictReader(lines):
        wanted[job["tenant"]] += int(float(job["duration_s"])) * US * int(job["num_chips"]) * 1000
    again: Counter[str] = Counter()
    for tenant, milli, held_us, reason in leases(month):
        if reason in {"node-lost", "node-restarted", "device-gone"}:
            again[tenant] += milli * held_us
    found: Counter[str] = Counter()
    gone: Counter[str] = Counter()
    for row in rows:
        if row.holding is not None and row.state == "allocated":
            found[row.holding.tenant] += row.milli_us
        if row.holding is not None and (row.state, row.cause) == ("absent", "held"):
            gone[row.holding.tenant] += row.milli_us
    for tenant in ("vcvGl", "vcvlY"):
        assert wanted[tenant] + again[tenant] == found[tenant] + gone[tenant]
    assert gone["vcvGl"] > 0


@pytest.fixture(scope="module")
def oracle(month: Run, rows: list[Row]) -> Oracle:
    """A count by plain Python of a dozen devices: that of all would take minutes.

    The one that was away, some with slices and shares, some of all.
    """
    uuids = sorted({row.device for row in rows})
    parted = sorted({row.device for row in rows if row.unit != row.device})
    only = {row.device for row in rows if row.state == "absent"}
    return Oracle(values(month), only | {*uuids[::24], *parted[:2]})


def test_a_second_path_finds_the_same_for_the_month(oracle: Oracle, rows: list[Row]) -> None:
    """Of a dozen devices, what counts against quotas too."""
    only = oracle.only or set()
    wanted = {key: n for key, n in oracle.sums(0, FOREVER).items() if key[0] in only}
    assert wanted == {key: n for key, n in sums(rows).items() if key[0] in only}


def test_the_month_is_the_same_by_record_by_sql_and_by_plain_python(
    month: Run, rows: list[Row], oracle: Oracle
) -> None:
    """Time to the microsecond, bill to the nano: of all devices by the ledger and by the books.

    And of a dozen of them by plain Python over the events.
    """
    records, september = values(month), span_of("2020-09", zone_of("UTC"))
    (books,) = by_books([records], september)
    assert books.times == sums(row for row in rows if row.state != "reserved")
    assert books.lines == by_ledger_lines(records, september)
    assert len({line[0] for line in books.lines}) == 192
    plain, only = of_oracle(oracle, september), oracle.only or set()
    assert plain.times == {key: n for key, n in books.times.items() if key[0] in only}
    assert plain.lines == [line for line in books.lines if line[0] in only]


def test_192_devices_add_up(month: Run, rows: list[Row]) -> None:
    """All of them all the time, but for the card that was away for two days."""
    report = Report("cause")
    for row in rows:
        report.take(row)
    report.finish()
    total = report.total()
    tally = month.report.tally
    span_us = tally.last_us - tally.first_us
    assert 192 == len(report.devices)
    assert 1000 * (192 * span_us - 172_800 * US) == total.capacity_milli_us
    assert total.capacity_milli_us == sum(total.parts[name] for name in PARTS)
    assert 1000 * 192 * span_us == total.denominators()["bought"]


def test_the_months_of_a_place_add_up(month: Run, rows: list[Row]) -> None:
    """September in Shanghai begins eight hours earlier, and is closed after its grace."""

    async def books() -> list[BookedPeriod]:
        async with SqliteLog(month.path, read_only=True) as log:
            (found,) = (await book_log(log, "gpuledger", zone_of("Asia/Shanghai"))).values()
            return found

    september, october = asyncio.run(books())
    assert ("2020-09", "closed") == (september.period.name, september.state)
    assert "open" == october.state
    assert 720 * 3_600 * US == september.period.end_us - september.period.start_us
    both = sum(line.milli_us for one in (september, october) for line in one.lines)
    assert both == sum(row.milli_us for row in rows)
