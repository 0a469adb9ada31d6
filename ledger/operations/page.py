"""A report as one self-contained HTML page: no script, no font, no picture from elsewhere.

The page is a tree of elements, and what writes it out escapes every text. What others have
named stands in texts only, never in an attribute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element, SubElement, tostring

from ledger.operations.charts import draw
from ledger.operations.text import HEADINGS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ledger.operations.measure import Report, Section

__all__ = ["report_page"]

_STYLE = """
:root { color-scheme: light dark; --line: #8886; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; }
h1 { margin-bottom: 0; } h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line); }
h2 small { font-weight: normal; opacity: .7; }
table { border-collapse: collapse; width: 100%; } div.wide { overflow-x: auto; }
th, td { text-align: left; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; font-variant-numeric: tabular-nums; }
figure { margin: 1rem 0; } figcaption { font-weight: 600; }
svg { width: 100%; height: auto; } svg text { font-size: 11px; fill: currentColor; }
svg line { stroke: var(--line); } svg polyline { fill: none; stroke-width: 2; }
ul.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1rem; padding: 0;
  font-size: 13px; } ul.legend span { display: inline-block; width: .9em; height: .9em;
  margin-right: .4em; }
footer { margin-top: 3rem; font-size: 13px; opacity: .8; }
"""


def report_page(report: Report) -> str:
    """Return the page."""
    html = Element("html", {"lang": "en"})
    head = SubElement(html, "head")
    SubElement(head, "meta", {"charset": "utf-8"})
    SubElement(head, "meta", {"name": "viewport", "content": "width=device-width"})
    SubElement(head, "title").text = report.title
    SubElement(head, "style").text = _STYLE
    body = SubElement(html, "body")
    SubElement(body, "h1").text = report.title
    plain = report.reading.plain()
    _paragraph(body, f"from {plain['from']} to {plain['to']}")
    for section in report.sections:
        _section(body, section)
    _footer(body, report)
    return f"<!doctype html>\n{tostring(html, encoding='unicode', method='html')}\n"


def _paragraph(parent: Element, text: str) -> None:
    SubElement(parent, "p").text = text


def _section(body: Element, section: Section) -> None:
    part = SubElement(body, "section", {"id": section.name})
    heading = SubElement(part, "h2")
    heading.text = section.title
    if section.group:
        SubElement(heading, "small").text = f" {section.group}"
    for words in section.words:
        _paragraph(part, words)
    for chart in section.charts:
        part.append(draw(chart))
    if section.metrics:
        # What a figure is, is told when it is pointed at.
        formulas = [one.formula for one in section.metrics]
        _table(part, HEADINGS, [one.cells() for one in section.metrics], formulas)
    if section.columns:
        headings = [one.heading for one in section.columns]
        _table(part, headings, section.cells(), [""] * len(section.rows))


def _table(
    parent: Element, headings: Sequence[str], rows: Iterable[Sequence[str]], says: Sequence[str]
) -> None:
    table = SubElement(SubElement(parent, "div", {"class": "wide"}), "table")
    top = SubElement(SubElement(table, "thead"), "tr")
    for heading in headings:
        SubElement(top, "th").text = heading
    body = SubElement(table, "tbody")
    for cells, formula in zip(rows, says, strict=True):
        row = SubElement(body, "tr", {"title": formula} if formula else {})
        for cell in cells:
            SubElement(row, "td").text = cell


def _footer(body: Element, report: Report) -> None:
    footer = SubElement(body, "footer")
    for name, ranges in (("read", report.reading.read), ("in the window", report.reading.within)):
        told = ", ".join(f"{one.first} to {one.last}" for one in ranges)
        _paragraph(footer, f"records {name}: {told or 'none'}")
    for name, value in report.more.items():
        if isinstance(value, str):
            _paragraph(footer, f"{name}: {value}")
    _paragraph(
        footer, "The same report with --json has each figure's formula and both its numbers."
    )
