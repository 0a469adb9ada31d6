"""What a report is made of: figures with their formula and their place in the log.

A figure is an amount, or a part of a named denominator; both are kept, so nothing has to be
taken back out of a percentage. What is not known is None and never 0. Quantities are integers
until they are printed: `UNITS` says in what.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ledger.amounts import per_cent, permyriad, time_text
from ledger.operations.words import amount_text

if TYPE_CHECKING:
    from ledger.operations.charts import Chart

__all__ = ["Column", "Metric", "Part", "Range", "Reading", "Report", "Section", "Window"]

#: What a figure was counted on: records within the window, or all that were read.
Basis = Literal["window", "read"]


class Window(NamedTuple):
    """A half-open time that a report is about: from ``start_us`` until before ``end_us``."""

    start_us: int
    end_us: int

    def holds(self, time_us: int) -> bool:
        """Say whether an instant lies in it."""
        return self.start_us <= time_us < self.end_us


class Range(NamedTuple):
    """Records of one partition, the first and the last included, as ``events/0@17``."""

    first: str
    last: str


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read: a window of time, and the records behind its figures.

    ``read`` are all records that were folded: what an instant holds follows from everything
    before it, and some facts come late. ``within`` are those whose time lies in the window.
    """

    window: Window
    zone: str = "UTC"
    read: tuple[Range, ...] = ()
    within: tuple[Range, ...] = ()

    def ranges(self, basis: Basis) -> list[dict[str, str]]:
        """Return the records that a figure was counted on, as JSON has them."""
        found = self.read if basis == "read" else self.within
        return [{"from": one.first, "to": one.last} for one in found]

    def plain(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        start_us, end_us = self.window
        return {
            "from": time_text(start_us),
            "to": time_text(end_us),
            "from_us": start_us,
            "to_us": end_us,
            "zone": self.zone,
            "log": {"read": self.ranges("read"), "window": self.ranges("window")},
        }


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure: ``numerator`` in ``unit``, and what it is a part of, if of anything.

    ``of`` names the denominator. ``numerator`` None: not known, and ``missing`` says why.
    """

    name: str
    title: str
    formula: str
    numerator: int | None
    unit: str = "count"
    denominator: int | None = None
    of: str = ""
    basis: Basis = "window"
    missing: str = ""

    @property
    def permyriad(self) -> int | None:
        """Return its share in ten-thousandths, to the nearest; None where there is none."""
        return permyriad(self.numerator, self.denominator)

    def plain(self, reading: Reading) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "name": self.name,
            "title": self.title,
            "formula": self.formula,
            "unit": self.unit,
            "numerator": self.numerator,
            "denominator": self.denominator,
            "of": self.of or None,
            "permyriad": self.permyriad,
            "missing": self.missing if self.numerator is None else None,
            "log": reading.ranges(self.basis),
        }

    def cells(self) -> list[str]:
        """Return it for people: title, amount, share, and of what."""
        amount = self.missing if self.numerator is None else amount_text(self.numerator, self.unit)
        whole = ""
        if self.of and self.denominator is not None:
            whole = f"{amount_text(self.denominator, self.unit)} {self.of}"
        return [self.title, amount, per_cent(self.permyriad) if self.of else "", whole]


class Column(NamedTuple):
    """A column of a section's rows: the key, the heading, the unit and what it is."""

    key: str
    heading: str
    unit: str = "text"
    formula: str = ""


class Part(NamedTuple):
    """A named part of a whole, as pictures have it."""

    name: str
    amounts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a report: words, figures, rows, a picture; any may be missing.

    ``group`` is what its figures are about: ``resource``, ``task``, ``governance``, or
    nothing of these.
    """

    name: str
    title: str
    group: str = ""
    words: tuple[str, ...] = ()
    metrics: tuple[Metric, ...] = ()
    columns: tuple[Column, ...] = ()
    rows: tuple[dict[str, Any], ...] = ()
    basis: Basis = "window"
    charts: tuple[Chart, ...] = ()

    def plain(self, reading: Reading) -> dict[str, Any]:
        """Return it as JSON has it."""
        found: dict[str, Any] = {"name": self.name, "title": self.title}
        if self.group:
            found["group"] = self.group
        if self.words:
            found["words"] = list(self.words)
        if self.metrics:
            found["metrics"] = [one.plain(reading) for one in self.metrics]
        if self.columns:
            found["columns"] = [
                {"key": one.key, "unit": one.unit, "formula": one.formula or one.heading}
                for one in self.columns
            ]
            found["rows"] = list(self.rows)
            found["log"] = reading.ranges(self.basis)
        return found

    def cells(self) -> list[list[str]]:
        """Return its rows for people."""
        return [
            [amount_text(row.get(one.key), one.unit) for one in self.columns] for row in self.rows
        ]


@dataclass(frozen=True, slots=True)
class Report:
    """A whole report. ``more`` is what JSON has beside its sections."""

    name: str
    title: str
    reading: Reading
    sections: tuple[Section, ...]
    more: dict[str, Any] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """Return it as one JSON object."""
        return {
            "report": self.name,
            "title": self.title,
            **self.reading.plain(),
            **self.more,
            "sections": [one.plain(self.reading) for one in self.sections],
        }

    def metric(self, name: str) -> Metric:
        """Return a figure by its name; raise ``KeyError`` for one that is not there."""
        for section in self.sections:
            for one in section.metrics:
                if one.name == name:
                    return one
        raise KeyError(name)

    def section(self, name: str) -> Section:
        """Return a section by its name; raise ``KeyError`` for one that is not there."""
        for one in self.sections:
            if one.name == name:
                return one
        raise KeyError(name)
