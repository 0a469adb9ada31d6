"""Bills of logs without a log's port: prices as files and as an oracle has them, and months."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ledger.billing.charges import Charge, Origin, Tariff
from ledger.billing.collect import Bill, Collector, month_bill
from ledger.billing.prices import read_prices
from ledger.billing.reserved import Reservations
from ledger.metering.calendar import Period
from ledger.metering.policy import POLICIES, MeteringPolicy
from ledger.metering.stream import PartitionMeter

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "BOOK",
    "DAY",
    "EVERYTHING",
    "FOREVER_MONTH",
    "book",
    "charges",
    "issued",
    "oracle_prices",
    "price",
    "tariff",
]

#: One period that has everything of a random log.
FOREVER_MONTH = Period("1970-01", 0, 31 * 86_400_000_000)
DAY = 86_400_000_000

#: A policy by which holders pay for all that can be theirs.
EVERYTHING = MeteringPolicy(
    "everything",
    POLICIES["occupancy"].holder_pays
    | {"allocated unhealthy", "allocated node-lost", "idle kept", "absent held"},
)


def price(sku: str, unit: str, nanos: int, from_s: int = 0, **more: Any) -> dict[str, Any]:
    """Return one price of a book."""
    when = f"1970-01-01T00:{from_s // 60:02d}:{from_s % 60:02d}Z"
    about = {"valid_from": when, "author": "finance", "reason": "budget"}
    return {"sku": sku, "unit": unit, "list_nanos": nanos, **about, **more}


def book(*prices: dict[str, Any], **more: Any) -> bytes:
    """Return a price book's file."""
    head = {
        "book": "prices", "currency": "EUR", "issuer": "Example IT", "provider": "GPU platform",
        "host": "Example data centre", "account": "example", "region": "eu-1",
    }  # fmt: skip
    return json.dumps({**head, "prices": prices, **more}).encode()


#: Prices in hours and seconds, of everything, a model's whole cards, a profile and shares, and
#: one that changes while the random logs run.
PRICES = (
    price("gpu", "GPU-Hours", 2_500_000_001),
    price("gpu", "GPU-Seconds", 694_447, from_s=617),
    price(
        "h100", "GPU-Hours", 3_333_333_333, model="H100", delivery="whole",
        contracted_nanos=2_999_999_999,
    ),
    price("small-slice", "GPU-Seconds", 777_777, profile="1g.10gb", contracted_nanos=1),
    price("share", "GPU-Hours", 1_000_000_007, from_s=100, delivery="share"),
)  # fmt: skip
BOOK = book(*PRICES)


def oracle_prices() -> list[dict[str, Any]]:
    """Return `PRICES` as the oracle has them."""
    found = []
    for one in PRICES:
        minutes, seconds = one["valid_from"][14:19].split(":")
        contracted = one.get("contracted_nanos", one["list_nanos"])
        found.append(
            {
                **one, "id": f"{one['sku']}@{one['valid_from']}", "list": one["list_nanos"],
                "contracted": contracted, "from_s": int(minutes) * 60 + int(seconds),
            }
        )  # fmt: skip
    return found


def tariff(policy: MeteringPolicy = EVERYTHING, data: bytes = BOOK) -> Tariff:
    """Return prices and a policy."""
    return Tariff(read_prices(data), policy)


def issued(
    values: Sequence[bytes],
    month: Period,
    chosen: Tariff,
    periods: Iterable[Period] | None = None,
    grace_us: int = 3 * DAY,
    *,
    marked: bool = True,
) -> Bill:
    """Return a month's bill, read as `meter_log` reads a log: once more where facts are late.

    ``marked`` False is without the marks of what is unused of reservations, which other ways
    of counting do not know: a charge is cut where they begin and end.
    """
    around = [month] if periods is None else list(periods)
    found, known_us = _collected(values, Collector(month, around, grace_us))
    if found.late:
        again = Collector(month, around, grace_us, found.concerned())
        found, known_us = _collected(values, again)
    if not marked:
        found.reserved = Reservations()
    state = found.state_of(month, known_us)
    return Bill(month, month_bill(found, chosen), state, known_us, {0: len(values)})


def _collected(values: Sequence[bytes], collector: Collector) -> tuple[Collector, int]:
    meter = PartitionMeter()
    for offset, value in enumerate(values):
        verdict, record = meter.fold.apply(offset, value)
        if verdict == "effective":
            collector.step(meter, record)
    collector.take(meter.cut(meter.known_us))
    return collector, meter.known_us


def charges(origins: Iterable[Origin]) -> list[Charge]:
    """Return the charges of origins, in order."""
    return [one for origin in origins for one in origin.charges]
