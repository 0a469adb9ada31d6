"""A report for the terminal."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ledger.operations.measure import Report, Section

__all__ = ["HEADINGS", "report_text"]

#: Headings of a table of figures.
HEADINGS = ("figure", "amount", "share", "of")


def report_text(
    report: Report, table: Callable[[Sequence[str], Sequence[Sequence[str]]], str]
) -> str:
    """Return the report as lines; ``table`` aligns headings and rows."""
    plain = report.reading.plain()
    read = ", ".join(f"{one.first} to {one.last}" for one in report.reading.read)
    lines = [
        report.title,
        f"from {plain['from']} to {plain['to']}; read: {read or 'nothing'}",
    ]
    for section in report.sections:
        lines += ["", *_section(section, table)]
    return "\n".join(lines).rstrip("\n")


def _section(
    section: Section, table: Callable[[Sequence[str], Sequence[Sequence[str]]], str]
) -> Iterator[str]:
    heading = f"{section.title} ({section.group})" if section.group else section.title
    yield heading
    yield "-" * len(heading)
    yield from section.words
    if section.metrics:
        yield table(HEADINGS, [one.cells() for one in section.metrics]).rstrip("\n")
    if section.columns:
        cells = section.cells()
        headings = [one.heading for one in section.columns]
        if not cells:
            yield "nothing"
        elif max(len(cell) for row in cells for cell in row) > _WIDEST:
            yield from _stacked(headings, cells)
        else:
            yield table(headings, cells).rstrip("\n")


#: A cell that is wider is told below its row, not in a column.
_WIDEST = 160
_LINE = 100


def _stacked(headings: Sequence[str], cells: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield rows one below the other, each cell a paragraph."""
    for row in cells:
        for heading, cell in zip(headings, row, strict=True):
            told = f"{heading}: {cell}" if heading else cell
            yield from wrap(told, _LINE, subsequent_indent="    ", break_long_words=False)
        yield ""
