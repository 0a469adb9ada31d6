"""What the time of a window adds up to: kinds of time, money, tenants, days, and each hardware.

Rows of the meter come in; sums go out. Money is nanos of an hour x thousandths x microseconds,
so it is exact until it is told, and told so that the parts sum to the whole.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from ledger.billing.prices import UNITS as PRICED
from ledger.billing.seconds import apportion
from ledger.metering.policy import POLICIES, MeteringPolicy
from ledger.metering.report import Report as Sums
from ledger.metering.rows import GPU_HOUR_MILLI_US, Ended, Row
from ledger.operations.causes import FREE, KINDS, USED, divide

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ledger.billing.prices import Prices
    from ledger.metering.report import Totals
    from ledger.operations.measure import Window

__all__ = ["Hardware", "TimeUse"]

#: Pool and model: what advice is given for.
Hardware = tuple[str, str]

_HOUR_US = 3_600_000_000
#: Lengths of a bar in pictures, the shortest first, and how many bars there may be.
_STEPS_US = tuple(_HOUR_US * hours for hours in (1, 6, 24, 24 * 7))
_MOST_BARS = 62


def _bounds_of(window: Window) -> tuple[int, ...]:
    """Return the bounds of the bars of a picture of the window: equal steps, the last shorter."""
    start_us, end_us = window
    length_us = end_us - start_us
    step_us = next((one for one in _STEPS_US if one * _MOST_BARS >= length_us), length_us)
    bounds = [*range(start_us, end_us, max(step_us, 1)), end_us]
    return tuple(bounds) if len(bounds) > 1 else (start_us, start_us)


class _Priced(NamedTuple):
    """What has one price at a time: what it was, the kind of time, and who is charged for it."""

    model: str
    profile: str
    delivery: str
    kind: str
    payer: str


class TimeUse:
    """Sums the rows of one window. Rows and ends are given to `take`; `finish` is called once."""

    def __init__(self, window: Window, policy: MeteringPolicy = POLICIES["pool"]) -> None:
        """Begin with nothing; ``policy`` says which time is charged to its holder."""
        self.window = window
        self.policy = policy
        self.prices: Prices | None = None
        self.bounds = _bounds_of(window)
        self.kinds: Counter[str] = Counter()
        #: (number of the bar, kind of time) -> capacity x time.
        self.bars: Counter[tuple[int, str]] = Counter()
        #: Hardware -> kind of time -> capacity x time.
        self.of_hardware: dict[Hardware, Counter[str]] = {}
        self.by_tenant: dict[str, Counter[str]] = {}
        #: Tenant -> capacity x time that is charged to it, as the bill charges it.
        self.charged: Counter[str] = Counter()
        #: Hardware -> time -> change of (leased, leased or free) from then on, in thousandths.
        self.changes: dict[Hardware, dict[int, list[int]]] = {}
        self._money: Counter[str] = Counter()
        self._tenant_money: Counter[str] = Counter()
        self._sums = Sums("tenant", window.start_us, window.end_us)
        #: What has a price -> time -> change of its thousandths from then on, and one such row:
        #: which prices there are is known when the log was read.
        self._priced: dict[_Priced, tuple[Row, Counter[int]]] = {}

    def take(self, one: Row | Ended) -> None:
        """Count a row, or learn what became of a lease."""
        self._sums.take(one)
        if isinstance(one, Ended):
            return
        start_us = max(one.start_us, self.window.start_us)
        end_us = min(one.end_us, self.window.end_us)
        if start_us < end_us:
            self._count(one, start_us, end_us)

    def finish(self, prices: Prices | None = None) -> None:
        """Count what has not ended as live, and put prices to all, if there are any.

        Raise `ledger.billing.prices.NoPrice` for what the book has no price of.
        """
        self._sums.finish()
        self.prices = prices
        if prices is not None:
            for key, (row, changes) in self._priced.items():
                self._price(prices, key, row, changes)

    def _count(self, row: Row, start_us: int, end_us: int) -> None:
        parts = list(divide(row))
        if not parts:
            return
        hardware, held = (row.pool, row.model), row.holding
        span_us = end_us - start_us
        kinds = self.of_hardware.setdefault(hardware, Counter())
        tenant = held.tenant if held is not None and row.state == "allocated" else ""
        about = (row.model, held.profile if held else "", held.delivery if held else "")
        payer = held.tenant if held is not None and self.policy.holder_pays_for(row) else ""
        bars = list(self._bars_of(start_us, end_us))
        for kind, milli in parts:
            self.kinds[kind] += milli * span_us
            kinds[kind] += milli * span_us
            for at, length_us in bars:
                self.bars[at, kind] += milli * length_us
            if tenant:
                self.by_tenant.setdefault(tenant, Counter())[kind] += milli * span_us
            _, priced = self._priced.setdefault(_Priced(*about, kind, payer), (row, Counter()))
            priced[start_us] += milli
            priced[end_us] -= milli
            if payer:
                self.charged[payer] += milli * span_us
        self._change(row, hardware, start_us, end_us)

    def _bars_of(self, start_us: int, end_us: int) -> Iterator[tuple[int, int]]:
        """Yield the bars of a picture that a time lies in, and how much of it lies in each."""
        bounds = self.bounds
        for at in range(bisect_right(bounds, start_us) - 1, len(bounds) - 1):
            if bounds[at] >= end_us:
                return
            yield at, min(bounds[at + 1], end_us) - max(bounds[at], start_us)

    def _change(self, row: Row, hardware: Hardware, start_us: int, end_us: int) -> None:
        if row.state not in ("allocated", "idle"):
            return
        leased = row.milli if row.state == "allocated" else 0
        changes = self.changes.setdefault(hardware, {})
        for at_us, sign in ((start_us, 1), (end_us, -1)):
            one = changes.setdefault(at_us, [0, 0])
            one[0] += sign * leased
            one[1] += sign * row.milli

    # -- money -----------------------------------------------------------------

    def _price(self, prices: Prices, key: _Priced, row: Row, changes: Counter[int]) -> None:
        """Add what something costs: its time between two changes of prices, at what held then."""
        start_us, end_us = self.window
        inside = [at_s * 1_000_000 for at_s in prices.changes_s()]
        inside = [at_us for at_us in inside if start_us < at_us < end_us]
        for first_us, last_us in zip([start_us, *inside], [*inside, end_us], strict=True):
            amount = sum(
                milli * (last_us - min(max(at_us, first_us), last_us))
                for at_us, milli in changes.items()
            )
            if not amount:
                continue
            price = prices.of(row, first_us // 1_000_000)
            nanos = amount * price.agreed_nanos * (PRICED["GPU-Hours"] // PRICED[price.unit])
            self._money[key.kind] += nanos
            if key.payer:
                self._tenant_money[key.payer] += nanos

    def money(self) -> dict[str, int] | None:
        """Return what each kind of time cost, in nanos; None without prices.

        Rounded by the largest remainder: the parts sum to the whole.
        """
        if self.prices is None:
            return None
        amounts = [self._money[name] for name in KINDS]
        return dict(zip(KINDS, apportion(amounts, GPU_HOUR_MILLI_US), strict=True))

    def tenant_money(self) -> dict[str, int] | None:
        """Return what each tenant is charged, in nanos, as its bill; None without prices."""
        if self.prices is None:
            return None
        names = sorted(self.by_tenant.keys() | self.charged.keys())
        amounts = [self._tenant_money[name] for name in names]
        return dict(zip(names, apportion(amounts, GPU_HOUR_MILLI_US), strict=True))

    # -- sums ------------------------------------------------------------------

    def total(self) -> Totals:
        """Return the meter's own sums of the window."""
        return self._sums.total()

    @property
    def devices(self) -> int:
        """Return how many devices were present at some time of the window."""
        return len(self._sums.devices)

    @property
    def present_milli_us(self) -> int:
        """Return present time x capacity, which the kinds of time sum to."""
        return sum(self.kinds.values())

    @property
    def waste_milli_us(self) -> int:
        """Return what was neither used nor free."""
        return self.present_milli_us - self.kinds[USED] - self.kinds[FREE]
