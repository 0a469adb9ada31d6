"""A month made by hand, its export in every format, the rules of exports, and the command."""

from __future__ import annotations

import asyncio
from collections import Counter
from copy import deepcopy
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from typer.testing import CliRunner

from ledger.billing.checks import RULES, check_export
from ledger.billing.collect import Bill, bill_of, meter_log
from ledger.billing.export import FORMATS, ClosedMonth, NoExport, read_exports, write_bill
from ledger.billing.focus import COLUMNS, rows_of
from ledger.billing.prices import NoPrice, read_prices
from ledger.cli import app
from ledger.formats.documents import NotTheFormat
from ledger.log.port import Entry
from ledger.log.sqlite import SqliteLog
from ledger.log.topics import apply
from ledger.metering.calendar import span_of, zone_of
from ledger.metering.policy import POLICIES
from ledger.metering.rows import Holding, Row
from ledger.testing import CoreDriver, device
from tests.billing_oracle import oracle_bill
from tests.billing_support import book, charges, issued, price, tariff
from tests.ledgers import PREFIX
from tests.metering_oracle import Oracle
from tests.test_metering_cases import HOUR, MINUTE, S, cell_at, known, run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ledger.billing.charges import Tariff
    from ledger.billing.export import Export
    from ledger.log.port import Log

OCTOBER, NOVEMBER = (span_of(f"2026-{month}", zone_of("UTC")) for month in (10, 11))
DAY = 24 * HOUR
SHARE = {"mode": "share", "gpu_milli": 250, "memory_mib": 1_000}
MORE: dict[str, Any] = {
    "reason": "budget of 2026",
    "model": "H100",
    "contracted_nanos": 1_800_000_000,
}
BOOK = book(price("h100", "GPU-Hours", 3_600_000_000, **MORE))
POOL = tariff(POLICIES["pool"], BOOK)


def two_months() -> CoreDriver:
    """Two cards from the first of October, nine o'clock, until the seventh of November.

    In October: one card for two hours and 0.4 seconds, two quarters for an hour, one card
    for the last hour of the month and the first of the next, one from the 20th on.
    On the sixth of November, when October is closed, that one is found idle since the 25th.
    """
    start = OCTOBER.start_us
    cell = cell_at(start + 10 * HOUR, device("GPU-a"), device("GPU-b"))
    run(cell, "J1", start + 10 * HOUR, start + 12 * HOUR + 400_000)
    shares(cell, "S", start + 13 * HOUR)
    cell.submit("J3", at_us=start + 19 * DAY)
    said = {"node": "n1", "incarnation": "b1", "lease": cell.lease("J3").id}
    cell.feed("task.started", said, source="/nodes/n1", at_us=start + 19 * DAY + 1)
    run(cell, "J2", NOVEMBER.start_us - HOUR, NOVEMBER.start_us + HOUR)
    shares(cell, "T", NOVEMBER.start_us + DAY)
    known(cell, NOVEMBER.start_us + 4 * DAY)
    idle = {**said, "idle": True, "idle_s": 12 * 86_400}
    cell.feed("task.use", idle, source="/nodes/n1", at_us=NOVEMBER.start_us + 5 * DAY)
    known(cell, NOVEMBER.start_us + 6 * DAY)
    return cell


def shares(cell: CoreDriver, name: str, at_us: int) -> None:
    """Let two quarters of one card be held for an hour."""
    for which in (1, 2):
        assert "granted" == cell.submit(f"{name}{which}", SHARE, at_us=at_us + which).code
    for which in (1, 2):
        lease = cell.lease(f"{name}{which}").id
        cell.feed("lease.release", {"lease": lease}, source="/team/a", at_us=at_us + HOUR + which)
    cell.answer_all_orders()


RECORDS = tuple(two_months().records)


async def logged(path: Path, values: Sequence[bytes] = RECORDS) -> SqliteLog:
    """Return a log in a file that has these records."""
    log = SqliteLog(path)
    await apply(log, PREFIX, partitions=1)
    await log.append(f"{PREFIX}.events", 0, [Entry(b"c", value) for value in values])
    return log


async def bills(path: Path, chosen: Tariff = POOL) -> tuple[Bill, Bill]:
    """Return the bills of October and November of the log in a file."""
    log = await logged(path)
    try:
        first, second = [await meter_log(log, PREFIX, one) for one in (OCTOBER, NOVEMBER)]
        return bill_of(first, chosen), bill_of(second, chosen)
    finally:
        await log.close()


def cost(bill: Bill, payer: str, name: str = "ListCost", chosen: Tariff = POOL) -> Fraction:
    """Return what a tenant, or the pool, pays."""
    return sum(
        (
            Fraction(row[name] or "")
            for row in rows_of(bill, chosen)
            if (row["SubAccountId"] or "pool") == payer
        ),
        Fraction(0),
    )


async def test_a_month_made_by_hand(tmp_path: Path) -> None:
    """291.5 GPU-hours of the tenant's, 1,470 of two cards; list 3.60 an hour, contracted 1.80."""
    october, november = await bills(tmp_path / "log")
    assert "closed" == october.state
    assert "open" == november.state
    hours = 2 + Fraction(2, 4) + 1 + 12 * 24 + Fraction(1, 2) - Fraction(1, 2)
    assert Fraction(583, 2) == hours
    assert hours * Fraction("3.6") == cost(october, "t")
    assert hours * Fraction("1.8") == cost(october, "t", "EffectiveCost")
    assert Fraction(2 * (744 - 9)) * Fraction("3.6") == cost(october, "t") + cost(october, "pool")
    assert 0 == cost(october, "t", "BilledCost")
    split = [one for one in charges(october.origins) if one.split]
    assert {250, 500} == {one.piece.milli for one in split}
    assert {3600} == {one.end_s - one.start_s for one in split}


async def test_a_second_path_finds_the_same_for_the_month(tmp_path: Path) -> None:
    """October, had it stayed open, and what is told of it in both bills: equal to the nano."""
    prices = [
        {
            "id": "h100@1970-01-01T00:00:00Z", "unit": "GPU-Hours", "from_s": 0,
            "model": "H100", "list": 3_600_000_000, "contracted": 1_800_000_000,
        }
    ]  # fmt: skip
    wanted = oracle_bill(
        Oracle(RECORDS), OCTOBER.start_us // S, OCTOBER.end_us // S, prices,
        set(POLICIES["pool"].holder_pays),
    )  # fmt: skip
    told: Counter[tuple[Any, ...]] = Counter()
    for bill in await bills(tmp_path / "log"):
        for one in charges(bill.origins):
            if one.start_s < OCTOBER.end_us // S:
                tenant = "t" if one.holder_pays else ""
                key = (one.piece.device, one.piece.unit, one.start_s, one.end_s, one.piece.cause)
                told[*key, tenant] += one.list_atto
    found: Counter[tuple[Any, ...]] = Counter()
    for each in wanted:
        key = (each["device"], each["unit"], each["start"], each["end"], each["cause"])
        found[*key, each["payer"]] += each["list"]
    assert found == Counter({about: atto for about, atto in told.items() if atto})


async def test_m6_late_facts_are_corrections_in_the_next_month(tmp_path: Path) -> None:
    """Seven days of October were idle: taken back from the tenant, and the pool's instead."""
    october, november = await bills(tmp_path / "log")
    rows = [row for row in rows_of(november, POOL) if row["ChargeClass"] is not None]
    assert {"Correction"} == {row["ChargeClass"] for row in rows}
    assert {"2026-11-01T00:00:00Z"} == {row["BillingPeriodStart"] for row in rows}
    assert {"2026-10"} == {row["x_CorrectsPeriod"] for row in rows}
    by = {"t": Fraction(0), "pool": Fraction(0)}
    for row in rows:
        by[row["SubAccountId"] or "pool"] += Fraction(row["ListCost"] or "")
    week = 7 * 24 * Fraction("3.6")
    assert {"t": -week, "pool": week} == by
    assert not any(one.corrects for one in charges(october.origins))
    late = issued(RECORDS, OCTOBER, POOL, [OCTOBER, NOVEMBER], 10**15)
    assert cost(late, "t") == cost(october, "t") - week


def test_m6_a_month_is_corrected_by_each_month_with_what_that_month_learns() -> None:
    """Two late facts of one card's October: November has the first only, December the second."""
    start = OCTOBER.start_us
    cell = cell_at(start + 10 * HOUR, device("GPU-a"))
    leases = []
    for which in (1, 2):
        cell.submit(f"K{which}", SHARE, at_us=start + 19 * DAY + which)
        leases.append({"node": "n1", "incarnation": "b1", "lease": cell.lease(f"K{which}").id})
        cell.feed("task.started", leases[-1], source="/nodes/n1", at_us=start + 19 * DAY + 9)
    for lease, at_us, days in zip(leases, (36 * DAY, 67 * DAY), (12, 40), strict=True):
        known(cell, start + at_us - HOUR)
        idle = {**lease, "idle": True, "idle_s": days * 86_400}
        cell.feed("task.use", idle, source="/nodes/n1", at_us=start + at_us)
        known(cell, start + at_us + HOUR)
    december = span_of("2026-12", zone_of("UTC"))
    months = [OCTOBER, NOVEMBER, december]
    paid = []
    stands: set[Any] = set()
    for month in months:
        found = charges(issued(cell.records, month, POOL, months).origins)
        about = [one for one in found if one.start_s < OCTOBER.end_us // S and one.holder_pays]
        paid.append(sum(one.metered_milli_s for one in about))
        for one in found:
            what = (one.piece, one.start_s, one.end_s, abs(one.priced_nano), one.list_atto > 0)
            if one.list_atto < 0:
                stands.remove((*what[:-1], True))
            else:
                stands.add(what)
    # Both quarters for 12 days; idle from the 25th, which is 7 of them, and from the 28th, 4.
    assert [2 * 12 * 86_400 * 250, -7 * 86_400 * 250, -4 * 86_400 * 250] == paid


def test_a_month_that_is_not_over_has_no_rows_beyond_the_last_record() -> None:
    """November is billed until the seventh: what is not known is not sold."""
    bill = issued(RECORDS, NOVEMBER, POOL, [OCTOBER, NOVEMBER])
    last_s = (NOVEMBER.start_us + 6 * DAY) // S
    assert last_s == max(one.end_s for one in charges(bill.origins))
    empty = issued(RECORDS, span_of("2026-12", zone_of("UTC")), POOL, [OCTOBER, NOVEMBER])
    assert [] == empty.origins
    assert "open" == empty.state


def test_a_place_that_is_kept_is_an_unused_reservation() -> None:
    """For ten seconds a card is kept for who waits: the pool's, unused, named by the request."""
    cell = cell_at(OCTOBER.start_us + DAY, device("GPU-a"), device("GPU-b"))
    cell.queue(preemption="any-tenant")
    cell.submit("low", at_us=OCTOBER.start_us + DAY - MINUTE, preemptible=True)
    two = {"mode": "whole", "count": 2}
    assert "reserved" == cell.submit("two", two, at_us=OCTOBER.start_us + DAY, priority=9).code
    known(cell, OCTOBER.start_us + DAY + 10 * S)
    rows = [
        row for row in rows_of(issued(cell.records, OCTOBER, POOL), POOL)
        if row["CapacityReservationId"] is not None
    ]  # fmt: skip
    (row,) = rows
    assert ("Unused", "c/places//team/a#two") == (
        row["CapacityReservationStatus"], row["CapacityReservationId"],
    )  # fmt: skip
    assert ("10", None) == (row["ConsumedQuantity"], row["SubAccountId"])


def test_what_runs_in_a_reservation_uses_it() -> None:
    """A request that names its reservation is billed as the used part of it."""
    start = OCTOBER.start_us + DAY
    cell = cell_at(start, device("GPU-a"), device("GPU-b"))
    plain = {
        "reservation": "demo", "tenant": "t", "count": 1, "start_us": start,
        "end_us": start + HOUR, "author": "op", "reason": "demo day",
    }  # fmt: skip
    assert "applied" == cell.feed("reservation.apply", plain, source="/operator").code
    cell.tick(at_us=start)
    assert "granted" == cell.submit("r", at_us=start + S, reservation="demo").code
    known(cell, start + MINUTE)
    rows = list(rows_of(issued(cell.records, OCTOBER, POOL), POOL))
    used = [row for row in rows if row["CapacityReservationId"] is not None]
    # The second before it was granted is unused.
    assert {("c/reservations/demo", "Used", "t"), ("c/reservations/demo", "Unused", None)} == {
        (row["CapacityReservationId"], row["CapacityReservationStatus"], row["SubAccountId"])
        for row in used
    }


# -- files ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def november(tmp_path_factory: pytest.TempPathFactory) -> Bill:
    """November's bill: it has charges that are split, and corrections."""
    return asyncio.run(bills(tmp_path_factory.mktemp("bills") / "log"))[1]


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_has_the_same_rows(form: str, november: Bill, tmp_path: Path) -> None:
    """Written and read back, and by all rules; the same bill gives the same bytes."""
    paths = write_bill(tmp_path, november, POOL, form, "1")
    before = [path.read_bytes() for path in paths]
    assert before == [one.read_bytes() for one in write_bill(tmp_path, november, POOL, form, "1")]
    (export,) = read_exports(tmp_path)
    assert list(rows_of(november, POOL)) == export.rows
    assert [] == check_export(export)
    assert [one.name for one in COLUMNS] == export.columns
    assert not list(tmp_path.glob(".*")), "no half file is left behind"


def test_a_folder_has_a_bill_once(november: Bill, tmp_path: Path) -> None:
    """Another format takes the place of the first, or a reader would count twice."""
    write_bill(tmp_path, november, POOL, "csv", "1")
    write_bill(tmp_path, november, POOL, "json", "1")
    assert 1 == len(read_exports(tmp_path))
    (tmp_path / "cost-and-usage-2026-11.csv").write_text("A,B\n")
    with pytest.raises(NoExport, match="one file of rows is wanted, 2 are there"):
        read_exports(tmp_path)
    with pytest.raises(NoExport, match="has no bill"):
        read_exports(tmp_path / "nowhere")


async def test_m6_the_file_of_a_closed_month_stays(tmp_path: Path) -> None:
    """The same again is no change; other prices are, and are refused."""
    october, _ = await bills(tmp_path / "log")
    write_bill(tmp_path / "out", october, POOL, "csv", "1")
    write_bill(tmp_path / "out", october, POOL, "csv", "2")
    had = (tmp_path / "out" / "cost-and-usage-2026-10.csv").read_bytes()
    dearer = tariff(POLICIES["pool"], BOOK.replace(b"3600000000", b"3600000001"))
    other = issued(RECORDS, OCTOBER, dearer, [OCTOBER, NOVEMBER])
    with pytest.raises(ClosedMonth, match="another bill of 2026-10, which is closed"):
        write_bill(tmp_path / "out", other, dearer, "csv", "1")
    with pytest.raises(ClosedMonth):
        write_bill(tmp_path / "out", other, dearer, "parquet", "1")
    assert had == (tmp_path / "out" / "cost-and-usage-2026-10.csv").read_bytes()


# -- rules ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def good(november: Bill, tmp_path_factory: pytest.TempPathFactory) -> Export:
    """An export in which something is in every column."""
    folder = tmp_path_factory.mktemp("good")
    write_bill(folder, november, POOL, "csv", "1")
    (export,) = read_exports(folder)
    idle = find(export, x_State="idle", AllocatedMethodId=None)
    idle |= {"CapacityReservationId": "c/places/r", "CapacityReservationStatus": "Unused"}
    for row in export.rows:
        row["ServiceSubcategory"] = "Other (Compute)"
    return export


ANY = object()


def find(export: Export, **wanted: Any) -> dict[str, str | None]:
    """Return the first row that has these values; ``ANY`` is any but none."""
    return next(
        row
        for row in export.rows
        if all(
            row[name] is not None if value is ANY else row[name] == value
            for name, value in wanted.items()
        )
    )


def put(where: dict[str, Any], **values: str | None) -> Callable[[Export], None]:
    """Return a change of the first row that has some values."""
    return lambda export: find(export, **where).update(values)


USAGE: dict[str, Any] = {"ChargeClass": None}
CORRECTION: dict[str, Any] = {"ChargeClass": "Correction"}
SPLIT: dict[str, Any] = {"AllocatedResourceId": ANY, "ChargeClass": None}
HELD: dict[str, Any] = {"x_Payer": "holder"}
KEPT: dict[str, Any] = {"CapacityReservationId": ANY}

#: Rule -> a change of a good export that breaks it.
BREAKS: dict[str, Callable[[Export], Any]] = {
    "ListCost-Product": put(USAGE, ListCost="1.000000000000000001"),
    "ContractedCost-Product": put(USAGE, ContractedCost="1.5"),
    "EffectiveCost-Contracted": put(USAGE, EffectiveCost="1.5"),
    "BilledCost-Zero": put(USAGE, BilledCost="0.01"),
    "BillingPeriod-Month": put(USAGE, BillingPeriodEnd="2026-12-01T01:00:00Z"),
    "ChargePeriod-Forwards": put(USAGE, ChargePeriodEnd="2026-11-01T00:00:00Z",
                                 ChargePeriodStart="2026-11-01T00:00:00Z"),
    "ChargePeriod-Within": put(USAGE, ChargePeriodEnd="2026-12-01T00:00:01Z"),
    "ChargeClass-Past": put(CORRECTION, ChargePeriodEnd="2026-11-01T00:00:01Z"),
    "x_CorrectsPeriod-Month": put(CORRECTION, x_CorrectsPeriod="2026-09"),
    "PricingQuantity-Sign": put(USAGE, PricingQuantity="-1"),
    "PricingQuantity-Unit": put(USAGE, PricingUnit=None),
    "PricingQuantity-Usage": put(USAGE, PricingQuantity=None),
    "ConsumedQuantity-Unit": put(USAGE, ConsumedUnit=None),
    "ConsumedQuantity-Usage": put(USAGE, ConsumedQuantity=None),
    "ConsumedQuantity-Period": put(USAGE, ConsumedQuantity="1.001"),
    "SkuPriceId-Usage": put(USAGE, SkuPriceId=None),
    "SkuPriceId-Sku": put(USAGE, SkuId=None),
    "SkuMeter-Sku": put(USAGE, SkuMeter=None),
    "SkuPriceDetails-Price": put(USAGE, SkuPriceId=None),
    "SkuPriceDetails-Keys": put(USAGE, SkuPriceDetails='{"gpus":1}'),
    "ListUnitPrice-Usage": put(USAGE, ListUnitPrice=None),
    "ContractedUnitPrice-Usage": put(USAGE, ContractedUnitPrice=None),
    "ResourceId-Type": put(USAGE, ResourceType=None),
    "ResourceName-Resource": put(USAGE, ResourceId=None),
    "SubAccountName-Account": put(HELD, SubAccountName=None),
    "SubAccountId-Payer": put({"x_Payer": "pool"}, SubAccountId="t"),
    "RegionName-Region": put(USAGE, RegionName=None),
    "CapacityReservationStatus-Id": put(KEPT, CapacityReservationStatus=None),
    "CapacityReservationStatus-Unused": put(KEPT, x_State="allocated"),
    "AllocatedMethodDetails-Method": put(SPLIT, AllocatedMethodDetails=None),
    "AllocatedResourceId-Method": put(SPLIT, AllocatedMethodId=None),
    "AllocatedResourceName-Resource": put(SPLIT, AllocatedResourceName=None),
    "AllocatedTags-Resource": put(SPLIT, AllocatedResourceId=None),
    "AllocatedRatio-Sum": put(
        SPLIT, AllocatedMethodDetails='{"Elements":[{"AllocatedRatio":0.250000000000000001}]}'
    ),
    "ChargePeriod-Overlap": lambda export: export.rows.append(
        {**find(export, **USAGE), "x_OriginChargeId": "another"}
    ),
    "Rows-Distinct": lambda export: export.rows.append(dict(export.rows[0])),
    "Columns-Order": lambda export: export.columns.insert(0, export.columns.pop()),
    "BillingCurrency-One": put(USAGE, BillingCurrency="USD"),
    "ServiceCategory-One": put(USAGE, ServiceCategory="AI and Machine Learning"),
    "SkuPriceDetails-One": put(USAGE, SkuPriceDetails='{"GpuCount":2}'),
    "ListUnitPrice-One": put(USAGE, ListUnitPrice="3.7"),
    "PricingUnit-One": put(USAGE, PricingUnit="GPU-Seconds"),
    "Schema-Fields": lambda export: export.schema.pop("SchemaId"),
    "Schema-Columns": lambda export: export.schema["ColumnDefinition"].pop(),
    "Schema-Scale": lambda export: export.schema["ColumnDefinition"][0].pop("NumberScale"),
    "Recency-Fields": lambda export: export.recency.pop("RecencyLastUpdated"),
    "Recency-Sectors": lambda export: export.recency.update(DatasetInstanceComplete=True),
    "Recency-Digest": lambda export: export.recency.update(x_DataSha256="0" * 64),
}  # fmt: skip

#: Type -> a value that is none of it.
UGLY = {
    "time": "2026-11-01 00:00:00", "decimal": "1e3", "integer": "1.5", "json": "[1]",
    "string": " x", "currency": "Euro", "sha256": "abc",
}  # fmt: skip
TYPES = {column.name: column.type for column in COLUMNS}


def break_rule(export: Export, rule: Any) -> None:
    """Change an export so that it breaks a rule."""
    name, kind = rule.column, rule.id.rpartition("-")[2]
    if rule.id in BREAKS:
        BREAKS[rule.id](export)
    elif kind == "Present":
        export.columns.remove(name)
        for row in export.rows:
            del row[name]
    elif kind == "NotNull":
        export.rows[0][name] = None
    else:
        export.rows[-1][name] = "Nonsense" if kind == "Values" else UGLY[TYPES[name]]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_every_rule_can_fail(rule: Any, good: Export) -> None:
    """A good export does not break it; one with this fault does, and is told where."""
    export = deepcopy(good)
    assert [] == list(rule.find(export))
    break_rule(export, rule)
    assert next(rule.find(export))


def test_findings_name_the_rule_and_the_first_place(good: Export) -> None:
    """A good export has none; two faults of one kind are one finding, counted."""
    export = deepcopy(good)
    assert [] == check_export(export)
    for row in export.rows[:2]:
        row["BilledCost"] = "1"
    (found,) = check_export(export)
    assert ("BilledCost-Zero", 2, "row 1") == (found.rule, found.times, found.first)


def test_rules_are_of_all_mandatory_columns_and_relations() -> None:
    """21 mandatory columns; each rule says how binding it is; none is left without a change."""
    present = [rule for rule in RULES if rule.kind == "presence" and rule.level == "mandatory"]
    assert 21 == len(present)
    assert not BREAKS.keys() - {rule.id for rule in RULES}
    kinds = {"presence", "nullability", "format", "values", "relation", "metadata"}
    assert kinds == {rule.kind for rule in RULES}
    assert not {"ProviderName", "PublisherName"} & {column.name for column in COLUMNS}


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("ChargePeriodStart", "2026-02-30T00:00:00Z"),
        ("ChargePeriodStart", "2026-11-01T00:00:00+00:00"),
        ("ListCost", "+1"), ("ListCost", "1,000"), ("ListCost", "01"), ("ListCost", ".5"),
        ("ListCost", "0.0000000000000000001"), ("Tags", "{"), ("ServiceName", "a\tb"),
    ],
)  # fmt: skip
def test_formats_are_strict(column: str, text: str, good: Export) -> None:
    """No such day, no offset, no sign, separator or needless zero, no more digits than told."""
    export = deepcopy(good)
    export.rows[0][column] = text
    assert f"{column}-Format" in {one.rule for one in check_export(export)}


# -- prices --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"[]", "one mapping"),
        (b"\xff", "UTF-8"),
        (book(), "at least 1 item"),
        (book(price("a", "GPU-Days", 1)), "GPU-Seconds"),
        (book(price("a", "GPU-Hours", -1)), "greater than or equal"),
        (book(price("a", "GPU-Hours", 1) | {"list_nanos": "0.5"}), "valid integer"),
        (book(price("a", "GPU-Hours", 1), price("a", "GPU-Hours", 2)), "stands twice"),
        (book(price("a", "GPU-Hours", 1), price("b", "GPU-Hours", 2, 5)), "for the same"),
        (book(price("a", "GPU-Hours", 1), price("a", "GPU-Hours", 2, 5, model="H")), "two things"),
        (book(price("a", "GPU-Hours", 1, valid_from="2026-01-01T00:00:00.5Z")), "whole second"),
        (book(price("a", "GPU-Hours", 1, valid_from="2026-01-01T00:00:00")), "timezone"),
        (book(price("a", "GPU-Hours", 1, discount=3)), "Extra inputs"),
        (book(price("a", "GPU-Hours", 1), currency="euro"), "currency"),
    ],
)
def test_what_is_no_price_book_is_told(data: bytes, message: str) -> None:
    """Prices are whole nanos with an author and a reason, each for one thing from one time."""
    with pytest.raises(NotTheFormat, match=message):
        read_prices(data)


def test_the_example_is_a_price_book() -> None:
    """It prices everything, and the small slice of an H100 by the price of its day."""
    path = Path(__file__).parent.parent / "examples" / "prices.yaml"
    data = path.read_bytes().replace(b"NVIDIA H100 80GB HBM3", b"H100")
    found = read_prices(data)
    october = issued(RECORDS, OCTOBER, tariff(POLICIES["pool"], data))
    assert {"h100", "share"} == {one.price.sku for one in charges(october.origins)}
    assert ["gpu", "h100", "h100-1g", "h100-1g", "share"] == [one.sku for one in found.book.prices]


def test_of_prices_that_fit_the_narrowest_counts() -> None:
    """A profile's before a delivery mode's, that before a model's, then any; then the newest."""
    found = read_prices(
        book(
            price("any", "GPU-Hours", 1),
            price("model", "GPU-Hours", 2, model="H100"),
            price("share", "GPU-Hours", 3, delivery="share"),
            price("slice", "GPU-Hours", 4, profile="1g.10gb"),
            price("slice", "GPU-Hours", 5, from_s=60, profile="1g.10gb"),
        )
    )
    held = Holding("l", "r", "t", None, "q", "", "", "mig", "1g.10gb", None, None, 143, 1, 1)
    row = Row("c", "n", "p", "H100", "GPU-a", "s", "allocated", "running", 0, 1, 143, held)
    share = replace(row, holding=replace(held, profile="", delivery="share"))
    skus = [
        found.of(row, 59).list_nanos, found.of(row, 60).list_nanos, found.of(share, 60).list_nanos,
        found.of(replace(row, holding=None), 60).list_nanos,
        found.of(replace(row, model="A100", holding=None), 60).list_nanos,
    ]  # fmt: skip
    assert [4, 5, 3, 2, 1] == skus


def test_what_has_no_price_is_not_free() -> None:
    """A model that no price is for, or a time before the first: the bill is not made."""
    other = tariff(POLICIES["pool"], book(price("a", "GPU-Hours", 1, model="A100")))
    with pytest.raises(NoPrice, match="no price of prices is for H100"):
        issued(RECORDS, OCTOBER, other, [OCTOBER, NOVEMBER])
    late = price("a", "GPU-Hours", 1, valid_from="2026-10-02T00:00:00Z")
    with pytest.raises(NoPrice, match="2026-10-01T09:00:00"):
        issued(RECORDS, OCTOBER, tariff(POLICIES["pool"], book(late)), [OCTOBER, NOVEMBER])


# -- the command ---------------------------------------------------------------


def gpuledger(*arguments: str, status: int = 0) -> str:
    """Run the command; return what it prints."""
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == status, done.output
    return done.output


@pytest.fixture
def site(tmp_path: Path) -> list[str]:
    """The options that name a log and a price book."""

    async def fill() -> None:
        await (await logged(tmp_path / "log.sqlite")).close()

    asyncio.run(fill())
    (tmp_path / "prices.json").write_bytes(BOOK)
    return ["--log", f"sqlite:{tmp_path / 'log.sqlite'}", "--prices", str(tmp_path / "prices.json")]


def test_the_command_writes_and_checks(site: list[str], tmp_path: Path) -> None:
    """October's sums as text and JSON, its files, and their check; a fault is exit status 1."""
    out = str(tmp_path / "out")
    text = gpuledger("bill", *site, "--period", "2026-10", "--to", out)
    assert "2026-10, closed: " in text
    plain = orjson.loads(gpuledger("bill", *site, "--period", "2026-10", "--json"))
    payers = {one["payer"]: one for one in plain["payers"]}
    assert ("1049.4", "524.7", "1049400") == tuple(
        payers["t"][name] for name in ("list_cost", "contracted_cost", "gpu_seconds")
    )
    assert "5292" == payers["total"]["list_cost"]
    assert [] == plain["files"]
    checked = orjson.loads(gpuledger("bill", "--check", out, "--json"))
    assert ([], len(RULES)) == (checked["broken"], checked["rules"])
    rows = tmp_path / "out" / "cost-and-usage-2026-10.csv"
    rows.write_bytes(rows.read_bytes().replace(b"EUR", b"EU", 1))
    assert "BillingCurrency-Format" in gpuledger("bill", "--check", out, status=1)


def test_u4_the_export_names_the_checkpoint_that_proved_the_log(
    site: list[str], tmp_path: Path
) -> None:
    """The log is held against it first: a checkpoint of another history is exit status 4."""
    key, kept, out = (str(tmp_path / name) for name in ("key", "checkpoints", "out"))
    gpuledger("checkpoint", "keygen", "example.org/site", "--key", key)
    gpuledger("checkpoint", "create", *site[:2], "--key", key, "--to", kept)
    proved = ["--checkpoint", kept, "--key", f"{key}.pub", "--period", "2026-10"]
    gpuledger("bill", *site, *proved, "--to", out)
    recency = orjson.loads((tmp_path / "out" / "cost-and-usage-2026-10.recency.json").read_bytes())
    ((origin, size),) = recency["x_Checkpoints"].items()
    assert ("example.org/site/gpuledger.events/0", size) == (origin, recency["x_LogEnds"]["0"])
    other = ["--log", f"sqlite:{tmp_path / 'other.sqlite'}", *site[2:]]

    async def fill() -> None:
        await (await logged(tmp_path / "other.sqlite", RECORDS[:-1])).close()

    asyncio.run(fill())
    assert "TAMPERED" in gpuledger("bill", *other, *proved, status=4)


def test_months_beside_the_log_are_settled_or_open(site: list[str]) -> None:
    """A month before the first record is closed once its grace is over; a later one is open."""
    said = {
        month: orjson.loads(gpuledger("bill", *site, "--period", month, "--json"))
        for month in ("2026-08", "2027-06")
    }
    assert ("closed", 0) == (said["2026-08"]["state"], said["2026-08"]["rows"])
    assert ("open", 0) == (said["2027-06"]["state"], said["2027-06"]["rows"])


def test_the_command_says_what_is_wrong(site: list[str], tmp_path: Path) -> None:
    """No month, no such month, no prices, no bill: usage or a no, and never a traceback."""
    assert "bill takes --period" in gpuledger("bill", *site, status=2)
    none = gpuledger("bill", *site[:2], "--period", "2026-10", status=1)
    assert "a price book has to be on record, and the log has: none" in none
    assert "a bill is of a month" in gpuledger("bill", *site, "--period", "2026-10-01", status=2)
    assert "is no month" in gpuledger("bill", *site, "--period", "2026-13", status=2)
    assert "has no bill" in gpuledger("bill", "--check", str(tmp_path), status=1)
    bad = tmp_path / "bad.json"
    bad.write_text("{}")
    options = [*site[:2], "--prices", str(bad), "--period", "2026-10"]
    assert "Field required" in gpuledger("bill", *options, status=2)


def _hostile(name: str, export: Export) -> None:
    first, last = export.rows[0], export.rows[-1]
    if name == "a row without a column":
        del last["BilledCost"]
    elif name == "the last month of the calendar":
        first["BillingPeriodStart"] = "9999-12-01T00:00:00Z"
    elif name == "elements that are none":
        first["AllocatedMethodId"], first["AllocatedMethodDetails"] = "x", '{"Elements": [1]}'
    elif name == "a number that would take all memory":
        first["AllocatedMethodId"] = "x"
        first["AllocatedMethodDetails"] = '{"Elements": [{"AllocatedRatio": 1e999999999}]}'
    elif name == "sectors that are none":
        export.recency["TimeSectors"] = [1]
    else:
        export.schema["ColumnDefinition"] = 5


@pytest.mark.parametrize(
    "name",
    [
        "a row without a column", "the last month of the calendar", "elements that are none",
        "a number that would take all memory", "sectors that are none", "columns that are none",
    ],
)  # fmt: skip
def test_a_bill_that_another_wrote_is_judged_whatever_it_holds(name: str, good: Export) -> None:
    """What cannot be judged is a broken rule, and no traceback."""
    export = deepcopy(good)
    _hostile(name, export)
    assert check_export(export)


class Growing:
    """A log to which a record comes after it was first looked at."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.looked = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self.log, name)

    async def end(self, topic: str, partition: int) -> int:
        """Say where it ends, one less at first."""
        self.looked += 1
        return await self.log.end(topic, partition) - (self.looked == 1)


async def test_a_bill_is_of_one_place_of_a_log_that_grows(tmp_path: Path) -> None:
    """Late facts are read in a second pass, to where the first one came."""
    log = Growing(await logged(tmp_path / "log"))
    metered = await meter_log(log, PREFIX, NOVEMBER)  # type: ignore[arg-type]
    found = bill_of(metered, POOL)
    assert log.looked == 2
    assert found.ends == {0: len(RECORDS) - 1}
    await log.log.close()


@pytest.mark.parametrize("data", [b"[]", b"{", b"", b"[1]"])
def test_what_is_no_recency_object_is_told(data: bytes, november: Bill, tmp_path: Path) -> None:
    """By who reads a bill, and by who would write over one that may be closed."""
    write_bill(tmp_path, november, POOL, "json", "1")
    (tmp_path / "cost-and-usage-2026-11.recency.json").write_bytes(data)
    with pytest.raises(NoExport):
        read_exports(tmp_path)
    with pytest.raises(ClosedMonth, match="nobody knows whether its month is closed"):
        write_bill(tmp_path, november, POOL, "json", "1")


@pytest.mark.parametrize(
    ("form", "data"),
    [("json", b"[1]\n[2]\n"), ("csv", b'A\r\n"' + b"x" * 200_000 + b'"\r\n'), ("parquet", b"PAR1")],
)
def test_rows_that_are_none_are_told(
    form: str, data: bytes, november: Bill, tmp_path: Path
) -> None:
    """A file that another wrote, or that was cut off."""
    path = write_bill(tmp_path, november, POOL, form, "1")[0]
    path.write_bytes(data)
    with pytest.raises(NoExport):
        read_exports(tmp_path)
