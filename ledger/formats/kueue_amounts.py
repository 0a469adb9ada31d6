"""What a quota of Kueue states of each flavor and resource, as the ledger counts it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ledger.formats.documents import shown
from ledger.formats.names import GPU, Product, part_milli, profile_of
from ledger.formats.quantities import up

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ledger.formats.fields import Fields

__all__ = ["ANY", "MAX_MILLI", "WHOLE_MILLI", "Amount", "factor", "plus", "read_amounts", "times"]

WHOLE_MILLI = 1000
#: The largest amount that a quota of the ledger states.
MAX_MILLI = 1_000_000_000
#: Devices of a flavor that names no model: they count in the total only.
ANY = "any"


@dataclass(frozen=True, slots=True)
class Amount:
    """What is one's own, and how much may be borrowed and lent; None is without limit."""

    nominal: int = 0
    borrowing: int | None = None
    lending: int | None = None


def plus(one: Amount, other: Amount) -> Amount:
    """Add two amounts; what has no limit has none in the sum."""
    return Amount(
        one.nominal + other.nominal,
        None if None in (one.borrowing, other.borrowing) else _sum(one.borrowing, other.borrowing),
        None if None in (one.lending, other.lending) else _sum(one.lending, other.lending),
    )


def _sum(one: int | None, other: int | None) -> int:
    return (one or 0) + (other or 0)


def times(amount: Amount, by: int) -> Amount:
    """Return the amount in a smaller unit."""
    return Amount(
        amount.nominal * by,
        None if amount.borrowing is None else amount.borrowing * by,
        None if amount.lending is None else amount.lending * by,
    )


def factor(key: str) -> int:
    """Return how many thousandths of a device one unit of a resource counts."""
    kind, _, name = key.partition(":")
    return part_milli(name) if kind == "profile" else 1


def read_amounts(
    flavor: Fields, products: Mapping[str, Product | None], entries: dict[str, Amount]
) -> str:
    """Add what one flavor of a quota states to ``entries``; return the flavor's name.

    They go by `ANY` and ``model:NAME`` in thousandths, and ``profile:NAME`` in slices.
    """
    name = flavor.needed("name")
    product = products.get(name)
    for each in flavor.each("resources"):
        resource = each.needed("name")
        profile = profile_of(resource)
        if resource != GPU and profile is None:
            each.note("name", f"{shown(resource)} is nothing that a quota of the ledger counts")
            for amount in ("nominalQuota", "borrowingLimit", "lendingLimit"):
                each.take(amount)
        elif profile is None and product is not None and product.profile is None:
            _add(entries, f"model:{product.model}", times(_amount(each), WHOLE_MILLI))
        elif profile is None and product is None:
            _add(entries, ANY, times(_amount(each), WHOLE_MILLI))
        else:
            profile = profile or (product.profile if product else None) or ""
            part = f"a slice of {profile} counts {part_milli(profile)} thousandths"
            each.note("name", f"{part}; on a device of fewer than 7 compute slices it is more")
            _add(entries, f"profile:{profile}", _amount(each))
        each.rest("no field of a quota")
    flavor.rest("no field of a flavor's quota")
    return name


def _add(entries: dict[str, Amount], key: str, amount: Amount) -> None:
    entries[key] = plus(entries[key], amount) if key in entries else amount


def _amount(fields: Fields) -> Amount:
    nominal = _pieces(fields, "nominalQuota")
    if nominal is None:
        raise fields.wrong("nominalQuota", "is missing")
    return Amount(nominal, _pieces(fields, "borrowingLimit"), _pieces(fields, "lendingLimit"))


def _pieces(fields: Fields, name: str) -> int | None:
    """Return how many devices or slices; a part of one is rounded up, as Kueue does."""
    amount = fields.quantity(name)
    if amount is None:
        return None
    pieces = up(amount)
    if pieces != amount:
        fields.note(name, f"rounded up to {pieces}, as Kueue does")
    if pieces * WHOLE_MILLI > MAX_MILLI:
        raise fields.wrong(name, f"is more than {MAX_MILLI // WHOLE_MILLI} devices")
    return pieces
