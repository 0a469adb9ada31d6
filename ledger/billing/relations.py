"""Rules of a bill that are about more than one value: within a row, and over all of them.

A value that is not of its format breaks the rule of that, and none here.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ledger.billing.focus import COLUMNS, FOCUS_VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ledger.billing.export import Export
    from ledger.billing.focus import Values

__all__ = ["ROW_RELATIONS", "TABLE_RELATIONS"]

_NUMBER = re.compile(r"-?\d+(\.\d+)?")
_MOST_DIGITS = 99


def _number(text: str | None) -> Fraction | None:
    return Fraction(text) if text is not None and _NUMBER.fullmatch(text) else None


def _time(text: str | None) -> datetime | None:
    try:
        return None if text is None else datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        return None


def _exact(text: str) -> Fraction:
    """Return a number of JSON as it is; raise ValueError for one that would take all memory."""
    number = Decimal(text)
    if abs(number.adjusted()) > _MOST_DIGITS:
        raise ValueError(text[:20])
    return Fraction(number)


def _object(text: str | None) -> dict[str, Any]:
    try:
        # As they are written, so that ratios are summed exactly.
        found = json.loads(text or "{}", parse_float=_exact, parse_int=_exact)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


# -- within a row --------------------------------------------------------------


def _product(cost: str, price: str) -> Callable[[Values], bool]:
    def holds(row: Values) -> bool:
        numbers = [_number(row[name]) for name in (cost, price, "PricingQuantity")]
        total, each, quantity = numbers
        return total is None or each is None or quantity is None or total == each * quantity

    return holds


def _same(one: str, other: str) -> Callable[[Values], bool]:
    def holds(row: Values) -> bool:
        mine, theirs = _number(row[one]), _number(row[other])
        return mine is None or theirs is None or mine == theirs

    return holds


def _together(*names: str) -> Callable[[Values], bool]:
    return lambda row: len({row[name] is None for name in names}) == 1


def _only_with(name: str, other: str) -> Callable[[Values], bool]:
    return lambda row: row[name] is None or row[other] is not None


def _priced(name: str) -> Callable[[Values], bool]:
    """Say that usage which is no correction has a value."""
    return lambda row: (
        row[name] is not None
        or row["ChargeCategory"] != "Usage"
        or row["ChargeClass"] == "Correction"
    )


def _billing_month(row: Values) -> bool:
    start, end = _time(row["BillingPeriodStart"]), _time(row["BillingPeriodEnd"])
    if start is None or end is None:
        return True
    after = datetime(start.year + start.month // 12, start.month % 12 + 1, 1, tzinfo=UTC)
    return start == datetime(start.year, start.month, 1, tzinfo=UTC) and end == after


def _forwards(row: Values) -> bool:
    start, end = _time(row["ChargePeriodStart"]), _time(row["ChargePeriodEnd"])
    return start is None or end is None or start < end


def _within(row: Values) -> bool:
    names = ("BillingPeriodStart", "ChargePeriodStart", "ChargePeriodEnd", "BillingPeriodEnd")
    first, start, end, last = (_time(row[name]) for name in names)
    if first is None or start is None or end is None or last is None:
        return True
    return row["ChargeClass"] is not None or (first <= start and end <= last)


def _corrects_the_past(row: Values) -> bool:
    end, first = _time(row["ChargePeriodEnd"]), _time(row["BillingPeriodStart"])
    if row["ChargeClass"] is None or end is None or first is None:
        return True
    return end <= first


def _corrects_a_month(row: Values) -> bool:
    if row["ChargeClass"] is None:
        return row["x_CorrectsPeriod"] is None
    return row["x_CorrectsPeriod"] == (row["ChargePeriodStart"] or "")[:7]


def _never_negative(row: Values) -> bool:
    quantity = _number(row["PricingQuantity"])
    return quantity is None or quantity > 0 or row["ChargeClass"] is not None


def _metered(row: Values) -> bool:
    start, end = _time(row["ChargePeriodStart"]), _time(row["ChargePeriodEnd"])
    milli, consumed = _number(row["x_GpuMilli"]), _number(row["ConsumedQuantity"])
    if start is None or end is None or milli is None or consumed is None:
        return True
    return abs(consumed) * 1000 == milli * int((end - start).total_seconds())


def _payer(row: Values) -> bool:
    if row["x_Payer"] == "holder":
        return row["SubAccountId"] is not None and row["SubAccountId"] == row["x_HolderTenant"]
    return row["x_Payer"] is None or row["SubAccountId"] is None


def _details(row: Values) -> bool:
    return all(
        key in ("GpuCount", "InstanceType", "InstanceSeries", "MemorySize")
        or re.fullmatch("x_[A-Z][A-Za-z0-9]*", key)
        for key in _object(row["SkuPriceDetails"])
    )


def _unused(row: Values) -> bool:
    return row["CapacityReservationStatus"] != "Unused" or row["x_State"] == "idle"


#: Id, level, what must hold, and whether it does for a row.
ROW_RELATIONS: tuple[tuple[str, str, str, Callable[[Values], bool]], ...] = (
    ("ListCost-Product", "mandatory", "ListCost is ListUnitPrice x PricingQuantity, exactly",
     _product("ListCost", "ListUnitPrice")),
    ("ContractedCost-Product", "mandatory",
     "ContractedCost is ContractedUnitPrice x PricingQuantity, exactly",
     _product("ContractedCost", "ContractedUnitPrice")),
    ("EffectiveCost-Contracted", "mandatory",
     "EffectiveCost of usage without commitments is ContractedCost",
     _same("EffectiveCost", "ContractedCost")),
    ("BilledCost-Zero", "mandatory", "BilledCost is 0 where no invoice is issued",
     lambda row: _number(row["BilledCost"]) in (None, 0)),
    ("BillingPeriod-Month", "mandatory", "a billing period is a month of UTC", _billing_month),
    ("ChargePeriod-Forwards", "mandatory", "ChargePeriodStart is before ChargePeriodEnd",
     _forwards),
    ("ChargePeriod-Within", "mandatory",
     "a charge that is no correction lies within its billing period", _within),
    ("ChargeClass-Past", "mandatory", "a correction is about an earlier billing period",
     _corrects_the_past),
    ("x_CorrectsPeriod-Month", "own", "a correction, and only that, names the month it is about",
     _corrects_a_month),
    ("PricingQuantity-Sign", "mandatory", "only a correction takes back", _never_negative),
    ("PricingQuantity-Unit", "mandatory", "PricingQuantity and PricingUnit go together",
     _together("PricingQuantity", "PricingUnit")),
    ("PricingQuantity-Usage", "mandatory", "usage has a PricingQuantity",
     _priced("PricingQuantity")),
    ("ConsumedQuantity-Unit", "conditional", "ConsumedQuantity and ConsumedUnit go together",
     _together("ConsumedQuantity", "ConsumedUnit")),
    ("ConsumedQuantity-Usage", "conditional", "usage has a ConsumedQuantity",
     _priced("ConsumedQuantity")),
    ("ConsumedQuantity-Period", "own",
     "ConsumedQuantity is the charge period x the thousandths of the device", _metered),
    ("SkuPriceId-Usage", "conditional", "usage has a SkuPriceId", _priced("SkuPriceId")),
    ("SkuPriceId-Sku", "conditional", "a SkuPriceId has a SkuId",
     _only_with("SkuPriceId", "SkuId")),
    ("SkuMeter-Sku", "conditional", "SkuMeter and SkuId go together",
     _together("SkuMeter", "SkuId")),
    ("SkuPriceDetails-Price", "conditional", "SkuPriceDetails are of a SkuPriceId",
     _only_with("SkuPriceDetails", "SkuPriceId")),
    ("SkuPriceDetails-Keys", "conditional",
     "keys of SkuPriceDetails are those of FOCUS or x_ and PascalCase", _details),
    ("ListUnitPrice-Usage", "conditional", "usage has a ListUnitPrice", _priced("ListUnitPrice")),
    ("ContractedUnitPrice-Usage", "conditional", "usage has a ContractedUnitPrice",
     _priced("ContractedUnitPrice")),
    ("ResourceId-Type", "conditional", "ResourceId and ResourceType go together",
     _together("ResourceId", "ResourceType")),
    ("ResourceName-Resource", "conditional", "a ResourceName is of a ResourceId",
     _only_with("ResourceName", "ResourceId")),
    ("SubAccountName-Account", "conditional", "SubAccountId and SubAccountName go together",
     _together("SubAccountId", "SubAccountName")),
    ("SubAccountId-Payer", "own",
     "who pays as the holder is the sub account, the pool pays without one (M7)", _payer),
    ("RegionName-Region", "conditional", "RegionId and RegionName go together",
     _together("RegionId", "RegionName")),
    ("CapacityReservationStatus-Id", "conditional",
     "CapacityReservationStatus and CapacityReservationId go together",
     _together("CapacityReservationId", "CapacityReservationStatus")),
    ("CapacityReservationStatus-Unused", "own", "what is unused is idle", _unused),
    ("AllocatedMethodDetails-Method", "recommended",
     "AllocatedMethodDetails are there where a charge is split",
     _together("AllocatedMethodDetails", "AllocatedMethodId")),
    ("AllocatedResourceId-Method", "conditional", "only of a split charge something is allocated",
     _only_with("AllocatedResourceId", "AllocatedMethodId")),
    ("AllocatedResourceName-Resource", "conditional",
     "AllocatedResourceName and AllocatedResourceId go together",
     _together("AllocatedResourceName", "AllocatedResourceId")),
    ("AllocatedTags-Resource", "conditional", "AllocatedTags are of an AllocatedResourceId",
     _only_with("AllocatedTags", "AllocatedResourceId")),
)  # fmt: skip


# -- over all rows, and beside them --------------------------------------------


def _ratios(export: Export) -> Iterator[str]:
    sums: defaultdict[str, Fraction] = defaultdict(Fraction)
    for row in export.rows:
        if row.get("AllocatedMethodId") is not None:
            for one in _object(row.get("AllocatedMethodDetails")).get("Elements", ()):
                ratio = one.get("AllocatedRatio")
                sums[row.get("x_OriginChargeId") or ""] += ratio or 0
    yield from (f"{origin}: {float(total)}" for origin, total in sums.items() if total != 1)


def _overlaps(export: Export) -> Iterator[str]:
    spans: defaultdict[tuple[str | None, str | None], list[tuple[str, str]]] = defaultdict(list)
    for row in export.rows:
        if row.get("ChargeClass") is None:
            key = (row.get("ResourceId"), row.get("AllocatedResourceId"))
            start, end = row.get("ChargePeriodStart"), row.get("ChargePeriodEnd")
            spans[key].append((start or "", end or ""))
    for (resource, allocated), found in spans.items():
        found.sort()
        for (_, end), (start, _) in pairwise(found):
            if start < end:
                yield f"{resource} {allocated or ''} at {start}"


def _repeated(export: Export) -> Iterator[str]:
    seen = set()
    for number, row in enumerate(export.rows, 1):
        key = tuple(row.values())
        if key in seen:
            yield f"row {number}"
        seen.add(key)


def _one(name: str, of: str | None) -> Callable[[Export], Iterator[str]]:
    """Yield where one column has several values, for each value of another."""

    def find(export: Export) -> Iterator[str]:
        known: dict[str | None, str | None] = {}
        for number, row in enumerate(export.rows, 1):
            key = row.get(of) if of is not None else ""
            if known.setdefault(key, row.get(name)) != row.get(name):
                yield f"row {number}: {row.get(name)!r}"

    return find


def _order(export: Export) -> Iterator[str]:
    known = {one.name for one in COLUMNS if one.level != "own"}
    own = False
    for name in export.columns:
        if name.startswith("x_"):
            own = True
            if not re.fullmatch("x_[A-Z][A-Za-z0-9]*", name):
                yield f"{name} is not x_ and PascalCase"
        elif own:
            yield f"{name} stands after our own"
        elif name not in known:
            yield f"{name} is no FOCUS column that we know"


def _schema(export: Export) -> Iterator[str]:
    wanted = ("SchemaId", "FocusVersion", "CreationDate", "DataGenerator", "ColumnDefinition")
    yield from (f"{name} is missing" for name in wanted if not export.schema.get(name))
    if export.schema.get("FocusVersion") not in (None, FOCUS_VERSION):
        yield f"FocusVersion is {export.schema['FocusVersion']}"


def _defined(export: Export) -> Iterator[str]:
    named = [one.get("ColumnName") for one in export.schema.get("ColumnDefinition") or ()]
    if named != export.columns:
        yield "the columns of the rows are not those of the schema object, in order"


def _scales(export: Export) -> Iterator[str]:
    for one in export.schema.get("ColumnDefinition") or ():
        if one.get("DataType") == "DECIMAL" and not {"NumericPrecision", "NumberScale"} <= set(one):
            yield f"{one.get('ColumnName')}"


def _recent(export: Export) -> Iterator[str]:
    wanted = (
        "DatasetInstanceId",
        "DatasetInstanceLastUpdated",
        "RecencyLastUpdated",
        "TimeSectors",
    )
    yield from (f"{name} is missing" for name in wanted if not export.recency.get(name))


def _sectors(export: Export) -> Iterator[str]:
    sectors = export.recency.get("TimeSectors") or ()
    said = export.recency.get("DatasetInstanceComplete")
    if said != all(one.get("TimeSectorComplete") for one in sectors):
        yield "DatasetInstanceComplete is not what the time sectors say"
    spans = {(one.get("TimeSectorStart"), one.get("TimeSectorEnd")) for one in sectors}
    for number, row in enumerate(export.rows, 1):
        if (row.get("BillingPeriodStart"), row.get("BillingPeriodEnd")) not in spans:
            yield f"row {number}: its billing period is no time sector"


def _digest(export: Export) -> Iterator[str]:
    if export.recency.get("x_DataSha256") != export.sha256:
        yield "the rows have another SHA-256 than when they were written"


#: Id, level, what must hold, and where it does not.
TABLE_RELATIONS: tuple[tuple[str, str, str, Callable[[Export], Iterator[str]]], ...] = (
    ("AllocatedRatio-Sum", "conditional", "the ratios of one origin sum to 1, exactly (M4)",
     _ratios),
    ("ChargePeriod-Overlap", "own",
     "no two charges of one resource and allocated resource overlap (M4)", _overlaps),
    ("Rows-Distinct", "mandatory", "no row stands twice", _repeated),
    ("Columns-Order", "mandatory", "FOCUS columns come first, then ours, x_ and PascalCase",
     _order),
    ("BillingCurrency-One", "own", "a bill is in one currency", _one("BillingCurrency", None)),
    ("ServiceCategory-One", "mandatory", "a ServiceName has one ServiceCategory",
     _one("ServiceCategory", "ServiceName")),
    ("SkuPriceDetails-One", "conditional", "a SkuPriceId has always the same SkuPriceDetails",
     _one("SkuPriceDetails", "SkuPriceId")),
    ("ListUnitPrice-One", "own", "a SkuPriceId has one ListUnitPrice",
     _one("ListUnitPrice", "SkuPriceId")),
    ("PricingUnit-One", "own", "a SkuPriceId has one PricingUnit",
     _one("PricingUnit", "SkuPriceId")),
    ("Schema-Fields", "mandatory", f"the schema object is whole and of {FOCUS_VERSION}", _schema),
    ("Schema-Columns", "mandatory", "the schema object defines the columns", _defined),
    ("Schema-Scale", "mandatory", "decimals have a precision and a scale", _scales),
    ("Recency-Fields", "recommended", "the recency object is whole", _recent),
    ("Recency-Sectors", "recommended", "time sectors are the billing periods of the rows",
     _sectors),
    ("Recency-Digest", "own", "the rows are those that were written", _digest),
)  # fmt: skip
