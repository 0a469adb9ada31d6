"""The weekly report: the week and the one before it, figure by figure, and what changed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from ledger.operations.measure import Column, Report, Section
from ledger.operations.ops import governance, money_of, ops_report, resources, tasks, waste
from ledger.operations.words import amount_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import tzinfo

    from ledger.operations.gather import Gathered
    from ledger.operations.measure import Metric

__all__ = ["days_before", "weekly_report"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def days_before(time_us: int, days: int, zone: tzinfo) -> int:
    """Return the same time of the day so many days earlier, as the clocks of a place have it."""
    when = (_EPOCH + timedelta(microseconds=time_us)).astimezone(zone)
    return ((when - timedelta(days=days)).astimezone(UTC) - _EPOCH) // timedelta(microseconds=1)


def weekly_report(this: Gathered, before: Gathered) -> Report:
    """Return the report of two windows; figures are those that `ops_report` has of each."""
    sections = []
    for make in (waste, resources, tasks, governance):
        one, other = make(this), make(before)
        was = {metric.name: metric for metric in other.metrics}
        rows = tuple(_rows([(metric, was.get(metric.name)) for metric in one.metrics]))
        sections.append(
            Section(one.name, one.title, one.group, one.words, columns=_COLUMNS, rows=rows,
                    basis="read", charts=one.charts)
        )  # fmt: skip
    kept = {"tenants", "refusals"}
    sections += [one for one in ops_report(this).sections if one.name in kept]
    more = money_of(this) | {"before": before.reading.plain()}
    return Report("weekly", "Weekly report", this.reading, tuple(sections), more)


_COLUMNS = (
    Column("title", "figure"),
    Column("this_text", "this week"),
    Column("before_text", "the week before"),
    Column("change_text", "change", "text", "this week - the week before"),
    Column("this_share", "share", "permyriad", "this week's / its denominator"),
    Column("before_share", "before", "permyriad", "the week before's / its denominator"),
    Column("of", "of"),
)


def _rows(pairs: list[tuple[Metric, Metric | None]]) -> Iterator[dict[str, Any]]:
    for this, before in pairs:
        was = None if before is None else before.numerator
        known = this.numerator is not None and was is not None
        change = (this.numerator or 0) - (was or 0) if known else None
        if this.numerator is None and was is None:
            continue
        yield {
            "name": this.name,
            "title": this.title,
            "formula": this.formula,
            "unit": this.unit,
            "this": this.numerator,
            "before": was,
            "change": change,
            "this_of": this.denominator,
            "before_of": None if before is None else before.denominator,
            "of": this.of or None,
            "this_share": this.permyriad if this.of else None,
            "before_share": before.permyriad if this.of and before is not None else None,
            "this_text": amount_text(this.numerator, this.unit),
            "before_text": amount_text(was, this.unit),
            "change_text": amount_text(change, this.unit),
        }
