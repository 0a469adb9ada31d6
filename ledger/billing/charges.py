"""Charges: what a device's whole seconds cost, and whom.

An *origin* is a stretch of seconds in which a device was one thing at one price. Where it
was several pieces, its charge is split over them: each has its thousandths of the device,
and the ratios of one origin sum to 1 exactly. The holder pays what the metering policy
names, the pool pays the rest (M7), so the charges of a device are its present time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from ledger.billing.prices import UNITS
from ledger.billing.seconds import Run, apportion, layouts, whole_seconds
from ledger.core.state import WHOLE_MILLI
from ledger.metering.rows import Row

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ledger.billing.prices import Prices
    from ledger.billing.seconds import Piece
    from ledger.metering.policy import MeteringPolicy
    from schemas.prices import Price

__all__ = ["NANO", "POOL", "Charge", "Origin", "Tariff", "device_charges", "differences"]

#: Priced quantities are in thousand-millionths of their unit, money in those of nanos.
NANO = 1_000_000_000

#: Who pays for what no tenant pays.
POOL = "(pool)"


@dataclass(frozen=True, slots=True)
class Charge:
    """What one piece of a device cost from one second until before another.

    ``priced_nano`` is the quantity that is priced, in 1e-9 of the price's unit;
    ``metered_milli_s`` the same time in thousandths of GPU-seconds. Both are negative where
    a charge of a closed month is taken back. ``corrects`` names that month. ``unused`` is
    the reservation of which an idle device is the unused part.
    """

    piece: Piece
    start_s: int
    end_s: int
    origin: str
    split: bool
    holder_pays: bool
    price: Price
    metered_milli_s: int
    priced_nano: int = 0
    corrects: str | None = None
    unused: str | None = None

    @property
    def payer(self) -> str:
        """Return the tenant that pays, or `POOL`."""
        held = self.piece.holding
        return held.tenant if held is not None and self.holder_pays else POOL

    @property
    def list_atto(self) -> int:
        """Return quantity x list price, in 1e-18 of the currency: exact."""
        return self.priced_nano * self.price.list_nanos

    @property
    def contracted_atto(self) -> int:
        """Return quantity x contracted price, in 1e-18 of the currency: exact."""
        return self.priced_nano * self.price.agreed_nanos


class Origin(NamedTuple):
    """The charges of one origin; they are issued, taken back and compared together."""

    id: str
    charges: tuple[Charge, ...]


class Tariff(NamedTuple):
    """What a bill is made with: the prices, and who pays for what."""

    prices: Prices
    policy: MeteringPolicy


def device_charges(rows: Iterable[Row], start_s: int, end_s: int, tariff: Tariff) -> list[Origin]:
    """Return the origins of one device in a period, in order.

    ``rows`` are all that is said of the device's time in the period, also what was taken
    back; what lies outside the period is not charged.
    """
    found = []
    within = (_clip(one, start_s * 1_000_000, end_s * 1_000_000) for one in layouts(rows))
    for run in whole_seconds(one for one in within if one.start < one.end):
        assert sum(piece.milli for piece in run.layout) == WHOLE_MILLI, "pieces tile a device"
        pays = [_holder_pays(piece, tariff.policy) for piece in run.layout]
        # A device that is not there costs nothing, unless the policy lets its holder pay.
        if run.layout[0].state == "absent" and not any(pays):
            continue
        for first_s, last_s in _at_one_price(run, tariff.prices.changes_s()):
            found.append(list(_charges(run, first_s, last_s, pays, tariff.prices)))
    priced = iter(_priced([one for origin in found for one in origin]))
    return [Origin(origin[0].origin, tuple(next(priced) for _ in origin)) for origin in found]


def _clip(run: Run, start: int, end: int) -> Run:
    return Run(max(run.start, start), min(run.end, end), run.layout)


def _row(piece: Piece) -> Row:
    """Return a row of the piece, for whatever reads rows; it has no time."""
    return Row(*piece[:8], 0, 0, piece.milli, piece.holding)


def _holder_pays(piece: Piece, policy: MeteringPolicy) -> bool:
    return policy.holder_pays_for(_row(piece))


def _at_one_price(run: Run, changes_s: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    inside = [at_s for at_s in changes_s if run.start < at_s < run.end]
    return pairwise([run.start, *inside, run.end])


def _charges(
    run: Run, start_s: int, end_s: int, pays: list[bool], prices: Prices
) -> Iterator[Charge]:
    first = run.layout[0]
    origin = f"{first.cell}/{first.device}/{start_s}"
    for piece, holder_pays in zip(run.layout, pays, strict=True):
        price = prices.of(_row(piece), start_s)
        yield Charge(
            piece, start_s, end_s, origin, len(run.layout) > 1, holder_pays, price,
            piece.milli * (end_s - start_s),
        )  # fmt: skip


def _priced(charges: list[Charge]) -> list[Charge]:
    """Return the charges with the quantity that is priced.

    An hour's 3,600th has no end as a decimal, so hours are rounded to 1e-9, by the largest
    remainder among the charges of the device at one price: their sum is what it would be
    without. Seconds are exact.
    """
    groups: dict[str, list[int]] = {}
    for at, one in enumerate(charges):
        groups.setdefault(one.price.id, []).append(at)
    found = list(charges)
    for group in groups.values():
        unit = UNITS[charges[group[0]].price.unit]
        amounts = [charges[at].metered_milli_s * NANO for at in group]
        for at, nano in zip(group, apportion(amounts, unit), strict=True):
            found[at] = replace(charges[at], priced_nano=nano)
    return found


def differences(before: list[Origin], after: list[Origin], month: str) -> list[Origin]:
    """Return what makes of the first the second: origins taken back, then origins anew.

    They name the closed month that they are about. Both and the first together are the
    second (M6).
    """
    return [
        *(_corrected(one, month, "reversed", -1) for one in before if one not in after),
        *(_corrected(one, month, "restated", 1) for one in after if one not in before),
    ]


def _corrected(origin: Origin, month: str, how: str, sign: int) -> Origin:
    name = f"{origin.id}/{how}"
    return Origin(
        name,
        tuple(
            replace(
                one, origin=name, corrects=month, metered_milli_s=sign * one.metered_milli_s,
                priced_nano=sign * one.priced_nano,
            )
            for one in origin.charges
        ),
    )  # fmt: skip
