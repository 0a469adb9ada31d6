"""The columns of a FOCUS 1.4 cost and usage dataset that a bill has, and its rows.

FOCUS columns come first, then our own, ``x_`` and PascalCase. Values are text as FOCUS has
it, None for none: UTC times of whole seconds, plain decimals, JSON objects. Levels and rules
are those of the specification's cost and usage dataset; which conditional columns apply is
said in docs/billing.md.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import orjson

from ledger.core.state import WHOLE_MILLI

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ledger.billing.charges import Charge, Tariff
    from ledger.billing.collect import Bill
    from schemas.prices import Price, PriceBook

__all__ = ["COLUMNS", "FOCUS_VERSION", "METHOD", "Column", "Values", "decimal_text", "rows_of"]

FOCUS_VERSION = "1.4"

#: The one way in which charges are split: by the thousandths of the device.
METHOD = "gpu-thousandths"

Values: TypeAlias = "dict[str, str | None]"


class Column(NamedTuple):
    """A column: its level, its type, whether it may be null, its only values (() for any).

    ``scale`` is how many digits a decimal may have after the point.
    """

    name: str
    level: str
    type: str
    null: bool = False
    values: tuple[str, ...] = ()
    scale: int = 0


def _columns(level: str, *lines: tuple[object, ...]) -> list[Column]:
    return [Column(str(line[0]), level, *line[1:]) for line in lines]  # type: ignore[arg-type]


_MONEY, _PRICE, _AMOUNT = 18, 9, 9
_CATEGORIES = ("Usage", "Purchase", "Tax", "Credit", "Adjustment")
_COMPUTE = ("Compute", "AI and Machine Learning")

#: All columns in order.
COLUMNS = (
    *_columns(
        "mandatory",
        ("BilledCost", "decimal", False, (), _MONEY),
        ("BillingAccountId", "string"),
        ("BillingAccountName", "string", True),
        ("BillingCurrency", "currency"),
        ("BillingPeriodEnd", "time"),
        ("BillingPeriodStart", "time"),
        ("ChargeCategory", "string", False, _CATEGORIES),
        ("ChargeClass", "string", True, ("Correction",)),
        ("ChargeDescription", "string", True),
        ("ChargePeriodEnd", "time"),
        ("ChargePeriodStart", "time"),
        ("ContractedCost", "decimal", False, (), _MONEY),
        ("EffectiveCost", "decimal", False, (), _MONEY),
        ("HostProviderName", "string"),
        ("InvoiceIssuerName", "string"),
        ("ListCost", "decimal", False, (), _MONEY),
        ("PricingQuantity", "decimal", True, (), _AMOUNT),
        ("PricingUnit", "string", True, ("GPU-Seconds", "GPU-Hours")),
        ("ServiceCategory", "string", False, _COMPUTE),
        ("ServiceName", "string"),
        ("ServiceProviderName", "string"),
    ),
    *_columns(
        "conditional",
        ("AllocatedMethodId", "string", True, (METHOD,)),
        ("AllocatedResourceId", "string", True),
        ("AllocatedResourceName", "string", True),
        ("AllocatedTags", "json", True),
        ("CapacityReservationId", "string", True),
        ("CapacityReservationStatus", "string", True, ("Used", "Unused")),
        ("ConsumedQuantity", "decimal", True, (), _AMOUNT),
        ("ConsumedUnit", "string", True, ("GPU-Seconds",)),
        ("ContractedUnitPrice", "decimal", True, (), _PRICE),
        ("ListUnitPrice", "decimal", True, (), _PRICE),
        ("RegionId", "string", True),
        ("RegionName", "string", True),
        ("ResourceId", "string", True),
        ("ResourceName", "string", True),
        ("ResourceType", "string", True),
        ("SkuId", "string", True),
        ("SkuMeter", "string", True),
        ("SkuPriceDetails", "json", True),
        ("SkuPriceId", "string", True),
        ("SubAccountId", "string", True),
        ("SubAccountName", "string", True),
        ("Tags", "json", True),
    ),
    *_columns(
        "recommended",
        ("AllocatedMethodDetails", "json", True),
        ("ChargeFrequency", "string", False, ("One-Time", "Recurring", "Usage-Based")),
        ("ServiceSubcategory", "string", True),
    ),
    *_columns(
        "own",
        ("x_Cause", "string", True),
        ("x_Cell", "string"),
        ("x_CorrectsPeriod", "string", True),
        ("x_GpuMilli", "integer"),
        ("x_HolderTenant", "string", True),
        ("x_LeaseId", "string", True),
        ("x_Node", "string"),
        ("x_OriginChargeId", "string"),
        ("x_Payer", "string", False, ("holder", "pool")),
        ("x_PayerPolicy", "string"),
        ("x_Pool", "string"),
        ("x_PriceBook", "string"),
        ("x_PriceBookSha256", "sha256"),
        ("x_Project", "string", True),
        ("x_Queue", "string", True),
        ("x_RequestId", "string", True),
        ("x_State", "string"),
        ("x_TaskId", "string", True),
        ("x_UnitId", "string"),
    ),
)


def decimal_text(value: int, scale: int) -> str:
    """Return ``value`` x 10^-``scale`` as a plain decimal without needless digits."""
    sign = "-" if value < 0 else ""
    whole, rest = divmod(abs(value), 10**scale)
    digits = f"{rest:0{scale}d}".rstrip("0") if rest else ""
    return f"{sign}{whole}.{digits}" if digits else f"{sign}{whole}"


def time_text(at_s: int) -> str:
    """Return a second as FOCUS has times."""
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%dT%H:%M:%SZ}"


def rows_of(bill: Bill, tariff: Tariff) -> Iterator[Values]:
    """Yield a bill's rows, each with all columns."""
    period = {
        "BillingPeriodStart": time_text(bill.month.start_us // 1_000_000),
        "BillingPeriodEnd": time_text(bill.month.end_us // 1_000_000),
        "x_PayerPolicy": tariff.policy.name,
        "x_PriceBookSha256": tariff.prices.sha256,
        **_book(tariff.prices.book),
    }
    for origin in bill.origins:
        for charge in origin.charges:
            values = {**period, **_what(charge), **_price(charge), **_who(charge)}
            values |= _split(charge)
            yield {column.name: values.get(column.name) for column in COLUMNS}


def _book(book: PriceBook) -> Values:
    return {
        "BilledCost": "0",
        "BillingAccountId": book.account,
        "BillingAccountName": book.account_name or book.account,
        "BillingCurrency": book.currency,
        "ChargeCategory": "Usage",
        "ChargeFrequency": "Usage-Based",
        "HostProviderName": book.host,
        "InvoiceIssuerName": book.issuer,
        "RegionId": book.region,
        "RegionName": book.region_name or book.region,
        "ServiceCategory": "Compute",
        "ServiceName": "GPU time",
        "ServiceProviderName": book.provider,
        "ServiceSubcategory": "Other (Compute)",
        "SkuMeter": "GPU time",
        "x_PriceBook": book.book,
    }


def _what(charge: Charge) -> Values:
    piece = charge.piece
    part = "" if piece.milli == WHOLE_MILLI else f"{piece.milli} thousandths of "
    profile = piece.holding.profile if piece.holding else ""
    return {
        "ChargeClass": None if charge.corrects is None else "Correction",
        "ChargeDescription": (
            f"{part}{piece.model}{' as ' if profile else ''}{profile},"
            f" {charge.end_s - charge.start_s} s {piece.state} {piece.cause}"
        ),
        "ChargePeriodStart": time_text(charge.start_s),
        "ChargePeriodEnd": time_text(charge.end_s),
        "ResourceId": piece.device,
        "ResourceName": f"{piece.model} on {piece.node}",
        "ResourceType": "GPU",
        "x_Cause": piece.cause or None,
        "x_Cell": piece.cell,
        "x_CorrectsPeriod": charge.corrects,
        "x_GpuMilli": str(piece.milli),
        "x_Node": piece.node,
        "x_OriginChargeId": charge.origin,
        "x_Payer": "holder" if charge.holder_pays else "pool",
        "x_Pool": piece.pool,
        "x_State": piece.state,
        "x_UnitId": piece.unit,
    }


def _price(charge: Charge) -> Values:
    price = charge.price
    return {
        "ConsumedQuantity": decimal_text(charge.metered_milli_s, 3),
        "ConsumedUnit": "GPU-Seconds",
        "ContractedCost": decimal_text(charge.contracted_atto, _MONEY),
        "ContractedUnitPrice": decimal_text(price.agreed_nanos, _PRICE),
        "EffectiveCost": decimal_text(charge.contracted_atto, _MONEY),
        "ListCost": decimal_text(charge.list_atto, _MONEY),
        "ListUnitPrice": decimal_text(price.list_nanos, _PRICE),
        "PricingQuantity": decimal_text(charge.priced_nano, _AMOUNT),
        "PricingUnit": price.unit,
        "SkuId": price.sku,
        "SkuPriceDetails": _details(price),
        "SkuPriceId": price.id,
    }


def _details(price: Price) -> str:
    named = {"x_GpuModel": price.model, "x_MigProfile": price.profile}
    named["x_DeliveryMode"] = price.delivery
    return _json({"GpuCount": 1} | {name: value for name, value in named.items() if value})


def _json(plain: dict[str, object]) -> str:
    return orjson.dumps(plain, option=orjson.OPT_SORT_KEYS).decode()


def _who(charge: Charge) -> Values:
    held = charge.piece.holding
    if held is None:
        name = _reserved(charge, charge.unused)
        return {
            "CapacityReservationId": name,
            "CapacityReservationStatus": name and "Unused",
        }
    tenant = held.tenant if charge.holder_pays else None
    return {
        "CapacityReservationId": _reservation(charge),
        "CapacityReservationStatus": _reservation(charge)
        and ("Used" if charge.piece.state == "allocated" else "Unused"),
        "SubAccountId": tenant,
        "SubAccountName": tenant,
        "Tags": None if charge.split else _tags(charge),
        "x_HolderTenant": held.tenant,
        "x_LeaseId": held.lease or None,
        "x_Project": held.project,
        "x_Queue": held.queue,
        "x_RequestId": held.request,
        "x_TaskId": held.task or None,
    }


def _reservation(charge: Charge) -> str | None:
    """Return the capacity reservation: made in advance, or a place kept that nobody uses yet."""
    piece = charge.piece
    held = piece.holding
    assert held is not None
    if piece.state == "allocated":
        return _reserved(charge, held.reservation)
    if (piece.state, piece.cause) != ("idle", "kept"):
        return None
    return _reserved(charge, held.reservation) or f"{piece.cell}/places/{held.request}"


def _reserved(charge: Charge, name: str | None) -> str | None:
    return name and f"{charge.piece.cell}/reservations/{name}"


def _tags(charge: Charge) -> str:
    held = charge.piece.holding
    assert held is not None
    given = {"project": held.project, "task": held.task, "task-type": held.task_type}
    return _json({f"gpuledger:{name}": value for name, value in given.items() if value})


def _split(charge: Charge) -> Values:
    if not charge.split:
        return {}
    piece = charge.piece
    held = piece.holding
    # What nobody has is the part of the device that is allocated to nothing.
    name = piece.unit if piece.unit != piece.device else held.lease if held else ""
    element = {
        "AllocatedRatio": orjson.Fragment(decimal_text(piece.milli, 3)),
        "UsageQuantity": orjson.Fragment(decimal_text(charge.metered_milli_s, 3)),
        "UsageUnit": "GPU-Seconds",
    }
    return {
        "AllocatedMethodId": METHOD,
        "AllocatedMethodDetails": _json({"Elements": [element]}),
        "AllocatedResourceId": name or None,
        "AllocatedResourceName": (held.profile or held.task if held else name) or None,
        "AllocatedTags": _tags(charge) if name and held else None,
    }
